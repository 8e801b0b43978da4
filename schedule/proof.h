/* What every checker of programs proves, whatever the tasks mean: that waits and slots are well
 * formed, and that every task reads the value meant for it and overwrites nothing that is needed,
 * by the order of lanes and waits alone. What a task's operands are is the checker's to say. */
#ifndef WEFT_SCHEDULE_PROOF_H
#define WEFT_SCHEDULE_PROOF_H

#include "schedule/program.h"

/* The value that operand i of a task must be or becomes: an index of value_texts; 0: the task has
 * no such operand. */
typedef int (*weft_operand_value)(const void *context, const weft_task *task, int i);

/* What is done before a task starts, by the order of lanes and waits alone: for each lane,
 * 1 + the index of its latest such task (0: none). */
typedef struct weft_past {
    uint32_t upto[WEFT_NUM_LANES];
} weft_past;

/* A slot in program order: what it holds (0: nothing), and 1 + index of who wrote it (0: it was
 * there before the program) and of the last reader on each lane since then. */
typedef struct weft_slot_state {
    int32_t value, micro_batch;
    uint32_t writer, readers[WEFT_NUM_LANES];
} weft_slot_state;

typedef struct weft_proof {
    const weft_program *program;
    char where[32]; /* whose program, in errors: "stage 2" */
    weft_operand_value read, written;
    const void *context; /* of these two */
    const char *const *value_texts;
    const weft_past *pasts; /* set by weft_proof_pasts */
    weft_arena *scratch;
} weft_proof;

/* Sets the error "WHERE, task INDEX (its text) ...". */
weft_status weft_proof_fail(const weft_proof *proof, uint32_t index, const char *format, ...)
    WEFT_PRINTF(3, 4) WEFT_CHECKED;

weft_status weft_proof_num_slots(const weft_proof *proof) WEFT_CHECKED;
/* The task can be read, and waits for earlier tasks only. */
weft_status weft_proof_waits(const weft_proof *proof, uint32_t index) WEFT_CHECKED;
/* The task names the slots it needs, in range, and writes no two values to one. */
weft_status weft_proof_operands(const weft_proof *proof, uint32_t index) WEFT_CHECKED;

/* Finds every task's past, once all waits are proven. */
weft_status weft_proof_pasts(weft_proof *proof) WEFT_CHECKED;
/* Replays the slots in program order from what they hold, and every two tasks that touch a slot,
 * one of them writing, must be ordered by lanes and waits: then any execution sees what the replay
 * saw. `slots` [num_slots] is left as the program leaves it. After pasts and operands. */
weft_status weft_proof_slots(const weft_proof *proof, weft_slot_state *slots) WEFT_CHECKED;

#endif
