#!/usr/bin/env bash
# scripts/netlab: the nodes it makes are nodes to MPI, it shapes and cuts what it says, hands on exit
# codes, and leaves nothing behind.
#   netlab.sh NETLAB NODES-PROGRAM
set -uo pipefail
export LC_ALL=C
netlab=${1:?usage: netlab.sh NETLAB NODES-PROGRAM} program=${2:?}
export NETLAB_NAME=test$$ NETLAB_TIMEOUT=300
output=$(mktemp)
failed=0
cleanup() {
    bash "$netlab" down
    rm -f "$output"
}

complain() {
    echo "netlab.sh: $1" >&2
    failed=1
}
# expect CODE COMMAND...: exits as stated; what it prints is kept in $output.
expect() {
    local code wanted=$1
    shift
    "$@" >"$output" 2>&1
    code=$?
    [ $code -eq "$wanted" ] && return
    complain "exit code $code, not $wanted: ${*@Q}"
    cat "$output" >&2
}
# says TEXT: the last output has it.
says() {
    grep -qF -- "$1" "$output" && return
    complain "no '$1' in:"
    cat "$output" >&2
}
lab() {
    bash "$netlab" "$@"
}
# expect_rate NAMESPACE DEVICE RATE: in tc's own words; nothing for an unshaped device.
expect_rate() {
    local rate
    rate=$(tc -n "$NETLAB_NAME-$1" qdisc show dev "$2" root | sed -n 's/.* rate \([^ ]*\).*/\1/p')
    [ "$rate" = "$3" ] || complain "$1's $2 is shaped to '$rate', not '$3'"
}
# reach SECONDS: whether packets from node0 reach node1. A closed port refuses at once, over a cut
# link nothing answers.
reach() {
    [[ $(lab exec node0 timeout "$1" bash -c '</dev/tcp/10.77.0.2/9' 2>&1) == *refused* ]]
}

lab up 2 200mbit
code=$?
[ $code -ne 77 ] || exit 77
trap cleanup EXIT
[ $code -eq 0 ] || complain "up: exit code $code"

# A lab of the other kind has the same names.
for verb in 'up 1' down; do
    # shellcheck disable=SC2086
    SLURMLAB_NAME=$NETLAB_NAME expect 2 bash "${netlab%netlab}slurmlab" $verb
    says "slurmlab: '$NETLAB_NAME' is a lab of scripts/netlab; SLURMLAB_NAME names another"
done
for node in node0 node1; do
    expect_rate $node data 200Mbit
    expect_rate switch data-$node 200Mbit
done
expect 0 lab exec node0 cat /proc/sys/net/ipv4/tcp_congestion_control
says reno
expect 0 lab run -n 4 --npernode 2 "$program" 2
expect 7 lab run -n 2 --npernode 1 sh -c 'exit $((7 * OMPI_COMM_WORLD_RANK))'
NETLAB_TIMEOUT=1 expect 110 lab run -n 2 --npernode 1 sleep 60

expect 0 lab rate 300mbit node1
expect_rate node0 data 200Mbit
expect_rate node1 data 300Mbit
expect_rate switch data-node1 300Mbit
expect 0 lab rate none
expect_rate node1 data ''

expect 0 lab intra 800mbit
expect_rate node1 lo 800Mbit
expect 0 lab run -n 4 --npernode 2 "$program" 2
expect 0 lab run -n 2 --npernode 1 sh -c 'echo windows $WEFT_SHARED_WINDOWS, btl $OMPI_MCA_btl.'
says 'windows 0, btl self,tcp.'
expect 0 lab intra memory
expect_rate node1 lo ''
OMPI_MCA_btl_tcp_flags=3 expect 0 lab run -n 1 sh -c \
    'echo windows ${WEFT_SHARED_WINDOWS-unset}, flags $OMPI_MCA_btl_tcp_flags.'
says 'windows unset, flags 3.'

reach 60 || complain 'node0 does not reach node1'
expect 0 lab link node1 down
reach 1 && complain 'node0 reaches node1 over a cut link'
expect 0 lab status
says 'node1  link down'
expect 0 lab link node1 up
reach 60 || complain 'node0 does not reach node1 over the link that is up again'

# A second lab beside it, and what a caller may get wrong.
NETLAB_NAME=${NETLAB_NAME}b expect 0 lab up 1 none
NETLAB_NAME=${NETLAB_NAME}b expect 0 lab exec node0 hostname
says node0
NETLAB_NAME=${NETLAB_NAME}b expect 0 lab down
expect 2 lab link node2 down
says "no node 'node2'; there are: node0 node1"
expect 2 lab rate fast
says "not 'fast'"
expect 2 lab frobnicate
expect 0 lab --help
says 'up NODES RATE'

# What runs in the lab ends with it, and nothing else does.
{ lab exec node1 sleep 60; } 2>/dev/null &
inside=$!
sleep 60 &
outside=$!
until [ -n "$(ip netns pids "$NETLAB_NAME-node1")" ]; do sleep 0.05; done
expect 0 lab down
wait $inside
[ $? -gt 128 ] || complain 'down left a process'
kill $outside || complain 'down ended a process that was not in the lab'
wait $outside 2>/dev/null
ip netns list | grep -F "$NETLAB_NAME" && complain 'down left a namespace'
[ ! -e "/run/netlab-$NETLAB_NAME" ] || complain 'down left its files'
expect 2 lab status
says "no lab '$NETLAB_NAME' is up"
exit $failed
