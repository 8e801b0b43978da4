/* Backwards in two halves: whatever the delay of the second, gradients have the bits of whole ones,
 * and memory is what the footprint says. */
#include <stdlib.h>
#include <string.h>

#include "layers/outline/footprint.h"
#include "layers/pass/pass.h"
#include "parallel/parameters/internal.h"
#include "tests/world.h"
#include "tests/layers/harness.h"

enum { BATCHES = 4, SEQ = 8, BATCH = 2, VOCAB = 16 };

static const char *const dense =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"max_position_embeddings\": 8, "
    "\"vocab_size\": 16, \"position_embedding_type\": \"learned_absolute\", "
    "\"init_method_std\": 0.2, \"untie_embeddings_and_output_weights\": true}}";
/* SwiGLU, RMSNorm, RoPE, one query group, no biases, tied embeddings, dropout. */
static const char *const llama =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
    "\"num_attention_heads\": 4, \"num_query_groups\": 1, \"seq_length\": 8, "
    "\"vocab_size\": 16, \"position_embedding_type\": \"rope\", \"swiglu\": true, "
    "\"normalization\": \"RMSNorm\", \"disable_bias_linear\": true, "
    "\"init_method_std\": 0.2, \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1}}";
#define LATENTS                                                                                    \
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "               \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 16, "                          \
    "\"position_embedding_type\": \"rope\", \"init_method_std\": 0.2, "                            \
    "\"multi_latent_attention\": true, \"kv_lora_rank\": 12, \"qk_head_dim\": 6, "                 \
    "\"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8"
static const char *const latents = LATENTS "}}";
static const char *const query_latents =
    LATENTS ", \"q_lora_rank\": 10, \"normalization\": \"RMSNorm\", \"swiglu\": true, "
            "\"attention_dropout\": 0.1}}";
static const char *const moe =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 16, "
    "\"position_embedding_type\": \"rope\", \"init_method_std\": 0.2, \"num_experts\": 4, "
    "\"moe_router_topk\": 2, \"moe_ffn_hidden_size\": 12, \"moe_aux_loss_coeff\": 0.01, "
    "\"moe_z_loss_coeff\": 0.01, \"moe_shared_expert_intermediate_size\": 8, "
    "\"swiglu\": %s}}";

typedef struct fixture {
    harness h;
    int32_t tokens[BATCHES][SEQ * BATCH], labels[BATCHES][SEQ * BATCH];
    int delay;  /* micro-batches between a backward's halves; -1: they are whole */
    bool mixed; /* every other one is whole, with a delay of 0 */
    int heard;  /* points, in a step */
} fixture;

/* The backward, or its second half. */
static weft_status finish(fixture *f, int m, bool whole)
{
    weft_model *model = f->h.model;
    int passed = weft_model_num_layers(model), layer;
    WEFT_TRY(whole ? weft_model_backward(model, m, f->h.lane, NULL, NULL, true)
                   : weft_model_backward_weights(model, m, m % (f->delay + 1), f->h.lane, true));
    while (weft_model_goes_on(model)) {
        WEFT_TRY(weft_model_next(model, &layer));
        if (layer < 0)
            continue;
        EXPECT(layer == passed - 1, "layer %d is passed after %d", layer, passed);
        passed = layer;
        f->heard++;
    }
    return WEFT_OK;
}

static bool is_whole(const fixture *f, int m)
{
    return f->delay < 0 || (f->mixed && m % 2 == 1);
}

static weft_status backwards(fixture *f)
{
    const int delay = f->delay < 0 ? 0 : f->delay;
    for (int m = 0; m < BATCHES + delay; m++) {
        if (m < BATCHES && !is_whole(f, m))
            WEFT_TRY(
                weft_model_backward_input(f->h.model, m, m % (delay + 1), f->h.lane, NULL, NULL));
        WEFT_TRY(weft_model_enqueue(f->h.model));
        if (m >= delay)
            WEFT_TRY(finish(f, m - delay, is_whole(f, m - delay)));
    }
    return WEFT_OK;
}

static weft_status step(fixture *f)
{
    harness *h = &f->h;
    for (int m = 0; m < BATCHES; m++) {
        const weft_micro_batch batch = {.tokens = f->tokens[m],
                                        .labels = f->labels[m],
                                        .step = 1,
                                        .first_sample = (uint64_t)m * BATCH,
                                        .overwrite = m == 0,
                                        .backward_overwrites = m == 0,
                                        .loss_scale = 1.0f / BATCHES,
                                        .training = true,
                                        .cut = h->cut.cp > 1 ? &h->cut : NULL,
                                        .index = h->cut.cp > 1 ? h->index : NULL};
        WEFT_TRY(weft_model_forward(h->model, m, &batch, h->lane, NULL, NULL));
        WEFT_TRY(weft_model_enqueue(h->model));
    }
    WEFT_TRY(backwards(f));
    WEFT_TRY(weft_lane_sync(h->lane));
    return h->reduce ? weft_lane_sync(h->reduce) : WEFT_OK;
}

static size_t gradient_bytes(const fixture *f)
{
    const weft_parameters *p = weft_model_parameters(f->h.model);
    size_t bytes = 0;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        bytes += p->held.grads[kind] * sizeof(float);
    return bytes;
}

/* Copies all gradients, or clears them to what no step leaves. */
static void copy_gradients(const fixture *f, char *to)
{
    const weft_parameters *p = weft_model_parameters(f->h.model);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const size_t bytes = p->held.grads[kind] * sizeof(float);
        if (bytes == 0)
            continue;
        if (to)
            memcpy(to, p->sections[kind].grads, bytes);
        else
            memset(p->sections[kind].grads, 0x55, bytes);
        to = to ? to + bytes : NULL;
    }
}

static size_t num_differences(const char *a, const char *b, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i += sizeof(float))
        count += memcmp(a + i, b + i, sizeof(float)) != 0;
    return count;
}

typedef struct halves_case {
    const char *name, *json, *mesh, *parallel;
    weft_dtype dtype;
    bool uneven;   /* rows at experts are not the balanced ones */
    bool is_whole; /* blocks do all in the first half */
    const weft_recompute_options *recompute;
    weft_moe_options moe;
} halves_case;

/* What slots took more than at the planned load is what the loads say, but for rounding of rows. */
static void check_load(const fixture *f, const halves_case *c)
{
    const weft_model *model = f->h.model;
    weft_model_setup setup = model->setup;
    weft_moe_held_loads loads;
    weft_outline outline;
    double used = 0;
    weft_model_held_loads(model, &loads);
    setup.moe.load = loads.deferred;
    EXPECT_OK(weft_model_outline(&setup, &f->h.groups.mesh, NULL, &outline));
    const double planned = BATCHES * (double)weft_footprint_deferred(&outline, 0, 0);
    for (int i = 0; i < BATCHES; i++) {
        const weft_stack *stack = &model->memory.deferred[i].stack;
        used += (double)(stack->peak_bytes > stack->first_bytes ? stack->peak_bytes
                                                                : stack->first_bytes);
    }
    EXPECT(fabs(planned - used) <= 0.02 * used, "%s: %g bytes at load %g, %g used", c->name,
           planned, loads.deferred.rows, used);
    weft_outline_release(&outline);
}

static void check_memory(const fixture *f, const halves_case *c)
{
    size_t most = 0;
    for (int i = 0; i <= f->delay; i++) {
        const weft_stack *stack = &f->h.model->memory.deferred[i].stack;
        EXPECT(c->uneven || stack->peak_bytes == stack->first_bytes,
               "%s: %zu bytes are deferred, %zu reserved", c->name, stack->peak_bytes,
               stack->first_bytes);
        most = stack->peak_bytes > most ? stack->peak_bytes : most;
    }
    EXPECT(most > 0, "%s: nothing is deferred", c->name);
    EXPECT((f->h.model->memory.deferred[0].num_works > 1) != c->is_whole,
           "%s: %zu pieces are deferred", c->name, f->h.model->memory.deferred[0].num_works);
}

static void check_delay(fixture *f, const halves_case *c, int delay, const char *wanted, char *got)
{
    weft_device_stats before, after;
    const size_t bytes = gradient_bytes(f);
    f->delay = delay;
    for (int again = 0; again < 2; again++) {
        copy_gradients(f, NULL);
        f->mixed = delay == 0 && again == 1;
        f->heard = 0;
        weft_device_get_stats(f->h.device, &before);
        EXPECT_OK(step(f));
        weft_device_get_stats(f->h.device, &after);
        copy_gradients(f, got);
        const size_t num = num_differences(wanted, got, bytes);
        EXPECT(num == 0, "%s, %d behind: %zu of %zu gradients differ", c->name, delay, num,
               bytes / sizeof(float));
        EXPECT(f->heard == BATCHES * weft_model_num_layers(f->h.model), "%s: %d points are passed",
               c->name, f->heard);
        EXPECT(again == 0 || after.num_allocs == before.num_allocs, "%s: a step allocates",
               c->name);
    }
    check_memory(f, c);
    if (delay == BATCHES - 1) /* every slot was used */
        check_load(f, c);
}

static void fill(fixture *f)
{
    uint32_t random = 1;
    for (int m = 0; m < BATCHES; m++)
        for (int i = 0; i < SEQ * BATCH; i++) {
            random = random * 1664525u + 1013904223u;
            f->tokens[m][i] = (int32_t)(random >> 16) % VOCAB;
            f->labels[m][i] = (int32_t)(random >> 20) % VOCAB;
        }
}

static void check(const halves_case *c, weft_comm *world)
{
    fixture f = {.delay = -1};
    weft_arena arena = {0};
    weft_model_options options = {0};
    harness_passes = BATCHES;
    harness_deferred = BATCHES;
    harness_parallel = c->parallel;
    harness_shards = c->parallel;
    harness_recompute = c->recompute;
    harness_moe = c->moe;
    EXPECT_OK(harness_options(c->json, &arena, &options));
    EXPECT_OK(harness_create(&f.h, world, &options, c->mesh, BATCH, c->dtype, NULL));
    fill(&f);
    char *wanted = malloc(gradient_bytes(&f)), *got = malloc(gradient_bytes(&f));
    copy_gradients(&f, NULL);
    EXPECT_OK(step(&f));
    copy_gradients(&f, wanted);
    for (int delay = 0; delay < BATCHES; delay += 1 + (delay > 0)) /* 0, 1, 3 */
        check_delay(&f, c, delay, wanted, got);
    free(wanted);
    free(got);
    harness_release(&f.h);
    weft_arena_release(&arena);
}

static const char *zero(int level)
{
    static char text[96];
    snprintf(
        text, sizeof text, "{\"parallel\": {\"data_parallel_sharding_strategy\": \"%s\"}}",
        (const char *const[]){"no_shard", "optim", "optim_grads", "optim_grads_params"}[level]);
    return text;
}

static void check_all(weft_comm *world)
{
    static const char *core[] = {"core_attn"}, *mlp[] = {"mlp"}, *up[] = {"mla_up_proj"};
    static const weft_recompute_options
        cores = {.granularity = WEFT_RECOMPUTE_SELECTIVE, .num_layers = 1, .modules = {core, 1}},
        ups = {.granularity = WEFT_RECOMPUTE_SELECTIVE, .num_layers = 1, .modules = {up, 1}},
        mlps = {.granularity = WEFT_RECOMPUTE_SELECTIVE, .num_layers = 1, .modules = {mlp, 1}},
        block = {
            .granularity = WEFT_RECOMPUTE_FULL, .method = WEFT_RECOMPUTE_BLOCK, .num_layers = 1};
    char gelu[1024], swiglu[1024];
    snprintf(gelu, sizeof gelu, moe, "false");
    snprintf(swiglu, sizeof swiglu, moe, "true");
    for (int d = 0; d < 2; d++) {
        const weft_dtype dtype = d ? WEFT_BF16 : WEFT_F32;
        const halves_case cases[] = {
            {"dense", dense, "dp=2", NULL, dtype, .uneven = false},
            {"llama", llama, "dp=2", NULL, dtype, .uneven = false},
            {"dense, tp", dense, "tp=2", NULL, dtype, .uneven = false},
            {"llama, tp and sp", llama, "tp=2,sp=1", NULL, dtype, .uneven = false},
            {"dense, cp", dense, "cp=2", NULL, dtype, .uneven = false},
            {"latents", latents, "dp=2", NULL, dtype, .uneven = false},
            {"latents of queries, tp", query_latents, "tp=2", NULL, dtype, .uneven = false},
            {"latents, tp and sp", latents, "tp=2,sp=1", NULL, dtype, .uneven = false},
            {"latents of queries, tp and sp", query_latents, "tp=2,sp=1", NULL, dtype,
             .uneven = false},
            {"latents, cp", latents, "cp=2", NULL, dtype, .uneven = false},
            {"latents again", query_latents, "tp=2,sp=1", NULL, dtype, .recompute = &ups},
            {"core again", llama, "tp=2,sp=1", NULL, dtype, .recompute = &cores},
            {"MLP again", llama, "dp=2", NULL, dtype, .recompute = &mlps, .is_whole = true},
            {"a block again", dense, "dp=2", NULL, dtype, .recompute = &block},
            {"moe", gelu, "dp=2", NULL, dtype, .uneven = false},
            {"moe, tp", swiglu, "tp=2,sp=1", NULL, dtype, .uneven = true},
            {"moe, ep", swiglu, "ep=2", NULL, dtype, .uneven = true},
            {"moe, ep in parts", gelu, "ep=2", NULL, dtype, .uneven = true,
             .moe.pipeline = {.num_partitions = 2}},
            {"moe, ep by experts", gelu, "ep=2", NULL, dtype, .uneven = true,
             .moe.pipeline = {.num_partitions = 2, .by_experts = true}},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            check(&cases[i], world);
        for (int level = 0; level < 4; level++) {
            const halves_case sharded[] = {
                {"dense, sharded", dense, "dp=2", zero(level), dtype, .uneven = false},
                {"latents, sharded", query_latents, "dp=2", zero(level), dtype, .uneven = false},
                {"moe, sharded", swiglu, "ep=2", zero(level), dtype, .uneven = true},
                {"moe, dp, sharded", gelu, "dp=2", zero(level), dtype, .uneven = false},
                {"a block again, sharded", dense, "dp=2", zero(level), dtype, .recompute = &block},
            };
            for (size_t i = 0; i < sizeof sharded / sizeof *sharded; i++)
                check(&sharded[i], world);
        }
    }
}

int main(void)
{
    weft_comm *world = world_begin(0);
    check_all(world);
    return world_finish(world);
}
