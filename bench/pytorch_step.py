#!/usr/bin/env python3
"""Times training steps of a GPT-2 or small MoE model in PyTorch, the peer that bench/train_peer
measures Weft against. Prints one JSON line: milliseconds of each step, peak resident memory.

The model is what a careful user writes: fused QKV, scaled_dot_product_attention where this PyTorch
has it, one GEMM an expert over its own rows, cross-entropy on bf16 or fp32 logits, foreach AdamW
with set_to_none. Tokens are random; one step is forward, backward, clip and update.
"""
import argparse
import json
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["heads"]
        self.qkv = nn.Linear(c["hidden"], 3 * c["hidden"])
        self.proj = nn.Linear(c["hidden"], c["hidden"])
        mask = torch.ones(c["seq"], c["seq"]).tril().bool()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            score = q @ k.transpose(-2, -1) * (h // self.heads) ** -0.5
            y = score.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, h))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1 = nn.Linear(c["hidden"], c["ffn"])
        self.fc2 = nn.Linear(c["ffn"], c["hidden"])

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.topk, self.experts = c["topk"], c["experts"]
        self.router = nn.Linear(c["hidden"], c["experts"], bias=False)
        self.fc1 = nn.ModuleList(nn.Linear(c["hidden"], c["ffn"], bias=False) for _ in range(c["experts"]))
        self.fc2 = nn.ModuleList(nn.Linear(c["ffn"], c["hidden"], bias=False) for _ in range(c["experts"]))

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        top, index = self.router(rows).float().topk(self.topk, -1)
        prob = top.softmax(-1)
        order = index.flatten().argsort(stable=True)
        counts = index.flatten().bincount(minlength=self.experts).tolist()
        token = order // self.topk
        parts = []
        for e, part in enumerate(rows[token].split(counts)):
            parts.append(self.fc2[e](F.gelu(self.fc1[e](part), approximate="tanh")))
        out = torch.cat(parts) * prob.flatten()[order, None].to(parts[0].dtype)
        return torch.zeros_like(out[: rows.shape[0]]).index_add_(0, token, out).view_as(x)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(c["hidden"]), nn.LayerNorm(c["hidden"])
        self.attention = Attention(c)
        self.mlp = MoE(c) if c["experts"] else MLP(c)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.words = nn.Embedding(c["vocab"], c["hidden"])
        self.positions = nn.Embedding(c["seq"], c["hidden"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.LayerNorm(c["hidden"])
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


MODELS = {
    "gpt2": dict(layers=12, hidden=768, heads=12, ffn=3072, vocab=50304, experts=0),
    "moe": dict(layers=4, hidden=512, heads=8, ffn=2048, vocab=50304, experts=8, topk=2),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("precision", choices=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = GPT(dict(MODELS[args.model], seq=args.seq))
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), foreach=True)
    shape = (args.batch, args.seq)
    times = []
    for _ in range(args.steps):
        tokens = torch.randint(MODELS[args.model]["vocab"], shape)
        labels = torch.randint(MODELS[args.model]["vocab"], shape)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append((time.perf_counter() - start) * 1e3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"version": torch.__version__, "loss": float(loss.detach()), "step_ms": times,
                      "peak_mib": peak}))


if __name__ == "__main__":
    main()
