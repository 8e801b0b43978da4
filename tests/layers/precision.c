/* What bf16 may cost. Its activations and weights have 8 significant bits, so a value rounds by at
 * most 2^-8 = 0.4 %; sums are fp32 and masters fp32. A gradient has passed some ten roundings a
 * layer, each way, whose errors are random and add in squares: 5 % of the whole gradient's norm is
 * about twice what four layers show. A loss averages over all tokens. Where a router chooses, a
 * token at the edge of a choice may go to another expert, which moves its gradient by its own size.
 */
#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "tests/expect.h"
#include "tests/layers/harness.h"
#include "tests/layers/training.h"

enum { STEPS = 20 };

#define DENSE                                                                                      \
    "\"num_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 4, \"seq_length\": 32, "     \
    "\"vocab_size\": 61, \"init_method_std\": 0.1"
#define MOE                                                                                        \
    "\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, \"seq_length\": 32, "     \
    "\"vocab_size\": 61, \"init_method_std\": 0.1, \"num_experts\": 4, \"swiglu\": true, "         \
    "\"moe_aux_loss_coeff\": 0.01, \"normalization\": \"RMSNorm\""

static const struct {
    const char *name, *model;
    double loss_bound, gradient_bound; /* relative: each loss; all gradients together */
} cases[] = {
    {"gpt2", DENSE, 2e-3, 5e-2},
    {"llama",
     DENSE ", \"num_query_groups\": 2, \"normalization\": \"RMSNorm\", \"swiglu\": true, "
           "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true, "
           "\"untie_embeddings_and_output_weights\": true",
     2e-3, 5e-2},
    {"moe, every expert", MOE ", \"moe_router_topk\": 4", 2e-3, 5e-2},
    {"moe, 2 of 4 experts", MOE ", \"moe_router_topk\": 2", 1.6e-2, 0.25},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void check_losses(int i)
{
    double fp32[STEPS], bf16[STEPS], worst = 0;
    weft_comm *self;
    training_case c = {
        .name = cases[i].name, .model = cases[i].model, .mesh = "dp=1", .global_batch = 4};
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT(training_losses(&c, self, STEPS, fp32), "%s in fp32", c.name);
    c.bf16 = true;
    EXPECT(training_losses(&c, self, STEPS, bf16), "%s in bf16", c.name);
    bool differ = false;
    for (int s = 0; s < STEPS; s++) {
        double relative = fabs(bf16[s] - fp32[s]) / fp32[s];
        EXPECT(relative <= cases[i].loss_bound, "%s: step %d loss %.6g in bf16, %.6g in fp32",
               c.name, s + 1, bf16[s], fp32[s]);
        worst = fmax(worst, relative);
        differ = differ || bf16[s] != fp32[s];
    }
    EXPECT(differ, "%s: bf16 gives the same bits, so it was not used", c.name);
    EXPECT(fp32[STEPS - 1] < fp32[0], "%s: fp32 does not learn", c.name);
    EXPECT(bf16[STEPS - 1] < bf16[0], "%s: bf16 does not learn", c.name);
    printf("%-20s loss %.4f -> %.4f, bf16 off by at most %.2g\n", c.name, fp32[0], fp32[STEPS - 1],
           worst);
    weft_comm_destroy(self);
}

static void gradients(int i, weft_dtype dtype, harness *h)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    weft_comm *self;
    char text[1024];
    snprintf(text, sizeof text, "{\"model\": {%s}}", cases[i].model);
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(harness_create(h, self, &options, NULL, 4, dtype, NULL));
    int32_t *tokens = malloc(h->tokens * sizeof *tokens),
            *labels = malloc(h->tokens * sizeof *labels);
    for (size_t t = 0; t < h->tokens; t++) {
        tokens[t] = (int32_t)(weft_rng_uniform(1, 1, t) * (float)options.vocab_size);
        labels[t] = (int32_t)(weft_rng_uniform(1, 2, t) * (float)options.vocab_size);
    }
    EXPECT_OK(harness_pass(h, tokens, labels, true, true));
    free(tokens);
    free(labels);
    weft_arena_release(&arena);
}

static void check_gradients(int i)
{
    harness exact, rounded;
    gradients(i, WEFT_F32, &exact);
    gradients(i, WEFT_BF16, &rounded);
    weft_parameters *a = weft_model_parameters(exact.model);
    weft_parameters *b = weft_model_parameters(rounded.model);
    double difference = 0, norm = 0, worst = 0;
    const char *worst_name = "";
    for (int p = 0; p < weft_parameters_count(a); p++) {
        const weft_placed *x = weft_parameters_at(a, p), *y = weft_parameters_at(b, p);
        double own_difference = 0, own_norm = 0;
        for (size_t k = 0; k < x->count; k++) {
            const size_t at = weft_parameter_place(&x->parameter, k);
            own_difference += pow((double)x->parameter.grad[at] - (double)y->parameter.grad[at], 2);
            own_norm += pow((double)x->parameter.grad[at], 2);
        }
        difference += own_difference;
        norm += own_norm;
        if (sqrt(own_difference / own_norm) > worst) {
            worst = sqrt(own_difference / own_norm);
            worst_name = x->parameter.name;
        }
    }
    double relative = sqrt(difference / norm);
    EXPECT(relative <= cases[i].gradient_bound && relative > 0, "%s: gradients are off by %.3g",
           cases[i].name, relative);
    printf("%-20s gradients off by %.2g, the worst tensor by %.2g (%s)\n", cases[i].name, relative,
           worst, worst_name);
    weft_comm *worlds[2] = {exact.world, rounded.world};
    harness_release(&exact);
    harness_release(&rounded);
    weft_comm_destroy(worlds[0]);
    weft_comm_destroy(worlds[1]);
}

int main(void)
{
    for (int i = 0; i < NUM_CASES; i++) {
        check_losses(i);
        check_gradients(i);
    }
    return expect_finish();
}
