/* Describes attention over context-parallel ranks but for attending, one direction at a time: its
 * program's tasks, the operations' modules (launcher/planning/context_price.c). */
#include "layers/context_memory.h"
#include "layers/recompute.h"

typedef struct description {
    weft_layer_cost *out;
    const weft_shape *shape;
    weft_context_shape context;
    weft_context_sizes sizes;
    weft_phase phase;
} description;

/* Adds `kernels` that read and write these numbers of elements. */
static void move(const description *d, const char *module, size_t numbers, weft_dtype from,
                 weft_dtype to, size_t kernels)
{
    weft_cost_memory(d->out, d->phase, module,
                     numbers * (weft_dtype_bytes(from) + weft_dtype_bytes(to)), kernels);
}

static void travel(const description *d, const char *module, weft_collective collective,
                   size_t numbers, weft_dtype dtype, size_t count)
{
    weft_cost_collective(d->out, d->phase, module, WEFT_AXIS_CP, collective,
                         numbers * weft_dtype_bytes(dtype) * count, count);
}

/* Adds an exchange of rows of this width with the ranks that attend their heads. */
static void describe_deal(const description *d, size_t width, bool back)
{
    const size_t numbers = d->context.rows * width;
    if (!weft_context_exchanges(&d->context.plan))
        return;
    move(d, back ? "context.home" : "context.permute", numbers, d->context.dtype, d->context.dtype,
         (size_t)d->context.plan.inner);
    travel(d, back ? "context.combine" : "context.dispatch", WEFT_COLLECTIVE_ALL_TO_ALL, numbers,
           d->context.dtype, 1);
}

static void describe_keys(const description *d)
{
    const size_t blocks = (size_t)weft_context_blocks(&d->context.plan);
    const weft_dtype dtype = d->context.dtype;
    const bool gathers = d->context.plan.form == WEFT_CONTEXT_ALL_GATHER;
    if (gathers || blocks > 1)
        move(d, gathers ? "context.permute" : "context.keys", d->sizes.block_keys, dtype, dtype, 1);
    if (gathers)
        travel(d, "context.gather", WEFT_COLLECTIVE_ALL_GATHER, d->sizes.all_keys, dtype, 1);
    else
        travel(d, "context.shift", WEFT_COLLECTIVE_MESSAGE, d->sizes.block_keys, dtype, blocks - 1);
}

static void add(const description *d, const char *module, size_t count)
{
    if (count > 0)
        weft_cost_memory(d->out, d->phase, module, count * 3 * d->sizes.block_keys * sizeof(float),
                         count);
}

static void describe_gradients(const description *d)
{
    const size_t blocks = (size_t)weft_context_blocks(&d->context.plan);
    if (d->context.plan.form == WEFT_CONTEXT_ALL_GATHER)
        travel(d, "context.reduce", WEFT_COLLECTIVE_REDUCE_SCATTER, d->sizes.all_keys, WEFT_F32, 1);
    if (blocks > 1) {
        travel(d, "context.hand_on", WEFT_COLLECTIVE_MESSAGE, d->sizes.block_keys, WEFT_F32,
               blocks - 1);
        add(d, "context.sum", blocks - 2); /* on the way, and at home */
        add(d, "context.place", 1);
    }
    move(d, "context.place", d->sizes.rows * d->sizes.result, WEFT_F32, d->context.dtype, 1);
    move(d, "context.place", d->sizes.block_keys, WEFT_F32, d->context.dtype, 1);
}

static void describe_forward(const description *d)
{
    describe_deal(d, d->sizes.width_qkv, false);
    describe_keys(d);
    if (d->context.dtype != WEFT_F32)
        move(d, "context.place", d->sizes.rows * d->sizes.result, WEFT_F32, d->context.dtype, 1);
    describe_deal(d, d->sizes.width_out, true);
}

void weft_describe_context(const weft_shape *shape, const weft_dims *dims, weft_layer_cost *out)
{
    description d = {.out = out,
                     .shape = shape,
                     .context = weft_context_shape_of(shape, dims),
                     .phase = WEFT_PHASE_FORWARD};
    d.sizes = weft_context_sizes_of(&d.context);
    describe_forward(&d);
    if (shape->recompute & WEFT_RECOMPUTE_MODULE(CORE_ATTN)) {
        d.phase = WEFT_PHASE_RECOMPUTE;
        weft_cost_repeats(out, true);
        describe_forward(&d);
        weft_cost_repeats(out, false);
    }
    d.phase = WEFT_PHASE_INPUT_GRADIENT;
    describe_deal(&d, d.sizes.width_out, false);
    describe_keys(&d);
    describe_gradients(&d);
    describe_deal(&d, d.sizes.width_qkv, true);

    if (weft_context_exchanges(&d.context.plan)) {
        weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(CORE_ATTN), WEFT_MODULE_ATTENTION,
                               shape->dtype, dims->rows_full, d.sizes.width_qkv,
                               WEFT_PHASE_INPUT_GRADIENT);
        weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(CORE_ATTN), WEFT_MODULE_ATTENTION,
                               shape->dtype, dims->rows_full, d.sizes.width_out,
                               WEFT_PHASE_INPUT_GRADIENT);
    }
    weft_cost_scratch(out, shape, WEFT_PHASE_FORWARD, WEFT_U8,
                      weft_context_scratch_bytes(&d.context, false), 1);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, WEFT_U8,
                      weft_context_scratch_bytes(&d.context, true), 1);
}
