/* A schedule is a program: plain data that can be checked, priced, run and drawn.
 *
 * A program is one rank's array of tasks. A task names its kind, the lane it runs on, what it
 * serves (micro-batch, stage, peer), the buffer slots it reads and writes, and the earlier tasks
 * of this program that it waits for. Lanes are FIFOs: tasks of one lane run in program order;
 * waits order tasks across lanes. Programs are made by pure functions and never rewritten.
 *
 * Slots: a slot is a numbered buffer. What it holds is the executor's business; the checker proves
 * that no slot is overwritten while a later task still needs it. Operands of the pipeline's tasks
 * (-1 where the stage has no such neighbour):
 *
 *   kind      reads[0]              reads[1]            writes[0]            writes[1]
 *   forward   activation received                       activation (stash)   output to send on
 *   backward  activation (stash)    gradient received   input gradient
 *   send      what is sent
 *   receive                                             what is received
 *
 * Those of an MoE layer's tasks stand in schedule/moe_layer.h, those of an all-to-all's in
 * schedule/exchange.h.
 *
 * Text form: a line `program slots=5 in_flight=3`, then one task a line, such as
 * `7 forward compute mb=3 stage=1 reads=0 writes=0,4 waits=5,6`. The task's index comes first,
 * what a task does not have is left out. Printing and parsing are exact inverses, so golden files
 * are programs.
 */
#ifndef WEFT_SCHEDULE_PROGRAM_H
#define WEFT_SCHEDULE_PROGRAM_H

#include <stdint.h>
#include <stdio.h>

#include <weft/status.h>

#include "core/arena.h"

/* name, text, letter for timelines, lane it runs on unless a generator says otherwise, most reads,
 * most writes, has a peer */
#define WEFT_TASK_LIST(X)                                                                          \
    X(FORWARD, "forward", "F", COMPUTE, 1, 2, 0)                                                   \
    X(BACKWARD, "backward", "B", COMPUTE, 2, 1, 0)                                                 \
    X(SEND, "send", "s", SEND, 1, 0, 1)                                                            \
    X(RECEIVE, "receive", "r", RECEIVE, 0, 1, 1)                                                   \
    X(REDUCE, "reduce", "R", REDUCE, 0, 0, 0)                                                      \
    X(STEP, "step", "S", COMPUTE, 0, 0, 0)                                                         \
    X(PERMUTE, "permute", "P", COMPUTE, 0, 1, 0)                                                   \
    X(DISPATCH, "dispatch", "D", EXPERT, 1, 1, 0)                                                  \
    X(EXPERT, "expert", "E", COMPUTE, 3, 2, 0)                                                     \
    X(COMBINE, "combine", "C", EXPERT, 1, 1, 0)                                                    \
    X(OFFLOAD, "offload", "O", OFFLOAD, 1, 1, 0)                                                   \
    X(PREFETCH, "prefetch", "p", PREFETCH, 1, 1, 0)                                                \
    X(RECOMPUTE, "recompute", "M", COMPUTE, 1, 1, 0)                                               \
    X(GATHER, "gather", "G", GATHER, 1, 1, 0)                                                      \
    X(PLACE, "place", "L", PLACE, 1, 0, 0)

typedef enum weft_task_kind {
#define WEFT_TASK_ENUM(name, text, letter, lane, reads, writes, peer) WEFT_TASK_##name,
    WEFT_TASK_LIST(WEFT_TASK_ENUM)
#undef WEFT_TASK_ENUM
        WEFT_NUM_TASK_KINDS
} weft_task_kind;

/* name, text */
#define WEFT_LANE_LIST(X)                                                                          \
    X(COMPUTE, "compute")                                                                          \
    X(SEND, "send")                                                                                \
    X(RECEIVE, "receive")                                                                          \
    X(REDUCE, "reduce")                                                                            \
    X(EXPERT, "expert")                                                                            \
    X(GATHER, "gather")                                                                            \
    X(PLACE, "place")                                                                              \
    X(OFFLOAD, "offload")                                                                          \
    X(PREFETCH, "prefetch")

typedef enum weft_lane_kind {
#define WEFT_LANE_ENUM(name, text) WEFT_LANE_##name,
    WEFT_LANE_LIST(WEFT_LANE_ENUM)
#undef WEFT_LANE_ENUM
        WEFT_NUM_LANES
} weft_lane_kind;

/* What a task moves: the direction of a message, or of an MoE layer's exchange and experts; the
 * tensor that is offloaded or prefetched (T_DI or T_M). name, text */
#define WEFT_FLOW_LIST(X)                                                                          \
    X(NONE, "")                                                                                    \
    X(ACTIVATION, "activation")                                                                    \
    X(GRADIENT, "gradient")                                                                        \
    X(INPUT, "input")                                                                              \
    X(MIDDLE, "middle")

typedef enum weft_flow {
#define WEFT_FLOW_ENUM(name, text) WEFT_FLOW_##name,
    WEFT_FLOW_LIST(WEFT_FLOW_ENUM)
#undef WEFT_FLOW_ENUM
        WEFT_NUM_FLOWS
} weft_flow;

enum {
    WEFT_TASK_MAX_READS = 3,
    WEFT_TASK_MAX_WRITES = 2,
    WEFT_TASK_MAX_WAITS = 8, /* lanes are FIFOs: one wait for each other lane says everything */
    WEFT_PROGRAM_MAX_SLOTS = 65536,
    WEFT_TASK_TEXT_BYTES = 256,
};

/* Without padding, so that equal programs are equal bytes. */
typedef struct weft_task {
    uint16_t kind, lane;        /* weft_task_kind, weft_lane_kind */
    uint32_t flow;              /* weft_flow */
    int32_t micro_batch, stage; /* -1: none */
    int32_t peer;               /* the other stage of SEND and RECEIVE; -1 none */
    int32_t reads[WEFT_TASK_MAX_READS], writes[WEFT_TASK_MAX_WRITES]; /* slots; -1 none */
    uint32_t first_wait, num_waits; /* into program.waits: indices of earlier tasks */
} weft_task;

typedef struct weft_program {
    const weft_task *tasks;
    uint32_t num_tasks;
    const uint32_t *waits;
    uint32_t num_waits;
    int32_t num_slots;
    int32_t max_in_flight; /* bound on micro-batches forwarded and not yet backwarded */
} weft_program;

/* A task of this kind on its kind's lane, with no flow, stage, peer, slots or waits. */
weft_task weft_task_of(weft_task_kind kind, int micro_batch);

/* Builds programs: append tasks, then finish. Everything lives in the arena. */
typedef struct weft_program_builder weft_program_builder;
weft_status weft_program_builder_create(weft_arena *arena, weft_program_builder **out) WEFT_CHECKED;

/* Appends a task and derives its waits from the slots: what it reads must have been written, what
 * it overwrites must have been read, and the tasks in `after` (indices, may be NULL) must be done.
 * Waits that the lanes' order or other waits already imply are left out, so that every wait in
 * the program is needed. Sets *out_index (may be NULL). WEFT_CONFIG for values out of range. */
weft_status weft_program_append(weft_program_builder *builder, const weft_task *task,
                                const uint32_t *after, uint32_t num_after,
                                uint32_t *out_index) WEFT_CHECKED;
/* Appends a task with exactly these waits: indices of earlier tasks, at most
 * WEFT_TASK_MAX_WAITS. The task's own first_wait and num_waits are ignored. */
weft_status weft_program_add(weft_program_builder *builder, const weft_task *task,
                             const uint32_t *waits, uint32_t num_waits,
                             uint32_t *out_index) WEFT_CHECKED;
/* The builder is used up. */
weft_status weft_program_finish(weft_program_builder *builder, int32_t num_slots,
                                int32_t max_in_flight, weft_program *out) WEFT_CHECKED;

const char *weft_task_kind_text(int kind);
const char *weft_task_kind_letter(int kind);
int weft_task_kind_lane(int kind); /* weft_lane_kind */
const char *weft_lane_kind_text(int lane);
const char *const *weft_lane_kind_texts(void); /* all of them, for weft_trace_name_lanes */
const char *weft_flow_text(int flow);

/* The task's line without its index; cut short if it does not fit (WEFT_TASK_TEXT_BYTES always
 * fits). Returns `text`. */
char *weft_task_format(const weft_program *program, uint32_t index, char *text, size_t bytes);

weft_status weft_program_print(const weft_program *program, FILE *out) WEFT_CHECKED;
/* WEFT_CONFIG with the line number for anything that print would not write. */
weft_status weft_program_parse(const char *text, weft_arena *arena, weft_program *out) WEFT_CHECKED;

#endif
