/* Starts and ends MPI, makes groups, and chooses how an operation runs. */
#include "core/grow.h"
#include "comm/mpi/mpi_comm.h"
#include "comm/mpi/shared.h"
#include "comm/mpi/tree.h"

#include <stdlib.h>
#include <unistd.h>

/* MPI is one a process, hence so is this. */
static struct {
    bool alive;       /* a world exists */
    bool started_mpi; /* and shall end it */
    /* Freed when the world ends: MPI_Comm_free is collective, destroying a group is not. Guarded
     * by the lock. */
    pthread_mutex_t lock;
    MPI_Comm *handles;
    size_t num_handles, capacity;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

static weft_status keep_handle(MPI_Comm handle)
{
    pthread_mutex_lock(&world.lock);
    const weft_status status =
        WEFT_GROW(world.handles, world.capacity, world.num_handles + 1, "communicators");
    if (status == WEFT_OK)
        world.handles[world.num_handles++] = handle;
    pthread_mutex_unlock(&world.lock);
    return status;
}

static void mpi_abort(int exit_code)
{
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}

typedef struct meeting {
    MPI_Comm handle;
    MPI_Request request;
    bool started;
} meeting;

static weft_status meeting_advance(void *operation, bool *out_moved, bool *out_done)
{
    meeting *m = operation;
    int done = 0;
    if (!m->started) {
        WEFT_TRY(WEFT_MPI(MPI_Ibarrier(m->handle, &m->request)));
        m->started = *out_moved = true;
    }
    WEFT_TRY(WEFT_MPI(MPI_Test(&m->request, &done, MPI_STATUS_IGNORE)));
    *out_done = done;
    return WEFT_OK;
}

/* Waits for the others before a call of MPI's own that blocks: MPI would poll all the while, and
 * the wait is long where ranks come from different work. */
static weft_status meet(MPI_Comm handle)
{
    meeting m = {.handle = handle};
    return weft_engine_run(weft_mpi_engine(), (int)WEFT_PURPOSE_CONTROL, meeting_advance, &m);
}

/* Ends MPI, unless requests are pending that a failed peer will never meet: MPI_Finalize would
 * then wait for ever. */
static void end_mpi(void)
{
    if (!weft_mpi_work_any_abandoned() && meet(MPI_COMM_WORLD) == WEFT_OK) {
        weft_comm_stop_backends();
        weft_mpi_shared_stop();
        while (world.num_handles > 0)
            MPI_Comm_free(&world.handles[--world.num_handles]);
        if (world.started_mpi)
            MPI_Finalize();
    }
    free(world.handles);
    world.handles = NULL;
    world.num_handles = world.capacity = 0;
    weft_mpi_process_end();
    world.alive = false;
}

static void mpi_destroy(weft_comm *base)
{
    weft_mpi_comm *comm = (weft_mpi_comm *)base;
    bool is_world = world.num_handles > 0 && comm->handle == world.handles[0];
    weft_mpi_work_release(comm);
    weft_mpi_shared_close(comm);
    free(comm->tree);
    weft_comm_base_release(base);
    free(comm);
    if (is_world)
        end_mpi();
}

static weft_status mpi_run(const weft_comm_op *op)
{
    if (!weft_comm_is_message(op->kind) && weft_comm_checking() && op->comm->size > 1)
        WEFT_TRY(weft_mpi_check(op));
    if (op->kind == WEFT_COMM_ALL_TO_ALL_SHARDED) {
        WEFT_TRY(weft_mpi_run_sharded(op));
        return WEFT_OK;
    }
    if (weft_mpi_shared_serves(op)) {
        bool served;
        WEFT_TRY(weft_mpi_shared_run(op, &served));
        if (served)
            return WEFT_OK;
    }
    weft_mpi_run run;
    WEFT_TRY(weft_mpi_run_init(&run, op));
    bool by_tree = weft_mpi_tree_serves(op);
    if (!by_tree || op->comm->rank == 0) {
        weft_status status = weft_mpi_work_reserve(run.work, op->comm->size);
        if (status != WEFT_OK) {
            weft_mpi_work_give_back(run.comm, run.work);
            return status;
        }
    }
    if (by_tree)
        weft_mpi_tree_prepare(&run);
    else
        weft_mpi_prepare(&run);
    WEFT_TRY(weft_mpi_run_rounds(&run));
    return WEFT_OK;
}

static weft_status mpi_split(weft_comm *parent, int color, int key, const char *name,
                             weft_comm_purpose purpose, weft_comm **out);
static weft_status mpi_split_node(weft_comm *parent, weft_comm **out);

static const weft_comm_ops mpi_ops = {
    .name = "mpi",
    .enqueue = weft_comm_run_on_lane,
    .run = mpi_run,
    .split = mpi_split,
    .split_node = mpi_split_node,
    .destroy = mpi_destroy,
    .check = weft_mpi_check,
};

/* Learns which ranks share memory with this one, and their gate. Collective over the world. */
static weft_status find_node(void)
{
    MPI_Comm node;
    int rank;
    WEFT_TRY(WEFT_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank)));
    WEFT_TRY(WEFT_MPI(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node)));
    weft_status status = weft_mpi_process_start(node);
    weft_gate *gate = weft_mpi_gate();
    if (status == WEFT_OK)
        status = weft_mpi_shared_gate(node, &gate);
    if (status == WEFT_OK)
        weft_mpi_use_gate(gate);
    MPI_Comm_free(&node);
    return status;
}

static weft_status wrap(MPI_Comm handle, const char *name, weft_comm_purpose purpose, int rank,
                        int size, int *world_ranks, weft_comm **out)
{
    weft_mpi_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for group %s", name);
    weft_status status = weft_comm_base_init(&comm->base, &mpi_ops, name, purpose, rank, size,
                                             world_ranks, mpi_abort);
    if (status != WEFT_OK) {
        free(comm);
        return status;
    }
    comm->handle = handle;
    *out = &comm->base;
    return WEFT_OK;
}

/* Makes the object for a new MPI communicator, which world.handles keeps. */
static weft_status adopt(MPI_Comm handle, const char *name, weft_comm_purpose purpose,
                         weft_comm **out)
{
    int rank, size, *world_ranks = NULL;
    WEFT_TRY(keep_handle(handle));
    WEFT_TRY(WEFT_MPI(MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_rank(handle, &rank)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(handle, &size)));
    bool is_world = world.num_handles == 1;
    weft_status status;
    if (!is_world)
        WEFT_TRY(weft_mpi_world_ranks(handle, size, &world_ranks));
    if (size == 1 && !is_world) {
        status = weft_comm_self_make(name, purpose, world_ranks[0], mpi_abort, out);
        free(world_ranks);
    } else {
        status = wrap(handle, name, purpose, rank, size, world_ranks, out);
        if (status != WEFT_OK) {
            free(world_ranks);
            return status;
        }
        weft_mpi_comm *comm = (weft_mpi_comm *)*out;
        status = weft_mpi_shared_open(comm);
        if (status == WEFT_OK && purpose == WEFT_PURPOSE_CONTROL)
            status = weft_mpi_tree_create(handle, &comm->tree);
    }
    return status;
}

static weft_status mpi_split(weft_comm *parent, int color, int key, const char *name,
                             weft_comm_purpose purpose, weft_comm **out)
{
    MPI_Comm handle, from = ((weft_mpi_comm *)parent)->handle;
    int mpi_color = color < 0 ? MPI_UNDEFINED : color;
    weft_status status = meet(from);
    if (status == WEFT_OK)
        status = WEFT_MPI(MPI_Comm_split(from, mpi_color, key, &handle));
    if (status != WEFT_OK)
        return weft_error_context(status, "group %s of %s", name, parent->name);
    if (color < 0) {
        *out = NULL;
        return WEFT_OK;
    }
    WEFT_TRY(adopt(handle, name, purpose, out));
    return WEFT_OK;
}

static weft_status mpi_split_node(weft_comm *parent, weft_comm **out)
{
    MPI_Comm handle, from = ((weft_mpi_comm *)parent)->handle;
    weft_status status = meet(from);
    int in_turn = weft_mpi_get_limits()->ranks_per_node;
    if (status == WEFT_OK && in_turn > 0)
        status = WEFT_MPI(MPI_Comm_split(from, weft_comm_world_rank(parent, parent->rank) / in_turn,
                                         parent->rank, &handle));
    else if (status == WEFT_OK)
        status = WEFT_MPI(
            MPI_Comm_split_type(from, MPI_COMM_TYPE_SHARED, parent->rank, MPI_INFO_NULL, &handle));
    if (status != WEFT_OK)
        return weft_error_context(status, "group node of %s", parent->name);
    WEFT_TRY(adopt(handle, "node", WEFT_PURPOSE_CONTROL, out));
    return WEFT_OK;
}

/* A step of srun whose tasks could not find each other: Open MPI then ends each of them with a page
 * of its own words. */
static weft_status check_step(void)
{
    int size = 1;
    if (getenv("SLURM_STEP_ID") && weft_comm_launched(NULL, &size, NULL, NULL) && size > 1 &&
        !getenv("PMIX_NAMESPACE") && !getenv("PMI_RANK") && !getenv("OMPI_COMM_WORLD_RANK"))
        return weft_error_share(
            WEFT_ERROR(WEFT_CONFIG,
                       "srun started %d tasks without PMIx, so they cannot meet: srun --mpi=pmix "
                       "(srun --mpi=list shows what this Slurm has)",
                       size),
            0);
    return WEFT_OK;
}

static weft_status start_mpi(void)
{
    int running = 0, provided = MPI_THREAD_SINGLE;
    WEFT_TRY(WEFT_MPI(MPI_Initialized(&running)));
    if (running) {
        WEFT_TRY(WEFT_MPI(MPI_Query_thread(&provided)));
    } else {
        WEFT_TRY(check_step());
        /* A rank that waits gives its core away; a user's own setting stands. */
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
        WEFT_TRY(WEFT_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided)));
        world.started_mpi = true;
    }
    if (provided < MPI_THREAD_MULTIPLE)
        return WEFT_ERROR(
            WEFT_COMM, "this MPI gives thread level %d; MPI_THREAD_MULTIPLE is needed", provided);
    return WEFT_OK;
}

static weft_status check_world_size(void)
{
    int size, launched_size;
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size)));
    if (weft_comm_launched(NULL, &launched_size, NULL, NULL) && launched_size != size)
        return WEFT_ERROR(WEFT_CONFIG,
                          "the launcher started %d ranks but MPI sees %d: is it the launcher of "
                          "the MPI that this program was built with (srun: --mpi=pmix)?",
                          launched_size, size);
    return WEFT_OK;
}

weft_status weft_comm_create_world(weft_comm **out)
{
    if (world.alive)
        return WEFT_ERROR(WEFT_INTERNAL, "a process has one world communicator");
    WEFT_TRY(start_mpi());
    weft_status status = check_world_size();
    if (status == WEFT_OK)
        status = weft_mpi_shared_start();
    if (status != WEFT_OK) {
        if (world.started_mpi)
            MPI_Finalize();
        return status;
    }
    WEFT_TRY(find_node());
    MPI_Comm handle;
    WEFT_TRY(WEFT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &handle)));
    WEFT_TRY(adopt(handle, "world", WEFT_PURPOSE_CONTROL, out));
    world.alive = true;
    return WEFT_OK;
}
