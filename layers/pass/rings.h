/* The rings of sharded layers (parallel/residency/residency.h): a pass's tasks use the slots in
 * rotation, from where the previous pass stopped. Each slot has an event at its last use; the task
 * that fills the slot next, in whatever program, waits for it. Private to layers/. */
#ifndef WEFT_LAYERS_PASS_RINGS_H
#define WEFT_LAYERS_PASS_RINGS_H

#include <weft/device.h>

#include "parallel/parameters/parameters.h"
#include "schedule/operands.h"

typedef struct weft_rings {
    weft_parameters *parameters; /* borrowed */
    weft_lane *reduce;           /* borrowed; NULL: nothing is trained */
    weft_lane *gather;           /* NULL: no sharded weights */
    /* Events of gradient slots, of weight slots. */
    weft_event *used[2][WEFT_RING_SLOTS];
    int turn[2]; /* the ring's slot for the next program's first slot */
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
/* After a LAYER: marks its weights' slot as used. */
weft_status weft_rings_end(weft_rings *rings, const weft_program *program, const weft_task *task,
                           weft_lane *lane) WEFT_CHECKED;
/* Reduces the gradients of a REDUCE's layer; overwrite: they replace what this rank keeps. */
weft_status weft_rings_reduce(weft_rings *rings, const weft_program *program, const weft_task *task,
                              bool overwrite, weft_lane *lane) WEFT_CHECKED;
/* After a program: the next program's slots begin behind this one's. */
void weft_rings_advance(weft_rings *rings, const weft_program *program);

#endif
