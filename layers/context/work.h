/* The data of the tasks of attention over context-parallel ranks. Private to layers/context*.c. */
#ifndef WEFT_LAYERS_CONTEXT_WORK_H
#define WEFT_LAYERS_CONTEXT_WORK_H

#include "layers/pass/runner.h"
#include "layers/context/memory.h"
#include "schedule/operands.h"

struct weft_context_runtime {
    weft_comm *cp;
    weft_context_plan plan;
    weft_arena arena;
    weft_program programs[2]; /* forward, backward */
    void **memory[2];         /* [num_slots], while a program is enqueued */
    weft_runner runner;
    size_t *send_bytes; /* [cp] */
    bool *begun; /* [cp * WEFT_DEAL_MAX_RUNS]: whether a run of queries was attended before */
};

/* The running program's data: the context of its tasks' functions. */
typedef struct weft_context_work {
    weft_context_runtime *runtime;
    const weft_context_call *call;
    const weft_program *program;
    void **memory;
    weft_context_sizes sizes;
    float *delta;
    bool backward;
} weft_context_work;

/* The memory of an operand; NULL: the task has none. */
void *weft_context_slot(const weft_context_work *work, const weft_task *task,
                        weft_operand_name name);
/* The address `elements` elements behind `data`. */
void *weft_context_at(const void *data, size_t elements, weft_dtype dtype);

/* --- tasks: layers/context/tasks.c, of ATTEND layers/context/attend.c ----------------------- */

weft_status weft_context_attend(void *context, const weft_task *task, weft_lane *lane) WEFT_CHECKED;
/* Fills executor.run for all kinds but ATTEND; the tasks' context is a weft_context_work. */
void weft_context_bind_tasks(weft_executor *executor);

#endif
