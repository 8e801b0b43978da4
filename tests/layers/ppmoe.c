/* PPMoE (binding tp) and DPMoE (binding dp) are the same function: the dispatch example of PPMoE
 * §3.3.3 through the real layer, then outputs and gradients on 1, 2 and 4 ranks against one rank.
 */
#include <stdlib.h>

#include "layers/moe/internal.h"
#include "tests/world.h"
#include "tests/layers/moe_case.h"
#include "tests/layers/moe_reference.h"

enum { TOKENS = 8, EXPERTS = 4, HIDDEN = 12, NUMBER_COLUMN = 4 };

static const size_t order[TOKENS] = {2, 3, 1, 2, 0, 3, 2, 0};

/* X_0 = X[[4, 7]], X_1 = X[2], X_2 = X[[0, 3, 6]], X_3 = X[[1, 5]]: rank 0 holds experts 0 and 1.
 */
static const size_t rank_tokens[2][5] = {{4, 7, 2}, {0, 3, 6, 1, 5}};
static const int64_t rank_offsets[2][3] = {{0, 2, 3}, {0, 3, 5}};

static double *widen(const weft_parameter *parameter)
{
    size_t count = weft_tensor_count(&parameter->weight);
    const float *weight = parameter->weight.data;
    double *to = malloc(count * sizeof *to);
    for (size_t i = 0; i < count; i++)
        to[i] = (double)weight[weft_parameter_place(parameter, i)];
    return to;
}

/* The layer's output by definition, with the weights of all experts gathered. */
static void expected_output(const rig *r, weft_comm *part, const float *x, double *y)
{
    const weft_parameter *fc1 = rig_parameter(r, "experts.linear_fc1.weight");
    const weft_parameter *fc2 = rig_parameter(r, "experts.linear_fc2.weight");
    const size_t num1 = weft_tensor_count(&fc1->weight), num2 = weft_tensor_count(&fc2->weight);
    size_t expert_tokens[EXPERTS];
    double *own1 = widen(fc1), *own2 = widen(fc2), wide_x[TOKENS * HIDDEN],
           dy[TOKENS * HIDDEN] = {0};
    double *all1 = malloc(2 * num1 * sizeof *all1);
    double *all2 = malloc(2 * num2 * sizeof *all2);
    double *router = widen(rig_parameter(r, "router.weight"));
    EXPECT_OK(weft_comm_all_gather_host(part, own1, all1, num1 * sizeof *own1));
    EXPECT_OK(weft_comm_all_gather_host(part, own2, all2, num2 * sizeof *own2));
    for (size_t i = 0; i < TOKENS * HIDDEN; i++)
        wide_x[i] = (double)x[i];
    moe_reference m = {.options = &r->h.options,
                       .tokens = TOKENS,
                       .routed = TOKENS,
                       .x = wide_x,
                       .dy = dy,
                       .router = router,
                       .fc1 = all1,
                       .fc2 = all2,
                       .y = y,
                       .expert_tokens = expert_tokens};
    moe_reference_run(&m);
    free(own1);
    free(own2);
    free(all1);
    free(all2);
    free(router);
}

static void check_example(weft_comm *part, const char *mesh)
{
    static const char json[] =
        "{\"model\": {\"num_layers\": 1, \"hidden_size\": 12, \"ffn_hidden_size\": 16, "
        "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 8, \"num_experts\": 4, "
        "\"moe_router_topk\": 1, \"moe_router_pre_softmax\": true, \"init_method_std\": 0.3}}";
    weft_arena arena = {0};
    weft_model_options options = {0};
    rig r;
    EXPECT_OK(harness_options(json, &arena, &options));
    EXPECT_OK(rig_create(&r, part, &options, mesh, 1, WEFT_F32, weft_moe_create));
    /* Column e of a token asks for expert e, column 4 holds the token's number. */
    float x[TOKENS * HIDDEN], dy[TOKENS * HIDDEN];
    rig_random(x, TOKENS * HIDDEN, 0.5, 1);
    rig_random(dy, TOKENS * HIDDEN, 1, 2);
    weft_parameter *router = rig_parameter(&r, "router.weight");
    memset(router->weight.data, 0, weft_tensor_bytes(&router->weight));
    for (size_t e = 0; e < EXPERTS; e++)
        ((float *)router->weight.data)[e * HIDDEN + e] = 1;
    for (size_t t = 0; t < TOKENS; t++) {
        for (size_t e = 0; e < EXPERTS; e++)
            x[t * HIDDEN + e] = e == order[t] ? 1 : -1;
        x[t * HIDDEN + NUMBER_COLUMN] = (float)t;
    }
    weft_status status = rig_pass(&r, x, dy, true);
    EXPECT(status == WEFT_OK, "%s: %s", mesh, weft_error_get()->text);

    const weft_moe_state *state = rig_state(&r);
    int rank = weft_comm_rank(part);
    EXPECT(state->cut.num_rows == (rank ? 5 : 3), "%s: rank %d computes %zu tokens", mesh, rank,
           state->cut.num_rows);
    for (int e = 0; e < 3; e++)
        EXPECT(state->cut.parts[0].offsets[e] == rank_offsets[rank][e],
               "%s: rank %d offset %d is %lld", mesh, rank, e,
               (long long)state->cut.parts[0].offsets[e]);
    for (size_t i = 0; i < state->cut.num_rows && state->cut.num_rows == (rank ? 5u : 3u); i++) {
        const int32_t *arrived = state->cut.parts[0].order; /* rows lie as they came */
        const float *row = (const float *)state->held.dispatched.data +
                           (arrived ? (size_t)arrived[i] : i) * HIDDEN;
        size_t token = rank_tokens[rank][i];
        EXPECT(memcmp(row, x + token * HIDDEN, HIDDEN * sizeof *row) == 0,
               "%s: rank %d computes token %g as its row %zu, expected token %zu", mesh, rank,
               (double)row[NUMBER_COLUMN], i, token);
    }
    double expected[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    expected_output(&r, part, x, expected);
    for (size_t i = 0; i < r.rows * HIDDEN; i++)
        y[i] = (double)r.y[i];
    double error = rig_error_of_doubles(y, expected + r.first_row * HIDDEN, r.rows * HIDDEN);
    EXPECT(error <= 5e-6, "%s: y is off by %.3g", mesh, error);
    rig_release(&r);
    weft_arena_release(&arena);
}

#define SHAPE "\"hidden_size\": 20, \"seq_length\": 8, \"num_experts\": 4, "
#define LOSSES ", \"moe_aux_loss_coeff\": 0.05, \"moe_z_loss_coeff\": 0.01"

static const moe_case cases[] = {
    {"top-1",
     SHAPE "\"ffn_hidden_size\": 24, \"moe_router_topk\": 1, "
           "\"moe_router_pre_softmax\": true" LOSSES,
     3, MOE_SPREAD, MOE_TIGHT},
    {"top-2 swiglu", SHAPE "\"ffn_hidden_size\": 16, \"swiglu\": true" LOSSES, 2, MOE_SPREAD,
     MOE_TIGHT},
    {"top-2 shared expert",
     SHAPE "\"moe_ffn_hidden_size\": 12, \"ffn_hidden_size\": 24, "
           "\"moe_shared_expert_intermediate_size\": 8" LOSSES,
     2, MOE_SPREAD, MOE_TIGHT},
    {"top-1 drops by position",
     SHAPE "\"moe_router_topk\": 1, \"moe_router_pre_softmax\": true, "
           "\"moe_expert_capacity_factor\": 0.75, "
           "\"moe_token_drop_policy\": \"position\"",
     3, MOE_SPREAD, MOE_TIGHT},
    {"top-2 drops by likelihood",
     SHAPE "\"moe_expert_capacity_factor\": 0.6, \"swiglu\": true, "
           "\"moe_token_drop_policy\": \"probs\"",
     3, MOE_SPREAD, MOE_TIGHT},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static const struct {
    int ranks;
    const char *mesh;
} meshes[] = {
    {1, "tp=1,binding=tp"},
    {1, "dp=1,binding=dp,ep=1"},
    {2, "tp=2,binding=tp"},
    {2, "tp=2,binding=tp,sp=1"},
    {2, "tp=2,binding=dp,ep=1"},
    {2, "tp=2,binding=dp,ep=2"},
    {2, "tp=2,binding=dp,ep=2,sp=1"},
    {2, "tp=2,binding=dp,ep=1,etp=2"},
    {2, "dp=2,binding=dp,ep=1"},
    {2, "dp=2,binding=dp,ep=2"},
    {4, "tp=4,binding=tp"},
    {4, "tp=4,binding=tp,sp=1"},
    {4, "tp=2,dp=2,binding=tp"},
    {4, "tp=2,dp=2,binding=dp,ep=2"},
    {4, "tp=2,dp=2,binding=dp,ep=4"},
    {4, "tp=2,dp=2,binding=dp,ep=4,sp=1"},
    {4, "tp=2,dp=2,binding=dp,ep=2,etp=2"},
    {4, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1"},
    {4, "dp=4,binding=dp,ep=2"},
    {4, "dp=4,binding=dp,ep=4"},
};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

int main(void)
{
    weft_comm *world = world_begin(4);
    int rank = weft_comm_rank(world);
    weft_comm_set_check(true);

    weft_comm *part = world_part(world, 2);
    if (part) {
        check_example(part, "tp=2,binding=tp");
        check_example(part, "tp=2,binding=tp,sp=1");
        /* The all-to-all brings the experts the same rows in the same order. */
        check_example(part, "tp=2,binding=dp,ep=2");
    }
    weft_comm_destroy(part);
    for (int c = 0; c < NUM_CASES; c++) {
        if (rank == 0)
            moe_case_check_definition(&cases[c]);
        for (int m = 0; m < NUM_MESHES; m++)
            moe_case_check_part(&cases[c], world, meshes[m].ranks, meshes[m].mesh);
    }
    return world_finish(world) | moe_case_finish();
}
