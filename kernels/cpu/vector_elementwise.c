#include "kernels/cpu/cpu.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_random.h"

WEFT_INLINE void add(const void *a, const void *b, void *y, size_t num, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        weft_vector_store(y, i, weft_vector_load(a, i, dtype) + weft_vector_load(b, i, dtype),
                          dtype);
}

weft_status WEFT_VECTOR(add)(const weft_add_args *args)
{
    const weft_dtype dtype = args->dtype;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        const void *a = weft_vector_from(args->a, first, dtype);
        const void *b = weft_vector_from(args->b, first, dtype);
        void *y = weft_vector_at(args->y, first, dtype);
        if (dtype == WEFT_F32)
            add(a, b, y, num, WEFT_F32);
        else
            add(a, b, y, num, WEFT_BF16);
    }
    return WEFT_OK;
}

WEFT_INLINE void scale(void *x, float factor, size_t num, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        weft_vector_store(x, i, weft_vector_load(x, i, dtype) * factor, dtype);
}

weft_status WEFT_VECTOR(scale)(const weft_scale_args *args)
{
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        void *x = weft_vector_at(args->x, first, args->dtype);
        if (args->dtype == WEFT_F32)
            scale(x, args->factor, num, WEFT_F32);
        else
            scale(x, args->factor, num, WEFT_BF16);
    }
    return WEFT_OK;
}

WEFT_INLINE void convert(const void *from, void *to, size_t num, const weft_dtype from_dtype,
                         const weft_dtype to_dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        weft_vector_store(to, i, weft_vector_load(from, i, from_dtype), to_dtype);
}

static void convert_any(const void *from, void *to, size_t num, weft_dtype from_dtype,
                        weft_dtype to_dtype)
{
    if (from_dtype == to_dtype)
        memcpy(to, from, num * weft_vector_bytes(to_dtype));
    else if (from_dtype == WEFT_F32 && to_dtype == WEFT_BF16)
        convert(from, to, num, WEFT_F32, WEFT_BF16);
    else if (from_dtype == WEFT_BF16 && to_dtype == WEFT_F32)
        convert(from, to, num, WEFT_BF16, WEFT_F32);
    else if (from_dtype == WEFT_F32)
        convert(from, to, num, WEFT_F32, WEFT_F16);
    else if (from_dtype == WEFT_BF16)
        convert(from, to, num, WEFT_BF16, WEFT_F16);
    else if (to_dtype == WEFT_F32)
        convert(from, to, num, WEFT_F16, WEFT_F32);
    else
        convert(from, to, num, WEFT_F16, WEFT_BF16);
}

static weft_status cast_rows(const weft_cast_args *args)
{
#pragma omp parallel for schedule(static) if (args->rows * args->count > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->rows; row++)
        convert_any(weft_vector_from(args->from, row * args->from_stride, args->from_dtype),
                    weft_vector_at(args->to, row * args->to_stride, args->to_dtype), args->count,
                    args->from_dtype, args->to_dtype);
    return WEFT_OK;
}

weft_status WEFT_VECTOR(cast)(const weft_cast_args *args)
{
    if (args->rows > 0)
        return cast_rows(args);
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        convert_any(weft_vector_from(args->from, first, args->from_dtype),
                    weft_vector_at(args->to, first, args->to_dtype), num, args->from_dtype,
                    args->to_dtype);
    }
    return WEFT_OK;
}

/* `keep_from`: the smallest 24-bit number that keeps its element. */
WEFT_INLINE void drop(const void *x, const void *residual, void *y, size_t num,
                      const uint32_t *restrict words, uint32_t keep_from, float factor,
                      const weft_dtype dtype)
{
    if (residual) {
#pragma omp simd
        for (size_t i = 0; i < num; i++) {
            float kept = words[i] >> 8 >= keep_from ? weft_vector_load(x, i, dtype) * factor : 0.0f;
            weft_vector_store(y, i, kept + weft_vector_load(residual, i, dtype), dtype);
        }
    } else {
#pragma omp simd
        for (size_t i = 0; i < num; i++) {
            float kept = words[i] >> 8 >= keep_from ? weft_vector_load(x, i, dtype) * factor : 0.0f;
            weft_vector_store(y, i, kept, dtype);
        }
    }
}

/* Elements first .. first + num, whose draws begin with the element `draw` of the stream. */
static void drop_span(const weft_dropout_args *args, size_t first, size_t num, uint64_t draw)
{
    enum { CHUNK = 2048 }; /* its random words stay in the first-level cache */
    /* k / 2^24 < p, for an integer k, is k < ceil(p 2^24); both sides are exact. */
    const uint32_t keep_from = (uint32_t)ceil((double)args->p * 0x1p24);
    const float factor = 1.0f / (1.0f - args->p);
    const weft_dtype dtype = args->dtype;
    for (size_t end = first + num; first < end; first += CHUNK, draw += CHUNK) {
        const size_t here = weft_vector_min(CHUNK, end - first);
        uint32_t buffer[CHUNK + WEFT_RANDOM_SLACK];
        const uint32_t *words = weft_random_words(args->seed, args->stream, draw, here, buffer);
        const void *x = weft_vector_from(args->x, first, dtype);
        const void *residual =
            args->residual ? weft_vector_from(args->residual, first, dtype) : NULL;
        void *y = weft_vector_at(args->y, first, dtype);
        if (dtype == WEFT_F32)
            drop(x, residual, y, here, words, keep_from, factor, WEFT_F32);
        else
            drop(x, residual, y, here, words, keep_from, factor, WEFT_BF16);
    }
}

weft_status WEFT_VECTOR(dropout)(const weft_dropout_args *args)
{
    const size_t cols = args->cols, count = args->rows * cols;
    /* With an index a token's rows have draws that follow each other. */
    const size_t span = args->index ? cols : WEFT_VECTOR_CHUNK;
#pragma omp parallel for schedule(static) if (count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < count; first += span) {
        uint64_t draw = args->first_row * (uint64_t)cols + first;
        if (args->index) {
            const uint64_t row = args->first_row + first / cols;
            draw =
                ((uint64_t)args->index[row / args->batch] * args->batch + row % args->batch) * cols;
        }
        drop_span(args, first, weft_vector_min(span, count - first), draw);
    }
    return WEFT_OK;
}

/* The position of token t: of the batch's, or its own. */
static size_t position_of(const int32_t *index, bool by_sample, size_t first, size_t batch,
                          size_t t)
{
    if (!index)
        return first + t / batch;
    return (size_t)index[by_sample ? t : t / batch];
}

weft_status WEFT_VECTOR(embedding_forward)(const weft_embedding_forward_args *args)
{
    const size_t cols = args->cols;
    const weft_dtype dtype = args->dtype;
#pragma omp parallel for schedule(static) if (args->num_tokens * cols > WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->num_tokens; t++) {
        void *y = weft_vector_at(args->y, t * cols, dtype);
        const void *row = NULL, *position = NULL;
        if (args->table) {
            int64_t local = (int64_t)args->tokens[t] - (int64_t)args->first_row;
            if (local >= 0 && local < (int64_t)args->num_rows)
                row = weft_vector_from(args->table, (size_t)local * cols, dtype);
        }
        if (args->positions)
            position = weft_vector_from(args->positions,
                                        position_of(args->index, args->index_by_sample,
                                                    args->first_position, args->batch, t) *
                                            cols,
                                        dtype);
        if (row && position) {
            if (dtype == WEFT_F32)
                add(row, position, y, cols, WEFT_F32);
            else
                add(row, position, y, cols, WEFT_BF16);
        } else if (row || position) {
            memcpy(y, row ? row : position, cols * weft_vector_bytes(dtype));
        } else {
            memset(y, 0, cols * weft_vector_bytes(dtype));
        }
    }
    return WEFT_OK;
}

WEFT_INLINE void add_row(float *restrict to, const void *from, size_t num, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t c = 0; c < num; c++)
        to[c] += weft_vector_load(from, c, dtype);
}

static void zero(float *x, size_t count)
{
#pragma omp parallel for schedule(static) if (count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < count; first += WEFT_VECTOR_CHUNK)
        memset(x + first, 0, weft_vector_min(WEFT_VECTOR_CHUNK, count - first) * sizeof *x);
}

weft_status WEFT_VECTOR(embedding_backward)(const weft_embedding_backward_args *args)
{
    const size_t cols = args->cols;
    const weft_dtype dtype = args->dtype;
    if (args->overwrite && args->dtable)
        zero(args->dtable, args->num_rows * cols);
    if (args->overwrite && args->dpositions)
        zero(args->dpositions, args->num_positions * cols);
    /* Threads own columns: each is summed in the order of the tokens, whoever owns it. */
    size_t slice = cols;
#ifdef _OPENMP
    slice = (cols / (size_t)omp_get_max_threads() + 16) / 16 * 16;
#endif
    const size_t num_slices = cols ? (cols + slice - 1) / slice : 0;
#pragma omp parallel for schedule(static) if (args->num_tokens * cols > WEFT_VECTOR_SERIAL)
    for (size_t s = 0; s < num_slices; s++) {
        const size_t first = s * slice, num = weft_vector_min(slice, cols - first);
        for (size_t t = 0; t < args->num_tokens; t++) {
            const void *dy = weft_vector_from(args->dy, t * cols + first, dtype);
            float *to[2] = {NULL, NULL};
            if (args->dtable) {
                int64_t local = (int64_t)args->tokens[t] - (int64_t)args->first_row;
                if (local >= 0 && local < (int64_t)args->num_rows)
                    to[0] = args->dtable + (size_t)local * cols + first;
            }
            if (args->dpositions)
                to[1] = args->dpositions +
                        position_of(args->index, args->index_by_sample, args->first_position,
                                    args->batch, t) *
                            cols +
                        first;
            for (int i = 0; i < 2; i++) {
                if (to[i] && dtype == WEFT_F32)
                    add_row(to[i], dy, num, WEFT_F32);
                else if (to[i])
                    add_row(to[i], dy, num, WEFT_BF16);
            }
        }
    }
    return WEFT_OK;
}
