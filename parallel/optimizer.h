/* Data-parallel gradient reduction and the AdamW optimizer, sharded (ZeRO) or not. The gradients of
 * units (parallel/residency.h) are reduced in backwards; their buckets are stepped here.
 *
 * These are the functions behind the tasks of schedule/update.h: sum the sections whose gradients
 * are partial sums, reduce every bucket once its gradients are final, take the global norm over
 * every axis (each parameter element counted once over the world) and clip by it, update this
 * rank's shares, and with ZeRO-1 gather the weights. Reductions are sums: the loss is scaled
 * beforehand (weft_pass_loss_scale).
 *
 * fp32 training: the weights are the master weights. bf16 and fp16: fp32 masters are kept, with
 * ZeRO-1 only of this rank's shares; a bf16 master may be split in its weight and 16 low bits
 * (weft_split_master), which changes no bit of the training. With a loss scale (fp16) the gradients
 * that arrive here carry it, and a step whose gradients overflow changes nothing but the scale.
 * Nothing is allocated after create. */
#ifndef WEFT_PARALLEL_OPTIMIZER_H
#define WEFT_PARALLEL_OPTIMIZER_H

#include "parallel/buckets.h"
#include "parallel/loss_scale.h"
#include "parallel/parameters.h"

typedef struct weft_optimizer_options {
    double adam_beta1, adam_beta2, adam_eps, weight_decay;
    double clip_grad;                   /* global norm; 0: no clipping */
    weft_sharding sharding;             /* the parameters' */
    bool overlap;                       /* reduce buckets during the last backward */
    bool split_master;                  /* of bf16 weights; else nothing to split */
    weft_loss_scale_options loss_scale; /* initial 0: none */
} weft_optimizer_options;

typedef struct weft_optimizer weft_optimizer;

/* Collective over the world (agreement). `parameters` is borrowed and has gradients. Masters of
 * 16-bit weights are zero until weft_optimizer_initialize or a load; moments are zero. */
weft_status weft_optimizer_create(weft_parameters *parameters,
                                  const weft_optimizer_options *options,
                                  weft_optimizer **out) WEFT_CHECKED;
void weft_optimizer_destroy(weft_optimizer *optimizer);

/* Initialises weights and masters for a fresh start: masters get the fp32 initial values, weights
 * their rounding; moments 0. */
weft_status weft_optimizer_initialize(weft_optimizer *optimizer, weft_lane *lane,
                                      uint64_t seed) WEFT_CHECKED;

/* Pins what the largest reduction and gather of a bucket need on `reduce` (weft_comm_reserve). */
weft_status weft_optimizer_reserve(const weft_optimizer *optimizer, weft_lane *reduce) WEFT_CHECKED;

/* The stage's buckets: parallel/buckets.h. */
int weft_optimizer_num_buckets(const weft_optimizer *optimizer);
weft_bucket_shape weft_optimizer_bucket(const weft_optimizer *optimizer, int bucket);

/* A step's pieces. Each enqueues on one lane; the caller makes that lane wait for others. They are
 * collective over the group that they name. */

/* Sums a section over TP or between the stages that hold it (`sum`), before any of its buckets is
 * reduced. */
weft_status weft_optimizer_sum(weft_optimizer *optimizer, weft_bucket_sum sum,
                               weft_lane *lane) WEFT_CHECKED;
/* Sums a bucket over its gradient group: whole, or with ZeRO-1 each rank its share. bucket -1: what
 * passes reduced on this lane is over; nothing is left to do. */
weft_status weft_optimizer_reduce(weft_optimizer *optimizer, int bucket,
                                  weft_lane *lane) WEFT_CHECKED;
/* The global norm of the reduced gradients, and the clipping factor, which is Megatron-LM's:
 * gradients times clip_grad / (norm + 1e-6) where that is below 1. The calling thread waits for
 * this rank's sums, and with a loss scale for the norm. `loss`: this rank's part of the loss, host
 * memory that is filled when `lane` gets here; NULL: none. A loss or a norm that is not finite
 * makes the lane's status WEFT_DIVERGED on every rank, with the rank and, of the norm, the first
 * parameter whose gradient is not finite. With a loss scale a norm that is not finite makes this
 * step's updates and gathers do nothing, on every rank; the error comes when the scale cannot be
 * lowered. World. */
weft_status weft_optimizer_norm(weft_optimizer *optimizer, weft_lane *lane,
                                const double *loss) WEFT_CHECKED;
/* AdamW of what this rank owns of a bucket, after the norm. `step`: from 1, skipped steps not
 * counted. */
weft_status weft_optimizer_update(weft_optimizer *optimizer, int bucket, weft_lane *lane,
                                  int64_t step, double lr) WEFT_CHECKED;
/* With ZeRO-1 gives a bucket's updated weights to all ranks of its gradient group. */
weft_status weft_optimizer_gather(weft_optimizer *optimizer, int bucket,
                                  weft_lane *lane) WEFT_CHECKED;

/* The global norm before clipping of the last step; valid after the lane passed it. */
double weft_optimizer_grad_norm(const weft_optimizer *optimizer);
/* The loss scale, to read and, from a checkpoint, to restore; all zero without one. Changes in
 * weft_optimizer_norm alone. */
weft_loss_scale *weft_optimizer_loss_scale(weft_optimizer *optimizer);

/* Bytes of the norm's buffers on the device, and again in pinned host memory: at most one sum a
 * parameter. */
static inline size_t weft_optimizer_norm_bytes(int num_parameters)
{
    return ((size_t)num_parameters + 1) * sizeof(double) + sizeof(float);
}

/* State as checkpoints see it: for each parameter and each kind, this rank's pieces: its shares
 * under ZeRO-1, whole local parameters otherwise. */
typedef enum weft_state_kind {
    WEFT_STATE_MASTER, /* fp32 master weight; split: see weft_optimizer_join */
    WEFT_STATE_EXP_AVG,
    WEFT_STATE_EXP_AVG_SQ,
    WEFT_NUM_STATES
} weft_state_kind;

/* A run of local elements of one parameter whose state lives on this rank. */
typedef struct weft_state_piece {
    const weft_placed *placed;
    size_t first, count; /* local elements of the parameter */
    float *data[WEFT_NUM_STATES];
    bool writer; /* exactly one rank of the world has it true for each element; replicas: false */
} weft_state_piece;
int weft_optimizer_num_pieces(const weft_optimizer *optimizer);
weft_state_piece weft_optimizer_piece(const weft_optimizer *optimizer, int index);
/* The weights of fp32 masters: bf16 as weft_split_master rounds, whether or not masters are split;
 * fp16 to nearest even. */
weft_status weft_optimizer_round(weft_lane *lane, size_t count, const float *master,
                                 weft_dtype dtype, void *weight) WEFT_CHECKED;
/* Split masters stand in the gradients, whose place the pieces give, from here to
 * weft_optimizer_leave or weft_optimizer_reload: gradients are lost. Nothing to do for others. */
weft_status weft_optimizer_join(const weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* Without a change: gradients are zero again. */
weft_status weft_optimizer_leave(const weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* After a load has filled the pieces: weights follow from the masters (round, all-gather).
 * Collective over the gradient groups; enqueues on `lane`. */
weft_status weft_optimizer_reload(weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;

#endif
