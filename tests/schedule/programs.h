/* Sets of programs for tests, and a way to damage them. */
#ifndef WEFT_TESTS_SCHEDULE_PROGRAMS_H
#define WEFT_TESTS_SCHEDULE_PROGRAMS_H

#include "schedule/build.h"
#include "schedule/pipeline/order_text.h"
#include "schedule/pipeline/pipeline.h"
#include "schedule/text.h"
#include "schedule/values.h"
#include "tests/core/check.h"

enum { MAX_STAGES = 32, MAX_EDIT_TASKS = 512 };

typedef struct program_set {
    weft_arena arena;
    weft_pipeline_shape shape;
    weft_program programs[MAX_STAGES];
} program_set;

program_set make_set(weft_pipeline_kind kind, int num_stages, int num_micro_batches,
                     bool forward_only);
/* buckets NULL: one on every rank. */
program_set make_shaped_set(const weft_pipeline_shape *shape);
void release_set(program_set *set);
weft_status check_set(const program_set *set) WEFT_CHECKED;
/* Equal tasks, waits, slots and bounds, byte for byte. */
bool same_program(const weft_program *a, const weft_program *b);
/* The program's text; the caller frees it. */
char *text_of(const weft_program *program);
/* The program's text reads as the program. */
void is_read_back(const weft_program *program);
/* The program's text, which is also read back. */
void program_is(const weft_program *program, const char *wanted);
/* A program's text is that of a file of tests/schedule/golden, which is also read back. */
void program_is_golden(const weft_program *program, const char *name);
/* The orders of all ranks as CSV; the caller frees it. */
char *order_text(const weft_order_shape *shape, const weft_order *orders);
bool same_orders(const weft_order_shape *shape, const weft_order *a, const weft_order *b);
/* A file of tests/schedule/golden; the caller frees it. */
char *read_golden(const char *name);
/* The index of the task of this micro-batch or part, or a failed test. flow: WEFT_FLOW_NONE for
 * tasks without one. */
uint32_t find_task(const weft_program *program, weft_task_kind kind, weft_flow flow, int number);
/* The first slot of a kind; -1: there is none. */
int first_slot(const weft_program *program, weft_slot_kind holds);
/* Where the task has an operand's slot. */
int16_t *operand_of(weft_task *task, weft_operand_name name);

/* A program taken apart: every task with its own waits. */
typedef struct edit {
    int stage;
    uint32_t num_tasks;
    weft_task tasks[MAX_EDIT_TASKS];
    weft_wait waits[MAX_EDIT_TASKS][WEFT_TASK_MAX_WAITS];
} edit;

void edit_open(const program_set *set, int stage, edit *out);
/* Puts the edited program into the set in place of the stage's. */
void edit_close(const edit *edited, program_set *set);
void drop_wait(edit *edited, uint32_t task, uint32_t which);
/* Takes the wait for the step before from the task, or gives it one. */
void flip_step_wait(edit *edited, uint32_t task);
/* Waits of other tasks keep meaning the same tasks. */
void drop_task(edit *edited, uint32_t task);
void swap_tasks(edit *edited, uint32_t a, uint32_t b);
void insert_task(edit *edited, uint32_t at, const weft_task *task);

/* A check of a set that accepts it, with what the set was made of. It must refuse one of the set's
 * programs where that lacks a wait or a task (errors with `error`), or has another slot, or none,
 * in an operand's place (an error with "slot"). */
typedef weft_status (*program_check)(const void *of, const program_set *set);
void every_wait_is_needed(program_set *set, int program, program_check check, const void *of,
                          const char *error);
void every_task_is_needed(program_set *set, int program, program_check check, const void *of,
                          const char *error);
void every_slot_is_needed(program_set *set, int program, program_check check, const void *of);

/* How many draws of each property: $WEFT_PROPERTY_DRAWS, or 600, under a sanitizer 150. */
int property_draws(void);
/* Reproducible random numbers, below `bound`. */
uint32_t next_random(uint64_t *state, uint32_t bound);

#endif
