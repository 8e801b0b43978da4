# Circles in a graph: edge[from, to] among the names that are keys of `left`.

# Prints some circle, with `why` behind it, and returns 1; 0 where there is none. Empties `left`.
function find_circle(edge, left, why,    key, part, up, down, file, again) {
    # What uses none that is left, or is used by none, stands in no circle.
    do {
        split("", up)
        split("", down)
        for (key in edge) {
            split(key, part, SUBSEP)
            if (part[1] in left && part[2] in left) {
                up[part[1]]++
                down[part[2]]++
            }
        }
        again = 0
        for (file in left)
            if (!(file in up) || !(file in down)) {
                delete left[file]
                again = 1
            }
    } while (again)
    for (file in left) {
        print_circle(edge, left, file, why)
        return 1
    }
    return 0
}

# Each of those left uses one that is left, so a walk comes back.
function print_circle(edge, left, file, why,    text, at, other, seen, order) {
    while (!(file in seen)) {
        seen[file] = ++at
        order[at] = file
        for (other in left)
            if ((file, other) in edge)
                break
        file = other
    }
    text = file
    for (at = seen[file] + 1; at in order && order[at] in seen && seen[order[at]] == at; at++)
        text = text " -> " order[at]
    printf "%s -> %s: a circle; %s\n", text, file, why
}
