#include "layers/context/memory.h"

weft_context_plan weft_context_plan_of(const weft_shape *shape)
{
    const weft_context_form form = (weft_context_form)shape->cp_comm_type;
    return (weft_context_plan){.form = form,
                               .cp = shape->cp,
                               .inner = form == WEFT_CONTEXT_A2A       ? shape->cp
                                        : form == WEFT_CONTEXT_A2A_P2P ? shape->cp_inner
                                                                       : 1};
}

weft_context_shape weft_context_shape_of(const weft_shape *shape, const weft_dims *dims)
{
    return (weft_context_shape){.plan = weft_context_plan_of(shape),
                                .rows = dims->rows_full,
                                .batch = shape->batch,
                                .heads = dims->heads,
                                .groups = dims->groups,
                                .head_dim = dims->head_dim,
                                .value_dim = dims->value_dim,
                                .dtype = shape->dtype};
}

bool weft_context_deals(const weft_shape *shape)
{
    if (shape->cp <= 1)
        return false;
    const weft_context_plan plan = weft_context_plan_of(shape);
    return weft_context_exchanges(&plan);
}

bool weft_context_exchanges(const weft_context_plan *plan)
{
    return plan->inner > 1;
}

weft_context_sizes weft_context_sizes_of(const weft_context_shape *s)
{
    const size_t inner = (size_t)s->plan.inner;
    weft_context_sizes z = {
        .width_qkv = (s->heads + s->groups) * s->head_dim + s->groups * s->value_dim,
        .width_out = s->heads * s->value_dim,
        .rows = s->rows * inner,
        .heads = s->heads / inner,
        .groups = s->groups / inner,
        .in_group = s->heads / s->groups,
        .head_dim = s->head_dim,
        .value_dim = s->value_dim,
        .pair = s->head_dim + s->value_dim,
    };
    z.queries = z.heads * z.head_dim;
    z.result = z.heads * z.value_dim;
    z.keys = z.groups * z.pair;
    z.block_keys = z.rows * z.keys;
    z.all_keys = z.block_keys;
    if (s->plan.form == WEFT_CONTEXT_ALL_GATHER)
        z.all_keys *= (size_t)s->plan.cp;
    return z;
}

size_t weft_context_slot_bytes(const weft_context_shape *s, weft_slot_kind holds, bool backward)
{
    const weft_context_sizes z = weft_context_sizes_of(s);
    switch (holds) {
    case WEFT_SLOT_HOME:
        return weft_piece_bytes(
            s->dtype, weft_context_exchanges(&s->plan) ? s->rows * z.width_qkv : z.block_keys, 1);
    case WEFT_SLOT_KEYS:
        return weft_piece_bytes(s->dtype, z.all_keys, 1);
    case WEFT_SLOT_PARTIAL: /* in forward the result itself, if that is fp32 */
        if (backward)       /* of queries */
            return weft_piece_bytes(WEFT_F32, z.rows, z.queries);
        return s->dtype != WEFT_F32 ? weft_piece_bytes(WEFT_F32, z.rows, z.result) : 0;
    case WEFT_SLOT_HEADS_GRADIENT:
        return weft_piece_bytes(s->dtype, s->rows, z.width_qkv);
    case WEFT_SLOT_KEYS_GRADIENT:
        return weft_piece_bytes(WEFT_F32, z.all_keys, 1);
    case WEFT_SLOT_OWN_GRADIENT:
    case WEFT_SLOT_ARRIVED:
        return weft_piece_bytes(WEFT_F32, z.block_keys, 1);
    default:
        return 0;
    }
}

/* The number of slots of each kind in the programs. */
size_t weft_context_scratch_bytes(const weft_context_shape *s, bool backward)
{
    const bool exchanges = weft_context_exchanges(&s->plan);
    const bool gathers = s->plan.form == WEFT_CONTEXT_ALL_GATHER;
    const bool rings = weft_context_blocks(&s->plan) > 1;
    const struct {
        weft_slot_kind holds;
        size_t count;
    } rows[] = {
        {WEFT_SLOT_HOME, exchanges || gathers},
        {WEFT_SLOT_KEYS, rings ? 2 : gathers},
        {WEFT_SLOT_PARTIAL, 1},
        {WEFT_SLOT_HEADS_GRADIENT, backward && exchanges},
        {WEFT_SLOT_OWN_GRADIENT, backward && !gathers},
        {WEFT_SLOT_KEYS_GRADIENT, backward ? (size_t)weft_context_shares(&s->plan) : 0},
        {WEFT_SLOT_ARRIVED, backward && (rings || gathers)},
    };
    size_t bytes = backward ? weft_piece_bytes(WEFT_F32, s->heads, s->rows) : 0; /* delta */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bytes += rows[i].count * weft_context_slot_bytes(s, rows[i].holds, backward);
    return bytes;
}

size_t weft_context_message_bytes(const weft_context_shape *s)
{
    const weft_context_sizes z = weft_context_sizes_of(s);
    const size_t each = weft_dtype_bytes(s->dtype);
    size_t bytes = 2 * z.block_keys * sizeof(float);
    if (s->plan.form == WEFT_CONTEXT_ALL_GATHER)
        bytes = (z.all_keys + z.block_keys) * sizeof(float);
    if (weft_context_exchanges(&s->plan) && 2 * s->rows * z.width_qkv * each > bytes)
        bytes = 2 * s->rows * z.width_qkv * each;
    return bytes;
}
