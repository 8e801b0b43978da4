/* The projections of multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, §2.1): keys and
 * values are made of a latent, few numbers a token, queries of another or of the token's row.
 * Positions enter beside, in channels of their own that all keys of a token share. Private to
 * layers/.
 *
 * The narrow projections are whole on every TP rank; under sequence parallelism a rank makes
 * latents of its own rows, and latents are what it gathers. The wide ones are split over heads.
 * What comes out is packed as attention's QKV is, a group a head: [q, k, v], where q and k end in
 * the channels with positions. */
#ifndef WEFT_LAYERS_LATENT_H
#define WEFT_LAYERS_LATENT_H

#include "layers/layers.h"
#include "layers/rotary.h"

typedef struct weft_latent {
    weft_linear q_down, q_up; /* q_down's weight NULL: q_up is of the token's row */
    weft_linear kv_down, kv_up;
    weft_norm q_norm, kv_norm;
    weft_rotary rotary;
    weft_dims dims;
    size_t kv_rank, positions; /* positions: channels that have them */
    float base;
    bool interleaved;
} weft_latent;

/* What backward needs beside x. */
typedef struct weft_latent_state {
    weft_tensor q, kv; /* latents of this rank's rows, before their norms */
    weft_norm_stats q_stats, kv_stats;
    weft_tensor positions; /* where mla_up_proj is recomputed: the keys' channels, not rotated */
    weft_tensor dq_up, dq_down, dkv_up, dkv_down; /* gradients of what projections make */
    weft_norm_deferred q_deferred, kv_deferred;   /* of a backward in two halves */
} weft_latent_state;

weft_status weft_latent_init(weft_build *build, const weft_model_options *options,
                             const weft_dims *dims, weft_latent *out) WEFT_CHECKED;
/* packed [S * B, dims.qkv] from x, this rank's rows. Collective over TP. */
weft_status weft_latent_forward(const weft_latent *latent, weft_pass *pass, const weft_tensor *x,
                                weft_latent_state *state, const weft_tensor *packed) WEFT_CHECKED;
/* packed again, from the latents. Collective over TP. */
weft_status weft_latent_again(const weft_latent *latent, weft_pass *pass, const weft_tensor *x,
                              const weft_latent_state *state,
                              const weft_tensor *packed) WEFT_CHECKED;
/* dx from packed's gradient, which it changes; as a first half it leaves the parameters' gradients
 * to weft_latent_weights. Collective over TP. */
weft_status weft_latent_backward(const weft_latent *latent, weft_pass *pass, const weft_tensor *x,
                                 weft_latent_state *state, const weft_tensor *dpacked,
                                 weft_tensor *dx) WEFT_CHECKED;
weft_status weft_latent_weights(const weft_latent *latent, weft_pass *pass, const weft_tensor *x,
                                const weft_latent_state *state) WEFT_CHECKED;

#endif
