/* The memory of asynchronous saves. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "parallel/checkpoint/writer_internal.h"
#include "parallel/topology/topology.h"

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

weft_status weft_checkpoint_writer_reserve(weft_checkpoint_writer *w,
                                           const weft_parameters *parameters,
                                           const weft_optimizer *optimizer, size_t staging_bytes)
{
    enum { PAGE = 4096, OTHERS = 1 << 20 /* entries beside the slabs */ };
    size_t slabs, largest;
    w->world = weft_parameters_groups(parameters)->world;
    if (w->ring.shared) /* for the same, before */
        return WEFT_OK;
    WEFT_TRY(weft_writer_find_bytes(optimizer, &slabs, &largest));
    const size_t needed = (largest + PAGE - 1) / PAGE * PAGE;
    const size_t all = (slabs + OTHERS + needed) / PAGE * PAGE;
    if (staging_bytes > 0 && staging_bytes < needed)
        return WEFT_KEY_ERROR("checkpoint.staging_bytes",
                              "%zu is less than the largest piece takes, which is %zu",
                              staging_bytes, needed);
    const size_t capacity =
        staging_bytes > 0 && staging_bytes < all ? staging_bytes / PAGE * PAGE : all;
    WEFT_TRY(check_memory(capacity));
    WEFT_TRY(weft_staging_create(w->memory, capacity, &w->ring));
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
