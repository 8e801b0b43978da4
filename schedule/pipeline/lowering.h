/* One rank's program, lowered from its order of compute.
 *
 * A rank's chunks share all slots: those of kind activation, each for one micro-batch's input and
 * stash, and of kind deferred, what a backward leaves for its weights' half
 * (schedule/pipeline/order_slots.h); those of the kinds output (activations to send on), gradient
 * (received) and input_gradient (to send back). Of the latter three there are two each, so that a
 * rank computes or receives one micro-batch while it sends or uses another, and more where messages
 * wait longer. A slot has a boundary's bytes; activations of virtual stage 0 alone and slots of
 * kind recomputed (filled right before a backward) and deferred have none.
 *
 * Evaluation takes no memory of its own: in a forward_only program a micro-batch has the slot that
 * it has in the rank's training program. */
#ifndef WEFT_SCHEDULE_PIPELINE_LOWERING_H
#define WEFT_SCHEDULE_PIPELINE_LOWERING_H

#include "schedule/build.h"
#include "schedule/pipeline/order_slots.h"
#include "schedule/pipeline/pipeline.h"
#include "schedule/pipeline/posts.h"

/* A SEND or a RECEIVE. */
typedef struct weft_lowered_message {
    weft_task_kind kind;
    weft_flow flow;
    int32_t micro_batch, chunk, peer;
    int32_t operand;  /* as the lowering names it */
    int32_t at;       /* when its user starts */
    int32_t free_at;  /* RECEIVE: when its slot is free */
    uint32_t compute; /* this rank's compute that makes or uses it */
} weft_lowered_message;

/* Times by [virtual stage][m]. */
typedef struct weft_order_times {
    int32_t *starts[2], *ends[2]; /* of forwards; of backwards, whole or the input's half */
    int32_t *over;                /* the end of the backward, its weights' half included */
} weft_order_times;

/* One rank's program while it is lowered, in two runs over its order of compute: the first finds
 * messages and pools, the second appends tasks. Operands name a pool's slot: pool *
 * WEFT_POOL_SLOTS + index. */
enum {
    WEFT_POOL_SLOTS = 1 << 20,
    WEFT_POOL_OUTPUT = 0,
    WEFT_POOL_GRADIENT,
    WEFT_POOL_INPUT_GRADIENT,
    WEFT_POOL_RECOMPUTED,
    WEFT_NUM_TIMED_POOLS, /* whose slots are free at a time */
    WEFT_POOL_ACTIVATION = WEFT_NUM_TIMED_POOLS,
    WEFT_POOL_DEFERRED,
    WEFT_NUM_POOLS
};

typedef struct weft_lowering {
    const weft_pipeline_shape *shape;
    int rank, p, v, m;
    const weft_order *order;
    const int32_t *starts; /* when its computes start */
    const weft_order_times *times;
    int32_t *held; /* by [chunk][m]: slots of gradients that go between this rank's chunks */
    const weft_order_slots *slots;      /* of the training order */
    int32_t *free_at;                   /* of each activation slot: when its last user is done */
    struct weft_slot_pool *pools;       /* [WEFT_NUM_TIMED_POOLS] */
    int32_t first_rows[WEFT_NUM_POOLS]; /* in the program's table of slots */
    uint32_t compute;                   /* the current compute */
    weft_program_builder *builder;      /* NULL: the first run */
    uint32_t num_tasks;                 /* of the compute lane */
    weft_lowered_message *sends, *receives;
    uint32_t num_sends, num_receives, num_appended[2]; /* appended: sends, receives */
    const weft_rank_posts *posts; /* where messages stand; NULL: where they are wanted */
    uint32_t *last_backward;      /* of each chunk: what makes weights' gradients */
    int in_flight, max_in_flight;
    weft_arena *scratch; /* lasts as long as the lowering */
} weft_lowering;

/* Allocates memory and pools. */
weft_status weft_lowering_start(weft_lowering *l, weft_arena *scratch) WEFT_CHECKED;
/* Takes a slot of a timed pool from `now` to `free_at`; returns it as operands name it.
 * *out_free_at (may be NULL): when its previous user was done. */
int32_t weft_lowering_take(const weft_lowering *l, int pool, int32_t now, int32_t free_at,
                           int32_t *out_free_at);
/* An operand's row of the program's table, after weft_lowering_add_slots. */
int32_t weft_lowering_row(const weft_lowering *l, int32_t operand);
/* Gives pools their rows of the program's table. */
weft_status weft_lowering_add_slots(weft_lowering *l, weft_program_builder *builder) WEFT_CHECKED;

/* All pools as at first: their slots are free. */
void weft_lowering_empty_pools(weft_lowering *l);

/* The first run. */
weft_status weft_lowering_run(weft_lowering *l) WEFT_CHECKED;
/* The second run, behind the first: makes the program. */
weft_status weft_lowering_finish(weft_lowering *l, weft_arena *arena,
                                 weft_program *out) WEFT_CHECKED;

#endif
