/* The rings of what layers share out (parallel/residency.h): a pass's tasks use their slots in
 * turn, and go round where the pass before stopped. Each slot has an event at its last use, for
 * which the task waits that fills it next, whichever program that is in. Private to layers/. */
#ifndef WEFT_LAYERS_RINGS_H
#define WEFT_LAYERS_RINGS_H

#include <weft/device.h>

#include "parallel/parameters.h"
#include "schedule/operands.h"

typedef struct weft_rings {
    weft_parameters *parameters; /* borrowed */
    weft_lane *reduce;           /* borrowed; NULL: nothing is trained */
    weft_lane *gather;           /* NULL: no weights are shared out */
    /* Of gradients, of weights. */
    weft_event *used[2][WEFT_RING_SLOTS];
    int turn[2]; /* the slot that the next program's first one stands for */
} weft_rings;

weft_status weft_rings_create(weft_device *device, weft_parameters *parameters,
                              weft_rings *out) WEFT_CHECKED;
void weft_rings_release(weft_rings *rings);

/* Gathers the weights of a GATHER's layer, enqueued on `lane`. */
weft_status weft_rings_gather(weft_rings *rings, const weft_program *program, const weft_task *task,
                              weft_lane *lane) WEFT_CHECKED;
/* In training, before a LAYER is enqueued on `lane`: clears the slot of its gradients, if any. */
weft_status weft_rings_begin(weft_rings *rings, const weft_program *program, const weft_task *task,
                             weft_lane *lane) WEFT_CHECKED;
/* After it: its weights' slot has been used. */
weft_status weft_rings_end(weft_rings *rings, const weft_program *program, const weft_task *task,
                           weft_lane *lane) WEFT_CHECKED;
/* Reduces the gradients of a REDUCE's layer; overwrite: they replace what this rank keeps. */
weft_status weft_rings_reduce(weft_rings *rings, const weft_program *program, const weft_task *task,
                              bool overwrite, weft_lane *lane) WEFT_CHECKED;
/* Behind a program: the next one's slots come after its. */
void weft_rings_advance(weft_rings *rings, const weft_program *program);

#endif
