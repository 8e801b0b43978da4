/* A GPT with a mixture of experts in every other layer, the first one dense. The mesh decides where
 * the experts lie and how tokens reach them:
 *
 *     example_moe_gpt train examples/moe-small.json --out run --set data.data_path=corpus
 *     example_moe_gpt train examples/moe-small.json --out run2 --set data.data_path=corpus \
 *         --mesh dp=4,ep=4
 */
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    if (options->num_experts == 0)
        return WEFT_KEY_ERROR("model.num_experts", "this model needs experts");
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *mlp = i % 2 ? weft_moe_create(options) : weft_mlp_create(options);
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options), mlp));
    }
    return weft_model_add_head(model, options);
}

int main(int argc, char **argv)
{
    return weft_main(argc, argv, build);
}
