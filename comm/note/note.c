#include "comm/note/note.h"

#include <stdlib.h>
#include <unistd.h>

#include "comm/comm_ops.h"
#include "core/device/device.h"

typedef struct note_comm {
    weft_comm base;
    weft_axis axis;
} note_comm;

static weft_collective collective_of(weft_comm_kind kind)
{
    switch (kind) {
    case WEFT_COMM_ALL_GATHER:
        return WEFT_COLLECTIVE_ALL_GATHER;
    case WEFT_COMM_REDUCE_SCATTER:
        return WEFT_COLLECTIVE_REDUCE_SCATTER;
    case WEFT_COMM_ALL_TO_ALL:
    case WEFT_COMM_ALL_TO_ALL_SHARDED:
        return WEFT_COLLECTIVE_ALL_TO_ALL;
    case WEFT_COMM_SEND:
    case WEFT_COMM_RECV:
    case WEFT_COMM_SEND_RECV:
        return WEFT_COLLECTIVE_MESSAGE;
    default:
        return WEFT_COLLECTIVE_ALL_REDUCE;
    }
}

static size_t sum_of(const size_t *bytes, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += bytes[i];
    return sum;
}

/* What the operation reads of `send` and writes of `recv`, in bytes. */
static void touched_bytes(const weft_comm_op *op, size_t *out_read, size_t *out_written)
{
    const size_t share = op->count * weft_dtype_bytes(op->dtype);
    const int size = op->comm->size;
    *out_read = *out_written = op->bytes;
    switch (op->kind) {
    case WEFT_COMM_ALL_GATHER:
        *out_read = share;
        break;
    case WEFT_COMM_GATHER:
        *out_read = share;
        *out_written = op->comm->rank == op->peer ? op->bytes : 0;
        break;
    case WEFT_COMM_REDUCE_SCATTER:
        *out_written = share;
        break;
    case WEFT_COMM_ALL_TO_ALL:
    case WEFT_COMM_ALL_TO_ALL_SHARDED:
        *out_written = sum_of(op->rows->bytes + size, size);
        break;
    case WEFT_COMM_BROADCAST:
        *out_written = op->comm->rank == op->peer ? 0 : op->bytes;
        break;
    case WEFT_COMM_SEND_RECV:
        *out_written = op->from_bytes;
        break;
    default: /* a message has one of the two */
        break;
    }
}

static weft_status note_ranges(weft_lane *lane, const weft_comm_op *op)
{
    size_t read, written;
    if (!weft_lane_keeps_ranges(lane))
        return WEFT_OK;
    touched_bytes(op, &read, &written);
    const weft_range ranges[] = {
        {.name = "send", .base = op->send, .bytes = read},
        {.name = "recv", .base = op->recv, .bytes = written, .writes = true}};
    return weft_note_ranges(lane, weft_comm_kind_text(op->kind), ranges, 2);
}

static weft_status note_enqueue(weft_lane *lane, const weft_comm_op *op)
{
    WEFT_TRY(note_ranges(lane, op));
    weft_comm_rows_give_back(op);
    if (!weft_device_is_note(weft_lane_device(lane)))
        return WEFT_ERROR(WEFT_INTERNAL, "group %s only notes, and lane %s runs", op->comm->name,
                          weft_lane_name(lane));
    if (op->comm->size == 1)
        return WEFT_OK;
    return weft_note_operation(lane, &(weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                                       .phase = WEFT_PHASE_INPUT_GRADIENT,
                                                       .axis = ((const note_comm *)op->comm)->axis,
                                                       .collective = collective_of(op->kind),
                                                       .bytes = op->bytes,
                                                       .count = 1});
}

static weft_status note_run(const weft_comm_op *op)
{
    (void)op;
    return WEFT_OK;
}

static weft_status note_split(weft_comm *parent, int color, int key, const char *name,
                              weft_comm_purpose purpose, weft_comm **out)
{
    (void)color, (void)key, (void)purpose, (void)out;
    return WEFT_ERROR(WEFT_INTERNAL, "group %s only notes: there is no group %s of it",
                      parent->name, name);
}

static weft_status note_split_node(weft_comm *parent, weft_comm **out)
{
    return note_split(parent, 0, 0, "node", WEFT_PURPOSE_CONTROL, out);
}

static void note_destroy(weft_comm *comm)
{
    comm->size = 1; /* no place to leave: it has none */
    weft_comm_base_release(comm);
    free(comm);
}

static const weft_comm_ops note_ops = {
    .name = "note",
    .enqueue = note_enqueue,
    .run = note_run,
    .split = note_split,
    .split_node = note_split_node,
    .destroy = note_destroy,
};

weft_status weft_comm_create_note(const char *name, weft_axis axis, int rank, int size,
                                  weft_comm **out)
{
    note_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for group %s", name);
    /* Groups of more than one have a place among those that ranks compare; this has none. */
    const weft_status status = weft_comm_base_init(&comm->base, &note_ops, name,
                                                   WEFT_PURPOSE_CONTROL, rank, 1, NULL, _exit);
    if (status != WEFT_OK) {
        free(comm);
        return status;
    }
    comm->base.size = size;
    comm->axis = axis;
    *out = &comm->base;
    return WEFT_OK;
}
