#!/usr/bin/env bash
# An MPIJob of `weft launch kubernetes`, played: its launcher and workers are emulated nodes with the files and
# variables that MPI Operator gives pods, and run the commands that the job has. As root, and as a user without
# rights; a worker loses a rank, and the launcher's container is started again.
#   mpijob_netlab.sh NETLAB WEFT
netlab=${1:?usage: mpijob_netlab.sh NETLAB WEFT} weft=$(realpath "${2:?}")
for tool in /usr/sbin/sshd ssh ssh-keygen setpriv; do
    command -v $tool >/dev/null || { echo "mpijob: needs $tool: apt-get install openssh-server" >&2 && exit 77; }
done
python3 -c 'import yaml' 2>/dev/null || { echo 'mpijob: needs python3-yaml' >&2 && exit 77; }
# shellcheck source=scripts/lab.sh
. "$(dirname "$netlab")/lab.sh"
export NETLAB_NAME=mpijob$$
lab_up "$netlab" 3 none # node2: the launcher's pod
chmod 755 "$folder"
cat >c.json <<'END'
{"model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 12, "vocab_size": 53},
 "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": 120, "lr": 1e-3},
 "checkpoint": {"save_interval": 20, "keep_latest_k": 2}, "data": {"mock_data": true},
 "reliability": {"exchange_limit_s": 6},
 "device": {"peak_flops": 1e9, "num_threads": 1}, "log": {"trace_step": 0, "log_interval": 1000}}
END
echo 'export SET_UP=yes' >setup.sh

# unpack RUN: the job's files into etc/weft-job, and its two commands, as a pod gets them.
unpack() {
    rm -rf etc
    mkdir -p etc/weft-job etc/weft-keys etc/mpi
    python3 - "$1/job.yaml" <<'END' || complain "$1: no job"
import sys, yaml
files, job = yaml.safe_load_all(open(sys.argv[1]))
for name, text in files["data"].items():
    open("etc/weft-job/" + name, "w").write(text)
for role, replica in job["spec"]["mpiReplicaSpecs"].items():
    words = replica["template"]["spec"]["containers"][0]["command"]
    open(role, "w").write("".join(word.replace("$$", "$") + "\0" for word in words))
END
    printf 'node%d slots=2\n' 0 1 >etc/mpi/hostfile
    cp "/run/netlab-$NETLAB_NAME/hosts" etc/hosts
    { cat /etc/passwd && echo 'trainer:x:1234:1234::/:/bin/bash'; } >etc/passwd
    ssh-keygen -q -t rsa -b 2048 -N '' -f etc/weft-keys/id_rsa
    cp etc/weft-keys/id_rsa.pub etc/weft-keys/authorized_keys
    chmod 644 etc/weft-keys/*
}
# Inside a node: UID ROLE
cat >pod.sh <<'END'
home=$(getent passwd 0 | cut -d : -f 6)
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs "$home" || exit
mkdir -m 700 "$home/.ssh" && install -m 600 etc/weft-keys/* "$home/.ssh" || exit
mount -t overlay -o "lowerdir=$PWD/etc:/etc" overlay /etc || exit
mapfile -d '' -t words <"$2"
exec setpriv --reuid "$1" --regid "$1" --clear-groups env -i HOME=/ HOSTNAME="$(hostname)" \
    PATH=/usr/local/bin:/usr/bin:/bin OMPI_MCA_orte_keep_fqdn_hostnames=true \
    OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile OMPI_MCA_plm_rsh_args='-o ConnectionAttempts=10' \
    OMPI_MCA_orte_set_default_slots=2 OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 \
    OMPI_MCA_mpi_yield_when_idle=1 "${words[@]}"
END
# shellcheck disable=SC2317
answers() { lab exec node2 bash -c "exec 3<>/dev/tcp/$1/2222"; }
# start_pods RUN USER: the workers; then the launcher, once they are ready, its pid in $job.
start_pods() {
    local node end=$((SECONDS + 60))
    for node in node0 node1; do
        lab exec $node bash pod.sh "$2" Worker >"$1.$node" 2>&1 &
    done
    for node in node0 node1; do
        until answers $node 2>/dev/null; do
            [ $SECONDS -lt $end ] || { complain "$1: $node is not ready: $(cat "$1.$node")" && return 1; }
            sleep 0.2
        done
    done
    start_launcher "$@"
}
start_launcher() {
    lab exec node2 bash pod.sh "$2" Launcher >"$1.out" 2>"$1.err" &
    job=$!
}
# shellcheck disable=SC2016
quoted='QUOTED=a "b" $c'
# write RUN OPTIONS...
write() {
    "$weft" launch kubernetes c.json --out "$1" --mesh tp=2,dp=2 --nodes 2 --image image --program "$weft" \
        --setup setup.sh --env "$quoted" "${@:2}" >/dev/null || complain "$1: no job"
    unpack "$1"
}
# variable NODE NAME: of the ranks there.
variable() {
    local pid
    for pid in $(ip netns pids "$NETLAB_NAME-$1"); do
        [ "$(readlink "/proc/$pid/exe")" != "$weft" ] || tr '\0' '\n' <"/proc/$pid/environ" | grep "^$2="
    done | sort -u
}
wait_for_save() {
    local i
    for ((i = 0; i < 6000; i++)); do
        [ -e "$1/checkpoints/latest" ] && return
        sleep 0.05
    done
    complain "$1: no checkpoint: $(tail -n 20 "$1.err")"
}

write whole
start_pods whole 0 && finish_job whole
kill_nodes node0 node1

write lost --user 1234
chown 1234 lost
start_pods lost 1234
wait_for_save lost
[ "$(variable node1 SET_UP)" = SET_UP=yes ] || complain 'lost: ranks have no variable of --setup'
[ "$(variable node1 QUOTED)" = "$quoted" ] || complain 'lost: ranks have no variable of --env'
for pid in $(ip netns pids "$NETLAB_NAME-node1"); do
    [ "$(readlink "/proc/$pid/exe")" != "$weft" ] || { kill -KILL "$pid" && break; }
done
wait "$job" && complain 'lost: a killed rank is exit code 0'
start_launcher lost 1234
finish_job lost
for file in whole/checkpoints/step-120/*.h5; do
    cmp "$file" "lost/checkpoints/step-120/${file##*/}" || complain 'lost: another checkpoint'
done
exit $failed
