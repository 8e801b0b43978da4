#!/usr/bin/env bash
# The README's commands as they are printed, in their order, beside the config that it shows. What
# takes a minute or builds is left out: scripts/*, mpirun.
#   readme_commands.sh CHECKOUT BUILD
set -uo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
ln -s "$2" build
ln -s "$1/docs" "$1/examples" .
ln -s "$1/tests/oracle/models/llama3" Llama-3 # what people have
using=$(sed -n '/^## Using it/,/^## A model in C/p' "$1/README.md")
sed -n '/^```json$/,/^```$/{/^```/!p}' <<<"$using" >config.json
num=0
while IFS= read -r line; do
    [[ $line == build/weft\ * ]] || continue
    num=$((num + 1))
    bash -c "$line" >out 2>err </dev/null || { echo "exit $?: $line" && cat err && exit 1; }
done <<<"$using"
[ $num -ge 13 ] || { echo "only $num commands were found in the README" && exit 1; }
