/* One rank's program, lowered from its order of compute. Private to schedule/.
 *
 * Slots of a rank: of kind activation as many a chunk as the order needs: a micro-batch's input of
 * the virtual stage and everything its backward needs; of kind output (activations being sent on),
 * gradient (gradients received) and input_gradient (gradients being sent back), which all chunks
 * share, two, or more where the order keeps them waiting. Two let the next micro-batch be computed
 * or received while this one is still sent or used. Slots have a boundary's bytes, activations of
 * the first virtual stage none. The forward_only program of a rank has slots of its training
 * program alone, under the same numbers, so that evaluation takes no memory of its own: of a
 * chunk's activations it uses two, so that one micro-batch arrives while another is computed, or
 * one where training has no more (more where a chunk hands over to the next), and its table gives
 * the others no bytes. */
#ifndef WEFT_SCHEDULE_LOWERING_H
#define WEFT_SCHEDULE_LOWERING_H

#include "schedule/build.h"
#include "schedule/pipeline.h"

/* A message that a rank sends, and when it is wanted. */
typedef struct weft_lowered_message {
    weft_task send;
    int64_t at;
} weft_lowered_message;

/* One rank's program while it is lowered. Operands of tasks name a pool's slot until all pools are
 * known: pool * WEFT_POOL_SLOTS + index. */
enum {
    WEFT_POOL_SLOTS = 1 << 20,
    WEFT_POOL_OUTPUT = 0,
    WEFT_POOL_GRADIENT,
    WEFT_POOL_INPUT_GRADIENT,
    WEFT_POOL_ACTIVATION
};

typedef struct weft_lowering {
    const weft_pipeline_shape *shape;
    int rank, p, v, m;
    const weft_order *order;
    const int64_t *starts; /* of its computes */
    int64_t *times[2];     /* starts by [forward, backward][virtual stage][m] */
    /* Slots by [chunk][m]: x and dy that this rank's own chunks hand over; stashes. */
    int32_t *held[2], *stash;
    struct weft_slot_pool *pools; /* by WEFT_POOL_..., a chunk's behind the last one */
    weft_task *tasks;
    uint32_t num_tasks;
    weft_lowered_message *sends;
    size_t num_sends, next_send;
    uint32_t *last_backward; /* of each chunk */
    int in_flight, max_in_flight;
    weft_arena *scratch; /* lasts as long as the lowering */
} weft_lowering;

/* Memory and pools. training: rows of each pool of the training program, where this one only
 * evaluates. */
weft_status weft_lowering_start(weft_lowering *l, weft_arena *scratch,
                                const int *training) WEFT_CHECKED;
/* A slot that is taken now and free from then on, as operands name it. */
int32_t weft_lowering_take(const weft_lowering *l, int pool, int64_t now, int64_t free_at);
int weft_lowering_num_slots(const weft_lowering *l, int pool); /* taken so far */
/* The row of the program's table, once pools have theirs. */
int32_t weft_lowering_row(const weft_lowering *l, int32_t operand);
/* Gives pools their rows of the program's table. Training's has two at least of what travels; the
 * forward_only one has training's, those that it does not use without bytes. */
weft_status weft_lowering_add_slots(const weft_lowering *l, weft_program_builder *builder,
                                    const int *training) WEFT_CHECKED;

/* Tasks and messages from the order of compute; then the pools have as many rows as it needs. */
void weft_lowering_run(weft_lowering *l);
/* The program of them. */
weft_status weft_lowering_finish(weft_lowering *l, weft_arena *arena, const int *training,
                                 weft_program *out) WEFT_CHECKED;

#endif
