#include "parallel/spill/internal.h"

#include <stdio.h>

#ifdef WEFT_HAS_LIBURING

#include <errno.h>
#include <string.h>

#include <liburing.h>

struct weft_spill_backend {
    int fd, num_rings;
    struct io_uring *rings; /* one a queue: no two threads share one */
};

static void uring_close(weft_spill_backend *backend)
{
    for (int i = 0; i < backend->num_rings; i++)
        io_uring_queue_exit(&backend->rings[i]);
}

/* Reads and writes by offset are younger than rings. */
static bool can_read_and_write(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return can;
}

static weft_status uring_open(int fd, int num_queues, int depth, weft_arena *arena,
                              char why[WEFT_SPILL_WHY_BYTES], weft_spill_backend **out)
{
    void *rings;
    weft_spill_backend *backend;
    WEFT_TRY(weft_arena_alloc(arena, sizeof(weft_spill_backend), &backend));
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)num_queues, sizeof(struct io_uring), &rings));
    *backend = (weft_spill_backend){fd, 0, rings};
    while (backend->num_rings < num_queues) {
        struct io_uring *ring = &backend->rings[backend->num_rings];
        int fault = weft_spill_next_fault();
        int error = fault > 0 ? fault : -io_uring_queue_init((unsigned)depth, ring, 0);
        if (error) {
            uring_close(backend);
            snprintf(why, WEFT_SPILL_WHY_BYTES, "io_uring: %s", strerror(error));
            return WEFT_DEVICE;
        }
        backend->num_rings++;
        if (!can_read_and_write(ring)) {
            uring_close(backend);
            snprintf(why, WEFT_SPILL_WHY_BYTES, "this kernel's io_uring has no read and write");
            return WEFT_DEVICE;
        }
    }
    *out = backend;
    return WEFT_OK;
}

static void uring_submit(weft_spill_backend *backend, int queue, weft_spill_piece *piece)
{
    /* A ring has an entry for each of the `depth` requests that may be under way. */
    struct io_uring_sqe *entry = io_uring_get_sqe(&backend->rings[queue]);
    char *memory = piece->memory + piece->done;
    uint64_t offset = piece->offset + piece->done;
    if (piece->fault)
        io_uring_prep_nop(entry);
    else if (piece->is_write)
        io_uring_prep_write(entry, backend->fd, memory, (unsigned)piece->asked, offset);
    else
        io_uring_prep_read(entry, backend->fd, memory, (unsigned)piece->asked, offset);
    io_uring_sqe_set_data(entry, piece);
}

/* What the kernel wants repeated; it takes what it can, so repeating ends. */
static bool is_passing(int error)
{
    return error == -EINTR || error == -EAGAIN || error == -EBUSY;
}

static int uring_start(weft_spill_backend *backend, int queue)
{
    struct io_uring *ring = &backend->rings[queue];
    while (io_uring_sq_ready(ring)) {
        int taken = io_uring_submit(ring);
        /* Short of memory, the kernel takes more when what is under way is over. */
        if (is_passing(taken) && taken != -EINTR)
            return 0;
        if (taken < 0 && taken != -EINTR)
            return -taken;
    }
    return 0;
}

static int uring_wait(weft_spill_backend *backend, int queue, weft_spill_piece **out)
{
    struct io_uring *ring = &backend->rings[queue];
    struct io_uring_cqe *over;
    while (io_uring_peek_cqe(ring, &over) != 0) {
        int error = io_uring_submit_and_wait(ring, 1);
        if (error < 0 && !is_passing(error))
            return -error;
    }
    weft_spill_piece *piece = io_uring_cqe_get_data(over);
    piece->result = piece->fault ? -piece->fault : over->res;
    io_uring_cqe_seen(ring, over);
    *out = piece;
    return 0;
}

#else

static weft_status uring_open(int fd, int num_queues, int depth, weft_arena *arena,
                              char why[WEFT_SPILL_WHY_BYTES], weft_spill_backend **out)
{
    (void)fd, (void)num_queues, (void)depth, (void)arena, (void)out;
    snprintf(why, WEFT_SPILL_WHY_BYTES, "io_uring: this build has no liburing");
    return WEFT_CONFIG;
}

static void uring_close(weft_spill_backend *backend)
{
    (void)backend;
}

static void uring_submit(weft_spill_backend *backend, int queue, weft_spill_piece *piece)
{
    (void)backend, (void)queue, (void)piece;
}

static int uring_start(weft_spill_backend *backend, int queue)
{
    (void)backend, (void)queue;
    return 0;
}

static int uring_wait(weft_spill_backend *backend, int queue, weft_spill_piece **out)
{
    (void)backend, (void)queue, (void)out;
    return 0;
}

#endif

const weft_spill_ops weft_spill_uring = {
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .start = uring_start,
    .wait = uring_wait,
};
