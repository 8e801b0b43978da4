#!/usr/bin/env bash
# Jobs of `weft launch mpirun` over emulated nodes, of which one dies, where mpirun would wait for it for
# minutes: with a spare the run goes on there with the bits of one that nothing disturbed; without, on the
# nodes that are left, with its losses.
#   restarts_netlab.sh NETLAB WEFT
netlab=${1:?usage: restarts_netlab.sh NETLAB WEFT} weft=${2:?}
# shellcheck source=scripts/lab.sh
. "$(dirname "$netlab")/lab.sh"
export NETLAB_NAME=restarts$$ NETLAB_TIMEOUT=1700
export OMPI_MCA_oob_tcp_keepalive_time=300 OMPI_MCA_oob_tcp_keepalive_intvl=20 # Open MPI's own
lab_up "$netlab" 7 none # three jobs side by side
cat >c.json <<'END'
{"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 53},
 "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 1500, "lr": 1e-3},
 "checkpoint": {"save_interval": 100, "keep_latest_k": 2}, "data": {"mock_data": true},
 "reliability": {"max_restarts": 2, "restart_delay_s": 0, "exchange_limit_s": 15, "step_limit_s": 60},
 "device": {"peak_flops": 1e9, "num_threads": 1}, "log": {"trace_step": 0, "log_interval": 1000}}
END

# start RUN HOSTS SPARES: in the background, its pid in $job.
start() {
    "$weft" launch mpirun c.json --out "$1" --mesh tp=2,dp=2 --nodes 2 --hosts "$2" --spares "$3" \
        >/dev/null || complain "$1: no job"
    start_job "$1"
}
# lose NODE RUN: once that has saved.
lose() {
    local i
    for ((i = 0; i < 24000; i++)); do
        [ -e "$2/checkpoints/latest" ] && break
        sleep 0.05
    done
    lose_node "$1"
}
# losses RUN: of its last steps, to rounding or to the bit.
losses() {
    tail -n 300 "$1/metrics.jsonl" | sed -n 's/.*"step": \([0-9]*\), "loss": \([0-9.]*\).*/\1 \2/p'
}

start whole node0,node1 0
whole=$job
start spared node2,node3,node4 1
spared=$job
start fewer node5,node6 0
fewer=$job
lose node3 spared
lose node6 fewer
job=$whole finish_job whole
job=$spared finish_job spared 'weft: node node3 is left out: a rank on it failed'
grep -q 'mpirun did not end within 10 s of the verdict: killed' spared.err || complain 'spared: no verdict'
[ "$(cat spared/hostfile.now)" = $'node2 slots=2\nnode4 slots=2' ] || complain 'spared: other nodes'
cmp -s <(losses whole) <(losses spared) || complain 'spared: other losses'
for file in whole/checkpoints/step-1500/*.h5; do
    cmp "$file" "spared/checkpoints/step-1500/${file##*/}" || complain 'spared: another checkpoint'
done
job=$fewer finish_job fewer 'weft: goes on with 1 of 2 nodes: dp 2 -> 1, the global batch stays'
paste <(losses whole) <(losses fewer) | awk '
    $1 != $3 || ($2 - $4) ^ 2 > ($2 * 1e-4) ^ 2 { bad++ }
    END { exit NR < 300 || bad > 0 }' || complain 'fewer: other losses'
exit $failed
