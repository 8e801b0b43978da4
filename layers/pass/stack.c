#include "layers/pass/stack.h"

#include <stdint.h>

#include "layers/describe/describe.h"

enum {
    STACK_MIN_BLOCK_BYTES = 1 << 20,
    /* A block exceeds its need by this part of the memory that a limit leaves, since other stacks
     * grow, too. The last blocks take more, the very last all, so that memory ends before blocks
     * do. */
    STACK_SPARE_PART = 8,
    STACK_LAST_SPARE_PART = 2,
    STACK_NUM_LAST_BLOCKS = 8,
};

weft_status weft_stack_reserve(weft_stack *stack, size_t bytes)
{
    if (bytes == 0)
        return WEFT_OK;
    if (stack->first_bytes == 0)
        stack->first_bytes = bytes;
    if (stack->num_blocks == WEFT_STACK_MAX_BLOCKS)
        return WEFT_ERROR(WEFT_MEMORY, "%s grew too often", stack->purpose);
    void *base;
    WEFT_TRY(weft_device_alloc_for(stack->device, stack->space, stack->holds, bytes, stack->purpose,
                                   &base));
    stack->blocks[stack->num_blocks].base = base;
    stack->blocks[stack->num_blocks].size = bytes;
    stack->blocks[stack->num_blocks].used = 0;
    stack->num_blocks++;
    return WEFT_OK;
}

/* The bytes by which a block may exceed its need. */
static size_t spare_bytes(const weft_stack *stack, size_t bytes)
{
    const int blocks_left = WEFT_STACK_MAX_BLOCKS - stack->num_blocks,
              part = blocks_left > STACK_NUM_LAST_BLOCKS ? STACK_SPARE_PART
                     : blocks_left > 1                   ? STACK_LAST_SPARE_PART
                                                         : 1;
    weft_device_stats stats;
    weft_device_get_stats(stack->device, &stats);
    if (stack->space != WEFT_SPACE_DEVICE || stats.budget_bytes == 0)
        return SIZE_MAX;
    if (stats.budget_bytes <= stats.bytes_now || stats.budget_bytes - stats.bytes_now <= bytes)
        return 0;
    return (stats.budget_bytes - stats.bytes_now - bytes) / (size_t)part;
}

/* Allocates a block for a piece and later ones, or without room for those, for this piece alone. */
static weft_status grow(weft_stack *stack, size_t bytes)
{
    size_t held = 0;
    for (int b = 0; b < stack->num_blocks; b++)
        held += stack->blocks[b].size;
    size_t more = bytes + bytes / 4;
    more = more > held / 8 ? more : held / 8;
    more = more > STACK_MIN_BLOCK_BYTES ? more : STACK_MIN_BLOCK_BYTES;
    const size_t spare = spare_bytes(stack, bytes);
    if (more - bytes > spare)
        more = bytes + spare;
    if (more > bytes) {
        weft_status status = weft_stack_reserve(stack, more);
        if (status != WEFT_MEMORY)
            return status;
        weft_error_clear();
    }
    const weft_status status = weft_stack_reserve(stack, bytes);
    return status != WEFT_MEMORY
               ? status
               : weft_error_context(status, "experts got more rows than there is room for "
                                            "(offload.experts auto, host or file, a smaller "
                                            "offload.kept or slots leave some; offload.placement "
                                            "balanced evens rows out, "
                                            "model.moe_expert_capacity_factor bounds them)");
}

weft_status weft_stack_alloc(weft_stack *stack, size_t bytes, void **out)
{
    size_t asked = bytes;
    bytes = weft_piece_bytes(WEFT_U8, bytes, 1);
    for (; stack->current < stack->num_blocks; stack->current++) {
        int b = stack->current;
        if (stack->blocks[b].size - stack->blocks[b].used >= bytes)
            break;
        if (b + 1 < stack->num_blocks)
            stack->blocks[b + 1].used = 0;
    }
    if (stack->current == stack->num_blocks)
        WEFT_TRY(grow(stack, bytes));
    *out = stack->blocks[stack->current].base + stack->blocks[stack->current].used;
    stack->blocks[stack->current].used += bytes;
    stack->used_bytes += bytes;
    if (stack->used_bytes > stack->peak_bytes)
        stack->peak_bytes = stack->used_bytes;
    return stack->give ? stack->give(stack->giver, asked, out) : WEFT_OK;
}

/* A mark is (block, offset): offsets stay below 2^48. */
size_t weft_stack_mark(const weft_stack *stack)
{
    if (stack->num_blocks == 0 || stack->current == stack->num_blocks)
        return (size_t)stack->current << 48;
    return (size_t)stack->current << 48 | stack->blocks[stack->current].used;
}

void weft_stack_rewind(weft_stack *stack, size_t mark)
{
    int block = (int)(mark >> 48);
    size_t used = mark & (((size_t)1 << 48) - 1);
    for (int b = block; b <= stack->current && b < stack->num_blocks; b++) {
        size_t keep = b == block ? used : 0;
        stack->used_bytes -= stack->blocks[b].used - keep;
        stack->blocks[b].used = keep;
    }
    stack->current = block;
}

void weft_stack_restore(const weft_stack *saved, weft_stack *stack)
{
    for (int b = 0; b < stack->num_blocks; b++)
        stack->blocks[b].used = b < saved->num_blocks ? saved->blocks[b].used : 0;
    stack->current = saved->current;
    stack->used_bytes = saved->used_bytes;
}

void weft_stack_settle(weft_stack *stack)
{
    const int first = stack->num_blocks > 0 && stack->blocks[0].used > 0 ? 1 : 0;
    size_t bytes = 0;
    for (int b = first; b < stack->num_blocks; b++) {
        if (stack->blocks[b].used > 0)
            return;
        bytes += stack->blocks[b].size;
    }
    if (stack->num_blocks - first < 2)
        return;
    while (stack->num_blocks > first) {
        stack->num_blocks--;
        weft_device_free(stack->device, stack->space, stack->blocks[stack->num_blocks].base,
                         stack->blocks[stack->num_blocks].size);
    }
    stack->current = 0;
    if (weft_stack_reserve(stack, bytes) != WEFT_OK)
        weft_error_clear(); /* the stack will grow again on demand */
}

void weft_stack_release(weft_stack *stack)
{
    for (int b = 0; b < stack->num_blocks; b++)
        weft_device_free(stack->device, stack->space, stack->blocks[b].base, stack->blocks[b].size);
    stack->num_blocks = stack->current = 0;
}
