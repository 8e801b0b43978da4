/* What bf16 may cost. Its activations and weights have 8 significant bits, so a value rounds by at
 * most 2^-8 = 0.4 %; sums are fp32 and masters fp32. A gradient has passed some ten roundings a
 * layer, each way, whose errors are random and add in squares: 5 % of the whole gradient's norm is
 * about twice what four layers show. A loss averages over all tokens. Where a router chooses, a
 * token at the edge of a choice may go to another expert, which moves its gradient by its own size.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "kernels/kernels.h"
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

/* --- activations ----------------------------------------------------------------------------- */

/* What a step's kernels got: activations by kind; of gated ones the last one's numbers. */
static struct {
    int forwards[WEFT_ACTIVATION_CAP + 1], backwards[WEFT_ACTIVATION_CAP + 1];
    float limit, offset;
} seen;

static void see_kernel(const char *kernel, const void *args)
{
    const weft_activation_forward_args *forward = args;
    const weft_activation_backward_args *backward = args;
    const weft_gemm_args *gemm = args;
    if (strcmp(kernel, "activation_forward") == 0)
        seen.forwards[forward->kind]++;
    if (strcmp(kernel, "activation_forward") == 0 && weft_activation_is_gated(forward->kind)) {
        seen.limit = forward->limit;
        seen.offset = forward->offset;
    }
    if (strcmp(kernel, "activation_backward") == 0)
        seen.backwards[backward->kind]++;
    if (strcmp(kernel, "gemm") == 0 && gemm->epilogue == WEFT_GEMM_GELU)
        seen.forwards[WEFT_ACTIVATION_GELU]++;
    if (strcmp(kernel, "gemm") == 0 && gemm->epilogue == WEFT_GEMM_GELU_BACKWARD)
        seen.backwards[WEFT_ACTIVATION_GELU]++;
}

/* Each key of the config that names an activation: its kernel runs, in MLPs, experts and shared
 * experts, and no other. */
static void check_activations(weft_comm *self)
{
    static const struct {
        const char *key;
        weft_activation_kind kind;
        bool caps;
        float limit, offset;
    } rows[] = {
        {"\"swiglu\": false", WEFT_ACTIVATION_GELU, false, 0, 0},
        {"\"swiglu\": true", WEFT_ACTIVATION_SWIGLU, false, 0, 0},
        {"\"geglu\": true", WEFT_ACTIVATION_GEGLU, false, 0, 0},
        {"\"quick_geglu\": true", WEFT_ACTIVATION_QUICK_GEGLU, false, 0, 0},
        {"\"geglu\": true, \"activation_func_clamp_value\": 1.5", WEFT_ACTIVATION_GEGLU, false,
         1.5f, 0},
        {"\"swiglu\": true, \"glu_linear_offset\": 0.5", WEFT_ACTIVATION_SWIGLU, false, 0, 0.5f},
        {"\"geglu\": true, \"final_logit_softcapping\": 30.0", WEFT_ACTIVATION_GEGLU, true, 0, 0},
    };
    static const char *const layers[] = {
        "", ", \"num_experts\": 4",
        ", \"num_experts\": 4, \"moe_shared_expert_intermediate_size\": 32"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int l = 0; l < 3; l++) {
            char model[400];
            training t;
            weft_step_result result;
            snprintf(model, sizeof model,
                     "\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
                     "\"seq_length\": 8, \"vocab_size\": 13, %s%s",
                     rows[i].key, layers[l]);
            training_start(
                &t,
                &(training_case){
                    .name = rows[i].key, .model = model, .mesh = "dp=1", .global_batch = 1},
                self);
            memset(&seen, 0, sizeof seen);
            weft_kernels_watch(see_kernel);
            training_step(&t, &result);
            weft_kernels_watch(NULL);
            for (int k = 0; k < WEFT_ACTIVATION_CAP; k++)
                EXPECT((seen.forwards[k] > 0) == (k == (int)rows[i].kind) &&
                           (seen.backwards[k] > 0) == (k == (int)rows[i].kind),
                       "%s%s: activation %d runs %d times forward, %d back", rows[i].key, layers[l],
                       k, seen.forwards[k], seen.backwards[k]);
            EXPECT((seen.forwards[WEFT_ACTIVATION_CAP] > 0) == rows[i].caps, "%s: %d caps",
                   rows[i].key, seen.forwards[WEFT_ACTIVATION_CAP]);
            EXPECT(seen.limit == rows[i].limit && seen.offset == rows[i].offset, "%s: %g, %g",
                   rows[i].key, (double)seen.limit, (double)seen.offset);
            training_release(&t);
        }
}

int main(void)
{
    weft_comm *self;
    EXPECT_OK(weft_comm_create_self(&self));
    check_activations(self);
    weft_comm_destroy(self);
    for (int i = 0; i < NUM_CASES; i++) {
        check_losses(i);
        check_gradients(i);
    }
    return expect_finish();
}
