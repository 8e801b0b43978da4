/* Losses and every gradient of a GPT-2, a Llama-like and a Mixtral-like stack against PyTorch's:
 * see tests/oracle/make_golden.py for the files. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/layers/harness.h"

typedef struct golden {
    char *bytes;
    cJSON *header;
    const float *data;
} golden;

static int golden_open(const char *name, weft_arena *arena, golden *out)
{
    char path[1024];
    size_t bytes;
    snprintf(path, sizeof path, "%s/tests/oracle/golden/%s.golden", getenv("WEFT_SOURCE_DIR"),
             name);
    EXPECT_OK(weft_read_file(path, arena, &out->bytes, &bytes));
    uint64_t length;
    memcpy(&length, out->bytes, sizeof length);
    out->header = cJSON_ParseWithLength(out->bytes + 8, length);
    EXPECT(out->header != NULL, "%s", path);
    float *data = malloc(bytes);
    memcpy(data, out->bytes + 8 + length, bytes - 8 - length);
    out->data = data;
    return out->header != NULL;
}

/* The data of a tensor, its element count in *count; NULL when there is none. */
static const float *golden_find(const golden *g, const char *kind, const char *name, size_t *count)
{
    char wanted[160];
    const cJSON *row, *dim;
    snprintf(wanted, sizeof wanted, "%s%s", kind, name);
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(g->header, "tensors"))
    {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(row, "name")->valuestring, wanted) != 0)
            continue;
        *count = 1;
        cJSON_ArrayForEach(dim, cJSON_GetObjectItemCaseSensitive(row, "shape")) *count *=
            (size_t)dim->valuedouble;
        return g->data + (size_t)cJSON_GetObjectItemCaseSensitive(row, "offset")->valuedouble;
    }
    return NULL;
}

static void check(const char *name)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    weft_comm *self;
    golden g;
    harness h;
    size_t count;
    if (!golden_open(name, &arena, &g))
        return;
    char *config = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(g.header, "config"));
    char text[2048];
    snprintf(text, sizeof text, "{\"model\": %s}", config);
    free(config);
    size_t batch = (size_t)cJSON_GetObjectItemCaseSensitive(g.header, "batch")->valuedouble;
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(harness_create(&h, self, &options, NULL, batch, WEFT_F32, NULL));

    weft_parameters *parameters = weft_model_parameters(h.model);
    int num = weft_parameters_count(parameters);
    for (int i = 0; i < num; i++) {
        weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        const float *weight = golden_find(&g, "weight/", p->name, &count);
        EXPECT(weight && count == weft_tensor_count(&p->weight), "%s: no weight %s", name, p->name);
        if (weight)
            memcpy(p->weight.data, weight, count * sizeof(float));
    }
    int32_t *tokens = malloc(h.tokens * sizeof *tokens),
            *labels = malloc(h.tokens * sizeof *labels);
    const float *from = golden_find(&g, "tokens", "", &count);
    const float *to = golden_find(&g, "labels", "", &count);
    for (size_t t = 0; t < h.tokens; t++) {
        tokens[t] = (int32_t)from[t];
        labels[t] = (int32_t)to[t];
    }
    EXPECT_OK(harness_pass(&h, tokens, labels, true, true));

    const weft_metrics *m = weft_model_metrics(h.model);
    double loss = *golden_find(&g, "loss", "", &count), aux = *golden_find(&g, "aux", "", &count);
    EXPECT(fabs(m->loss_sum / (double)h.tokens - loss) <= 1e-5 * loss, "%s: loss %.9g against %.9g",
           name, m->loss_sum / (double)h.tokens, loss);
    EXPECT(fabs(m->aux_loss - aux) <= 1e-5 * (aux + 1e-9), "%s: aux %.9g against %.9g", name,
           m->aux_loss, aux);
    double worst = 0;
    for (int i = 0; i < num; i++) {
        weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        const float *grad = golden_find(&g, "grad/", p->name, &count);
        double difference = 0, norm = 0;
        for (size_t k = 0; grad && k < count; k++) {
            difference += pow((double)p->grad[k] - (double)grad[k], 2);
            norm += pow((double)grad[k], 2);
        }
        double relative = sqrt(difference / norm);
        EXPECT(grad && relative <= 1e-5, "%s: gradient of %s is off by %.3g", name, p->name,
               relative);
        worst = relative > worst ? relative : worst;
    }
    printf("%s: %d tensors, worst gradient %.2g relative\n", name, num, worst);
    free(tokens);
    free(labels);
    free((void *)(uintptr_t)g.data);
    cJSON_Delete(g.header);
    harness_release(&h);
    weft_comm_destroy(self);
    weft_arena_release(&arena);
}

int main(void)
{
    check("gpt2");
    check("llama");
    check("mixtral");
    return expect_finish();
}
