#!/usr/bin/env bash
# What a run writes for other tools holds the numbers of metrics.jsonl: TensorBoard's event files, read by
# this script's own reader with their checksums, over a start and a resumed one; and Prometheus' text.
#   exports.sh WEFT
set -euo pipefail
weft=$(realpath "${1:?usage: exports.sh WEFT}")
command -v python3 >/dev/null || { echo "skipped: no python3 to read the files with" && exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >c.json <<'END'
{"model": {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 64,
           "num_experts": 2},
 "train": {"global_batch_size": 4, "train_iters": 4, "lr_decay_style": "constant", "eval_interval": 2, "eval_iters": 1},
 "data": {"mock_data": true}, "checkpoint": {"save_interval": 2}, "device": {"num_threads": 1, "peak_flops": 1e9},
 "log": {"trace_step": 0, "tensorboard_dir": "events", "prometheus_file": "weft.prom", "log_interval": 1}}
END
"$weft" train c.json --out run >/dev/null 2>said
"$weft" train --out run --resume-from 2 --set train_iters=5 >/dev/null 2>said
cat >check.py <<'END'
import glob, json, math, os, struct

def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

assert crc32c(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF

def fields(data):
    at = 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            bytes_ = {1: 8, 5: 4}.get(key & 7) or varint()
            assert at + bytes_ <= len(data)
            yield key >> 3, data[at:at + bytes_]
            at += bytes_

def read(path):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == crc32c(data[at:at + 8])
        event = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == crc32c(event)
        at += 16 + length
        yield dict(fields(event))

runs = []
for path in sorted(glob.glob("events/events.out.tfevents.*"), key=os.path.getmtime):
    events = list(read(path))
    assert events[0][3] == b"brain.Event:2"
    assert all(struct.unpack("<d", event[1])[0] > 1e9 for event in events)
    scalars = {}
    for event in events:
        for _, value in fields(event.get(5, b"")):
            value = dict(fields(value))
            scalars[value[1].decode(), event[2]] = struct.unpack("<f", value[2])[0]
    runs.append((scalars, [(event[2], dict(fields(event[7]))) for event in events if 7 in event]))
assert len(runs) == 2
assert runs[0][1] == [] and runs[1][1] == [(3, {1: 1})], runs
assert sorted(step for tag, step in runs[0][0] if tag == "lm loss") == [1, 2, 3, 4]
assert sorted(step for tag, step in runs[1][0] if tag == "lm loss") == [3, 4, 5]

both = {**runs[0][0], **runs[1][0]}
lines = [json.loads(line) for line in open("run/metrics.jsonl")]
tags = {"lm loss": "loss", "learning-rate": "lr", "grad-norm": "grad_norm", "tokens-per-second": "tokens_per_s",
        "load_balancing_loss": "aux_loss", "lm loss validation": "validation_loss"}
num = 0
for line in lines:
    for tag, key in tags.items():
        if key in line:
            assert math.isclose(both[tag, line["step"]], line[key], rel_tol=1e-6), (tag, line)
            num += 1
assert num == 5 * 5 + 3, num
assert both["batch-size", 5] == 4 and ("lm loss validation ppl", 4) in both

last = [line for line in lines if "loss" in line][-1]
text = open("weft.prom").read()
samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
for key, value in last.items():
    if isinstance(value, float):
        assert float(samples['weft_%s{run="run"}' % key]) == value, key
        assert "# TYPE weft_%s gauge\n" % key in text
END
python3 check.py
# A start says what is wrong; amid a run it is told once.
refused=$("$weft" train c.json --out other --set tensorboard_dir=none/events 2>&1) && exit 1
grep -q 'none/events: cannot make the folder: No such file' <<<"$refused"
[ ! -e other ] || { echo "exports: a refused start left a folder" >&2 && exit 1; }
mkdir short
"$weft" train c.json --out long --set prometheus_file=short/weft.prom --set train_iters=300 --set eval_interval=0 \
    --set no_save=true >/dev/null 2>said &
for ((i = 0; i < 600 && $(find short -name weft.prom | wc -l) == 0; i++)); do sleep 0.1; done
mv short gone # at once, whatever the run writes there
wait $! || { cat said >&2 && exit 1; }
[ "$(grep -c 'short/weft.prom.*training goes on without it' said)" -eq 1 ] || { cat said >&2 && exit 1; }
[ "$(wc -l <long/metrics.jsonl)" -eq 300 ]
