#include "launcher/planning/against.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"
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
    WEFT_TRY(weft_arena_alloc_array(arena, lines, sizeof *out->numbers, &memory));
    out->numbers = memory;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = cJSON_Parse(line);
        const double ms = number_of(json, "step_ms"), step = number_of(json, "step");
        cJSON_Delete(json);
        if (ms > 0 && step >= 1 && step < 1e15) { /* not so in lines of evaluations */
            out->numbers[out->count] = (int64_t)step;
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

static weft_status find_median(const steps *s, weft_arena *arena, weft_against *out)
{
    const int warm_up = s->count / 10 > MIN_WARM_UP ? s->count / 10 : MIN_WARM_UP;
    void *memory;
    out->num_steps = s->count - warm_up;
    if (out->num_steps < 1)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: %d steps; the first %d are warm-up", out->run,
                          s->count, MIN_WARM_UP);
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)out->num_steps, sizeof(double), &memory));
    double *sorted = memory;
    memcpy(sorted, s->ms + warm_up, (size_t)out->num_steps * sizeof *sorted);
    qsort(sorted, (size_t)out->num_steps, sizeof *sorted, by_value);
    const double median = quantile(sorted, out->num_steps, 0.5);
    out->measured_us = 1e3 * median;
    out->spread =
        (quantile(sorted, out->num_steps, 0.75) - quantile(sorted, out->num_steps, 0.25)) / median;
    return WEFT_OK;
}

/* --- phases --------------------------------------------------------------------------------- */

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
    return *out ? WEFT_OK : WEFT_ERROR(WEFT_CONFIG, "%s: no JSON", path);
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
        return WEFT_ERROR(WEFT_CONFIG, "trace.json has more kinds of tasks than a step");
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
static weft_status sum_phases(const cJSON *events, const weft_plan *plan, const weft_trace *planned,
                              phases *p, int *out_ranks)
{
    const int world = plan->mesh.world;
    weft_against_row *row;
    const cJSON *event;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(p->arena, (size_t)world, sizeof(bool), &memory));
    bool *seen = memory;
    cJSON_ArrayForEach(event, events)
    {
        const double rank = number_of(event, "pid"), us = number_of(event, "dur");
        const cJSON *category = cJSON_GetObjectItemCaseSensitive(event, "cat");
        if (!(rank >= 0 && rank < world && us >= 0) || !cJSON_IsString(category) ||
            number_of(event, "tid") != (double)WEFT_LANE_COMPUTE)
            continue;
        WEFT_TRY(find_phase(p, category->valuestring, &row));
        row->measured += us;
        if (seen[(int)rank])
            continue;
        seen[(int)rank] = true;
        ++*out_ranks;
        WEFT_TRY(
            add_planned(p, planned, weft_mesh_coords(&plan->mesh, (int)rank).at[WEFT_AXIS_PP]));
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

static weft_status read_phases(const steps *s, int64_t traced_step, const weft_plan *plan,
                               const weft_trace *planned, weft_arena *arena, weft_against *out)
{
    double traced_us = out->measured_us;
    phases p = {.arena = arena};
    int num_ranks = 0;
    cJSON *json;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, MAX_PHASES, sizeof *p.rows, &memory));
    p.rows = memory;
    for (int i = 0; i < s->count; i++)
        if (s->numbers[i] == traced_step)
            traced_us = 1e3 * s->ms[i];
    WEFT_TRY(parse_file(out->run, "trace.json", arena, &json));
    weft_status status = sum_phases(cJSON_GetObjectItemCaseSensitive(json, "traceEvents"), plan,
                                    planned, &p, &num_ranks);
    cJSON_Delete(json);
    if (status == WEFT_OK && num_ranks > 0)
        status = finish_phases(&p, num_ranks, traced_us, out);
    return status;
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

static void take_rank(const cJSON *rank, int num_stages, weft_against_row *rows)
{
    const double stage = number_of(rank, "stage");
    const cJSON *used = cJSON_GetObjectItemCaseSensitive(rank, "used");
    if (!(stage >= 0 && stage < num_stages))
        return;
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++) {
        weft_against_row *row = &rows[(int)stage * WEFT_NUM_MEMORY_PURPOSES + i];
        row->measured = fmax(row->measured, number_of(used, row->name));
    }
}

static weft_status read_purposes(const weft_plan *plan, weft_arena *arena, weft_against *out)
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
        num_ranks == plan->mesh.world
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
        cJSON_ArrayForEach(rank, ranks) take_rank(rank, plan->num_stages, rows);
        out->purposes = rows;
        out->num_purposes = count;
    }
    cJSON_Delete(json);
    return status;
}

weft_status weft_against_read(const char *run, const weft_plan *plan, const weft_trace *planned,
                              weft_arena *arena, weft_against *out)
{
    steps s = {0};
    int64_t traced_step = 0;
    *out = (weft_against){.run = run, .planned_us = plan->step_us};
    WEFT_TRY(read_steps(run, arena, &s));
    WEFT_TRY(find_median(&s, arena, out));
    WEFT_TRY(find_traced_step(run, arena, &traced_step));
    WEFT_TRY(read_phases(&s, traced_step, plan, planned, arena, out));
    return read_purposes(plan, arena, out);
}
