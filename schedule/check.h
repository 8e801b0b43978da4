/* The checker: proves a set of programs, one a rank, right before anything runs. The table of
 * operands (schedule/values.h) says what tasks read and write; a level adds what it expects.
 *  1. form: waits point backwards; every task has the operands it needs and no others, in slots
 *     that are memory for them;
 *  2. every expected task is there once, and nothing else; kinds that have an order keep it; lanes
 *     and waits delay each task until its expected predecessors are over;
 *  3. every task reads the value that is meant for it; by lanes and waits alone, no task reads a
 *     slot before it is written or overwrites it before its last reader has run;
 *  4. sends match receives: the same values in the same order on each directed pair of ranks;
 *  5. no cycle across ranks, with lanes as FIFOs, every send blocking until its receive starts
 *     (rendezvous), all ranks meeting in NORM, and hosts that enqueue nothing while they wait
 *     (schedule/walk.h): the programs come to an end whatever the transport buffers;
 *  6. no more than max_in_flight micro-batches, or parts, begun and not ended.
 * Pure. */
#ifndef WEFT_SCHEDULE_CHECK_H
#define WEFT_SCHEDULE_CHECK_H

#include "schedule/values.h"

typedef enum weft_held_by { WEFT_BY_PART, WEFT_BY_LAYER, WEFT_BY_EXPERT } weft_held_by;

/* What the slots of one kind hold before the program starts: slot k holds this value of part, layer
 * or expert first + k. */
typedef struct weft_holding {
    weft_slot_kind slots;
    weft_value value;
    weft_held_by by;
    int first;
    int count; /* only the kind's first `count` slots; 0: all of them */
} weft_holding;
enum { WEFT_MAX_HOLDINGS = 6 };

/* What one rank's program must be. */
typedef struct weft_expectation {
    char where[32]; /* whose program, in errors: "stage 2" */
    /* The program must have each task once, with these fields. An operand is 0: required; -1:
     * forbidden. */
    const weft_task *tasks;
    uint32_t num_tasks;
    /* Above 0: the first tasks of the list have micro-batch 0, and stand for the same of each of so
     * many, where the program must have it. What waits for one waits for the last in the program.
     */
    int num_micro_batches;
    bool (*has)(const void *context, const weft_task *task, int micro_batch);
    const void *context; /* for `has` */
    bool may_pair;       /* the program says which passes are paired */
    /* What must be over before a task starts. `tasks` refer to these waits by first_wait and
     * num_waits, of any number; a wait's task is an index of `tasks`, or the step before: the
     * program's tasks wait for that where it is listed, and no others. */
    const weft_wait *waits;
    uint32_t ordered; /* kinds (bits) whose tasks, flow by flow, keep the order of `tasks` */
    /* Tasks of this flow that begin and end what max_in_flight bounds; where a weights' half
     * exists, it is the end. Equal kinds: nothing is bounded. */
    weft_task_kind begins, ends;
    weft_flow flow;
    /* A kind with num_parts slots has part k in slot k; 0: parts may lie in any slot. */
    int num_parts;
    weft_holding holds[WEFT_MAX_HOLDINGS];
    int num_holds;
    /* [num_stages], by virtual stage: the bytes of values in slots that are made for a chunk; NULL:
     * all alike. */
    const uint64_t *stash_bytes, *deferred_bytes;
    int num_stages;
} weft_expectation;

/* Fills in what one rank's program must be. The checker calls it for rank after rank; `scratch`
 * lasts until the next call. */
typedef weft_status (*weft_expect_function)(const void *context, int rank, weft_arena *scratch,
                                            weft_expectation *out);
/* Errors: WEFT_INTERNAL with the rank's `where`, the task's index and its text. */
weft_status weft_program_check_by(const weft_program *programs, weft_expect_function expect,
                                  const void *context, int num_ranks) WEFT_CHECKED;
/* The same, with an array of expectations. */
weft_status weft_program_check(const weft_program *programs, const weft_expectation *expected,
                               int num_ranks) WEFT_CHECKED;

#endif
