/* A dense GPT in C. The config says what its blocks are made of (LayerNorm or RMSNorm, GELU or
 * SwiGLU, learned or rotary positions, grouped queries), so gpt2-124m.json and llama-1b.json both
 * fit:
 *
 *     example_dense_gpt train examples/gpt2-124m.json --out run --set data.data_path=corpus
 */
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_mlp_create(options)));
    return weft_model_add_head(model, options);
}

int main(int argc, char **argv)
{
    return weft_main(argc, argv, build);
}
