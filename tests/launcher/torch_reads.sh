#!/usr/bin/env bash
# Every schedule that Weft writes as CSV is one that PyTorch's own reader takes (tests/oracle/read_schedules.py).
#   torch_reads.sh WEFT READER        WEFT_TORCH_PYTHON: the Python that has PyTorch; python3
set -euo pipefail
weft=$(realpath "${1:?usage: torch_reads.sh WEFT READER}")
reader=$(realpath "$2")
python=${WEFT_TORCH_PYTHON:-python3}
"$python" -c 'from torch.distributed.pipelining.schedules import _add_wait_send' 2>/dev/null || {
    echo "skipped: $python has no PyTorch of 2.9 or later; WEFT_TORCH_PYTHON names another"
    exit 77
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >c.json <<'END'
{"model": {"num_layers": 16, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 16, "vocab_size": 64,
           "num_experts": 4},
 "train": {"micro_batch_size": 1, "train_iters": 1}, "data": {"mock_data": true}}
END
files=()
# SCHEDULE RANKS CHUNKS MICRO_BATCHES [MORE OF THE MESH]
check() {
    local name=$1-$2-$3-$4${5:+-pairs}
    "$weft" schedule c.json --mesh "pp=$2,vp=$3,schedule=$1${5:+,dp=2,ep=2}" \
        --set "train.global_batch_size=$(($4 * ${5:+2*}1))" ${5:+--set "$5=true"} --csv >"$name.csv"
    files+=("$4,$2,$(($2 * $3)),$name.csv")
}
pairs=parallel.overlap_moe_expert_parallel_comm
for p in 2 4; do
    for m in "$p" $((2 * p)) $((3 * p + 1)); do
        for schedule in gpipe 1f1b zb_h1 auto; do
            check $schedule $p 1 $m
        done
        for schedule in interleaved zb_h1 zbv v_half v_min dualpipev auto; do
            check $schedule $p 2 $m
        done
        check 1f1b $p 1 $m $pairs
        check interleaved $p 2 $m $pairs
        check dualpipev $p 2 $m $pairs
    done
done
"$python" "$reader" "${files[@]}"
