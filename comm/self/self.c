/* The group of one: every collective is at most a copy, and MPI does not start. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_ops.h"
#include "comm/staging.h"

static size_t copied_bytes(const weft_comm_op *op)
{
    return op->rows ? op->rows->bytes[0] : op->bytes;
}

static weft_status self_run(const weft_comm_op *op)
{
    size_t bytes = copied_bytes(op);
    if (bytes > 0 && op->recv != op->send) /* in place: nothing to do */
        memcpy(op->recv, op->send, bytes);
    return WEFT_OK;
}

/* What is in place needs no lane: a group of one costs next to nothing. A GPU's lane copies by
 * itself. */
static weft_status self_enqueue(weft_lane *lane, const weft_comm_op *op)
{
    if (op->recv != op->send && weft_staging_is_needed(lane)) {
        weft_comm_op copied = *op;
        WEFT_TRY(weft_lane_copy(lane, op->recv, op->send, copied_bytes(op)));
        copied.recv = (void *)op->send;
        return weft_comm_run_here(&copied);
    }
    return op->recv == op->send ? weft_comm_run_here(op) : weft_comm_run_on_lane(lane, op);
}

static weft_status self_split(weft_comm *parent, int color, int key, const char *name,
                              weft_comm_purpose purpose, weft_comm **out)
{
    (void)key;
    if (color < 0) {
        *out = NULL;
        return WEFT_OK;
    }
    return weft_comm_self_make(name, purpose, weft_comm_world_rank(parent, 0), parent->abort, out);
}

static weft_status self_split_node(weft_comm *parent, weft_comm **out)
{
    return weft_comm_self_make("node", WEFT_PURPOSE_CONTROL, weft_comm_world_rank(parent, 0),
                               parent->abort, out);
}

static void self_destroy(weft_comm *comm)
{
    weft_comm_base_release(comm);
    free(comm);
}

static const weft_comm_ops self_ops = {
    .name = "self",
    .enqueue = self_enqueue,
    .run = self_run,
    .split = self_split,
    .split_node = self_split_node,
    .destroy = self_destroy,
};

weft_status weft_comm_self_make(const char *name, weft_comm_purpose purpose, int world_rank,
                                void (*abort)(int), weft_comm **out)
{
    weft_comm *comm = calloc(1, sizeof *comm);
    int *world_ranks = malloc(sizeof *world_ranks);
    if (!comm || !world_ranks) {
        free(comm);
        free(world_ranks);
        return WEFT_ERROR(WEFT_MEMORY, "no memory for group %s", name);
    }
    *world_ranks = world_rank;
    weft_status status =
        weft_comm_base_init(comm, &self_ops, name, purpose, 0, 1, world_ranks, abort);
    if (status != WEFT_OK) {
        free(comm);
        free(world_ranks);
        return status;
    }
    *out = comm;
    return WEFT_OK;
}

weft_status weft_comm_alone(const weft_comm *parent, const char *name, weft_comm_purpose purpose,
                            weft_comm **out)
{
    return weft_comm_self_make(name, purpose, weft_comm_world_rank(parent, parent->rank),
                               parent->abort, out);
}

weft_status weft_comm_create_self(weft_comm **out)
{
    return weft_comm_self_make("self", WEFT_PURPOSE_CONTROL, 0, _exit, out);
}
