/* Addition, scaling, conversion and dropout. */
#include <math.h>

#include "kernels/cuda/each.cuh"
#include "kernels/cuda/random.cuh"

namespace
{

template <typename T, int n> struct add_op {
    static constexpr int width = n;
    struct operands {
        pack<T, n> a, b;
    };
    const T *a, *b;
    T *y;

    __device__ operands load(size_t i) const
    {
        return {load_pack<n>(a + i), load_pack<n>(b + i)};
    }
    __device__ void store(size_t i, operands x) const
    {
#pragma unroll
        for (int k = 0; k < n; k++)
            x.a.at[k] = from_float<T>(to_float(x.a.at[k]) + to_float(x.b.at[k]));
        store_pack(y + i, x.a);
    }
};

template <typename T> weft_status add(weft_lane *lane, const weft_add_args *args)
{
    const T *a = static_cast<const T *>(args->a), *b = static_cast<const T *>(args->b);
    T *y = static_cast<T *>(args->y);
    return launch_each(lane, args->count, is_aligned(16, a, b, y), add_op<T, WIDTH<T>>{a, b, y},
                       add_op<T, 1>{a, b, y});
}

template <typename T, int n> struct scale_op {
    static constexpr int width = n;
    using operands = pack<T, n>;
    T *x;
    float factor;

    __device__ operands load(size_t i) const
    {
        return load_pack<n>(x + i);
    }
    __device__ void store(size_t i, operands values) const
    {
#pragma unroll
        for (int k = 0; k < n; k++)
            values.at[k] = from_float<T>(to_float(values.at[k]) * factor);
        store_pack(x + i, values);
    }
};

template <typename T> weft_status scale(weft_lane *lane, const weft_scale_args *args)
{
    T *x = static_cast<T *>(args->x);
    return launch_each(lane, args->count, is_aligned(16, x), scale_op<T, WIDTH<T>>{x, args->factor},
                       scale_op<T, 1>{x, args->factor});
}

template <typename A, typename B> constexpr bool IS_SAME = false;
template <typename A> constexpr bool IS_SAME<A, A> = true;

template <typename From, typename To, int n> struct cast_op {
    static constexpr int width = n;
    using operands = pack<From, n>;
    const From *from;
    To *to;

    __device__ operands load(size_t i) const
    {
        return load_pack<n>(from + i);
    }
    __device__ void store(size_t i, operands x) const
    {
        if constexpr (IS_SAME<From, To>) {
            store_pack(to + i, x); /* bits, also those of NaN */
        } else {
            pack<To, n> y;
#pragma unroll
            for (int k = 0; k < n; k++)
                y.at[k] = from_float<To>(to_float(x.at[k]));
            store_pack(to + i, y);
        }
    }
};

/* Elements are those of `cols` columns that have rows `from_stride` and `to_stride` apart. */
template <typename From, typename To, int n> struct cast_rows_op {
    static constexpr int width = n;
    using operands = pack<From, n>;
    const From *from;
    To *to;
    size_t cols, from_stride, to_stride;

    __device__ operands load(size_t i) const
    {
        return load_pack<n>(from + i / cols * from_stride + i % cols);
    }
    __device__ void store(size_t i, operands x) const
    {
        cast_op<From, To, n>{from, to + i / cols * to_stride}.store(i % cols, x);
    }
};

template <typename From, typename To>
weft_status cast_rows(weft_lane *lane, const weft_cast_args *args)
{
    constexpr int n = WIDTH < From >> WIDTH<To> ? WIDTH<From> : WIDTH<To>;
    const From *from = static_cast<const From *>(args->from);
    To *to = static_cast<To *>(args->to);
    const size_t cols = args->count, from_stride = args->from_stride, to_stride = args->to_stride;
    const bool aligned = is_aligned(n * sizeof(From), from) && is_aligned(n * sizeof(To), to) &&
                         (cols | from_stride | to_stride) % n == 0;
    return launch_each(lane, args->rows * cols, aligned,
                       cast_rows_op<From, To, n>{from, to, cols, from_stride, to_stride},
                       cast_rows_op<From, To, 1>{from, to, cols, from_stride, to_stride});
}

template <typename From, typename To> weft_status cast(weft_lane *lane, const weft_cast_args *args)
{
    if (args->rows > 0)
        return cast_rows<From, To>(lane, args);
    constexpr int n = WIDTH < From >> WIDTH<To> ? WIDTH<From> : WIDTH<To>;
    const From *from = static_cast<const From *>(args->from);
    To *to = static_cast<To *>(args->to);
    const bool aligned = is_aligned(n * sizeof(From), from) && is_aligned(n * sizeof(To), to);
    return launch_each(lane, args->count, aligned, cast_op<From, To, n>{from, to},
                       cast_op<From, To, 1>{from, to});
}

template <typename From> weft_status cast_from(weft_lane *lane, const weft_cast_args *args)
{
    return WITH_DTYPE(args->to_dtype, (cast<From, T>(lane, args)));
}

/* `base`: the draw of element 0; where n is 4 or more a multiple of 4, so that packs are whole
 * blocks of draws. With an index, rows have draws of their own. */
template <typename T, int n, bool has_residual> struct dropout_op {
    static constexpr int width = n;
    struct operands {
        pack<T, n> x, residual;
    };
    const T *x, *residual;
    T *y;
    uint64_t seed, stream, base;
    uint32_t keep_from;
    float factor;
    const int32_t *index;
    uint64_t first_row;
    size_t cols, batch;

    __device__ uint64_t draw_of(size_t i) const
    {
        if (!index)
            return base + i;
        const uint64_t row = first_row + i / cols;
        return (uint64_t(index[row / batch]) * batch + row % batch) * cols + i % cols;
    }
    __device__ operands load(size_t i) const
    {
        operands loaded;
        loaded.x = load_pack<n>(x + i);
        if (has_residual)
            loaded.residual = load_pack<n>(residual + i);
        return loaded;
    }
    __device__ void store(size_t i, operands loaded) const
    {
        uint32_t words[4];
        const uint64_t start = draw_of(i);
#pragma unroll
        for (int k = 0; k < n; k++) {
            const uint64_t draw = start + k;
            if (k % 4 == 0)
                random_block(seed, stream, draw / 4, words);
            const uint32_t word = n > 1 ? words[k % 4] : words[draw % 4];
            float kept = word >> 8 >= keep_from ? to_float(loaded.x.at[k]) * factor : 0.0f;
            if (has_residual)
                kept += to_float(loaded.residual.at[k]);
            loaded.x.at[k] = from_float<T>(kept);
        }
        store_pack(y + i, loaded.x);
    }
};

template <typename T, bool has_residual>
weft_status dropout_form(weft_lane *lane, const weft_dropout_args *args)
{
    if (args->rows == 0 || args->cols == 0)
        return WEFT_OK;
    const int32_t *index = args->index;
    if (index)
        WEFT_TRY(bring_near(lane, 0, size_t(args->first_row + args->rows - 1) / args->batch + 1,
                            &index));
    const dropout_op<T, WIDTH<T>, has_residual> wide = {static_cast<const T *>(args->x),
                                                        static_cast<const T *>(args->residual),
                                                        static_cast<T *>(args->y),
                                                        args->seed,
                                                        args->stream,
                                                        args->first_row * uint64_t(args->cols),
                                                        keep_from(args->p),
                                                        1.0f / (1.0f - args->p),
                                                        index,
                                                        args->first_row,
                                                        args->cols,
                                                        args->batch};
    const dropout_op<T, 1, has_residual> narrow = {
        wide.x,         wide.residual, wide.y,     wide.seed,      wide.stream, wide.base,
        wide.keep_from, wide.factor,   wide.index, wide.first_row, wide.cols,   wide.batch};
    const bool aligned = is_aligned(16, wide.x, wide.residual, wide.y) &&
                         (index ? args->cols % WIDTH<T> == 0 : wide.base % 4 == 0);
    return launch_each(lane, args->rows * args->cols, aligned, wide, narrow);
}

template <typename T> weft_status dropout(weft_lane *lane, const weft_dropout_args *args)
{
    return args->residual ? dropout_form<T, true>(lane, args) : dropout_form<T, false>(lane, args);
}

} // namespace

weft_status weft_cuda_add(weft_lane *lane, const weft_add_args *args)
{
    return WITH_DTYPE(args->dtype, add<T>(lane, args));
}

weft_status weft_cuda_scale(weft_lane *lane, const weft_scale_args *args)
{
    return WITH_DTYPE(args->dtype, scale<T>(lane, args));
}

weft_status weft_cuda_cast(weft_lane *lane, const weft_cast_args *args)
{
    if (args->from_dtype == args->to_dtype && args->rows == 0)
        return weft_lane_copy(lane, args->to, args->from,
                              args->count * weft_dtype_bytes(args->to_dtype));
    return WITH_DTYPE(args->from_dtype, cast_from<T>(lane, args));
}

weft_status weft_cuda_dropout(weft_lane *lane, const weft_dropout_args *args)
{
    return WITH_DTYPE(args->dtype, dropout<T>(lane, args));
}
