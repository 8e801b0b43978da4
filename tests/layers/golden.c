/* Losses and every gradient of a GPT-2, a Llama-like and a Mixtral-like stack against PyTorch's,
 * and of published families against transformers': see tests/oracle/make_golden.py and
 * make_family_golden.py for the files. */
#include "tests/layers/golden_file.h"

static void check(const char *name)
{
    weft_arena arena = {0};
    weft_comm *self;
    golden g;
    harness h;
    size_t count;
    if (!golden_open(name, &g))
        return;
    weft_model_options options = golden_model(&g, &arena);
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(harness_create(&h, self, &options, NULL, golden_number(&g, "batch"), WEFT_F32, NULL));

    weft_parameters *parameters = weft_model_parameters(h.model);
    int num = weft_parameters_count(parameters);
    for (int i = 0; i < num; i++) {
        weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        const float *weight = golden_find(&g, "weight/", p->name, &count);
        EXPECT(weight && count == weft_tensor_count(&p->weight), "%s: no weight %s", name, p->name);
        if (weight)
            for (size_t k = 0; k < count; k++)
                ((float *)p->weight.data)[weft_parameter_place(p, k)] = weight[k];
    }
    const float *from = golden_find(&g, "tokens", "", &count);
    const float *to = golden_find(&g, "labels", "", &count);
    int32_t *tokens = malloc(count * sizeof *tokens), *labels = malloc(count * sizeof *labels);
    for (size_t t = 0; t < count; t++) {
        tokens[t] = (int32_t)from[t];
        labels[t] = (int32_t)to[t];
    }
    double loss_sum = 0, aux_sum = 0;
    for (size_t t = 0; t < count; t += h.tokens) {
        EXPECT_OK(harness_pass(&h, tokens + t, labels + t, true, t == 0));
        loss_sum += weft_model_metrics(h.model)->loss_sum / (double)h.tokens;
        aux_sum += weft_model_metrics(h.model)->aux_loss;
    }

    double loss = *golden_find(&g, "loss", "", &count), aux = *golden_find(&g, "aux", "", &count);
    EXPECT(fabs(loss_sum - loss) <= 1e-5 * loss, "%s: loss %.9g against %.9g", name, loss_sum,
           loss);
    EXPECT(fabs(aux_sum - aux) <= 1e-5 * (aux + 1e-9), "%s: aux %.9g against %.9g", name, aux_sum,
           aux);
    const float *mtp = golden_find(&g, "mtp", "", &count);
    for (size_t d = 0; mtp && d < count; d++) {
        const weft_metric *own = &weft_model_own_metrics(h.model)[d];
        EXPECT(fabs(own->sum / own->count - (double)mtp[d]) <= 1e-5 * (double)mtp[d],
               "%s: depth %zu loses %.9g, not %.9g", name, d + 1, own->sum / own->count,
               (double)mtp[d]);
    }
    double worst = golden_check_gradients(&g, name, parameters);
    printf("%s: %d tensors, worst gradient %.2g relative\n", name, num, worst);
    free(tokens);
    free(labels);
    golden_release(&g);
    harness_release(&h);
    weft_comm_destroy(self);
    weft_arena_release(&arena);
}

int main(void)
{
    check("gpt2");
    check("llama");
    check("mixtral");
    check("seq-aux");
    check("global-aux");
    check("mtp");
    check("mtp-moe-tied");
    check("qwen3");
    check("llama-biases");
    check("qwen2-linear");
    check("llama3");
    check("qwen3-yarn");
    check("yarn-mscale");
    check("glm");
    check("smollm3");
    check("olmoe");
    check("qwen3-moe");
    check("qwen2-moe");
    check("minimax-m2");
    check("glm4-moe");
    return expect_finish();
}
