/* The weft command with one fault: FAULT=KIND:WHAT:RANK:STEP:NUMBER. In that step, that rank's call
 * number NUMBER of WHAT (all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send, recv,
 * host for those on the host, any; save) is left out (KIND skip), made twice (twice), of another
 * type (type) or slow (NUMBER seconds; slow). The file FAULT_MARK then says which.
 * hang:verdict: its file system hangs when the verdict is written. stop:start: it stops itself
 * (SIGSTOP) before it begins. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

#include "comm/comm.h"
#include "comm/watch/flight.h"
#include "parallel/checkpoint/checkpoint.h"

static struct {
    char kind[16], what[16];
    int rank, number;
    long long step;
} fault;

static int num_calls;

static bool is_rank(void)
{
    const char *rank = getenv("PMIX_RANK");
    return rank && atoi(rank) == fault.rank;
}

static void leave_mark(const char *what, const char *group)
{
    char doing[WEFT_DOING_TEXT_BYTES];
    const char *path = getenv("FAULT_MARK");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%s of group %s: %s\n", what, group, weft_doing_text(weft_doing_now(), doing));
    fclose(file);
}

/* True: this call is the one. */
static bool strikes(const char *kind, const char *what, const weft_comm *comm)
{
    const bool is_any = strcmp(fault.what, "any") == 0;
    if (strcmp(fault.kind, kind) != 0 || (!is_any && strcmp(fault.what, what) != 0) ||
        weft_comm_step() != fault.step || weft_comm_size(comm) == 1 ||
        weft_comm_world_rank(comm, weft_comm_rank(comm)) != fault.rank)
        return false;
    if (num_calls++ != fault.number)
        return false;
    leave_mark(what, weft_comm_name(comm));
    return true;
}

__typeof__(weft_all_reduce) __real_weft_all_reduce, __wrap_weft_all_reduce;
weft_status __wrap_weft_all_reduce(weft_comm *comm, weft_lane *lane, void *buffer, size_t count,
                                   weft_dtype dtype, weft_reduce reduce)
{
    if (strikes("skip", "all_reduce", comm))
        return WEFT_OK;
    if (strikes("type", "all_reduce", comm))
        return __real_weft_all_reduce(comm, lane, buffer, count, WEFT_I32, reduce);
    return __real_weft_all_reduce(comm, lane, buffer, count, dtype, reduce);
}

__typeof__(weft_reduce_scatter) __real_weft_reduce_scatter, __wrap_weft_reduce_scatter;
weft_status __wrap_weft_reduce_scatter(weft_comm *comm, weft_lane *lane, const void *send,
                                       void *recv, size_t count, weft_dtype dtype,
                                       weft_reduce reduce)
{
    if (strikes("skip", "reduce_scatter", comm))
        return WEFT_OK;
    if (strikes("type", "reduce_scatter", comm))
        return __real_weft_reduce_scatter(comm, lane, send, recv, count, WEFT_I32, reduce);
    return __real_weft_reduce_scatter(comm, lane, send, recv, count, dtype, reduce);
}

__typeof__(weft_all_gather) __real_weft_all_gather, __wrap_weft_all_gather;
weft_status __wrap_weft_all_gather(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                                   size_t count, weft_dtype dtype)
{
    if (strikes("skip", "all_gather", comm))
        return WEFT_OK;
    return __real_weft_all_gather(comm, lane, send, recv, count, dtype);
}

__typeof__(weft_send) __real_weft_send, __wrap_weft_send;
weft_status __wrap_weft_send(weft_comm *comm, weft_lane *lane, int peer, int tag,
                             const void *buffer, size_t bytes)
{
    if (strikes("skip", "send", comm))
        return WEFT_OK;
    if (strikes("twice", "send", comm))
        WEFT_TRY(__real_weft_send(comm, lane, peer, tag, buffer, bytes));
    return __real_weft_send(comm, lane, peer, tag, buffer, bytes);
}

__typeof__(weft_all_to_all) __real_weft_all_to_all, __wrap_weft_all_to_all;
weft_status __wrap_weft_all_to_all(weft_comm *comm, weft_lane *lane, const void *send,
                                   const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    if (strikes("skip", "all_to_all", comm))
        return WEFT_OK;
    return __real_weft_all_to_all(comm, lane, send, send_bytes, recv, recv_bytes);
}

__typeof__(weft_broadcast) __real_weft_broadcast, __wrap_weft_broadcast;
weft_status __wrap_weft_broadcast(weft_comm *comm, weft_lane *lane, void *buffer, size_t bytes,
                                  int root)
{
    if (strikes("skip", "broadcast", comm))
        return WEFT_OK;
    return __real_weft_broadcast(comm, lane, buffer, bytes, root);
}

__typeof__(weft_recv) __real_weft_recv, __wrap_weft_recv;
weft_status __wrap_weft_recv(weft_comm *comm, weft_lane *lane, int peer, int tag, void *buffer,
                             size_t bytes)
{
    if (strikes("skip", "recv", comm))
        return WEFT_OK;
    return __real_weft_recv(comm, lane, peer, tag, buffer, bytes);
}

__typeof__(weft_comm_all_reduce_host) __real_weft_comm_all_reduce_host,
    __wrap_weft_comm_all_reduce_host;
weft_status __wrap_weft_comm_all_reduce_host(weft_comm *comm, void *buffer, size_t count,
                                             weft_dtype dtype, weft_reduce reduce)
{
    if (strikes("skip", "host", comm))
        return WEFT_OK;
    return __real_weft_comm_all_reduce_host(comm, buffer, count, dtype, reduce);
}

__typeof__(weft_comm_all_gather_host) __real_weft_comm_all_gather_host,
    __wrap_weft_comm_all_gather_host;
weft_status __wrap_weft_comm_all_gather_host(weft_comm *comm, const void *send, void *recv,
                                             size_t bytes)
{
    if (strikes("skip", "host", comm))
        return WEFT_OK;
    return __real_weft_comm_all_gather_host(comm, send, recv, bytes);
}

__typeof__(weft_comm_gather_host) __real_weft_comm_gather_host, __wrap_weft_comm_gather_host;
weft_status __wrap_weft_comm_gather_host(weft_comm *comm, const void *send, void *recv,
                                         size_t bytes)
{
    if (strikes("skip", "host", comm))
        return WEFT_OK;
    return __real_weft_comm_gather_host(comm, send, recv, bytes);
}

__typeof__(weft_comm_broadcast_host) __real_weft_comm_broadcast_host,
    __wrap_weft_comm_broadcast_host;
weft_status __wrap_weft_comm_broadcast_host(weft_comm *comm, void *buffer, size_t bytes, int root)
{
    if (strikes("skip", "host", comm))
        return WEFT_OK;
    return __real_weft_comm_broadcast_host(comm, buffer, bytes, root);
}

__typeof__(weft_checkpoint_save) __real_weft_checkpoint_save, __wrap_weft_checkpoint_save;
weft_status __wrap_weft_checkpoint_save(const char *dir, const weft_checkpoint_info *info,
                                        const weft_parameters *parameters,
                                        const weft_optimizer *optimizer, const char *config,
                                        const char *tokenizer)
{
    if (strcmp(fault.kind, "slow") == 0 && fault.step == info->step && is_rank()) {
        leave_mark("save", "world");
        sleep((unsigned)fault.number);
    }
    return __real_weft_checkpoint_save(dir, info, parameters, optimizer, config, tokenizer);
}

__typeof__(weft_flight_claim) __real_weft_flight_claim, __wrap_weft_flight_claim;
bool __wrap_weft_flight_claim(const char *folder, int64_t since, int rank,
                              const weft_verdict *verdict, const char *const *nodes)
{
    if (strcmp(fault.kind, "hang") == 0)
        sleep(600);
    return __real_weft_flight_claim(folder, since, rank, verdict, nodes);
}

int main(int argc, char **argv)
{
    const char *text = getenv("FAULT");
    if (text && sscanf(text, "%15[^:]:%15[^:]:%d:%lld:%d", fault.kind, fault.what, &fault.rank,
                       &fault.step, &fault.number) != 5)
        return 99;
    if (strcmp(fault.kind, "stop") == 0 && is_rank())
        raise(SIGSTOP);
    return weft_main(argc, argv, NULL);
}
