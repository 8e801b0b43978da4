/* The optimizer's state alone in host memory (ZeRO-Offload, Ren et al. 2021): what of weights and
 * gradients the host's steps see. */
#include "parallel/optimizer/internal.h"

static bool is_staged(const weft_optimizer *o, int bucket)
{
    return weft_bucket_is_staged(&o->buckets.shapes[bucket]);
}

static size_t weight_bytes(const weft_optimizer *o)
{
    return weft_dtype_bytes(weft_parameters_dtype(o->parameters));
}

/* Elements that this rank owns of a bucket: they follow each other in the state. */
static size_t count_owned(const weft_optimizer *o, int bucket)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    const weft_owned *last = &owned[num_owned - 1];
    return last->state + last->count - owned->state;
}

weft_status weft_optimizer_allocate_staged(weft_optimizer *o)
{
    weft_device *device = weft_parameters_device(o->parameters);
    weft_staged *s = &o->staged;
    int num_staged = 0;
    void *memory;
    for (int b = 0; b < o->buckets.count; b++) {
        if (!is_staged(o, b))
            continue;
        const size_t count = count_owned(o, b), bytes = count * sizeof(float);
        s->weights_bytes += count * weight_bytes(o);
        s->gradient_bytes = bytes > s->gradient_bytes ? bytes : s->gradient_bytes;
        num_staged++;
    }
    if (num_staged == 0)
        return WEFT_OK;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, s->weights_bytes,
                                   "weights that the host steps", &memory));
    s->weights = memory;
    for (int i = 0; i < WEFT_BUCKET_STAGING && i < num_staged; i++) {
        WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                       s->gradient_bytes, "gradients that the host steps by",
                                       &memory));
        s->gradients[i] = memory;
    }
    return WEFT_OK;
}

void weft_optimizer_free_staged(weft_optimizer *o)
{
    weft_device *device = weft_parameters_device(o->parameters);
    weft_staged *s = &o->staged;
    if (s->weights)
        weft_device_free(device, WEFT_SPACE_PINNED, s->weights, s->weights_bytes);
    for (int i = 0; i < WEFT_BUCKET_STAGING; i++)
        if (s->gradients[i])
            weft_device_free(device, WEFT_SPACE_PINNED, s->gradients[i], s->gradient_bytes);
}

/* Staged weights lie as the state does: no bucket in front of them is elsewhere. */
static void *staged_weight(const weft_optimizer *o, size_t state)
{
    return o->staged.weights + state * weight_bytes(o);
}

weft_update_place weft_optimizer_update_place(const weft_optimizer *o, int bucket,
                                              const weft_owned *owned, const weft_update *update)
{
    if (is_staged(o, bucket))
        return (weft_update_place){staged_weight(o, update->state),
                                   o->staged.gradients[o->buckets.shapes[bucket].staging] +
                                       (update->state - owned->state)};
    return (weft_update_place){
        weft_parameters_weight(o->parameters, owned->section, owned->bucket, update->first),
        weft_parameters_grad(o->parameters, owned->section, owned->bucket, update->first)};
}

weft_status weft_optimizer_download(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    float *to = o->staged.gradients[o->buckets.shapes[bucket].staging];
    for (int i = 0; i < num_owned && !weft_optimizer_skips(o); i++)
        WEFT_TRY(weft_lane_copy(
            lane, to + (owned[i].state - owned->state),
            weft_parameters_grad(o->parameters, owned[i].section, owned[i].bucket, owned[i].first),
            owned[i].count * sizeof(float)));
    return WEFT_OK;
}

/* Between the device and what is staged. */
static weft_status copy_weights(const weft_optimizer *o, int bucket, bool up, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    for (int i = 0; i < num_owned; i++) {
        void *device = weft_parameters_weight(o->parameters, owned[i].section, owned[i].bucket,
                                              owned[i].first),
             *host = staged_weight(o, owned[i].state);
        WEFT_TRY(weft_lane_copy(lane, up ? device : host, up ? host : device,
                                owned[i].count * weight_bytes(o)));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_upload(weft_optimizer *o, int bucket, weft_lane *lane)
{
    return weft_optimizer_skips(o) ? WEFT_OK : copy_weights(o, bucket, true, lane);
}

weft_status weft_optimizer_stage_weights(const weft_optimizer *o, weft_lane *lane)
{
    for (int b = 0; b < o->buckets.count; b++)
        if (is_staged(o, b))
            WEFT_TRY(copy_weights(o, b, false, lane));
    return WEFT_OK;
}
