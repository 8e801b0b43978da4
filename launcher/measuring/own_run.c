#include <math.h>
#include <string.h>

#include <weft/kernels.h>

#include "core/log.h"
#include "core/text.h"
#include "launcher/measuring/measure_internal.h"
#include "launcher/measuring/own_kernels.h"

typedef weft_own_rig rig;

enum { MAX_SWEEPS = 9, MIN_SWEEPS = 3, MOST_IN_TRAIN = 256, FEWEST_IN_TRAIN = 4 };
#define TRAIN_US 10e3    /* a train, about */
#define LONG_US 100e3    /* an operation that is a train of its own, with nothing before it */
#define VERY_LONG_US 1e6 /* one that is measured once: no moment's noise is a share of it */

static const char what[] = "calibration";

/* --- memory -------------------------------------------------------------------------------- */

static weft_status take(rig *r, weft_space space, size_t bytes, weft_dtype dtype, void *out)
{
    void *memory;
    WEFT_TRY(weft_device_alloc(r->device, space, bytes + 64, what, &memory));
    *(void **)out = memory;
    if (space == WEFT_SPACE_PINNED || dtype == WEFT_I32)
        return weft_lane_zero(r->lane, memory, bytes + 64);
    const size_t count = bytes / weft_dtype_bytes(dtype);
    return weft_random_normal(r->lane,
                              &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                         .global_dims = {count}, .local_dims = {count}, .seed = 1,
                                         .mean = 0, .std = 0.5f, .dtype = dtype, .x = memory));
}

static void give(rig *r, weft_space space, void *memory, size_t bytes)
{
    if (memory)
        weft_device_free(r->device, space, memory, bytes + 64);
}

static weft_status take_pool(rig *r, weft_dtype dtype, size_t bytes, weft_own_pool *out)
{
    WEFT_TRY(take(r, WEFT_SPACE_DEVICE, bytes, dtype, &out->memory));
    out->bytes = bytes;
    return WEFT_OK;
}

typedef struct host_sizes {
    size_t tokens, choices, counts, offsets;
} host_sizes;

static host_sizes host_sizes_of(const rig *r)
{
    const size_t topk = (size_t)r->options->moe_router_topk;
    return (host_sizes){.tokens = r->dims.rows_full * sizeof(int32_t),
                        .choices = (r->moe.tokens * (topk ? topk : 1) + 1) * sizeof(int32_t),
                        .counts = (2 * r->moe.experts + 8) * sizeof(int64_t),
                        .offsets = (r->moe.experts + 1) * sizeof(int64_t)};
}

/* Any tokens; choices that give every expert as many, the next one's token by token. */
static void fill_host(rig *r)
{
    const size_t vocab = (size_t)r->options->vocab_size;
    const size_t topk = (size_t)r->options->moe_router_topk;
    uint64_t random = 1;
    for (size_t i = 0; i < r->dims.rows_full; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        r->tokens[i] = (int32_t)((random >> 33) % vocab);
    }
    for (size_t i = 0; r->moe.experts > 0 && i < r->moe.tokens * topk; i++) {
        r->choices[i] = (int32_t)(i % r->moe.experts);
        r->probabilities[i] = 1.0f / (float)topk;
    }
}

static weft_status allocate(rig *r, size_t operand_bytes, size_t walked_bytes)
{
    const weft_dtype dtype = r->shape->dtype;
    const host_sizes host = host_sizes_of(r);
    const size_t pool = walked_bytes > operand_bytes ? walked_bytes : operand_bytes;
    r->operand_bytes = operand_bytes;
    WEFT_TRY(take_pool(r, dtype, pool, &r->stored));
    r->stored_fp32 = r->stored;
    if (dtype != WEFT_F32)
        WEFT_TRY(take_pool(r, WEFT_F32, operand_bytes, &r->stored_fp32));
    WEFT_TRY(take_pool(r, WEFT_F32, pool, &r->gradients));
    WEFT_TRY(take_pool(r, WEFT_F32, pool, &r->results));
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(take(r, WEFT_SPACE_DEVICE, operand_bytes, dtype, &r->fresh[i]));
        WEFT_TRY(take(r, WEFT_SPACE_DEVICE, operand_bytes, WEFT_F32, &r->fp32[i]));
    }
    WEFT_TRY(take(r, WEFT_SPACE_DEVICE, operand_bytes, dtype, &r->out));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.tokens, WEFT_I32, &r->tokens));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.choices, WEFT_I32, &r->choices));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.choices, WEFT_I32, &r->row_of));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.choices, WEFT_I32, &r->token_of));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.choices, WEFT_I32, &r->sort));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.choices, WEFT_I32, &r->probabilities));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.counts, WEFT_I32, &r->counts));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, sizeof *r->wrong, WEFT_I32, &r->wrong));
    WEFT_TRY(take(r, WEFT_SPACE_PINNED, host.offsets, WEFT_I32, &r->offsets));
    WEFT_TRY(weft_lane_sync(r->lane));
    fill_host(r);
    return WEFT_OK;
}

static void release(rig *r)
{
    const host_sizes host = host_sizes_of(r);
    if (r->stored_fp32.memory != r->stored.memory)
        give(r, WEFT_SPACE_DEVICE, r->stored_fp32.memory, r->stored_fp32.bytes);
    give(r, WEFT_SPACE_DEVICE, r->stored.memory, r->stored.bytes);
    give(r, WEFT_SPACE_DEVICE, r->gradients.memory, r->gradients.bytes);
    give(r, WEFT_SPACE_DEVICE, r->results.memory, r->results.bytes);
    for (int i = 0; i < 2; i++) {
        give(r, WEFT_SPACE_DEVICE, r->fresh[i], r->operand_bytes);
        give(r, WEFT_SPACE_DEVICE, r->fp32[i], r->operand_bytes);
    }
    give(r, WEFT_SPACE_DEVICE, r->out, r->operand_bytes);
    give(r, WEFT_SPACE_PINNED, r->tokens, host.tokens);
    give(r, WEFT_SPACE_PINNED, r->choices, host.choices);
    give(r, WEFT_SPACE_PINNED, r->row_of, host.choices);
    give(r, WEFT_SPACE_PINNED, r->token_of, host.choices);
    give(r, WEFT_SPACE_PINNED, r->sort, host.choices);
    give(r, WEFT_SPACE_PINNED, r->probabilities, host.choices);
    give(r, WEFT_SPACE_PINNED, r->counts, host.counts);
    give(r, WEFT_SPACE_PINNED, r->wrong, sizeof *r->wrong);
    give(r, WEFT_SPACE_PINNED, r->offsets, host.offsets);
    weft_lane_destroy(r->lane);
}

/* --- trains -------------------------------------------------------------------------------- */

/* Microseconds of each of the description's, in `num` operations back to back behind some that are
 * not timed; of the slowest rank. */
static weft_status train(rig *r, weft_comm *world, weft_own_operation *own, int before, int num,
                         double *out_us)
{
    double start_us = 0, end_us = 0, each = 0;
    WEFT_TRY(weft_comm_barrier(world));
    for (int i = 0; i < before; i++)
        WEFT_TRY(weft_own_submit(r, &own->operation, i, &each));
    WEFT_TRY(weft_measure_stamp(r->lane, &start_us));
    for (int i = 0; i < num; i++)
        WEFT_TRY(weft_own_submit(r, &own->operation, i, &each));
    WEFT_TRY(weft_measure_stamp(r->lane, &end_us));
    WEFT_TRY(weft_lane_sync(r->lane));
    own->each = each;
    *out_us = each > 0 ? fmax((end_us - start_us) / num / each, 1e-3) : 0;
    return weft_comm_all_reduce_host(world, out_us, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

/* As many micro-batches' gradients are overwritten as in a step. */
static int train_length(const rig *r, double us, bool quick)
{
    const int period = r->num_micro_batches;
    double num = ceil((quick ? TRAIN_US / 20 : TRAIN_US) / fmax(us, 0.1));
    num = fmin(fmax(num, us < LONG_US ? FEWEST_IN_TRAIN : 1), MOST_IN_TRAIN);
    return (int)ceil(num / period) * period;
}

static int sweeps_of(double us, bool quick)
{
    return us > VERY_LONG_US ? 1 : quick ? MIN_SWEEPS : MAX_SWEEPS;
}

/* All operations in turn, again and again, as curves are measured. */
static weft_status measure(rig *r, weft_comm *world, weft_own_operation *list, int count,
                           bool quick)
{
    double us[WEFT_MAX_PRODUCTS + WEFT_MAX_TIMED_OPERATIONS][MAX_SWEEPS];
    int length[WEFT_MAX_PRODUCTS + WEFT_MAX_TIMED_OPERATIONS];
    int num_sweeps[WEFT_MAX_PRODUCTS + WEFT_MAX_TIMED_OPERATIONS];
    if (count > WEFT_MAX_PRODUCTS + WEFT_MAX_TIMED_OPERATIONS)
        return WEFT_ERROR(WEFT_CONFIG,
                          "the model has %d different operations, at most %d can be "
                          "measured",
                          count, WEFT_MAX_PRODUCTS + WEFT_MAX_TIMED_OPERATIONS);
    double each;
    if (r->moe.experts > 0) { /* sorted rows, for those who move them */
        const weft_operation sort = {
            .kind = WEFT_OPERATION_MEMORY,
            .module = "router",
            .bytes = 3 * r->moe.tokens * (size_t)r->options->moe_router_topk * sizeof(int32_t)};
        WEFT_TRY(weft_own_submit(r, &sort, 0, &each));
    }
    int most = 0; /* sweeps */
    for (int sweep = -1; sweep < 0 || sweep < most; sweep++) {
        if (sweep < 0)
            weft_log(WEFT_LOG_INFO, "operations of the model: %d, a first time", count);
        else
            weft_log(WEFT_LOG_INFO, "operations of the model: sweep %d of %d", sweep + 1, most);
        for (int i = 0; i < count; i++) {
            double one = 0;
            if (sweep >= 0 && sweep >= num_sweeps[i])
                continue;
            const int num = sweep < 0 ? 1 : length[i];
            const int before = sweep < 0 ? 1 : num > 1 ? (num + 3) / 4 : 0;
            WEFT_TRY(train(r, world, &list[i], before, num, &one));
            if (sweep < 0) {
                length[i] = train_length(r, one * list[i].each, quick);
                num_sweeps[i] = sweeps_of(one * list[i].each, quick);
                most = num_sweeps[i] > most ? num_sweeps[i] : most;
            } else {
                us[i][sweep] = one;
            }
        }
    }
    for (int i = 0; i < count; i++) {
        list[i].us = list[i].each > 0 ? weft_measure_typical_us(us[i], num_sweeps[i]) : 0;
        list[i].scatter = list[i].us > 0 ? weft_measure_scatter(us[i], num_sweeps[i]) : 0;
    }
    return WEFT_OK;
}

/* The spread of products, and of all else: the mean. */
static void say_sources(const weft_own_operation *list, int count, weft_cluster *cluster)
{
    double scatter[2] = {0, 0};
    int num[2] = {0, 0};
    for (int i = 0; i < count; i++) {
        const weft_operation *o = &list[i].operation;
        const bool is_product =
            o->kind == WEFT_OPERATION_GEMM && strcmp(o->module, WEFT_MODULE_ATTENTION) != 0;
        if (!(list[i].us > 0))
            continue;
        scatter[is_product] += list[i].scatter;
        num[is_product]++;
    }
    if (cluster->num_products > 0 && num[1] > 0)
        weft_measure_say_source(cluster, "products", scatter[1] / num[1]);
    if (cluster->num_operations > 0 && num[0] > 0)
        weft_measure_say_source(cluster, "operations", scatter[0] / num[0]);
}

weft_status weft_measure_own(weft_comm *world, weft_device *device, const weft_own_model *model,
                             bool quick, weft_cluster *cluster)
{
    const weft_shape *shape = &model->outline->shape;
    rig r = {.options = model->options,
             .shape = shape,
             .dims = weft_dims_of(model->options, shape),
             .num_micro_batches = model->num_micro_batches,
             .device = device};
    weft_arena arena = {0};
    weft_own_operation *list = NULL;
    size_t operand_bytes = 0;
    int count = 0;
    if (model->options->num_experts > 0)
        r.moe = weft_moe_dims_of(model->options, shape);
    weft_status status = weft_own_list(model, &arena, &list, &count);
    for (int i = 0; i < count; i++) {
        const size_t bytes = weft_own_operand_bytes(&r, &list[i].operation);
        operand_bytes = bytes > operand_bytes ? bytes : operand_bytes;
    }
    if (status == WEFT_OK)
        status = weft_lane_create(device, 0, what, &r.lane);
    if (status == WEFT_OK)
        status = allocate(&r, operand_bytes, (size_t)(quick ? 1 : 96) << 20);
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = measure(&r, world, list, count, quick);
    if (status == WEFT_OK)
        status = weft_own_keep(list, count, cluster);
    if (status == WEFT_OK)
        say_sources(list, count, cluster);
    if (status == WEFT_OK)
        weft_log(
            WEFT_LOG_INFO, "%s of the model",
            weft_count_text(cluster->num_products + cluster->num_operations, "operation").text);
    release(&r);
    weft_arena_release(&arena);
    return status;
}
