/* Loss and every gradient on sequences of 4,096 tokens against PyTorch's. See
 * tests/oracle/make_long_golden.py for the files. */
#include "tests/layers/golden_file.h"

/* The next number in [-1, 1) of 24 bits, as the script makes them: splitmix64. */
static float next_number(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)((z ^ z >> 31) >> 40) / 0x1p23f - 1.0f;
}

/* FNV-1a. */
static uint64_t start_of(const char *name)
{
    uint64_t state = 0xcbf29ce484222325u;
    for (; *name; name++)
        state = (state ^ (unsigned char)*name) * 0x100000001b3u;
    return state;
}

static void fill_weights(weft_parameters *parameters)
{
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        const size_t length = strlen(p->name);
        const bool is_scale =
            strstr(p->name, "layernorm") && strcmp(p->name + length - 7, ".weight") == 0;
        uint64_t state = start_of(p->name);
        for (size_t k = 0; k < weft_tensor_count(&p->weight); k++)
            ((float *)p->weight.data)[k] = next_number(&state) / 2 + (is_scale ? 1.0f : 0.0f);
    }
}

/* Sample b of a micro-batch: the rows that are here, of [h->rows, batch]. */
static void fill_sample(const harness *h, size_t b, int32_t *tokens, int32_t *labels)
{
    const size_t seq = (size_t)h->options.seq_length;
    char name[32];
    int32_t *drawn = malloc((seq + 1) * sizeof *drawn);
    snprintf(name, sizeof name, "tokens.%zu", b);
    uint64_t state = start_of(name);
    for (size_t s = 0; s <= seq; s++)
        drawn[s] =
            (int32_t)(((double)next_number(&state) + 1) / 2 * (double)(h->options.vocab_size - 1));
    for (size_t i = 0; i < h->rows; i++) {
        tokens[i * h->batch + b] = drawn[h->index[i]];
        labels[i * h->batch + b] = drawn[h->index[i] + 1];
    }
    free(drawn);
}

static void check(const char *name, weft_comm *world, const char *mesh)
{
    weft_arena arena = {0};
    golden g;
    harness h;
    size_t count;
    if (!golden_open(name, &g))
        return;
    weft_model_options options = golden_model(&g, &arena);
    EXPECT_OK(
        harness_create(&h, world, &options, mesh, golden_number(&g, "batch"), WEFT_F32, NULL));
    weft_parameters *parameters = weft_model_parameters(h.model);
    fill_weights(parameters);
    int32_t *tokens = malloc(h.tokens * sizeof *tokens);
    int32_t *labels = malloc(h.tokens * sizeof *labels);
    for (size_t b = 0; b < h.batch; b++)
        fill_sample(&h, b, tokens, labels);
    EXPECT_OK(harness_pass(&h, tokens, labels, true, true));

    double sum = weft_model_metrics(h.model)->loss_sum / (double)h.tokens;
    double loss = *golden_find(&g, "loss", "", &count);
    EXPECT_OK(weft_comm_all_reduce_host(world, &sum, 1, WEFT_F64, WEFT_REDUCE_SUM));
    EXPECT(fabs(sum - loss) <= 1e-5 * loss, "%s on %s: loss %.9g against %.9g", name, mesh, sum,
           loss);
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        EXPECT_OK(weft_comm_all_reduce_host(world, p->grad, weft_tensor_count(&p->weight), WEFT_F32,
                                            WEFT_REDUCE_SUM));
    }
    double worst = golden_check_gradients(&g, name, parameters);
    if (weft_comm_rank(world) == 0)
        printf("%s on %s: worst gradient %.2g relative\n", name, mesh, worst);
    free(tokens);
    free(labels);
    golden_release(&g);
    harness_release(&h);
    weft_arena_release(&arena);
}

int main(void)
{
    static const char *const names[] = {"long_mha", "long_grouped"};
    weft_comm *world;
    EXPECT_OK(weft_comm_create_world(&world));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check(names[i], world, "cp=1");
    weft_comm_destroy(world);
    return expect_finish();
}
