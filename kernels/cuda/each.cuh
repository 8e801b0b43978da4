/* Kernels that treat elements one by one. A load is 16 bytes of the narrowest operand, and each
 * thread has two under way; where operands are not aligned to it, a load is one element.
 *
 * What happens to an element is an operation: a struct with the operands' pointers,
 *
 *     template <typename T, int n> struct add_op {
 *         static constexpr int width = n;       // elements a load
 *         struct operands { pack<T, n> a, b; }; // what is loaded before anything is stored
 *         const T *a, *b;
 *         T *y;
 *         __device__ operands load(size_t i) const;         // elements i .. i + n - 1
 *         __device__ void store(size_t i, operands x) const;
 *     };
 *
 * Since all of an element's operands are loaded before its results are stored, operands may be the
 * same memory. */
#ifndef WEFT_KERNELS_CUDA_EACH_CUH
#define WEFT_KERNELS_CUDA_EACH_CUH

#include <string.h>

#include "kernels/cuda/cuda.cuh"

/* Elements of T in a load. */
template <typename T> constexpr int WIDTH = 16 / static_cast<int>(sizeof(T));

template <int n, typename T> static __device__ inline pack<T, n> load_pack(const T *from)
{
    return *reinterpret_cast<const pack<T, n> *>(from);
}

/* `bytes` bytes as integers. */
template <int bytes> struct raw {
    uint4 part[bytes / 16];
};
template <> struct raw<8> {
    uint2 part[1];
};
template <> struct raw<4> {
    uint32_t part[1];
};
template <> struct raw<2> {
    uint16_t part[1];
};

template <int n, typename T> static __device__ inline void store_pack(T *to, const pack<T, n> &x)
{
    /* As integers, each by one instruction: the compiler would split the store of a struct. */
    raw<sizeof x> bits;
    memcpy(&bits, &x, sizeof x);
    for (unsigned i = 0; i < sizeof bits / sizeof bits.part[0]; i++)
        __stcg(&reinterpret_cast<raw<sizeof x> *>(to)->part[i], bits.part[i]);
}

static inline bool is_aligned(size_t)
{
    return true;
}

/* Whether all pointers and numbers are multiples of `bytes`; NULL is one. */
template <typename P, typename... Rest>
static inline bool is_aligned(size_t bytes, P first, Rest... rest)
{
    return reinterpret_cast<uintptr_t>(first) % bytes == 0 && is_aligned(bytes, rest...);
}

constexpr unsigned EACH_THREADS = 256;
constexpr unsigned EACH_UNROLL = 2;

/* The operation on `num` packs from element `first` on. */
template <typename Op>
static __global__ void __launch_bounds__(EACH_THREADS) each(Op op, size_t first, size_t num)
{
    const size_t start = size_t(blockIdx.x) * EACH_UNROLL * EACH_THREADS + threadIdx.x;
    typename Op::operands x[EACH_UNROLL];
#pragma unroll
    for (unsigned u = 0; u < EACH_UNROLL; u++)
        if (start + u * EACH_THREADS < num)
            x[u] = op.load(first + (start + u * EACH_THREADS) * Op::width);
#pragma unroll
    for (unsigned u = 0; u < EACH_UNROLL; u++)
        if (start + u * EACH_THREADS < num)
            op.store(first + (start + u * EACH_THREADS) * Op::width, x[u]);
}

/* Enqueues the operation on `count` elements: where `aligned`, `wide` for all whole packs, and
 * `narrow`, of one element, for the rest. */
template <typename Wide, typename Narrow>
static weft_status launch_each(weft_lane *lane, size_t count, bool aligned, Wide wide,
                               Narrow narrow)
{
    cudaStream_t stream = weft_cuda_stream(lane);
    const size_t per_block = EACH_UNROLL * EACH_THREADS;
    const size_t packs = aligned ? count / Wide::width : 0, done = packs * Wide::width;
    if (packs > 0)
        WEFT_TRY(WEFT_LAUNCH(each<Wide>, num_blocks(packs, per_block), EACH_THREADS, 0, stream,
                             wide, size_t(0), packs));
    if (done < count)
        WEFT_TRY(WEFT_LAUNCH(each<Narrow>, num_blocks(count - done, per_block), EACH_THREADS, 0,
                             stream, narrow, done, count - done));
    return WEFT_OK;
}

#endif
