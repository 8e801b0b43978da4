# shellcheck shell=bash disable=SC2154
# Sourced by tests of jobs on scripts/slurmlab, behind lab_up: a config c.json of $steps steps.
user=()
# Users have no rights; but root, where nobody else gets at the program.
be_nobody() {
    local to=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    chmod 755 "$folder"
    if "${to[@]}" test -x "$weft" && chown 65534:65534 "$folder"; then
        user=("${to[@]}")
    else
        echo "${0##*/}: nobody gets at $weft: jobs are root's" >&2
    fi
}
as_user() { "${user[@]}" "$@"; }
ask() { timeout 300 bash "$lab_script" "$@"; }
# wait_until SECONDS CMD...
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}
# write RUN PROGRAM OPTIONS...
write() {
    as_user "$weft" launch slurm c.json --out "$1" --mesh tp=2,dp=2 --nodes 2 --program "$2" "${@:3}" >/dev/null ||
        complain "$1: no job"
}
# queue RUN SBATCH-OPTIONS...: the job's number in $job.
queue() { job=$(ask run "${user[@]}" sbatch --parsable "${@:2}" "$1/job.sbatch"); }
submit() { write "$@" && queue "$1"; }
# finish RUN: done, and ended.
finish() {
    wait_until 900 test -e "$1/checkpoints/step-$steps" || complain "$1: not done: $(cat "$1"/slurm-*.out)"
    wait_until 60 ended || complain "$1: the job goes on"
}
# shellcheck disable=SC2317
ended() { [ -z "$(ask run squeue --noheader --jobs="$job")" ]; }
says() { grep -qF -- "$2" "$1"/slurm-*.out || complain "$1: no '$2' in: $(cat "$1"/slurm-*.out)"; }
# same RUN: as the one that nothing disturbed.
same() {
    local file
    for file in whole/checkpoints/step-"$steps"/*.h5; do
        cmp "$file" "$1/checkpoints/step-$steps/${file##*/}" || complain "$1: another checkpoint"
    done
}
# ranks NODE: the pids of those that train there.
ranks() {
    local pid
    for pid in $(ip netns pids "$SLURMLAB_NAME-$1"); do
        [ "$(readlink "/proc/$pid/exe")" != "$weft" ] || echo "$pid"
    done
}
