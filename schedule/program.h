/* A schedule is a program: plain data that can be checked, priced, run and drawn.
 *
 * A program is one rank's array of tasks. A task names its kind and flow, the lane it runs on, what
 * it serves (micro-batch, chunk, layer, part, expert, bucket), its operands by name, and the
 * earlier tasks of this program that it waits for. Lanes are FIFOs: tasks of one lane run in
 * program order; waits order tasks across lanes. Programs are made by pure functions and never
 * rewritten.
 *
 * Operands and slots: a task's kind and flow give its operands (schedule/values.h): the name of
 * each, its value, and whether the task reads or writes it. An operand names a slot, a row of the
 * program's table of slots, which says what the slot holds and how many bytes. Executors fill
 * arrays by that table; only generators compute with slot numbers.
 *
 * Points: other tasks may wait for a point inside a task. When a backward passes point l, the
 * gradients of layer l and of all layers above it hold this micro-batch's share. It passes its
 * points in falling order; of a backward in two halves the weights' half passes them. At
 * WEFT_POINT_LANDED the gradient of the waiting task's own bucket, which a lane of its own brings
 * there, is in host memory. A program knows no order among these: neither another point nor the
 * task's end says that one of them is passed.
 *
 * The step before: a task may wait for the last task that updated what it serves in the step before
 * (schedule/pipeline/update.h): its bucket, or in an experts' program the expert at its position.
 */
#ifndef WEFT_SCHEDULE_PROGRAM_H
#define WEFT_SCHEDULE_PROGRAM_H

#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"
#include "schedule/flows.h"
#include "schedule/kinds.h"
#include "schedule/slots.h"

enum {
    WEFT_TASK_MAX_OPERANDS = 7,
    WEFT_TASK_MAX_WAITS = 15, /* lanes are FIFOs: one for each other lane, and the step before */
    WEFT_PROGRAM_MAX_SLOTS = 32768,
    WEFT_PROGRAM_MAX_CHUNKS = 32767, /* a virtual stage's number stays an int */
    /* A task's flags. The host waits inside the task and enqueues nothing behind it until it is
     * done. */
    WEFT_TASK_HOST_WAITS = 1,
    /* A forward and the backward right behind it, whole or its input's half, are one pair: both
     * begin when the waits of both are over, and end together. */
    WEFT_TASK_PAIRED = 2,
    WEFT_TASK_ALL_FLAGS = 3,
};

#define WEFT_STEP_BEFORE UINT32_MAX /* in place of an awaited task */

/* Without padding, so that equal programs are equal bytes. */
typedef struct weft_task {
    uint8_t kind, lane;  /* weft_task_kind, weft_lane_kind */
    uint8_t flow, flags; /* weft_flow */
    int32_t micro_batch; /* within the step; -1 here and below: none */
    int32_t layer, bucket;
    int32_t expert; /* the expert's position in the program (schedule/experts/experts.h) */
    int32_t peer; /* SEND, RECEIVE: the other rank. A part by peers: how many groups of ranks ahead
                     it goes; 0: the rank's own group */
    uint32_t first_wait; /* into program.waits */
    uint16_t num_waits;
    int16_t part;  /* of an MoE layer, an exchange; a layer's later GATHER */
    int16_t chunk; /* virtual stage of this rank; its number among all: weft_stage_of
                      (core/stage.h) */
    int16_t operands[WEFT_TASK_MAX_OPERANDS]; /* slots, in the order of the table of operands */
} weft_task;

typedef struct weft_wait {
    uint32_t task; /* an earlier one, or WEFT_STEP_BEFORE */
    int32_t point; /* a layer's point in the task; WEFT_POINT_LANDED; -1: the task's end */
} weft_wait;
enum { WEFT_POINT_LANDED = -2 };

typedef struct weft_slot {
    uint32_t holds; /* weft_slot_kind */
    int32_t chunk;  /* for whose values the slot is made: those of the rank's other chunks may lie
                       there if they have no more bytes; -1: chunks' values are all alike */
    uint64_t bytes; /* 0: nothing, or known only when the program runs */
} weft_slot;

typedef struct weft_program {
    const weft_task *tasks;
    const weft_wait *waits;
    const weft_slot *slots;
    uint32_t num_tasks, num_waits;
    int32_t num_slots;
    int32_t max_in_flight; /* bound on micro-batches (parts) begun and not yet ended */
    bool is_v;             /* a step's: virtual stages lie in a V (core/stage.h) */
} weft_program;

/* A task of this kind and flow, on its lane in the table of operands; all other fields none. */
weft_task weft_task_of(weft_task_kind kind, weft_flow flow);

/* Counts slots of a kind; chunk -1: those of all chunks. */
int weft_program_count_slots(const weft_program *program, weft_slot_kind holds, int chunk);

/* Whether the task is the forward of a pair, whose backward comes next. */
static inline bool weft_task_opens_pair(const weft_task *task)
{
    return (task->flags & WEFT_TASK_PAIRED) && task->kind == WEFT_TASK_FORWARD;
}

/* Whether the task is one that waits for the step before. waits: its program's. */
bool weft_task_awaits_step(const weft_task *task, const weft_wait *waits);

/* Whether the host waits inside one of the tasks. */
bool weft_program_host_waits(const weft_program *program);

const char *weft_task_kind_text(int kind);
const char *weft_task_kind_letter(int kind);
int weft_task_kind_stretch(int kind); /* a weft_doing_stretch, or -1 */
const char *weft_lane_kind_text(int lane);
const char *const *weft_lane_kind_texts(void); /* all of them, for weft_trace_name_lanes */
const char *weft_flow_text(int flow);
const char *weft_slot_kind_text(int holds);

#endif
