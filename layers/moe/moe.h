/* What a stage's MoE layers share: how tokens travel, the programs, and the lanes
 * beside the compute lane that their tasks run on. One thread drives a model. */
#ifndef WEFT_LAYERS_MOE_MOE_H
#define WEFT_LAYERS_MOE_MOE_H

#include "comm/comm.h"
#include "layers/moe/options.h"
#include "schedule/moe/inside.h"
#include "schedule/run.h"

/* A layer's programs with what is inside their tasks: what runs. */
typedef struct weft_moe_whole {
    weft_program programs[2]; /* forward, backward */
    /* Of forwards, of backwards: [num_slots], while one layer's program is enqueued. A backward has
     * forwards, too, which run again. */
    void **memory[2][2];
} weft_moe_whole;

/* The programs of a layer's experts beyond device memory, by their number. */
enum { WEFT_MOE_MAX_EXPERTS = 9 };
typedef struct weft_moe_experts {
    int num_positions;
    const weft_program *programs; /* [2], borrowed; NULL: the experts are on the device */
} weft_moe_experts;

/* The programs of one (n, S). */
typedef struct weft_moe_plan {
    weft_moe_pipeline pipeline;
    weft_program programs[2];                    /* forward, backward */
    weft_moe_whole wholes[WEFT_MOE_MAX_EXPERTS]; /* by the runtime's experts */
} weft_moe_plan;

enum { WEFT_MOE_MAX_PLANS = 64 };

typedef struct weft_moe_runtime {
    weft_device *device; /* borrowed */
    weft_moe_options options;
    bool exchange;                    /* tokens travel: the lanes exist */
    weft_lane *lanes[WEFT_NUM_LANES]; /* expert, inside, place, offload, prefetch */
    weft_arena arena;
    weft_moe_plan plans[WEFT_MOE_MAX_PLANS];
    int num_plans;
    const weft_moe_plan *current; /* the next forward's */
    weft_moe_plan replaced;       /* holds replaced programs; `current` points here */
    weft_program form;            /* the exchange's, where it is a program */
    weft_moe_experts experts[WEFT_MOE_MAX_EXPERTS]; /* the first: on the device */
    int num_experts;
    weft_program alone;        /* one exchange: */
    weft_executor executor;    /* weft_moe_exchange_over alone */
    size_t direct_chunk_bytes; /* of a block; equal on every rank; 0: by size */
} weft_moe_runtime;

/* exchange: the model has layers whose tokens travel. block_bytes: what a rank sends another under
 * balanced routing, to be cut into options.num_chunks. Errors: WEFT_CONFIG (n or form out of
 * range), WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_moe_runtime_create(weft_device *device, const weft_moe_options *options,
                                    bool exchange, size_t block_bytes,
                                    weft_moe_runtime **out) WEFT_CHECKED;
void weft_moe_runtime_destroy(weft_moe_runtime *runtime); /* NULL is legal */
/* Calls weft_comm_reserve on the compute lane and on the runtime's lanes. */
weft_status weft_moe_runtime_reserve(const weft_moe_runtime *runtime, const weft_comm *ep,
                                     weft_lane *compute, size_t bytes) WEFT_CHECKED;
/* Adds the lanes of a body's tasks with this compute lane; one that another owner has set stays. */
void weft_moe_runtime_lanes(const weft_moe_runtime *runtime, weft_lane *compute,
                            weft_lane *lanes[WEFT_NUM_LANES]);
/* Gives layers with so many experts, beyond device memory, the experts' programs. Call it for each
 * number before the first forward. */
weft_status weft_moe_runtime_add_experts(weft_moe_runtime *runtime,
                                         const weft_moe_experts *experts) WEFT_CHECKED;
/* What a layer with so many experts runs; 0: its experts are on the device. */
const weft_moe_whole *weft_moe_whole_of(const weft_moe_runtime *runtime, const weft_moe_plan *plan,
                                        int num_positions);
/* Sets (n, S) for the next forwards. Call it between steps: it may allocate. */
weft_status weft_moe_runtime_use(weft_moe_runtime *runtime,
                                 const weft_moe_pipeline *pipeline) WEFT_CHECKED;
/* Lets forwards use these programs instead of the current pipeline's, until the next
 * weft_moe_runtime_use. Borrowed. */
weft_status weft_moe_runtime_replace(weft_moe_runtime *runtime,
                                     const weft_program programs[2]) WEFT_CHECKED;

/* --- the all-to-all: weft_moe_exchange and measurements run the same code ------------------ */

/* Where staging areas come from; their memory must last until the enqueued work is done. */
typedef struct weft_exchange_memory {
    void *context;
    weft_status (*device)(void *context, size_t bytes, void **out);
    weft_status (*host)(void *context, size_t bytes, void **out);
} weft_exchange_memory;

/* An exchange that is being enqueued. */
enum { WEFT_EXCHANGE_MAX_STAGING = 4 };
typedef struct weft_moe_movement {
    weft_comm *ep, *etp;
    const char *send;
    char *recv;
    const size_t *send_bytes, *recv_bytes;
    size_t num_chunks;
    bool all;        /* o1_paper: the rank's own block travels too */
    bool is_program; /* the form is */
    /* By slot of the form's program, which other slots precede. arrived: this rank's slices of a
     * chunk, by peer; gathered: all ETP ranks' slices, [t][share]. */
    int first_slot;
    char *staging[WEFT_EXCHANGE_MAX_STAGING];
    char *packed[WEFT_EXCHANGE_MAX_STAGING]; /* this rank's slices to send */
    size_t *sent, *came;                     /* host: [ep], bytes of the current chunk */
} weft_moe_movement;

/* A movement between these ranks, of nothing yet. */
void weft_moe_movement_start(const weft_moe_runtime *runtime, weft_comm *ep, weft_comm *etp,
                             weft_moe_movement *out);
/* Bytes of a staging area for blocks of so many bytes, [ep], that are sent or come; 0: none. */
size_t weft_moe_staged_bytes(const weft_moe_movement *movement, const size_t *block_bytes);
/* Takes the staging areas of exchanges that follow each other; most: the largest's. */
weft_status weft_moe_take_staging(const weft_moe_runtime *runtime, weft_moe_movement *movement,
                                  size_t most, const weft_exchange_memory *memory) WEFT_CHECKED;
/* Begins the all-to-all over movement's `ep`, in the runtime's form, by staging that was taken;
 * every rank of its `etp` holds the same `send` and passes equal sizes, as for weft_all_to_all.
 * Where the form is a program, its chunks follow; else nothing does. The runtime was created with
 * `exchange` true. A single rank in `etp` uses the baseline. Collective over ep and etp. Errors:
 * the memory's, WEFT_COMM, the lanes' own. */
weft_status weft_moe_exchange_begin(const weft_moe_runtime *runtime,
                                    const weft_moe_movement *movement,
                                    weft_lane *lane) WEFT_CHECKED;
/* Whether the task of a program with exchanges is of a chunk; enqueues it. */
bool weft_moe_is_chunk(const weft_task *task);
weft_status weft_moe_exchange_chunk(weft_moe_movement *movement, const weft_task *task,
                                    weft_lane *lane) WEFT_CHECKED;
/* The whole on `lane` and the runtime's lanes. */
weft_status weft_moe_exchange_over(weft_moe_runtime *runtime, weft_moe_movement *movement,
                                   const weft_exchange_memory *memory,
                                   weft_lane *lane) WEFT_CHECKED;

#endif
