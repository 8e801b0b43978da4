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
# What people have: a model with a tokenizer, here of single characters, and documents.
cp -r "$1/tests/oracle/models/llama3" Llama-3
{
    printf '{"version": "1.0", "decoder": {"type": "Fuse"},\n'
    printf '"added_tokens": [{"id": 2, "content": "</s>", "special": true}],\n'
    printf '"model": {"type": "BPE", "unk_token": "<unk>", "merges": [],\n'
    printf '"vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, " ": 3'
    id=3
    for c in {a..z} {A..V}; do printf ', "%s": %d' "$c" $((id += 1)); done
    printf '}}}'
} >Llama-3/tokenizer.json
sed 's/[^a-zA-Z .]//g; s/.*/{"text": "&"}/' docs/words.md >pages.jsonl
using=$(sed -n '/^## Using it/,/^## A model in C/p' "$1/README.md")
sed -n '/^```json$/,/^```$/{/^```/!p}' <<<"$using" >config.json
num=0
while IFS= read -r line; do
    [[ $line == build/weft\ * ]] || continue
    num=$((num + 1))
    bash -c "$line" >out 2>err </dev/null || { echo "exit $?: $line" && cat err && exit 1; }
done <<<"$using"
[ $num -ge 18 ] || { echo "only $num commands were found in the README" && exit 1; }
