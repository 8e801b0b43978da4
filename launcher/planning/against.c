#include "launcher/planning/against.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sorted.h"
#include "core/text.h"
#include "launcher/planning/measured_time.h"
#include "launcher/planning/run_changes.h"
#include "launcher/planning/run_files.h"

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
    void *memory;
    *out_count = count - warm_up;
    if (*out_count < 1)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: %s; the first %d are warm-up", run,
                          weft_count_text(count, "step").text, MIN_WARM_UP);
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)*out_count, sizeof(double), &memory));
    *out = memory;
    memcpy(*out, values + warm_up, (size_t)*out_count * sizeof **out);
    weft_sort(*out, *out_count);
    return WEFT_OK;
}

static weft_status find_median(const weft_run_steps *s, weft_arena *arena, weft_against *out)
{
    double *sorted;
    WEFT_TRY(sort_counted(out->run, s->ms, s->count, arena, &sorted, &out->num_steps));
    const double median = weft_quantile(sorted, out->num_steps, 0.5);
    out->measured_us = 1e3 * median;
    out->spread = (weft_quantile(sorted, out->num_steps, 0.75) -
                   weft_quantile(sorted, out->num_steps, 0.25)) /
                  median;
    return WEFT_OK;
}

weft_status weft_against_load(const char *run, weft_arena *arena, weft_config *config)
{
    weft_run_steps s;
    double *sorted;
    int count;
    WEFT_TRY(weft_run_read_steps(run, arena, &s));
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
static weft_status sum_phases(const weft_run_timeline *run, const weft_plan *plan,
                              const weft_trace *planned, phases *p, int *out_ranks)
{
    weft_against_row *row;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(p->arena, (size_t)plan->mesh.world, sizeof(bool), &memory));
    bool *seen = memory;
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

static weft_status read_traced(const weft_run_steps *s, int64_t traced_step, const weft_plan *plan,
                               const weft_trace *planned, weft_arena *arena, weft_against *out)
{
    double traced_us = out->measured_us;
    phases p = {.arena = arena};
    int num_ranks = 0;
    weft_run_timeline run;
    weft_measured_time time;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, MAX_PHASES, sizeof *p.rows, &memory));
    p.rows = memory;
    for (int i = 0; i < s->count; i++)
        if (s->numbers[i] == traced_step)
            traced_us = 1e3 * s->ms[i];
    WEFT_TRY(weft_run_read_timeline(out->run, plan->mesh.world, arena, &run));
    if (run.count == 0)
        return WEFT_OK;
    WEFT_TRY(sum_phases(&run, plan, planned, &p, &num_ranks));
    weft_status status =
        weft_measured_time_of(plan, run.slices, run.count, traced_us, arena, &time);
    if (status == WEFT_CONFIG)
        return weft_error_context(status, "--against %s", out->run);
    WEFT_TRY(status);
    WEFT_TRY(finish_phases(&p, num_ranks, time.step_us, out));
    return list_times(&time, arena, out);
}

/* --- bytes ---------------------------------------------------------------------------------- */

/* The rank of a stage that took most for a purpose. */
static const weft_run_rank *fullest_of(const weft_run_rank *ranks, int world, int stage,
                                       weft_memory_purpose purpose)
{
    const weft_run_rank *fullest = NULL;
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
                                const weft_run_rank *ranks, int stage, weft_memory_purpose purpose,
                                weft_against_row *out)
{
    const weft_run_rank *fullest = fullest_of(ranks, plan->mesh.world, stage, purpose);
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
    const weft_run_rank *ranks;
    void *memory;
    WEFT_TRY(weft_run_read_memory(out->run, &plan->mesh, arena, &ranks));
    if (!ranks)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)count, sizeof(weft_against_row), &memory));
    weft_against_row *rows = memory;
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
    weft_run_steps s;
    *out = (weft_against){
        .run = run, .planned_us = plan->step_us, .load = plan->step.outline.shape.moe_load};
    WEFT_TRY(weft_run_read_steps(run, arena, &s));
    WEFT_TRY(find_median(&s, arena, out));
    WEFT_TRY(read_traced(&s, of_run->log.trace_step, plan, planned, arena, out));
    return read_purposes(config, plan, arena, out);
}
