/* Builds programs: slots, then tasks, then finish. The program lives in the arena. */
#ifndef WEFT_SCHEDULE_BUILD_H
#define WEFT_SCHEDULE_BUILD_H

#include <weft/status.h>

#include "core/arena.h"
#include "schedule/program.h"

typedef struct weft_program_builder weft_program_builder;
weft_status weft_program_builder_create(weft_arena *arena, weft_program_builder **out) WEFT_CHECKED;
/* Reserves memory for num_tasks tasks and num_waits waits; only before anything is added. The
 * builder's own memory lies in `scratch`, which must outlive the builder. */
weft_status weft_program_expect(weft_program_builder *builder, uint32_t num_tasks,
                                uint32_t num_waits, weft_arena *scratch) WEFT_CHECKED;
/* Adds `count` equal rows to the table of slots. Sets *out_first (may be NULL) to the number of the
 * first, or to -1 for a count of 0. */
weft_status weft_program_add_slots(weft_program_builder *builder, const weft_slot *slot, int count,
                                   int32_t *out_first) WEFT_CHECKED;
/* Appends a task and derives its waits from its operands: tasks that write what it reads, tasks
 * that read what it overwrites, and `after` (may be NULL) must be over. Waits that the lanes' order
 * or other waits already imply are left out, so that every wait in the program is needed. Sets
 * *out_index (may be NULL). WEFT_CONFIG for values out of range. */
weft_status weft_program_append(weft_program_builder *builder, const weft_task *task,
                                const weft_wait *after, uint32_t num_after,
                                uint32_t *out_index) WEFT_CHECKED;
/* Appends a task with exactly these waits, at most WEFT_TASK_MAX_WAITS. The task's own first_wait
 * and num_waits are ignored. */
weft_status weft_program_add(weft_program_builder *builder, const weft_task *task,
                             const weft_wait *waits, uint32_t num_waits,
                             uint32_t *out_index) WEFT_CHECKED;
/* The value in the slot is needed no more, and its tasks are nothing to those that use the slot
 * next. */
void weft_program_forget(weft_program_builder *builder, int32_t slot);
/* The last call: nothing can be appended after it. */
weft_status weft_program_finish(weft_program_builder *builder, int32_t max_in_flight,
                                weft_program *out) WEFT_CHECKED;

#endif
