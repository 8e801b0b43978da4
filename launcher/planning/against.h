/* A plan beside a run of the same config: what was planned, what was measured, and the error. Pure
 * but for reading the run's folder. */
#ifndef WEFT_LAUNCHER_PLANNING_AGAINST_H
#define WEFT_LAUNCHER_PLANNING_AGAINST_H

#include "core/trace/trace.h"
#include "launcher/planning/plan.h"

typedef struct weft_against_row {
    const char *name;         /* a phase, where time goes, or a purpose of memory */
    int stage;                /* -1: a mean over ranks */
    double planned, measured; /* planned NaN: no plan has it */
} weft_against_row;
double weft_against_error(double planned, double measured); /* a share of measured; NaN where 0 */

/* Rows live in the arena. */
typedef struct weft_against {
    const char *run;                  /* the folder; borrowed */
    double planned_us, measured_us;   /* of a step; measured: the median */
    double low_us, high_us;           /* half of the steps took a time between: quartiles */
    double spread;                    /* between them, a share of the median */
    int64_t traced_step;              /* the one step that phases and times are of */
    double traced_us;                 /* what it took, without its wait for what else runs on */
    double load;                      /* rows at the fullest rank's experts over the mean, that the
                                         plan was made at; 0: no experts */
    int num_steps;                    /* of the median: without warm-up */
    const weft_against_row *phases;   /* microseconds of the traced step on the compute lane, by
                                         kind of task, and idle; none: nothing was traced */
    const weft_against_row *times;    /* the same step's, by kind of time; they sum to it */
    const weft_against_row *purposes; /* bytes of each stage's fullest rank, planned at the loads of
                                         experts that it had; none: no memory.json */
    int num_phases, num_times, num_purposes;
} weft_against;

/* Reads the run's config. Its step must be the same (weft_run_step_changes), on the same mesh:
 * WEFT_CONFIG with what differs, also where there is no such folder; WEFT_FILE: its config.json
 * cannot be read. */
weft_status weft_against_check(const weft_config *config, const weft_config_source *source,
                               const char *run, weft_arena *arena, weft_config *out) WEFT_CHECKED;
/* The loads of the run's experts to plan at (config's moe_load and moe_expert_load): medians of its
 * steps; 0: it has no experts. */
weft_status weft_against_load(const char *run, weft_arena *arena, weft_config *config) WEFT_CHECKED;
/* of_run: as weft_against_check read it. planned: the plan's timeline. The first tenth of the
 * steps, at least two, is warm-up. Errors: WEFT_FILE: a file of the run cannot be read or is
 * damaged; WEFT_CONFIG: it is another run's, or the run has too few steps. */
weft_status weft_against_read(const char *run, const weft_config *of_run, const weft_config *config,
                              const weft_plan *plan, const weft_trace *planned, weft_arena *arena,
                              weft_against *out) WEFT_CHECKED;

/* Means over the ranks that a step's timeline holds; microseconds. */
typedef struct weft_measured_time {
    int num_ranks;  /* 0: the timeline holds none */
    double step_us; /* of the step, without its wait for what else runs on beside the next one */
    double planned_us[WEFT_NUM_TIMES], measured_us[WEFT_NUM_TIMES];
} weft_measured_time;

/* `slices`: a run's timeline, each lane of a rank in the order of its tasks. The slices of the
 * step's tasks tell what a compute lane waited for, as the spans of a price do (weft_price_idle). A
 * message or a collective is under way once the last of its traced ranks has come. Inside passes,
 * expert is the time in which rows travel or are copied and no expert works, tensor that of other
 * collectives. step_us: of the whole step, which where it
 * is traced waits for all that the host does; time of no task is bubble. WEFT_CONFIG names a rank
 * whose timeline lacks tasks of the step. */
weft_status weft_measured_time_of(const weft_plan *plan, const weft_slice *slices, size_t count,
                                  double step_us, weft_arena *arena,
                                  weft_measured_time *out) WEFT_CHECKED;

#endif
