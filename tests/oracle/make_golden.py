#!/usr/bin/env python3
"""Writes the golden files that tests/layers/golden.c compares with: losses and every gradient of
small models, computed by PyTorch in fp64 from its own building blocks.

    python3 make_golden.py OUT_DIR [NAME...]        (Debian: python3-torch)

A file is: u64 header length; JSON header {"config": ..., "tensors": [{name, shape, offset}]};
fp32 data. Tensors: tokens and labels (as floats, [S, B], or [M, S, B] of M micro-batches), loss, aux and with
multi-token prediction mtp (sums over these; of mtp means, by depth), weight/<name>, grad/<name>,
with names and layouts as Weft's checkpoints have them.
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
MOE = MODELS["mixtral"]
MODELS |= {
    "seq-aux": dict(MOE, moe_router_load_balancing_type="seq_aux_loss"),
    "global-aux": dict(MOE, moe_router_load_balancing_type="global_aux_loss"),
    "mtp": dict(MODELS["llama"], mtp_num_layers=2, mtp_loss_scaling_factor=0.3),
    "mtp-moe-tied": dict(MOE, num_layers=1, mtp_num_layers=1,
                         untie_embeddings_and_output_weights=False),
}
MICRO_BATCHES = {"global-aux": 3}
BATCH = 2


class Model:
    def __init__(self, config, seed):
        self.c = config
        self.weights = {}
        self.counts = {}
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
        chosen = F.one_hot(index, e).sum(1).view(s, b, e)
        scores = logits.softmax(-1).view(s, b, e)
        kind = c.get("moe_router_load_balancing_type", "aux_loss")
        if kind == "seq_aux_loss":
            balance = (e * chosen.sum(0) / (s * index.shape[1]) * scores.mean(0)).sum(-1).mean()
        else:
            so_far = self.counts.setdefault(name, [])
            so_far.append(chosen.sum((0, 1)))
            count = sum(so_far) / len(so_far) if kind == "global_aux_loss" else so_far[-1]
            balance = e * (count / index.numel() * scores.mean((0, 1))).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        self.aux = self.aux + c["moe_aux_loss_coeff"] * balance + c["moe_z_loss_coeff"] * z
        return y.view(s, b, h)

    def block(self, p, x):
        x = x + self.attention(p + "self_attention", self.norm(p + "input_layernorm", x))
        ffn = self.moe if self.c.get("num_experts") else self.mlp
        return x + ffn(p + "mlp", self.norm(p + "pre_mlp_layernorm", x))

    def cross_entropy(self, x, table, labels):
        return F.cross_entropy((x @ table.T).reshape(-1, table.shape[0]), labels.reshape(-1))

    def predict(self, x, words, table, labels):
        """DeepSeek-V3's depths: their mean loss, weighed, and each."""
        losses, depths = [], self.c.get("mtp_num_layers", 0)
        for d in range(depths):
            p, left = f"mtp.layers.{d}.", labels.shape[0] - d
            e = torch.zeros_like(x)
            e[:left] = words[labels[d:]]
            both = torch.cat([self.norm(p + "enorm", e), self.norm(p + "hnorm", x)], -1)
            x = both @ self.weight(p + "eh_proj.weight", x.shape[-1], both.shape[-1]).T
            x = self.norm(p + "final_layernorm", self.block(p + "transformer_layer.", x))
            losses.append(self.cross_entropy(x[:left - 1], table, labels[d + 1:]))
        if not losses:
            return 0, losses
        return self.c.get("mtp_loss_scaling_factor", 0.1) / depths * sum(losses), losses

    def loss(self, tokens, labels):
        c, h, v = self.c, self.c["hidden_size"], self.c["vocab_size"]
        self.aux = torch.zeros(())
        table = self.weight("embedding.word_embeddings.weight", v, h)
        x = table[tokens]
        if not self.rope:
            x = x + self.weight("embedding.position_embeddings.weight", c["seq_length"], h)[:, None]
        for i in range(c["num_layers"]):
            x = self.block(f"decoder.layers.{i}.", x)
        x = self.norm("decoder.final_layernorm", x)
        words = table
        if c.get("untie_embeddings_and_output_weights"):
            table = self.weight("output_layer.weight", v, h)
        further, self.mtp = self.predict(x, words, table, labels)
        return self.cross_entropy(x, table, labels), further


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
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        model = Model(config, seed)
        generator = torch.Generator().manual_seed(100 + seed)
        num = MICRO_BATCHES.get(name, 1)
        shape = (num, config["seq_length"], BATCH)[num == 1:]
        tokens = torch.randint(config["vocab_size"], shape, generator=generator)
        labels = torch.randint(config["vocab_size"], shape, generator=generator)
        loss, aux = torch.zeros(1), torch.zeros(1)
        for m in range(num):
            at = m if num > 1 else ...
            own, further = model.loss(tokens[at], labels[at])
            (own + further + model.aux).backward()
            loss, aux = loss + own.detach(), aux + model.aux.detach()
        tensors = {"tokens": tokens, "labels": labels, "loss": loss, "aux": aux}
        if model.mtp:
            tensors["mtp"] = torch.stack(model.mtp)
        for key, w in model.weights.items():
            tensors["weight/" + key] = w
            tensors["grad/" + key] = w.grad
        write(f"{sys.argv[1]}/{name}.golden", config, tensors)
        print(name, float(loss), float(aux), len(model.weights), "tensors")


if __name__ == "__main__":
    main()
