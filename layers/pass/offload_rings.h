/* The rings of offloaded stashes (layers/pass/offload.h), and copies between them and the host. A
 * layer has the same slot in every pass, so a prefetched stash lies where forward put it, and
 * pointers into it stay valid. Rings outlive programs: each slot has an event at its last use, and
 * the task that fills the slot next waits for it. */
#ifndef WEFT_LAYERS_PASS_OFFLOAD_RINGS_H
#define WEFT_LAYERS_PASS_OFFLOAD_RINGS_H

#include <weft/device.h>

#include "layers/pass/offload.h"
#include "layers/pass/stack.h"
#include "schedule/operands.h"

typedef struct weft_pass weft_pass;

/* Whose stash lies in a slot. */
typedef struct weft_occupant {
    const weft_pass *pass; /* NULL: nothing */
    int layer;
} weft_occupant;

typedef struct weft_offload_rings {
    weft_lane *out, *back; /* owned; NULL: nothing is offloaded */
    int num_slots, num_inputs;
    struct {
        weft_stack stack;  /* grows as the pass's do */
        weft_rows fullest; /* of the layer that used most of the stack */
        weft_event *used;
        weft_occupant holds;
    } slots[WEFT_OFFLOAD_SLOTS];
    struct {
        weft_tensor rows;
        weft_event *used;
        weft_occupant holds;
    } inputs[WEFT_OFFLOAD_INPUTS];
    weft_device *device; /* borrowed */
    size_t input_bytes;  /* of one input, as reserved */
} weft_offload_rings;

/* The host copy of one pass and layer. */
typedef struct weft_offloaded {
    char *host;                         /* the input first */
    size_t used[WEFT_STACK_MAX_BLOCKS]; /* of the slot's blocks */
} weft_offloaded;

/* row: an input's shape, without memory. After an error the caller still releases. */
weft_status weft_offload_create(weft_device *device, const weft_offload_sizes *sizes,
                                const weft_tensor *row, weft_offload_rings *out) WEFT_CHECKED;
void weft_offload_release(weft_offload_rings *ring);
/* The k-th input slot's memory. */
const weft_tensor *weft_offload_input(const weft_offload_rings *ring, int k);

/* Before a forward of `pass` is enqueued on `lane`: makes the lane wait for its slots. *out_stack:
 * the empty stack for its offloaded stash; NULL: it offloads none. */
weft_status weft_offload_begin(weft_offload_rings *ring, const weft_program *program,
                               const weft_task *task, const weft_pass *pass, weft_lane *lane,
                               weft_stack **out_stack) WEFT_CHECKED;
/* After a backward on `lane`: marks its slots as used. */
weft_status weft_offload_end(weft_offload_rings *ring, const weft_program *program,
                             const weft_task *task, weft_lane *lane) WEFT_CHECKED;
/* Runs an OFFLOAD, whose copy is a piece of `host`; keeps: a PREFETCH follows. */
weft_status weft_offload_out(weft_offload_rings *ring, const weft_program *program,
                             const weft_task *task, bool keeps, weft_stack *host,
                             weft_offloaded *copy, weft_lane *lane) WEFT_CHECKED;
/* Runs a PREFETCH. Copies nothing if the slot still has the stash. */
weft_status weft_offload_back(weft_offload_rings *ring, const weft_program *program,
                              const weft_task *task, const weft_pass *pass,
                              const weft_offloaded *copy, weft_lane *lane) WEFT_CHECKED;

#endif
