/* What experts beyond device memory (layers/tier/tier.h) add to the passes of a stage. As the
 * simulation of the step (schedule/price/price.h) starts a pass, the programs of its layers'
 * experts (schedule/experts/experts.h), or of partitions by experts with theirs inside
 * (schedule/moe/inside.h), run in order: weft_program_in_order. Here is what their tasks find when
 * they start: lanes and rings, which go on from layer to layer and from pass to pass, as they do at
 * run time (layers/tier/run.h); the updates of the step before, for which a forward's uploads wait;
 * and of experts in a file what is read and written, on one lane for passes and updates. Copies and
 * computation do not slow each other here. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_TIER_PRICE_H
#define WEFT_LAUNCHER_PLANNING_TIER_PRICE_H

#include "launcher/planning/config.h"
#include "launcher/planning/pass_price.h"
#include "launcher/planning/step.h"
#include "schedule/experts/experts.h"
#include "schedule/price/price.h"

/* What goes up, comes down and, of experts beyond device memory, is added up of an expert of so
 * many elements. WEFT_CONFIG with the figure that the cluster lacks. */
weft_status weft_tier_costs(const weft_site *site, const weft_outline *outline, double elements,
                            weft_expert_costs *out) WEFT_CHECKED;
/* What is read of a file and written there, as if none of the experts had its place in host memory.
 * Errors: likewise. */
weft_status weft_tier_file_costs(const weft_site *site, const weft_outline *outline,
                                 double elements, bool accumulates,
                                 weft_expert_costs *out) WEFT_CHECKED;

/* Bytes that the host reads and writes to add a gradient to another, and to sum its squares; of an
 * element. */
enum { WEFT_TIER_ADD_BYTES = 12, WEFT_TIER_SQUARE_BYTES = 4 };

typedef struct weft_tier_walk weft_tier_walk;

/* Of a pipeline rank of `step` in a world of so many ranks, whose program and buckets these are;
 * from the arena. *out is NULL where none of its layers has experts beyond device memory. prices:
 * of each of the outline's layers that the stage has. Errors: those of weft_tier_costs. */
weft_status weft_tier_walk_make(const weft_site *site, const weft_config *config,
                                const weft_step *step, int world, int stage,
                                const weft_pass_price *prices, weft_arena *arena,
                                weft_tier_walk **out) WEFT_CHECKED;

/* A step, between begin and end. Microseconds from its begin. before: of the program's tasks in the
 * step before, which began makespan_us earlier; NULL: long ago. */
weft_status weft_tier_begin_step(weft_tier_walk *walk, const weft_span *before,
                                 double makespan_us) WEFT_CHECKED;
weft_status weft_tier_end_step(weft_tier_walk *walk) WEFT_CHECKED;
/* What a task of the program waits that starts then: a pass, for its experts; a read or a write of
 * the update, for those of passes. Other tasks: 0. */
double weft_tier_enter(weft_tier_walk *walk, uint32_t task, double start_us);
/* What the pass has waited. */
double weft_tier_wait_us(const weft_tier_walk *walk, uint32_t task);
/* When a bucket's gradient is in host memory, from the start of the last pass on. */
double weft_tier_landed_us(const weft_tier_walk *walk, int bucket);
/* What the update's read or write of a bucket takes. */
double weft_tier_file_us(const weft_tier_walk *walk, const weft_task *task);
typedef struct weft_file_bytes {
    uint64_t read, written;
} weft_file_bytes;
/* What the step reads of the file and writes to it; none where the cluster lacks the figures. */
weft_file_bytes weft_tier_file_bytes(const weft_tier_walk *walk);
/* What lanes of the experts' programs were busy in the step: uploads, downloads, additions, reads
 * and writes, of which -1: the cluster lacks the figures, and they are taken for none. */
double weft_tier_busy_us(const weft_tier_walk *walk, weft_lane_kind lane);

/* What the only layer of an outline, whose experts are beyond device memory, takes forward and
 * backward in one micro-batch: what it is priced at, and what its experts wait. Errors: those of
 * weft_tier_costs. */
weft_status weft_tier_layer_us(const weft_site *site, const weft_config *config,
                               const weft_outline *outline, const weft_pass_price *price,
                               double *out_us) WEFT_CHECKED;

/* A forward, the backward of a step's first micro-batch, whose gradients stay where they land, and
 * that of a later one. */
enum { WEFT_TIER_FORWARD, WEFT_TIER_FIRST_BACKWARD, WEFT_TIER_LATER_BACKWARD, WEFT_TIER_PASSES };
/* What the host adds up in a later backward, and what comes down. */
enum { WEFT_TIER_ADDS = WEFT_TIER_PASSES, WEFT_TIER_DOWNLOADS, WEFT_TIER_LEASTS };

/* What passes wait for experts at least, whatever was before them, and the above: out_us[what][i]
 * of the first i + 1 layers that the pass meets, each layers[i] of the outline (an outline's layer
 * may be met several times, each time as another one). Experts in a file take no time of it.
 * Errors: those of weft_tier_costs. */
weft_status weft_tier_least_waits(const weft_site *site, const weft_config *config,
                                  const weft_outline *outline, const weft_pass_price *prices,
                                  const int *layers, int num,
                                  double *const out_us[WEFT_TIER_LEASTS]) WEFT_CHECKED;

#endif
