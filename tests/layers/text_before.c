/* Where text is generated, a token's logits depend on what stands before it and on nothing else:
 * not on what fills the window behind it, nor on the window's length, nor on the other samples.
 * Products of other numbers of rows may add in another order; beyond that logits are the same. */
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "layers/describe/describe.h"
#include "tests/expect.h"
#include "tests/layers/harness.h"

enum { VOCABULARY = 31, SHOWN = 7, WINDOW = 16, LONG_WINDOW = 40, BATCH = 2 };

#define STACK                                                                                      \
    "\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, \"vocab_size\": 31, "     \
    "\"max_position_embeddings\": 40, \"init_method_std\": 0.3"
#define MOE STACK ", \"num_experts\": 4, \"moe_router_topk\": 2"

static const struct {
    const char *name, *model;
} cases[] = {
    {"dense", STACK ", \"position_embedding_type\": \"none\""},
    {"dropless", MOE},
    {"capacity 0.5 by probability", MOE ", \"moe_expert_capacity_factor\": 0.5"},
    {"capacity 1 by probability, rotary",
     MOE ", \"moe_expert_capacity_factor\": 1, \"position_embedding_type\": \"rope\", "
         "\"rotary_percent\": 0.25"},
    {"capacity 0.5 by position",
     MOE ", \"moe_expert_capacity_factor\": 0.5, \"moe_token_drop_policy\": \"position\""},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

/* What stands behind the tokens that are shown, and beside them. */
typedef struct surroundings {
    size_t window;
    int32_t padding; /* -1: other tokens */
    uint64_t other;  /* the second sample */
} surroundings;

/* Logits of the first sample's SHOWN tokens. */
static void find_logits(const char *model, surroundings s, float *out)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    weft_comm *self;
    harness h;
    weft_tensor logits = {0};
    char text[1024];
    int32_t tokens[BATCH * LONG_WINDOW];
    snprintf(text, sizeof text, "{\"model\": {%s, \"seq_length\": %zu}}", model, s.window);
    for (size_t t = 0; t < s.window; t++) {
        int32_t any = (int32_t)(weft_rng_uniform(1, 1, t) * VOCABULARY);
        tokens[t * BATCH] = t < SHOWN || s.padding < 0 ? any : s.padding;
        tokens[t * BATCH + 1] = (int32_t)(weft_rng_uniform(s.other, 3, t) * VOCABULARY);
    }
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(harness_create(&h, self, &options, NULL, BATCH, WEFT_F32, NULL));
    EXPECT_OK(harness_pass(&h, tokens, tokens, false, true));
    EXPECT_OK(weft_model_logits(h.model, 0, &logits));
    for (size_t t = 0; t < SHOWN; t++)
        memcpy(out + t * VOCABULARY, (const float *)logits.data + t * BATCH * logits.dims[1],
               VOCABULARY * sizeof *out);
    EXPECT(weft_model_metrics(h.model)->dropped == 0, "%s: %g choices were dropped", model,
           weft_model_metrics(h.model)->dropped);
    harness_release(&h);
    weft_comm_destroy(self);
    weft_arena_release(&arena);
}

static void check(int i)
{
    static const surroundings others[] = {
        {WINDOW, 5, 1}, {WINDOW, -1, 1}, {WINDOW, 0, 2}, {LONG_WINDOW, 0, 1}, {SHOWN, 0, 1},
    };
    float expected[SHOWN * VOCABULARY], logits[SHOWN * VOCABULARY], most = 0;
    find_logits(cases[i].model, (surroundings){WINDOW, 0, 1}, expected);
    for (size_t k = 0; k < SHOWN * VOCABULARY; k++)
        most = fmaxf(most, fabsf(expected[k]));
    for (size_t o = 0; o < sizeof others / sizeof *others; o++) {
        float worst = 0;
        find_logits(cases[i].model, others[o], logits);
        for (size_t k = 0; k < SHOWN * VOCABULARY; k++)
            worst = fmaxf(worst, fabsf(logits[k] - expected[k]));
        EXPECT(worst <= 1e-5f * most && most > 0,
               "%s: logits of up to %g differ by %g in a window of %zu filled with %d, sample %d",
               cases[i].name, (double)most, (double)worst, others[o].window, others[o].padding,
               (int)others[o].other);
    }
}

/* A quarter of 8 channels is 2, and so on: each count is a rotation of its own, 0 is none. */
static void check_rotary(void)
{
    static const char *const shares[] = {"\"none\"", "\"rope\", \"rotary_percent\": 0.25",
                                         "\"rope\", \"rotary_percent\": 0.5", "\"rope\""};
    enum { NUM_SHARES = sizeof shares / sizeof *shares };
    float logits[NUM_SHARES][SHOWN * VOCABULARY];
    EXPECT(weft_rotary_channels(100, 0.29) == 29 && weft_rotary_channels(8, 0.25) == 2 &&
               weft_rotary_channels(8, 0.2) == 1 && weft_rotary_channels(6, 0.333334) == 2,
           "channels of a share");
    for (int i = 0; i < NUM_SHARES; i++) {
        char model[512];
        snprintf(model, sizeof model, STACK ", \"position_embedding_type\": %s", shares[i]);
        find_logits(model, (surroundings){WINDOW, 0, 1}, logits[i]);
        for (int j = 0; j < i; j++)
            EXPECT(memcmp(logits[i], logits[j], sizeof logits[i]) != 0, "%s rotates as %s does",
                   shares[i], shares[j]);
    }
}

int main(void)
{
    harness_generates = true;
    check_rotary();
    for (int i = 0; i < NUM_CASES; i++)
        check(i);
    return expect_finish();
}
