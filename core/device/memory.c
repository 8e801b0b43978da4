/* A device's memory: its budget, and the bytes in use and their peaks, by space and by purpose. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/device.h>

#include "core/grow.h"
#include "core/sized.h"
#include "core/arena.h"
#include "core/device/device.h"
#include "core/device/ops.h"
#include "core/text.h"

static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER; /* of every device's blocks */

void weft_device_get_stats(const weft_device *device, weft_device_stats *out)
{
    const weft_device_usage *memory = &device->usage[WEFT_SPACE_DEVICE];
    const weft_device_usage *pinned = &device->usage[WEFT_SPACE_PINNED];
    *out = (weft_device_stats){
        .bytes_now = atomic_load(&memory->now),
        .bytes_peak = atomic_load(&memory->peak),
        .pinned_bytes_now = atomic_load(&pinned->now),
        .pinned_bytes_peak = atomic_load(&pinned->peak),
        .budget_bytes = device->budget_bytes,
        .num_allocs = atomic_load(&device->num_allocs),
    };
}

weft_memory_use weft_device_memory_use(const weft_device *device, weft_memory_purpose purpose)
{
    const weft_device_usage *usage = &device->purposes[purpose];
    return (weft_memory_use){atomic_load(&usage->now), atomic_load(&usage->peak)};
}

void weft_device_reset_peak(weft_device *device)
{
    for (int space = 0; space < 2; space++)
        atomic_store(&device->usage[space].peak, atomic_load(&device->usage[space].now));
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
        atomic_store(&device->purposes[i].peak, atomic_load(&device->purposes[i].now));
}

/* " (weights 3 GiB, scratch 1 GiB)": what holds the memory of a space. */
static const char *format_holders(const weft_device *device, weft_space space, char *text,
                                  size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES && used < text_bytes; i++) {
        size_t pinned = atomic_load(&device->pinned_now[i]);
        size_t now = atomic_load(&device->purposes[i].now);
        size_t here = space == WEFT_SPACE_PINNED ? pinned : now - pinned;
        if (here > 0)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s %s", used ? ", " : " (",
                                     weft_memory_text((weft_memory_purpose)i),
                                     weft_bytes_text((double)here).text);
    }
    if (used > 0 && used + 1 < text_bytes)
        snprintf(text + used, text_bytes - used, ")");
    return text;
}

static weft_status refuse(const weft_device *device, weft_space space, size_t bytes,
                          const char *name, const char *why)
{
    char holders[256];
    bool limited = space == WEFT_SPACE_DEVICE && device->budget_bytes > 0;
    return WEFT_ERROR(WEFT_MEMORY, "out of memory: %s asked %s, %s in use%s, %s%s%s", name,
                      weft_bytes_text((double)bytes).text,
                      weft_bytes_text((double)atomic_load(&device->usage[space].now)).text,
                      format_holders(device, space, holders, sizeof holders),
                      limited ? "budget " : "no budget",
                      limited ? weft_bytes_text((double)device->budget_bytes).text : "", why);
}

static void add_usage(weft_device_usage *usage, size_t bytes)
{
    size_t now = atomic_fetch_add(&usage->now, bytes) + bytes, peak = atomic_load(&usage->peak);
    while (peak < now && !atomic_compare_exchange_weak(&usage->peak, &peak, now))
        continue;
}

/* Notes what a block is for, so that whoever frees it need not say. */
static bool note_block(weft_device *device, weft_space space, size_t bytes, void *memory,
                       weft_memory_purpose purpose, bool counts)
{
    weft_device_blocks *blocks = &device->blocks;
    pthread_mutex_lock(&blocks_lock);
    if (WEFT_GROW(blocks->items, blocks->capacity, blocks->count + 1, "blocks of memory") !=
        WEFT_OK) {
        pthread_mutex_unlock(&blocks_lock);
        return false;
    }
    blocks->items[blocks->count++] = (weft_device_block){memory, bytes, space, purpose, counts};
    pthread_mutex_unlock(&blocks_lock);
    if (!counts)
        return true;
    if (space == WEFT_SPACE_PINNED)
        atomic_fetch_add(&device->pinned_now[purpose], bytes);
    add_usage(&device->purposes[purpose], bytes);
    return true;
}

/* Returns whether it counted. */
static bool forget_block(weft_device *device, weft_space space, size_t bytes, const void *memory)
{
    weft_device_blocks *blocks = &device->blocks;
    pthread_mutex_lock(&blocks_lock);
    size_t i = blocks->count;
    while (i > 0 && blocks->items[i - 1].memory != memory)
        i--;
    assert(i > 0);
    const weft_memory_purpose purpose = blocks->items[i - 1].purpose;
    const bool counts = blocks->items[i - 1].counts;
    blocks->items[i - 1] = blocks->items[--blocks->count];
    pthread_mutex_unlock(&blocks_lock);
    if (!counts)
        return false;
    atomic_fetch_sub(&device->purposes[purpose].now, bytes);
    if (space == WEFT_SPACE_PINNED)
        atomic_fetch_sub(&device->pinned_now[purpose], bytes);
    return true;
}

bool weft_device_space_of(const weft_device *device, const void *memory, weft_space *out)
{
    const weft_device_blocks *blocks = &device->blocks;
    bool found = false;
    pthread_mutex_lock(&blocks_lock);
    for (size_t i = 0; i < blocks->count && !found; i++) {
        const weft_device_block *block = &blocks->items[i];
        found = (uintptr_t)memory - (uintptr_t)block->memory < block->bytes;
        if (found)
            *out = block->space;
    }
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

weft_status weft_device_alloc_for(weft_device *device, weft_space space,
                                  weft_memory_purpose purpose, size_t bytes, const char *name,
                                  void **out)
{
    WEFT_TRY(WEFT_GIVEN(device));
    WEFT_TRY(WEFT_GIVEN(name));
    WEFT_TRY(WEFT_GIVEN(out));
    weft_device_usage *usage = &device->usage[space];
    size_t limit = SIZE_MAX;
    if (space == WEFT_SPACE_DEVICE && device->budget_bytes > 0)
        limit = device->budget_bytes;

    atomic_fetch_add(&device->num_allocs, 1);
    size_t now = atomic_load(&usage->now);
    do {
        if (bytes > limit || now > limit - bytes)
            return refuse(device, space, bytes, name, "");
    } while (!atomic_compare_exchange_weak(&usage->now, &now, now + bytes));

    void *memory = weft_alloc_should_fail() ? NULL : device->ops->alloc(device, space, bytes);
    if (memory && !note_block(device, space, bytes, memory, purpose, true)) {
        device->ops->free(device, space, memory, bytes);
        memory = NULL;
    }
    if (!memory) {
        atomic_fetch_sub(&usage->now, bytes);
        return refuse(device, space, bytes, name, ", and the machine has no more");
    }
    size_t peak = atomic_load(&usage->peak);
    while (peak < now + bytes && !atomic_compare_exchange_weak(&usage->peak, &peak, now + bytes))
        continue;
    *out = memory;
    return WEFT_OK;
}

weft_status weft_device_alloc(weft_device *device, weft_space space, size_t bytes, const char *name,
                              void **out)
{
    return weft_device_alloc_for(device, space, WEFT_MEMORY_OTHER, bytes, name, out);
}

void weft_device_free(weft_device *device, weft_space space, void *memory, size_t bytes)
{
    if (!memory)
        return;
    weft_device_wait(device);
    size_t before = atomic_fetch_sub(&device->usage[space].now, bytes);
    assert(before >= bytes);
    (void)before;
    (void)forget_block(device, space, bytes, memory);
    device->ops->free(device, space, memory, bytes);
}

weft_status weft_device_adopt(weft_device *device, weft_memory_purpose purpose, void *memory,
                              size_t bytes, bool counts, const char *name)
{
    if (weft_alloc_should_fail() || !device->ops->pin(device, memory, bytes))
        return refuse(device, WEFT_SPACE_PINNED, bytes, name, ", and it cannot be pinned");
    if (!note_block(device, WEFT_SPACE_PINNED, bytes, memory, purpose, counts)) {
        device->ops->unpin(device, memory);
        return refuse(device, WEFT_SPACE_PINNED, bytes, name, ", and the machine has no more");
    }
    if (counts)
        add_usage(&device->usage[WEFT_SPACE_PINNED], bytes);
    return WEFT_OK;
}

void weft_device_disown(weft_device *device, void *memory, size_t bytes)
{
    if (!memory)
        return;
    weft_device_wait(device);
    if (forget_block(device, WEFT_SPACE_PINNED, bytes, memory))
        atomic_fetch_sub(&device->usage[WEFT_SPACE_PINNED].now, bytes);
    device->ops->unpin(device, memory);
}

const char *weft_memory_text(weft_memory_purpose purpose)
{
    static const char *const texts[] = {
#define WEFT_MEMORY_TEXT(name, text) [WEFT_MEMORY_##name] = text,
        WEFT_MEMORY_LIST(WEFT_MEMORY_TEXT)
#undef WEFT_MEMORY_TEXT
    };
    return texts[purpose];
}
