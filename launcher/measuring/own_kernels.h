/* A description's operations as kernels. Private to launcher/measuring/. */
#ifndef WEFT_LAUNCHER_MEASURING_OWN_KERNELS_H
#define WEFT_LAUNCHER_MEASURING_OWN_KERNELS_H

#include <string.h>

#include <weft/kernels.h>

#include "launcher/measuring/own.h"
#include "layers/describe/describe.h"

/* Memory to walk through: the next piece was not touched for long, so no cache holds it. */
typedef struct weft_own_pool {
    char *memory;
    size_t bytes, at;
} weft_own_pool;

/* What operations run on. `fresh`, always the same place, stands for what the operation before has
 * just made. */
typedef struct weft_own_rig {
    const weft_model_options *options;
    const weft_shape *shape;
    weft_dims dims;
    weft_moe_dims moe;
    int num_micro_batches;
    weft_device *device;
    weft_lane *lane;
    weft_own_pool stored, stored_fp32; /* weights and stashes: of random numbers */
    weft_own_pool gradients, results;  /* fp32; written by forward for backward */
    char *fresh[2], *out;              /* fresh: random; out: scratch that is written */
    float *fp32[2];                    /* random, positive; as long as the largest operand */
    size_t operand_bytes;              /* of fresh, out, fp32; the largest of any operation */
    int32_t *tokens;                   /* [S * B] in the vocabulary; pinned as the next three */
    int32_t *choices, *row_of, *token_of, *sort; /* [T, K] each */
    float *probabilities;                        /* [T, K] */
    int64_t *counts;                             /* [2 E + 8] */
    weft_wrong_choice *wrong;
    int64_t *offsets; /* [local experts + 1] */
} weft_own_rig;

/* The next piece of a pool. */
static inline void *weft_own_walk(weft_own_pool *pool, size_t bytes)
{
    if (pool->at + bytes > pool->bytes)
        pool->at = 0;
    char *at = pool->memory + pool->at;
    pool->at += (bytes + 63) / 64 * 64;
    return at;
}

/* Whether the operation is the module's. */
static inline bool weft_own_is(const weft_operation *o, const char *module)
{
    return strcmp(o->module, module) == 0;
}

/* Bytes of an activation, and of a row of hidden states. */
static inline size_t weft_own_act_bytes(const weft_own_rig *r)
{
    return weft_dtype_bytes(r->shape->dtype);
}

static inline size_t weft_own_row_bytes(const weft_own_rig *r)
{
    return r->shape->hidden * weft_own_act_bytes(r);
}

/* Whether gradients are written, not added to: in the first of a step's micro-batches. */
static inline bool weft_own_overwrites(const weft_own_rig *r, int number)
{
    return number % r->num_micro_batches == 0;
}

/* weft_own_submit of operations that are bound by memory. */
weft_status weft_own_submit_memory(weft_own_rig *rig, const weft_operation *operation, int number,
                                   double *out_each) WEFT_CHECKED;
/* Bytes of the largest operand of an operation. */
size_t weft_own_operand_bytes(const weft_own_rig *rig, const weft_operation *operation);
/* Enqueues the operation, the `number`-th of a train. *out_each: how many of the description's
 * `count` it ran; 0: there is no kernel for it, and nothing was enqueued. */
weft_status weft_own_submit(weft_own_rig *rig, const weft_operation *operation, int number,
                            double *out_each) WEFT_CHECKED;

#endif
