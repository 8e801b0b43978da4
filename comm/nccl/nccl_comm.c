/* Chooses NCCL, and makes and ends its groups. */
#include "comm/nccl/nccl_comm.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/grow.h"
#include "core/trace/trace.h"

enum { MIN_DRIVER = 12030, CHANNEL_CTAS = 4 };

static struct {
    bool used;
    weft_device *device; /* that groups are tried on */
    ncclComm_t *handles; /* ended when the world is: that is collective, destroying a group not */
    size_t num_handles, capacity;
    bool broken; /* a group was broken when it was destroyed */
} nccl;

/* --- choosing ------------------------------------------------------------------------------ */

/* A rank's GPU, and why it cannot use NCCL. */
typedef struct place {
    int rank;
    char machine[40]; /* the kernel's boot id: containers of one machine share it */
    int domain, bus, device;
    char version[32], trouble[192]; /* empty: none */
} place;

static void read_machine(char *to, size_t bytes)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!file || !fgets(to, (int)bytes, file))
        to[0] = '\0';
    if (file)
        fclose(file);
}

static weft_status check_driver(void)
{
    int driver;
    WEFT_TRY(WEFT_CUDA(cudaDriverGetVersion(&driver)));
    if (driver < MIN_DRIVER)
        return WEFT_ERROR(WEFT_CONFIG,
                          "the NVIDIA driver is of CUDA %d.%d; several groups need 12.3",
                          driver / 1000, driver % 1000 / 10);
    return WEFT_OK;
}

static weft_status find_gpu(const weft_device *device, place *out)
{
    int index = weft_cuda_index(device);
    read_machine(out->machine, sizeof out->machine);
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&out->domain, cudaDevAttrPciDomainId, index)));
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&out->bus, cudaDevAttrPciBusId, index)));
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&out->device, cudaDevAttrPciDeviceId, index)));
    return WEFT_OK;
}

static place find_place(const weft_device *device, int rank)
{
    place own = {.rank = rank, .domain = -1};
    weft_status status = find_gpu(device, &own);
    if (status == WEFT_OK)
        status = check_driver();
    if (status == WEFT_OK)
        status = weft_nccl_load();
    if (status == WEFT_OK) {
        snprintf(own.version, sizeof own.version, "%s", weft_nccl()->version);
    } else {
        snprintf(own.trouble, sizeof own.trouble, "%.190s", weft_error_get()->text);
        weft_error_clear();
    }
    return own;
}

static int compare_gpus(const place *a, const place *b)
{
    int order = strcmp(a->machine, b->machine);
    order = order ? order : a->domain - b->domain;
    order = order ? order : a->bus - b->bus;
    return order ? order : a->device - b->device;
}

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    int order = compare_gpus(x, y);
    return order ? order : x->rank - y->rank;
}

/* The first rank whose GPU a lower rank has too, and that one; false where there is none. Sorts the
 * places. */
static bool find_shared(place *places, int size, int *out_lower, int *out_rank)
{
    *out_rank = size;
    qsort(places, (size_t)size, sizeof *places, compare_places);
    for (int i = 1; i < size; i++)
        if (places[i].domain >= 0 && places[i].rank < *out_rank &&
            compare_gpus(&places[i - 1], &places[i]) == 0) {
            *out_lower = places[i - 1].rank;
            *out_rank = places[i].rank;
        }
    return *out_rank < size;
}

/* Why the ranks cannot use NCCL; false if they can. Sorts the places. */
static bool find_obstacle(place *places, int size, char *why, size_t why_bytes)
{
    int troubled = -1, lower = 0, rank = 0;
    for (int i = size - 1; i >= 0; i--)
        if (places[i].trouble[0] || strcmp(places[i].version, places[0].version) != 0)
            troubled = i;
    const place first = places[0], other = places[troubled < 0 ? 0 : troubled];
    if (find_shared(places, size, &lower, &rank))
        snprintf(why, why_bytes, "ranks %d and %d share a GPU", lower, rank);
    else if (troubled >= 0 && other.trouble[0])
        snprintf(why, why_bytes, "rank %d: %s", troubled, other.trouble);
    else if (troubled >= 0)
        snprintf(why, why_bytes, "rank %d has NCCL %s, rank 0 %s", troubled, other.version,
                 first.version);
    else
        return false;
    return true;
}

void weft_nccl_use_none(void)
{
    nccl.used = false;
}

/* What rank 0 finds in all ranks' places. */
typedef struct finding {
    bool usable;
    char why[256];
} finding;

static weft_status find_out(weft_comm *world, const place *own, finding *out)
{
    int size = weft_comm_size(world);
    place *places = NULL;
    weft_status status = WEFT_OK;
    if (own->rank == 0) {
        places = malloc((size_t)size * sizeof *places);
        if (!places)
            status = WEFT_ERROR(WEFT_MEMORY, "no memory for the GPUs of %d ranks", size);
    }
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = weft_comm_gather_host(world, own, places, sizeof *own);
    if (status == WEFT_OK && places)
        out->usable = !find_obstacle(places, size, out->why, sizeof out->why);
    free(places);
    WEFT_TRY(status);
    return weft_comm_broadcast_host(world, out, sizeof *out, 0);
}

weft_status weft_nccl_use(weft_comm *world, weft_device *device, char *why, size_t why_bytes,
                          bool *out_used)
{
    finding found = {0};
    place own = find_place(device, weft_comm_rank(world));
    WEFT_TRY(find_out(world, &own, &found));
    if (found.usable) {
        WEFT_TRY(weft_comm_agree(world, weft_nccl_watch_start(weft_cuda_index(device))));
        snprintf(why, why_bytes, "NCCL %s, and each rank has a GPU of its own", own.version);
        nccl.device = device;
    } else {
        snprintf(why, why_bytes, "%s", found.why);
    }
    *out_used = nccl.used = found.usable;
    return WEFT_OK;
}

/* --- making groups ------------------------------------------------------------------------- */

static weft_status keep_handle(ncclComm_t handle)
{
    const weft_status status =
        WEFT_GROW(nccl.handles, nccl.capacity, nccl.num_handles + 1, "communicators");
    if (status != WEFT_OK) {
        (void)weft_nccl()->CommAbort(handle);
        return status;
    }
    nccl.handles[nccl.num_handles++] = handle;
    return WEFT_OK;
}

/* What runs behind other work, or waits for a neighbour, shall leave that most of the GPU. */
static weft_status make_handle(const weft_comm *group, const ncclUniqueId *id, int size, int rank,
                               bool channel, ncclComm_t *out)
{
    ncclComm_t handle = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = group->name;
    if (channel)
        config.maxCTAs = CHANNEL_CTAS;
    else if (group->purpose == WEFT_PURPOSE_DATA)
        config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
    WEFT_TRY(WEFT_NCCL(weft_nccl()->CommInitRankConfig(&handle, size, *id, rank, &config)));
    WEFT_TRY(keep_handle(handle));
    WEFT_TRY(weft_nccl_settle(handle));
    *out = handle;
    return WEFT_OK;
}

/* The communicator of all ranks. */
static weft_status make_group(weft_nccl_comm *comm)
{
    weft_comm *host = comm->host;
    ncclUniqueId id;
    weft_status status = WEFT_OK;
    if (host->rank == 0)
        status = WEFT_NCCL(weft_nccl()->GetUniqueId(&id));
    WEFT_TRY(weft_comm_agree(host, status));
    WEFT_TRY(weft_comm_broadcast_host(host, &id, sizeof id, 0));
    status = make_handle(host, &id, host->size, host->rank, false, &comm->handle);
    return weft_comm_agree(host, status);
}

/* Pair k is ranks k and k + 1; the last one closes the ring, unless it is the first one again. */
static bool has_pair(int size, int k)
{
    return size > 2 || k == 0;
}

enum { NUM_PAIR_IDS = 2 * WEFT_NCCL_NUM_TAG_CLASSES };

static weft_status make_pair(const weft_nccl_comm *comm, const ncclUniqueId *ids,
                             weft_nccl_pair *pair)
{
    int rank = pair->lower ? 0 : 1;
    for (int i = 0; i < NUM_PAIR_IDS; i++) {
        ncclComm_t *handle = i % 2 == 0 ? &pair->up[i / 2] : &pair->down[i / 2];
        WEFT_TRY(make_handle(comm->host, &ids[i], 2, rank, true, handle));
    }
    return WEFT_OK;
}

/* The pairs of this rank in the order in which it makes them: the ring closes last. */
static int list_pairs(weft_nccl_comm *comm, weft_nccl_pair *list[2])
{
    int num = 0, first = comm->host->rank == 0 ? 1 : 0;
    for (int i = 0; i < 2; i++) {
        weft_nccl_pair *pair = &comm->pairs[i == 0 ? first : 1 - first];
        if (pair->peer >= 0)
            list[num++] = pair;
    }
    return num;
}

/* Identifiers of a rank's channels to its next one, made by the lower of the two. */
typedef struct pair_ids {
    ncclUniqueId of[NUM_PAIR_IDS];
} pair_ids;

static weft_status make_own_pairs(weft_nccl_comm *comm, const pair_ids *own,
                                  const pair_ids *previous_ids)
{
    int size = comm->host->size, rank = comm->host->rank, previous = (rank + size - 1) % size;
    weft_nccl_pair *list[2];
    if (has_pair(size, previous))
        comm->pairs[0] = (weft_nccl_pair){.peer = previous};
    if (has_pair(size, rank))
        comm->pairs[1] = (weft_nccl_pair){.peer = (rank + 1) % size, .lower = true};
    int num = list_pairs(comm, list);
    for (int i = 0; i < num; i++)
        WEFT_TRY(make_pair(comm, list[i]->lower ? own->of : previous_ids->of, list[i]));
    return WEFT_OK;
}

static weft_status make_pairs(weft_nccl_comm *comm)
{
    weft_comm *host = comm->host;
    int next = (host->rank + 1) % host->size, previous = (host->rank + host->size - 1) % host->size;
    pair_ids own, ids;
    weft_status status = WEFT_OK;
    memset(&own, 0, sizeof own);
    for (int i = 0; status == WEFT_OK && i < NUM_PAIR_IDS; i++)
        status = WEFT_NCCL(weft_nccl()->GetUniqueId(&own.of[i]));
    WEFT_TRY(weft_comm_agree(host, status));
    WEFT_TRY(weft_send_recv(host, NULL, next, &own, sizeof own, previous, &ids, sizeof ids, 0));
    return weft_comm_agree(host, make_own_pairs(comm, &own, &ids));
}

/* --- trying them --------------------------------------------------------------------------- */

static weft_status wait_for_stream(cudaStream_t stream)
{
    double deadline_us = weft_now_us() + 1e6 * WEFT_NCCL_SETUP_SECONDS;
    for (;;) {
        cudaError_t error = cudaStreamQuery(stream);
        if (error != cudaErrorNotReady)
            return WEFT_CUDA(error);
        if (weft_now_us() > deadline_us)
            return WEFT_ERROR(WEFT_COMM, "the first operation has not ended within %d s",
                              (int)WEFT_NCCL_SETUP_SECONDS);
        nanosleep(&(struct timespec){.tv_nsec = WEFT_NCCL_POLL_NS}, NULL);
    }
}

/* Every rank with every other one, so that they connect. */
static weft_status try_all_pairs(weft_nccl_comm *comm, char *memory, cudaStream_t stream)
{
    const weft_nccl_api *api = weft_nccl();
    int size = comm->host->size, rank = comm->host->rank;
    WEFT_TRY(weft_nccl_begin_group());
    weft_status status = WEFT_OK;
    for (int step = 1; status == WEFT_OK && step < size; step++) {
        int to = (rank + step) % size, from = (rank + size - step) % size;
        status = WEFT_NCCL(api->Send(memory + to, 1, ncclUint8, to, comm->handle, stream));
        if (status == WEFT_OK)
            status = WEFT_NCCL(
                api->Recv(memory + size + from, 1, ncclUint8, from, comm->handle, stream));
    }
    return weft_nccl_end_group(comm->handle, status);
}

static weft_status try_pair(const weft_nccl_pair *pair, char *memory, cudaStream_t stream)
{
    const weft_nccl_api *api = weft_nccl();
    for (int i = 0; i < NUM_PAIR_IDS; i++) {
        bool up = i % 2 == 0;
        ncclComm_t handle = up ? pair->up[i / 2] : pair->down[i / 2];
        int peer = pair->lower ? 1 : 0;
        if (up == pair->lower)
            WEFT_TRY(WEFT_NCCL(api->Send(memory, 1, ncclUint8, peer, handle, stream)));
        else
            WEFT_TRY(WEFT_NCCL(api->Recv(memory + 1, 1, ncclUint8, peer, handle, stream)));
        WEFT_TRY(weft_nccl_settle(handle));
    }
    return WEFT_OK;
}

static weft_status try_on(weft_nccl_comm *comm, char *memory, cudaStream_t stream)
{
    weft_nccl_pair *list[2];
    int num = list_pairs(comm, list);
    weft_comm_purpose purpose = comm->host->purpose;
    WEFT_TRY(WEFT_NCCL(
        weft_nccl()->AllReduce(memory, memory, 1, ncclUint8, ncclMax, comm->handle, stream)));
    WEFT_TRY(weft_nccl_settle(comm->handle));
    if (purpose == WEFT_PURPOSE_EXPERT || purpose == WEFT_PURPOSE_CONTEXT)
        WEFT_TRY(try_all_pairs(comm, memory, stream));
    for (int i = 0; i < num; i++)
        WEFT_TRY(try_pair(list[i], memory, stream));
    return wait_for_stream(stream);
}

static weft_status try_group(weft_nccl_comm *comm)
{
    weft_lane *lane;
    void *memory = NULL;
    size_t bytes = 2 * (size_t)comm->host->size;
    WEFT_TRY(weft_lane_create(nccl.device, 0, "nccl", &lane));
    weft_status status =
        weft_device_alloc(nccl.device, WEFT_SPACE_DEVICE, bytes, "a first operation", &memory);
    if (status == WEFT_OK) {
        cudaStream_t stream = weft_cuda_stream(lane);
        status = WEFT_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
        pthread_mutex_lock(&weft_nccl_order);
        if (status == WEFT_OK)
            status = try_on(comm, memory, stream);
        pthread_mutex_unlock(&weft_nccl_order);
    }
    if (status == WEFT_OK) { /* after a failure the stream may never end */
        weft_device_free(nccl.device, WEFT_SPACE_DEVICE, memory, bytes);
        weft_lane_destroy(lane);
    }
    return weft_comm_agree(comm->host, status);
}

/* --- the backend --------------------------------------------------------------------------- */

static void nccl_destroy(weft_comm *base)
{
    weft_nccl_comm *comm = (weft_nccl_comm *)base;
    weft_nccl_watch_forget(comm);
    if (atomic_load(&base->broken))
        nccl.broken = true;
    if (comm->side)
        (void)cudaStreamDestroy(comm->side);
    if (comm->forked)
        (void)cudaEventDestroy(comm->forked);
    if (comm->joined)
        (void)cudaEventDestroy(comm->joined);
    weft_comm_destroy(comm->host);
    weft_comm_base_release(base);
    free(comm);
}

/* The mpi groups made here get NCCL beside them where comm.c makes all groups. */
static weft_status nccl_split(weft_comm *parent, int color, int key, const char *name,
                              weft_comm_purpose purpose, weft_comm **out)
{
    weft_comm *host = ((weft_nccl_comm *)parent)->host;
    return host->ops->split(host, color, key, name, purpose, out);
}

static weft_status nccl_split_node(weft_comm *parent, weft_comm **out)
{
    weft_comm *host = ((weft_nccl_comm *)parent)->host;
    return host->ops->split_node(host, out);
}

static const weft_comm_ops nccl_ops = {
    .name = "nccl",
    .enqueue = weft_nccl_enqueue,
    .run = weft_nccl_run_on_host,
    .split = nccl_split,
    .split_node = nccl_split_node,
    .destroy = nccl_destroy,
};

static weft_status create_object(weft_comm *host, weft_nccl_comm **out)
{
    weft_nccl_comm *comm = calloc(1, sizeof *comm);
    int *world_ranks = malloc((size_t)host->size * sizeof *world_ranks);
    weft_status status = WEFT_OK;
    if (comm && world_ranks) {
        for (int i = 0; i < host->size; i++)
            world_ranks[i] = weft_comm_world_rank(host, i);
        comm->pairs[0].peer = comm->pairs[1].peer = -1;
        status = weft_comm_base_init(&comm->base, &nccl_ops, host->name, host->purpose, host->rank,
                                     host->size, world_ranks, host->abort);
    } else {
        status = WEFT_ERROR(WEFT_MEMORY, "no memory for group %s", host->name);
    }
    if (status != WEFT_OK) {
        free(comm);
        free(world_ranks);
        return status;
    }
    *out = comm;
    return WEFT_OK;
}

weft_status weft_nccl_adopt(weft_comm **group)
{
    weft_comm *host = *group;
    weft_nccl_comm *comm = NULL;
    if (!nccl.used || host->size == 1 || host->purpose == WEFT_PURPOSE_CONTROL)
        return WEFT_OK;
    weft_status status = weft_comm_agree(host, create_object(host, &comm));
    if (status == WEFT_OK) {
        comm->host = host;
        status = make_group(comm);
    }
    if (status == WEFT_OK && host->purpose == WEFT_PURPOSE_PIPELINE)
        status = make_pairs(comm);
    if (status == WEFT_OK)
        status = try_group(comm);
    if (status == WEFT_OK) {
        *group = &comm->base;
        return WEFT_OK;
    }
    weft_error_context(status, "group %s", host->name);
    if (comm) {
        weft_comm_base_release(&comm->base);
        free(comm);
    }
    nccl.broken = true;
    return status;
}

void weft_nccl_stop(void)
{
    const weft_nccl_api *api = weft_nccl();
    weft_nccl_watch_stop();
    bool whole = !nccl.broken;
    for (size_t i = 0; whole && i < nccl.num_handles; i++)
        whole = WEFT_NCCL(api->CommFinalize(nccl.handles[i])) == WEFT_OK;
    for (size_t i = 0; whole && i < nccl.num_handles; i++)
        whole = weft_nccl_settle(nccl.handles[i]) == WEFT_OK;
    for (size_t i = 0; i < nccl.num_handles; i++)
        (void)(whole ? api->CommDestroy(nccl.handles[i]) : api->CommAbort(nccl.handles[i]));
    if (!whole)
        weft_error_clear();
    free(nccl.handles);
    memset(&nccl, 0, sizeof nccl);
}
