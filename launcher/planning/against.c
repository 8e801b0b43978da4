#include "launcher/planning/against.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "launcher/planning/measured_time.h"
#include "launcher/planning/run_changes.h"

enum { MAX_PHASES = 12, MIN_WARM_UP = 2 };

double weft_against_error(double planned, double measured)
{
    return measured > 0 ? planned / measured - 1 : (double)NAN;
}

weft_status weft_against_check(const weft_config *config, const weft_config_source *source,
                               const char *run, weft_arena *arena)
{
    weft_config_source had = {.application = source->application};
    weft_config of_run;
    const char *difference;
    WEFT_TRY(weft_arena_printf(arena, &had.file, "%s/config.json", run));
    WEFT_TRY(weft_config_load(&had, arena, &of_run));
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
    return WEFT_OK;
}

/* --- steps ---------------------------------------------------------------------------------- */

typedef struct steps {
    double *ms; /* of each step */
    double *loads;
    int count;
    int64_t *numbers;
} steps;

static double number_of(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

static weft_status read_steps(const char *run, weft_arena *arena, steps *out)
{
    const char *path;
    char *text, *rest = NULL;
    size_t bytes, lines = 1;
    void *memory;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/metrics.jsonl", run));
    WEFT_TRY(weft_file_read_text(path, arena, &text, &bytes));
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->ms, &memory));
    out->ms = memory;
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->loads, &memory));
    out->loads = memory;
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->numbers, &memory));
    out->numbers = memory;
    const bool is_whole = bytes > 0 && text[bytes - 1] == '\n'; /* else a crash cut its last line */
    int number = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = cJSON_Parse(line);
        number++;
        if (!json && (*rest || is_whole))
            return WEFT_ERROR(WEFT_FILE, "%s:%d: damaged: no JSON", path, number);
        const double ms = number_of(json, "step_ms"), step = number_of(json, "step");
        const double load = number_of(json, "rank_load_max_over_mean");
        cJSON_Delete(json);
        if (ms > 0 && step >= 1 && step < 1e15) { /* not so in lines of evaluations */
            out->numbers[out->count] = (int64_t)step;
            out->loads[out->count] = load > 0 ? load : 0;
            out->ms[out->count++] = ms;
        }
    }
    return WEFT_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int count, double share)
{
    const double at = share * (count - 1);
    const int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

/* Rises; of those that are no warm-up. */
static weft_status sort_counted(const char *run, const double *values, int count, weft_arena *arena,
                                double **out, int *out_count)
{
    const int warm_up = count / 10 > MIN_WARM_UP ? count / 10 : MIN_WARM_UP;
    void *memory;
    *out_count = count - warm_up;
    if (*out_count < 1)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: %d steps; the first %d are warm-up", run,
                          count, MIN_WARM_UP);
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)*out_count, sizeof(double), &memory));
    *out = memory;
    memcpy(*out, values + warm_up, (size_t)*out_count * sizeof **out);
    qsort(*out, (size_t)*out_count, sizeof **out, by_value);
    return WEFT_OK;
}

static weft_status find_median(const steps *s, weft_arena *arena, weft_against *out)
{
    double *sorted;
    WEFT_TRY(sort_counted(out->run, s->ms, s->count, arena, &sorted, &out->num_steps));
    const double median = quantile(sorted, out->num_steps, 0.5);
    out->measured_us = 1e3 * median;
    out->spread =
        (quantile(sorted, out->num_steps, 0.75) - quantile(sorted, out->num_steps, 0.25)) / median;
    return WEFT_OK;
}

weft_status weft_against_load(const char *run, weft_arena *arena, double *out)
{
    steps s = {0};
    double *sorted;
    int count;
    WEFT_TRY(read_steps(run, arena, &s));
    WEFT_TRY(sort_counted(run, s.loads, s.count, arena, &sorted, &count));
    *out = quantile(sorted, count, 0.5);
    return WEFT_OK;
}

/* --- the traced step ------------------------------------------------------------------------ */

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

typedef struct timeline {
    weft_slice *rows;
    size_t count;
} timeline;

static bool read_slice(const cJSON *event, int world, weft_slice *out)
{
    const double rank = number_of(event, "pid"), lane = number_of(event, "tid");
    const double start = number_of(event, "ts"), us = number_of(event, "dur");
    const cJSON *category = cJSON_GetObjectItemCaseSensitive(event, "cat");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "name");
    if (!(rank >= 0 && rank < world && lane >= 0 && lane < 1e6 && us >= 0 && isfinite(start)) ||
        !cJSON_IsString(category) || !cJSON_IsString(name))
        return false;
    *out =
        (weft_slice){.rank = (int)rank, .lane = (int)lane, .start_us = start, .end_us = start + us};
    snprintf(out->name, sizeof out->name, "%s", name->valuestring);
    snprintf(out->category, sizeof out->category, "%s", category->valuestring);
    return true;
}

/* Of all traced ranks; none where the run kept no timeline. */
static weft_status read_slices(const char *run, int world, weft_arena *arena, timeline *out)
{
    const cJSON *event;
    cJSON *json;
    void *memory;
    *out = (timeline){0};
    WEFT_TRY(parse_file(run, "trace.json", arena, &json));
    if (!json)
        return WEFT_OK;
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(json, "traceEvents");
    weft_status status = cJSON_IsArray(events)
                             ? weft_arena_alloc_array(arena, (size_t)cJSON_GetArraySize(events),
                                                      sizeof *out->rows, &memory)
                             : WEFT_ERROR(WEFT_FILE, "%s/trace.json: damaged: no traceEvents", run);
    if (status == WEFT_OK) {
        out->rows = memory;
        cJSON_ArrayForEach(event, events) out->count +=
            read_slice(event, world, &out->rows[out->count]);
    }
    cJSON_Delete(json);
    return status;
}

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
static weft_status sum_phases(const timeline *run, const weft_plan *plan, const weft_trace *planned,
                              phases *p, int *out_ranks)
{
    weft_against_row *row;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(p->arena, (size_t)plan->mesh.world, sizeof(bool), &memory));
    bool *seen = memory;
    for (size_t i = 0; i < run->count; i++) {
        const weft_slice *slice = &run->rows[i];
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
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, WEFT_NUM_TIMES, sizeof(weft_against_row), &memory));
    weft_against_row *rows = memory;
    for (int i = 0; i < WEFT_NUM_TIMES; i++)
        rows[i] =
            (weft_against_row){weft_time_text(i), -1, time->planned_us[i], time->measured_us[i]};
    out->times = rows;
    out->num_times = WEFT_NUM_TIMES;
    return WEFT_OK;
}

static weft_status read_traced(const steps *s, int64_t traced_step, const weft_plan *plan,
                               const weft_trace *planned, weft_arena *arena, weft_against *out)
{
    double traced_us = out->measured_us;
    phases p = {.arena = arena};
    int num_ranks = 0;
    timeline run;
    weft_measured_time time;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, MAX_PHASES, sizeof *p.rows, &memory));
    p.rows = memory;
    for (int i = 0; i < s->count; i++)
        if (s->numbers[i] == traced_step)
            traced_us = 1e3 * s->ms[i];
    WEFT_TRY(read_slices(out->run, plan->mesh.world, arena, &run));
    if (run.count == 0)
        return WEFT_OK;
    WEFT_TRY(sum_phases(&run, plan, planned, &p, &num_ranks));
    WEFT_TRY(finish_phases(&p, num_ranks, traced_us, out));
    WEFT_TRY(weft_measured_time_of(plan, run.rows, run.count, traced_us, arena, &time));
    return list_times(&time, arena, out);
}

static weft_status find_traced_step(const char *run, weft_arena *arena, int64_t *out)
{
    cJSON *json;
    WEFT_TRY(parse_file(run, "config.json", arena, &json));
    const double step = number_of(cJSON_GetObjectItemCaseSensitive(json, "log"), "trace_step");
    cJSON_Delete(json);
    *out = step >= 1 && step < 1e15 ? (int64_t)step : 0;
    return WEFT_OK;
}

/* --- bytes ---------------------------------------------------------------------------------- */

static weft_status take_rank(const cJSON *rank, int num_stages, weft_against_row *rows)
{
    const double stage = number_of(rank, "stage");
    const cJSON *used = cJSON_GetObjectItemCaseSensitive(rank, "used");
    if (!(stage >= 0 && stage < num_stages) || !cJSON_IsObject(used))
        return WEFT_ERROR(WEFT_FILE, "memory.json: damaged: a rank without its stage or its use");
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++) {
        weft_against_row *row = &rows[(int)stage * WEFT_NUM_MEMORY_PURPOSES + i];
        row->measured = fmax(row->measured, number_of(used, row->name));
    }
    return WEFT_OK;
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

static double used_for(const cJSON *rank, weft_memory_purpose purpose)
{
    const cJSON *used = cJSON_GetObjectItemCaseSensitive(rank, "used");
    return number_of(used, weft_memory_text(purpose));
}

/* The load of the stage's rank that took most for a purpose; false: the run has none. */
static bool find_load(const cJSON *ranks, int stage, weft_memory_purpose purpose, const char *key,
                      weft_moe_load *out)
{
    const cJSON *rank, *fullest = NULL;
    cJSON_ArrayForEach(rank, ranks)
    {
        if (number_of(rank, "stage") == stage &&
            (!fullest || used_for(rank, purpose) > used_for(fullest, purpose)))
            fullest = rank;
    }
    const cJSON *load = cJSON_GetObjectItemCaseSensitive(fullest, key);
    double *const to[] = {&out->rows, &out->sent, &out->part_rows, &out->part_sent};
    const char *const names[] = {"rows", "sent", "part_rows", "part_sent"};
    for (int i = 0; i < 4; i++) {
        *to[i] = number_of(load, names[i]);
        if (!(*to[i] >= 0 && *to[i] < 1e6))
            return false;
    }
    return true;
}

/* At the loads of experts at which the run's ranks took most. */
static weft_status plan_at_loads(const weft_config *config, const weft_plan *plan,
                                 const cJSON *ranks, weft_against_row *rows)
{
    for (int s = 0; s < plan->num_stages; s++) {
        weft_moe_load passes, scratch;
        weft_footprint footprint;
        if (!find_load(ranks, s, WEFT_MEMORY_ACTIVATIONS, "load", &passes) ||
            !find_load(ranks, s, WEFT_MEMORY_SCRATCH, "scratch_load", &scratch))
            continue;
        WEFT_TRY(weft_step_footprint_at(config, &plan->mesh, &plan->step, s,
                                        &plan->step.programs[s], &passes, &scratch, &footprint));
        for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
            rows[s * WEFT_NUM_MEMORY_PURPOSES + i].planned = (double)footprint.bytes[i];
    }
    return WEFT_OK;
}

static weft_status read_purposes(const weft_config *config, const weft_plan *plan,
                                 weft_arena *arena, weft_against *out)
{
    const int count = plan->num_stages * WEFT_NUM_MEMORY_PURPOSES;
    const cJSON *rank;
    cJSON *json;
    void *memory;
    WEFT_TRY(parse_file(out->run, "memory.json", arena, &json));
    if (!json)
        return WEFT_OK;
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(json, "ranks");
    const int num_ranks = cJSON_GetArraySize(ranks);
    weft_status status =
        num_ranks == 0 ? WEFT_ERROR(WEFT_FILE, "%s/memory.json: damaged: no ranks", out->run)
        : num_ranks == plan->mesh.world
            ? weft_arena_alloc_array(arena, (size_t)count, sizeof(weft_against_row), &memory)
            : WEFT_ERROR(WEFT_CONFIG, "--against %s: a run of %d ranks, the plan is of %d",
                         out->run, num_ranks, plan->mesh.world);
    if (status == WEFT_OK) {
        weft_against_row *rows = memory;
        for (int i = 0; i < count; i++) {
            const int stage = i / WEFT_NUM_MEMORY_PURPOSES, purpose = i % WEFT_NUM_MEMORY_PURPOSES;
            rows[i] =
                (weft_against_row){.name = weft_memory_text((weft_memory_purpose)purpose),
                                   .stage = stage,
                                   .planned = (double)plan->stages[stage].footprint.bytes[purpose]};
        }
        for (rank = ranks->child; rank && status == WEFT_OK; rank = rank->next)
            status = take_rank(rank, plan->num_stages, rows);
        if (status == WEFT_OK)
            status = plan_at_loads(config, plan, ranks, rows);
        if (status == WEFT_OK)
            status = check_weights(out, plan->num_stages, rows);
        out->purposes = rows;
        out->num_purposes = count;
    }
    cJSON_Delete(json);
    return status;
}

weft_status weft_against_read(const char *run, const weft_config *config, const weft_plan *plan,
                              const weft_trace *planned, weft_arena *arena, weft_against *out)
{
    steps s = {0};
    int64_t traced_step = 0;
    *out = (weft_against){
        .run = run, .planned_us = plan->step_us, .load = plan->step.outline.shape.moe_load};
    WEFT_TRY(read_steps(run, arena, &s));
    WEFT_TRY(find_median(&s, arena, out));
    WEFT_TRY(find_traced_step(run, arena, &traced_step));
    WEFT_TRY(read_traced(&s, traced_step, plan, planned, arena, out));
    return read_purposes(config, plan, arena, out);
}
