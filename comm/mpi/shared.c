/* Makes and frees windows. */
#include "comm/mpi/shared.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"

/* MPI is one a process. Changed only where groups are made and where the world ends. */
static struct {
    bool wanted;
    weft_mpi_window *newest;
    MPI_Win gate; /* MPI_WIN_NULL: none */
    bool warned;
    pthread_mutex_t lock; /* guards newest and warned */
} shared = {.gate = MPI_WIN_NULL, .lock = PTHREAD_MUTEX_INITIALIZER};

enum { UNCLEAR = 2 };

static int read_setting(void)
{
    const char *text = getenv("WEFT_SHARED_WINDOWS");
    if (!text || strcmp(text, "1") == 0)
        return 1;
    return strcmp(text, "0") == 0 ? 0 : UNCLEAR;
}

/* Every rank judges the same settings, hence alike. */
weft_status weft_mpi_shared_start(void)
{
    static const int bits[] = {[0] = 1, [1] = 2, [UNCLEAR] = 4};
    int setting = read_setting(), any = 0;
    WEFT_TRY(WEFT_MPI(MPI_Allreduce(&bits[setting], &any, 1, MPI_INT, MPI_BOR, MPI_COMM_WORLD)));
    if (any & bits[UNCLEAR])
        return WEFT_ERROR(WEFT_CONFIG, "WEFT_SHARED_WINDOWS is neither 0 nor 1 on some rank");
    if (any == (bits[0] | bits[1]))
        return WEFT_ERROR(WEFT_CONFIG,
                          "WEFT_SHARED_WINDOWS must be the same on all ranks: it is %d here",
                          setting);
    shared.wanted = setting == 1;
    return WEFT_OK;
}

void weft_mpi_shared_stop(void)
{
    /* Newest first on every rank: the order in which groups were made had no cycles, nor has its
     * reverse. */
    while (shared.newest) {
        weft_mpi_window *window = shared.newest;
        shared.newest = window->older;
        MPI_Win_unlock_all(window->handle);
        MPI_Win_free(&window->handle);
        free(window);
    }
    if (shared.gate != MPI_WIN_NULL)
        MPI_Win_free(&shared.gate);
}

static bool on_one_node(const weft_comm *comm)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (weft_mpi_link(comm, rank) != WEFT_LINK_INSIDE)
            return false;
    return true;
}

enum { PAGE_BYTES = _Alignof(weft_mpi_segment) };

/* MPI may put a segment anywhere in its mapping; mappings begin at pages in every process. */
static void *aligned(void *base)
{
    uintptr_t at = (uintptr_t)base;
    return (void *)((at + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
}

static weft_status allocate(weft_mpi_window *window, MPI_Comm handle, int size)
{
    MPI_Info info;
    void *base;
    WEFT_TRY(WEFT_MPI(MPI_Info_create(&info)));
    /* Each rank's segment on pages of its own, near the rank that touches them first. */
    weft_status status = WEFT_MPI(MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    if (status == WEFT_OK)
        status = WEFT_MPI(MPI_Win_allocate_shared((MPI_Aint)(sizeof(weft_mpi_segment) + PAGE_BYTES),
                                                  1, info, handle, &base, &window->handle));
    MPI_Info_free(&info);
    WEFT_TRY(status);
    memset(aligned(base), 0, sizeof(weft_mpi_segment));
    for (int i = 0; i < size; i++) {
        MPI_Aint bytes;
        int unit;
        WEFT_TRY(WEFT_MPI(MPI_Win_shared_query(window->handle, i, &bytes, &unit, &base)));
        window->segments[i] = aligned(base);
    }
    WEFT_TRY(WEFT_MPI(MPI_Win_lock_all(MPI_MODE_NOCHECK, window->handle)));
    return WEFT_OK;
}

static void warn_once(int rank)
{
    pthread_mutex_lock(&shared.lock);
    bool first = !shared.warned;
    shared.warned = true;
    pthread_mutex_unlock(&shared.lock);
    if (first && rank == 0)
        weft_log(WEFT_LOG_WARN,
                 "no shared memory for collectives inside a node (%s): they go by messages, which "
                 "is slower",
                 weft_error_get()->text[0] ? weft_error_get()->text : "another rank has none");
    weft_error_clear();
}

weft_status weft_mpi_shared_open(weft_mpi_comm *comm)
{
    int size = comm->base.size;
    if (!shared.wanted || size == 1 || size > WEFT_MPI_MAX_WINDOW_RANKS ||
        !on_one_node(&comm->base))
        return WEFT_OK;
    weft_mpi_window *window = calloc(1, sizeof *window + (size_t)size * sizeof *window->segments);
    if (!window)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the window of %d ranks", size);
    weft_error_clear();
    weft_status status = allocate(window, comm->handle, size);
    /* Either all ranks use it or none does. This also orders the zeroes before everything else. */
    int ok = status == WEFT_OK, all_ok = 0;
    WEFT_TRY(WEFT_MPI(MPI_Allreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, comm->handle)));
    if (!all_ok) {
        /* What some ranks may have is left to the end of the process: freeing it would wait for
         * those that have none. */
        warn_once(comm->base.rank);
        free(window);
        return WEFT_OK;
    }
    pthread_mutex_lock(&shared.lock);
    window->older = shared.newest;
    shared.newest = window;
    pthread_mutex_unlock(&shared.lock);
    comm->window = window;
    return WEFT_OK;
}

weft_status weft_mpi_shared_gate(MPI_Comm node, weft_gate **out)
{
    int size, rank, unit;
    void *base = NULL;
    MPI_Aint bytes;
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(node, &size)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_rank(node, &rank)));
    if (!shared.wanted || size == 1)
        return WEFT_OK;
    weft_error_clear();
    bytes = rank == 0 ? (MPI_Aint)sizeof(weft_gate) + PAGE_BYTES : 0;
    weft_status status =
        WEFT_MPI(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, node, &base, &shared.gate));
    if (status == WEFT_OK && rank == 0)
        memset(aligned(base), 0, sizeof(weft_gate));
    if (status == WEFT_OK)
        status = WEFT_MPI(MPI_Win_shared_query(shared.gate, 0, &bytes, &unit, &base));
    int ok = status == WEFT_OK, all_ok = 0;
    WEFT_TRY(WEFT_MPI(MPI_Allreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, node)));
    if (all_ok) {
        *out = aligned(base);
        return WEFT_OK;
    }
    shared.gate = MPI_WIN_NULL;
    warn_once(rank);
    return WEFT_OK;
}
