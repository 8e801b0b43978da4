#!/usr/bin/env python3
"""Writes the golden files that tests/layers/golden.c compares with: losses and every gradient of
three small models, computed by PyTorch in fp64 from its own building blocks.

    python3 make_golden.py OUT_DIR        (Debian: python3-torch)

A file is: u64 header length; JSON header {"config": ..., "tensors": [{name, shape, offset}]};
fp32 data. Tensors: tokens and labels (as floats, [S, B]), loss, weight/<name>, grad/<name>, with
names and layouts as Weft's checkpoints have them.
"""
import json
import math
import struct
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)

BASE = {
    "num_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "seq_length": 10,
    "vocab_size": 50, "init_method_std": 0.2,
}
MODELS = {
    "gpt2": dict(BASE, ffn_hidden_size=40),
    "llama": dict(BASE, ffn_hidden_size=36, num_query_groups=2, normalization="RMSNorm",
                  swiglu=True, position_embedding_type="rope", disable_bias_linear=True,
                  untie_embeddings_and_output_weights=True, norm_epsilon=1e-6),
    "mixtral": dict(BASE, ffn_hidden_size=28, num_query_groups=2, normalization="RMSNorm",
                    swiglu=True, position_embedding_type="rope", disable_bias_linear=True,
                    untie_embeddings_and_output_weights=True, num_experts=4, moe_router_topk=2,
                    moe_aux_loss_coeff=0.02, moe_z_loss_coeff=0.003),
}
BATCH = 2


class Model:
    def __init__(self, config, seed):
        self.c = config
        self.weights = {}
        self.generator = torch.Generator().manual_seed(seed)
        self.eps = config.get("norm_epsilon", 1e-5)
        self.rms = config.get("normalization") == "RMSNorm"
        self.bias = not config.get("disable_bias_linear", False)
        self.rope = config.get("position_embedding_type") == "rope"
        self.heads = config["num_attention_heads"]
        self.groups = config.get("num_query_groups", self.heads)
        self.dim = config["hidden_size"] // self.heads

    def weight(self, name, *shape, around=0.0):
        """Random, biases and norms too, so that no gradient is trivially right."""
        if name not in self.weights:
            w = torch.randn(*shape, generator=self.generator) * self.c["init_method_std"] + around
            self.weights[name] = w.float().double().requires_grad_()
        return self.weights[name]

    def norm(self, name, x):
        h = self.c["hidden_size"]
        w = self.weight(name + ".weight", h, around=1.0)
        if self.rms:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * w
        return F.layer_norm(x, (h,), w, self.weight(name + ".bias", h), self.eps)

    def linear(self, name, x, n):
        y = x @ self.weight(name + ".weight", n, x.shape[-1]).T
        return y + self.weight(name + ".bias", n) if self.bias else y

    def rotate(self, x):
        s, d = x.shape[0], self.dim
        angle = torch.arange(s)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)[None, :]
        cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None, None, :] for f in (torch.cos, torch.sin))
        half = torch.cat([-x[..., d // 2:], x[..., : d // 2]], -1)
        return x * cos + half * sin

    def attention(self, name, x):
        s, b, h = x.shape
        n = self.heads // self.groups
        packed = self.linear(name + ".linear_qkv", x, (self.heads + 2 * self.groups) * self.dim)
        packed = packed.view(s, b, self.groups, n + 2, self.dim)
        q = packed[:, :, :, :n].reshape(s, b, self.heads, self.dim)
        k, v = packed[:, :, :, n], packed[:, :, :, n + 1]
        if self.rope:
            q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(n, dim=2) for t in (k, v))
        score = torch.einsum("sbhd,tbhd->bhst", q, k) / math.sqrt(self.dim)
        score = score.masked_fill(torch.ones(s, s).triu(1).bool(), float("-inf"))
        out = torch.einsum("bhst,tbhd->sbhd", score.softmax(-1), v).reshape(s, b, -1)
        return self.linear(name + ".linear_proj", out, h)

    def mlp(self, name, x):
        h, f = self.c["hidden_size"], self.c["ffn_hidden_size"]
        if self.c.get("swiglu"):
            gate, up = self.weight(name + ".linear_fc1.weight", 2, f, h)
            return (F.silu(x @ gate.T) * (x @ up.T)) @ self.weight(name + ".linear_fc2.weight", h, f).T
        hidden = F.gelu(self.linear(name + ".linear_fc1", x, f), approximate="tanh")
        return self.linear(name + ".linear_fc2", hidden, h)

    def moe(self, name, x):
        c, h, f, e = self.c, self.c["hidden_size"], self.c["ffn_hidden_size"], self.c["num_experts"]
        s, b, _ = x.shape
        rows = x.reshape(s * b, h)
        logits = rows @ self.weight(name + ".router.weight", e, h).T
        top, index = logits.topk(c["moe_router_topk"], -1)
        prob = top.softmax(-1)
        fc1 = self.weight(name + ".experts.linear_fc1.weight", e, 2, f, h)
        fc2 = self.weight(name + ".experts.linear_fc2.weight", e, h, f)
        y = torch.zeros_like(rows)
        for expert in range(e):
            for k in range(index.shape[1]):
                t = (index[:, k] == expert).nonzero()[:, 0]
                r = rows[t]
                out = (F.silu(r @ fc1[expert, 0].T) * (r @ fc1[expert, 1].T)) @ fc2[expert].T
                y = y.index_add(0, t, prob[t, k, None] * out)
        fraction = F.one_hot(index, e).sum((0, 1)) / index.numel()
        balance = e * (fraction * logits.softmax(-1).mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        self.aux = self.aux + c["moe_aux_loss_coeff"] * balance + c["moe_z_loss_coeff"] * z
        return y.view(s, b, h)

    def loss(self, tokens, labels):
        c, h, v = self.c, self.c["hidden_size"], self.c["vocab_size"]
        self.aux = torch.zeros(())
        table = self.weight("embedding.word_embeddings.weight", v, h)
        x = table[tokens]
        if not self.rope:
            x = x + self.weight("embedding.position_embeddings.weight", c["seq_length"], h)[:, None]
        for i in range(c["num_layers"]):
            p = f"decoder.layers.{i}."
            x = x + self.attention(p + "self_attention", self.norm(p + "input_layernorm", x))
            ffn = self.moe if c.get("num_experts") else self.mlp
            x = x + ffn(p + "mlp", self.norm(p + "pre_mlp_layernorm", x))
        x = self.norm("decoder.final_layernorm", x)
        if c.get("untie_embeddings_and_output_weights"):
            table = self.weight("output_layer.weight", v, h)
        return F.cross_entropy((x @ table.T).reshape(-1, v), labels.reshape(-1))


def write(path, config, tensors):
    rows, data, offset = [], [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().float().contiguous()
        rows.append({"name": name, "shape": list(flat.shape), "offset": offset})
        data.append(flat.numpy().tobytes())
        offset += flat.numel()
    header = json.dumps({"config": config, "batch": BATCH, "tensors": rows}).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header + b"".join(data))


def main():
    for seed, (name, config) in enumerate(MODELS.items()):
        model = Model(config, seed)
        generator = torch.Generator().manual_seed(100 + seed)
        shape = (config["seq_length"], BATCH)
        tokens = torch.randint(config["vocab_size"], shape, generator=generator)
        labels = torch.randint(config["vocab_size"], shape, generator=generator)
        loss = model.loss(tokens, labels)
        (loss + model.aux).backward()
        tensors = {"tokens": tokens, "labels": labels, "loss": loss.view(1), "aux": model.aux.view(1)}
        for key, w in model.weights.items():
            tensors["weight/" + key] = w
            tensors["grad/" + key] = w.grad
        write(f"{sys.argv[1]}/{name}.golden", config, tensors)
        print(name, float(loss), float(model.aux), len(model.weights), "tensors")


if __name__ == "__main__":
    main()
