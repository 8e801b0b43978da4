#include "layers/heads_norm.h"

#include <stdio.h>

#include "core/device/device.h"

static weft_status declare(weft_build *build, const weft_model_options *o, const char *suffix,
                           weft_parameter_spec *spec, const weft_placed_rows *rows,
                           const weft_heads_norm *n, weft_parameter **out)
{
    char name[WEFT_MAX_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", n->name, suffix);
    spec->name = name;
    spec->sum_over_tp = !o->qk_layernorm_across_heads;
    return weft_build_rows(build, spec, rows, out);
}

static weft_status init(weft_build *build, const weft_model_options *o, size_t heads_all,
                        const weft_placed_rows *rows, weft_heads_norm *n)
{
    const bool across = o->qk_layernorm_across_heads;
    weft_parameter_spec spec = WEFT_ARGS(
        weft_parameter_spec, .num_dims = 1, .dims = {(across ? heads_all : 1) * n->shape.head_dim},
        .split = {across ? WEFT_SPLIT_TP : WEFT_SPLIT_NONE},
        .init = o->apply_layernorm_1p ? WEFT_INIT_ZERO : WEFT_INIT_ONE, .no_weight_decay = true);
    WEFT_TRY(declare(build, o, "weight", &spec, rows, n, &n->weight));
    if (o->normalization == WEFT_RMSNORM)
        return WEFT_OK;
    spec.init = WEFT_INIT_ZERO;
    return declare(build, o, "bias", &spec, rows, n, &n->bias);
}

weft_status weft_heads_norms_init(weft_build *build, const weft_model_options *o,
                                  const weft_dims *d, weft_heads_norms *out)
{
    if (!o->qk_layernorm)
        return WEFT_OK;
    const size_t dim = d->head_dim, heads = d->heads / d->groups;
    const weft_heads_shape shape = {d->rows_full, d->groups, heads, dim, d->qkv, (heads + 2) * dim};
    const size_t tp_rank = (size_t)weft_build_coords(build)->tp.at;
    const weft_placed_rows even = {0}, shared = {tp_rank / d->sharers * dim, dim, (int)d->sharers};
    out->kind = o->normalization == WEFT_RMSNORM ? WEFT_NORM_RMS : WEFT_NORM_LAYER;
    out->epsilon = (float)o->norm_epsilon;
    out->weight_offset = o->apply_layernorm_1p ? 1.0f : 0.0f;
    out->of[0] =
        (weft_heads_norm){.name = "q_layernorm", .shape = shape, .whole = d->heads_all * dim};
    out->of[1] = (weft_heads_norm){.name = "k_layernorm",
                                   .shape = shape,
                                   .first = heads * dim,
                                   .whole = d->groups_all * d->sharers * dim};
    out->of[1].shape.heads = 1;
    WEFT_TRY(init(build, o, d->heads_all, &even, &out->of[0]));
    return init(build, o, d->groups_all,
                o->qk_layernorm_across_heads && d->sharers > 1 ? &shared : &even, &out->of[1]);
}

static bool is_across(const weft_heads_norms *norms)
{
    const weft_heads_norm *q = &norms->of[0];
    return q->weight && q->weight->spec->split[0] == WEFT_SPLIT_TP;
}

static void *from(const weft_tensor *t, size_t first)
{
    return (char *)t->data + first * weft_dtype_bytes(t->dtype);
}

/* Sums over the token's heads on all TP ranks. */
static weft_status sum(const weft_heads_norm *n, weft_pass *pass, const weft_heads_sums_args *args)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(lane, n->name, weft_heads_sums(lane, args));
    if (weft_pass_shape(pass)->tp == 1)
        return WEFT_OK;
    return weft_all_reduce(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], lane, args->sums,
                           args->shape.tokens, WEFT_F32, WEFT_REDUCE_SUM);
}

weft_status weft_heads_norms_sum(const weft_heads_norms *norms, weft_pass *pass,
                                 const weft_tensor *qkv, weft_heads_squares *out)
{
    for (int i = 0; i < 2 && is_across(norms); i++) {
        const weft_heads_norm *n = &norms->of[i];
        const void *x = from(qkv, n->first);
        weft_tensor sums;
        WEFT_TRY_AS(weft_pass_lane(pass), n->name,
                    weft_pass_stash(pass, WEFT_F32, n->shape.tokens, 1, &sums));
        out->of[i] = sums.data;
        WEFT_TRY(sum(n, pass,
                     &WEFT_ARGS(weft_heads_sums_args, .shape = n->shape, .dtype = qkv->dtype,
                                .a = x, .b = x, .sums = out->of[i])));
    }
    return WEFT_OK;
}

/* Values lie at the end of each group's row. */
static weft_status copy_values(const weft_heads_shape *s, weft_lane *lane, const weft_tensor *qkv,
                               const weft_tensor *ready)
{
    const size_t first = s->group_stride - s->head_dim;
    return weft_cast(lane,
                     &WEFT_ARGS(weft_cast_args, .count = s->head_dim, .from_dtype = qkv->dtype,
                                .to_dtype = ready->dtype, .from = from(qkv, first),
                                .to = from(ready, first), .rows = s->tokens * s->groups,
                                .from_stride = s->group_stride, .to_stride = s->group_stride));
}

weft_status weft_heads_norms_run(const weft_heads_norms *norms, weft_pass *pass,
                                 const weft_tensor *qkv, const weft_heads_squares *sums,
                                 const weft_tensor *ready)
{
    weft_lane *lane = weft_pass_lane(pass);
    for (int i = 0; i < 2; i++) {
        const weft_heads_norm *n = &norms->of[i];
        WEFT_TRY_AS(lane, n->name,
                    weft_heads_norm_forward(
                        lane, &WEFT_ARGS(weft_heads_norm_forward_args, .kind = norms->kind,
                                         .shape = n->shape, .dtype = qkv->dtype,
                                         .x = from(qkv, n->first), .weight = n->weight->weight.data,
                                         .bias = n->bias ? n->bias->weight.data : NULL,
                                         .y = from(ready, n->first), .sums = sums->of[i],
                                         .whole = n->whole, .epsilon = norms->epsilon,
                                         .weight_offset = norms->weight_offset)));
    }
    return copy_values(&norms->of[0].shape, lane, qkv, ready);
}

weft_status weft_heads_norms_backward(const weft_heads_norms *norms, weft_pass *pass,
                                      const weft_tensor *qkv, const weft_heads_squares *sums,
                                      const weft_tensor *dqkv)
{
    weft_lane *lane = weft_pass_lane(pass);
    weft_tensor along = {0};
    if (is_across(norms))
        WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, norms->of[0].shape.tokens, 1, &along));
    for (int i = 0; i < 2; i++) {
        const weft_heads_norm *n = &norms->of[i];
        const void *x = from(qkv, n->first), *weight = n->weight->weight.data;
        void *dx = from(dqkv, n->first);
        if (along.data)
            WEFT_TRY(sum(n, pass,
                         &WEFT_ARGS(weft_heads_sums_args, .shape = n->shape, .dtype = qkv->dtype,
                                    .a = dx, .b = x, .weight = weight, .sums = along.data,
                                    .weight_offset = norms->weight_offset)));
        WEFT_TRY_AS(lane, n->name,
                    weft_heads_norm_backward(
                        lane, &WEFT_ARGS(weft_heads_norm_backward_args, .kind = norms->kind,
                                         .shape = n->shape, .dtype = qkv->dtype, .x = x,
                                         .weight = weight, .dx = dx, .sums = sums->of[i],
                                         .along = along.data, .whole = n->whole,
                                         .epsilon = norms->epsilon, .dweight = n->weight->grad,
                                         .dbias = n->bias ? n->bias->grad : NULL,
                                         .overwrite = weft_pass_overwrite(pass),
                                         .weight_offset = norms->weight_offset)));
    }
    return WEFT_OK;
}
