#include "layers/latent.h"

#include "core/device/device.h"
#include "layers/pass/note.h"

weft_status weft_latent_init(weft_build *build, const weft_model_options *o, const weft_dims *d,
                             weft_latent *out)
{
    const weft_linear_kind whole =
        weft_build_shape(build)->sequence_parallel ? WEFT_LINEAR_WHOLE_SUMMED : WEFT_LINEAR_WHOLE;
    const size_t q_rank = (size_t)o->q_lora_rank, kv_rank = (size_t)o->kv_lora_rank,
                 positions = (size_t)o->qk_pos_emb_head_dim, nope = (size_t)o->qk_head_dim,
                 heads = d->heads_all;
    const weft_linear_row q_rows[] = {
        {&out->q_down, "linear_q_down_proj", whole, d->hidden, q_rank, false, 0},
        {&out->q_up, "linear_q_up_proj", WEFT_LINEAR_COLUMN, q_rank, heads * d->head_dim, false, 0},
        {&out->q_up, "linear_q_proj", WEFT_LINEAR_COLUMN, d->hidden, heads * d->head_dim, false, 0},
    };
    const weft_linear_row kv_rows[] = {
        {&out->kv_down, "linear_kv_down_proj", whole, d->hidden, kv_rank + positions, false, 0},
        {&out->kv_up, "linear_kv_up_proj", WEFT_LINEAR_COLUMN, kv_rank,
         heads * (nope + d->value_dim), false, 0},
    };
    *out = (weft_latent){.rotary = weft_rotary_of(o, d->rotary),
                         .dims = *d,
                         .kv_rank = kv_rank,
                         .positions = positions,
                         .base = (float)o->rotary_base,
                         .interleaved = o->rotary_interleaved};
    WEFT_TRY(weft_linears_declare(build, o, q_rank ? q_rows : &q_rows[2], q_rank ? 2 : 1));
    WEFT_TRY(weft_linears_declare(build, o, kv_rows, 2));
    if (q_rank)
        WEFT_TRY(weft_norm_init_wide(build, o, "q_layernorm", q_rank, &out->q_norm));
    WEFT_TRY(weft_norm_init_wide(build, o, "kv_layernorm", kv_rank, &out->kv_norm));
    if (o->latent_norm_epsilon > 0)
        out->q_norm.epsilon = out->kv_norm.epsilon = (float)o->latent_norm_epsilon;
    return WEFT_OK;
}

/* --- moving columns -------------------------------------------------------------------------- */

/* Columns of a matrix: from `first` on, `stride` from row to row. */
typedef struct columns {
    void *at;
    size_t stride;
} columns;

static columns columns_of(const weft_tensor *t, size_t first, size_t stride)
{
    return (columns){(char *)t->data + first * weft_dtype_bytes(t->dtype), stride};
}

static weft_status move(weft_pass *pass, weft_dtype dtype, size_t rows, size_t count, columns from,
                        columns to)
{
    return weft_cast(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = dtype,
                                .to_dtype = dtype, .from = from.at, .to = to.at, .rows = rows,
                                .from_stride = from.stride, .to_stride = to.stride));
}

/* Where the parts of a head stand in packed rows, and how far apart heads do. */
typedef struct head_places {
    size_t nope, k, v, stride; /* nope: channels of q and of k before those with positions */
} head_places;

static head_places places_of(const weft_latent *l)
{
    const size_t dim = l->dims.head_dim;
    return (head_places){dim - l->positions, dim, 2 * dim, 2 * dim + l->dims.value_dim};
}

/* Between q's own matrix and packed rows. */
static weft_status move_queries(const weft_latent *l, weft_pass *pass, const weft_tensor *q,
                                const weft_tensor *packed, bool back)
{
    const size_t rows = l->dims.rows_full * l->dims.heads, dim = l->dims.head_dim;
    const columns own = columns_of(q, 0, dim), there = columns_of(packed, 0, places_of(l).stride);
    return move(pass, packed->dtype, rows, dim, back ? there : own, back ? own : there);
}

/* Between kv_up's matrix, [k without positions, v] a head, and packed rows. */
static weft_status move_keys(const weft_latent *l, weft_pass *pass, const weft_tensor *kv,
                             const weft_tensor *packed, bool back)
{
    const head_places p = places_of(l);
    const size_t rows = l->dims.rows_full * l->dims.heads, value = l->dims.value_dim;
    const columns k = columns_of(kv, 0, p.nope + value), v = columns_of(kv, p.nope, k.stride);
    const columns k_there = columns_of(packed, p.k, p.stride),
                  v_there = columns_of(packed, p.v, p.stride);
    WEFT_TRY(move(pass, kv->dtype, rows, p.nope, back ? k_there : k, back ? k : k_there));
    return move(pass, kv->dtype, rows, value, back ? v_there : v, back ? v : v_there);
}

/* Between kv_down's matrix and the latent beside the channels with positions. */
static weft_status move_latent(const weft_latent *l, weft_pass *pass, const weft_tensor *down,
                               const weft_tensor *kv, const weft_tensor *positions, bool back)
{
    const size_t rows = l->dims.rows, stride = l->kv_rank + l->positions;
    const columns left = columns_of(down, 0, stride), right = columns_of(down, l->kv_rank, stride);
    const columns k = columns_of(kv, 0, l->kv_rank), p = columns_of(positions, 0, l->positions);
    WEFT_TRY(move(pass, down->dtype, rows, l->kv_rank, back ? k : left, back ? left : k));
    return move(pass, down->dtype, rows, l->positions, back ? p : right, back ? right : p);
}

/* --- positions ------------------------------------------------------------------------------- */

/* Rotates the channels with positions of all queries and keys. */
static weft_status rotate(const weft_latent *l, weft_pass *pass, const weft_tensor *packed,
                          bool inverse)
{
    const head_places p = places_of(l);
    const int32_t *positions = weft_pass_positions(pass);
    if (l->dims.rotary == 0)
        return WEFT_OK;
    return weft_rope(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_rope_args, .seq = weft_shape_local_seq(weft_pass_shape(pass)),
                   .batch = weft_pass_shape(pass)->batch, .heads = 2, .head_dim = l->positions,
                   .token_stride = l->dims.qkv, .head_stride = p.k, .groups = l->dims.heads,
                   .group_stride = p.stride, .rotary_dim = l->dims.rotary, .base = l->base,
                   .dtype = packed->dtype, .x = columns_of(packed, p.nope, l->dims.qkv).at,
                   .inverse = inverse, .index = positions ? positions : weft_pass_index(pass),
                   .index_by_sample = positions, .interleaved = l->interleaved,
                   .magnitude = l->rotary.magnitude, .scaling = l->rotary.scaling));
}

/* The positions' channels of all keys, and those that a token has once. */
static weft_status share_positions(const weft_latent *l, weft_pass *pass, const weft_tensor *one,
                                   const weft_tensor *packed, bool inverse)
{
    const head_places p = places_of(l);
    const columns keys = columns_of(packed, p.k + p.nope, l->dims.qkv);
    const weft_heads_shape shape = {l->dims.rows_full, l->dims.heads, 1,
                                    l->positions,      l->dims.qkv,   p.stride};
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(lane, l->kv_down.name,
                weft_heads_share(lane, &WEFT_ARGS(weft_heads_share_args, .shape = shape,
                                                  .dtype = packed->dtype, .one = one->data,
                                                  .heads = keys.at, .inverse = inverse)));
    return WEFT_OK;
}

/* --- forward --------------------------------------------------------------------------------- */

/* packed's queries from the rows that q_up takes. */
static weft_status make_queries(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                                const weft_tensor *packed)
{
    weft_tensor full, q;
    WEFT_TRY(weft_pass_enter(pass, x, &full));
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, l->dims.rows_full, l->q_up.out, &q));
    WEFT_TRY(weft_linear_forward(pass, &l->q_up, &full, false, &q));
    return move_queries(l, pass, &q, packed, false);
}

/* packed's keys and values from the normed latent and the channels with positions. */
static weft_status make_keys(const weft_latent *l, weft_pass *pass, const weft_tensor *normed,
                             const weft_tensor *positions, const weft_tensor *packed)
{
    const size_t rows = l->dims.rows_full;
    weft_tensor full, kv, one;
    WEFT_TRY(weft_pass_enter(pass, normed, &full));
    WEFT_TRY(weft_pass_scratch(pass, normed->dtype, rows, l->kv_up.out, &kv));
    WEFT_TRY(weft_linear_forward(pass, &l->kv_up, &full, false, &kv));
    WEFT_TRY(move_keys(l, pass, &kv, packed, false));
    WEFT_TRY(weft_pass_enter(pass, positions, &one));
    return share_positions(l, pass, &one, packed, false);
}

static weft_status forward_queries(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                                   weft_latent_state *state, const weft_tensor *packed)
{
    const size_t rows = l->dims.rows, mark = weft_pass_mark(pass);
    weft_tensor normed = *x;
    if (l->q_down.weight) {
        WEFT_TRY_AS(weft_pass_lane(pass), l->q_down.name,
                    weft_pass_stash(pass, x->dtype, rows, l->q_down.out, &state->q));
        WEFT_TRY(weft_linear_forward(pass, &l->q_down, x, false, &state->q));
        WEFT_TRY(weft_pass_scratch(pass, x->dtype, rows, l->q_down.out, &normed));
        WEFT_TRY(weft_norm_run(pass, &l->q_norm, &state->q, NULL, NULL, &normed, &state->q_stats));
    }
    WEFT_TRY(make_queries(l, pass, &normed, packed));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* A recomputation needs the channels with positions once more. */
static weft_status take_positions(const weft_latent *l, weft_pass *pass, weft_dtype dtype,
                                  weft_tensor *out)
{
    if (!(weft_pass_shape(pass)->recompute & WEFT_RECOMPUTE_MODULE(MLA_UP_PROJ)))
        return weft_pass_scratch(pass, dtype, l->dims.rows, l->positions, out);
    WEFT_TRY_AS(weft_pass_lane(pass), l->kv_down.name,
                weft_pass_stash(pass, dtype, l->dims.rows, l->positions, out));
    return WEFT_OK;
}

weft_status weft_latent_forward(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                                weft_latent_state *state, const weft_tensor *packed)
{
    const size_t rows = l->dims.rows, mark = weft_pass_mark(pass);
    weft_tensor down, normed;
    WEFT_TRY(forward_queries(l, pass, x, state, packed));
    WEFT_TRY_AS(weft_pass_lane(pass), l->kv_down.name,
                weft_pass_stash(pass, x->dtype, rows, l->kv_rank, &state->kv));
    WEFT_TRY(take_positions(l, pass, x->dtype, &state->positions));
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, rows, l->kv_down.out, &down));
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, rows, l->kv_rank, &normed));
    WEFT_TRY(weft_linear_forward(pass, &l->kv_down, x, false, &down));
    WEFT_TRY(move_latent(l, pass, &down, &state->kv, &state->positions, false));
    WEFT_TRY(weft_norm_run(pass, &l->kv_norm, &state->kv, NULL, NULL, &normed, &state->kv_stats));
    WEFT_TRY(make_keys(l, pass, &normed, &state->positions, packed));
    WEFT_TRY(rotate(l, pass, packed, false));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* --- backward -------------------------------------------------------------------------------- */

/* A latent's normed rows again, this rank's. */
static weft_status norm_again(weft_pass *pass, const weft_norm *norm, const weft_tensor *latent,
                              const weft_norm_stats *stats, weft_tensor *normed)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY(weft_pass_scratch(pass, latent->dtype, latent->dims[0], latent->dims[1], normed));
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_AGAIN);
    WEFT_TRY(weft_norm_rerun_to(pass, norm, latent, stats, normed));
    weft_note_redoes(lane, outer);
    return WEFT_OK;
}

weft_status weft_latent_again(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                              const weft_latent_state *state, const weft_tensor *packed)
{
    const size_t mark = weft_pass_mark(pass);
    weft_tensor normed = *x;
    if (l->q_down.weight)
        WEFT_TRY(norm_again(pass, &l->q_norm, &state->q, &state->q_stats, &normed));
    WEFT_TRY(make_queries(l, pass, &normed, packed));
    weft_pass_release(pass, mark);
    WEFT_TRY(norm_again(pass, &l->kv_norm, &state->kv, &state->kv_stats, &normed));
    WEFT_TRY(make_keys(l, pass, &normed, &state->positions, packed));
    weft_pass_release(pass, mark);
    return rotate(l, pass, packed, false);
}

/* For a gradient that the second half of a backward in two sees, too. */
static weft_status take_gradient(weft_pass *pass, weft_dtype dtype, size_t rows, size_t cols,
                                 weft_tensor *out)
{
    return (weft_pass_defers(pass) ? weft_pass_deferred : weft_pass_scratch)(pass, dtype, rows,
                                                                             cols, out);
}

/* A first half does not read x. */
static weft_status project_back(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                const weft_tensor *dy, bool add, weft_tensor *dx)
{
    return weft_pass_defers(pass)
               ? weft_linear_backward_input(pass, linear, dy, add, dx)
               : weft_linear_backward_to(pass, linear, x, dy, weft_pass_overwrite(pass), add, dx);
}

/* A latent and its norm. */
typedef struct normed_latent {
    const weft_norm *norm;
    const weft_tensor *latent;
    const weft_norm_stats *stats;
    const weft_norm_deferred *deferred;
} normed_latent;

static normed_latent queries_of(const weft_latent *l, const weft_latent_state *state)
{
    return (normed_latent){&l->q_norm, &state->q, &state->q_stats, &state->q_deferred};
}

static normed_latent keys_of(const weft_latent *l, const weft_latent_state *state)
{
    return (normed_latent){&l->kv_norm, &state->kv, &state->kv_stats, &state->kv_deferred};
}

/* A wide projection's backward: dlatent of this rank's rows, before the norm. */
static weft_status backward_up(weft_pass *pass, const weft_linear *up, const normed_latent *n,
                               const weft_tensor *dy, weft_tensor *dlatent)
{
    const weft_tensor *latent = n->latent;
    weft_tensor normed, full = {0}, dnormed, partial;
    if (!weft_pass_defers(pass)) {
        WEFT_TRY(norm_again(pass, n->norm, latent, n->stats, &normed));
        WEFT_TRY(weft_pass_enter(pass, &normed, &full));
    }
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, latent->dims[0], latent->dims[1], &dnormed));
    WEFT_TRY(weft_pass_partial(pass, &dnormed, &partial));
    WEFT_TRY(project_back(pass, up, &full, dy, false, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, &dnormed));
    return weft_norm_backward_deferring(pass, n->norm, &dnormed, latent, n->stats, false,
                                        n->deferred, dlatent);
}

/* Writes dx. */
static weft_status backward_queries(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                                    weft_latent_state *state, const weft_tensor *dpacked,
                                    weft_tensor *dx)
{
    const size_t mark = weft_pass_mark(pass);
    const normed_latent queries = queries_of(l, state);
    weft_tensor full = {0}, partial;
    WEFT_TRY(take_gradient(pass, x->dtype, l->dims.rows_full, l->q_up.out, &state->dq_up));
    WEFT_TRY(move_queries(l, pass, &state->dq_up, dpacked, true));
    if (l->q_down.weight) {
        WEFT_TRY(take_gradient(pass, x->dtype, l->dims.rows, l->q_down.out, &state->dq_down));
        WEFT_TRY(backward_up(pass, &l->q_up, &queries, &state->dq_up, &state->dq_down));
        WEFT_TRY(project_back(pass, &l->q_down, x, &state->dq_down, false, dx));
    } else {
        if (!weft_pass_defers(pass))
            WEFT_TRY(weft_pass_enter(pass, x, &full));
        WEFT_TRY(weft_pass_partial(pass, dx, &partial));
        WEFT_TRY(project_back(pass, &l->q_up, &full, &state->dq_up, false, &partial));
        WEFT_TRY(weft_pass_exit(pass, &partial, dx));
    }
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status defer_norms(const weft_latent *l, weft_pass *pass, weft_latent_state *state)
{
    if (l->q_down.weight)
        WEFT_TRY(weft_norm_defer(pass, &l->q_norm, &state->q_deferred));
    return weft_norm_defer(pass, &l->kv_norm, &state->kv_deferred);
}

weft_status weft_latent_backward(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                                 weft_latent_state *state, const weft_tensor *dpacked,
                                 weft_tensor *dx)
{
    const size_t rows = l->dims.rows, mark = weft_pass_mark(pass);
    const normed_latent keys = keys_of(l, state);
    weft_tensor dlatent, dpositions, partial;
    if (weft_pass_defers(pass))
        WEFT_TRY(defer_norms(l, pass, state));
    WEFT_TRY(rotate(l, pass, dpacked, true));
    WEFT_TRY(backward_queries(l, pass, x, state, dpacked, dx));
    WEFT_TRY(take_gradient(pass, x->dtype, rows, l->kv_down.out, &state->dkv_down));
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, rows, l->kv_rank, &dlatent));
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, rows, l->positions, &dpositions));
    WEFT_TRY(weft_pass_partial(pass, &dpositions, &partial));
    WEFT_TRY(share_positions(l, pass, &partial, dpacked, true));
    WEFT_TRY(weft_pass_exit(pass, &partial, &dpositions));
    WEFT_TRY(take_gradient(pass, x->dtype, l->dims.rows_full, l->kv_up.out, &state->dkv_up));
    WEFT_TRY(move_keys(l, pass, &state->dkv_up, dpacked, true));
    WEFT_TRY(backward_up(pass, &l->kv_up, &keys, &state->dkv_up, &dlatent));
    WEFT_TRY(move_latent(l, pass, &state->dkv_down, &dlatent, &dpositions, true));
    WEFT_TRY(project_back(pass, &l->kv_down, x, &state->dkv_down, true, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* --- the second half of a backward in two ------------------------------------------------------
 */

/* A wide projection's, which read the normed latent. */
static weft_status weights_up(weft_pass *pass, const weft_linear *up, const normed_latent *n,
                              const weft_tensor *dy)
{
    const weft_tensor *latent = n->latent;
    const size_t mark = weft_pass_mark(pass);
    weft_lane *lane = weft_pass_lane(pass);
    weft_tensor normed, full;
    WEFT_TRY(weft_norm_end_deferred(pass, n->norm, n->deferred));
    WEFT_TRY(weft_pass_scratch(pass, latent->dtype, latent->dims[0], latent->dims[1], &normed));
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_AGAIN);
    WEFT_TRY(weft_norm_rerun_deferred(pass, n->norm, latent, n->stats, n->deferred, &normed));
    weft_note_redoes(lane, outer);
    WEFT_TRY(weft_pass_enter(pass, &normed, &full));
    WEFT_TRY(weft_linear_backward_weights(pass, up, &full, dy));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

weft_status weft_latent_weights(const weft_latent *l, weft_pass *pass, const weft_tensor *x,
                                const weft_latent_state *state)
{
    const normed_latent queries = queries_of(l, state), keys = keys_of(l, state);
    const size_t mark = weft_pass_mark(pass);
    weft_tensor full;
    if (l->q_down.weight) {
        WEFT_TRY(weights_up(pass, &l->q_up, &queries, &state->dq_up));
        WEFT_TRY(weft_linear_backward_weights(pass, &l->q_down, x, &state->dq_down));
    } else {
        WEFT_TRY(weft_pass_enter(pass, x, &full));
        WEFT_TRY(weft_linear_backward_weights(pass, &l->q_up, &full, &state->dq_up));
        weft_pass_release(pass, mark);
    }
    WEFT_TRY(weights_up(pass, &l->kv_up, &keys, &state->dkv_up));
    return weft_linear_backward_weights(pass, &l->kv_down, x, &state->dkv_down);
}
