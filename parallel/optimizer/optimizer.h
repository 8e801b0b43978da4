/* Data-parallel gradient reduction and the optimizer, AdamW or Muon, sharded (ZeRO) or not. The
 * gradients of units (parallel/residency/residency.h) are reduced in backwards; their buckets are
 * stepped here.
 *
 * These are the functions behind the tasks of schedule/pipeline/update.h: sum the sections whose
 * gradients are partial sums, reduce every bucket once its gradients are final, take the global
 * norm over every axis (each parameter element counted once over the world) and clip by it, update
 * this rank's shares, and with ZeRO-1 gather the weights. Reductions are sums: the loss is scaled
 * beforehand (weft_pass_loss_scale).
 *
 * fp32 training: the weights are the master weights. bf16 and fp16: fp32 masters are kept, with
 * ZeRO-1 only of this rank's shares; a bf16 master may be split in its weight and 16 low bits
 * (weft_split_master), which changes no bit of the training. With a loss scale (fp16) the gradients
 * that arrive here carry it, and a step whose gradients overflow changes nothing but the scale.
 * The norm adds up one sum of squares of each expert bucket (parallel/residency/residency.h), and
 * one of each other bucket's parameters. Nothing is allocated after create.
 *
 * Muon (Jordan et al. 2024; Liu et al. 2025, "Muon is scalable for LLM training") steps linear
 * layers' matrices (weft_parameter_spec.is_matrix) where the parameters' weft_residency.muon says
 * so, and AdamW the rest:
 *   M = momentum M + (1 - momentum) G;  D = M, or with Nesterov's momentum M + (1 - momentum) G
 *   X = D / |D|;  num_steps times: A = X X^T, X = a X + (b A + c A A) X
 *   W -= lr (scale X + weight_decay W)
 * with (a, b, c) = (3.4445, -4.7750, 2.0315), in fp32 but for X's steps (dtype). What of D lies on
 * ranks of the gradient group (ZeRO-1) and of TP or ETP is gathered, so that X is the whole
 * matrix's on every mesh. M is WEFT_STATE_EXP_AVG; there is no WEFT_STATE_EXP_AVG_SQ. Not with
 * ZeRO-2 and 3, nor where weights or state are in host memory or files. */
#ifndef WEFT_PARALLEL_OPTIMIZER_OPTIMIZER_H
#define WEFT_PARALLEL_OPTIMIZER_OPTIMIZER_H

#include "parallel/optimizer/rates.h"
#include "parallel/parameters/parameters.h"
#include "parallel/residency/residency.h"

/* What X is multiplied by, of a matrix [out, in]; Megatron-LM's names: name, text */
#define WEFT_MUON_SCALE_LIST(X)                                                                    \
    X(SPECTRAL, "spectral")           /* sqrt(max(out, in)) */                                     \
    X(UNIT_RMS_NORM, "unit_rms_norm") /* sqrt(out / in) */                                         \
    X(SHAPE_SCALING, "shape_scaling") /* sqrt(max(1, out / in)) */
typedef enum weft_muon_scale {
#define WEFT_MUON_SCALE_ENUM(name, text) WEFT_MUON_##name,
    WEFT_MUON_SCALE_LIST(WEFT_MUON_SCALE_ENUM)
#undef WEFT_MUON_SCALE_ENUM
} weft_muon_scale;

typedef struct weft_muon_options {
    double momentum;
    bool use_nesterov;
    int num_ns_steps;
    weft_muon_scale scale_mode;
    double extra_scale_factor;
    weft_dtype dtype; /* of the products that make X orthogonal */
} weft_muon_options;

typedef struct weft_optimizer_options {
    weft_muon_options muon; /* where parameters have matrices that it steps */
    double adam_beta1, adam_beta2, adam_eps, weight_decay;
    double clip_grad;                   /* global norm; 0: no clipping */
    weft_sharding sharding;             /* the parameters' */
    bool overlap;                       /* reduce buckets during the last backward */
    bool split_master;                  /* of bf16 weights; else nothing to split */
    weft_loss_scale_options loss_scale; /* initial 0: none */
    int host_threads;                   /* of what the host does to buckets in its memory; from 1 */
    bool steps_at_once;                 /* those are stepped before the norm is known */
    bool
        skips_faults; /* a fault skips the step, and the caller judges it; not with steps_at_once */
    double loss_spike_factor; /* of weft_loss_mean, from which on a loss is a fault; 0: none is */
    bool checks_state;        /* room for hashes: weft_state_check_leave */
} weft_optimizer_options;

/* What is wrong with a step, found before anything of it is updated. A loss or a gradient is not
 * finite (without a loss scale, which has its own rules of gradients), or the loss spikes. */
typedef enum weft_fault_kind {
    WEFT_FAULT_NONE,
    WEFT_FAULT_LOSS,
    WEFT_FAULT_GRADIENT,
    WEFT_FAULT_SPIKE
} weft_fault_kind;
enum { WEFT_FAULT_TEXT_BYTES = 352 };
typedef struct weft_fault {
    weft_fault_kind kind;
    int rank;                         /* of the world, that made it as far as one can tell */
    char text[WEFT_FAULT_TEXT_BYTES]; /* one clause, without the step */
    int own; /* of this rank, not the same on all: how surely it is its own; 0: not at all */
} weft_fault;

/* The running mean of the loss over good steps, of the last 32 or so, in the loss's own unit; tells
 * a spike after the fourth. */
typedef struct weft_loss_mean {
    double mean;
    int64_t count;
} weft_loss_mean;

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

/* Pins what the largest reduction and gather of a bucket need on `reduce` (weft_comm_reserve), and
 * on `compute` what Muon's gathers need there. Each may be NULL. */
weft_status weft_optimizer_reserve(const weft_optimizer *optimizer, weft_lane *reduce,
                                   weft_lane *compute) WEFT_CHECKED;

/* The stage's buckets: parallel/residency/residency.h. */
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
 * lowered. With skips_faults the calling thread waits for the norm, and what was a WEFT_DIVERGED
 * skips the step in the same way: weft_optimizer_fault. World. */
weft_status weft_optimizer_norm(weft_optimizer *optimizer, weft_lane *lane,
                                const double *loss) WEFT_CHECKED;
/* Where the optimizer's state alone is in host memory (weft_bucket_shape.state_on_host): this
 * rank's part of a bucket's gradient goes down, before its update; its weights come up, behind
 * that. */
weft_status weft_optimizer_download(weft_optimizer *optimizer, int bucket,
                                    weft_lane *lane) WEFT_CHECKED;
weft_status weft_optimizer_upload(weft_optimizer *optimizer, int bucket,
                                  weft_lane *lane) WEFT_CHECKED;
/* Buckets in host memory (weft_residency.experts_on_host). Their gradient is cleared where a step
 * brought none; its sums of squares are made on the lane's thread, before the norm that counts
 * them. */
bool weft_optimizer_on_host(const weft_optimizer *optimizer, int bucket);
weft_status weft_optimizer_clear(weft_optimizer *optimizer, int bucket,
                                 weft_lane *lane) WEFT_CHECKED;
weft_status weft_optimizer_square(weft_optimizer *optimizer, int bucket,
                                  weft_lane *lane) WEFT_CHECKED;
/* Microseconds of squares and AdamW in host memory since it was asked last; NULL: 0. Any thread. */
double weft_optimizer_take_host_us(weft_optimizer *optimizer);
/* AdamW or Muon of what this rank owns of a bucket, after the norm; Muon gathers, which is
 * collective over the bucket's gradient group (by a communicator of its own) and TP or ETP. Where
 * its state is in host memory on the lane's thread. Of a bucket that is there itself, with
 * steps_at_once after its squares: a gradient that is not finite steps nothing there. `step`: from
 * 1, skipped steps not counted. */
weft_status weft_optimizer_update(weft_optimizer *optimizer, int bucket, weft_lane *lane,
                                  int64_t step, double lr) WEFT_CHECKED;
/* Of an expert in a file whose gradient is zero, on one rank alone: its sums of squares, and its
 * step, which is owed and paid when its record is read next, the same AdamW call for each. At most
 * 64 in a row: weft_optimizer_may_owe. */
bool weft_optimizer_may_owe(const weft_optimizer *optimizer, int bucket, int64_t running_step);
weft_status weft_optimizer_square_zero(weft_optimizer *optimizer, int bucket,
                                       weft_lane *lane) WEFT_CHECKED;
void weft_optimizer_owe(weft_optimizer *optimizer, int bucket, int64_t step, double lr);
/* With ZeRO-1 gives a bucket's updated weights to all ranks of its gradient group. */
weft_status weft_optimizer_gather(weft_optimizer *optimizer, int bucket,
                                  weft_lane *lane) WEFT_CHECKED;

/* Of the last norm; borrowed. kind WEFT_FAULT_NONE: there was none. */
const weft_fault *weft_optimizer_fault(const weft_optimizer *optimizer);
/* From here on updates and gathers do nothing, and norms change nothing: a step is run again to see
 * what comes of it. Needs skips_faults. */
void weft_optimizer_hold(weft_optimizer *optimizer, bool holds);
/* Whether gradients of this rank, as they are, or those that it has summed since the last norm are
 * not finite; waits for `lane`. For the beginning of what is held: it takes its time. */
weft_status weft_optimizer_look(weft_optimizer *optimizer, weft_lane *lane,
                                bool *out_bad) WEFT_CHECKED;
/* To read and, from a checkpoint, to restore. Changes in weft_optimizer_norm alone. */
weft_loss_mean *weft_optimizer_loss_mean(weft_optimizer *optimizer);

/* The global norm before clipping of the last step; valid after the lane passed it. */
double weft_optimizer_grad_norm(const weft_optimizer *optimizer);
/* The loss scale, to read and, from a checkpoint, to restore; all zero without one. Changes in
 * weft_optimizer_norm alone. */
weft_loss_scale *weft_optimizer_loss_scale(weft_optimizer *optimizer);

/* Bytes of the norm's buffers on the device, and again in pinned host memory: at most one sum, one
 * end and one mark (parallel/parameters/parameters.h) a parameter, or by expert one a local expert
 * of it.
 */
static inline size_t weft_optimizer_norm_bytes(int num_parts)
{
    return ((size_t)num_parts + 1) * (sizeof(double) + sizeof(uint64_t) + sizeof(int32_t)) +
           sizeof(float);
}

/* State as checkpoints see it: for each parameter and each kind, this rank's pieces: its shares
 * under ZeRO-1, whole local parameters otherwise; by expert, those of each local expert. */
typedef enum weft_state_kind {
    WEFT_STATE_MASTER, /* fp32 master weight; split: see weft_optimizer_join */
    WEFT_STATE_EXP_AVG,
    WEFT_STATE_EXP_AVG_SQ,
    WEFT_NUM_STATES
} weft_state_kind;

/* A run of local elements of one parameter whose state lives on this rank. */
typedef struct weft_state_piece {
    const weft_placed *placed;
    size_t first, count;          /* local elements of the parameter */
    float *data[WEFT_NUM_STATES]; /* EXP_AVG_SQ: NULL where Muon steps it */
    bool writer; /* exactly one rank of the world has it true for each element; replicas: false */
} weft_state_piece;
int weft_optimizer_num_pieces(const weft_optimizer *optimizer);
weft_state_piece weft_optimizer_piece(const weft_optimizer *optimizer, int index);
/* Of experts in a file a piece's pointers are good between open and close alone, where the next
 * opens, for what is enqueued on `lane`. fills: the piece is loaded, and its weights follow from
 * it. Of others open is weft_optimizer_piece. */
weft_status weft_optimizer_open(const weft_optimizer *optimizer, int index, bool fills,
                                weft_lane *lane, weft_state_piece *out) WEFT_CHECKED;
weft_status weft_optimizer_close(const weft_optimizer *optimizer, int index, bool fills,
                                 weft_lane *lane) WEFT_CHECKED;
/* The weights of fp32 masters: bf16 as weft_split_master rounds, whether or not masters are split;
 * fp16 to nearest even. */
weft_status weft_optimizer_round(weft_lane *lane, size_t count, const float *master,
                                 weft_dtype dtype, void *weight) WEFT_CHECKED;
/* Split masters stand in the gradients, whose place the pieces give, from here to
 * weft_optimizer_leave or weft_optimizer_reload: gradients are lost. Nothing to do for others, and
 * in a file while a piece is open. */
weft_status weft_optimizer_join(const weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* Without a change: gradients are zero again. */
weft_status weft_optimizer_leave(const weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* After a load has filled the pieces: weights follow from the masters (round, all-gather).
 * Collective over the gradient groups; enqueues on `lane`. */
weft_status weft_optimizer_reload(weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;

/* Ranks that hold the same compare it: the XXH64 of every parameter's weights, and of its masters
 * and moments where these are replicated too. A bit that flipped in one rank's memory would stay
 * unseen for ever, since gradients are summed and weights are not.
 *
 * Replicas are the ranks of a gradient group (with ZeRO of weights that are not shared out; without
 * it of state, too), those of a tensor-parallel group of what it does not split, those of it that
 * share key/value heads, and the two stages of a tied embedding. What lies in a file has hashes of
 * its own (parallel/spill/spill.h). */

/* What was found, the same on every rank. Where several groups differ, of the lowest rank's. */
typedef struct weft_replica_report {
    int num_differ; /* parameters that differ among some replicas, summed over groups; 0: none */
    char name[WEFT_MAX_NAME_BYTES]; /* the first of them */
    char group[16];
    int rank, other;   /* of the world: one that stands apart, and the lowest of the others */
    int num_replicas;  /* in that group */
    bool has_majority; /* more than half agree, in every group */
    bool is_mended;    /* all differences are gone */
} weft_replica_report;

/* The caller has drained the lanes that write weights and state. mends: where there is a majority
 * the others take its bits, of what is in device memory. Enqueues on `lane` and waits for it.
 * Collective over the world. */
weft_status weft_replicas_compare(weft_optimizer *optimizer, bool mends, weft_lane *lane,
                                  weft_replica_report *out) WEFT_CHECKED;

/* Hashes of what this rank updates, from one step to the next. With ZeRO no other rank has its
 * shares of masters and moments, so weft_replicas_compare does not tell of a bit that flips
 * there.
 *
 * weft_optimizer_update hashes a bucket's weights, masters and moments (weft_hash, on the bucket's
 * own lane) behind AdamW, where it is asked to leave hashes, and the next one hashes them again
 * before AdamW reads them. Each array of each parameter, or local expert of it, has a hash of its
 * own. Buckets whose weights or state are in host memory or in files are left out: the host steps
 * these. Nothing is done on an optimizer without checks_state. */

/* What has changed where nothing writes it, the same on every rank: of the lowest rank that has
 * such, its first. */
typedef struct weft_state_change {
    int rank;                       /* of the world; -1: nothing has changed */
    char name[WEFT_MAX_NAME_BYTES]; /* the parameter */
    char array[16];                 /* "weight", "master", "exp_avg", "exp_avg_sq" */
} weft_state_change;

/* Whether updates leave hashes from here on. A step that is skipped leaves those of the step
 * before. */
void weft_state_check_leave(weft_optimizer *optimizer, bool leaves);
/* What updates have found since the last call; looks: hashes all again that has hashes, which stay.
 * The caller has drained the lanes that write state. Enqueues on `lane` and waits for it.
 * Collective over the world. */
weft_status weft_state_check_take(weft_optimizer *optimizer, bool looks, weft_lane *lane,
                                  weft_state_change *out) WEFT_CHECKED;

/* Bytes of the hashes on the device, and again in pinned host memory: of num_parts parameters, or
 * by expert local experts of them. */
static inline size_t weft_state_check_bytes(int num_parts)
{
    enum { ENDS = 1, ARRAYS = 4, SETS = 2 }; /* left behind the update, seen before the next */
    return (size_t)num_parts * (ENDS + ARRAYS * SETS) * sizeof(uint64_t);
}

/* Which number of a rank's own state is none: a moment, a master or a weight that is not finite
 * makes every later step bad, whatever its data. */

enum { WEFT_STATE_LOOK_BYTES = WEFT_MAX_NAME_BYTES + 96 };

/* Fills in "exp_avg of NAME on rank 2 (layer 3) is nan", of moments before masters before weights,
 * of the lowest rank that has one; "": all are finite (files of experts are not read). An
 * exp_avg_sq below 0 is as bad. The caller has drained the lanes that write them. Enqueues on
 * `lane` and waits for it. Collective over the world. */
weft_status weft_state_find_bad(weft_optimizer *optimizer, weft_lane *lane,
                                char out[WEFT_STATE_LOOK_BYTES]) WEFT_CHECKED;

#endif
