/* Rank 0 sends each rank its own part, down a binomial tree of messages. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm_ops.h"

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
