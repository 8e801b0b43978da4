#!/usr/bin/env bash
# weft doctor --nodes over emulated nodes: even ones, one that lacks the others' file system, one
# whose link is slow, one that is too slow to be measured in time.
#   nodes_netlab.sh NETLAB WEFT
netlab=${1:?usage: nodes_netlab.sh NETLAB WEFT} weft=${2:?}
# shellcheck source=scripts/lab.sh
. "$(dirname "$netlab")/lab.sh"
export NETLAB_NAME=nodes$$ NETLAB_TIMEOUT=800
lab_up "$netlab" 3 80mbit

# doctor SECONDS: over the nodes, a rank each. A factor that busy cores do not reach.
doctor() {
    lab run -n 3 --npernode 1 "$weft" doctor --nodes --path "$folder/data" --factor 8 --seconds "$1" >out 2>err
    code=$?
}

mkdir data other
doctor 20
[ $code -eq 0 ] || complain "even: exit code $code"
grep -q '^3 ranks of 3 nodes are even' out || complain "even: $(cat out err)"
[ "$(grep -cE '^ +[0-9] +[0-9] +node[0-9] ' out)" -eq 6 ] || complain "even: not all links: $(cat out)"
grep -q '/data is one folder of all nodes' out || complain "even: $(cat out)"

# A folder that node0, whose rank speaks, has of its own.
cat >alone <<END
#!/bin/bash
if [ "\$(hostname)" = node0 ]; then mount --bind "$folder/other" "$folder/data" || exit; fi
exec "$weft" "\$@"
END
chmod +x alone
weft=$folder/alone doctor 20
[ $code -eq 4 ] && [ "$(grep -c '^odd: ' out)" -eq 1 ] &&
    grep -q '^odd: node node0: disk: .*/data is another folder than on node node1 and 1 other: ' out ||
    complain "node0 alone: exit code $code: $(cat out err)"
[ -z "$(find data other -mindepth 1)" ] || complain "left behind: $(find data other)"

lab rate 5mbit node1
start=$(date +%s)
doctor 20
took=$(($(date +%s) - start))
[ $code -eq 4 ] || complain "slow link: exit code $code"
grep -q '^odd: node node1: link: ' out || complain "slow link: not named: $(cat out err)"
[ "$(grep '^odd: ' out | grep -cv 'node node1: ')" -eq 0 ] || complain "slow link: another is named: $(cat out)"
grep '^odd: ' out
echo "in $took s"

# A link on which five of the smallest trains take longer than all may.
lab rate 500kbit node1
doctor 4
[ $code -ne 0 ] || complain 'late: exit code 0'
grep -q 'weft doctor: --seconds 4 are over: rank [0-9] (node[0-9]) waits for ' err || complain "late: no line: $(cat out err)"
exit $failed
