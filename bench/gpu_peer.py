"""What bench/gpu_train and bench/gpu_moe share: one Weft and one PyTorch process on the same config,
and the ratios between them."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

WARM_UP = 4  # steps of a process that do not count: compilation, first allocations


def need_gpu(name):
    smi = shutil.which("nvidia-smi")
    gpus = subprocess.run([smi, "-L"], capture_output=True, text=True) if smi else None
    if not gpus or gpus.returncode != 0 or "GPU" not in gpus.stdout:
        sys.exit(f"{name}: needs an NVIDIA GPU, and PyTorch with CUDA; none is here")


def arguments(parser):
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, help="sequences a step; default: by the model")
    parser.add_argument("--python", default="python3", help="one with PyTorch")
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--json", help="file to write")


def config_of(model, batch, steps, peak):
    return {"model": model,
            "train": {"micro_batch_size": batch, "global_batch_size": batch, "lr": 1e-4,
                      "train_iters": steps, "precision": "bf16"},
            "data": {"mock_data": True}, "checkpoint": {"no_save": True},
            "device": {"kind": "cuda", "peak_flops": peak}, "log": {"trace_step": 0}}


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def script():
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_step.py")


def matmul_peak(args):
    run = subprocess.run([args.python, script(), "peak", "bf16", "--device", "cuda"],
                         capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"PyTorch: {last_line(run.stderr)}")
    return json.loads(run.stdout)


def weft(args, config):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w") as out:
            json.dump(config, out)
        run = subprocess.run([args.weft, "train", f"{folder}/config.json", "--out", f"{folder}/run",
                              "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        return {"error": last_line(run.stderr)}
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {"step_ms": [line["step_ms"] for line in lines],
            "mfu": statistics.median(line["model_flops_utilization"] for line in lines[WARM_UP:]),
            "load": lines[-1]["expert_load_max_over_mean"],
            "peak_mib": max(line["device_bytes_peak"] for line in lines) / 2 ** 20}


def pytorch(args, config, batch):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w") as out:
            json.dump(config, out)
        run = subprocess.run([args.python, script(), f"{folder}/config.json", "bf16", "--device",
                              "cuda", "--batch", str(batch), "--steps", str(args.steps)],
                             capture_output=True, text=True)
    if run.returncode != 0:
        return {"error": last_line(run.stderr)}
    return json.loads(run.stdout)


def counted(runs):
    return [t for run in runs for t in run["step_ms"][WARM_UP:]]


def paired(args, model, batch, peak):
    """Both in turn, round by round. Tokens a second by the median step; `error` where one failed."""
    config = config_of(model, batch, args.steps, peak)
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(weft(args, config))
        theirs.append(pytorch(args, config, batch))
    row = {"batch": batch, "tokens": batch * model["seq_length"]}
    for name, runs in (("weft", ours), ("pytorch", theirs)):
        errors = [run["error"] for run in runs if "error" in run]
        if errors:
            row[name] = {"error": errors[0]}
            continue
        row[name] = {"tokens_per_s": row["tokens"] / statistics.median(counted(runs)) * 1e3,
                     "peak_mib": max(run["peak_mib"] for run in runs),
                     "step_ms": [run["step_ms"] for run in runs]}
    if "error" not in row["weft"]:
        row["weft"]["mfu"] = statistics.median(run["mfu"] for run in ours)
        row["weft"]["load"] = ours[0]["load"]
    if "error" not in row["weft"] and "error" not in row["pytorch"]:
        row["ratio"] = row["weft"]["tokens_per_s"] / row["pytorch"]["tokens_per_s"]
        row["ratio_rounds"] = [statistics.median(b["step_ms"][WARM_UP:]) /
                               statistics.median(a["step_ms"][WARM_UP:])
                               for a, b in zip(ours, theirs)]
        row["memory_ratio"] = row["weft"]["peak_mib"] / row["pytorch"]["peak_mib"]
        row["pytorch"]["mfu"] = row["weft"]["mfu"] / row["ratio"]
    return row


HEADING = (f"{'model':22} {'batch':>5} {'Weft tok/s':>11} {'PyTorch':>9} {'ratio':>6} "
           f"{'per round':>15} {'MFU':>6} {'PyTorch':>7} {'GiB':>6} {'PyTorch':>7} {'memory':>7}")


def print_row(name, row):
    errors = [f"{who}: {row[who]['error']}" for who in ("weft", "pytorch") if "error" in row[who]]
    if errors:
        print(f"{name:22} {row['batch']:5} {'; '.join(errors)}", flush=True)
        return
    a, b = row["weft"], row["pytorch"]
    rounds = "/".join(f"{r:.2f}" for r in row["ratio_rounds"])
    print(f"{name:22} {row['batch']:5} {a['tokens_per_s']:11.0f} {b['tokens_per_s']:9.0f} "
          f"{row['ratio']:6.2f} {rounds:>15} {100 * a['mfu']:5.1f}% {100 * b['mfu']:6.1f}% "
          f"{a['peak_mib'] / 1024:6.1f} {b['peak_mib'] / 1024:7.1f} {row['memory_ratio']:7.2f}",
          flush=True)


def write(args, report):
    if args.json:
        with open(args.json, "w") as out:
            json.dump(report, out, indent=1)
