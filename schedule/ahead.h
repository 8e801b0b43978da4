/* Enqueues tasks early. While the host enqueues a long task, such as a backward of many layers, it
 * also enqueues later tasks of chosen lanes that wait for the long task's points. Each lane keeps
 * the program's order. So work that the long task puts on a lane itself, such as reads of a file,
 * does not all stand ahead of those later tasks. */
#ifndef WEFT_SCHEDULE_AHEAD_H
#define WEFT_SCHEDULE_AHEAD_H

#include <string.h>

#include "schedule/run.h"

/* Of an executor that runs programs of up to max_tasks tasks. Fill in lanes and passed. */
typedef struct weft_ahead {
    uint32_t lanes; /* bits */
    /* Whether a point of the task that is being enqueued is recorded. */
    bool (*passed)(void *context, const weft_task *task, int point);
    int layer; /* for `passed`: the caller's */
    uint32_t max_tasks;
    bool *early; /* [max_tasks], and */
    const weft_program *program;
    uint32_t at; /* the task at hand */
} weft_ahead;

weft_status weft_ahead_make(uint32_t max_tasks, weft_arena *arena, weft_ahead **out) WEFT_CHECKED;
/* Inside a task's function, when it has recorded points: enqueues what may follow. */
weft_status weft_ahead_go(weft_executor *executor) WEFT_CHECKED;

/* For the executor, about the next task: whether it is enqueued already. ahead may be NULL. */
static inline bool weft_ahead_has(weft_ahead *a, const weft_program *program, uint32_t index)
{
    if (!a)
        return false;
    if (index == 0)
        memset(a->early, 0, a->max_tasks * sizeof *a->early);
    a->program = program;
    a->at = index;
    return a->early[index];
}
/* Refuses a program that the executor cannot run. Else *out_is_ordered: all its tasks are on one
 * lane, so that none waits for another. */
weft_status weft_program_open(const weft_program *program, const weft_executor *executor,
                              bool *out_is_ordered) WEFT_CHECKED;
/* Enqueues a task's waits, or records its event: around work that the caller enqueues in place of
 * the task's function. */
weft_status weft_program_begin_task(const weft_program *program, weft_executor *executor,
                                    uint32_t index, bool is_ordered) WEFT_CHECKED;
weft_status weft_program_end_task(const weft_program *program, weft_executor *executor,
                                  uint32_t index, bool is_ordered) WEFT_CHECKED;
/* Enqueues one task behind its waits. */
weft_status weft_program_enqueue_task(const weft_program *program, weft_executor *executor,
                                      uint32_t index, bool is_ordered) WEFT_CHECKED;
/* The tasks [first, end) of a program, in order. The tasks before `first` must be enqueued, and no
 * other program of this executor after them. */
weft_status weft_program_enqueue_some(const weft_program *program, weft_executor *executor,
                                      uint32_t first, uint32_t end) WEFT_CHECKED;

#endif
