#include "parallel/checkpoint/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "parallel/checkpoint/writer_internal.h"
#include "parallel/topology/topology.h"

enum { ALIGNMENT = 64, FRONT_BYTES = 4096, REST = 0 /* a kind: the ring's end, left empty */ };

size_t weft_staging_entry_bytes(size_t bytes)
{
    return (sizeof(weft_staging_entry) + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Maps a ring in a file that has no bytes yet. Its memory is there when it returns. WEFT_MEMORY. */
static weft_status create_ring(int file, size_t capacity, weft_staging *out)
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

/* The memory of asynchronous saves. */

typedef struct sizes {
    weft_save_run run;
    size_t all, largest;
} sizes;

size_t weft_writer_slab_bytes(const weft_slab *slab, int num_dims)
{
    size_t elements = 1;
    for (int d = 0; d < num_dims; d++)
        elements *= slab->count[d];
    return sizeof(weft_stored_shard) + elements * sizeof(float);
}

static weft_status size_slab(void *context, const weft_slab *slab)
{
    sizes *s = context;
    const size_t bytes =
        weft_staging_entry_bytes(weft_writer_slab_bytes(slab, s->run.piece.placed->box.num_dims));
    s->all += WEFT_NUM_STATES * bytes;
    s->largest = bytes > s->largest ? bytes : s->largest;
    return WEFT_OK;
}

static weft_status size_run(void *context, size_t first, size_t count)
{
    sizes *s = context;
    return weft_box_visit(&s->run.piece.placed->box, first, count, size_slab, s);
}

weft_status weft_writer_find_bytes(const weft_optimizer *optimizer, size_t *all, size_t *largest)
{
    sizes s = {.largest = weft_staging_entry_bytes(WEFT_WRITER_LIST_BYTES)};
    for (int i = 0; i < weft_optimizer_num_pieces(optimizer); i++) {
        weft_state_piece *piece = &s.run.piece;
        *piece = weft_optimizer_piece(optimizer, i);
        if (piece->writer)
            WEFT_TRY(
                weft_runs_visit(&piece->placed->box, piece->first, piece->count, size_run, &s));
    }
    *all = s.all;
    *largest = s.largest;
    return WEFT_OK;
}

uint64_t weft_writer_memory_left(void)
{
    int rank, size, local_rank, ranks = 1;
    if (!weft_comm_launched(&rank, &size, &local_rank, &ranks) || ranks < 1)
        ranks = 1;
    return weft_machine_memory_left() / (uint64_t)ranks;
}

static weft_status check_memory(size_t bytes)
{
    const uint64_t left = weft_writer_memory_left();
    if (bytes > left)
        return WEFT_KEY_ERROR("checkpoint.staging_bytes",
                              "a save takes %zu bytes of host memory, of which there are %" PRIu64
                              " a rank: give fewer",
                              bytes, left);
    return WEFT_OK;
}

weft_status weft_checkpoint_find_staging(const weft_optimizer *optimizer, size_t staging_bytes,
                                         size_t *out)
{
    enum { PAGE = 4096, OTHERS = 1 << 20 /* entries beside the slabs */ };
    size_t slabs, largest;
    WEFT_TRY(weft_writer_find_bytes(optimizer, &slabs, &largest));
    const size_t needed = (largest + PAGE - 1) / PAGE * PAGE;
    const size_t all = (slabs + OTHERS + needed) / PAGE * PAGE;
    if (staging_bytes > 0 && staging_bytes < needed)
        return WEFT_KEY_ERROR("checkpoint.staging_bytes",
                              "%zu is less than the largest piece takes, which is %zu",
                              staging_bytes, needed);
    *out = staging_bytes > 0 && staging_bytes < all ? staging_bytes / PAGE * PAGE : all;
    return WEFT_OK;
}

weft_status weft_checkpoint_writer_reserve(weft_checkpoint_writer *w,
                                           const weft_parameters *parameters,
                                           const weft_optimizer *optimizer, size_t staging_bytes)
{
    size_t capacity;
    w->world = weft_parameters_groups(parameters)->world;
    if (w->ring.shared) /* for the same, before */
        return WEFT_OK;
    WEFT_TRY(weft_checkpoint_find_staging(optimizer, staging_bytes, &capacity));
    WEFT_TRY(check_memory(capacity));
    WEFT_TRY(create_ring(w->memory, capacity, &w->ring));
    /* A writer that has ended is found by its word, as after any save. */
    if (send(w->socket, &capacity, sizeof capacity, MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return WEFT_ERROR(WEFT_FILE, "cannot talk to the process that writes checkpoints: %s",
                          strerror(errno));
    return WEFT_OK;
}

size_t weft_checkpoint_writer_bytes(const weft_checkpoint_writer *w)
{
    return w->ring.capacity;
}
