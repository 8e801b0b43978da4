"""What bench/gpu_train and bench/gpu_moe share: one Weft and one PyTorch process on the same config,
and the ratios between them. What is measured is in the file of --json after every process."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP = 4  # steps of a process that do not count: compilation, first allocations
SIDES = ("weft", "pytorch")
VARIANTS = {  # sides for those who ask: Weft with other settings
    "weft-without-graphs": {"device": {"cuda_graphs": False}},
    "weft-recomputed": {"train": {"recompute_granularity": "full"}},
    "weft-core-attn": {"train": {"recompute_granularity": "selective",
                                 "recompute_modules": ["core_attn"]}},
    "weft-whole-masters": {"train": {"split_master": False}},
    "weft-documents": {"data": {"reset_position_ids": True, "reset_attention_mask": True,
                                "eod_mask_loss": True, "eod_token": 0}},
}


REHEARSED = {"hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128, "seq_length": 32,
             "vocab_size": 256}


def need_gpu(name, args):
    """With --rehearse none: tiny models on CUDA's emulation, PyTorch on the CPU."""
    if args.rehearse:
        args.rounds, args.steps, args.batch, args.peak = 1, WARM_UP + 2, 2, 1e10
        return
    smi = shutil.which("nvidia-smi")
    gpus = subprocess.run([smi, "-L"], capture_output=True, text=True) if smi else None
    if not gpus or gpus.returncode != 0 or "GPU" not in gpus.stdout:
        sys.exit(f"{name}: needs an NVIDIA GPU, and PyTorch with CUDA; none is here")


def arguments(parser, accumulate):
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, help="sequences a micro-batch; default: by the model")
    parser.add_argument("--accumulate", type=int, default=accumulate, help="micro-batches a step")
    parser.add_argument("--sides", default=",".join(SIDES),
                        help=f"which of the two to run, and of {', '.join(VARIANTS)}")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="start no process after these, and end one that runs longer")
    parser.add_argument("--peak", type=float, help="FLOP/s of the matrix product, if known")
    parser.add_argument("--python", default="python3", help="one with PyTorch")
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--json", help="file to write")
    parser.add_argument("--rehearse", action="store_true",
                        help="tiny models where there is no GPU: shows that all of it runs, and no number")


def config_of(model, batch, accumulate, steps, peak):
    return {"model": model,
            "train": {"micro_batch_size": batch, "global_batch_size": batch * accumulate,
                      "lr": 1e-4, "train_iters": steps, "precision": "bf16"},
            "data": {"mock_data": True}, "checkpoint": {"no_save": True},
            "device": {"kind": "cuda", "peak_flops": peak}, "log": {"trace_step": 0}}


def script():
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_step.py")


def last_lines(text):
    """Of an error's text: what matters is rarely the very last line."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return " | ".join(lines[-4:]) or "no message"


class Runner:
    """Runs processes within the time that there is, and keeps the report on disk."""

    def __init__(self, args, **report):
        self.args = args
        self.end = time.monotonic() + args.seconds
        self.report = {**report, "rows": []}
        self.sides = args.sides.split(",")
        if not set(self.sides) <= {*SIDES, *VARIANTS}:
            sys.exit(f"--sides: {args.sides}: of {', '.join((*SIDES, *VARIANTS))}")
        if args.steps <= WARM_UP:
            sys.exit(f"--steps: {args.steps}: the first {WARM_UP} do not count")

    def process(self, command):
        """(stdout, None) or (None, what went wrong)."""
        left = self.end - time.monotonic()
        if left < 1:
            return None, "not run: out of --seconds"
        try:
            run = subprocess.run(command, capture_output=True, text=True,
                                 timeout=None if left == float("inf") else left)
        except subprocess.TimeoutExpired:
            return None, "ended: out of --seconds"
        except OSError as error:
            return None, str(error)
        if run.returncode != 0:
            return None, f"exit code {run.returncode}: {last_lines(run.stderr)}"
        return run.stdout, None

    def add_row(self, row):
        self.report["rows"].append(row)
        return row

    def save(self):
        if self.args.json:
            with open(self.args.json + ".new", "w") as out:
                json.dump(self.report, out, indent=1)
            os.replace(self.args.json + ".new", self.args.json)

    def matmul_peak(self):
        """The card, PyTorch's version and FLOP/s of a large product; to the report as well."""
        if self.args.peak:
            peak = {"gpu": "GPU", "version": "?", "peak_flops": self.args.peak}
        else:
            text, error = self.process([self.args.python, script(), "peak", "bf16", "--device",
                                        "cuda"])
            if error:
                sys.exit(f"PyTorch: {error}")
            peak = json.loads(text)
        self.report.update(peak)
        self.save()
        return peak

    def device(self):
        return "cpu" if self.args.rehearse else "cuda"

    def weft(self, config, folder):
        text, error = self.process([self.args.weft, "train", config, "--out", f"{folder}/run",
                                    "--json"])
        if error:
            return {"error": error}
        lines = [json.loads(line) for line in text.splitlines()]
        return {"step_ms": [line["step_ms"] for line in lines], "loss": lines[-1]["loss"],
                "mfu": statistics.median(line["model_flops_utilization"]
                                         for line in lines[WARM_UP:]),
                "load": lines[-1]["expert_load_max_over_mean"],
                "peak_mib": max(line["device_bytes_peak"] for line in lines) / 2 ** 20}

    def pytorch(self, config, batch):
        text, error = self.process([self.args.python, script(), config, "bf16", "--device",
                                    self.device(), "--batch", str(batch), "--steps", str(self.args.steps),
                                    "--accumulate", str(self.args.accumulate)])
        return {"error": error} if error else json.loads(text)

    def side(self, name, config, batch):
        for section, keys in VARIANTS.get(name, {}).items():
            config = {**config, section: {**config[section], **keys}}
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/config.json", "w") as out:
                json.dump(config, out)
            if name == "pytorch":
                return self.pytorch(out.name, batch)
            return self.weft(out.name, folder)

    def paired(self, name, model, batch):
        """Both in turn, round by round, as a row of the report. A side that failed is not tried
        again."""
        config = config_of(model, batch, self.args.accumulate, self.args.steps,
                           self.report["peak_flops"])
        if self.args.rehearse:
            config["model"] = model = {**model, **REHEARSED, "num_layers": 2}
            model.pop("num_query_groups", None)
        tokens = batch * self.args.accumulate * model["seq_length"]
        row = self.add_row({"model": name, "batch": batch, "tokens": tokens})
        runs = {side: [] for side in self.sides}
        for _ in range(self.args.rounds):
            for side, done in runs.items():
                if done and "error" in done[-1]:
                    continue
                done.append(self.side(side, config, batch))
                summarize(row, runs)
                self.save()
        return row


def median_step(runs):
    return statistics.median(t for run in runs for t in run["step_ms"][WARM_UP:])


def summarize(row, runs):
    """Sets in the row what follows from the runs so far. Tokens a second by the median step;
    `error` where the first run of a side failed, `ended` where a later one did."""
    for side, done in runs.items():
        good = [run for run in done if "error" not in run]
        bad = [run["error"] for run in done if "error" in run]
        if bad and not good:
            row[side] = {"error": bad[0]}
        if not good:
            continue
        row[side] = {"tokens_per_s": row["tokens"] / median_step(good) * 1e3,
                     "peak_mib": max(run["peak_mib"] for run in good), "loss": good[-1]["loss"],
                     "step_ms": [run["step_ms"] for run in good]}
        if bad:
            row[side]["ended"] = bad[0]
        if side != "pytorch":
            row[side]["mfu"] = statistics.median(run["mfu"] for run in good)
            row[side]["load"] = good[0]["load"]
    for name in VARIANTS:
        if all("tokens_per_s" in row.get(side, {}) for side in ("weft", name)):
            row[name]["of_weft"] = {key: row[name][key] / row["weft"][key]
                                    for key in ("tokens_per_s", "peak_mib")}
    if not all("tokens_per_s" in row.get(side, {}) for side in SIDES):
        return
    ours, theirs = row["weft"], row["pytorch"]
    row["ratio"] = ours["tokens_per_s"] / theirs["tokens_per_s"]
    row["ratio_rounds"] = [statistics.median(b[WARM_UP:]) / statistics.median(a[WARM_UP:])
                           for a, b in zip(ours["step_ms"], theirs["step_ms"])]
    row["memory_ratio"] = ours["peak_mib"] / theirs["peak_mib"]
    theirs["mfu"] = ours["mfu"] / row["ratio"]


HEADING = (f"{'model':22} {'batch':>5} {'Weft tok/s':>11} {'PyTorch':>9} {'ratio':>6} "
           f"{'per round':>15} {'MFU %':>6} {'PyTorch':>7} {'GiB':>6} {'PyTorch':>7} {'memory':>7}")


def print_row(row):
    def side(name, key, form, scale=1):
        value = row.get(name, {}).get(key)
        return "-" if value is None else format(value * scale, form)

    rounds = "/".join(f"{r:.2f}" for r in row.get("ratio_rounds", [])) or "-"
    print(f"{row['model']:22} {row['batch']:5} {side('weft', 'tokens_per_s', '.0f'):>11} "
          f"{side('pytorch', 'tokens_per_s', '.0f'):>9} {row.get('ratio', 0):6.2f} {rounds:>15} "
          f"{side('weft', 'mfu', '.1f', 100):>6} {side('pytorch', 'mfu', '.1f', 100):>7} "
          f"{side('weft', 'peak_mib', '.1f', 1 / 1024):>6} "
          f"{side('pytorch', 'peak_mib', '.1f', 1 / 1024):>7} {row.get('memory_ratio', 0):7.2f}",
          flush=True)
    for name in VARIANTS:
        of_weft = row.get(name, {}).get("of_weft")
        if of_weft:
            print(f"{'':22} {name}: {of_weft['tokens_per_s']:.3f} of Weft's tokens/s, "
                  f"{of_weft['peak_mib']:.3f} of its memory", flush=True)
    for name in (*SIDES, *VARIANTS):
        for key in ("error", "ended"):
            if key in row.get(name, {}):
                print(f"{'':22} {name}: {row[name][key]}", flush=True)
