/* How the options scale rotary positions. Pure. Private to layers/. */
#ifndef WEFT_LAYERS_ROTARY_H
#define WEFT_LAYERS_ROTARY_H

#include <weft/kernels.h>
#include <weft/model.h>

typedef struct weft_rotary {
    weft_rope_scaling scaling;
    float magnitude; /* of sines and cosines; 0: 1 */
} weft_rotary;

/* channels: of a head, that rotate. */
weft_rotary weft_rotary_of(const weft_model_options *options, size_t channels);
/* softmax_scale, or what stands for 0 where YaRN scales scores of latents: DeepSeek's m^2 /
 * sqrt(kv_channels), m of yarn_mscale_all_dim. 0: the kernel's own. */
float weft_rotary_score_scale(const weft_model_options *options);

#endif
