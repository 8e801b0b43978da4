/* What optimizer.c, reduce.c and step.c share. */
#ifndef WEFT_PARALLEL_OPTIMIZER_INTERNAL_H
#define WEFT_PARALLEL_OPTIMIZER_INTERNAL_H

#include <stdatomic.h>

#include <weft/kernels.h>

#include "core/arena.h"
#include "parallel/optimizer/optimizer.h"
#include "parallel/parameters/parameters.h"

/* The part of one bucket, each one of a run, that this rank updates: its share with ZeRO-1, else
 * the whole. */
typedef struct weft_owned {
    weft_section_kind section;
    int bucket;          /* or run */
    size_t start;        /* of the bucket itself: elements from the section's start */
    size_t first, count; /* elements of the section */
    size_t state;        /* where its elements start in the state arrays */
    size_t squares;      /* in those of second moments; SIZE_MAX: it has none */
    int first_piece, end_piece;
    int first_update, end_update; /* those that begin in it */
    int first_norm, end_norm;     /* its sums of squares */
} weft_owned;

/* The part of one parameter inside an owned range. */
typedef struct weft_owned_piece {
    const weft_placed *placed;
    int bucket;
    int next;            /* another piece of the parameter; -1: none */
    size_t first, count; /* local elements of the parameter */
    size_t at, state;    /* elements from the section's start, and in the state arrays */
    bool counted;        /* written to checkpoints, and in the global norm where not frozen */
} weft_owned_piece;

/* Counted pieces of a bucket that lie one after the other, with the padding between: one sum of
 * squares. */
typedef struct weft_norm_run {
    size_t count; /* from where the first piece begins */
    int first_piece, end_piece;
} weft_norm_run;

/* A run of owned elements with one weight decay and share of the learning rate, or one sign_rate:
 * one AdamW call, or by Muon one of momentum and one of the step. */
typedef struct weft_update {
    size_t first, count, state;
    float weight_decay, lr_mult, sign_rate;
    bool by_muon;
} weft_update;

/* The sums over the world, in rank order, that the norm needs. */
typedef enum weft_norm_total {
    WEFT_NORM_SQUARES,
    WEFT_NORM_BAD_LOSSES,    /* ranks whose part of the loss is not finite */
    WEFT_NORM_BAD_GRADIENTS, /* ranks that have a gradient that is not */
    WEFT_NORM_LOSS,          /* of those whose part is finite */
    WEFT_NUM_NORM_TOTALS = 8 /* 64 bytes, which go through shared memory inside a node */
} weft_norm_total;

/* How well a rank knows who went wrong, the best first: what reaches an expert may be of another
 * rank's tokens. */
typedef enum weft_norm_knowledge {
    WEFT_KNOWS_ORIGIN,
    WEFT_KNOWS_EXPERT,
    WEFT_KNOWS_SUM,
    WEFT_KNOWS_NOTHING
} weft_norm_knowledge;

/* What a rank reports when something is not finite: its part of the loss, and the first parameter
 * whose gradient is not finite ("" where all are): of those that were so before ranks summed them,
 * else of those that are so now. */
typedef struct weft_norm_record {
    double loss;
    char name[WEFT_MAX_NAME_BYTES], last[WEFT_MAX_NAME_BYTES];
    int layer, expert; /* of the model; expert -1: none */
    int num_before;    /* parameters, each expert's by itself, that were so before */
    weft_norm_knowledge knows;
} weft_norm_record;

/* Memory of both kinds that one step's norm passes through, marks right behind sums. */
typedef struct weft_norm_buffers {
    uint64_t *ends;    /* of the look at gradients; these are the start of the memory */
    double *sums;      /* [num_norm_runs] */
    int32_t *found;    /* of the look */
    float *grad_scale; /* [1] */
    size_t bytes;
} weft_norm_buffers;

/* The state of the elements [first, first + count): no masters for fp32 weights, or where they are
 * split in weight and `low`. */
typedef struct weft_state_memory {
    weft_space space;
    size_t first, count;
    size_t squares; /* elements of second moments */
    float *state[WEFT_NUM_STATES];
    uint16_t *low;
} weft_state_memory;

/* Where Newton-Schulz steps work: room for the largest matrix (weft_matrix_room). */
typedef struct weft_muon {
    float *memory; /* NULL: Muon steps nothing on this rank */
    size_t bytes;
} weft_muon;

/* Of buckets whose state alone is in host memory, pinned. */
typedef struct weft_staged {
    char *weights; /* what this rank owns of them, as the state lies: the masters of fp32, and of
                      others what the host rounds or joins to them */
    size_t weights_bytes;
    float *gradients[WEFT_BUCKET_STAGING]; /* what this rank owns of a bucket, on its way */
    size_t gradient_bytes;
} weft_staged;

/* Steps that experts in a file owe: of those that no token chose, whose gradient was zero. */
enum { WEFT_MAX_OWED = 64, WEFT_OWED_STEPS = 2 * WEFT_MAX_OWED };
typedef struct weft_debts {
    struct weft_owed_step {
        int64_t step;
        double lr;
    } steps[WEFT_OWED_STEPS]; /* the last ones, in turn */
    int64_t num_steps;
    struct weft_owing {
        int bucket;
        int64_t first, count; /* of the steps; behind one another */
    } * records;
    float scale; /* of no gradient: 1 */
} weft_debts;

/* What this rank updates, of all buckets. */
typedef struct weft_own_part {
    weft_owned *owned;
    int num_owned;
    int *first_owned[WEFT_NUM_SECTIONS]; /* by bucket; those of a run follow each other */
    weft_owned_piece *pieces;
    int num_pieces;
    int *piece_of; /* by parameter: one of its pieces; -1: this rank owns none of it */
    weft_update *updates;
    int num_updates;
    weft_norm_run *norm_runs;
    int num_norm_runs;
} weft_own_part;

/* From gradients to the norm. */
typedef struct weft_norm {
    weft_norm_buffers device, host;
    weft_look look;
    double *host_sums; /* [num_norm_runs]: those that the host makes */
    double totals[WEFT_NUM_NORM_TOTALS];
    weft_norm_record own_record;
    double grad_norm;
} weft_norm;

/* Whether a step counts. */
typedef struct weft_judged_step {
    weft_loss_scale loss_scale;
    weft_loss_mean loss_mean;
    bool overflowed; /* in the last step */
    bool held;
    weft_fault fault;
} weft_judged_step;

struct weft_optimizer {
    weft_parameters *parameters;
    weft_optimizer_options options;
    weft_arena arena;
    weft_buckets buckets;
    weft_own_part part;
    size_t state_count, squares_count;
    weft_muon muon;
    weft_state_memory memory[2]; /* on the device; behind it, of sections on the host, pinned */
    weft_staged staged;
    weft_debts debts;
    weft_norm norm;
    weft_judged_step judged;
    atomic_uint_least64_t host_ns;        /* weft_optimizer_take_host_us */
    struct weft_state_check *state_check; /* NULL: none */
};

/* parallel/optimizer/optimizer.h. num_parts: parameters, or by expert local experts of them. */
weft_status weft_state_check_make(weft_optimizer *optimizer, int num_parts,
                                  weft_lane *lane) WEFT_CHECKED;
void weft_state_check_free(weft_optimizer *optimizer);
/* Right before and behind a bucket's AdamW calls. */
weft_status weft_state_check_before(weft_optimizer *optimizer, int bucket,
                                    weft_lane *lane) WEFT_CHECKED;
weft_status weft_state_check_behind(weft_optimizer *optimizer, int bucket,
                                    weft_lane *lane) WEFT_CHECKED;
/* State is written that no update writes. */
void weft_state_check_forget(weft_optimizer *optimizer);

/* Whether this step changes nothing. Without a scale, and where faults end the run, no step is
 * skipped, and the lane may still be at the norm. */
static inline bool weft_optimizer_skips(const weft_optimizer *optimizer)
{
    const bool waited =
        weft_loss_scale_is_on(&optimizer->judged.loss_scale) || optimizer->options.skips_faults;
    return waited && (optimizer->judged.overflowed || optimizer->judged.held ||
                      optimizer->judged.fault.kind != WEFT_FAULT_NONE);
}
/* A look at a bucket's gradient as it is (parallel/parameters/parameters.h). */
weft_status weft_optimizer_look_at(const weft_optimizer *optimizer, weft_section_kind kind,
                                   int bucket, weft_lane *lane) WEFT_CHECKED;
/* Fills in the fault, or returns it as WEFT_DIVERGED where faults are not skipped. World. */
weft_status weft_optimizer_note_fault(weft_optimizer *optimizer, weft_fault_kind kind) WEFT_CHECKED;
/* WEFT_DIVERGED: gradients overflow at the lowest loss scale. World. */
weft_status weft_optimizer_refuse_scale(weft_optimizer *optimizer) WEFT_CHECKED;
bool weft_loss_mean_spikes(const weft_loss_mean *mean, double loss, double factor);
void weft_loss_mean_add(weft_loss_mean *mean, double loss);

/* Where the gradient of a run of squares begins. */
static inline const float *weft_optimizer_run_grad(const weft_optimizer *optimizer,
                                                   const weft_norm_run *run)
{
    const weft_owned_piece *piece = &optimizer->part.pieces[run->first_piece];
    return weft_parameters_grad(optimizer->parameters, piece->placed->section, piece->bucket,
                                piece->at);
}

/* The same in a record's state, where masters, whole or their low halves, lie in front of the
 * moments. kind WEFT_NUM_STATES: the low halves. */
char *weft_optimizer_in_record(const weft_optimizer *optimizer, const weft_owned *owned, int kind,
                               size_t at);
/* Work on a bucket begins on a lane: weft_parameters_take. Nothing to do for buckets in memory. */
weft_status weft_optimizer_take(const weft_optimizer *optimizer, int bucket, unsigned reads,
                                unsigned changes, weft_lane *lane) WEFT_CHECKED;
weft_status weft_optimizer_give(const weft_optimizer *optimizer, int bucket,
                                weft_lane *lane) WEFT_CHECKED;

/* Where the state of element `at` of the state arrays lies, which is of an owned range; NULL: there
 * is none. */
static inline float *weft_optimizer_state(const weft_optimizer *optimizer, const weft_owned *owned,
                                          int kind, size_t at)
{
    if (weft_parameters_records(optimizer->parameters, owned->section))
        return (float *)(void *)weft_optimizer_in_record(optimizer, owned, kind, at);
    const weft_state_memory *m = &optimizer->memory[at >= optimizer->memory[1].first];
    if (kind == WEFT_STATE_EXP_AVG_SQ && owned->squares != owned->state) /* Muon steps some */
        return owned->squares == SIZE_MAX ? NULL
                                          : m->state[kind] + owned->squares + (at - owned->state);
    return m->state[kind] ? m->state[kind] + (at - m->first) : NULL;
}
static inline size_t weft_state_count(const weft_state_memory *m, int kind)
{
    return kind == WEFT_STATE_EXP_AVG_SQ ? m->squares : m->count;
}

/* parallel/optimizer/muon.c. Room; frees it; pins (weft_optimizer_reserve). */
weft_status weft_muon_make(weft_optimizer *optimizer) WEFT_CHECKED;
void weft_muon_free(weft_optimizer *optimizer);
weft_status weft_muon_reserve(const weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* Makes of a bucket's gradients, where Muon steps them, its scaled directions. Collective as
 * weft_optimizer_update is. */
weft_status weft_muon_directions(weft_optimizer *optimizer, int bucket,
                                 weft_lane *lane) WEFT_CHECKED;
static inline uint16_t *weft_optimizer_low(const weft_optimizer *optimizer, const weft_owned *owned,
                                           size_t at)
{
    if (weft_parameters_records(optimizer->parameters, owned->section))
        return (uint16_t *)(void *)weft_optimizer_in_record(optimizer, owned, WEFT_NUM_STATES, at);
    const weft_state_memory *m = &optimizer->memory[at >= optimizer->memory[1].first];
    return m->low ? m->low + (at - m->first) : NULL;
}
/* Whether bf16 masters are split. */
static inline bool weft_optimizer_splits(const weft_optimizer *optimizer)
{
    return optimizer->options.split_master &&
           weft_parameters_dtype(optimizer->parameters) == WEFT_BF16;
}

/* Room for what records owe; nothing where there are none. */
weft_status weft_optimizer_make_debts(weft_optimizer *optimizer) WEFT_CHECKED;
/* Behind a bucket's AdamW calls, or where none were enqueued: its gradient is of no more use. */
weft_status weft_optimizer_end_update(const weft_optimizer *optimizer, int bucket, weft_lane *lane,
                                      bool taken) WEFT_CHECKED;
/* Enqueues an AdamW call of a bucket in host memory, its kernel on the lane's thread. */
weft_status weft_optimizer_host_adamw(weft_optimizer *optimizer, const weft_owned *owned,
                                      const weft_adamw_args *args, weft_lane *lane) WEFT_CHECKED;

/* Memory for what is staged; frees it. */
weft_status weft_optimizer_allocate_staged(weft_optimizer *optimizer) WEFT_CHECKED;
void weft_optimizer_free_staged(weft_optimizer *optimizer);
/* Staged weights from the device's: after first values and loads. */
weft_status weft_optimizer_stage_weights(const weft_optimizer *optimizer,
                                         weft_lane *lane) WEFT_CHECKED;
/* Where an update of a bucket finds weights and gradient: staged, or where the bucket lies. */
typedef struct weft_update_place {
    void *weight;
    float *grad;
} weft_update_place;
weft_update_place weft_optimizer_update_place(const weft_optimizer *optimizer, int bucket,
                                              const weft_owned *owned, const weft_update *update);

/* First values of 16-bit weights and their masters. */
weft_status weft_optimizer_initialize_masters(weft_optimizer *optimizer, weft_lane *lane,
                                              uint64_t seed) WEFT_CHECKED;
/* First values of fp32 weights, which are their own masters. */
weft_status weft_optimizer_initialize_weights(weft_optimizer *optimizer, weft_lane *lane,
                                              uint64_t seed) WEFT_CHECKED;
/* The range that a piece lies in. */
const weft_owned *weft_optimizer_owner(const weft_optimizer *optimizer,
                                       const weft_owned_piece *piece);
/* What this rank owns of a bucket, or of those of a run, *out_count; buckets and runs are numbered
 * in the order in which they start. */
static inline const weft_owned *weft_optimizer_owned(const weft_optimizer *optimizer, int bucket,
                                                     int *out_count)
{
    const weft_bucket_shape *shape = &optimizer->buckets.shapes[bucket];
    *out_count = shape->num_experts > 0 ? shape->num_experts : 1;
    return &optimizer->part.owned[optimizer->part.first_owned[shape->section][shape->index]];
}

#endif
