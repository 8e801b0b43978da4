#!/usr/bin/env bash
# Jobs of `weft launch slurm` on a Slurm of emulated nodes, which takes a silent node for down after 300 s: one
# dies, and the job goes on without it, with the bits of one that nothing disturbed; tasks without PMIx end with a
# line.
#   slurm.sh SLURMLAB WEFT
slurmlab=${1:?usage: slurm.sh SLURMLAB WEFT} weft=$(realpath "${2:?}")
# shellcheck source=scripts/lab.sh
. "$(dirname "$slurmlab")/lab.sh"
export SLURMLAB_NAME=slurm$$ SLURMLAB_TIMEOUT=300
lab_up "$slurmlab" 3
ask() { timeout 60 bash "$lab_script" "$@"; }
cat >c.json <<'END'
{"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 53},
 "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 1500, "lr": 1e-3},
 "checkpoint": {"save_interval": 100, "keep_latest_k": 2}, "data": {"mock_data": true},
 "reliability": {"max_restarts": 3, "restart_delay_s": 0, "exchange_limit_s": 6},
 "device": {"peak_flops": 1e9, "num_threads": 1}, "log": {"trace_step": 0, "log_interval": 1000}}
END
# wait_until SECONDS CMD...
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}
# submit RUN: the job's number in $job.
submit() {
    "$weft" launch slurm c.json --out "$1" --mesh tp=2,dp=2 --nodes 2 >/dev/null || complain "$1: no job"
    job=$(ask run sbatch --parsable "$1/job.sbatch")
}
# finish RUN: done, and ended.
finish() {
    wait_until 200 test -e "$1/checkpoints/step-1500" || complain "$1: not done: $(cat "$1"/slurm-*.out)"
    wait_until 60 ended || complain "$1: the job goes on"
}
# shellcheck disable=SC2317
ended() { [ -z "$(ask run squeue --noheader --jobs="$job")" ]; }
says() { grep -qF -- "$2" "$1"/slurm-*.out || complain "$1: no '$2' in: $(cat "$1"/slurm-*.out)"; }
# same RUN: as the one that nothing disturbed.
same() {
    local file
    for file in whole/checkpoints/step-1500/*.h5; do
        cmp "$file" "$1/checkpoints/step-1500/${file##*/}" || complain "$1: another checkpoint"
    done
}
ask run srun -N2 -n2 --mpi=none "$weft" train c.json --out none --mesh dp=2 >none.out 2>&1
grep -v '^srun:' none.out >lines
if [ "$(wc -l <lines)" -ne 1 ] || ! grep -q 'without PMIx' lines || ! grep -q 'exit code 2' none.out; then
    complain "without PMIx: $(cat none.out)"
fi

submit whole
finish whole

submit power
wait_until 60 test -e power/checkpoints/latest || complain 'power: no checkpoint'
ask kill node1
finish power
says power 'weft: no end of the step on node1: the job is queued again without'
same power
exit $failed
