/* What all backends' communicators are: the base object, where groups stand, the rows of sizes they
 * lend, and whether they are broken. */
#include "comm/comm_ops.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *weft_comm_kind_text(weft_comm_kind kind)
{
    static const char *const texts[] = {
#define KIND_TEXT(name, text) text,
        WEFT_COMM_KIND_LIST(KIND_TEXT)
#undef KIND_TEXT
    };
    return texts[kind];
}

static atomic_bool checking;

void weft_comm_set_check(bool on)
{
    atomic_store(&checking, on);
}

bool weft_comm_checking(void)
{
    return atomic_load(&checking);
}

/* --- where groups stand ---------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    weft_comm *oldest, *newest; /* groups of more than one */
} places = {.lock = PTHREAD_MUTEX_INITIALIZER};

static weft_status place_add(weft_comm *comm)
{
    comm->sum = calloc(1, sizeof *comm->sum);
    if (!comm->sum)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for group %s", comm->name);
    atomic_init(&comm->sum->part, 0);
    atomic_init(&comm->sum->num_users, 1);
    pthread_mutex_lock(&places.lock);
    comm->older_place = places.newest;
    comm->newer_place = NULL;
    if (places.newest)
        places.newest->newer_place = comm;
    else
        places.oldest = comm;
    places.newest = comm;
    pthread_mutex_unlock(&places.lock);
    return WEFT_OK;
}

void weft_comm_match_within(weft_comm *comm, weft_comm *parent)
{
    if (!comm->sum || !parent->sum)
        return;
    atomic_fetch_add(&parent->sum->num_users, 1);
    comm->sum->outer = parent->sum;
}

static void leave_sum(weft_comm_sum *sum)
{
    while (sum && atomic_fetch_sub(&sum->num_users, 1) == 1) {
        weft_comm_sum *outer = sum->outer;
        free(sum);
        sum = outer;
    }
}

static void place_remove(weft_comm *comm)
{
    pthread_mutex_lock(&places.lock);
    if (comm->older_place)
        comm->older_place->newer_place = comm->newer_place;
    else
        places.oldest = comm->newer_place;
    if (comm->newer_place)
        comm->newer_place->older_place = comm->older_place;
    else
        places.newest = comm->older_place;
    pthread_mutex_unlock(&places.lock);
    leave_sum(comm->sum);
}

void weft_comm_each_place(void (*visit)(void *context, const weft_comm_place *place), void *context)
{
    pthread_mutex_lock(&places.lock);
    for (weft_comm *comm = places.oldest; comm; comm = comm->newer_place) {
        weft_comm_place place = {.first_rank = weft_comm_world_rank(comm, 0),
                                 .size = comm->size,
                                 .rank = comm->rank,
                                 .world_ranks = comm->world_ranks,
                                 .num_collectives = atomic_load(&comm->num_collectives),
                                 .num_begun = atomic_load(&comm->num_begun),
                                 .num_messages = atomic_load(&comm->num_messages),
                                 .trail = atomic_load(&comm->trail)};
        memcpy(place.group, comm->name, sizeof place.group);
        visit(context, &place);
    }
    pthread_mutex_unlock(&places.lock);
}

/* --- the base object -------------------------------------------------------------------------- */

weft_status weft_comm_base_init(weft_comm *comm, const weft_comm_ops *ops, const char *name,
                                weft_comm_purpose purpose, int rank, int size, int *world_ranks,
                                void (*abort)(int))
{
    int error = pthread_mutex_init(&comm->lock, NULL);
    if (error)
        return WEFT_ERROR(WEFT_MEMORY, "no mutex (error %d)", error);
    comm->ops = ops;
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->purpose = purpose;
    comm->rank = rank;
    comm->size = size;
    comm->world_ranks = world_ranks;
    comm->abort = abort;
    atomic_init(&comm->num_collectives, 0);
    atomic_init(&comm->num_messages, 0);
    atomic_init(&comm->num_begun, 0);
    atomic_init(&comm->broken, false);
    atomic_init(&comm->trail, 0);
    comm->sum = NULL;
    weft_status status = size > 1 ? place_add(comm) : WEFT_OK;
    if (status != WEFT_OK)
        pthread_mutex_destroy(&comm->lock);
    return status;
}

void weft_comm_base_release(weft_comm *comm)
{
    if (comm->size > 1)
        place_remove(comm);
    while (comm->owned_rows) {
        weft_comm_rows *rows = comm->owned_rows;
        comm->owned_rows = rows->next_owned;
        free(rows);
    }
    free(comm->world_ranks);
    pthread_mutex_destroy(&comm->lock);
}

void weft_comm_destroy(weft_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
}

int weft_comm_rank(const weft_comm *comm)
{
    return comm->rank;
}

int weft_comm_size(const weft_comm *comm)
{
    return comm->size;
}

const char *weft_comm_name(const weft_comm *comm)
{
    return comm->name;
}

int weft_comm_world_rank(const weft_comm *comm, int rank)
{
    if (rank < 0 || rank >= comm->size)
        return -1;
    return comm->world_ranks ? comm->world_ranks[rank] : rank;
}

void weft_comm_abort(weft_comm *comm, weft_status status)
{
    comm->abort(weft_status_exit_code(status));
}

/* Rows of sizes are lent from the communicator, so that a steady state allocates nothing and what
 * a poisoned lane skipped is freed with the communicator. */

weft_comm_rows *weft_comm_rows_take(weft_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    weft_comm_rows *rows = comm->free_rows;
    if (rows) {
        comm->free_rows = rows->next_free;
    } else {
        rows = malloc(sizeof *rows + 2 * (size_t)comm->size * sizeof rows->bytes[0]);
        if (rows) {
            rows->next_owned = comm->owned_rows;
            comm->owned_rows = rows;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    return rows;
}

void weft_comm_rows_give_back(const weft_comm_op *op)
{
    weft_comm *comm = op->comm;
    if (!op->rows)
        return;
    pthread_mutex_lock(&comm->lock);
    op->rows->next_free = comm->free_rows;
    comm->free_rows = op->rows;
    pthread_mutex_unlock(&comm->lock);
}

/* --- broken groups ---------------------------------------------------------------------------- */

weft_status weft_comm_check_broken(weft_comm *comm)
{
    if (!atomic_load(&comm->broken))
        return WEFT_OK;
    char by[sizeof comm->broken_by];
    pthread_mutex_lock(&comm->lock);
    memcpy(by, comm->broken_by, sizeof by);
    pthread_mutex_unlock(&comm->lock);
    return WEFT_ERROR(WEFT_COMM, "group %s is broken since its %s failed", comm->name, by);
}

static void set_broken(weft_comm *comm, weft_comm_kind kind, uint64_t sequence)
{
    pthread_mutex_lock(&comm->lock);
    if (!atomic_load(&comm->broken))
        snprintf(comm->broken_by, sizeof comm->broken_by, "%s %" PRIu64, weft_comm_kind_text(kind),
                 sequence);
    atomic_store(&comm->broken, true);
    pthread_mutex_unlock(&comm->lock);
}

weft_status weft_comm_fail(const weft_comm_op *op, weft_status status)
{
    set_broken(op->comm, op->kind, op->sequence);
    if (op->inside)
        set_broken(op->inside, op->kind, op->inside_sequence);
    return weft_error_context(status, "group %s, rank %d of %d, %s %" PRIu64, op->comm->name,
                              op->comm->rank, op->comm->size, weft_comm_kind_text(op->kind),
                              op->sequence);
}
