#!/usr/bin/env python3
"""Writes the golden files that tests/layers/golden_long.c compares with: loss and every gradient of
two small models on sequences of 4,096 tokens, as one document and as several, by PyTorch in fp64.

    python3 make_long_golden.py OUT_DIR       (Debian: python3-torch)

The files are make_golden.py's, without weights and tokens, which both sides make from names and
indices (`number`), and with "documents": the indices of the tokens that end one, sample by sample.
Attention stays inside a document, positions start anew behind its end, and the loss is the mean over
the tokens that end none. Rows that no document is long enough to reach are left out of a gradient of
learnt positions; they are zero.
"""
import json
import struct
import sys

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from make_golden import Model

SEQ, BATCH, VOCAB = 4096, 2, 48
BASE = {"num_layers": 2, "seq_length": SEQ, "vocab_size": VOCAB}
MODELS = {
    "mha": dict(BASE, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24),
    "grouped": dict(BASE, hidden_size=32, num_attention_heads=8, num_query_groups=4,
                    ffn_hidden_size=24, normalization="RMSNorm", swiglu=True,
                    position_embedding_type="rope", disable_bias_linear=True,
                    untie_embeddings_and_output_weights=True, norm_epsilon=1e-6),
}
# Longer and shorter than a rank's chunk of 512, over several of them, of one token, to the very end.
DOCUMENTS = [[699, 700, 1535, 2600, 4095], [300, 1500, 2047, 3071]]
MASK = (1 << 64) - 1


def number(name, count):
    """count numbers in [-1, 1) of 24 bits: splitmix64 from the name's FNV-1a hash."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 & MASK
    out = []
    for _ in range(count):
        state = state + 0x9E3779B97F4A7C15 & MASK
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        out.append((z ^ z >> 31) >> 40)
    return torch.tensor(out) / 2.0**23 - 1


class LongModel(Model):
    def place(self, ends):
        """Where a sample's documents end; none: it is one."""
        first, self.start, self.positions = 0, [], []
        for s in range(SEQ):
            self.start.append(first)
            self.positions.append(s - first)
            first = s + 1 if s in ends else first
        self.start, self.positions = torch.tensor(self.start), torch.tensor(self.positions)

    def weight(self, name, *shape, around=0.0):
        if name not in self.weights:
            count = torch.Size(shape).numel()
            w = (number(name, count).view(shape) / 2 + around).float().double()
            self.weights[name] = w.requires_grad_()
        return self.weights[name]

    def rotate(self, x):
        d = self.dim
        rate = 10000.0 ** (-torch.arange(0, d, 2) / d)
        angle = self.positions[:, None] * rate[None, :]
        cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None, :] for f in (torch.cos, torch.sin))
        half = torch.cat([-x[..., d // 2:], x[..., : d // 2]], -1)
        return x * cos + half * sin

    def head(self, q, k, v):
        key = torch.arange(SEQ)
        hidden = (key[None, :] > key[:, None]) | (key[None, :] < self.start[:, None])
        score = (q @ k.T / self.dim**0.5).masked_fill(hidden, float("-inf"))
        return score.softmax(-1) @ v

    def attention(self, name, x):
        n = self.heads // self.groups
        packed = self.linear(name + ".linear_qkv", x, (self.heads + 2 * self.groups) * self.dim)
        packed = packed.view(SEQ, self.groups, n + 2, self.dim)
        q, k, v = packed[:, :, :n].reshape(SEQ, self.heads, -1), packed[:, :, n], packed[:, :, n + 1]
        if self.rope:
            q, k = self.rotate(q), self.rotate(k)
        out = [checkpoint(self.head, q[:, h], k[:, h // n], v[:, h // n])
               for h in range(self.heads)]
        return self.linear(name + ".linear_proj", torch.stack(out, 1).view(SEQ, -1), x.shape[-1])

    def losses(self, tokens, labels):
        """Of one sample, [SEQ]."""
        h = self.c["hidden_size"]
        table = self.weight("embedding.word_embeddings.weight", VOCAB, h)
        x = table[tokens]
        if not self.rope:
            x = x + self.weight("embedding.position_embeddings.weight", SEQ, h)[self.positions]
        for i in range(self.c["num_layers"]):
            p = f"decoder.layers.{i}."
            x = x + self.attention(p + "self_attention", self.norm(p + "input_layernorm", x))
            x = x + self.mlp(p + "mlp", self.norm(p + "pre_mlp_layernorm", x))
        x = self.norm("decoder.final_layernorm", x)
        if self.c.get("untie_embeddings_and_output_weights"):
            table = self.weight("output_layer.weight", VOCAB, h)
        return F.cross_entropy(x @ table.T, labels, reduction="none")


def write(path, config, documents, tensors):
    rows, data, offset = [], [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().float().contiguous()
        rows.append({"name": name, "shape": list(flat.shape), "offset": offset})
        data.append(flat.numpy().tobytes())
        offset += flat.numel()
    header = {"config": config, "batch": BATCH, "documents": documents, "tensors": rows}
    header = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header + b"".join(data))


def make(name, config, documents):
    model = LongModel(config, 0)
    bears = BATCH * SEQ - sum(len(ends) for ends in documents)
    total = 0.0
    for sample in range(BATCH):
        ends = documents[sample] if documents else []
        model.place(ends)
        # [0, VOCAB - 1): the last id ends documents
        drawn = ((number(f"tokens.{sample}", SEQ + 1) + 1) / 2 * (VOCAB - 1)).long()
        drawn[ends] = VOCAB - 1
        mask = torch.ones(SEQ)
        mask[ends] = 0
        loss = (model.losses(drawn[:-1], drawn[1:]) * mask).sum() / bears
        loss.backward()
        total += float(loss)
    tensors = {"loss": torch.tensor([total])}
    for key, w in model.weights.items():
        used = w.grad
        if "position" in key:
            used = used[: int(used.abs().sum(-1).nonzero().max()) + 1]
        tensors["grad/" + key] = used
    write(f"{sys.argv[1]}/long_{name}.golden", config, documents, tensors)
    print(name, total, len(model.weights), "tensors")


def main():
    for name, config in MODELS.items():
        make(name, config, [])
        make(name + "_documents", config, DOCUMENTS)


if __name__ == "__main__":
    main()
