/* Measuring one MoE layer in all its forms. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/device/device.h"
#include "core/trace/trace.h"
#include "launcher/measuring/bench_moe.h"
#include "launcher/planning/moe_choice.h"
#include "layers/describe/describe.h"
#include "parallel/topology/topology.h"
#include "schedule/build.h"
#include "schedule/price/price.h"

/* --- the ends ------------------------------------------------------------------------------ */

typedef struct end {
    weft_layer base;
    bool filled; /* what it gives lies where it will lie next time: it is made once */
} end;

static void end_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    (void)layer;
    (void)shape;
    memset(out, 0, sizeof *out);
}

static weft_status end_init(weft_layer *layer, weft_build *build)
{
    (void)layer;
    (void)build;
    return WEFT_OK;
}

static void end_destroy(weft_layer *layer)
{
    free(layer);
}

typedef struct fill_args {
    weft_tensor to;
    size_t experts, topk;
} fill_args;

static void put(const weft_tensor *t, size_t index, float value)
{
    if (t->dtype == WEFT_F32) {
        ((float *)t->data)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)t->data)[index] = (uint16_t)(bits >> 16);
}

/* Small numbers; and, where there are experts, token t asks for t k, t k + 1, ... in the columns
 * that the router reads. */
static weft_status fill(const void *raw)
{
    const fill_args *a = raw;
    size_t rows = a->to.dims[0], cols = a->to.dims[1];
    for (size_t t = 0; t < rows; t++) {
        for (size_t c = 0; c < cols; c++)
            put(&a->to, t * cols + c, (float)((t * 31 + c * 17) % 64) / 256.0f - 0.125f);
        for (size_t c = 0; c < a->experts; c++)
            put(&a->to, t * cols + c, 0);
        for (size_t k = 0; k < a->topk; k++)
            put(&a->to, t * cols + (t * a->topk + k) % a->experts, 4);
    }
    return WEFT_OK;
}

static weft_status give(end *e, weft_pass *pass, const weft_tensor *to, size_t experts, size_t topk)
{
    if (e->filled)
        return WEFT_OK;
    e->filled = true;
    return weft_lane_submit(weft_pass_lane(pass), "bench input", fill,
                            &(fill_args){*to, experts, topk}, sizeof(fill_args));
}

typedef struct source {
    end end;
    size_t experts, topk;
} source;

static weft_status source_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                  weft_tensor *y)
{
    (void)x;
    source *s = (source *)layer;
    return give(&s->end, pass, y, s->experts, s->topk);
}

static weft_status ignore_gradient(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    (void)layer;
    (void)pass;
    (void)dy;
    (void)dx;
    return WEFT_OK;
}

static weft_status sink_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    return give((end *)layer, pass, dx, 0, 0);
}

static weft_status ignore_rows(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    (void)layer;
    (void)pass;
    (void)x;
    (void)y;
    return WEFT_OK;
}

static const weft_layer_ops source_ops = {
    .struct_bytes = sizeof source_ops,
    .kind = "source",
    .reads_tokens = true,
    .describe = end_describe,
    .init = end_init,
    .forward = source_forward,
    .backward = ignore_gradient,
    .destroy = end_destroy,
};
static const weft_layer_ops sink_ops = {
    .struct_bytes = sizeof sink_ops,
    .kind = "sink",
    .makes_loss = true,
    .describe = end_describe,
    .init = end_init,
    .forward = ignore_rows,
    .backward = sink_backward,
    .destroy = end_destroy,
};

static weft_status build(weft_model *model, const weft_model_options *options)
{
    source *first = calloc(1, sizeof *first);
    if (first) {
        first->end.base.ops = &source_ops;
        first->experts = (size_t)options->num_experts;
        first->topk = (size_t)options->moe_router_topk;
    }
    WEFT_TRY(weft_model_add(model, (weft_layer *)first));
    WEFT_TRY(weft_model_add(model, weft_moe_create(options)));
    end *last = calloc(1, sizeof *last);
    if (last)
        last->base.ops = &sink_ops;
    return weft_model_add(model, (weft_layer *)last);
}

/* --- the layer ----------------------------------------------------------------------------- */

static weft_status create_groups(weft_bench_layer *layer, const weft_bench_layer_shape *shape)
{
    weft_parallel_options parallel = {0};
    weft_option_section section = {"parallel", weft_parallel_rows, weft_num_parallel_rows,
                                   &parallel, ""};
    weft_arena arena = {0};
    weft_mesh mesh;
    char all[48];
    snprintf(all, sizeof all, "dp=%d,binding=dp,ep=%d", weft_comm_size(layer->world),
             weft_comm_size(layer->world));
    weft_status status = weft_options_parse(&section, 1, "bench", NULL, NULL, 0, &arena);
    if (status == WEFT_OK)
        status = weft_mesh_apply_alias(shape->mesh ? shape->mesh : all, &arena, &parallel, NULL);
    if (status == WEFT_OK)
        status = weft_mesh_build(&parallel, weft_comm_size(layer->world), shape->experts, &mesh);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    return weft_groups_create(layer->world, &mesh, NULL, &layer->groups);
}

/* The router reads the first E columns. */
static void set_router(weft_model *model)
{
    weft_parameters *all = weft_model_parameters(model);
    weft_parameter *router = weft_parameters_find(all, "decoder.layers.0.router.weight");
    weft_tensor *w = &router->weight;
    memset(w->data, 0, weft_tensor_bytes(w));
    for (size_t e = 0; e < w->dims[0]; e++)
        put(w, e * w->dims[1] + e, 4);
}

static weft_status create_rest(weft_bench_layer *layer, const weft_bench_layer_shape *shape)
{
    layer->options = (weft_model_options){.num_layers = 1,
                                          .hidden_size = shape->hidden,
                                          .num_attention_heads = 1,
                                          .seq_length = shape->tokens,
                                          .vocab_size = 1,
                                          .norm_epsilon = 1e-5,
                                          .swiglu = shape->swiglu,
                                          .init_method_std = 0.02,
                                          .num_experts = shape->experts,
                                          .moe_router_topk = shape->topk,
                                          .moe_ffn_hidden_size = shape->ffn};
    static const int64_t every_layer[] = {1};
    layer->options.moe_layer_freq = (weft_int_list){.values = every_layer, .count = 1};
    if (shape->experts > shape->hidden)
        return WEFT_ERROR(WEFT_CONFIG, "balanced routing needs as many columns as experts: %lld",
                          (long long)shape->experts);
    WEFT_TRY(weft_model_options_resolve(&layer->options));
    WEFT_TRY(weft_device_create_cpu(shape->num_threads, 0, &layer->device));
    WEFT_TRY(weft_lane_create(layer->device, 0, "compute", &layer->lane));
    WEFT_TRY(weft_model_create(&(weft_model_setup){.options = &layer->options,
                                                   .groups = &layer->groups,
                                                   .device = layer->device,
                                                   .dtype = shape->dtype,
                                                   .micro_batch_size = 1,
                                                   .bucket_elements = (size_t)1 << 24,
                                                   .training = true,
                                                   .num_passes = 1,
                                                   .seed = 1,
                                                   .moe = shape->moe},
                               build, &layer->model));
    WEFT_TRY(weft_parameters_initialize(weft_model_parameters(layer->model), layer->lane, 1));
    WEFT_TRY(weft_lane_sync(layer->lane));
    set_router(layer->model);
    layer->tokens = calloc((size_t)shape->tokens, sizeof *layer->tokens);
    return layer->tokens ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for tokens");
}

weft_status weft_bench_layer_create(weft_comm *world, const weft_bench_layer_shape *shape,
                                    weft_bench_layer **out)
{
    weft_bench_layer *layer = calloc(1, sizeof *layer);
    weft_status status =
        layer ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for a layer to measure");
    WEFT_TRY(weft_comm_agree(world, status));
    layer->world = world;
    status = weft_comm_agree(world, create_groups(layer, shape));
    if (status == WEFT_OK)
        status = weft_comm_agree(world, create_rest(layer, shape));
    if (status != WEFT_OK) {
        weft_bench_layer_destroy(layer);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = layer;
    return WEFT_OK;
}

void weft_bench_layer_destroy(weft_bench_layer *layer)
{
    if (!layer)
        return;
    weft_model_destroy(layer->model);
    weft_lane_destroy(layer->lane);
    weft_groups_release(&layer->groups);
    weft_device_destroy(layer->device);
    free(layer->tokens);
    free(layer);
}

weft_status weft_bench_layer_run(weft_bench_layer *layer, double out_us[2])
{
    weft_micro_batch micro_batch = {.tokens = layer->tokens,
                                    .labels = layer->tokens,
                                    .step = 1,
                                    .overwrite = true,
                                    .loss_scale = 1,
                                    .training = true};
    for (int half = 0; half < 2; half++) {
        WEFT_TRY(weft_comm_barrier(layer->world));
        weft_device_set_pace(layer->device, (weft_pace){.flops = layer->pace_flops[half],
                                                        .work = WEFT_PACE_EXPERTS});
        double start = weft_now_us();
        if (half == 0)
            WEFT_TRY(weft_model_forward(layer->model, 0, &micro_batch, layer->lane, NULL, NULL));
        else
            WEFT_TRY(weft_model_backward(layer->model, 0, layer->lane, NULL, NULL, false));
        WEFT_TRY(weft_model_enqueue(layer->model));
        WEFT_TRY(weft_lane_sync(layer->lane));
        out_us[half] = weft_now_us() - start;
    }
    return weft_comm_all_reduce_host(layer->world, out_us, 2, WEFT_F64, WEFT_REDUCE_MAX);
}

weft_status weft_bench_layer_peak(weft_bench_layer *layer, double *out_bytes)
{
    weft_device_stats stats;
    weft_device_get_stats(layer->device, &stats);
    *out_bytes = (double)stats.bytes_peak;
    return weft_comm_all_reduce_host(layer->world, out_bytes, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

enum { WARM_UP = 2, PROBES = 3, RATIO_STEPS = 3 };

char *weft_bench_case_text(const weft_bench_case *c, char *text, size_t bytes)
{
    static const char *const names[] = {"synchronous", "by peers", "by nodes", "", "no waits, "};
    if (c->mode < WEFT_BENCH_PIPELINED)
        snprintf(text, bytes, "%s", names[c->mode]);
    else
        snprintf(text, bytes, "%sn %d, %s", names[c->mode], c->pipeline.num_partitions,
                 weft_reuse_text((int)c->pipeline.reuse));
    return text;
}

const weft_bench_case *weft_bench_find(const weft_bench_point *point, weft_bench_mode mode,
                                       const weft_moe_pipeline *pipeline)
{
    for (int i = 0; i < point->num_cases; i++) {
        const weft_bench_case *c = &point->cases[i];
        if (c->mode == mode && (!pipeline || memcmp(&c->pipeline, pipeline, sizeof *pipeline) == 0))
            return c;
    }
    return NULL;
}

const weft_bench_case *weft_bench_best(const weft_bench_point *point)
{
    const weft_bench_case *best = NULL;
    for (int i = 0; i < point->num_cases; i++) {
        const weft_bench_case *c = &point->cases[i];
        if (c->mode == WEFT_BENCH_PIPELINED && (!best || c->us[2].median < best->us[2].median))
            best = c;
    }
    return best;
}

/* --- programs with parts left out ---------------------------------------------------------- */

typedef enum keep { KEEP_COMMUNICATION, KEEP_COMPUTATION, KEEP_ALL_BUT_WAITS } keep;

static bool keeps(keep what, int kind)
{
    if (kind == WEFT_TASK_COUNTS)
        return true;
    if (what == KEEP_COMMUNICATION)
        return kind == WEFT_TASK_DISPATCH || kind == WEFT_TASK_COMBINE;
    if (what == KEEP_COMPUTATION)
        return kind == WEFT_TASK_PERMUTE || kind == WEFT_TASK_EXPERT || kind == WEFT_TASK_RECOMPUTE;
    return true;
}

/* The pipeline's programs with some of their tasks and without waits: lanes alone order them. */
static weft_status strip(const weft_moe_pipeline *pipeline, keep what, weft_arena *arena,
                         weft_program out[2])
{
    for (int backward = 0; backward < 2; backward++) {
        weft_program whole;
        weft_program_builder *builder = NULL;
        WEFT_TRY(weft_program_moe(pipeline, backward, arena, &whole));
        WEFT_TRY(weft_program_builder_create(arena, &builder));
        for (int i = 0; i < whole.num_slots; i++)
            WEFT_TRY(weft_program_add_slots(builder, &whole.slots[i], 1, NULL));
        for (uint32_t i = 0; i < whole.num_tasks; i++)
            if (keeps(what, whole.tasks[i].kind))
                WEFT_TRY(weft_program_add(builder, &whole.tasks[i], NULL, 0, NULL));
        WEFT_TRY(weft_program_finish(builder, whole.max_in_flight, &out[backward]));
    }
    return WEFT_OK;
}

/* --- the ratio ----------------------------------------------------------------------------- */

/* Medians of the synchronous layer's parts alone. */
static weft_status probe(weft_bench_layer *layer, keep what, double out_us[2])
{
    const weft_moe_pipeline synchronous = {.num_partitions = 1};
    weft_program programs[2];
    weft_arena arena = {0};
    double us[2], rounds[2][PROBES];
    weft_status status = strip(&synchronous, what, &arena, programs);
    if (status == WEFT_OK)
        status = weft_model_set_moe_programs(layer->model, &synchronous, programs);
    for (int i = -1; i < PROBES && status == WEFT_OK; i++) {
        status = weft_bench_layer_run(layer, us);
        for (int half = 0; half < 2 && i >= 0; half++)
            rounds[half][i] = us[half];
    }
    if (status == WEFT_OK)
        status = weft_model_set_moe_pipeline(layer->model, &synchronous);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    for (int half = 0; half < 2; half++)
        out_us[half] = weft_spread_of(rounds[half], PROBES).median;
    return WEFT_OK;
}

/* FLOPs of the experts on a rank, forward and backward. */
static void expert_flops(const weft_bench_layer *layer, double out[2])
{
    const weft_shape *shape = weft_model_get_shape(layer->model);
    weft_moe_dims d = weft_moe_dims_of(&layer->options, shape);
    double rows = (double)d.tokens * (double)layer->options.moe_router_topk;
    out[0] = 2 * rows * (double)shape->hidden * (double)d.ffn * (double)(d.gates + 1);
    out[1] = 2 * out[0];
}

/* Communication and computation alone; routing and the exchange of counts are in both. */
static weft_status probe_all(weft_bench_layer *layer, weft_bench_point *point)
{
    WEFT_TRY(probe(layer, KEEP_COMMUNICATION, point->comm_us));
    return probe(layer, KEEP_COMPUTATION, point->comp_us);
}

/* Makes the layer; where a ratio is asked for, with the pace or the width that gives it. */
static weft_status make_layer(weft_comm *world, const weft_bench_moe_options *o,
                              weft_bench_point *point, weft_bench_layer **out)
{
    weft_bench_layer *layer = NULL;
    WEFT_TRY(weft_bench_layer_create(world, &point->shape, &layer));
    weft_status status = probe_all(layer, point);
    for (int i = 0; status == WEFT_OK && o->ratio > 0 && !o->pace && i < RATIO_STEPS; i++) {
        double comm = point->comm_us[0] + point->comm_us[1];
        double comp = point->comp_us[0] + point->comp_us[1];
        int64_t ffn = (int64_t)((double)point->shape.ffn * o->ratio * comm / comp / 16 + 0.5) * 16;
        if (ffn < 16)
            ffn = 16;
        if (ffn == point->shape.ffn)
            break;
        point->shape.ffn = ffn;
        weft_bench_layer_destroy(layer);
        layer = NULL;
        status = weft_bench_layer_create(world, &point->shape, &layer);
        if (status == WEFT_OK)
            status = probe_all(layer, point);
    }
    if (status == WEFT_OK && o->pace) {
        double flops[2], ratio = o->ratio > 0 ? o->ratio : 1;
        expert_flops(layer, flops);
        double comm = point->comm_us[0] + point->comm_us[1];
        for (int half = 0; half < 2; half++) {
            double us = o->balanced ? point->comm_us[half] : comm;
            point->pace_flops[half] =
                o->pace_flops > 0
                    ? o->pace_flops
                    : (o->balanced ? flops[half] : flops[0] + flops[1]) / (ratio * us) * 1e6;
            layer->pace_flops[half] = point->pace_flops[half];
        }
        status = probe(layer, KEEP_COMPUTATION, point->comp_us);
    }
    if (status != WEFT_OK)
        weft_bench_layer_destroy(layer);
    else
        *out = layer;
    return status;
}

/* --- cases --------------------------------------------------------------------------------- */

static void add_case(weft_bench_point *p, weft_bench_mode mode, const weft_moe_pipeline *pipeline)
{
    if (p->num_cases == WEFT_BENCH_MAX_CASES)
        return;
    weft_bench_case *c = &p->cases[p->num_cases++];
    memset(c, 0, sizeof *c);
    c->mode = mode;
    c->pipeline = *pipeline;
}

static void list_cases(const weft_bench_moe_options *o, const weft_moe_layer_shape *shape,
                       weft_bench_point *p)
{
    weft_moe_pipeline peers[WEFT_MOE_MAX_PEERS];
    const int num_peers = weft_moe_list_peers(shape, peers);
    p->num_cases = 0;
    add_case(p, WEFT_BENCH_SYNCHRONOUS, &(weft_moe_pipeline){.num_partitions = 1});
    for (int i = 0; i < num_peers; i++)
        add_case(p, peers[i].peer_group == 1 ? WEFT_BENCH_PEERS : WEFT_BENCH_NODES, &peers[i]);
    for (int i = 0; i < o->num_partitions; i++)
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
            if (o->reuses & 1u << reuse)
                add_case(p, WEFT_BENCH_PIPELINED,
                         &(weft_moe_pipeline){.num_partitions = o->partitions[i],
                                              .reuse = (weft_reuse)reuse});
}

typedef struct layers {
    weft_bench_layer *main;
    weft_arena arena;
    weft_program free_programs[2];
} layers;

static weft_status run_case(layers *l, weft_bench_case *c, int round)
{
    double us[2];
    if (c->mode == WEFT_BENCH_FREE)
        WEFT_TRY(weft_model_set_moe_programs(l->main->model, &c->pipeline, l->free_programs));
    else
        WEFT_TRY(weft_model_set_moe_pipeline(l->main->model, &c->pipeline));
    WEFT_TRY(weft_bench_layer_run(l->main, us));
    if (round < 0)
        return WEFT_OK;
    c->rounds[0][round] = us[0];
    c->rounds[1][round] = us[1];
    c->rounds[2][round] = us[0] + us[1];
    return WEFT_OK;
}

/* `us`: since the first of these cases' first round. */
static void tell_case(const layers *l, const weft_bench_point *p, int i, int first, int round,
                      int num_rounds, double us)
{
    char text[48], of[48] = "warm-up";
    const int num = p->num_cases - first;
    if (round >= 0)
        snprintf(of, sizeof of, "round %d of %d", round + 1, num_rounds);
    weft_bench_tell(
        weft_comm_rank(l->main->world) == 0, "%lld tokens, M %lld, H %lld: %s, form %d of %d: %s%s",
        (long long)p->shape.tokens, (long long)p->shape.hidden, (long long)p->shape.ffn, of, i + 1,
        p->num_cases, weft_bench_case_text(&p->cases[i], text, sizeof text),
        weft_bench_left(us, (round + WARM_UP) * num + i - first, (num_rounds + WARM_UP) * num)
            .text);
}

static weft_status run_rounds(layers *l, weft_bench_point *p, int first, int num_rounds)
{
    const double start_us = weft_now_us();
    for (int round = -WARM_UP; round < num_rounds; round++)
        for (int i = first; i < p->num_cases; i++) {
            tell_case(l, p, i, first, round, num_rounds, weft_now_us() - start_us);
            WEFT_TRY(run_case(l, &p->cases[i], round));
        }
    for (int i = first; i < p->num_cases; i++)
        for (int k = 0; k < 3; k++)
            p->cases[i].us[k] = weft_spread_of(p->cases[i].rounds[k], num_rounds);
    return WEFT_OK;
}

/* All cases in turn, round by round; then, after them, the best one without waits. */
static weft_status measure(layers *l, const weft_bench_moe_options *o,
                           const weft_moe_layer_shape *shape, weft_bench_point *p)
{
    list_cases(o, shape, p);
    WEFT_TRY(run_rounds(l, p, 0, o->common.rounds));
    const weft_bench_case *best = weft_bench_best(p);
    if (!best || o->num_grid > 0)
        return WEFT_OK;
    WEFT_TRY(strip(&best->pipeline, KEEP_ALL_BUT_WAITS, &l->arena, l->free_programs));
    const weft_moe_pipeline pipeline = best->pipeline;
    add_case(p, WEFT_BENCH_FREE, &pipeline);
    return run_rounds(l, p, p->num_cases - 1, o->common.rounds);
}

/* --- choosing ------------------------------------------------------------------------------ */

/* The fewest ranks that one of EP's groups has on one node. */
static weft_status count_ep_inside(const weft_bench_layer *layer, int *out)
{
    weft_arena arena = {0};
    weft_topology topology;
    weft_status status = weft_topology_discover(layer->world, &arena, &topology);
    if (status == WEFT_OK && topology.node_of)
        status = weft_topology_inside(&topology, &layer->groups.mesh, WEFT_AXIS_EP, out);
    status = weft_comm_agree(layer->world, status);
    if (status == WEFT_OK)
        status = weft_comm_broadcast_host(layer->world, out, sizeof *out, 0);
    weft_arena_release(&arena);
    return status;
}

/* The paces of the two directions may differ: the costs of each with its own. */
static weft_moe_costs costs_of(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                               const weft_bench_point *p, const weft_moe_pipeline *pipeline)
{
    weft_moe_layer_shape backward = *shape;
    backward.pace_flops = p->pace_flops[1];
    weft_moe_costs costs = weft_moe_costs_of(cluster, shape, pipeline);
    weft_moe_costs other = weft_moe_costs_of(cluster, &backward, pipeline);
    costs.expert_backward_us = other.expert_backward_us;
    costs.recompute_us = other.recompute_us;
    return costs;
}

static weft_status predict(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                           weft_bench_point *p)
{
    weft_arena arena = {0};
    weft_interference beside = weft_moe_interference(cluster, shape);
    weft_status status = WEFT_OK;
    for (int i = 0; i < p->num_cases && status == WEFT_OK; i++) {
        weft_bench_case *c = &p->cases[i];
        if (c->mode == WEFT_BENCH_FREE)
            continue;
        weft_moe_costs costs = costs_of(cluster, shape, p, &c->pipeline);
        for (int backward = 0; backward < 2 && status == WEFT_OK; backward++) {
            weft_program program;
            double us = 0;
            status = weft_program_moe(&c->pipeline, backward, &arena, &program);
            if (status == WEFT_OK)
                status = weft_program_moe_price(&program, &costs, &beside, NULL, &us);
            c->predicted_us += us;
        }
    }
    weft_arena_release(&arena);
    return status;
}

static void choose_by_profile(const weft_bench_moe_options *o, weft_bench_point *p)
{
    weft_granularity searches[WEFT_NUM_REUSES];
    bool trial = true;
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        weft_granularity_init(&searches[reuse], o->partitions, o->num_partitions);
    double tokens = (double)p->shape.tokens;
    p->num_trials = 0;
    while (trial) {
        weft_moe_pipeline *chosen = &p->profile_choice.pipeline;
        weft_granularity_next_of(searches, o->reuses, tokens, chosen, &trial);
        const weft_bench_case *c = weft_bench_find(p, WEFT_BENCH_PIPELINED, chosen);
        if (!c)
            return;
        p->profile_us = c->us[2].median;
        /* What one trial in a run would have seen: not the median. */
        if (trial)
            weft_granularity_report(&searches[chosen->reuse], tokens, chosen->num_partitions,
                                    fmin(c->rounds[2][0], c->rounds[2][1]));
        p->num_trials += trial;
    }
}

static weft_status choose(const weft_bench_moe_options *o, const weft_cluster *cluster,
                          const weft_moe_layer_shape *shape, weft_bench_point *p)
{
    const weft_bench_case *best = weft_bench_best(p);
    if (!best)
        return WEFT_OK;
    p->best_us = best->us[2].median;
    choose_by_profile(o, p);
    if (!cluster)
        return WEFT_OK;
    WEFT_TRY(predict(cluster, shape, p));
    double start = weft_now_us();
    WEFT_TRY(weft_choose_moe(cluster, shape, WEFT_MOE_MODEL_PRICE, o->partitions, o->num_partitions,
                             o->reuses, true, NULL, &p->model_choice));
    p->model_cost_us = weft_now_us() - start;
    const weft_moe_pipeline *chosen = &p->model_choice.pipeline;
    const weft_bench_mode mode = chosen->peer_group == 0   ? WEFT_BENCH_PIPELINED
                                 : chosen->peer_group == 1 ? WEFT_BENCH_PEERS
                                                           : WEFT_BENCH_NODES;
    const weft_bench_case *c = weft_bench_find(p, mode, chosen);
    p->model_us = c ? c->us[2].median : 0;
    return WEFT_OK;
}

/* --- a point ------------------------------------------------------------------------------- */

static weft_status write_trace(layers *l, const weft_bench_moe_options *o,
                               const weft_bench_point *p)
{
    const weft_bench_case *best = weft_bench_best(p);
    weft_trace *trace = NULL;
    double us[2];
    if (!o->trace || !best)
        return WEFT_OK;
    WEFT_TRY(weft_model_set_moe_pipeline(l->main->model, &best->pipeline));
    WEFT_TRY(weft_trace_create(&trace));
    int num_tracks;
    const char *const *tracks = weft_model_track_names(&num_tracks);
    weft_trace_name_lanes(trace, tracks, num_tracks);
    weft_slices_explain(trace);
    weft_trace_set_origin(trace, weft_now_us());
    weft_model_set_trace(l->main->model, trace, 0);
    weft_status status = weft_bench_layer_run(l->main, us);
    weft_model_set_trace(l->main->model, NULL, 0);
    if (status == WEFT_OK && weft_comm_rank(l->main->world) == 0) {
        FILE *out = fopen(o->trace, "w");
        char title[96], text[48];
        snprintf(title, sizeof title, "one MoE layer, %s",
                 weft_bench_case_text(best, text, sizeof text));
        status = out ? weft_trace_write_svg(trace, title, "rank 0 of those measured", out)
                     : WEFT_ERROR(WEFT_FILE, "%s: cannot write", o->trace);
        if (out && fclose(out) != 0 && status == WEFT_OK)
            status = WEFT_ERROR(WEFT_FILE, "%s: cannot write", o->trace);
    }
    weft_trace_destroy(trace);
    return weft_comm_agree(l->main->world, status);
}

static weft_status run_point(weft_comm *world, const weft_bench_moe_options *o,
                             const weft_cluster *cluster, weft_bench_point *p, layers *l)
{
    WEFT_TRY(make_layer(world, o, p, &l->main));
    if (!weft_model_moe_exchanges(l->main->model))
        return WEFT_ERROR(WEFT_CONFIG, "no tokens travel on this mesh: nothing to measure");
    int ep_inside;
    WEFT_TRY(count_ep_inside(l->main, &ep_inside));
    weft_moe_layer_shape layer = weft_moe_layer_shape_of(
        &l->main->options, weft_model_get_shape(l->main->model), ep_inside, p->pace_flops[0]);
    WEFT_TRY(measure(l, o, &layer, p));
    WEFT_TRY(choose(o, cluster, &layer, p));
    return write_trace(l, o, p);
}

weft_status weft_bench_moe_point(weft_comm *world, const weft_bench_moe_options *options,
                                 const weft_cluster *cluster, weft_bench_point *out)
{
    layers l = {0};
    weft_status status = run_point(world, options, cluster, out, &l);
    weft_bench_layer_destroy(l.main);
    weft_arena_release(&l.arena);
    return status;
}
