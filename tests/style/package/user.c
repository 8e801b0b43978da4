/* A user's program, built far from Weft's tree. */
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                  weft_mlp_create(options)));
    return weft_model_add_head(model, options);
}

int main(int argc, char **argv)
{
    return weft_main(argc, argv, build);
}
