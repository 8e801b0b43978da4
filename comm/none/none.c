/* No backend, for programs that plan and never communicate: groups have one rank and refuse the
 * operations that running layers ask for. */
#include "comm/comm.h"

int weft_comm_rank(const weft_comm *comm)
{
    (void)comm;
    return 0;
}

int weft_comm_size(const weft_comm *comm)
{
    (void)comm;
    return 1;
}

static weft_status absent(const char *what)
{
    return WEFT_ERROR(WEFT_INTERNAL, "%s: this program plans, it does not run", what);
}

weft_status weft_comm_reserve(const weft_comm *comm, weft_lane *lane, size_t bytes)
{
    (void)comm, (void)lane, (void)bytes;
    return absent("comm_reserve");
}

weft_status weft_all_reduce(weft_comm *comm, weft_lane *lane, void *buffer, size_t count,
                            weft_dtype dtype, weft_reduce reduce)
{
    (void)comm, (void)lane, (void)buffer, (void)count, (void)dtype, (void)reduce;
    return absent("all_reduce");
}

weft_status weft_reduce_scatter(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                                size_t count, weft_dtype dtype, weft_reduce reduce)
{
    (void)comm, (void)lane, (void)send, (void)recv, (void)count, (void)dtype, (void)reduce;
    return absent("reduce_scatter");
}

weft_status weft_all_gather(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                            size_t count, weft_dtype dtype)
{
    (void)comm, (void)lane, (void)send, (void)recv, (void)count, (void)dtype;
    return absent("all_gather");
}

weft_status weft_all_to_all(weft_comm *comm, weft_lane *lane, const void *send,
                            const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    (void)comm, (void)lane, (void)send, (void)send_bytes, (void)recv, (void)recv_bytes;
    return absent("all_to_all");
}

weft_status weft_all_to_all_sharded(weft_comm *between, weft_comm *inside, weft_lane *lane,
                                    const void *send, const size_t *send_bytes, void *recv,
                                    const size_t *recv_bytes, size_t chunk_bytes)
{
    (void)between, (void)inside, (void)lane, (void)send, (void)send_bytes, (void)recv;
    (void)recv_bytes, (void)chunk_bytes;
    return absent("all_to_all_sharded");
}

weft_status weft_send_recv(weft_comm *comm, weft_lane *lane, int to, const void *send,
                           size_t send_bytes, int from, void *recv, size_t recv_bytes, int tag)
{
    (void)comm, (void)lane, (void)to, (void)send, (void)send_bytes, (void)from, (void)recv;
    (void)recv_bytes, (void)tag;
    return absent("send_recv");
}

int weft_comm_world_rank(const weft_comm *comm, int rank)
{
    (void)comm;
    return rank;
}

weft_status weft_comm_split(weft_comm *parent, int color, int key, const char *name,
                            weft_comm_purpose purpose, weft_comm **out)
{
    (void)parent, (void)color, (void)key, (void)name, (void)purpose, (void)out;
    return absent("weft_comm_split");
}

weft_status weft_comm_split_node(weft_comm *parent, weft_comm **out)
{
    (void)parent, (void)out;
    return absent("weft_comm_split_node");
}

void weft_comm_destroy(weft_comm *comm)
{
    (void)comm;
}

weft_status weft_comm_all_gather_host(weft_comm *comm, const void *send, void *recv, size_t bytes)
{
    (void)comm, (void)send, (void)recv, (void)bytes;
    return absent("weft_comm_all_gather_host");
}

weft_status weft_comm_agree(weft_comm *comm, weft_status status)
{
    (void)comm;
    return status;
}

weft_status weft_comm_barrier(weft_comm *comm)
{
    (void)comm;
    return absent("weft_comm_barrier");
}

weft_status weft_comm_all_reduce_host(weft_comm *comm, void *buffer, size_t count, weft_dtype dtype,
                                      weft_reduce reduce)
{
    (void)comm, (void)buffer, (void)count, (void)dtype, (void)reduce;
    return absent("weft_comm_all_reduce_host");
}
