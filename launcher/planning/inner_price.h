/* What programs inside layers take: their tasks take what the operations do that they enqueue.
 *
 * Of attention over context-parallel ranks (schedule/context.h) the whole price: a ring hides
 * messages behind blocks; keys and gradients that travel at once share the link. Every block takes
 * as long: that of one document cut by head and tail, the two parts of a ring's own one a quarter
 * and the rest. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_INNER_PRICE_H
#define WEFT_LAUNCHER_PLANNING_INNER_PRICE_H

#include "schedule/context.h"
#include "schedule/cost/cost.h"

typedef struct weft_task_time {
    double us, link_us[WEFT_NUM_LINKS]; /* link_us: as of weft_task_links */
} weft_task_time;

enum { WEFT_INNER_ROWS = 16 }; /* no program has as many kinds of tasks in one direction */
/* Of one direction, by kind and flow: all tasks of the kind together; of attention until
 * weft_context_share, then each. Zeroed: nothing is known yet. */
typedef struct weft_inner_row {
    int kind, flow; /* weft_task_kind, weft_flow */
    weft_task_time time;
} weft_inner_row;
typedef struct weft_inner_costs {
    int num_rows;
    weft_inner_row rows[WEFT_INNER_ROWS];
    weft_task_time own[2]; /* of backward's own block: its first and its last part, shared out */
} weft_inner_costs;

/* Zero: no operation is of such tasks. */
const weft_task_time *weft_inner_time(const weft_inner_costs *costs, int kind, int flow);
/* Adds an operation to what its task takes. */
void weft_inner_add(weft_inner_costs *costs, const weft_operation *operation,
                    const weft_estimate *estimate);
/* Shares the times out among the program's tasks. */
void weft_context_share(weft_inner_costs *costs, const weft_program *program);
/* For weft_pricing. A sum to which nothing is added takes no time. */
const weft_task_time *weft_context_task_time(const weft_inner_costs *costs, const weft_task *task);
/* Prices one direction, whose times have not been shared out: how long the compute lane is busy,
 * beside what slows it, and how long it waits. Errors: those of weft_program_context and
 * weft_program_price. */
weft_status weft_context_price(const weft_context_plan *plan, bool backward,
                               weft_inner_costs *costs, const weft_interference *interference,
                               double *computed_us, double *exposed_us) WEFT_CHECKED;

#endif
