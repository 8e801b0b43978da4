/* Stacks, the memory of passes. */
#ifndef WEFT_LAYERS_PASS_STACK_H
#define WEFT_LAYERS_PASS_STACK_H

#include <weft/device.h>

/* Rows of MoE layers' forwards, on which their memory depends: at the experts, sent, and at the
 * experts under balanced routing. */
typedef struct weft_rows {
    double rows, sent, balanced;
} weft_rows;

/* A stack over a few device blocks, reserved once by `describe`. It grows only when an MoE layer
 * gets more rows than ever before, and never shrinks; marks record its use. */
enum { WEFT_STACK_MAX_BLOCKS = 24 };
typedef struct weft_stack {
    weft_device *device;
    weft_space space;
    weft_memory_purpose holds;
    const char *purpose; /* a name for errors */
    struct {
        char *base;
        size_t size, used;
    } blocks[WEFT_STACK_MAX_BLOCKS];
    int num_blocks, current;
    size_t used_bytes, peak_bytes; /* in use now; the most ever */
    size_t first_bytes;            /* the first reservation */
    /* Allocates each piece in place of the stack, for layers/check/check.h; NULL: the stack does.
     */
    weft_status (*give)(void *giver, size_t bytes, void **out);
    void *giver;
} weft_stack;

weft_status weft_stack_reserve(weft_stack *stack, size_t bytes) WEFT_CHECKED;
weft_status weft_stack_alloc(weft_stack *stack, size_t bytes, void **out) WEFT_CHECKED;
size_t weft_stack_mark(const weft_stack *stack);
void weft_stack_rewind(weft_stack *stack, size_t mark);
/* Restores the state copied to `saved`; later blocks stay. */
void weft_stack_restore(const weft_stack *saved, weft_stack *stack);
/* Merges the empty blocks by which the stack grew, since pieces larger than a block's rest leave
 * gaps. Waits for the device's lanes if there are any such blocks. */
void weft_stack_settle(weft_stack *stack);
void weft_stack_release(weft_stack *stack);

#endif
