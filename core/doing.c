#include "core/doing.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local bool leads;
static struct {
    atomic_int_least64_t step;
    atomic_int program, stretch, number;
} place;

void weft_doing_lead(int32_t program)
{
    leads = true;
    atomic_store(&place.program, program);
}

void weft_doing_enter_step(int64_t step)
{
    if (atomic_exchange(&place.step, step) == step)
        return;
    atomic_store(&place.stretch, WEFT_DOING_PASSES);
    atomic_store(&place.number, 0);
}

void weft_doing_pass(weft_doing_stretch stretch)
{
    if (!leads)
        return;
    const int before = atomic_load(&place.stretch);
    const bool goes_on = stretch == WEFT_DOING_BEHIND && before >= (int)WEFT_DOING_BEHIND;
    atomic_store(&place.stretch, goes_on ? before + 1 : (int)stretch);
    atomic_fetch_add(&place.number, 1);
}

weft_doing_place weft_doing_place_now(void)
{
    return (weft_doing_place){.step = atomic_load(&place.step),
                              .program = atomic_load(&place.program),
                              .stretch = atomic_load(&place.stretch),
                              .number = atomic_load(&place.number)};
}

int weft_doing_compare(const weft_doing_place *a, const weft_doing_place *b)
{
    if (a->step != b->step)
        return a->step > b->step ? 1 : -1;
    if (a->program == b->program)
        return (a->number > b->number) - (a->number < b->number);
    return (a->stretch > b->stretch) - (a->stretch < b->stretch);
}

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
        const bool is_said = doing->layer >= 0 && strcmp(doing->inner, "layer") == 0;
        int more = snprintf(out + used, WEFT_DOING_TEXT_BYTES - used, ":%s%s", is_said ? "" : " ",
                            is_said ? "" : doing->inner);
        used += more > 0 ? (size_t)more : 0;
    }
    used = add(out, used, "layer", doing->layer);
    add(out, used, "part", doing->part);
    return out;
}
