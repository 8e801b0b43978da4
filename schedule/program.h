/* A schedule is a program: plain data that can be checked, priced, run and drawn.
 *
 * A program is one rank's array of tasks. A task names its kind, the lane it runs on, what it
 * serves (micro-batch, stage, peer), the buffer slots it reads and writes, and the earlier tasks
 * of this program that it waits for. Lanes are FIFOs: tasks of one lane run in program order;
 * waits order tasks across lanes. Programs are made by pure functions and never rewritten.
 *
 * Slots: a slot is a numbered buffer. A forward task *writes* its activation slot and the matching
 * backward reads it; receive tasks write, send tasks read. What a slot holds is the executor's
 * business; the checker proves that no slot is overwritten while a later task still needs it.
 *
 * Text form: one task a line, `kind lane mb=3 stage=0 peer=1 reads=2 writes=-1 waits=4,7`; printing
 * and parsing are exact inverses, so golden files are programs.
 */
#ifndef WEFT_SCHEDULE_PROGRAM_H
#define WEFT_SCHEDULE_PROGRAM_H

#include <stdint.h>
#include <stdio.h>

#include <weft/status.h>

#include "core/arena.h"

/* name, text, letter for timelines, reads a slot, writes a slot, needs a peer */
#define WEFT_TASK_LIST(X)                                                                          \
    X(FORWARD, "forward", "F", 0, 1, 0)                                                            \
    X(BACKWARD, "backward", "B", 1, 0, 0)                                                          \
    X(SEND, "send", "s", 1, 0, 1)                                                                  \
    X(RECEIVE, "receive", "r", 0, 1, 1)                                                            \
    X(REDUCE, "reduce", "R", 0, 0, 0)                                                              \
    X(STEP, "step", "S", 0, 0, 0)

typedef enum weft_task_kind {
#define WEFT_TASK_ENUM(name, text, letter, reads, writes, peer) WEFT_TASK_##name,
    WEFT_TASK_LIST(WEFT_TASK_ENUM)
#undef WEFT_TASK_ENUM
    WEFT_NUM_TASK_KINDS
} weft_task_kind;

/* name, text */
#define WEFT_LANE_LIST(X)                                                                          \
    X(COMPUTE, "compute")                                                                          \
    X(SEND, "send")                                                                                \
    X(RECEIVE, "receive")                                                                          \
    X(REDUCE, "reduce")

typedef enum weft_lane_kind {
#define WEFT_LANE_ENUM(name, text) WEFT_LANE_##name,
    WEFT_LANE_LIST(WEFT_LANE_ENUM)
#undef WEFT_LANE_ENUM
    WEFT_NUM_LANES
} weft_lane_kind;

/* What a message carries: the direction of a SEND or RECEIVE. */
typedef enum weft_flow { WEFT_FLOW_NONE, WEFT_FLOW_ACTIVATION, WEFT_FLOW_GRADIENT } weft_flow;

typedef struct weft_task {
    uint16_t kind, lane;             /* weft_task_kind, weft_lane_kind */
    uint16_t flow;                   /* weft_flow, of SEND and RECEIVE */
    int32_t micro_batch, stage;      /* -1: none */
    int32_t peer;                    /* the other stage of SEND and RECEIVE; -1 none */
    int32_t reads[2], writes[2];     /* slots; -1 none */
    uint32_t first_wait, num_waits;  /* into program.waits: indices of earlier tasks */
} weft_task;

typedef struct weft_program {
    const weft_task *tasks;
    uint32_t num_tasks;
    const uint32_t *waits;
    uint32_t num_waits;
    int32_t num_slots;
    int32_t max_in_flight; /* bound on micro-batches forwarded and not yet backwarded */
} weft_program;

/* Builds programs: append tasks, then finish. Memory from the arena. */
typedef struct weft_program_builder weft_program_builder;
weft_status weft_program_builder_create(weft_arena *arena, weft_program_builder **out) WEFT_CHECKED;
/* Returns the task's index in *out_index (may be NULL). waits: indices of earlier tasks. */
weft_status weft_program_add(weft_program_builder *builder, const weft_task *task,
                             const uint32_t *waits, uint32_t num_waits,
                             uint32_t *out_index) WEFT_CHECKED;
weft_status weft_program_finish(weft_program_builder *builder, int32_t num_slots,
                                int32_t max_in_flight, weft_program *out) WEFT_CHECKED;

const char *weft_task_kind_text(int kind);
const char *weft_lane_kind_text(int lane);

weft_status weft_program_print(const weft_program *program, FILE *out) WEFT_CHECKED;
/* WEFT_CONFIG with the line number for anything that print would not write. */
weft_status weft_program_parse(const char *text, weft_arena *arena, weft_program *out) WEFT_CHECKED;

#endif
