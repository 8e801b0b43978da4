# Reads what `nm -A -g` says of object files, in folders as CMake makes them (NAME.dir/layers/mlp.c.o),
# and names the functions and variables that a file uses and that the floors or rooms of table.awk
# forbid, and circles: files that use each other, directly or through others.
# Exit code 1 when something was refused.
BEGIN {
    # Where backends and doors know each other.
    circles_allowed = "^comm/"
}

{
    file = $0
    sub(/:.*/, "", file)
    if (!match(file, /\.dir\//) || NF < 3)
        next
    sub(/.*\.dir\/(\.\/)?/, "", file)
    sub(/\.o$/, "", file)
    if ($(NF - 1) ~ /^[UvwVW]$/)
        uses[file, $NF] = 1
    else
        home[$NF] = file
}

# Some circle among files that are left: each uses one that is left, so a walk comes back.
function print_circle(file,    text, at, seen) {
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
    printf "%s -> %s: a circle; what both use belongs into a file of its own\n", text, file
}

END {
    for (key in uses) {
        split(key, part, SUBSEP)
        user = part[1]
        if (!(part[2] in home) || home[part[2]] == user)
            continue
        used = home[part[2]]
        num_uses++
        if (!may_include(floor_of(user), floor_of(used)) ||
            floor_of(user) == floor_of(used) && !may_include(room_of(user), room_of(used))) {
            printf "%s: uses %s of %s: %s may not use %s\n", user, part[2], used, room_of(user), \
                room_of(used)
            num_refused++
        }
        edge[user, used] = 1
        if (floor_of(user) == floor_of(used) && user !~ circles_allowed)
            left[user] = left[used] = 1
    }
    # What uses none that is left, or is used by none, stands in no circle.
    do {
        again = 0
        for (file in left) {
            up = down = 0
            for (other in left) {
                up += (file, other) in edge
                down += (other, file) in edge
            }
            if (!up || !down) {
                delete left[file]
                again = 1
            }
        }
    } while (again)
    for (file in left) {
        print_circle(file)
        num_refused++
        break
    }
    printf "%d uses, %d refused\n", num_uses, num_refused
    exit num_refused > 0 || num_uses == 0
}
