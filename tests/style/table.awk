# Which floor may use which: by an include (floors.awk) and by a call (calls.awk). The rooms of
# launcher/ are floors among themselves; its verbs stand above them.
BEGIN {
    floors["core"] = "core"
    floors["comm"] = "comm core"
    floors["kernels"] = "kernels core"
    floors["schedule"] = "schedule core"
    floors["parallel"] = "parallel core comm kernels"
    floors["layers"] = "layers core comm kernels schedule parallel"
    floors["launcher"] = "launcher core comm kernels schedule parallel layers"
    floors["examples"] = ""
    floors["bench"] = floors["tests"] = floors["launcher"] " bench tests"
    floors["tests"] = floors["tests"] " examples"

    floors["launcher/text"] = "launcher/text"
    floors["launcher/process"] = "launcher/process"
    floors["launcher/report"] = "launcher/report"
    below = "launcher/text launcher/process launcher/report launcher/planning"
    floors["launcher/planning"] = below
    floors["launcher/training"] = below " launcher/training"
    floors["launcher/measuring"] = below " launcher/measuring"
    floors["launcher/searching"] = below " launcher/searching"
    floors["launcher/page"] = below " launcher/searching launcher/page"
    floors["launcher/jobs"] = below " launcher/jobs"
    floors["launcher/verbs"] = below " launcher/training launcher/measuring launcher/searching"
    floors["launcher/verbs"] = floors["launcher/verbs"] " launcher/page launcher/jobs launcher/verbs"

    # The doors of rooms that have several.
    doors["layers/describe"] = "describe plain rehearse"
    doors["layers/moe"] = "moe options"
    doors["layers/outline"] = "outline footprint"
    doors["layers/pass"] = "pass note offload recompute runner"
    doors["layers/tier"] = "tier run"
    doors["schedule/exchange"] = "exchange paper"
    doors["schedule/experts"] = "experts placement"
    doors["schedule/moe"] = "layer choose"
    doors["schedule/pipeline"] = "pipeline order order_text"
}

function floor_of(path) {
    sub(/\/.*/, "", path)
    return path
}

# A file's room: of launcher/'s, or its whole floor.
function room_of(path) {
    if (path !~ /^launcher\//)
        return floor_of(path)
    if (!match(path, /^launcher\/[a-z_]+\//))
        return "launcher/verbs"
    return substr(path, 1, RLENGTH - 1)
}

# The names of the headers through which others enter the folder of a file.
function doors_of(path,    folder, parts, n) {
    folder = path
    sub(/\/[^\/]*$/, "", folder)
    if (folder in doors)
        return doors[folder]
    n = split(path, parts, "/")
    return parts[n - 1]
}

# Whether a header is a room's own: below a floor, and none of the room's doors. The rooms of
# launcher/ have no doors yet.
function is_inside(path,    parts, n) {
    n = split(path, parts, "/")
    sub(/\.h$/, "", parts[n])
    return n > 2 && path !~ /^(launcher|tests|include)\// && index(" " doors_of(path) " ", " " parts[n] " ") == 0
}

function may_include(floor, other) {
    return index(" " floors[floor] " ", " " other " ") > 0
}
