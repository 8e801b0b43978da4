#!/usr/bin/env bash
# Jobs over emulated nodes whose ranks' states lie in other nodes' memory. A node that is lost between
# saves costs no more than the steps since the last copy, with the bits of a run that nothing disturbed:
# on a spare, on the node that is left, and where the same nodes start anew. A state of which no copy is
# left, or none whose hash is right, is said in one line, and the run goes on from its checkpoint.
#   copies_netlab.sh NETLAB WEFT
netlab=${1:?usage: copies_netlab.sh NETLAB WEFT} weft=${2:?}
# shellcheck source=scripts/lab.sh
. "$(dirname "$netlab")/lab.sh"
export NETLAB_NAME=copies$$ NETLAB_TIMEOUT=800
lab_up "$netlab" 3 none
mkdir memory
# Steps take 30 ms and more, so that whoever looks at them is in time.
# The lab's /dev/shm goes with a node's last process; a machine's does not.
cat >c.json <<END
{"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 53},
 "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 300, "lr": 1e-3},
 "checkpoint": {"save_interval": 150, "async_save": true, "peer_copies": 1, "peer_interval": 10,
  "peer_path": "$folder/memory"},
 "data": {"mock_data": true}, "reliability": {"max_restarts": 2, "restart_delay_s": 0},
 "device": {"pace": 2e7, "pace_work": "all", "num_threads": 1}, "log": {"trace_step": 0, "log_interval": 1000}}
END

# prepare RUN HOSTS SPARES [SET...]
prepare() {
    local run=$1 hosts=$2 spares=$3
    shift 3
    "$weft" launch mpirun c.json --out "$run" --mesh tp=2,dp=2 --nodes 2 --hosts "$hosts" --spares \
        "$spares" "${@/#/--set=}" >/dev/null || complain "$run: no job"
}
last_step() { tail -n 2 "$1/metrics.jsonl" 2>/dev/null | sed -n 's/^{"step": \([0-9]*\),.*}$/\1/p' | tail -n 1; }
# await RUN STEP: until it has gone so far.
await() {
    local i step
    for ((i = 0; i < 1200; i++)); do
        step=$(last_step "$1")
        [ "${step:-0}" -ge "$2" ] && return
        kill -0 $job || break
        sleep 0.05
    done
    complain "$1: not at step $2: $(tail -n 5 "$1.err")"
}
# lose NODE: with its memory.
lose() {
    lose_node "$1"
    rm -rf memory/weft-*/"$1"
}
# finish RUN [PATTERN]: done, and said so.
finish() {
    finish_job "$@"
    [ -z "$(ls memory)" ] || complain "$1: left in memory: $(find memory)"
    [ ! -e "$1/checkpoints/copies" ] || complain "$1: a name is left"
}
same() {
    cmp whole/checkpoints/step-300/model.h5 "$1/checkpoints/step-300/model.h5" ||
        complain "$1: another checkpoint"
}

prepare whole node0,node1 0
start_job whole
finish whole
! grep -q resume whole.err || complain "whole: $(cat whole.err)"

# A lost node, before any save.
prepare spared node0,node1,node2 1
start_job spared
await spared 40
lose node1
finish spared "resume: step [0-9]*0 is taken from the nodes' memory: .* of 4 ranks, now .*/spared/checkpoints/step-"
grep -q 'node node1 is left out' spared.err || complain "spared: $(cat spared.err)"
same spared

# Both nodes' processes end; the memory of one is lost, and the state of the other's ranks not whole.
# The same nodes start again.
for case in alone both flipped other; do
    prepare $case node0,node2 0 reliability.max_restarts=0
    start_job $case
    await $case 175
    kill_nodes node0 node2
    wait $job
    text="resume: step [0-9]*0 is taken from the nodes' memory"
    case $case in
    alone) rm -r memory/weft-*/node2 ;;
    both) rm -r memory/weft-*/node2 memory/weft-*/node0/rank-3.* ;;
    flipped | other)
        [ $case = other ] || rm -r memory/weft-*/node2
        for file in memory/weft-*/node0/rank-2.*; do
            printf x | dd of="$file" bs=1 seek=9001 conv=notrunc status=none
        done
        ;;
    esac
    case $case in
    both) text="resume: step [0-9]*0 is not whole in the nodes' memory, which lacks the state of rank 3: goes on from the checkpoint of step 150" ;;
    flipped) text="resume: step [0-9]*0 is not whole in the nodes' memory, which lacks the state of rank 2: goes on from the checkpoint of step 150" ;;
    esac
    start_job $case
    finish $case "$text"
    case $case in
    flipped | other)
        grep -q "rank-2.[01]: the copy of rank 2's state of step [0-9]*0 is damaged: the hash differs" $case.err ||
            complain "$case: $(cat $case.err)"
        ;;
    esac
    same $case
done

# A first start on one node is refused.
prepare single node0,node2 0 checkpoint.peer_copies=2
start_job single
wait $job
code=$?
[ $code -eq 2 ] && grep -q 'checkpoint.peer_copies: 2: the ranks are on 2 nodes' single.err ||
    complain "single: exit code $code: $(cat single.err)"
[ -z "$(ls memory)" ] || complain "single: left in memory: $(find memory)"
# So is memory that is not there.
mkdir small
if mount -t tmpfs -o size=64k tmpfs small; then
    prepare full node0,node2 0 "checkpoint.peer_path=$folder/small"
    start_job full
    wait $job
    code=$?
    [ $code -eq 3 ] && grep -q 'no room for [0-9]* bytes (checkpoint.peer_path): No space left' full.err ||
        complain "full: exit code $code: $(cat full.err)"
    [ -z "$(ls small)" ] || complain "full: left in memory: $(find small)"
    umount small
fi

# One node is left: it has both states, and goes on without copies.
prepare fewer node0,node2 0
start_job fewer
await fewer 40
lose node2
finish fewer "resume: step [0-9]*0 is taken from the nodes' memory"
grep -q 'checkpoint.peer_copies: no copies in other nodes. memory: the ranks are on 1 node' fewer.err ||
    complain "fewer: $(cat fewer.err)"
exit $failed
