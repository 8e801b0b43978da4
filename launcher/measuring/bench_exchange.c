/* Runs and times the forms of the experts' all-to-all, without a model. */
#include "launcher/measuring/bench_exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "core/trace/trace.h"

static const char what[] = "bench all-to-all";
enum { HOST_STAGING_BYTES = 1 << 16, STAGING_SLACK_BYTES = 1 << 20, POISON = 0xa5 };

/* --- groups and memory --------------------------------------------------------------------- */

/* Alike on all ranks, or an error on all. */
static weft_status check_groups(const weft_exchange_rig *rig)
{
    int64_t sizes[2] = {weft_comm_size(rig->inside), -weft_comm_size(rig->inside)};
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, sizes, 2, WEFT_I64, WEFT_REDUCE_MAX));
    if (sizes[0] != -sizes[1])
        return WEFT_ERROR(WEFT_CONFIG,
                          "nodes of %d and of %d ranks: the same number on each is needed",
                          (int)-sizes[1], (int)sizes[0]);
    return WEFT_OK;
}

static weft_status make_groups(weft_exchange_rig *rig, int ranks_inside)
{
    int rank = weft_comm_rank(rig->world), size = weft_comm_size(rig->world);
    int node = ranks_inside > 0 ? rank / ranks_inside : 0;
    if (ranks_inside > 0 && size % ranks_inside)
        return WEFT_ERROR(WEFT_CONFIG, "%s cannot be divided into groups of %d",
                          weft_count_text(size, "rank").text, ranks_inside);
    if (ranks_inside == 0) {
        /* The node's number: its first rank. */
        weft_comm *shared;
        WEFT_TRY(weft_comm_split_node(rig->world, &shared));
        node = weft_comm_world_rank(shared, 0);
        weft_comm_destroy(shared);
    }
    WEFT_TRY(weft_comm_split(rig->world, node, rank, "inside", WEFT_PURPOSE_TENSOR, &rig->inside));
    WEFT_TRY(check_groups(rig));
    WEFT_TRY(weft_comm_split(rig->world, weft_comm_rank(rig->inside), node, "between",
                             WEFT_PURPOSE_EXPERT, &rig->between));
    if (weft_comm_size(rig->inside) < 2 || weft_comm_size(rig->between) < 2)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%d node%s of %d: at least two of two ranks are needed; --inside N takes "
                          "N consecutive ranks for a node",
                          weft_comm_size(rig->between),
                          weft_comm_size(rig->between) == 1 ? "" : "s",
                          weft_comm_size(rig->inside));
    return WEFT_OK;
}

/* The share of what every rank sends that goes to the outer rank `to`; uneven: the further, the
 * more, as with experts of which some are popular. */
static double share_before(const weft_exchange_rig *rig, int to)
{
    double e = weft_comm_size(rig->between);
    return rig->uneven ? to * (to + 1.0) / (e * (e + 1)) : to / e;
}

static size_t block_bytes(const weft_exchange_rig *rig, double bytes, int to)
{
    return (size_t)(bytes * share_before(rig, to + 1)) - (size_t)(bytes * share_before(rig, to));
}

static weft_status take(weft_exchange_rig *rig, size_t bytes, char **out)
{
    void *memory;
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, bytes, what, &memory));
    *out = memory;
    return weft_lane_zero(rig->lane, memory, bytes);
}

/* Staging at its largest: two areas of half of everything (o2 in two chunks) or one of it all: what
 * is sent, a share of what comes, and what comes. */
static weft_status allocate(weft_exchange_rig *rig, double max_bytes)
{
    size_t e = (size_t)weft_comm_size(rig->between);
    WEFT_TRY(weft_lane_create(rig->device, 0, "expert", &rig->lane));
    rig->send_capacity = (size_t)max_bytes;
    rig->recv_capacity = e * block_bytes(rig, max_bytes, (int)e - 1) + e;
    rig->staging_capacity = rig->send_capacity + 2 * rig->recv_capacity + STAGING_SLACK_BYTES;
    WEFT_TRY(take(rig, rig->send_capacity, &rig->send));
    WEFT_TRY(take(rig, rig->recv_capacity, &rig->recv));
    WEFT_TRY(take(rig, rig->staging_capacity, &rig->staging));
    rig->host_staging = malloc(HOST_STAGING_BYTES);
    rig->send_bytes = calloc(4 * e, sizeof *rig->send_bytes);
    if (!rig->host_staging || !rig->send_bytes)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: %s", what);
    rig->recv_bytes = rig->send_bytes + e;
    rig->bare_send_bytes = rig->recv_bytes + e;
    rig->bare_recv_bytes = rig->bare_send_bytes + e;
    return weft_lane_sync(rig->lane);
}

weft_status weft_exchange_rig_init(weft_exchange_rig *rig, weft_comm *world, weft_device *device,
                                   int ranks_inside, double max_bytes, bool uneven)
{
    *rig = (weft_exchange_rig){.world = world, .device = device, .uneven = uneven};
    WEFT_TRY(make_groups(rig, ranks_inside));
    return weft_comm_agree(world, allocate(rig, max_bytes));
}

void weft_exchange_rig_release(weft_exchange_rig *rig)
{
    weft_lane_destroy(rig->lane);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->send, rig->send_capacity);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->recv, rig->recv_capacity);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->staging, rig->staging_capacity);
    free(rig->host_staging);
    free(rig->send_bytes);
    weft_comm_destroy(rig->between);
    weft_comm_destroy(rig->inside);
}

/* Staging is taken anew for each operation: the next one of a lane starts behind all of it. */
static weft_status take_device(void *context, size_t bytes, void **out)
{
    weft_exchange_rig *rig = context;
    size_t end = rig->staging_used + (bytes + 63) / 64 * 64;
    if (end > rig->staging_capacity)
        return WEFT_ERROR(WEFT_MEMORY, "%s: staging areas of %zu bytes, %zu are there", what, end,
                          rig->staging_capacity);
    *out = rig->staging + rig->staging_used;
    rig->staging_used = end;
    return WEFT_OK;
}

static weft_status take_host(void *context, size_t bytes, void **out)
{
    weft_exchange_rig *rig = context;
    size_t end = rig->host_used + (bytes + 63) / 64 * 64;
    if (end > HOST_STAGING_BYTES)
        return WEFT_ERROR(WEFT_MEMORY, "%s: too many ranks", what);
    *out = rig->host_staging + rig->host_used;
    rig->host_used = end;
    return WEFT_OK;
}

/* --- data ---------------------------------------------------------------------------------- */

/* Word `index` of what the ranks of outer rank `from` send. */
static uint64_t word_of(int from, uint64_t index)
{
    uint64_t x = index + ((uint64_t)from << 48) + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Bytes at `start` of what `from` sends. */
static void generate(int from, size_t start, size_t bytes, char *out)
{
    for (size_t done = 0; done < bytes;) {
        uint64_t word = word_of(from, (start + done) / 8);
        size_t skip = (start + done) % 8, part = 8 - skip;
        part = part < bytes - done ? part : bytes - done;
        memcpy(out + done, (char *)&word + skip, part);
        done += part;
    }
}

weft_status weft_exchange_rig_load(weft_exchange_rig *rig, double bytes, double *out_bytes)
{
    int e = weft_comm_size(rig->between), me = weft_comm_rank(rig->between);
    size_t t = (size_t)weft_comm_size(rig->inside), total = 0;
    double away = 0, most = 0;
    for (int peer = 0; peer < e; peer++) {
        rig->send_bytes[peer] = block_bytes(rig, bytes, peer);
        rig->recv_bytes[peer] = block_bytes(rig, bytes, me);
        rig->bare_send_bytes[peer] = rig->send_bytes[peer] / t;
        rig->bare_recv_bytes[peer] = rig->recv_bytes[peer] / t;
        total += rig->send_bytes[peer];
        /* what it gets, and what it sends */
        away = (e - 1) * (double)block_bytes(rig, bytes, peer);
        most = away > most ? away : most;
        away = bytes - (double)block_bytes(rig, bytes, peer);
        most = away > most ? away : most;
    }
    *out_bytes = most * e / (e - 1);
    generate(me, 0, total, rig->send);
    return WEFT_OK;
}

/* The first byte that is not what was sent; -1: none. */
static int64_t find_wrong(const weft_exchange_rig *rig)
{
    char expected[4096];
    size_t at = 0;
    for (int from = 0; from < weft_comm_size(rig->between); from++) {
        size_t start = 0;
        for (int to = 0; to < weft_comm_rank(rig->between); to++)
            start += rig->send_bytes[to]; /* alike on all senders */
        for (size_t done = 0; done < rig->recv_bytes[from];) {
            size_t part = rig->recv_bytes[from] - done;
            part = part < sizeof expected ? part : sizeof expected;
            generate(from, start + done, part, expected);
            if (memcmp(rig->recv + at + done, expected, part) != 0)
                return (int64_t)(at + done);
            done += part;
        }
        at += rig->recv_bytes[from];
    }
    return -1;
}

/* --- running ------------------------------------------------------------------------------- */

static weft_status submit(weft_exchange_rig *rig, const weft_exchange_variant *variant,
                          weft_moe_runtime *runtime)
{
    weft_exchange_memory memory = {.context = rig, .device = take_device, .host = take_host};
    rig->staging_used = rig->host_used = 0;
    if (variant->is_bare)
        return weft_all_to_all(rig->between, rig->lane, rig->send, rig->bare_send_bytes, rig->recv,
                               rig->bare_recv_bytes);
    return weft_moe_exchange_over(runtime, rig->between, rig->inside, &memory, rig->lane, rig->send,
                                  rig->send_bytes, rig->recv, rig->recv_bytes);
}

static weft_status make_runtime(weft_exchange_rig *rig, const weft_exchange_variant *variant,
                                weft_moe_runtime **out)
{
    size_t total = 0;
    weft_moe_options options = {.form = variant->form, .num_chunks = variant->num_chunks};
    for (int peer = 0; peer < weft_comm_size(rig->between); peer++)
        total += rig->send_bytes[peer];
    return weft_moe_runtime_create(rig->device, &options, true,
                                   total / (size_t)weft_comm_size(rig->between), out);
}

/* From when all ranks are there until the last one has what it was sent. */
static weft_status time_one(weft_exchange_rig *rig, const weft_exchange_variant *variant,
                            weft_moe_runtime *runtime, double *out_us)
{
    WEFT_TRY(weft_comm_barrier(rig->world));
    double start_us = weft_now_us();
    WEFT_TRY(submit(rig, variant, runtime));
    WEFT_TRY(weft_lane_sync(rig->lane));
    *out_us = weft_now_us() - start_us;
    return WEFT_OK;
}

static weft_status run_train(weft_exchange_rig *rig, const weft_exchange_variant *variant,
                             weft_moe_runtime *runtime, int train, double *out_us)
{
    double times_us[1 + WEFT_BENCH_MAX_TRAIN], sum_us = 0;
    for (int i = 0; i < 1 + train; i++)
        WEFT_TRY(time_one(rig, variant, runtime, &times_us[i]));
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, times_us, 1 + (size_t)train, WEFT_F64,
                                       WEFT_REDUCE_MAX));
    for (int i = 1; i < 1 + train; i++)
        sum_us += times_us[i];
    *out_us = sum_us / train;
    return WEFT_OK;
}

weft_status weft_exchange_rig_time(weft_exchange_rig *rig, const weft_exchange_variant *variant,
                                   int train, double *out_us)
{
    weft_moe_runtime *runtime = NULL;
    assert(train >= 1 && train <= WEFT_BENCH_MAX_TRAIN);
    if (!variant->is_bare)
        WEFT_TRY(make_runtime(rig, variant, &runtime));
    weft_status status = run_train(rig, variant, runtime, train, out_us);
    weft_moe_runtime_destroy(runtime);
    return status;
}

weft_status weft_exchange_rig_check(weft_exchange_rig *rig, const weft_exchange_variant *variant)
{
    char text[32];
    weft_moe_runtime *runtime = NULL;
    if (variant->is_bare)
        return WEFT_OK;
    memset(rig->recv, POISON, rig->recv_capacity);
    WEFT_TRY(make_runtime(rig, variant, &runtime));
    weft_status status = submit(rig, variant, runtime);
    if (status == WEFT_OK)
        status = weft_lane_sync(rig->lane);
    weft_moe_runtime_destroy(runtime);
    WEFT_TRY(status);
    int64_t wrong = find_wrong(rig);
    weft_exchange_variant_text(variant, text);
    return weft_comm_agree(rig->world, wrong < 0 ? WEFT_OK
                                                 : WEFT_ERROR(WEFT_INTERNAL,
                                                              "%s: byte %lld or a later one is not "
                                                              "what was sent",
                                                              text, (long long)wrong));
}

void weft_exchange_variant_text(const weft_exchange_variant *variant, char out[32])
{
    if (variant->is_bare)
        snprintf(out, 32, "bare I/t");
    else if (variant->form < WEFT_EXCHANGE_O2)
        snprintf(out, 32, "%s", weft_exchange_text(variant->form));
    else
        snprintf(out, 32, "%s x%d", weft_exchange_text(variant->form), variant->num_chunks);
}
