/* Makes and frees windows. */
#include "comm/mpi/shared.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"

/* MPI is one a process. Changed only where groups are made and where the world ends. */
static struct {
    bool wanted;
    weft_mpi_window *newest;
    int next_id;  /* from 1 */
    MPI_Win gate; /* MPI_WIN_NULL: none */
    bool warned;
    pthread_mutex_t lock; /* guards newest, next_id, in_use and warned */
} shared = {.next_id = 1, .gate = MPI_WIN_NULL, .lock = PTHREAD_MUTEX_INITIALIZER};

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
        free(window->world_ranks);
        free(window);
    }
    shared.next_id = 1;
    if (shared.gate != MPI_WIN_NULL)
        MPI_Win_free(&shared.gate);
}

static bool on_one_node(const weft_comm *comm)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (weft_mpi_link(comm, rank) != WEFT_GATE_INSIDE)
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

static bool same_ranks(const weft_mpi_window *window, const weft_comm *comm)
{
    if (window->size != comm->size || !window->world_ranks != !comm->world_ranks)
        return false;
    return !comm->world_ranks || memcmp(window->world_ranks, comm->world_ranks,
                                        (size_t)comm->size * sizeof *comm->world_ranks) == 0;
}

static weft_mpi_window *find_free(const weft_comm *comm)
{
    weft_mpi_window *window = shared.newest;
    while (window && (window->in_use || !same_ranks(window, comm)))
        window = window->older;
    return window;
}

/* The window that all ranks of the group have no more use for, or NULL and the number of a new one.
 */
static weft_status find_or_number(const weft_mpi_comm *comm, weft_mpi_window **out, int *out_id)
{
    pthread_mutex_lock(&shared.lock);
    weft_mpi_window *free_one = find_free(&comm->base);
    const int id = free_one ? free_one->id : 0, mine[] = {id, -id, -shared.next_id};
    int least[3] = {0};
    pthread_mutex_unlock(&shared.lock);
    WEFT_TRY(WEFT_MPI(MPI_Allreduce(mine, least, 3, MPI_INT, MPI_MIN, comm->handle)));
    *out = id > 0 && least[0] == id && least[1] == -id ? free_one : NULL;
    *out_id = -least[2];
    return WEFT_OK;
}

static weft_status make_window(const weft_mpi_comm *comm, int id, weft_mpi_window **out)
{
    const size_t size = (size_t)comm->base.size, bytes = size * sizeof *comm->base.world_ranks;
    weft_mpi_window *window = calloc(1, sizeof *window + size * sizeof *window->segments);
    int *ranks = comm->base.world_ranks ? malloc(bytes) : NULL;
    if (!window || (comm->base.world_ranks && !ranks)) {
        free(window);
        free(ranks);
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the window of %zu ranks", size);
    }
    if (ranks)
        memcpy(ranks, comm->base.world_ranks, bytes);
    window->id = id;
    window->size = comm->base.size;
    window->world_ranks = ranks;
    *out = window;
    return WEFT_OK;
}

/* As a new one: its operations are counted from 0. */
static void wipe(weft_mpi_segment *own)
{
    memset(own, 0, offsetof(weft_mpi_segment, slots));
}

static void use(weft_mpi_comm *comm, weft_mpi_window *window, bool is_new)
{
    pthread_mutex_lock(&shared.lock);
    if (is_new) {
        window->older = shared.newest;
        shared.newest = window;
        shared.next_id = window->id + 1;
    }
    window->in_use = true;
    pthread_mutex_unlock(&shared.lock);
    comm->window = window;
}

weft_status weft_mpi_shared_open(weft_mpi_comm *comm)
{
    const int size = comm->base.size;
    weft_mpi_window *window = NULL, *made = NULL;
    int id = 0;
    if (!shared.wanted || size == 1 || size > WEFT_MPI_MAX_WINDOW_RANKS ||
        !on_one_node(&comm->base))
        return WEFT_OK;
    weft_error_clear();
    WEFT_TRY(find_or_number(comm, &window, &id));
    if (!window) {
        WEFT_TRY(make_window(comm, id, &made));
        window = made;
    }
    weft_status status = made ? allocate(window, comm->handle, size) : WEFT_OK;
    if (status == WEFT_OK)
        wipe(window->segments[comm->base.rank]);
    /* Either all ranks use it or none does. This also orders the zeroes before everything else. */
    int ok = status == WEFT_OK, all_ok = 0;
    WEFT_TRY(WEFT_MPI(MPI_Allreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, comm->handle)));
    if (!all_ok) {
        /* What some ranks may have is left to the end of the process: freeing it would wait for
         * those that have none. */
        warn_once(comm->base.rank);
        free(window->world_ranks);
        free(window);
        return WEFT_OK;
    }
    use(comm, window, made != NULL);
    return WEFT_OK;
}

void weft_mpi_shared_close(weft_mpi_comm *comm)
{
    pthread_mutex_lock(&shared.lock);
    if (comm->window)
        comm->window->in_use = false;
    pthread_mutex_unlock(&shared.lock);
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
