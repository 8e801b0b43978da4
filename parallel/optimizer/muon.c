/* Muon: gradients become momentum, are gathered, and each matrix is orthogonalised by Newton-Schulz
 * steps on every rank that updates some of it. */
#include <math.h>

#include "parallel/optimizer/internal.h"

/* One matrix on its way. */
typedef struct newton_schulz {
    size_t rows, cols;
    float *whole; /* [rows, cols] */
    weft_dtype dtype;
    void *x, *y, *gram, *poly;
} newton_schulz;

static bool has_matrices(const weft_optimizer *o, int bucket)
{
    return o->buckets.shapes[bucket].matrices.count > 0;
}

weft_status weft_muon_make(weft_optimizer *o)
{
    void *memory;
    for (int b = 0; b < o->buckets.count; b++)
        if (o->buckets.shapes[b].matrices.workspace_bytes > o->muon.bytes)
            o->muon.bytes = o->buckets.shapes[b].matrices.workspace_bytes;
    if (o->muon.bytes == 0)
        return WEFT_OK;
    WEFT_TRY(weft_device_alloc_for(weft_parameters_device(o->parameters), WEFT_SPACE_DEVICE,
                                   WEFT_MEMORY_OPTIMIZER, o->muon.bytes, "Muon's matrices",
                                   &memory));
    o->muon.memory = memory;
    return WEFT_OK;
}

void weft_muon_free(weft_optimizer *o)
{
    if (o->muon.memory)
        weft_device_free(weft_parameters_device(o->parameters), WEFT_SPACE_DEVICE, o->muon.memory,
                         o->muon.bytes);
}

/* Where what one rank of a bucket's gradient group makes goes to all: beside the gathers of weights
 * of buckets ahead. */
static weft_comm *gather_group(const weft_optimizer *o, weft_section_kind section)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    return section == WEFT_SECTION_EXPERT ? groups->gather_experts : groups->gather_dense;
}

static weft_comm *split_group(const weft_optimizer *o, const weft_placed_matrix *m)
{
    return weft_parameters_groups(o->parameters)->by_axis[m->axis];
}

weft_status weft_muon_reserve(const weft_optimizer *o, weft_lane *lane)
{
    for (int i = 0; i < o->part.num_owned; i++) {
        const weft_owned *owned = &o->part.owned[i];
        weft_comm *group = gather_group(o, owned->section);
        for (int k = owned->first_piece; k < owned->end_piece; k++) {
            const weft_placed *placed = o->part.pieces[k].placed;
            if (!weft_parameters_by_muon(o->parameters, placed))
                continue;
            const size_t part = weft_bucket_part(
                &weft_parameters_section(o->parameters, owned->section)->buckets[owned->bucket]);
            if (o->options.sharding != WEFT_NO_SHARD && group)
                WEFT_TRY(weft_comm_reserve(group, lane, 2 * part * sizeof(float)));
            const weft_placed_matrix m =
                weft_placed_matrix_at(placed, &weft_parameters_groups(o->parameters)->coords, 0);
            if (m.ranks > 1)
                WEFT_TRY(weft_comm_reserve(split_group(o, &m), lane,
                                           2 * part * m.ranks * sizeof(float)));
        }
    }
    return WEFT_OK;
}

static weft_status take_momentum(weft_optimizer *o, const weft_owned *owned,
                                 const weft_update *update, weft_lane *lane)
{
    return weft_momentum(
        lane, &WEFT_ARGS(weft_momentum_args, .count = update->count,
                         .m = weft_optimizer_state(o, owned, WEFT_STATE_EXP_AVG, update->state),
                         .grad = weft_parameters_grad(o->parameters, owned->section, owned->bucket,
                                                      update->first),
                         .grad_scale = o->norm.device.grad_scale,
                         .momentum = (float)o->options.muon.momentum,
                         .nesterov = o->options.muon.use_nesterov));
}

static weft_status gather(const weft_optimizer *o, const weft_owned *owned, weft_lane *lane)
{
    weft_comm *group = gather_group(o, owned->section);
    float *grads = weft_parameters_grad(o->parameters, owned->section, owned->bucket, owned->start);
    if (o->options.sharding == WEFT_NO_SHARD || !group)
        return WEFT_OK;
    return weft_all_gather(group, lane, grads + (owned->first - owned->start), grads, owned->count,
                           WEFT_F32);
}

static weft_status copy(weft_lane *lane, size_t rows, size_t cols, const float *from,
                        size_t ld_from, float *to, size_t ld_to, double factor,
                        const double *squares)
{
    return weft_matrix_copy(lane,
                            &WEFT_ARGS(weft_matrix_copy_args, .rows = rows, .cols = cols,
                                       .from = from, .to = to, .ld_from = ld_from, .ld_to = ld_to,
                                       .factor = (float)factor, .squares = squares));
}

/* c[m, n] = alpha op(a) op(b) + beta c, of depth k. */
static weft_status multiply(weft_lane *lane, weft_dtype dtype, size_t m, size_t n, size_t k,
                            const void *a, bool transpose_a, const void *b, bool transpose_b,
                            void *c, double alpha, double beta)
{
    return weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = m, .n = n, .k = k,
                                      .transpose_a = transpose_a, .transpose_b = transpose_b,
                                      .dtype = dtype, .c_dtype = dtype, .a = a, .b = b, .c = c,
                                      .alpha = (float)alpha, .beta = (float)beta));
}

/* Between fp32 and the products' type. */
static weft_status cast(const newton_schulz *s, bool back, weft_lane *lane)
{
    if (s->dtype == WEFT_F32)
        return WEFT_OK;
    return weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = s->rows * s->cols,
                                      .from_dtype = back ? s->dtype : WEFT_F32,
                                      .to_dtype = back ? WEFT_F32 : s->dtype,
                                      .from = back ? s->x : s->whole,
                                      .to = back ? (void *)s->whole : s->x));
}

/* Gram matrices are of the smaller side: X X^T X = X (X^T X). s->whole becomes the result. */
static weft_status orthogonalise(newton_schulz *s, int num_steps, weft_lane *lane)
{
    const double a = 3.4445, b = -4.7750, c = 2.0315;
    const bool wide = s->rows <= s->cols;
    const size_t side = wide ? s->rows : s->cols, other = wide ? s->cols : s->rows;
    const size_t each = weft_dtype_bytes(s->dtype);
    const weft_dtype t = s->dtype;
    WEFT_TRY(cast(s, false, lane));
    for (int i = 0; i < num_steps; i++) {
        WEFT_TRY(multiply(lane, t, side, side, other, s->x, !wide, s->x, wide, s->gram, 1, 0));
        WEFT_TRY(weft_lane_copy(lane, s->poly, s->gram, side * side * each));
        WEFT_TRY(
            multiply(lane, t, side, side, side, s->gram, false, s->gram, false, s->poly, c, b));
        WEFT_TRY(weft_lane_copy(lane, s->y, s->x, s->rows * s->cols * each));
        WEFT_TRY(
            wide ? multiply(lane, t, side, other, side, s->poly, false, s->x, false, s->y, 1, a)
                 : multiply(lane, t, other, side, side, s->x, false, s->poly, false, s->y, 1, a));
        void *x = s->x;
        s->x = s->y;
        s->y = x;
    }
    if (t == WEFT_F32)
        s->whole = s->x;
    return cast(s, true, lane);
}

static double scale_of(const weft_muon_options *o, double out, double in)
{
    const double scales[] = {[WEFT_MUON_SPECTRAL] = fmax(out, in),
                             [WEFT_MUON_UNIT_RMS_NORM] = out / in,
                             [WEFT_MUON_SHAPE_SCALING] = fmax(1, out / in)};
    return o->extra_scale_factor * sqrt(scales[o->scale_mode]);
}

/* Puts the ranks' blocks, which lie behind one another, together in s->whole, of norm 1. Where
 * several ranks hold the same, the first one's counts. */
static weft_status assemble(const weft_placed_matrix *m, const float *from, const newton_schulz *s,
                            double *squares, weft_lane *lane)
{
    const size_t block = m->rows * m->cols, step = m->sharers * block;
    WEFT_TRY(weft_lane_zero(lane, squares, sizeof *squares));
    for (size_t b = 0; b < weft_placed_matrix_blocks(m); b++)
        WEFT_TRY(weft_sum_squares(lane, &WEFT_ARGS(weft_sum_squares_args, .count = block,
                                                   .x = from + b * step, .sum = squares)));
    if (!m->by_cols)
        return copy(lane, weft_placed_matrix_blocks(m), block, from, step, s->whole, block, 1,
                    squares);
    for (size_t b = 0; b < weft_placed_matrix_blocks(m); b++)
        WEFT_TRY(copy(lane, m->rows, m->cols, from + b * step, m->cols, s->whole + b * m->cols,
                      s->cols, 1, squares));
    return WEFT_OK;
}

/* at: the matrix's first element on this rank, in gradients' memory. */
static weft_status step_matrix(weft_optimizer *o, const weft_placed_matrix *m, float *at,
                               weft_lane *lane)
{
    const weft_matrix_room room = weft_placed_matrix_room(m);
    const size_t block = m->rows * m->cols, blocks = weft_placed_matrix_blocks(m);
    const size_t runs = m->rows / m->run_rows, run = m->run_rows * m->cols;
    newton_schulz s = {.rows = m->by_cols ? m->rows : m->rows * blocks,
                       .cols = m->by_cols ? m->cols * blocks : m->cols,
                       .whole = o->muon.memory,
                       .dtype = o->options.muon.dtype};
    float *const gathered = s.whole + room.matrix, *const sides = gathered + room.blocks;
    double *squares = (double *)(void *)(sides + 2 * room.square);
    s.gram = sides;
    s.poly = sides + room.square;
    const float *from = at;
    if (m->ranks > 1) {
        WEFT_TRY(copy(lane, runs, run, at, m->run_stride, s.whole, run, 1, NULL));
        WEFT_TRY(weft_all_gather(split_group(o, m), lane, s.whole, gathered, block, WEFT_F32));
        from = gathered;
    } else if (runs > 1) {
        WEFT_TRY(copy(lane, runs, run, at, m->run_stride, gathered, run, 1, NULL));
        from = gathered;
    }
    WEFT_TRY(assemble(m, from, &s, squares, lane));
    s.x = s.dtype == WEFT_F32 ? (void *)s.whole : gathered; /* two of 16 bits fit there */
    s.y = s.dtype == WEFT_F32 ? (void *)gathered : (uint16_t *)(void *)gathered + room.matrix;
    WEFT_TRY(orthogonalise(&s, o->options.muon.num_ns_steps, lane));
    const double scale = scale_of(&o->options.muon, (double)s.rows, (double)s.cols);
    const size_t own = m->place / m->sharers;
    if (m->by_cols)
        return copy(lane, m->rows, m->cols, s.whole + own * m->cols, s.cols, at, m->cols, scale,
                    NULL);
    return copy(lane, runs, run, s.whole + own * block, run, at, m->run_stride, scale, NULL);
}

/* Those matrices of a piece's parameter of which it has some. */
static weft_status step_piece(weft_optimizer *o, const weft_owned_piece *piece, weft_lane *lane)
{
    const weft_placed *placed = piece->placed;
    const size_t part = weft_placed_part(placed), within = piece->first % part;
    const size_t num = weft_placed_num_matrices(placed);
    float *base =
        weft_parameters_grad(o->parameters, placed->section, piece->bucket, piece->at - within);
    for (size_t i = 0; i < num; i++) {
        const weft_placed_matrix m =
            weft_placed_matrix_at(placed, &weft_parameters_groups(o->parameters)->coords, i);
        const size_t end = m.first + (m.rows / m.run_rows - 1) * m.run_stride + m.run_rows * m.cols;
        if (m.first < within + piece->count && within < end)
            WEFT_TRY(step_matrix(o, &m, base + m.first, lane));
    }
    return WEFT_OK;
}

weft_status weft_muon_directions(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    if (!has_matrices(o, bucket))
        return WEFT_OK;
    for (int i = owned->first_update; i < owned[num_owned - 1].end_update; i++)
        if (o->part.updates[i].by_muon)
            WEFT_TRY(take_momentum(o, owned, &o->part.updates[i], lane));
    for (const weft_owned *range = owned; range < owned + num_owned; range++) {
        WEFT_TRY(gather(o, range, lane));
        for (int i = range->first_piece; i < range->end_piece; i++) {
            const weft_owned_piece *piece = &o->part.pieces[i];
            if (weft_parameters_by_muon(o->parameters, piece->placed) &&
                !piece->placed->parameter.frozen)
                WEFT_TRY(step_piece(o, piece, lane));
        }
    }
    return WEFT_OK;
}
