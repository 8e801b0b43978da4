/* Packed documents in a model. A document's loss and the gradients that come from it do not depend
 * on what stands before it in the sample, to the bit: another document's tokens may be any, where
 * its own labels are masked. And a packed sample gives what its documents give one by one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "parallel/sequence.h"
#include "tests/expect.h"
#include "tests/layers/harness.h"

/* Longer than a block of the attention's kernels, and documents begin within blocks. */
enum { SEQ = 300, EOD = 60, NUM_DOCUMENTS = 4 };
static const size_t starts[NUM_DOCUMENTS + 1] = {0, 70, 71, 241, SEQ};

#define COMMON                                                                                     \
    "\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, \"seq_length\": 300, "    \
    "\"vocab_size\": 61, \"init_method_std\": 0.2"

static const struct {
    const char *name, *model;
    weft_dtype dtype;
} cases[] = {
    {"gpt2", COMMON, WEFT_F32},
    {"llama",
     COMMON ", \"num_query_groups\": 2, \"normalization\": \"RMSNorm\", \"swiglu\": true, "
            "\"position_embedding_type\": \"rope\", \"untie_embeddings_and_output_weights\": true",
     WEFT_F32},
    {"llama in bf16",
     COMMON ", \"num_query_groups\": 2, \"position_embedding_type\": \"rope\", "
            "\"attention_dropout\": 0.1, \"hidden_dropout\": 0.1",
     WEFT_BF16},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

/* One sample and what the model is told of it. */
typedef struct sample {
    int32_t tokens[SEQ], labels[SEQ], positions[SEQ], first_seen[SEQ];
    float weights[SEQ];
} sample;

static void fill(sample *s)
{
    for (size_t t = 0; t < SEQ; t++) {
        s->tokens[t] = (int32_t)(weft_rng_uniform(1, 1, t) * EOD);
        s->labels[t] = (int32_t)(weft_rng_uniform(1, 2, t) * EOD);
        s->weights[t] = 1;
    }
    for (int d = 0; d < NUM_DOCUMENTS - 1; d++)
        s->tokens[starts[d + 1] - 1] = EOD;
    weft_documents_find(s->tokens, SEQ, EOD, 1, s->first_seen);
    for (size_t t = 0; t < SEQ; t++)
        s->positions[t] = (int32_t)t - s->first_seen[t];
}

static double run(harness *h, const sample *s, bool overwrite)
{
    h->positions = s->positions;
    h->first_seen = s->first_seen;
    h->label_weights = s->weights;
    EXPECT_OK(harness_pass(h, s->tokens, s->labels, true, overwrite));
    return weft_model_metrics(h->model)->loss_sum;
}

static void create(harness *h, weft_comm *self, int i)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    char text[1024];
    snprintf(text, sizeof text, "{\"model\": {%s}}", cases[i].model);
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(harness_create(h, self, &options, NULL, 1, cases[i].dtype, NULL));
    weft_arena_release(&arena);
}

static size_t num_gradients(const harness *h)
{
    size_t count = 0;
    weft_parameters *all = weft_model_parameters(h->model);
    for (int p = 0; p < weft_parameters_count(all); p++)
        count += weft_parameters_at(all, p)->count;
    return count;
}

static float *gradients(const harness *h)
{
    float *out = malloc(num_gradients(h) * sizeof *out);
    size_t at = 0;
    weft_parameters *all = weft_model_parameters(h->model);
    for (int p = 0; p < weft_parameters_count(all); p++) {
        const weft_placed *placed = weft_parameters_at(all, p);
        for (size_t k = 0; k < placed->count; k++)
            out[at++] = placed->parameter.grad[weft_parameter_place(&placed->parameter, k)] +
                        0.0f; /* no matter the sign of zeros */
    }
    return out;
}

/* Only the labels of documents from `kept` on bear a loss: then no other token before them
 * matters. */
static void check_independent(harness *h, const char *name, const sample *packed, int kept)
{
    sample one = *packed, other;
    for (size_t t = 0; t < starts[kept]; t++)
        one.weights[t] = 0;
    other = one;
    for (size_t t = 0; t + 1 < starts[kept]; t++)
        if (other.tokens[t] != EOD)
            other.tokens[t] = (other.tokens[t] + 1 + (int32_t)t % 7) % EOD;
    const double loss = run(h, &one, true);
    float *before = gradients(h);
    const double loss_after = run(h, &other, true);
    float *after = gradients(h);
    EXPECT(memcmp(&loss, &loss_after, sizeof loss) == 0 && loss > 0,
           "%s: the loss from document %d on is %.17g, then %.17g", name, kept, loss, loss_after);
    EXPECT(memcmp(before, after, num_gradients(h) * sizeof *before) == 0,
           "%s: gradients from document %d on see what stands before it", name, kept);
    free(after);
    for (size_t t = 0; t < SEQ; t++) /* the test would see it */
        other.first_seen[t] = 0;
    run(h, &other, true);
    after = gradients(h);
    EXPECT(memcmp(before, after, num_gradients(h) * sizeof *before) != 0,
           "%s: nothing changes where all is seen", name);
    free(before);
    free(after);
}

/* Each document alone, at the start of a sample whose rest bears no loss. */
static void check_one_by_one(harness *h, const char *name, const sample *packed)
{
    const double all = run(h, packed, true);
    float *together = gradients(h);
    double sum = 0, difference = 0, norm = 0;
    for (int d = 0; d < NUM_DOCUMENTS; d++) {
        sample alone;
        const size_t length = starts[d + 1] - starts[d];
        for (size_t t = 0; t < SEQ; t++) {
            const bool own = t < length;
            alone.tokens[t] = own ? packed->tokens[starts[d] + t] : 1;
            alone.labels[t] = own ? packed->labels[starts[d] + t] : 1;
            alone.first_seen[t] = own ? 0 : (int32_t)length;
            alone.positions[t] = (int32_t)t;
            alone.weights[t] = own;
        }
        sum += run(h, &alone, d == 0);
    }
    float *apart = gradients(h);
    for (size_t i = 0; i < num_gradients(h); i++) {
        difference += pow((double)together[i] - (double)apart[i], 2);
        norm += pow((double)apart[i], 2);
    }
    EXPECT(fabs(all - sum) <= 1e-6 * sum, "%s: loss %.9g packed, %.9g one by one", name, all, sum);
    EXPECT(difference <= 1e-10 * norm && norm > 0, "%s: gradients are off by %.3g", name,
           sqrt(difference / norm));
    free(together);
    free(apart);
}

/* No label bears a loss: nothing is learnt, and nothing is divided by zero. */
static void check_nothing(harness *h, const sample *packed)
{
    sample none = *packed;
    memset(none.weights, 0, sizeof none.weights);
    EXPECT(run(h, &none, true) == 0, "a masked sample has a loss");
    float *all = gradients(h);
    for (size_t i = 0; i < num_gradients(h); i++)
        EXPECT(all[i] == 0, "a masked sample has a gradient of %g", (double)all[i]);
    free(all);
}

int main(void)
{
    weft_comm *self;
    sample packed;
    EXPECT_OK(weft_comm_create_self(&self));
    fill(&packed);
    for (int i = 0; i < NUM_CASES; i++) {
        harness h;
        create(&h, self, i);
        for (int kept = 1; kept < NUM_DOCUMENTS; kept++)
            check_independent(&h, cases[i].name, &packed, kept);
        if (cases[i].dtype == WEFT_F32)
            check_one_by_one(&h, cases[i].name, &packed);
        check_nothing(&h, &packed);
        harness_release(&h);
    }
    weft_comm_destroy(self);
    return expect_finish();
}
