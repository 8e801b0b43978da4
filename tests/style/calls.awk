# Reads what `nm -A -g` says of object files, in folders as CMake makes them (NAME.dir/layers/mlp.c.o),
# and names the functions and variables that a file uses and that the floors or rooms of table.awk
# forbid, and circles: files that use each other, directly or through others.
# Exit code 1 when something was refused.
BEGIN { # families use what the public headers declare; the launcher lists them
    floors["examples"] = floors["launcher"]
    floors["launcher"] = floors["launcher"] " examples"
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
        if (floor_of(user) == floor_of(used))
            left[user] = left[used] = 1
    }
    num_refused += find_circle(edge, left, "what both use belongs into a file of its own")
    printf "%d uses, %d refused\n", num_uses, num_refused
    exit num_refused > 0 || num_uses == 0
}
