/* What a rehearsal says is what a pass does: parameters declared, bytes stashed, the scratch's high
 * water, FLOPs of the GEMMs and bytes handed to TP's and EP's collectives, for every layer alone
 * and for whole stacks, in fp32 and bf16. Runs with 4 ranks. */
#include <stdlib.h>

#include "kernels/kernels.h"
#include "layers/describe/rehearse.h"
#include "tests/world.h"
#include "tests/layers/rig.h"
#include "tests/layers/used.h"

typedef struct cost_case {
    const char *name, *json;
    rig_create_function layer; /* NULL: a stack */
    weft_model_function build; /* of the stack */
    int attentions;            /* how many: their scores are no GEMM of the kernels' */
} cost_case;

static weft_layer *block_of_mlp(const weft_model_options *o)
{
    return weft_block_create(o, weft_attention_create(o), weft_mlp_create(o));
}

static weft_layer *block_of_moe(const weft_model_options *o)
{
    return weft_block_create(o, weft_attention_create(o), weft_moe_create(o));
}

static weft_status build_ends(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    return weft_model_add_head(model, options);
}

#define SHAPE                                                                                      \
    "\"hidden_size\": 16, \"ffn_hidden_size\": 40, \"num_attention_heads\": 4, "                   \
    "\"seq_length\": 8, \"vocab_size\": 29"
#define GPT2 SHAPE ", \"num_layers\": 2"
#define LLAMA                                                                                      \
    SHAPE ", \"num_layers\": 2, \"normalization\": \"RMSNorm\", \"swiglu\": true, "                \
          "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true, "                 \
          "\"untie_embeddings_and_output_weights\": true"
#define MOE ", \"num_experts\": 4, \"moe_router_topk\": 2"
#define LATENTS                                                                                    \
    ", \"multi_latent_attention\": true, \"kv_lora_rank\": 12, \"qk_head_dim\": 6, "               \
    "\"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8"
#define DROPOUT ", \"hidden_dropout\": 0.1"

static const cost_case dense_cases[] = {
    {"attention", GPT2, weft_attention_create, NULL, 1},
    {"attention, grouped", LLAMA ", \"num_query_groups\": 2, \"add_qkv_bias\": true",
     weft_attention_create, NULL, 1},
    {"attention, few groups", GPT2 ", \"num_query_groups\": 1", weft_attention_create, NULL, 1},
    {"attention, norms of q and k", GPT2 ", \"num_query_groups\": 1, \"qk_layernorm\": true",
     weft_attention_create, NULL, 1},
    {"attention, norms across heads",
     LLAMA ", \"num_query_groups\": 2, \"qk_layernorm\": true, "
           "\"qk_layernorm_across_heads\": true",
     weft_attention_create, NULL, 1},
    {"attention of latents", LLAMA LATENTS, weft_attention_create, NULL, 1},
    {"attention of latents, queries' too", GPT2 LATENTS ", \"q_lora_rank\": 20",
     weft_attention_create, NULL, 1},
    {"attention of latents, a window, sinks and a cap",
     LLAMA LATENTS ", \"window_size\": 3, \"softmax_type\": \"learnable\", "
                   "\"attn_logit_softcapping\": 2.0",
     weft_attention_create, NULL, 1},
    {"attention, a window, sinks and a cap",
     GPT2 ", \"window_size\": 3, \"softmax_type\": \"learnable\", "
          "\"attn_logit_softcapping\": 2.0",
     weft_attention_create, NULL, 1},
    {"attention, chunks", LLAMA ", \"attention_chunk_size\": 3", weft_attention_create, NULL, 1},
    {"block, norms behind", LLAMA ", \"norm_placement\": \"after\"", block_of_mlp, NULL, 1},
    {"block, norms on both sides", LLAMA DROPOUT ", \"norm_placement\": \"sandwich\"", block_of_mlp,
     NULL, 1},
    {"embedding and head, scaled and capped",
     GPT2 ", \"scale_embeddings\": true, \"final_logit_softcapping\": 3.0", NULL, build_ends, 0},
    {"mlp", GPT2, weft_mlp_create, NULL, 0},
    {"mlp, swiglu", LLAMA, weft_mlp_create, NULL, 0},
    {"block", GPT2, block_of_mlp, NULL, 1},
    {"block, dropout", LLAMA DROPOUT, block_of_mlp, NULL, 1},
    {"embedding and head, tied", GPT2, NULL, build_ends, 0},
    {"embedding and head, untied", LLAMA DROPOUT, NULL, build_ends, 0},
    {"a GPT-2", GPT2, NULL, weft_model_build_gpt, 2},
    {"a Llama", LLAMA, NULL, weft_model_build_gpt, 2},
};
static const cost_case moe_cases[] = {
    {"moe", GPT2 MOE, weft_moe_create, NULL, 0},
    {"moe, swiglu, shared expert", LLAMA MOE ", \"moe_shared_expert_intermediate_size\": 24",
     weft_moe_create, NULL, 0},
    {"moe, sigmoids and a bias",
     GPT2 MOE ", \"moe_router_score_function\": \"sigmoid\", "
              "\"moe_router_enable_expert_bias\": true, \"moe_router_num_groups\": 2, "
              "\"moe_router_group_topk\": 1",
     weft_moe_create, NULL, 0},
    {"moe, gated shared expert",
     LLAMA MOE ", \"moe_shared_expert_intermediate_size\": 24, \"moe_shared_expert_gate\": true",
     weft_moe_create, NULL, 0},
    {"moe, half the room", GPT2 MOE ", \"moe_expert_capacity_factor\": 0.5", weft_moe_create, NULL,
     0},
    {"moe, biases of experts", LLAMA MOE ", \"add_expert_bias\": true", weft_moe_create, NULL, 0},
    {"block of moe", LLAMA MOE DROPOUT, block_of_moe, NULL, 1},
};

typedef struct costs {
    uint64_t num_params, local_params, param_bytes, activation_bytes, recomputed_bytes,
        scratch_bytes, deferred_bytes;
    uint64_t flops[2], tp_bytes[2], ep_bytes[2]; /* forward, backward */
    used_half done[3];                           /* forward, backward; its second half */
} costs;

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"global parameters", offsetof(costs, num_params)},
    {"local parameters", offsetof(costs, local_params)},
    {"parameter bytes", offsetof(costs, param_bytes)},
    {"activation bytes", offsetof(costs, activation_bytes)},
    {"recomputed bytes", offsetof(costs, recomputed_bytes)},
    {"scratch bytes", offsetof(costs, scratch_bytes)},
    {"deferred bytes", offsetof(costs, deferred_bytes)},
    {"forward FLOPs", offsetof(costs, flops[0])},
    {"backward FLOPs", offsetof(costs, flops[1])},
    {"forward TP bytes", offsetof(costs, tp_bytes[0])},
    {"backward TP bytes", offsetof(costs, tp_bytes[1])},
    {"forward EP bytes", offsetof(costs, ep_bytes[0])},
    {"backward EP bytes", offsetof(costs, ep_bytes[1])},
};

static void measure_parameters(weft_model *model, costs *out)
{
    weft_parameters *parameters = weft_model_parameters(model);
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_placed *p = weft_parameters_at(parameters, i);
        const uint64_t ranks = (uint64_t)weft_parameters_groups(parameters)->mesh.tp;
        const bool is_part = p->rows.count > 0;
        uint64_t global = is_part ? p->rows.count * ranks / (uint64_t)p->rows.sharers : 1;
        for (int d = is_part; d < p->shard.num_dims; d++)
            global *= p->shard.global_dims[d];
        out->num_params += p->parameter.tied_copy ? 0 : global;
        out->local_params += p->count;
        out->param_bytes += weft_tensor_bytes(&p->parameter.weight);
    }
}

static uint64_t total(int kind)
{
    uint64_t bytes, count;
    if (kind == 0)
        return weft_gemm_flops();
    weft_comm_totals(kind == 1 ? WEFT_PURPOSE_TENSOR : WEFT_PURPOSE_EXPERT, &bytes, &count);
    return bytes;
}

static void measure(harness *h, const int32_t *tokens, const int32_t *labels, costs *out)
{
    const bool is_cut = h->groups.mesh.cp > 1;
    const int last = harness_deferred > 0 ? 3 : 2;
    uint64_t at[4][3];
    weft_micro_batch micro_batch = {.tokens = tokens,
                                    .labels = labels,
                                    .cut = is_cut ? &h->cut : NULL,
                                    .index = is_cut ? h->index : NULL,
                                    .step = 1,
                                    .overwrite = true,
                                    .backward_overwrites = true,
                                    .loss_scale = 1,
                                    .training = true};
    memset(out, 0, sizeof *out);
    measure_parameters(h->model, out);
    for (int stop = 0; stop <= last; stop++) {
        if (stop > 0)
            used_begin();
        if (stop == 1)
            EXPECT_OK(weft_model_forward(h->model, 0, &micro_batch, h->lane, NULL, NULL));
        if (stop == 2 && last == 3)
            EXPECT_OK(weft_model_backward_input(h->model, 0, 0, h->lane, NULL, NULL));
        if (stop == 3)
            EXPECT_OK(weft_model_backward_weights(h->model, 0, 0, h->lane, false));
        if (stop == 2 && last == 2)
            EXPECT_OK(weft_model_backward(h->model, 0, h->lane, NULL, NULL, false));
        EXPECT_OK(weft_model_enqueue(h->model));
        EXPECT_OK(weft_lane_sync(h->lane));
        EXPECT_OK(weft_comm_barrier(h->world));
        if (stop > 0)
            used_end(&out->done[stop - 1]);
        for (int kind = 0; kind < 3; kind++)
            at[stop][kind] = total(kind);
    }
    for (int half = 0; half < 2; half++) {
        const int end = half ? last : 1;
        out->flops[half] = at[end][0] - at[half][0];
        out->tp_bytes[half] = at[end][1] - at[half][1];
        out->ep_bytes[half] = at[end][2] - at[half][2];
    }
    if (last == 3) { /* a whole one may take more scratch */
        EXPECT_OK(weft_model_forward(h->model, 0, &micro_batch, h->lane, NULL, NULL));
        EXPECT_OK(weft_model_enqueue(h->model));
        EXPECT_OK(weft_model_backward(h->model, 0, h->lane, NULL, NULL, false));
        EXPECT_OK(weft_model_enqueue(h->model));
        EXPECT_OK(weft_lane_sync(h->lane));
        out->deferred_bytes = h->model->memory.deferred[0].stack.peak_bytes;
    }
    out->activation_bytes = weft_model_stash_bytes(h->model, 0);
    out->recomputed_bytes = h->model->memory.recomputed[0].stack.peak_bytes;
    out->scratch_bytes = h->model->memory.scratch.peak_bytes;
}

/* The operations of a half: 0 forward, 1 backward, 2 the second half of a backward in two. */
static void add_listed(used_half *out, const weft_description *d, int half)
{
    enum { MOST = 256 };
    weft_operation operations[MOST];
    weft_description part = *d;
    part.operations = operations;
    part.num_operations = 0;
    for (int o = 0; o < d->num_operations && o < MOST; o++)
        if (half == 0 || d->operations[o].deferred == (half == 2))
            operations[part.num_operations++] = d->operations[o];
    used_add_listed(out, &part, half == 0);
}

/* The layers' sum, and what the model adds: the norms' outputs, two gradients between layers, and
 * in a rig the rows at both sides of the layer. */
static void expected(const cost_case *c, const harness *h, int first, int end, costs *out)
{
    weft_layer_cost sum = {0};
    uint64_t redone = 0; /* GEMMs of kernels, not attention's own */
    const weft_shape *shape = weft_model_get_shape(h->model);
    weft_description *all, d;
    int count;
    memset(out, 0, sizeof *out);
    if (c->layer) {
        first = 0, end = 1;
        EXPECT_OK(weft_rehearse_alone(&h->options, shape, c->layer, &d));
    } else {
        EXPECT_OK(weft_rehearse_model(&h->options, NULL, shape, c->build, &all, &count));
    }
    for (int i = first; i < end; i++) {
        if (!c->layer)
            d = all[i];
        EXPECT(!d.coarse, "layer %d of %s is coarse", i, c->name);
        weft_cost_add(&sum, &d.cost);
        out->deferred_bytes += d.deferred_bytes;
        for (int half = 0; half < 3; half++)
            add_listed(&out->done[half], &d, half);
        for (int o = 0; o < d.num_operations; o++)
            if (d.operations[o].phase == WEFT_PHASE_RECOMPUTE && !d.operations[o].fused)
                redone += d.operations[o].flops;
    }
    if (c->layer)
        weft_description_release(&d);
    else
        weft_descriptions_release(all, count);
    const weft_mesh *mesh = &h->groups.mesh;
    size_t rows = weft_shape_local_tokens(shape) / (size_t)(mesh->sequence_parallel ? mesh->tp : 1);
    size_t piece = weft_piece_bytes(shape->dtype, rows, shape->hidden);
    const int64_t channels = h->options.kv_channels,
                  value = h->options.multi_latent_attention ? h->options.v_head_dim : channels;
    uint64_t width = (uint64_t)(h->options.num_attention_heads * (channels + value) / mesh->tp);
    const int64_t shown = h->options.window_size + h->options.attention_chunk_size;
    const uint64_t keys = shown > 0 ? (uint64_t)shown : shape->seq;
    uint64_t scores =
        2 * (uint64_t)c->attentions * shape->batch * keys * weft_shape_local_seq(shape) * width;
    out->num_params = sum.num_params;
    out->local_params = sum.local_params;
    out->param_bytes = sum.param_bytes;
    out->activation_bytes = sum.activation_bytes + (c->layer ? 2 * piece : 0);
    out->recomputed_bytes = sum.recomputed_bytes;
    out->scratch_bytes = sum.scratch_bytes + 3 * piece;
    out->flops[0] = sum.forward_flops - scores;
    out->flops[1] = sum.backward_flops - 2 * scores + redone;
    out->tp_bytes[0] = sum.tp_forward_bytes;
    out->tp_bytes[1] = sum.tp_backward_bytes;
    out->ep_bytes[0] = sum.ep_forward_bytes;
    out->ep_bytes[1] = sum.ep_backward_bytes;
}

static void compare(const cost_case *c, const char *mesh, weft_dtype dtype, const costs *got,
                    const costs *wanted, size_t num_fields)
{
    for (size_t f = 0; f < num_fields; f++) {
        uint64_t a, b;
        memcpy(&a, (const char *)got + fields[f].offset, sizeof a);
        memcpy(&b, (const char *)wanted + fields[f].offset, sizeof b);
        EXPECT(a == b, "%s in %s on %s: %s: %llu, described %llu", c->name, weft_dtype_text(dtype),
               mesh, fields[f].name, (unsigned long long)a, (unsigned long long)b);
    }
}

/* Token t asks for experts t k, t k + 1, ..., so that any run of E / k tokens is balanced. */
static void balance(rig *r, float *x)
{
    weft_parameter *router = rig_parameter(r, "router.weight");
    if (!router)
        router = rig_parameter(r, "mlp.router.weight");
    if (!router)
        return;
    size_t experts = router->weight.dims[0], topk = (size_t)r->h.options.moe_router_topk;
    memset(router->weight.data, 0, weft_tensor_bytes(&router->weight));
    for (size_t e = 0; e < experts; e++) {
        size_t at = e * r->hidden + e;
        if (router->weight.dtype == WEFT_F32)
            ((float *)router->weight.data)[at] = 1;
        else
            ((uint16_t *)router->weight.data)[at] = 0x3f80;
    }
    for (size_t t = 0; t < r->rows_full; t++)
        for (size_t k = 0; k < topk; k++)
            x[t * r->hidden + (t * topk + k) % experts] = 40;
}

static void check_named(const cost_case *c, weft_comm *part, const char *mesh, const char *name,
                        weft_dtype dtype)
{
    enum { BATCH = 3, MAX_ROWS = 64 };
    static const int32_t tokens[MAX_ROWS];
    weft_arena arena = {0};
    weft_model_options options = {0};
    char text[1024];
    snprintf(text, sizeof text, "{\"model\": {%s}}", c->json);
    EXPECT_OK(harness_options(text, &arena, &options));
    costs got, wanted;
    rig r;
    harness h;
    weft_status status = c->layer
                             ? rig_create(&r, part, &options, mesh, BATCH, dtype, c->layer)
                             : harness_create(&h, part, &options, mesh, BATCH, dtype, c->build);
    EXPECT(status == WEFT_OK, "%s on %s: %s", c->name, mesh, weft_error_get()->text);
    if (status != WEFT_OK)
        weft_comm_abort(part, status);
    harness *of = c->layer ? &r.h : &h;
    float *x = calloc(2 * of->tokens * (size_t)options.hidden_size, sizeof *x);
    used_ignore_nothing();
    if (c->layer) {
        rig_random(x, of->tokens * r.hidden, 0.1, 3);
        balance(&r, x);
        r.x = x;
        r.dy = x + of->tokens * r.hidden;
        used_ignore(x, 2 * of->tokens * r.hidden * sizeof *x);
        used_ignore(r.y, r.rows * r.hidden * sizeof *r.y);
        used_ignore(r.dx, r.rows * r.hidden * sizeof *r.dx);
    }
    used_know_rows(!(of->model->shape.recompute & WEFT_RECOMPUTE_MODULE(MOE)));
    measure(of, tokens, tokens, &got);
    const weft_model *model = of->model;
    EXPECT(model->memory.scratch.num_blocks == 1 &&
               (c->layer || model->memory.passes[0].stash.num_blocks == 1),
           "%s on %s: what was reserved did not do", c->name, mesh);
    expected(c, of, 0, weft_model_num_layers(of->model), &wanted);
    compare(c, name, dtype, &got, &wanted, sizeof fields / sizeof *fields);
    /* this one alone counts the loss, and positions */
    const bool all = of->groups.coords.at[WEFT_AXIS_TP] == 0;
    /* attention over cp attends in pieces; its list sums them */
    const bool in_pieces = of->groups.mesh.cp > 1 && c->attentions > 0;
    static const char *const texts[] = {"forward", "backward", "backward's second half"};
    for (int half = 0; half < (harness_deferred > 0 ? 3 : 2); half++) {
        char what[160];
        if (in_pieces) {
            used_drop_products(&got.done[half]);
            used_drop_products(&wanted.done[half]);
        }
        snprintf(what, sizeof what, "%s in %s on %s, %s", c->name, weft_dtype_text(dtype), name,
                 texts[half]);
        used_compare(&got.done[half], &wanted.done[half], all, what);
    }
    free(x);
    if (c->layer)
        rig_release(&r);
    else
        harness_release(of);
    weft_arena_release(&arena);
}

static void check(const cost_case *c, weft_comm *part, const char *mesh, weft_dtype dtype)
{
    check_named(c, part, mesh, mesh, dtype);
}

/* A stage's parameters, the last one's copy of a tied embedding included. */
static void check_stage(const cost_case *c, weft_comm *part, const char *mesh)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    harness h;
    char text[1024];
    int first, end;
    snprintf(text, sizeof text, "{\"model\": {%s}}", c->json);
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(harness_create(&h, part, &options, mesh, 1, WEFT_F32, c->build));
    costs got = {0}, wanted = {0};
    weft_outline outline;
    measure_parameters(h.model, &got);
    EXPECT_OK(weft_model_outline(&h.model->setup, &h.groups.mesh, c->build, &outline));
    weft_layout_range(&outline.layout, h.groups.coords.at[WEFT_AXIS_PP], 0, &first, &end);
    for (int l = first; l < end; l++)
        for (int i = 0; i < outline.layers[l].num_parameters; i++) {
            const weft_held *held = &outline.layers[l].parameters[i];
            wanted.num_params += held->global;
            wanted.local_params += held->local;
            wanted.param_bytes += held->local * sizeof(float);
        }
    compare(c, mesh, WEFT_F32, &got, &wanted, 3);
    weft_outline_release(&outline);
    harness_release(&h);
    weft_arena_release(&arena);
}

/* Partitions of whole numbers of tokens, and of balanced runs of them. */
static void check_pipelines(weft_comm *part, const char *mesh)
{
    static const cost_case c = {"moe in partitions", LLAMA MOE, weft_moe_create, NULL, 0};
    const bool has_six = strstr(mesh, "tp=2,cp=2"); /* tokens a rank: halves are not balanced */
    for (int n = 1; n <= 3; n++)
        for (int reuse = 0; reuse < WEFT_NUM_REUSES && (n != 2 || !has_six); reuse++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                char name[64];
                snprintf(name, sizeof name, "%s, n %d, %s", mesh, n, weft_reuse_text(reuse));
                harness_moe.pipeline =
                    (weft_moe_pipeline){.num_partitions = n, .reuse = (weft_reuse)reuse};
                check_named(&c, part, mesh, name, bf16 ? WEFT_BF16 : WEFT_F32);
            }
    for (int reuse = 0; reuse < WEFT_NUM_REUSES && strstr(mesh, "ep=2"); reuse++) {
        char name[64];
        snprintf(name, sizeof name, "%s, n 2 by experts, %s", mesh, weft_reuse_text(reuse));
        harness_moe.pipeline =
            (weft_moe_pipeline){.num_partitions = 2, .reuse = (weft_reuse)reuse, .by_experts = 1};
        check_named(&c, part, mesh, name, reuse % 2 ? WEFT_BF16 : WEFT_F32);
    }
    harness_moe = (weft_moe_options){0};
}

/* Layers and stacks whose modules are made again: attention's core and MLPs, or experts' and all.
 */
static void check_recomputed(const cost_case *cases, size_t num, weft_comm *part, const char *mesh)
{
    static const char *const modules[] = {"core_attn", "mla_up_proj", "mlp", "shared_experts",
                                          "moe"};
    const bool routed = cases == moe_cases;
    for (size_t first = 0; first < 2; first++)
        for (size_t i = 0; i < num; i++) {
            const size_t from = routed ? 3 + first : 2 * first;
            const weft_recompute_options options = {
                .granularity = WEFT_RECOMPUTE_SELECTIVE,
                .num_layers = 1,
                .modules = {routed && first ? modules : &modules[from], routed && first ? 5
                                                                        : from == 0     ? 2
                                                                                        : 1}};
            char name[96];
            snprintf(name, sizeof name, "%s, %s again", mesh, modules[from]);
            harness_recompute = &options;
            check_named(&cases[i], part, mesh, name, (i + first) % 2 ? WEFT_BF16 : WEFT_F32);
        }
    harness_recompute = NULL;
}

/* Backwards in two halves. */
static void check_halves(const cost_case *cases, size_t num, weft_comm *part, const char *mesh)
{
    char name[96];
    snprintf(name, sizeof name, "%s, in two halves", mesh);
    harness_deferred = 1;
    for (size_t i = 0; i < num; i++)
        check_named(&cases[i], part, mesh, name, i % 2 ? WEFT_BF16 : WEFT_F32);
    harness_deferred = 0;
}

/* Tensor-parallel products in chunks. */
static void check_in_chunks(weft_comm *world, const char *mesh)
{
    weft_comm *part = world_part(world, 2);
    harness_parallel = "{\"parallel\": {\"tp_comm_overlap\": true, \"tp_comm_overlap_chunks\": 2}}";
    for (size_t i = 0; i < sizeof dense_cases / sizeof *dense_cases && part; i++)
        check_named(&dense_cases[i], part, mesh, "in chunks", i % 2 ? WEFT_BF16 : WEFT_F32);
    if (part) {
        check_halves(dense_cases, sizeof dense_cases / sizeof *dense_cases, part, mesh);
        check_recomputed(dense_cases, sizeof dense_cases / sizeof *dense_cases, part, mesh);
    }
    harness_parallel = NULL;
    weft_comm_destroy(part);
}

static void check_on(const cost_case *cases, size_t num, weft_comm *world, int ranks,
                     const char *mesh)
{
    weft_comm *part = world_part(world, ranks);
    if (!part)
        return;
    for (size_t i = 0; i < num; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            check(&cases[i], part, mesh, bf16 ? WEFT_BF16 : WEFT_F32);
    if (strstr(mesh, "binding=dp") && cases == moe_cases)
        check_pipelines(part, mesh);
    check_halves(cases, num, part, mesh);
    if (strcmp(mesh, "tp=2,sp=1") == 0 || strcmp(mesh, "cp=2,binding=dp,ep=2") == 0)
        check_recomputed(cases, num, part, mesh);
    weft_comm_destroy(part);
}

int main(void)
{
    enum {
        NUM_DENSE = sizeof dense_cases / sizeof *dense_cases,
        NUM_MOE = sizeof moe_cases / sizeof *moe_cases
    };
    weft_comm *world = world_begin(4);
    static const struct {
        int ranks;
        const char *mesh;
    } dense[] = {{1, "tp=1"}, {2, "tp=2"}, {2, "tp=2,sp=1"}, {2, "cp=2"}, {4, "tp=2,cp=2,sp=1"}},
      moe[] = {{1, "tp=1,binding=tp"},
               {2, "tp=2,binding=tp"},
               {2, "tp=2,binding=tp,sp=1"},
               {2, "dp=2,binding=dp,ep=2"},
               {2, "tp=2,binding=dp,ep=2"},
               {2, "tp=2,binding=dp,ep=2,sp=1"},
               {2, "tp=2,binding=dp,ep=1,etp=2"},
               {4, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1"},
               {4, "tp=2,dp=2,binding=dp,ep=4"},
               {2, "cp=2,binding=dp,ep=2"},
               {4, "tp=2,cp=2,binding=tp,sp=1"},
               {4, "tp=2,cp=2,binding=dp,ep=2,sp=1"}};
    for (size_t m = 0; m < sizeof dense / sizeof *dense; m++)
        check_on(dense_cases, NUM_DENSE, world, dense[m].ranks, dense[m].mesh);
    for (size_t m = 0; m < sizeof moe / sizeof *moe; m++)
        check_on(moe_cases, NUM_MOE, world, moe[m].ranks, moe[m].mesh);
    check_in_chunks(world, "tp=2");
    check_in_chunks(world, "tp=2,sp=1");
    check_stage(&dense_cases[NUM_DENSE - 2], world, "tp=2,pp=2");
    check_stage(&dense_cases[NUM_DENSE - 1], world, "dp=2,pp=2");
    return world_finish(world);
}
