# shellcheck shell=bash
# Sourced by what breaks runs on emulated nodes (scripts/netlab, scripts/slurmlab).
set -uo pipefail
export LC_ALL=C
failed=0

complain() {
    echo "${0##*/}: $1" >&2
    failed=1
}
lab() { bash "$lab_script" "$@"; }
lab_down() {
    lab down
    rm -rf "$folder"
}
# lab_up SCRIPT NODES...: makes the lab that NETLAB_NAME or SLURMLAB_NAME names, and goes to a folder of its
# own, $folder; both end with the caller. Where there can be no lab, the caller exits as `up` does (77).
lab_up() {
    lab_script=$(realpath "$1")
    lab up "${@:2}" >&2 || exit
    folder=$(mktemp -d)
    trap lab_down EXIT
    cd "$folder" || exit 1
    mkdir bin
    printf '#!/bin/bash\nPATH=%q exec bash %q run "$@"\n' "$PATH" "$lab_script" >bin/mpirun
    chmod +x bin/mpirun
}
# start_job RUN: its job.sh in the background, which finds the lab's mpirun; its pid in $job.
start_job() {
    PATH=$folder/bin:$PATH bash "$1/job.sh" >"$1.out" 2>"$1.err" &
    job=$!
}
# finish_job RUN [PATTERN]: it ends well, and has said so; its exit code in $code.
finish_job() {
    wait "$job"
    code=$?
    [ $code -eq 0 ] || complain "$1: exit code $code: $(tail -n 20 "$1.err")"
    [ -z "${2:-}" ] || grep -q -- "$2" "$1.err" || complain "$1: no '$2' in: $(cat "$1.err")"
}
# kill_nodes NODE...: all that runs there.
kill_nodes() {
    local node pid
    for node in "$@"; do
        for pid in $(ip netns pids "$NETLAB_NAME-$node"); do kill -9 "$pid" 2>/dev/null; done
    done
}
# lose_node NODE: as a machine that loses its power.
lose_node() {
    local device
    for device in mgmt data; do ip -n "$NETLAB_NAME-$1" link set $device down; done
    kill_nodes "$1"
}
