#!/usr/bin/env python3
"""Times training steps of a GPT-2, Llama or MoE model in PyTorch, the peer that bench/train_peer,
bench/gpu_train and bench/gpu_moe measure Weft against. Prints one JSON line: milliseconds of each
step, peak memory (of the process; on a GPU, of tensors).

The model is a name below, or a file: section "model" of a Weft config. It is what a careful user
writes: fused QKV, scaled_dot_product_attention where this PyTorch has it, one GEMM an expert over
its own rows (on a GPU one grouped GEMM for all), cross-entropy on bf16 or fp32 logits, foreach
AdamW with set_to_none (on a GPU fused, the model compiled). Weights are fp32, bf16 by autocast.
Tokens are random; one step is forward, backward, clip and update.
"""
import argparse
import json
import os
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        return (x.float() * scale * self.weight).to(x.dtype)


def norm_of(c):
    return RMSNorm(c["hidden"]) if c["llama"] else nn.LayerNorm(c["hidden"])


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.groups, self.rope = c["heads"], c["groups"], c["llama"]
        self.dim = c["hidden"] // c["heads"]
        self.qkv = nn.Linear(c["hidden"], (c["heads"] + 2 * c["groups"]) * self.dim,
                             bias=not c["llama"])
        self.proj = nn.Linear(c["hidden"], c["hidden"], bias=not c["llama"])
        if not hasattr(F, "scaled_dot_product_attention"):
            mask = torch.ones(c["seq"], c["seq"]).tril().bool()
            self.register_buffer("mask", mask, persistent=False)
        if self.rope:
            frequency = 10000 ** (-torch.arange(0, self.dim, 2) / self.dim)
            angle = torch.arange(c["seq"])[:, None] * frequency
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        b, t, h = x.shape
        sizes = [h, self.groups * self.dim, self.groups * self.dim]
        q, k, v = (p.view(b, t, -1, self.dim).transpose(1, 2) for p in self.qkv(x).split(sizes, -1))
        if self.rope:
            cos, sin = self.cos.to(q.dtype), self.sin.to(q.dtype)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if hasattr(F, "scaled_dot_product_attention"):
            more = {"enable_gqa": True} if self.groups != self.heads else {}
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **more)
        else:
            score = q @ k.transpose(-2, -1) * self.dim ** -0.5
            y = score.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, h))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gated = c["llama"]
        self.fc1 = nn.Linear(c["hidden"], c["ffn"] * (2 if self.gated else 1), bias=not self.gated)
        self.fc2 = nn.Linear(c["ffn"], c["hidden"], bias=not self.gated)

    def forward(self, x):
        x = self.fc1(x)
        if self.gated:
            gate, up = x.chunk(2, -1)
            return self.fc2(F.silu(gate) * up)
        return self.fc2(F.gelu(x, approximate="tanh"))


def forced_logits(tokens, experts, topk, load):
    """What Weft's moe_router_forced_load adds to the logits (layers/moe/router.c)."""
    table, following = torch.zeros(tokens, experts), 0
    share = 1 if topk == experts else min(1, load * topk / experts)
    for t in range(tokens):
        first = int((t + 1) * share) > int(t * share)
        table[t, 0] = 1000 * first
        for _ in range(topk - first):
            table[t, 1 + following % (experts - 1)] = 1000
            following += 1
    return table


class GroupedMoE(nn.Module):
    """All experts of a layer in one GEMM; sizes stay on the GPU."""
    def __init__(self, c):
        super().__init__()
        self.topk, self.experts = c["topk"], c["experts"]
        self.router = nn.Linear(c["hidden"], c["experts"], bias=False)
        self.fc1 = nn.Parameter(torch.empty(c["experts"], c["hidden"], c["ffn"]))
        self.fc2 = nn.Parameter(torch.empty(c["experts"], c["ffn"], c["hidden"]))
        self.register_buffer("forced", c["forced_table"], persistent=False)
        self.grouped = getattr(F, "grouped_mm", None) or torch._grouped_mm

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        logits = self.router(rows).float()
        if self.forced is not None:
            logits = logits + self.forced
        top, index = logits.topk(self.topk, -1)
        prob = top.softmax(-1)
        flat = index.flatten()
        order = flat.argsort(stable=True)
        numbers = torch.arange(self.experts, device=x.device)
        ends = (flat[:, None] == numbers).sum(0).cumsum(0).to(torch.int32)
        token = order // self.topk
        y = self.grouped(rows[token], self.fc1.to(torch.bfloat16), offs=ends)
        y = F.gelu(y, approximate="tanh")
        y = self.grouped(y, self.fc2.to(torch.bfloat16), offs=ends)
        y = y * prob.flatten()[order, None].to(y.dtype)
        return torch.zeros_like(rows).index_add_(0, token, y).view_as(x)


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
    def __init__(self, c, number):
        super().__init__()
        self.norm1, self.norm2 = norm_of(c), norm_of(c)
        self.attention = Attention(c)
        moe = GroupedMoE if c["grouped"] else MoE
        self.mlp = moe(c) if c["experts"] and number % c["every"] == 0 else MLP(c)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.words = nn.Embedding(c["vocab"], c["hidden"])
        self.positions = None if c["llama"] else nn.Embedding(c["seq"], c["hidden"])
        self.blocks = nn.ModuleList(Block(c, i) for i in range(c["layers"]))
        self.norm = norm_of(c)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


MODELS = {
    "gpt2": dict(layers=12, hidden=768, heads=12, ffn=3072, vocab=50304, experts=0),
    "moe": dict(layers=4, hidden=512, heads=8, ffn=2048, vocab=50304, experts=8, topk=2),
}


def model_of(args):
    if args.model in MODELS:
        c = dict(MODELS[args.model])
    else:
        with open(args.model) as file:
            m = json.load(file)["model"]
        c = dict(layers=m["num_layers"], hidden=m["hidden_size"], heads=m["num_attention_heads"],
                 ffn=m.get("ffn_hidden_size", 4 * m["hidden_size"]), vocab=m["vocab_size"],
                 experts=m.get("num_experts", 0), topk=m.get("moe_router_topk", 2),
                 every=m.get("moe_layer_freq", 1), groups=m.get("num_query_groups"),
                 llama=m.get("swiglu", False), load=m.get("moe_router_forced_load", 0))
        args.seq = m["seq_length"]
    c["groups"] = c.get("groups") or c["heads"]
    c = {"every": 1, "llama": False, "load": 0, "seq": args.seq, **c}
    c["grouped"] = args.device == "cuda"
    c["forced_table"] = None
    if c["experts"] and c["load"]:
        c["forced_table"] = forced_logits(args.batch * args.seq, c["experts"], c["topk"], c["load"])
    return c


def matmul_peak():
    """FLOP/s of a large bf16 product on random data: what a step is measured by."""
    n, best = 8192, 0
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        best = max(best, 10 * 2 * n ** 3 / (time.perf_counter() - start))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="gpt2, moe, a Weft config; peak: the GPU's matrix product")
    parser.add_argument("precision", choices=["fp32", "bf16"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    if args.model == "peak":
        print(json.dumps({"version": torch.__version__, "gpu": torch.cuda.get_device_name(),
                          "peak_flops": matmul_peak()}))
        return
    if args.model not in MODELS and not os.path.exists(args.model):
        parser.error(f"{args.model}: neither a file nor one of {', '.join(MODELS)}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    c = model_of(args)
    if on_gpu:
        torch.set_float32_matmul_precision("high")
        torch.set_default_device("cuda")
        c["forced_table"] = None if c["forced_table"] is None else c["forced_table"].cuda()
    model = GPT(c)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95),
                                  **({"fused": True} if on_gpu else {"foreach": True}))
    run = torch.compile(model) if on_gpu else model
    shape = (args.batch, args.seq)
    times = []
    for _ in range(args.steps):
        batches = [(torch.randint(c["vocab"], shape), torch.randint(c["vocab"], shape))
                   for _ in range(args.accumulate)]
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for tokens, labels in batches:
            with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
                loss = run(tokens, labels)
            (loss if args.accumulate == 1 else loss / args.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if on_gpu:
        peak = torch.cuda.max_memory_allocated() / 2 ** 20
    print(json.dumps({"version": torch.__version__, "loss": float(loss.detach()), "step_ms": times,
                      "peak_mib": peak}))


if __name__ == "__main__":
    main()
