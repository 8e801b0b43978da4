/* What attention over context-parallel ranks takes, by hand: blocks and messages of a ring, where
 * one or the other takes longer; heads dealt inside a node; nothing exposed by links that are free;
 * never more than one task after the other. */
#include <math.h>
#include <string.h>

#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "schedule/operands.h"
#include "layers/describe/rehearse.h"
#include "tests/expect.h"

/* FLOPs, and bytes in memory, inside and between nodes, a microsecond; all else takes no time. */
static weft_cluster cluster_with(int ranks_per_node, double flops, double memory, double inside,
                                 double between)
{
    weft_cluster c = {.name = "made up", .num_nodes = 4, .ranks_per_node = ranks_per_node};
    c.interference = weft_interference_none();
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++)
        c.costs[kind] = (weft_cost){.curve = weft_curve_linear(0, INFINITY), .peak = 1e30};
    c.costs[WEFT_COST_ATTENTION_FP32].curve = weft_curve_linear(0, flops);
    c.costs[WEFT_COST_MEMORY].curve = weft_curve_linear(0, memory);
    c.costs[WEFT_COST_MESSAGE_INSIDE].curve = weft_curve_linear(0, inside);
    c.costs[WEFT_COST_ALL_TO_ALL_INSIDE].curve = weft_curve_linear(0, inside);
    c.costs[WEFT_COST_ALL_GATHER].curve = weft_curve_linear(0, inside);
    c.costs[WEFT_COST_REDUCE_SCATTER].curve = weft_curve_linear(0, inside);
    c.costs[WEFT_COST_MESSAGE].curve = weft_curve_linear(0, between);
    c.costs[WEFT_COST_ALL_TO_ALL].curve = weft_curve_linear(0, between);
    c.costs[WEFT_COST_ALL_GATHER_BETWEEN].curve = weft_curve_linear(0, between);
    c.costs[WEFT_COST_REDUCE_SCATTER_BETWEEN].curve = weft_curve_linear(0, between);
    return c;
}

static weft_cluster cluster_of(int ranks_per_node, double flops, double inside, double between)
{
    return cluster_with(ranks_per_node, flops, INFINITY, inside, between);
}

/* An attention of 8 heads, 8 groups, of 4 each: the layer of a model without anything else. */
typedef struct attention {
    weft_mesh mesh;
    weft_site site;
    weft_outline_layer layer;
    weft_outline outline;
    weft_pass_price price;
} attention;

enum { SEQ = 64, HEADS = 8, HEAD_DIM = 4 };

static void make(attention *a, const weft_cluster *cluster, int cp, weft_context_form form,
                 int inner, weft_recompute_options recompute)
{
    const weft_parallel_options options = {.context_parallel_size = cp,
                                           .tensor_model_parallel_size = 1,
                                           .pipeline_model_parallel_size = 1};
    const weft_model_options model = {.struct_bytes = sizeof model,
                                      .num_layers = 1,
                                      .num_attention_heads = HEADS,
                                      .num_query_groups = HEADS,
                                      .kv_channels = HEAD_DIM,
                                      .hidden_size = HEADS * HEAD_DIM,
                                      .seq_length = SEQ,
                                      .disable_bias_linear = true};
    memset(a, 0, sizeof *a);
    EXPECT_OK(weft_mesh_build(&options, cp, 0, &a->mesh));
    a->mesh.cp_comm_type = (int)form;
    a->mesh.cp_inner = inner;
    a->site.cluster = cluster;
    EXPECT_OK(weft_places_groups(&a->mesh, cluster, 0, true, true, &a->site));
    a->outline = (weft_outline){.num_layers = 1, .layers = &a->layer};
    a->outline.shape = weft_model_shape(&model, &a->mesh, 1, WEFT_F32, true);
    EXPECT_OK(weft_recompute_modules(&recompute, &a->outline.shape.recompute));
    a->layer.recompute_group = recompute.granularity == WEFT_RECOMPUTE_FULL;
    EXPECT_OK(weft_rehearse_alone(&model, &a->outline.shape, weft_attention_create,
                                  &a->layer.description));
    EXPECT_OK(weft_pass_price_add(&a->site, &a->outline, 0, 1, &a->price));
}

static void release(attention *a)
{
    weft_description_release(&a->layer.description);
}

static const weft_recompute_options nothing;

/* Forward: FLOPs of a block by their rate, and a block's keys and values by theirs. With blocks
 * that take longer only these count; else every block but the first waits for its message. */
static void check_ring(void)
{
    for (int cp = 2; cp <= 4; cp += 2)
        for (int travels = 0; travels < 2; travels++) {
            const double block_flops = 4.0 * SEQ / cp * SEQ / cp * HEADS * HEAD_DIM / 2;
            const double keys_bytes = 2.0 * SEQ / cp * HEADS * HEAD_DIM * 4;
            const double block_us = 10, message_us = travels ? 25 : 4;
            const weft_cluster cluster =
                cluster_of(4, block_flops / block_us, keys_bytes / message_us, 1);
            attention a;
            make(&a, &cluster, cp, WEFT_CONTEXT_P2P, 0, nothing);
            EXPECT_NEAR(a.price.forward.compute_us, cp * block_us, 1e-9);
            EXPECT_NEAR(a.price.forward.context_us,
                        (cp - 1) * (travels ? message_us - block_us : 0), 1e-9);
            EXPECT_NEAR(a.price.forward.link_us[WEFT_LINK_INSIDE], (cp - 1) * message_us, 1e-9);
            /* Five products instead of two; keys and gradients share the link. */
            const double link_us = a.price.backward.link_us[WEFT_LINK_INSIDE];
            EXPECT_NEAR(a.price.backward.compute_us, 2.5 * cp * block_us, 1e-9);
            if (!travels) /* the own block hides the first keys and the last gradient */
                EXPECT_NEAR(a.price.backward.context_us, 0, 1e-9);
            else if (cp == 2) /* a quarter of it the ones, the rest of it the other */
                EXPECT_NEAR(a.price.backward.context_us, 2 * message_us - 2.5 * block_us, 1e-9);
            else
                EXPECT(a.price.backward.context_us > 0, "nothing is exposed");
            EXPECT(weft_pass_us(&a.price.backward) >= link_us - 1e-9, "%g us of links in %g",
                   link_us, weft_pass_us(&a.price.backward));
            release(&a);
        }
}

/* On two nodes of two: heads are dealt at the inside's rate, keys go round at the slower one, which
 * one rank of two uses. */
static void check_places(void)
{
    const weft_cluster cluster = cluster_of(2, 1e9, 1000, 10);
    const double numbers = 3.0 * SEQ / 4 * HEADS * HEAD_DIM;
    static weft_layer_costs costs;
    attention a;
    make(&a, &cluster, 4, WEFT_CONTEXT_A2A_P2P, 2, nothing);
    EXPECT(a.site.heads.size == 2 && a.site.heads.near == 2, "%d of %d heads' neighbours",
           a.site.heads.near, a.site.heads.size);
    EXPECT(a.site.ring.size == 2 && a.site.ring.near == 1, "%d of %d in the ring", a.site.ring.near,
           a.site.ring.size);
    EXPECT_OK(weft_pass_layer_costs(&a.site, &a.outline, 0, false, &costs));
    const weft_inner_costs *forward =
        weft_inner_costs_of(&costs, WEFT_INNER_ATTENTION, WEFT_HALF_FORWARD);
    EXPECT_NEAR(weft_inner_time(forward, WEFT_TASK_DISPATCH, WEFT_FLOW_HEADS)->us,
                numbers * 4 / 2 / 1000, 1e-9);
    EXPECT_NEAR(weft_inner_time(forward, WEFT_TASK_COMBINE, WEFT_FLOW_HEADS)->us,
                numbers / 3 * 4 / 2 / 1000, 1e-9);
    /* Both ranks of a node send to the other one, and the curve was measured so. */
    EXPECT_NEAR(weft_inner_time(forward, WEFT_TASK_SHIFT, WEFT_FLOW_KEYS)->us,
                numbers * 2 / 3 * 4 / 10, 1e-9);
    release(&a);
    /* Of a ring of all four one rank of a node sends to the other node: at twice the rate. */
    make(&a, &cluster, 4, WEFT_CONTEXT_P2P, 0, nothing);
    EXPECT_NEAR(a.site.ring.sharing, 1, 1e-12);
    EXPECT_NEAR(a.price.forward.link_us[WEFT_LINK_BETWEEN], 3 * numbers * 2 / 3 * 4 / 20, 1e-9);
    EXPECT_NEAR(weft_places_leaving_share(&a.mesh, &cluster, 0, WEFT_AXIS_CP, 1), 0.5, 1e-12);
    EXPECT_NEAR(weft_places_leaving_share(&a.mesh, &cluster, 0, WEFT_AXIS_CP, 2), 1, 1e-12);
    release(&a);
}

/* All tasks of a program, one after the other; *computed_us: those that compute. */
static double serial_us(const attention *a, int backward, double *computed_us)
{
    double us = 0;
    *computed_us = 0;
    for (int i = 0; i < a->layer.description.num_operations; i++) {
        const weft_operation *op = &a->layer.description.operations[i];
        weft_estimate estimate;
        if ((op->phase != WEFT_PHASE_FORWARD) != backward || op->repeated)
            continue;
        EXPECT_OK(weft_operation_us(&a->site, op, &estimate));
        us += estimate.us;
        *computed_us += op->kind == WEFT_OPERATION_COLLECTIVE ? 0 : estimate.us;
    }
    return us;
}

static void check_bounds(void)
{
    static const struct {
        weft_context_form form;
        int inner;
    } rows[] = {{WEFT_CONTEXT_P2P, 0},
                {WEFT_CONTEXT_ALL_GATHER, 0},
                {WEFT_CONTEXT_A2A, 0},
                {WEFT_CONTEXT_A2A_P2P, 2},
                {WEFT_CONTEXT_A2A_P2P, 4}};
    static const double rates[] = {1, 30, 1000, INFINITY};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
            const weft_cluster cluster = cluster_with(4, 100, 2000, rates[r], rates[r] / 3);
            attention a;
            make(&a, &cluster, 8, rows[i].form, rows[i].inner, nothing);
            const weft_pass_time *times[] = {&a.price.forward, &a.price.backward};
            for (int backward = 0; backward < 2; backward++) {
                double computed;
                const double serial = serial_us(&a, backward, &computed),
                             us = weft_pass_us(times[backward]);
                EXPECT_NEAR(times[backward]->compute_us, computed, 1e-9 * computed);
                EXPECT(us <= serial * (1 + 1e-9) && us >= times[backward]->compute_us,
                       "%s at %g: %g us, one after the other %g",
                       weft_context_form_text((int)rows[i].form), rates[r], us, serial);
                EXPECT(isfinite(rates[r]) || times[backward]->context_us == 0,
                       "free links expose %g us", times[backward]->context_us);
                EXPECT(isfinite(rates[r]) || times[backward]->compute_us > 0, "nothing computed");
            }
            release(&a);
        }
}

/* Recomputed whole, or the kernel alone: forward's program once more. */
static void check_recompute(void)
{
    const weft_cluster cluster = cluster_of(4, 100, 3, 1);
    const char *const modules[] = {"core_attn"};
    const weft_recompute_options full = {.granularity = WEFT_RECOMPUTE_FULL},
                                 kernel = {.granularity = WEFT_RECOMPUTE_SELECTIVE,
                                           .modules = {modules, 1}};
    attention none, whole, part;
    make(&none, &cluster, 4, WEFT_CONTEXT_P2P, 0, nothing);
    make(&whole, &cluster, 4, WEFT_CONTEXT_P2P, 0, full);
    make(&part, &cluster, 4, WEFT_CONTEXT_P2P, 0, kernel);
    const double forward = weft_pass_us(&none.price.forward);
    EXPECT(none.price.forward.context_us > 0, "nothing is exposed");
    EXPECT_NEAR(weft_pass_us(&whole.price.recompute), forward, 1e-9);
    EXPECT_NEAR(weft_pass_us(&part.price.backward), weft_pass_us(&none.price.backward) + forward,
                1e-9);
    release(&none);
    release(&whole);
    release(&part);
}

int main(void)
{
    check_ring();
    check_places();
    check_bounds();
    check_recompute();
    return expect_finish();
}
