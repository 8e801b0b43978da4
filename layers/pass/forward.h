/* A layer's forward in a pass, and the forward that runs again for backward. Private to layers/. */
#ifndef WEFT_LAYERS_PASS_FORWARD_H
#define WEFT_LAYERS_PASS_FORWARD_H

#include "layers/outline/outline.h"
#include "layers/pass/graphs.h"
#include "schedule/operands.h"

/* The running program's data. */
typedef struct weft_pass_work {
    const weft_pass_call *call;
    const weft_program *program;
    weft_tensor *slots; /* by slot of the program */
} weft_pass_work;

/* A layer's data from forward to backward. */
typedef struct weft_pass_kept {
    weft_tensor x;    /* its input; inside a recomputed group only the address */
    size_t host_mark; /* where its host memory begins */
} weft_pass_kept;

weft_pass_kept *weft_pass_kept_of(const weft_pass *pass);
/* The memory of an operand; empty: the task has none. */
weft_tensor weft_pass_operand(const weft_pass_work *work, const weft_task *task,
                              weft_operand_name name);
weft_status weft_pass_run_forward(weft_pass_work *work, const weft_task *task) WEFT_CHECKED;
/* Runs a forward again, with the same stash and host memory; metrics do not count it again. */
weft_status weft_pass_run_again(void *work, const weft_task *task, weft_lane *lane) WEFT_CHECKED;

#endif
