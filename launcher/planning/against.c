#include "launcher/planning/against.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/log.h"
#include "core/sorted.h"
#include "core/text.h"
#include "launcher/planning/run_changes.h"
#include "layers/outline/footprint.h"
#include "parallel/mesh/mesh.h"

/* What a run's folder says of its steps, its timeline and its memory. Reads, and checks all that is
 * read: damage is WEFT_FILE, with the file's path and what is wrong. Everything lives in the
 * arena. */

/* Of metrics.jsonl, in order; at least one. */
typedef struct run_steps {
    int64_t *numbers; /* rising */
    double *ms;
    double *loads;        /* rows at the fullest rank's experts over the mean; 0: none */
    double *expert_loads; /* rows of the fullest expert over the mean; 0: none */
    int count;
} run_steps;

/* Of trace.json, of all traced ranks; none where the run kept no timeline, or one of another mesh.
 */
typedef struct run_timeline {
    weft_slice *slices;
    size_t count;
} run_timeline;

/* What one rank took, of memory.json. */
typedef struct run_rank {
    int stage;
    double used[WEFT_NUM_MEMORY_PURPOSES]; /* bytes */
    weft_moe_held_loads loads;             /* at which its memory took most */
    bool has_loads;
} run_rank;

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
static const char *take_line(const cJSON *json, run_steps *s)
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

static weft_status run_read_steps(const char *run, weft_arena *arena, run_steps *out)
{
    const char *path;
    char *text, *rest = NULL;
    size_t bytes, lines = 1;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/metrics.jsonl", run));
    WEFT_TRY(weft_file_read_text(path, arena, &text, &bytes));
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    *out = (run_steps){0};
    WEFT_TRY(WEFT_ARRAY(arena, lines, &out->ms));
    WEFT_TRY(WEFT_ARRAY(arena, lines, &out->loads));
    WEFT_TRY(WEFT_ARRAY(arena, lines, &out->expert_loads));
    WEFT_TRY(WEFT_ARRAY(arena, lines, &out->numbers));
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
static weft_status take_events(const char *run, const cJSON *events, int world, run_timeline *out)
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

/* A run that went on with another mesh may have the timeline of an earlier start, which nothing
 * can be laid beside. */
static bool is_of_mesh(const char *run, const cJSON *json, const weft_mesh *mesh)
{
    const cJSON *of = cJSON_GetObjectItemCaseSensitive(json, "otherData");
    const char *had = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(of, "mesh")),
               *start = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(of, "start"));
    char axes[128];
    weft_mesh_print(mesh, axes, sizeof axes);
    if (!had || strcmp(had, axes) == 0)
        return true;
    weft_log(WEFT_LOG_WARN, "%s/trace.json: of start %s, whose mesh was another (%s): left out",
             run, start ? start : "?", had);
    return false;
}

static weft_status run_read_timeline(const char *run, const weft_mesh *mesh, weft_arena *arena,
                                     run_timeline *out)
{
    cJSON *json;
    *out = (run_timeline){0};
    WEFT_TRY(parse_file(run, "trace.json", arena, &json));
    if (!json || !is_of_mesh(run, json, mesh)) {
        cJSON_Delete(json);
        return WEFT_OK;
    }
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(json, "traceEvents");
    weft_status status = cJSON_IsArray(events)
                             ? WEFT_ARRAY(arena, (size_t)cJSON_GetArraySize(events), &out->slices)
                             : WEFT_ERROR(WEFT_FILE, "%s/trace.json: damaged: no traceEvents", run);
    if (status == WEFT_OK)
        status = take_events(run, events, mesh->world, out);
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

/* Of runs before there was one, the use before it; before layers were told, -1. */
static bool take_scratch_loads(const cJSON *rank, weft_moe_held_loads *out)
{
    static const char *const names[WEFT_NUM_SCRATCH_USES] = {
        [WEFT_SCRATCH_FORWARD] = "scratch_load",
        [WEFT_SCRATCH_BACKWARD] = "backward_scratch_load",
        [WEFT_SCRATCH_LEAVING] = "leaving_scratch_load",
        [WEFT_SCRATCH_LEFT] = "left_scratch_load"};
    const char *name = names[0];
    for (int i = 0; i < WEFT_NUM_SCRATCH_USES; i++) {
        name = has(rank, names[i]) ? names[i] : name;
        if (!take_load(rank, name, &out->scratch[i]))
            return false;
        out->scratch_layer[i] =
            index_of(cJSON_GetObjectItemCaseSensitive(rank, name), "layer", INT_MAX);
    }
    return true;
}

static weft_status take_rank(const char *run, const cJSON *json, const weft_mesh *mesh,
                             run_rank *ranks)
{
    const int rank = index_of(json, "rank", mesh->world), stage = index_of(json, "stage", mesh->pp);
    const cJSON *used = cJSON_GetObjectItemCaseSensitive(json, "used");
    if (rank < 0 || !cJSON_IsObject(used))
        return WEFT_ERROR(WEFT_FILE,
                          "%s/memory.json: damaged: a rank without its number or its use", run);
    run_rank *r = &ranks[rank];
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
                   (!has(json, "deferred_load") || /* of runs before there were such */
                    take_load(json, "deferred_load", &r->loads.deferred)) &&
                   take_load(json, "offloaded_load_0", &r->loads.offloaded[0]) &&
                   take_load(json, "offloaded_load_1", &r->loads.offloaded[1]) &&
                   take_scratch_loads(json, &r->loads);
    return WEFT_OK;
}

static weft_status take_ranks(const char *run, const cJSON *json, const weft_mesh *mesh,
                              weft_arena *arena, run_rank **out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "ranks"), *rank;
    const char *unit = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "unit"));
    const int count = cJSON_GetArraySize(list);
    if (!cJSON_IsArray(list) || count == 0)
        return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: no ranks", run);
    if (!unit || strcmp(unit, "bytes") != 0)
        return WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: its unit is not bytes", run);
    if (count != mesh->world)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: a run of %s, the plan is of %d", run,
                          weft_count_text(count, "rank").text, mesh->world);
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)count, out));
    for (int i = 0; i < count; i++)
        (*out)[i] = (run_rank){.stage = -1};
    cJSON_ArrayForEach(rank, list) WEFT_TRY(take_rank(run, rank, mesh, *out));
    return WEFT_OK;
}

/* *out: [mesh->world], by rank; NULL: the run wrote no memory.json. WEFT_CONFIG: it is of another
 * number of ranks. */
static weft_status run_read_memory(const char *run, const weft_mesh *mesh, weft_arena *arena,
                                   const run_rank **out)
{
    cJSON *json;
    run_rank *ranks = NULL;
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

enum { MAX_PHASES = 12, MIN_WARM_UP = 2 };

double weft_against_error(double planned, double measured)
{
    return measured > 0 ? planned / measured - 1 : (double)NAN;
}

weft_status weft_against_check(const weft_config *config, const weft_config_source *source,
                               const char *run, weft_arena *arena, weft_config *out)
{
    weft_config_source had = {.application = source->application};
    weft_config of_run;
    const char *difference;
    if (access(run, F_OK) != 0)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: %s", run, strerror(errno));
    WEFT_TRY(weft_arena_printf(arena, &had.file, "%s/config.json", run));
    weft_status load = weft_config_load(&had, arena, &of_run);
    if (load == WEFT_CONFIG) /* training wrote it */
        return WEFT_ERROR(WEFT_FILE, "%s: damaged, or of another program", weft_error_get()->text);
    WEFT_TRY(load);
    weft_run_fill_dp(run, &of_run);
    const weft_tier_options ran = weft_tier_as_ran(&of_run.tier);
    if (!weft_tier_is_left_open(&config->tier))
        of_run.tier = ran;
    WEFT_TRY(weft_run_step_changes(&of_run, config, arena, &difference));
    if (difference)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: its step is another: %s", run, difference);
    weft_mesh meshes[2];
    char axes[2][128];
    WEFT_TRY(weft_config_mesh(&of_run, &had, 0, &meshes[0]));
    WEFT_TRY(weft_config_mesh(config, source, 0, &meshes[1]));
    for (int i = 0; i < 2; i++)
        weft_mesh_print(&meshes[i], axes[i], sizeof axes[i]);
    if (strcmp(axes[0], axes[1]) != 0)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: its mesh is another: %s -> %s", run, axes[0],
                          axes[1]);
    *out = of_run;
    out->tier = ran;
    return WEFT_OK;
}

/* --- steps ---------------------------------------------------------------------------------- */

/* Rises; of those that are no warm-up. */
static weft_status sort_counted(const char *run, const double *values, int count, weft_arena *arena,
                                double **out, int *out_count)
{
    const int warm_up = count / 10 > MIN_WARM_UP ? count / 10 : MIN_WARM_UP;
    *out_count = count - warm_up;
    if (*out_count < 1)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: %s; the first %d are warm-up", run,
                          weft_count_text(count, "step").text, MIN_WARM_UP);
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)*out_count, out));
    memcpy(*out, values + warm_up, (size_t)*out_count * sizeof **out);
    weft_sort(*out, *out_count);
    return WEFT_OK;
}

static weft_status find_median(const run_steps *s, weft_arena *arena, weft_against *out)
{
    double *sorted;
    WEFT_TRY(sort_counted(out->run, s->ms, s->count, arena, &sorted, &out->num_steps));
    const double median = weft_quantile(sorted, out->num_steps, 0.5);
    out->measured_us = 1e3 * median;
    out->low_us = 1e3 * weft_quantile(sorted, out->num_steps, 0.25);
    out->high_us = 1e3 * weft_quantile(sorted, out->num_steps, 0.75);
    out->spread = (out->high_us - out->low_us) / out->measured_us;
    return WEFT_OK;
}

weft_status weft_against_load(const char *run, weft_arena *arena, weft_config *config)
{
    run_steps s;
    double *sorted;
    int count;
    WEFT_TRY(run_read_steps(run, arena, &s));
    WEFT_TRY(sort_counted(run, s.loads, s.count, arena, &sorted, &count));
    config->moe_load = weft_quantile(sorted, count, 0.5);
    WEFT_TRY(sort_counted(run, s.expert_loads, s.count, arena, &sorted, &count));
    config->moe_expert_load = weft_quantile(sorted, count, 0.5);
    return WEFT_OK;
}

/* --- the traced step ------------------------------------------------------------------------ */

typedef struct phases {
    weft_against_row *rows; /* [MAX_PHASES] */
    int count;
    weft_arena *arena;
} phases;

static weft_status find_phase(phases *p, const char *name, weft_against_row **out)
{
    const char *kept;
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->rows[i].name, name) == 0) {
            *out = &p->rows[i];
            return WEFT_OK;
        }
    if (p->count == MAX_PHASES)
        return WEFT_ERROR(WEFT_FILE, "trace.json: damaged: more kinds of tasks than a step has");
    WEFT_TRY(weft_arena_strdup(p->arena, name, &kept));
    p->rows[p->count] = (weft_against_row){.name = kept, .stage = -1};
    *out = &p->rows[p->count++];
    return WEFT_OK;
}

static weft_status add_planned(phases *p, const weft_trace *planned, int stage)
{
    const weft_slice *slices = weft_trace_slices(planned);
    weft_against_row *row;
    for (size_t i = 0; i < weft_trace_count(planned); i++)
        if (slices[i].rank == stage && slices[i].lane == WEFT_LANE_COMPUTE) {
            WEFT_TRY(find_phase(p, slices[i].category, &row));
            row->planned += slices[i].end_us - slices[i].start_us;
        }
    return WEFT_OK;
}

/* Sums over the traced ranks, each beside its stage's plan; how many they are. */
static weft_status sum_phases(const run_timeline *run, const weft_plan *plan,
                              const weft_trace *planned, phases *p, int *out_ranks)
{
    weft_against_row *row;
    bool *seen;
    WEFT_TRY(WEFT_ARRAY(p->arena, (size_t)plan->mesh.world, &seen));
    for (size_t i = 0; i < run->count; i++) {
        const weft_slice *slice = &run->slices[i];
        if (slice->lane != WEFT_LANE_COMPUTE)
            continue;
        WEFT_TRY(find_phase(p, slice->category, &row));
        row->measured += slice->end_us - slice->start_us;
        if (seen[slice->rank])
            continue;
        seen[slice->rank] = true;
        ++*out_ranks;
        WEFT_TRY(
            add_planned(p, planned, weft_mesh_coords(&plan->mesh, slice->rank).at[WEFT_AXIS_PP]));
    }
    return WEFT_OK;
}

/* Means over the ranks, and what is left of the step. */
static weft_status finish_phases(phases *p, int num_ranks, double traced_us, weft_against *out)
{
    double busy_planned = 0, busy_measured = 0;
    weft_against_row *row;
    for (int i = 0; i < p->count; i++) {
        p->rows[i].planned /= num_ranks;
        p->rows[i].measured /= num_ranks;
        busy_planned += p->rows[i].planned;
        busy_measured += p->rows[i].measured;
    }
    WEFT_TRY(find_phase(p, "idle", &row));
    row->planned = fmax(0, out->planned_us - busy_planned);
    row->measured = fmax(0, traced_us - busy_measured);
    out->phases = p->rows;
    out->num_phases = p->count;
    return WEFT_OK;
}

static weft_status list_times(const weft_measured_time *time, weft_arena *arena, weft_against *out)
{
    weft_against_row *rows;
    WEFT_TRY(WEFT_ARRAY(arena, WEFT_NUM_TIMES, &rows));
    for (int i = 0; i < WEFT_NUM_TIMES; i++)
        rows[i] =
            (weft_against_row){weft_time_texts[i], -1, time->planned_us[i], time->measured_us[i]};
    out->times = rows;
    out->num_times = WEFT_NUM_TIMES;
    return WEFT_OK;
}

static weft_status read_traced(const run_steps *s, int64_t traced_step, const weft_plan *plan,
                               const weft_trace *planned, weft_arena *arena, weft_against *out)
{
    double traced_us = out->measured_us;
    phases p = {.arena = arena};
    int num_ranks = 0;
    run_timeline run;
    weft_measured_time time;
    WEFT_TRY(WEFT_ARRAY(arena, MAX_PHASES, &p.rows));
    for (int i = 0; i < s->count; i++)
        if (s->numbers[i] == traced_step)
            traced_us = 1e3 * s->ms[i];
    WEFT_TRY(run_read_timeline(out->run, &plan->mesh, arena, &run));
    if (run.count == 0)
        return WEFT_OK;
    WEFT_TRY(sum_phases(&run, plan, planned, &p, &num_ranks));
    weft_status status =
        weft_measured_time_of(plan, run.slices, run.count, traced_us, arena, &time);
    if (status == WEFT_CONFIG)
        return weft_error_context(status, "--against %s", out->run);
    WEFT_TRY(status);
    out->traced_step = traced_step;
    out->traced_us = time.step_us;
    WEFT_TRY(finish_phases(&p, num_ranks, time.step_us, out));
    return list_times(&time, arena, out);
}

/* --- bytes ---------------------------------------------------------------------------------- */

/* The rank of a stage that took most for a purpose. */
static const run_rank *fullest_of(const run_rank *ranks, int world, int stage,
                                  weft_memory_purpose purpose)
{
    const run_rank *fullest = NULL;
    for (int r = 0; r < world; r++)
        if (ranks[r].stage == stage &&
            (!fullest || ranks[r].used[purpose] > fullest->used[purpose]))
            fullest = &ranks[r];
    return fullest;
}

/* A program's own layers do not show in its config, but in what its weights take. */
static weft_status check_weights(const weft_against *against, int num_stages,
                                 const weft_against_row *rows)
{
    for (int s = 0; s < num_stages; s++) {
        const weft_against_row *row = &rows[s * WEFT_NUM_MEMORY_PURPOSES + WEFT_MEMORY_WEIGHTS];
        if (row->measured > 0 && fabs(row->planned / row->measured - 1) > 1e-3)
            return WEFT_ERROR(WEFT_CONFIG,
                              "--against %s: its model is another: the weights of stage %d take "
                              "%.0f bytes, the plan's %.0f",
                              against->run, s, row->measured, row->planned);
    }
    return WEFT_OK;
}

/* A purpose's bytes on the rank of a stage that took most for it, planned at the loads of experts
 * that this rank had. */
static weft_status take_purpose(const weft_config *config, const weft_plan *plan,
                                const run_rank *ranks, int stage, weft_memory_purpose purpose,
                                weft_against_row *out)
{
    const run_rank *fullest = fullest_of(ranks, plan->mesh.world, stage, purpose);
    weft_footprint at = plan->stages[stage].footprint;
    if (fullest->has_loads)
        WEFT_TRY(weft_step_footprint_at(config, &plan->mesh, &plan->step, stage,
                                        &plan->step.programs[stage], &fullest->loads, &at));
    *out = (weft_against_row){.name = weft_memory_text(purpose),
                              .stage = stage,
                              .planned = purpose == WEFT_MEMORY_STAGING ? (double)NAN
                                                                        : (double)at.bytes[purpose],
                              .measured = fullest->used[purpose]};
    return WEFT_OK;
}

static weft_status read_purposes(const weft_config *config, const weft_plan *plan,
                                 weft_arena *arena, weft_against *out)
{
    const int count = plan->num_stages * WEFT_NUM_MEMORY_PURPOSES;
    const run_rank *ranks;
    WEFT_TRY(run_read_memory(out->run, &plan->mesh, arena, &ranks));
    if (!ranks)
        return WEFT_OK;
    weft_against_row *rows;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)count, &rows));
    for (int i = 0; i < count; i++)
        WEFT_TRY(take_purpose(config, plan, ranks, i / WEFT_NUM_MEMORY_PURPOSES,
                              (weft_memory_purpose)(i % WEFT_NUM_MEMORY_PURPOSES), &rows[i]));
    out->purposes = rows;
    out->num_purposes = count;
    return check_weights(out, plan->num_stages, rows);
}

weft_status weft_against_read(const char *run, const weft_config *of_run, const weft_config *config,
                              const weft_plan *plan, const weft_trace *planned, weft_arena *arena,
                              weft_against *out)
{
    run_steps s;
    if (of_run->train.rampup_batch_size.count > 0)
        return WEFT_KEY_ERROR("train.rampup_batch_size",
                              "the steps of %s had several sizes, a plan is of one", run);
    *out = (weft_against){
        .run = run, .planned_us = plan->step_us, .load = plan->step.outline.shape.moe_load};
    WEFT_TRY(run_read_steps(run, arena, &s));
    WEFT_TRY(find_median(&s, arena, out));
    WEFT_TRY(read_traced(&s, of_run->log.trace_step, plan, planned, arena, out));
    return read_purposes(config, plan, arena, out);
}
