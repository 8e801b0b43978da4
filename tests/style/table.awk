# Which floor may use which: by an include (floors.awk) and by a call (calls.awk). The rooms of
# launcher/ are floors among themselves; its verbs stand above them, and main above all.
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
    floors["launcher/arguments"] = below " launcher/arguments"
    floors["launcher/training"] = below " launcher/arguments launcher/training"
    floors["launcher/models"] = "launcher/text launcher/report launcher/planning launcher/models"
    floors["launcher/measuring"] = below " launcher/measuring"
    floors["launcher/searching"] = below " launcher/searching"
    floors["launcher/page"] = below " launcher/searching launcher/page"
    floors["launcher/jobs"] = below " launcher/jobs"
    below = below " launcher/arguments"
    floors["launcher/verbs/plan"] = below " launcher/searching launcher/page launcher/jobs" \
        " launcher/verbs/plan"
    floors["launcher/verbs/train"] = below " launcher/training launcher/models" \
        " launcher/verbs/train"
    floors["launcher/verbs/measure"] = below " launcher/training launcher/measuring" \
        " launcher/verbs/measure"
    floors["launcher/main"] = below " launcher/training launcher/verbs/plan launcher/verbs/train"
    floors["launcher/main"] = floors["launcher/main"] " launcher/verbs/measure launcher/main"

    # The doors of rooms that have several, or one of another name.
    doors["launcher/text"] = "chat input json_lines known tokenizer"
    doors["launcher/arguments"] = "arguments rows"
    doors["launcher/process"] = "launch output stop"
    doors["launcher/planning"] = "config data_sources families figures layer_price levels mesh_choice moe_choice" \
        " pass_price places plan plan_print ramp run_changes sharding_price software" \
        " step step_price tier_choice tier_price"
    doors["launcher/searching"] = "expand search what_if"
    doors["launcher/training"] = "ledger metrics progress run_folder setup start train trainer"
    doors["launcher/models"] = "models safetensors"
    doors["launcher/measuring"] = "bench bench_moe calibrate import measure nodes own"
    doors["layers/describe"] = "describe plain rehearse"
    doors["layers/moe"] = "moe options"
    doors["layers/outline"] = "outline footprint"
    doors["layers/tensor"] = "ordered tensor"
    doors["layers/pass"] = "pass note offload parts recompute"
    doors["layers/tier"] = "tier run"
    doors["schedule/exchange"] = "exchange paper"
    doors["schedule/experts"] = "experts placement"
    doors["schedule/moe"] = "layer choose inside"
    doors["schedule/pipeline"] = "pipeline order order_auto order_text"
}

function floor_of(path) {
    sub(/\/.*/, "", path)
    return path
}

# A file's room: of launcher/'s, or its whole floor.
function room_of(path) {
    if (path !~ /^launcher\//)
        return floor_of(path)
    if (match(path, /^launcher\/(verbs\/)?[a-z_]+\//))
        return substr(path, 1, RLENGTH - 1)
    return "launcher/main"
}

# The names of the headers through which others enter the folder of a file.
function doors_of(path,    folder, parts, n) {
    folder = path
    sub(/\/[^\/]*$/, "", folder)
    if (folder in doors)
        return doors[folder]
    if (room_of(path) in doors)
        return doors[room_of(path)]
    n = split(path, parts, "/")
    return parts[n - 1]
}

# Whether a header is a room's own: below a floor, and none of the room's doors.
function is_inside(path,    parts, n) {
    n = split(path, parts, "/")
    sub(/\.h$/, "", parts[n])
    return n > 2 && path !~ /^(tests|include)\// && index(" " doors_of(path) " ", " " parts[n] " ") == 0
}

function may_include(floor, other) {
    return index(" " floors[floor] " ", " " other " ") > 0
}
