#!/usr/bin/env bash
# check_docs.sh ROOT: every relative link, its heading and every path in backquotes or shell blocks of the
# Markdown files exists, the README links every page of docs/, and its line counts hold.
set -euo pipefail
cd "$1"
. tests/style/sources.sh
bad=0
complain() {
    echo "$1" >&2
    bad=1
}

while IFS= read -r page; do
    folder=$(dirname "$page")
    # [text](target) and ![text](target), targets without a scheme, anchors cut off
    while IFS= read -r target; do
        [ -z "$target" ] || [ -e "$folder/$target" ] || complain "$page: no $target to link to"
    done < <(sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^)]+\)' | sed -E 's/^\]\(//; s/\)$//; s/#.*//' |
        grep -vE '^[a-z]+:' || true)
    # the heading behind a page's #: lower case, punctuation gone, spaces as hyphens
    while IFS='#' read -r target heading; do
        target=${target:+$folder/}${target:-$page}
        sed '/^```/,/^```/d' "$target" | sed -nE 's/^#+ //p' | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9_\n-' |
            grep -qxe "$heading" || complain "$page: no heading $heading in $target"
    done < <(sed '/^```/,/^```/d' "$page" | grep -oE '\]\(([^):]*\.md)?#[^)]+\)' | sed -E 's/^\]\(//; s/\)$//' || true)
    # `folder/file.ext` in prose: names a file of the tree, from its root or from the page
    while IFS= read -r path; do
        compgen -G "$path" >/dev/null || compgen -G "$folder/$path" >/dev/null ||
            complain "$page: no $path"
    done < <(sed '/^```/,/^```/d' "$page" |
        grep -oE '`(core|comm|kernels|schedule|parallel|layers|launcher|include|examples|tests|bench|docs|scripts|packaging)/[A-Za-z0-9_./*-]*`' |
        tr -d '`' || true)
done < <(sources '*.md')

for page in docs/*.md; do
    grep -qF "($page" README.md || complain "README.md: no link to $page"
done

# The table of "The code, in reading order": sources and headers, 2,500 lines in all.
mapfile -t files < <(sed -n '/in reading order/,/^Folders are/p' README.md | grep '^|' |
    grep -oE '\]\([^)]*\)' | tr -d ']()')
[ ${#files[@]} -gt 10 ] || { complain "README.md: no table of files to read" && exit 1; }
total=$(cat "${files[@]}" | wc -l)
[ "$total" -lt 2500 ] || complain "README.md: $total lines to read first, not less than 2500"
exit "$bad"
