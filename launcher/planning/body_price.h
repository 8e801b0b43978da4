/* What the parts of a layer take, in one direction: its own, and the tasks of the programs inside
 * it (schedule/body.h). The layer's description says which operation is a part's: a task takes the
 * sum of what it enqueues. All tasks of one kind and flow share their operations' sum. Pure.
 *
 * A layer alone takes what its own parts do, and each program's price: own parts are barriers.
 */
#ifndef WEFT_LAUNCHER_PLANNING_BODY_PRICE_H
#define WEFT_LAUNCHER_PLANNING_BODY_PRICE_H

#include "layers/outline/outline.h"
#include "schedule/body.h"
#include "schedule/cost/cost.h"
#include "schedule/price/price.h"
#include "schedule/tensor.h"

/* A layer whose MoE part or attention is recomputed runs that forward once more, before backward.
 */
enum { WEFT_HALF_FORWARD, WEFT_HALF_BACKWARD, WEFT_HALF_AGAIN, WEFT_NUM_HALVES };

typedef struct weft_task_time {
    double us, link_us[WEFT_NUM_LINKS]; /* link_us: as of weft_task_links */
} weft_task_time;

enum {
    WEFT_INNER_ROWS = 16, /* no program has as many kinds of tasks */
    WEFT_LAYER_PROGRAMS = 24
};
/* What all tasks of a kind and flow take together. */
typedef struct weft_inner_row {
    int kind, flow; /* weft_task_kind, weft_flow */
    weft_task_time time;
} weft_inner_row;
/* Of a program inside a layer. */
typedef struct weft_inner_costs {
    weft_inner inner;
    int half;           /* WEFT_HALF_FORWARD, ... */
    const char *module; /* static; of WEFT_INNER_TENSOR */
    bool deferred;      /* likewise: of a backward in two halves, the second one's */
    uint64_t num_gathers, num_reduces;
    int num_rows;
    weft_inner_row rows[WEFT_INNER_ROWS];
} weft_inner_costs;
/* Of a layer. */
typedef struct weft_layer_costs {
    int num_programs;
    weft_inner_costs programs[WEFT_LAYER_PROGRAMS]; /* those of a direction in order */
    weft_task_time own[2][WEFT_LAYER_PROGRAMS + 1]; /* forward, backward: behind so many programs */
    /* What a backward's second half does for experts: their second product's gradients, which come
     * first, and the rest of them (schedule/pair.h). */
    double soon_us, late_us;
} weft_layer_costs;
void weft_layer_costs_begin(weft_layer_costs *costs); /* nothing is known yet */

/* Adds an operation; false: it is of no program. */
bool weft_layer_costs_add(weft_layer_costs *costs, const weft_operation *operation, int half,
                          const weft_estimate *estimate);
/* NULL: it has no such program. */
const weft_inner_costs *weft_inner_costs_of(const weft_layer_costs *costs, weft_inner inner,
                                            int half);
/* Zero: no operation is of such tasks. */
const weft_task_time *weft_inner_time(const weft_inner_costs *costs, int kind, int flow);

/* Programs inside layers, each once, from an arena: layers that have the same share one. */
enum { WEFT_MADE_PROGRAMS = 32 };
typedef struct weft_made_programs {
    weft_arena *arena;
    const weft_program *experts; /* [2]: as they run, with their exchanges' chunks; NULL: without */
    bool beside;                 /* of weft_moe_pipeline */
    int count;
    struct {
        weft_inner inner;
        weft_tensor_plan plan;
        bool backward;
        weft_program program;
    } rows[WEFT_MADE_PROGRAMS];
} weft_made_programs;

/* A program inside a layer of the outline, with what each of its tasks takes. */
typedef struct weft_priced_program {
    const weft_inner_costs *costs;
    const weft_program *program;
    const weft_shape *shape;
    bool travels;          /* tokens travel to experts */
    weft_task_time *times; /* by task; from the arena */
    weft_task_time rest;   /* of operations that are no task's */
} weft_priced_program;
/* cut: how a product is; NULL: as operations say. site NULL: copies and messages by peers take no
 * time. Errors: those of the programs' makers; the figure that the cluster lacks. */
weft_status weft_priced_program_make(const weft_site *site, const weft_outline *outline, int layer,
                                     const weft_inner_costs *costs, const weft_tensor_plan *cut,
                                     weft_made_programs *made,
                                     weft_priced_program *out) WEFT_CHECKED;
/* Whether there is one: products that are not cut have none. */
bool weft_inner_has_program(const weft_outline *outline, const weft_inner_costs *costs);
/* A body's lane for one of the program's. */
weft_lane_kind weft_priced_program_lane(const weft_priced_program *program, int lane);
/* What the tasks of this program and what runs beside them do to each other. */
const weft_interference *weft_inner_interference(const weft_site *site, weft_inner inner);

/* A program's price. */
typedef struct weft_inner_price {
    double computed_us; /* beside what slows it */
    double exposed_us;  /* more, until all is over */
    double copied_us;   /* of the link to the host */
} weft_inner_price;
/* interference NULL: none. A program whose tasks are all in a row is not simulated. */
weft_status weft_inner_price_of(const weft_site *site, const weft_outline *outline, int layer,
                                const weft_inner_costs *costs,
                                const weft_interference *interference, weft_made_programs *made,
                                weft_inner_price *out) WEFT_CHECKED;

/* A layer's parts in one direction. */
typedef struct weft_layer_body {
    int num_programs;
    weft_priced_program programs[WEFT_LAYER_PROGRAMS];
    weft_task_time own[WEFT_LAYER_PROGRAMS + 1]; /* before, between and behind them */
    double us;               /* of all, alone, under the interference that the body was made with */
    double soon_us, late_us; /* of weft_layer_costs */
} weft_layer_body;
/* What the layer takes alone in that direction. What is more than the operations is the first own
 * part's in forward, the last one's in backward. */
typedef struct weft_body_total {
    double us;
    const double *link_us; /* [WEFT_NUM_LINKS] */
} weft_body_total;
/* With the experts' program inlined; others are lumps of the own part before them. slowed: by the
 * interference of each program. A backward is without the operations of the second half, which are
 * in a total's rest. costs: outlives the body. */
weft_status weft_layer_body_make(const weft_site *site, const weft_outline *outline, int layer,
                                 const weft_layer_costs *costs, bool backward, bool slowed,
                                 const weft_body_total *total, weft_made_programs *made,
                                 weft_layer_body *out) WEFT_CHECKED;
/* The same of the programs that run, all inlined, as the layer's rehearsal lists them. */
weft_status weft_layer_body_list(const weft_site *site, const weft_outline *outline, int layer,
                                 const weft_layer_costs *costs, weft_way way, bool slowed,
                                 const weft_body_total *total, weft_made_programs *made,
                                 weft_layer_body *out) WEFT_CHECKED;
/* Of one part, without programs. */
weft_layer_body weft_layer_body_lump(double us);

/* A pass's body with what each task takes. */
typedef struct weft_priced_body {
    weft_program program;
    weft_task_time *times;
} weft_priced_body;
typedef struct weft_body_source {
    const weft_layer_body *(*layer)(const void *context, const weft_task *task);
    /* What a layer's first part takes more. NULL: nothing. */
    double (*more_us)(const void *context, const weft_task *task);
    weft_task_time (*beside)(const void *context, const weft_task *task);
    const void *context;
} weft_body_source;
weft_status weft_priced_body_make(const weft_program *pass, const weft_body_source *source,
                                  weft_arena *arena, weft_priced_body *out) WEFT_CHECKED;
/* Proves that it is the pass's body: weft_program_body_check. */
weft_status weft_priced_body_check(const weft_program *pass, const weft_body_source *source,
                                   const weft_program *body) WEFT_CHECKED;

/* Of weft_pricing; context: such a body, or a priced program's `times` and tasks likewise. */
double weft_priced_body_us(const void *body, int row, const weft_task *task);
void weft_priced_body_links(const void *body, int row, const weft_task *task,
                            double out_us[WEFT_MAX_LINKS]);

#endif
