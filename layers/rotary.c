/* How the options scale rotary positions: linear (Chen et al. 2023), Llama 3.1's, YaRN (Peng et al.
 * 2023). */
#include "layers/rotary.h"

#include <math.h>

/* The pair that makes so many turns within the original length (YaRN's code, by channels). */
static double pair_of(const weft_model_options *o, size_t channels, double turns)
{
    const double length = (double)o->original_max_position_embeddings;
    return (double)channels * log(length / (turns * 6.283185307179586477)) /
           (2 * log(o->rotary_base));
}

static weft_rope_scaling yarn_of(const weft_model_options *o, size_t channels)
{
    double begin = pair_of(o, channels, o->yarn_beta_fast);
    double end = pair_of(o, channels, o->yarn_beta_slow);
    if (o->yarn_correction_range_round_to_int)
        begin = floor(begin), end = ceil(end);
    begin = fmax(begin, 0);
    end = fmin(end, (double)channels - 1);
    return (weft_rope_scaling){.begin = begin,
                               .end = end == begin ? end + 0.001 : end,
                               .factor = o->rotary_scaling_factor};
}

static double magnitude_of(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

weft_rotary weft_rotary_of(const weft_model_options *o, size_t channels)
{
    const double factor = o->rotary_scaling_factor;
    weft_rotary out = {0};
    switch ((weft_rotary_scaling)o->rotary_scaling_type) {
    case WEFT_ROTARY_UNSCALED:
        break;
    case WEFT_ROTARY_LINEAR: /* all pairs stand beyond the end */
        out.scaling = (weft_rope_scaling){.factor = factor, .begin = -2, .end = -1};
        break;
    case WEFT_ROTARY_LLAMA3:
        out.scaling = (weft_rope_scaling){.factor = factor,
                                          .begin = o->rotary_high_freq_factor,
                                          .end = o->rotary_low_freq_factor,
                                          .by_turns = true,
                                          .length = (double)o->original_max_position_embeddings};
        break;
    case WEFT_ROTARY_YARN:
        out.scaling = yarn_of(o, channels);
        out.magnitude = (float)(magnitude_of(factor, o->yarn_mscale) /
                                magnitude_of(factor, o->yarn_mscale_all_dim));
        break;
    }
    return out;
}

float weft_rotary_score_scale(const weft_model_options *o)
{
    const bool is_yarn = o->position_embedding_type == WEFT_POSITION_ROPE &&
                         o->rotary_scaling_type == WEFT_ROTARY_YARN;
    const double m = magnitude_of(o->rotary_scaling_factor, o->yarn_mscale_all_dim);
    if (o->softmax_scale != 0 || !o->multi_latent_attention || !is_yarn)
        return (float)o->softmax_scale;
    return (float)(m * m / sqrt((double)o->kv_channels));
}
