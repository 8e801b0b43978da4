/* Pricing: a discrete-event simulation of a set of programs, one a stage.
 *
 * Lanes are FIFOs, waits and the host's waits are honoured, and a message takes its time on the
 * receiver's RECEIVE lane from the moment both sides are ready (the SEND task occupies its lane as
 * long). Pure. */
#ifndef WEFT_SCHEDULE_PRICE_H
#define WEFT_SCHEDULE_PRICE_H

#include "core/cluster.h"
#include "core/trace.h"
#include "schedule/program.h"

/* Microseconds a task takes alone; for SEND and RECEIVE the transfer's time, asked once for each
 * matched pair (of the SEND). */
typedef double (*weft_task_cost)(const void *context, int stage, const weft_task *task);

typedef struct weft_price {
    double makespan_us;
    double *busy_us;     /* [num_stages] of the COMPUTE lane, from the arena */
    double bubble_share; /* 1 - sum busy / (num_stages * makespan) over COMPUTE lanes */
} weft_price;

/* `programs`: well-formed, as built or parsed. `trace` optional: gets a slice a task (rank = stage)
 * and the lanes' names. Errors: WEFT_INTERNAL when the programs deadlock. */
weft_status weft_program_price(const weft_program *programs, int num_stages, weft_task_cost cost,
                               const void *context, weft_arena *arena, weft_trace *trace,
                               weft_price *out) WEFT_CHECKED;

/* The same with interference (MPMoE §II-C): while work of other classes runs on its stage, a task
 * goes on at a share of its speed, alpha(its class, the other class), or alpha(its class, ALL)
 * while both others run; a message at that of its slower end. Lanes of one class do not slow each
 * other. busy_us is the time that COMPUTE lanes are occupied. With weft_interference_none it is the
 * price above. Errors: WEFT_CONFIG for an alpha that is not positive. */
weft_status weft_program_price_beside(const weft_program *programs, int num_stages,
                                      weft_task_cost cost, const void *context,
                                      const weft_interference *interference, weft_arena *arena,
                                      weft_trace *trace, weft_price *out) WEFT_CHECKED;
/* The class of what a lane does. */
weft_work_class weft_lane_work_class(int lane);

/* Fills a slice's lane, name, category, micro_batch and stage (chunk c: c * num_stages + stage) for
 * a task: measured and priced timelines look alike. Where there is no micro-batch the name has the
 * part. Names: F3 and B3, s3 and r3 (a message's ends), sg3 and rg3 when it is
 * a gradient, R, S; of an MoE layer P3, D3, E3, C3 with a g for gradients, M3, and Oi3, Om3, pi3,
 * pm3 for T_DI and T_M offloaded and prefetched; G3 and L3. The rest is zero. */
void weft_slice_of_task(const weft_task *task, int stage, int num_stages, weft_slice *out);

#endif
