#include "launcher/planning/run_files.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/text.h"

#define MAX_US 1e15
#define MAX_LOAD 1e6
#define MAX_BYTES 1e18

static double number_of(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

static bool has(const cJSON *json, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(json, key) != NULL;
}

static bool is_within(double value, double least, double most)
{
    return value >= least && value <= most; /* no NaN is */
}

/* A whole number from 0 to below `end`; -1: none. */
static int index_of(const cJSON *json, const char *key, int end)
{
    const double value = number_of(json, key);
    return is_within(value, 0, end - 1) && value == floor(value) ? (int)value : -1;
}

/* The parsed file of a run; *out NULL: there is none. The caller deletes it. */
static weft_status parse_file(const char *run, const char *name, weft_arena *arena, cJSON **out)
{
    const char *path;
    char *text;
    size_t bytes;
    *out = NULL;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", run, name));
    if (access(path, F_OK) != 0)
        return WEFT_OK;
    WEFT_TRY(weft_file_read_text(path, arena, &text, &bytes));
    *out = cJSON_Parse(text);
    return *out ? WEFT_OK : WEFT_ERROR(WEFT_FILE, "%s: damaged: no JSON", path);
}

/* --- metrics.jsonl -------------------------------------------------------------------------- */

/* What is wrong with a line; NULL: nothing. Lines of evaluations say nothing of a step. */
static const char *take_line(const cJSON *json, weft_run_steps *s)
{
    const double ms = number_of(json, "step_ms"), step = number_of(json, "step");
    const double load = number_of(json, "rank_load_max_over_mean");
    const double expert_load = number_of(json, "expert_load_max_over_mean");
    if (!has(json, "step_ms") && has(json, "validation_loss"))
        return NULL;
    if (!is_within(step, 1, 1e15) || step != floor(step))
        return "step is no number of a step";
    if (!is_within(ms * 1e3, 1e-3, MAX_US))
        return "step_ms is no time of a step";
    if (has(json, "rank_load_max_over_mean") && !is_within(load, 0, MAX_LOAD))
        return "rank_load_max_over_mean is no load";
    if (has(json, "expert_load_max_over_mean") && !is_within(expert_load, 0, MAX_LOAD))
        return "expert_load_max_over_mean is no load";
    if (s->count > 0 && (int64_t)step <= s->numbers[s->count - 1])
        return "its step is not behind the one before it";
    s->numbers[s->count] = (int64_t)step;
    s->loads[s->count] = load > 0 ? load : 0;
    s->expert_loads[s->count] = expert_load > 0 ? expert_load : 0;
    s->ms[s->count++] = ms;
    return NULL;
}

weft_status weft_run_read_steps(const char *run, weft_arena *arena, weft_run_steps *out)
{
    const char *path;
    char *text, *rest = NULL;
    size_t bytes, lines = 1;
    void *memory;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/metrics.jsonl", run));
    WEFT_TRY(weft_file_read_text(path, arena, &text, &bytes));
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    *out = (weft_run_steps){0};
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->ms, &memory));
    out->ms = memory;
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->loads, &memory));
    out->loads = memory;
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->expert_loads, &memory));
    out->expert_loads = memory;
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->numbers, &memory));
    out->numbers = memory;
    const bool is_whole = bytes > 0 && text[bytes - 1] == '\n'; /* else a crash cut its last line */
    int number = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = cJSON_Parse(line);
        const bool is_cut = !json && !*rest && !is_whole;
        const char *wrong = is_cut ? NULL : json ? take_line(json, out) : "no JSON";
        number++;
        cJSON_Delete(json);
        if (wrong)
            return WEFT_ERROR(WEFT_FILE, "%s:%d: damaged: %s", path, number, wrong);
    }
    return out->count > 0 ? WEFT_OK : WEFT_ERROR(WEFT_FILE, "%s: damaged: no steps", path);
}

/* --- trace.json ----------------------------------------------------------------------------- */

/* What is wrong with an event that is a slice; NULL: nothing. */
static const char *take_slice(const cJSON *event, int world, weft_slice *out)
{
    const int rank = index_of(event, "pid", world), lane = index_of(event, "tid", 1000000);
    const double start = number_of(event, "ts"), us = number_of(event, "dur");
    const cJSON *category = cJSON_GetObjectItemCaseSensitive(event, "cat");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "name");
    if (rank < 0)
        return "pid is no rank of the run";
    if (lane < 0)
        return "tid is no lane";
    if (!is_within(start, 0, MAX_US))
        return "ts is no time";
    if (!is_within(us, 0, MAX_US))
        return "dur is no time";
    if (!cJSON_IsString(category) || !cJSON_IsString(name))
        return "it has no name or category";
    *out = (weft_slice){.rank = rank, .lane = lane, .start_us = start, .end_us = start + us};
    snprintf(out->name, sizeof out->name, "%s", name->valuestring);
    snprintf(out->category, sizeof out->category, "%s", category->valuestring);
    return NULL;
}

/* Events of other phases name the tracks. */
static weft_status take_events(const char *run, const cJSON *events, int world,
                               weft_run_timeline *out)
{
    const cJSON *event;
    int number = 0;
    cJSON_ArrayForEach(event, events)
    {
        const char *phase = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, "ph")),
                   *wrong = NULL;
        number++;
        if (!phase)
            wrong = "it has no phase";
        else if (strcmp(phase, "X") == 0)
            wrong = take_slice(event, world, &out->slices[out->count++]);
        if (wrong)
            return WEFT_ERROR(WEFT_FILE, "%s/trace.json: damaged: event %d: %s", run, number,
                              wrong);
    }
    return WEFT_OK;
}

weft_status weft_run_read_timeline(const char *run, int world, weft_arena *arena,
                                   weft_run_timeline *out)
{
    cJSON *json;
    void *memory;
    *out = (weft_run_timeline){0};
    WEFT_TRY(parse_file(run, "trace.json", arena, &json));
    if (!json)
        return WEFT_OK;
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(json, "traceEvents");
    weft_status status = cJSON_IsArray(events)
                             ? weft_arena_alloc_array(arena, (size_t)cJSON_GetArraySize(events),
                                                      sizeof *out->slices, &memory)
                             : WEFT_ERROR(WEFT_FILE, "%s/trace.json: damaged: no traceEvents", run);
    if (status == WEFT_OK) {
        out->slices = memory;
        status = take_events(run, events, world, out);
    }
    cJSON_Delete(json);
    return status;
}

/* --- memory.json ---------------------------------------------------------------------------- */

static bool take_load(const cJSON *rank, const char *key, weft_moe_load *out)
{
    const cJSON *load = cJSON_GetObjectItemCaseSensitive(rank, key);
    double *const to[] = {&out->rows, &out->sent, &out->part_rows, &out->part_sent};
    const char *const names[] = {"rows", "sent", "part_rows", "part_sent"};
    for (int i = 0; i < 4; i++) {
        *to[i] = number_of(load, names[i]);
        if (!is_within(*to[i], 0, MAX_LOAD))
            return false;
    }
    return true;
}

static weft_status take_rank(const char *run, const cJSON *json, const weft_mesh *mesh,
                             weft_run_rank *ranks)
{
    const int rank = index_of(json, "rank", mesh->world), stage = index_of(json, "stage", mesh->pp);
    const cJSON *used = cJSON_GetObjectItemCaseSensitive(json, "used");
    if (rank < 0 || !cJSON_IsObject(used))
        return WEFT_ERROR(WEFT_FILE,
                          "%s/memory.json: damaged: a rank without its number or its use", run);
    weft_run_rank *r = &ranks[rank];
    const int wanted = weft_mesh_coords(mesh, rank).at[WEFT_AXIS_PP];
    if (r->stage >= 0)
        return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: rank %d stands there twice", run,
                          rank);
    if (stage != wanted)
        return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: the stage of rank %d is not %d", run,
                          rank, wanted);
    r->stage = stage;
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++) {
        const char *name = weft_memory_text((weft_memory_purpose)i);
        if (!has(used, name))
            continue;
        r->used[i] = number_of(used, name);
        if (!is_within(r->used[i], 0, MAX_BYTES))
            return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: %s of rank %d is no volume", run,
                              name, rank);
    }
    r->has_loads = take_load(json, "load", &r->loads.passes) &&
                   take_load(json, "pinned_load", &r->loads.pinned) &&
                   take_load(json, "recomputed_load", &r->loads.recomputed) &&
                   take_load(json, "offloaded_load_0", &r->loads.offloaded[0]) &&
                   take_load(json, "offloaded_load_1", &r->loads.offloaded[1]) &&
                   take_load(json, "scratch_load", &r->loads.scratch);
    return WEFT_OK;
}

static weft_status take_ranks(const char *run, const cJSON *json, const weft_mesh *mesh,
                              weft_arena *arena, weft_run_rank **out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "ranks"), *rank;
    const char *unit = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "unit"));
    const int count = cJSON_GetArraySize(list);
    void *memory;
    if (!cJSON_IsArray(list) || count == 0)
        return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: no ranks", run);
    if (!unit || strcmp(unit, "bytes") != 0)
        return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: its unit is not bytes", run);
    if (count != mesh->world)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: a run of %s, the plan is of %d", run,
                          weft_count_text(count, "rank").text, mesh->world);
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)count, sizeof **out, &memory));
    *out = memory;
    for (int i = 0; i < count; i++)
        (*out)[i] = (weft_run_rank){.stage = -1};
    cJSON_ArrayForEach(rank, list) WEFT_TRY(take_rank(run, rank, mesh, *out));
    return WEFT_OK;
}

weft_status weft_run_read_memory(const char *run, const weft_mesh *mesh, weft_arena *arena,
                                 const weft_run_rank **out)
{
    cJSON *json;
    weft_run_rank *ranks = NULL;
    *out = NULL;
    WEFT_TRY(parse_file(run, "memory.json", arena, &json));
    if (!json)
        return WEFT_OK;
    weft_status status = take_ranks(run, json, mesh, arena, &ranks);
    cJSON_Delete(json);
    if (status == WEFT_OK)
        *out = ranks;
    return status;
}
