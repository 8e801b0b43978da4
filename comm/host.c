/* What ranks do together on the host: they end a fallible phase with one status, and rank 0 sends
 * each its own part. */
#include "comm/comm_ops.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_TAG = 1023 }; /* the last one */

/* The rank's own text, where its record is about this status. */
static void own_text(weft_status status, char *text, size_t text_bytes)
{
    const weft_error *error = weft_error_get();
    snprintf(text, text_bytes, "%s",
             error->status == status && error->text[0] ? error->text : weft_status_text(status));
}

/* From the rank that has it over rank 0 to all. */
static weft_status spread_text(weft_comm *comm, int from, char text[WEFT_ERROR_TEXT_BYTES])
{
    if (from != 0 && comm->rank == from)
        WEFT_TRY(weft_comm_send_host(comm, 0, TEXT_TAG, text, WEFT_ERROR_TEXT_BYTES));
    if (from != 0 && comm->rank == 0)
        WEFT_TRY(weft_comm_recv_host(comm, from, TEXT_TAG, text, WEFT_ERROR_TEXT_BYTES));
    WEFT_TRY(weft_comm_broadcast_host(comm, text, WEFT_ERROR_TEXT_BYTES, 0));
    text[WEFT_ERROR_TEXT_BYTES - 1] = '\0';
    return WEFT_OK;
}

weft_status weft_comm_agree(weft_comm *comm, weft_status status)
{
    if (comm->size == 1) {
        if (status != WEFT_OK && weft_error_get()->status != status)
            return WEFT_ERROR(status, "%s", weft_status_text(status));
        return status;
    }
    char text[WEFT_ERROR_TEXT_BYTES] = {0};
    own_text(status, text, sizeof text);

    /* The worst status, and of the ranks that have it the lowest. */
    int64_t first = (int64_t)status << 32 | (INT32_MAX - comm->rank);
    WEFT_TRY(weft_comm_all_reduce_host(comm, &first, 1, WEFT_I64, WEFT_REDUCE_MAX));
    weft_status worst = (weft_status)(first >> 32);
    int root = INT32_MAX - (int)(first & INT32_MAX);
    if (worst == WEFT_OK)
        return WEFT_OK;

    WEFT_TRY(spread_text(comm, root, text));
    if (comm->rank != root || weft_error_get()->status != worst) /* else it keeps its frames */
        (void)WEFT_ERROR(worst, "%s", text);
    weft_error_of_rank(worst, weft_comm_world_rank(comm, root));
    return weft_error_share(worst, weft_comm_world_rank(comm, 0));
}

/* Rank 0 sends each rank its own part, down a binomial tree of messages. */

enum { SCATTER_TAG = 1022 };

/* Ranks from `rank` on whose parts come with its own: up to the next multiple of `span`. */
static size_t parts_below(const weft_comm *comm, int rank, int span)
{
    return (size_t)(comm->size - rank < span ? comm->size - rank : span);
}

static weft_status scatter(weft_comm *comm, const char *parts, int span, size_t bytes)
{
    for (int half = span / 2; half > 0; half /= 2) {
        const int to = comm->rank + half;
        if (to < comm->size)
            WEFT_TRY(weft_comm_send_host(comm, to, SCATTER_TAG, parts + (size_t)half * bytes,
                                         parts_below(comm, to, half) * bytes));
    }
    return WEFT_OK;
}

static weft_status pass_on(weft_comm *comm, int span, void *recv, size_t bytes)
{
    const size_t num = parts_below(comm, comm->rank, span);
    char *parts = malloc(num * bytes + 1);
    if (!parts)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for what %zu ranks get", num);
    weft_status status =
        weft_comm_recv_host(comm, comm->rank - span, SCATTER_TAG, parts, num * bytes);
    if (status == WEFT_OK)
        status = scatter(comm, parts, span, bytes);
    if (status == WEFT_OK)
        memcpy(recv, parts, bytes);
    free(parts);
    return status;
}

weft_status weft_comm_scatter_host(weft_comm *comm, const void *send, void *recv, size_t bytes)
{
    int span = 1;
    if (bytes == 0)
        return WEFT_OK;
    if (comm->rank > 0) {
        while (!(comm->rank & span))
            span *= 2;
        return pass_on(comm, span, recv, bytes);
    }
    while (span < comm->size)
        span *= 2;
    memcpy(recv, send, bytes);
    return scatter(comm, send, span, bytes);
}
