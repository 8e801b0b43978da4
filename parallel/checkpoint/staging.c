#include "parallel/checkpoint/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, FRONT_BYTES = 4096, REST = 0 /* a kind: the ring's end, left empty */ };

size_t weft_staging_entry_bytes(size_t bytes)
{
    return (sizeof(weft_staging_entry) + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

weft_status weft_staging_create(int file, size_t capacity, weft_staging *out)
{
    int failed = posix_fallocate(file, 0, (off_t)(FRONT_BYTES + capacity));
    if (failed)
        return WEFT_ERROR(WEFT_MEMORY, "checkpoint.staging_bytes: no host memory for %zu bytes: %s",
                          capacity, strerror(failed));
    return weft_staging_join(file, capacity, out);
}

/* Pages are mapped now: the first save is no slower than the next. */
weft_status weft_staging_join(int file, size_t capacity, weft_staging *out)
{
    const size_t bytes = FRONT_BYTES + capacity;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED)
        return WEFT_ERROR(WEFT_MEMORY, "checkpoint.staging_bytes: cannot map %zu bytes: %s",
                          capacity, strerror(errno));
    *out = (weft_staging){.shared = memory,
                          .memory = (char *)memory + FRONT_BYTES,
                          .capacity = capacity / ALIGNMENT * ALIGNMENT};
    return WEFT_OK;
}

void weft_staging_release(weft_staging *ring)
{
    if (ring->shared)
        munmap(ring->shared, FRONT_BYTES + ring->capacity);
    *ring = (weft_staging){.shared = NULL};
}

static weft_staging_entry *entry_at(const weft_staging *ring, uint64_t place)
{
    return (weft_staging_entry *)(void *)(ring->memory + place % ring->capacity);
}

/* Lays an entry down that takes `all` of the capacity. */
static weft_staging_entry *lay(weft_staging *ring, uint64_t kind, size_t bytes, size_t all)
{
    if (ring->filled + all - atomic_load(&ring->shared->taken) > ring->capacity)
        return NULL;
    weft_staging_entry *entry = entry_at(ring, ring->filled);
    *entry = (weft_staging_entry){.kind = kind, .bytes = bytes};
    ring->filled += all;
    return entry;
}

/* An entry lies in one piece: where the rest of the ring is too short for it, that stays empty. */
void *weft_staging_put(weft_staging *ring, uint64_t kind, size_t bytes)
{
    const size_t all = weft_staging_entry_bytes(bytes);
    const size_t rest = ring->capacity - (size_t)(ring->filled % ring->capacity);
    if (all > rest && !lay(ring, REST, rest - sizeof(weft_staging_entry), rest))
        return NULL;
    weft_staging_entry *entry = lay(ring, kind, bytes, all);
    return entry ? entry + 1 : NULL;
}

bool weft_staging_show(weft_staging *ring)
{
    atomic_store(&ring->shared->put, ring->filled);
    return atomic_exchange(&ring->shared->taker_waits, 0) != 0;
}

void weft_staging_wait_for_room(weft_staging *ring)
{
    atomic_store(&ring->shared->putter_waits, 1);
}

const weft_staging_entry *weft_staging_next(weft_staging *ring)
{
    uint64_t taken = atomic_load(&ring->shared->taken);
    if (taken == atomic_load(&ring->shared->put))
        return NULL;
    weft_staging_entry *entry = entry_at(ring, taken);
    if (entry->kind != REST)
        return entry;
    atomic_store(&ring->shared->taken, taken + weft_staging_entry_bytes(entry->bytes));
    return weft_staging_next(ring);
}

bool weft_staging_take(weft_staging *ring, const weft_staging_entry *entry)
{
    atomic_fetch_add(&ring->shared->taken, weft_staging_entry_bytes(entry->bytes));
    return atomic_exchange(&ring->shared->putter_waits, 0) != 0;
}

void weft_staging_wait_for_entries(weft_staging *ring)
{
    atomic_store(&ring->shared->taker_waits, 1);
}
