/* What optimizer.c, optimizer_reduce.c and optimizer_step.c share. */
#ifndef WEFT_PARALLEL_OPTIMIZER_INTERNAL_H
#define WEFT_PARALLEL_OPTIMIZER_INTERNAL_H

#include "core/arena.h"
#include "parallel/optimizer.h"

/* The part of one bucket that this rank updates: its share with ZeRO-1, else the whole. */
typedef struct weft_owned {
    weft_section_kind section;
    int bucket;
    size_t first, count; /* elements of the section */
    size_t state;        /* where its elements start in the state arrays */
    int first_update, end_update;
} weft_owned;

/* The part of one parameter inside an owned range. */
typedef struct weft_owned_piece {
    const weft_placed *placed;
    size_t first, count; /* local elements of the parameter */
    size_t at, state;    /* elements from the section's start, and in the state arrays */
    bool counted;        /* written to checkpoints, and in the global norm where not frozen */
} weft_owned_piece;

/* Counted pieces that lie one after the other, with the padding between: one sum of squares. */
typedef struct weft_norm_run {
    const float *grad;
    size_t count;
    int first_piece, end_piece;
} weft_norm_run;

/* A run of owned elements with one weight decay: one AdamW call. */
typedef struct weft_update {
    size_t first, count, state;
    float weight_decay;
} weft_update;

/* The sums over the world, in rank order, that the norm needs. */
typedef enum weft_norm_total {
    WEFT_NORM_SQUARES,
    WEFT_NORM_BAD_LOSSES,    /* ranks whose part of the loss is not finite */
    WEFT_NORM_BAD_GRADIENTS, /* ranks that have a gradient that is not */
    WEFT_NUM_NORM_TOTALS = 8 /* 64 bytes, which go through shared memory inside a node */
} weft_norm_total;

/* What a rank reports when something is not finite: its part of the loss, and the first parameter
 * whose gradient is not finite ("" where all are). */
typedef struct weft_norm_record {
    double loss;
    char name[WEFT_MAX_NAME_BYTES];
} weft_norm_record;

/* Memory of both kinds that one step's norm passes through. */
typedef struct weft_norm_buffers {
    double *sums;      /* [num_norm_runs] */
    float *grad_scale; /* [1] */
    size_t bytes;
} weft_norm_buffers;

struct weft_optimizer {
    weft_parameters *parameters;
    weft_optimizer_options options;
    weft_arena arena;

    weft_owned *owned;
    int num_owned;
    int first_owned[WEFT_NUM_SECTIONS]; /* those of a section's buckets follow each other */
    weft_buckets buckets;
    weft_owned_piece *pieces;
    int num_pieces;
    int *piece_of; /* by parameter; -1: this rank owns none of it */
    weft_update *updates;
    int num_updates;
    weft_norm_run *norm_runs;
    int num_norm_runs;

    float
        *state[WEFT_NUM_STATES]; /* device, [state_count]; no masters for fp32 weights, or split */
    uint16_t *low;               /* device, [state_count]: of split masters; else NULL */
    size_t state_count;
    weft_norm_buffers device_norm, host_norm;
    double totals[WEFT_NUM_NORM_TOTALS];
    weft_norm_record own_record;
    double grad_norm;
    weft_loss_scale loss_scale;
    bool overflowed; /* in the last step */
};

/* First values of 16-bit weights and their masters. */
weft_status weft_optimizer_initialize_masters(weft_optimizer *optimizer, weft_lane *lane,
                                              uint64_t seed) WEFT_CHECKED;
/* First values of fp32 weights, which are their own masters. */
weft_status weft_optimizer_initialize_weights(weft_optimizer *optimizer, weft_lane *lane,
                                              uint64_t seed) WEFT_CHECKED;
/* The first element and the number of elements of a bucket that this rank owns. */
void weft_optimizer_share(const weft_optimizer *optimizer, weft_section_kind kind, int bucket,
                          size_t *first, size_t *count);
/* What this rank owns of a bucket; buckets are numbered in the order in which they start. */
static inline const weft_owned *weft_optimizer_owned(const weft_optimizer *optimizer, int bucket)
{
    const weft_bucket_shape *shape = &optimizer->buckets.shapes[bucket];
    return &optimizer->owned[optimizer->first_owned[shape->section] + shape->index];
}

#endif
