# Sourced: what the style tests read.

# Prints the project's files that match the patterns (all without one), a line each.
sources() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -- "$@" | while IFS= read -r file; do
            [ ! -f "$file" ] || echo "$file"
        done
    else # an unpacked archive
        local names=() pattern
        for pattern in "${@:-*}"; do
            names+=(${names[@]:+-o} -name "$pattern")
        done
        find . \( -name 'build*' -o -name 'run*' \) -type d -prune -o -type f \
            \( "${names[@]}" \) -print | sed 's,^\./,,' | sort
    fi
}
