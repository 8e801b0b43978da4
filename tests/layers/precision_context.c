/* What bf16 costs a gradient does not grow with context parallelism: its error against fp32 is at
 * most 1.1 times that of one rank. Partial outputs and the gradients that travel between ranks are
 * fp32 and are rounded once, as on one rank. Runs with 8 ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "tests/world.h"
#include "tests/layers/harness.h"

#define SIZES                                                                                      \
    "\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 8, \"seq_length\": 256, "    \
    "\"vocab_size\": 61, \"init_method_std\": 0.1"
#define WAY(way) "{\"parallel\": {\"cp_comm_type\": " way "}}"

static const struct {
    const char *name, *model, *parallel;
} cases[] = {
    {"ring", SIZES, WAY("\"p2p\"")},
    {"ring, grouped", SIZES ", \"num_query_groups\": 2, \"position_embedding_type\": \"rope\"",
     WAY("\"p2p\"")},
    {"gathered, grouped", SIZES ", \"num_query_groups\": 2, \"normalization\": \"RMSNorm\"",
     WAY("\"all_gather\"")},
    {"heads for sequence", SIZES, WAY("\"a2a\"")},
    {"both", SIZES ", \"num_query_groups\": 4",
     WAY("\"a2a+p2p\", \"hierarchical_context_parallel_sizes\": [2, 4]")},
};
enum { BATCH = 2 };

/* All gradients of a model with the weights of seed 7, summed over the world's ranks; to free. */
static float *gradients(int i, weft_comm *world, const char *mesh, weft_dtype dtype, size_t *count)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    harness h;
    char text[1024];
    snprintf(text, sizeof text, "{\"model\": {%s}}", cases[i].model);
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(harness_create(&h, world, &options, mesh, BATCH, dtype, NULL));
    const size_t num = h.rows * BATCH;
    int32_t *tokens = malloc(num * sizeof *tokens), *labels = malloc(num * sizeof *labels);
    for (size_t t = 0; t < num; t++) {
        const size_t at = (size_t)h.index[t / BATCH] * BATCH + t % BATCH;
        tokens[t] = (int32_t)(weft_rng_uniform(1, 1, at) * (float)options.vocab_size);
        labels[t] = (int32_t)(weft_rng_uniform(1, 2, at) * (float)options.vocab_size);
    }
    EXPECT_OK(harness_pass(&h, tokens, labels, true, true));
    free(tokens);
    free(labels);
    weft_parameters *all = weft_model_parameters(h.model);
    float *out = NULL;
    *count = 0;
    for (int p = 0; p < weft_parameters_count(all); p++) {
        const weft_placed *placed = weft_parameters_at(all, p);
        out = realloc(out, (*count + placed->count) * sizeof *out);
        for (size_t k = 0; k < placed->count; k++)
            out[*count + k] = placed->parameter.grad[weft_parameter_place(&placed->parameter, k)];
        *count += placed->count;
    }
    EXPECT_OK(weft_comm_all_reduce_host(world, out, *count, WEFT_F32, WEFT_REDUCE_SUM));
    harness_release(&h);
    weft_arena_release(&arena);
    return out;
}

static double error_of(const float *x, const float *exact, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)x[i] - (double)exact[i], 2);
        norm += pow((double)exact[i], 2);
    }
    return sqrt(difference / norm);
}

static void check(int i, weft_comm *world, weft_comm *self)
{
    size_t count;
    harness_parallel = cases[i].parallel;
    float *shared = gradients(i, world, "cp=8", WEFT_BF16, &count);
    harness_parallel = NULL;
    if (weft_comm_rank(world) == 0) {
        float *exact = gradients(i, self, "cp=1", WEFT_F32, &count);
        float *alone = gradients(i, self, "cp=1", WEFT_BF16, &count);
        const double one = error_of(alone, exact, count), eight = error_of(shared, exact, count);
        EXPECT(one > 1e-4 && eight > 1e-4 && eight <= 1.1 * one,
               "%s: gradients are off by %.4g on 8 ranks, by %.4g on one", cases[i].name, eight,
               one);
        printf("%-20s gradients off by %.4g on 8 ranks, by %.4g on one\n", cases[i].name, eight,
               one);
        free(exact);
        free(alone);
    }
    free(shared);
}

int main(void)
{
    weft_comm *world = world_begin(0), *self;
    EXPECT_OK(weft_comm_create_self(&self));
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        check(i, world, self);
    weft_comm_destroy(self);
    return world_finish(world);
}
