#include "core/doing.h"

#include <stdio.h>

weft_doing *weft_doing_now(void)
{
    static _Thread_local weft_doing now;
    return &now;
}

void weft_doing_begin(const char *task, int32_t micro_batch, int32_t chunk, int32_t layer,
                      int32_t part)
{
    weft_doing *now = weft_doing_now();
    if (!now->task) {
        *now = (weft_doing){task, NULL, micro_batch, chunk, layer, part};
        return;
    }
    now->inner = task;
    now->micro_batch = micro_batch < 0 ? now->micro_batch : micro_batch;
    now->chunk = chunk < 0 ? now->chunk : chunk;
    now->layer = layer < 0 ? now->layer : layer;
    now->part = part < 0 ? now->part : part;
}

static size_t add(char *out, size_t used, const char *name, int32_t number)
{
    if (number < 0 || used >= WEFT_DOING_TEXT_BYTES)
        return used;
    int more = snprintf(out + used, WEFT_DOING_TEXT_BYTES - used, " %s %d", name, (int)number);
    return used + (more > 0 ? (size_t)more : 0);
}

const char *weft_doing_text(const weft_doing *doing, char out[WEFT_DOING_TEXT_BYTES])
{
    out[0] = '\0';
    if (!doing->task)
        return out;
    int first = snprintf(out, WEFT_DOING_TEXT_BYTES, "%s", doing->task);
    size_t used = first > 0 ? (size_t)first : 0;
    used = add(out, used, "micro-batch", doing->micro_batch);
    used = add(out, used, "chunk", doing->chunk);
    if (doing->inner && used < WEFT_DOING_TEXT_BYTES) {
        int more = snprintf(out + used, WEFT_DOING_TEXT_BYTES - used, ": %s", doing->inner);
        used += more > 0 ? (size_t)more : 0;
    }
    used = add(out, used, "layer", doing->layer);
    add(out, used, "part", doing->part);
    return out;
}
