/* Loss and every gradient on sequences of 4,096 tokens against PyTorch's: on one rank, and
 * on 4 of context parallelism in each way that attention then sees the whole sequence. See
 * tests/oracle/make_long_golden.py for the files. */
#include "parallel/sequence.h"
#include "tests/layers/golden_file.h"
#include "tests/world.h"

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
            ((float *)p->weight.data)[weft_parameter_place(p, k)] =
                next_number(&state) / 2 + (is_scale ? 1.0f : 0.0f);
    }
}

/* The rows that are here, [h->rows, batch]; first_seen: of the whole sequence, [S, batch]. */
typedef struct rows {
    int32_t *tokens, *labels, *positions, *first_seen;
    float *label_weights;
} rows;

static rows rows_create(const harness *h)
{
    const size_t count = h->rows * h->batch;
    return (rows){.tokens = malloc(count * sizeof(int32_t)),
                  .labels = malloc(count * sizeof(int32_t)),
                  .positions = malloc(count * sizeof(int32_t)),
                  .first_seen = malloc(h->tokens * sizeof(int32_t)),
                  .label_weights = malloc(count * sizeof(float))};
}

static void rows_release(rows *r)
{
    free(r->tokens);
    free(r->labels);
    free(r->positions);
    free(r->first_seen);
    free(r->label_weights);
}

/* Sample b of the micro-batch; `ends`: of its documents. weight: of a label that bears a loss. */
static void fill_sample(const harness *h, rows *r, size_t b, const cJSON *ends, float weight)
{
    const size_t seq = (size_t)h->options.seq_length;
    const int32_t eod = (int32_t)h->options.vocab_size - 1;
    char name[32];
    const cJSON *end;
    int32_t *drawn = malloc((seq + 1) * sizeof *drawn), *first = malloc(seq * sizeof *first);
    snprintf(name, sizeof name, "tokens.%zu", b);
    uint64_t state = start_of(name);
    for (size_t s = 0; s <= seq; s++)
        drawn[s] = (int32_t)(((double)next_number(&state) + 1) / 2 * eod);
    cJSON_ArrayForEach(end, ends) drawn[(size_t)end->valuedouble] = eod;
    weft_documents_find(drawn, seq, eod, 1, first);
    for (size_t s = 0; s < seq; s++)
        r->first_seen[s * h->batch + b] = first[s];
    for (size_t i = 0; i < h->rows; i++) {
        const size_t at = i * h->batch + b;
        const int32_t s = h->index[i];
        r->tokens[at] = drawn[s];
        r->labels[at] = drawn[s + 1];
        r->positions[at] = s - first[s];
        r->label_weights[at] = drawn[s] == eod ? 0.0f : weight;
    }
    free(drawn);
    free(first);
}

/* With its documents, if it has some. */
static void fill_rows(harness *h, rows *r, const cJSON *documents)
{
    int num_ends = 0;
    for (int b = 0; b < cJSON_GetArraySize(documents); b++)
        num_ends += cJSON_GetArraySize(cJSON_GetArrayItem(documents, b));
    const float weight = (float)((double)h->tokens / ((double)h->tokens - num_ends));
    for (size_t b = 0; b < h->batch; b++)
        fill_sample(h, r, b, cJSON_GetArrayItem(documents, (int)b), weight);
    if (num_ends > 0) {
        h->positions = r->positions;
        h->first_seen = r->first_seen;
        h->label_weights = r->label_weights;
    }
}

static void check(const char *name, weft_comm *world, const char *mesh, const char *way)
{
    char parallel[160];
    weft_arena arena = {0};
    golden g;
    harness h;
    size_t count;
    if (!golden_open(name, &g))
        return;
    weft_model_options options = golden_model(&g, &arena);
    snprintf(parallel, sizeof parallel, "{\"parallel\": {\"cp_comm_type\": %s}}", way);
    harness_parallel = parallel;
    EXPECT_OK(
        harness_create(&h, world, &options, mesh, golden_number(&g, "batch"), WEFT_F32, NULL));
    weft_parameters *parameters = weft_model_parameters(h.model);
    fill_weights(parameters);
    rows r = rows_create(&h);
    fill_rows(&h, &r, cJSON_GetObjectItemCaseSensitive(g.header, "documents"));
    EXPECT_OK(harness_pass(&h, r.tokens, r.labels, true, true));

    double sum = weft_model_metrics(h.model)->loss_sum / (double)h.tokens;
    double loss = *golden_find(&g, "loss", "", &count);
    EXPECT_OK(weft_comm_all_reduce_host(world, &sum, 1, WEFT_F64, WEFT_REDUCE_SUM));
    EXPECT(fabs(sum - loss) <= 1e-5 * loss, "%s on %s, %s: loss %.9g against %.9g", name, mesh, way,
           sum, loss);
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        const size_t parts = p->expert_stride ? p->weight.dims[0] : 1;
        for (size_t e = 0; e < parts; e++)
            EXPECT_OK(weft_comm_all_reduce_host(world, p->grad + e * p->expert_stride,
                                                weft_tensor_count(&p->weight) / parts, WEFT_F32,
                                                WEFT_REDUCE_SUM));
    }
    double worst = golden_check_gradients(&g, name, parameters);
    if (weft_comm_rank(world) == 0)
        printf("%s on %s, %s: worst gradient %.2g relative\n", name, mesh, way, worst);
    rows_release(&r);
    golden_release(&g);
    harness_release(&h);
    weft_arena_release(&arena);
}

int main(void)
{
    static const char *const names[] = {"long_mha", "long_mha_documents", "long_grouped",
                                        "long_grouped_documents"};
    static const char *const ways[] = {
        "\"p2p\"", "\"all_gather\"", "\"a2a\"",
        "\"a2a+p2p\", \"hierarchical_context_parallel_sizes\": [2, 2]"};
    weft_comm *world = world_begin(0);
    const bool is_shared = weft_comm_size(world) == 4;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t w = 0; w < (is_shared ? sizeof ways / sizeof *ways : 1); w++)
            check(names[i], world, is_shared ? "cp=4" : "cp=1", ways[w]);
    return world_finish(world);
}
