/* A model on a mesh without a trainer: what layer tests stand on. */
#ifndef WEFT_TESTS_LAYERS_HARNESS_H
#define WEFT_TESTS_LAYERS_HARNESS_H

#include <weft/weft.h>

#include "layers/model/model.h"
#include "parallel/optimizer/optimizer.h"

typedef struct harness {
    weft_comm *world; /* borrowed */
    /* The sequence's cut, and the index in it of each of the `rows` tokens of a sample here. */
    weft_sequence_cut cut;
    size_t rows;
    int32_t *runs, *index;
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_model_options options;
    weft_model *model;
    size_t batch, tokens; /* micro-batch; S * B, of all ranks of CP */
    /* Of micro-batches with documents; NULL: without. Borrowed. */
    const int32_t *positions, *first_seen;
    const float *label_weights;
    weft_arena arena; /* of the strings of: */
    weft_parallel_options parallel;
    weft_lane *reduce; /* NULL: nothing is sharded */
} harness;

/* How the MoE layers of models made from now on run; zero: synchronous. */
extern weft_moe_options harness_moe;
/* Section "parallel" of models made from now on, as {"parallel": {...}}; NULL: as by default. */
extern const char *harness_parallel;
/* What models made from now on recompute; NULL: nothing. */
extern const weft_recompute_options *harness_recompute;
/* Passes (0: one) and slots for backwards in two halves of models made from now on; whether they
 * are sharded as harness_parallel says. */
extern int harness_passes, harness_deferred;
extern bool harness_shards;
/* Models made from now on have weights alone, as for generating text. */
extern bool harness_generates;
/* Tokens that attention of models made from now on caches (weft_shape.cached_tokens). */
extern size_t harness_cached;

/* Options of a JSON text such as {"model": {...}}; strings live in the arena. */
weft_status harness_options(const char *json, weft_arena *arena, weft_model_options *out);
/* mesh: "tp=2,..." or NULL. build NULL: the stack that the options describe. */
weft_status harness_create(harness *h, weft_comm *world, const weft_model_options *options,
                           const char *mesh, size_t batch, weft_dtype dtype,
                           weft_model_function build);
void harness_release(harness *h);
/* One forward and (training) backward of one micro-batch on a mesh without pipeline stages; waits.
 * tokens and labels: the rows that are here, of those at h->index, [h->rows, batch].
 * The loss' gradient is that of the micro-batch's mean. */
weft_status harness_pass(harness *h, const int32_t *tokens, const int32_t *labels, bool training,
                         bool overwrite);

#endif
