/* metrics.jsonl has each expert's tokens of the global batch in every log.moe_load_interval-th
 * step: every token topk times in each MoE layer, the same numbers on every mesh. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

/* Without a learning rate rounding changes no choice from step to step. */
static const char config[] =
    "{\"model\": {\"num_layers\": 4, \"hidden_size\": 24, \"ffn_hidden_size\": 32, "
    "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 61, \"num_experts\": 4, "
    "\"moe_router_topk\": 2, \"moe_layer_freq\": [0, 1, 1, 0], \"init_method_std\": 0.1}, "
    "\"train\": {\"global_batch_size\": 8, \"train_iters\": 4, \"lr\": 0}, "
    "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true}, "
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0, "
    "\"moe_load_interval\": 2}}";
enum { TOKENS = 8 * 16, TOPK = 2, STEPS = 4 };

static void check_layer(const cJSON *layer)
{
    const cJSON *of = cJSON_GetObjectItem(layer, "tokens"), *expert;
    double sum = 0, most = 0;
    cJSON_ArrayForEach(expert, of)
    {
        sum += expert->valuedouble;
        most = fmax(most, expert->valuedouble);
    }
    const cJSON *ratio = cJSON_GetObjectItem(layer, "max_over_mean");
    EXPECT(cJSON_GetArraySize(of) == 4 && sum == TOKENS * TOPK, "%s: %g tokens", layer->string,
           sum);
    EXPECT(ratio && ratio->valuedouble == most * 4 / sum, "%s: the fullest expert", layer->string);
}

/* A run's lines, what they have one behind the other; malloc'd. */
static char *train(const char *mesh, const char *more)
{
    static char found[4096];
    size_t used = 0;
    CHILD_GOOD("train", "c.json", "--out", "run", "--mesh", mesh, "--set", more);
    cJSON *lines = child_read_metrics("run");
    for (const cJSON *step = lines->child; step; step = step->next) {
        const cJSON *layers = cJSON_GetObjectItem(step, "expert_tokens"), *layer;
        const int number = cJSON_GetObjectItem(step, "step")->valueint;
        EXPECT((layers != NULL) == (number % 2 == 0), "%s: step %d has them: %d", mesh, number,
               layers != NULL);
        cJSON_ArrayForEach(layer, layers) check_layer(layer);
        EXPECT(!layers || (cJSON_GetArraySize(layers) == 2 &&
                           cJSON_GetObjectItem(layers, "decoder.layers.1")),
               "%s: step %d", mesh, number);
        char *text = layers ? cJSON_PrintUnformatted(layers) : NULL;
        used += (size_t)snprintf(found + used, sizeof found - used, "%s\n", text ? text : "");
        cJSON_free(text);
    }
    EXPECT(system("rm -rf run") == 0, "run stays");
    return strdup(found);
}

int main(void)
{
    static const char *const meshes[][2] = {
        {"dp=2,zero=1", "recompute_granularity=full"},
        {"tp=2,dp=2,sp=1,binding=dp,ep=2,etp=2", "seed=1234"},
        {"pp=2,dp=2,vp=2,binding=dp,ep=2", "seed=1234"},
        {"tp=2,cp=2,binding=tp", "moe_router_load_balancing_type=seq_aux_loss"}};
    child_begin();
    if (!child_write("c.json", config))
        return 1;
    char *one = train("dp=1", "seed=1234");
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char *text = train(meshes[i][0], meshes[i][1]);
        EXPECT(strcmp(text, one) == 0, "on %s: %s, on one rank: %s", meshes[i][0], text, one);
        free(text);
    }
    free(one);
    return child_finish();
}
