#include "launcher/measuring/nodes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/kernels.h>

#include "core/clock.h"
#include "launcher/measuring/nodes_internal.h"

static const char purpose[] = "comparing nodes";

/* Of the time in all: one share for each part, so many rounds of links, and what is over to measure
 * again what stands out. */
static const double PART = 1. / 20, AGAIN_UNTIL = 0.75;
enum { MAX_PASSES = 3 };

/* --- where ranks are ----------------------------------------------------------------------- */

/* Numbers nodes by their first ranks. */
static void number_nodes(weft_nodes_rig *rig)
{
    const int num = weft_comm_size(rig->world);
    rig->fewest = num;
    for (int rank = 0; rank < num; rank++) {
        weft_nodes_place *p = &rig->places[rank];
        if (p->first_rank == rank) {
            p->node = rig->num_nodes++;
            rig->fewest = p->num_ranks < rig->fewest ? p->num_ranks : rig->fewest;
        } else {
            p->node = rig->places[p->first_rank].node;
        }
    }
}

static weft_status find_places(weft_nodes_rig *rig)
{
    weft_nodes_place own = {0};
    weft_comm *node = NULL;
    WEFT_TRY(weft_comm_split_node(rig->world, &node));
    own.first_rank = weft_comm_world_rank(node, 0);
    own.num_ranks = weft_comm_size(node);
    own.place = weft_comm_rank(node);
    weft_comm_destroy(node);
    if (gethostname(own.name, sizeof own.name - 1))
        snprintf(own.name, sizeof own.name, "?");
    rig->places = calloc((size_t)weft_comm_size(rig->world), sizeof *rig->places);
    WEFT_TRY(weft_comm_agree(
        rig->world, rig->places ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "no memory to %s", purpose)));
    WEFT_TRY(weft_comm_all_gather_host(rig->world, &own, rig->places, sizeof own));
    number_nodes(rig);
    return WEFT_OK;
}

/* --- what a rank computes and copies ------------------------------------------------------- */

static weft_status allocate(weft_nodes_rig *rig)
{
    const bool on_gpu = strcmp(weft_device_name(rig->device), "cuda") == 0;
    void **const matrices[] = {&rig->a, &rig->b, &rig->c};
    void *memory;
    rig->width = on_gpu ? 4096 : 1024;
    rig->bytes = (size_t)(on_gpu ? 256 : 32) << 20;
    WEFT_TRY(weft_lane_create(rig->device, 0, purpose, &rig->lane));
    for (int i = 0; i < 3; i++) {
        const size_t bytes = rig->width * rig->width * sizeof(float);
        WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, bytes, purpose, matrices[i]));
        WEFT_TRY(weft_random_normal(rig->lane,
                                    &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                               .global_dims = {bytes / sizeof(float)},
                                               .local_dims = {bytes / sizeof(float)}, .seed = 1,
                                               .std = 1, .dtype = WEFT_F32, .x = *matrices[i])));
    }
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, rig->bytes, purpose, &memory));
    rig->from = memory;
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, rig->bytes, purpose, &memory));
    rig->to = memory;
    WEFT_TRY(weft_lane_zero(rig->lane, rig->from, rig->bytes));
    WEFT_TRY(weft_lane_zero(rig->lane, rig->to, rig->bytes));
    WEFT_TRY(weft_comm_reserve(rig->world, rig->lane, 2 * rig->bytes));
    return weft_lane_sync(rig->lane);
}

static void release(weft_nodes_rig *rig)
{
    void *const matrices[] = {rig->a, rig->b, rig->c};
    weft_lane_destroy(rig->lane);
    for (int i = 0; i < 3; i++)
        weft_device_free(rig->device, WEFT_SPACE_DEVICE, matrices[i],
                         rig->width * rig->width * sizeof(float));
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->from, rig->bytes);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->to, rig->bytes);
    free(rig->places);
}

static weft_status submit(weft_nodes_rig *rig, weft_nodes_kind kind)
{
    const size_t n = rig->width;
    if (kind == WEFT_NODES_MEMORY)
        return weft_lane_copy(rig->lane, rig->to, rig->from, rig->bytes);
    return weft_gemm(rig->lane,
                     &WEFT_ARGS(weft_gemm_args, .m = n, .n = n, .k = n, .transpose_b = true,
                                .dtype = WEFT_F32, .c_dtype = WEFT_F32, .a = rig->a, .b = rig->b,
                                .c = rig->c, .alpha = 1));
}

static weft_status run_batch(weft_nodes_rig *rig, weft_nodes_kind kind, int num, double *out_us)
{
    const double start = weft_now_us();
    for (int i = 0; i < num; i++)
        WEFT_TRY(submit(rig, kind));
    WEFT_TRY(weft_lane_sync(rig->lane));
    *out_us = weft_now_us() - start;
    return WEFT_OK;
}

/* All that is done over all the time that it takes, in batches: who is held up again and again is
 * slow, too, and the way from this thread to the lane's and back counts little. */
static weft_status find_part_rate(weft_nodes_rig *rig, weft_nodes_kind kind, int batch,
                                  double seconds, double *best)
{
    const double n = (double)rig->width;
    const double work = kind == WEFT_NODES_MEMORY ? (double)rig->bytes : 2 * n * n * n;
    double num = 0, us = 0, batch_us;
    do {
        WEFT_TRY(run_batch(rig, kind, batch, &batch_us));
        num += batch;
        us += batch_us;
    } while (us < seconds * 1e6);
    *best = fmax(*best, work * num / (us * 1e-6));
    return WEFT_OK;
}

/* The best of three parts: other programs come and go. */
static weft_status find_rate(weft_nodes_rig *rig, weft_nodes_kind kind, double seconds,
                             double *best)
{
    enum { NUM_PARTS = 3, MAX_BATCH = 256 };
    const double part_us = seconds / NUM_PARTS * 1e6;
    double us;
    WEFT_TRY(run_batch(rig, kind, 1, &us)); /* makes what the first use makes; brings memory in */
    WEFT_TRY(run_batch(rig, kind, 1, &us));
    const int batch = (int)fmax(1, fmin(part_us / 4 / us, MAX_BATCH));
    WEFT_TRY(weft_comm_barrier(rig->world));
    for (int i = 0; i < NUM_PARTS; i++)
        WEFT_TRY(find_part_rate(rig, kind, batch, part_us * 1e-6, best));
    return weft_comm_barrier(rig->world);
}

/* --- all of it ----------------------------------------------------------------------------- */

static void enter(const weft_nodes_rig *rig, const char *what)
{
    if (rig->options.entering)
        rig->options.entering(what);
}

static weft_status measure(weft_nodes_rig *rig, unsigned kinds, weft_nodes_rank *own)
{
    static const char *const whats[] = {"compute of all ranks", "copies of all ranks"};
    const unsigned links = 1u << WEFT_NODES_LINK | 1u << WEFT_NODES_LATENCY;
    const unsigned disk = 1u << WEFT_NODES_WRITE | 1u << WEFT_NODES_READ;
    const double seconds = rig->options.seconds * PART;
    for (int kind = WEFT_NODES_COMPUTE; kind <= WEFT_NODES_MEMORY; kind++) {
        if (!(kinds & 1u << kind))
            continue;
        enter(rig, whats[kind]);
        WEFT_TRY(find_rate(rig, (weft_nodes_kind)kind, seconds, &own->value[kind]));
    }
    if (kinds & links)
        WEFT_TRY(weft_nodes_measure_links(rig, seconds, own));
    if (!(kinds & disk))
        return WEFT_OK;
    enter(rig, "disks of all nodes");
    WEFT_TRY(weft_comm_barrier(rig->world));
    if (own->first_rank == weft_comm_rank(rig->world))
        weft_nodes_measure_disk(rig->options.folder, 2 * seconds, own);
    return weft_comm_barrier(rig->world);
}

/* Rank 0 judges; *again: the kinds by which something stands out. */
static weft_status judge(weft_nodes_rig *rig, const weft_nodes_rank *own, weft_nodes *nodes,
                         unsigned *again)
{
    const bool speaks = weft_comm_rank(rig->world) == 0;
    int64_t said[2] = {0};
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_comm_gather_host(rig->world, own, nodes->ranks, sizeof *own));
    if (speaks) {
        free(nodes->odd);
        nodes->odd = NULL;
        nodes->num_odd =
            weft_nodes_judge(nodes->ranks, nodes->num_ranks, rig->options.factor, NULL, 0);
        if (nodes->num_odd > 0)
            nodes->odd = calloc((size_t)nodes->num_odd, sizeof *nodes->odd);
        if (nodes->num_odd < 0 || (nodes->num_odd > 0 && !nodes->odd))
            status = WEFT_ERROR(WEFT_MEMORY, "no memory to %s", purpose);
        else if (nodes->num_odd > 0)
            nodes->num_odd = weft_nodes_judge(nodes->ranks, nodes->num_ranks, rig->options.factor,
                                              nodes->odd, nodes->num_odd);
        said[0] = nodes->num_odd;
        for (int i = 0; status == WEFT_OK && i < nodes->num_odd; i++)
            said[1] |= nodes->odd[i].value > 0 ? INT64_C(1) << nodes->odd[i].kind : 0;
    }
    WEFT_TRY(weft_comm_agree(rig->world, status));
    WEFT_TRY(weft_comm_broadcast_host(rig->world, said, sizeof said, 0));
    nodes->num_odd = (int)said[0];
    *again = (unsigned)said[1];
    return WEFT_OK;
}

/* A folder that no node can write to is a mistake in the command. */
static weft_status check_folder(weft_nodes_rig *rig, const weft_nodes_rank *own)
{
    int64_t failed = *own->fault != '\0';
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, &failed, 1, WEFT_I64, WEFT_REDUCE_SUM));
    if (failed < rig->num_nodes)
        return WEFT_OK;
    return weft_comm_agree(
        rig->world, *own->fault ? WEFT_ERROR(WEFT_CONFIG, "--path %s", own->fault) : WEFT_OK);
}

static weft_status has_time(const weft_nodes_rig *rig, double start_us, bool *out)
{
    int64_t late = (weft_now_us() - start_us) * 1e-6 > rig->options.seconds * AGAIN_UNTIL;
    WEFT_TRY(weft_comm_broadcast_host(rig->world, &late, sizeof late, 0));
    *out = !late;
    return WEFT_OK;
}

static weft_status run(weft_nodes_rig *rig, weft_nodes_rank *own, weft_nodes *nodes)
{
    const double start_us = weft_now_us();
    unsigned kinds = (1u << WEFT_NUM_NODES_KINDS) - 1;
    bool goes_on = true;
    for (int pass = 0; pass < MAX_PASSES && kinds && goes_on; pass++) {
        WEFT_TRY(measure(rig, kinds, own));
        if (pass == 0)
            WEFT_TRY(check_folder(rig, own));
        WEFT_TRY(judge(rig, own, nodes, &kinds));
        WEFT_TRY(has_time(rig, start_us, &goes_on));
    }
    return WEFT_OK;
}

static weft_status prepare(weft_nodes_rig *rig, weft_nodes_rank *own, weft_nodes *nodes)
{
    const int rank = weft_comm_rank(rig->world);
    WEFT_TRY(find_places(rig));
    const weft_nodes_place *place = &rig->places[rank];
    nodes->num_ranks = weft_comm_size(rig->world);
    nodes->num_nodes = rig->num_nodes;
    own->first_rank = place->first_rank;
    memcpy(own->node, place->name, sizeof own->node);
    for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++)
        own->links[i].peer = -1;
    if (rank == 0)
        nodes->ranks = calloc((size_t)nodes->num_ranks, sizeof *nodes->ranks);
    weft_status status = rank == 0 && !nodes->ranks
                             ? WEFT_ERROR(WEFT_MEMORY, "no memory to %s", purpose)
                             : allocate(rig);
    return weft_comm_agree(rig->world, status);
}

weft_status weft_nodes_measure(weft_comm *world, weft_device *device,
                               const weft_nodes_options *options, weft_nodes *out)
{
    weft_nodes_rig rig = {.world = world, .device = device, .options = *options};
    weft_nodes_rank own = {.first_rank = 0};
    *out = (weft_nodes){0};
    weft_status status = prepare(&rig, &own, out);
    if (status == WEFT_OK)
        status = run(&rig, &own, out);
    release(&rig);
    if (status != WEFT_OK)
        weft_nodes_release(out);
    return status;
}

void weft_nodes_release(weft_nodes *nodes)
{
    free(nodes->ranks);
    free(nodes->odd);
    *nodes = (weft_nodes){0};
}
