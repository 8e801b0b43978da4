/* Stacks, which give passes their memory. Private to layers/. */
#ifndef WEFT_LAYERS_STACK_H
#define WEFT_LAYERS_STACK_H

#include <weft/device.h>

/* Of some MoE layers' forwards, which decide what they take: at the experts, from home, and what
 * balanced routing brings. */
typedef struct weft_rows {
    double rows, sent, balanced;
} weft_rows;

/* A stack over a few device blocks. Reserved once from `describe`; it grows only when an MoE layer
 * gets more rows than ever before, and keeps what it grew; its marks tell what was taken. */
enum { WEFT_STACK_MAX_BLOCKS = 24 };
typedef struct weft_stack {
    weft_device *device;
    weft_space space;
    weft_memory_purpose holds;
    const char *purpose; /* in errors */
    struct {
        char *base;
        size_t size, used;
    } blocks[WEFT_STACK_MAX_BLOCKS];
    int num_blocks, current;
    size_t used_bytes, peak_bytes; /* handed out now; most ever */
    size_t first_bytes;            /* reserved at first */
    /* Gives each piece instead of the stack: layers/check.h does so. NULL: the stack gives it. */
    weft_status (*give)(void *giver, size_t bytes, void **out);
    void *giver;
} weft_stack;

weft_status weft_stack_reserve(weft_stack *stack, size_t bytes) WEFT_CHECKED;
weft_status weft_stack_alloc(weft_stack *stack, size_t bytes, void **out) WEFT_CHECKED;
size_t weft_stack_mark(const weft_stack *stack);
void weft_stack_rewind(weft_stack *stack, size_t mark);
/* As it was when it was copied to `saved`; blocks that it got since stay. */
void weft_stack_restore(const weft_stack *saved, weft_stack *stack);
/* Makes one block of those that it grew and that hold nothing now: pieces that are larger than a
 * block's rest leave it empty. Waits for the device's lanes where there are any. */
void weft_stack_settle(weft_stack *stack);
void weft_stack_release(weft_stack *stack);

#endif
