/* What all attention kernels share (FlashAttention, Dao et al. 2022; FlashAttention-2, Dao 2023):
 * where rows stand, which keys a query sees, and dropout.
 *
 * A block owns some rows, of queries or (for gradients of keys and values) of keys, and goes over
 * tiles of the others. Tensor cores multiply 16-bit numbers (attention_tiles.cuh), but not fp32
 * (attention_plain.cuh). No float is added atomically and all loops have one order: every run gives
 * the same bits. */
#ifndef WEFT_KERNELS_CUDA_ATTENTION_CUH
#define WEFT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/random.cuh"
#include "kernels/flops.h"

constexpr float LOG2_E = 1.44269504088896340736f;

struct problem {
    weft_attention_shape s;
    int dim, value_dim;
    int heads_each; /* of a group */
    int seq_q, seq_k;
    int ahead; /* of key 0's position: query 0's; within -seq_q .. seq_k, which says the same */
    const int32_t *first_seen; /* or NULL */
    size_t first_key;
    int window_from; /* query 0's window begins at this key: within -seq_q .. seq_k, as ahead */
    int chunk;       /* 0: one */
    bool has_start;  /* some query may not see key 0 */
    float softcap;
    weft_attention_piece piece;
    size_t dq_token_stride, dq_group_stride, dk_token_stride, dk_group_stride; /* of a piece */
    float scale, kept_factor;
    uint32_t keep_from; /* a 24-bit number from here on keeps its element */
    bool is_aligned;    /* every row starts at, and holds, a multiple of 16 bytes */
    int heads_at_once;  /* how many heads' blocks run together (heads_at_once()) */
    bool is_even;       /* four keys from a multiple of 4 on share a block of random words */
};

/* Elements before query i of sample b and head h, and before key j of its group. */
static __device__ inline size_t query_at(const problem &p, int b, int h, int i)
{
    return (size_t(i) * p.s.batch + b) * p.s.q_token_stride +
           h / p.heads_each * p.s.q_group_stride + h % p.heads_each * size_t(p.dim);
}

static __device__ inline size_t key_at(const problem &p, int b, int g, int j)
{
    return (size_t(j) * p.s.batch + b) * p.s.k_token_stride + g * p.s.k_group_stride;
}

static __device__ inline size_t out_at(const problem &p, int b, int h, int i)
{
    return ((size_t(i) * p.s.batch + b) * p.s.heads + h) * p.value_dim;
}

static __device__ inline size_t stat_at(const problem &p, int b, int h, int i)
{
    return (size_t(b) * p.s.heads + h) * p.seq_q + i;
}

/* The rows of a head: row i stands at `at` + i * stride. */
template <typename T> struct rows {
    T *at;
    size_t stride;
};

template <typename T>
static __device__ inline rows<T> query_rows(const problem &p, T *q, int b, int h)
{
    return {q + query_at(p, b, h, 0), p.s.batch * p.s.q_token_stride};
}

template <typename T>
static __device__ inline rows<T> key_rows(const problem &p, T *k, int b, int g)
{
    return {k + key_at(p, b, g, 0), p.s.batch * p.s.k_token_stride};
}

template <typename T>
static __device__ inline rows<T> out_rows(const problem &p, T *x, int b, int h)
{
    return {x + out_at(p, b, h, 0), p.s.batch * p.s.heads * p.value_dim};
}

/* Results of a piece: fp32, whose rows are out's or have strides of their own. */
static __device__ inline rows<float> dq_rows(const problem &p, void *dq, int b, int h)
{
    float *at = static_cast<float *>(dq) + b * p.dq_token_stride +
                h / p.heads_each * p.dq_group_stride + h % p.heads_each * size_t(p.dim);
    return {at, p.s.batch * p.dq_token_stride};
}

static __device__ inline rows<float> dk_rows(const problem &p, void *dk, int b, int g)
{
    return {static_cast<float *>(dk) + b * p.dk_token_stride + g * p.dk_group_stride,
            p.s.batch * p.dk_token_stride};
}

/* The query sees the keys before this one. */
static __device__ inline int end_of_keys(const problem &p, int query)
{
    return p.s.causal ? max(0, min(p.seq_k, p.ahead + query + 1)) : p.seq_k;
}

/* And none before this one, which may lie behind the last. */
static __device__ inline int start_of_keys(const problem &p, int b, int query)
{
    if (!p.has_start || query >= p.seq_q)
        return 0;
    int start = max(0, p.window_from + query);
    if (p.chunk > 0) {
        const int position = int(p.s.first_query) + query;
        start = max(start, position - position % p.chunk - int(p.first_key));
    }
    return p.first_seen ? max(start, p.first_seen[size_t(query) * p.s.batch + b] - int(p.first_key))
                        : start;
}

/* The first query that sees the key; it may lie beyond the last one. */
static __device__ inline int first_to_see(const problem &p, int key)
{
    return p.s.causal ? max(0, key - p.ahead) : 0;
}

/* The query behind the last one whose window and chunk show the key. */
static __device__ inline int end_to_see(const problem &p, int key)
{
    int end = max(0, min(p.seq_q, key - p.window_from + 1));
    if (p.chunk > 0) {
        const int position = int(p.first_key) + key;
        end = min(end, max(0, position - position % p.chunk + p.chunk - int(p.s.first_query)));
    }
    return end;
}

/* c * tanh(x / c) of a scaled score; x is unscaled, and so is the result. */
static __device__ inline float capped(const problem &p, float x)
{
    return p.softcap > 0 ? p.softcap * tanhf(x * p.scale / p.softcap) / p.scale : x;
}

/* Its slope, by the result. */
static __device__ inline float slope_of_capped(const problem &p, float capped)
{
    const float t = p.softcap > 0 ? capped * p.scale / p.softcap : 0.0f;
    return 1.0f - t * t;
}

/* The element of the random stream that drops key 0 for query 0 of a head. */
static __device__ inline uint64_t first_element(const problem &p, int b, int h)
{
    const uint64_t head = (p.s.first_sample + b) * p.s.total_heads + p.s.first_head + h;
    return (head * p.s.total_seq + p.s.first_query) * p.s.total_seq + p.first_key;
}

static __device__ inline bool is_kept(const problem &p, uint64_t first, int query, int key)
{
    const uint64_t element = first + query * p.s.total_seq + key;
    uint32_t words[4];
    random_block(p.s.seed, p.s.stream, element / 4, words);
    const unsigned i = element % 4;
    const uint32_t word = i < 2 ? i == 0 ? words[0] : words[1] : i == 2 ? words[2] : words[3];
    return word >> 8 >= p.keep_from;
}

/* A block's head (or group) and tile of rows; tile 0 has the most work. The GPU starts blocks in
 * order. The blocks of a few heads come together, so that they find in the second-level cache what
 * others of their head have read. Among these, tiles with more work come first, so that no long one
 * is left for the end. */
struct block_place {
    int head, tile;
};

static __host__ __device__ inline block_place place_of_block(int block, int num_heads,
                                                             int num_tiles, int heads_at_once)
{
    const int together = heads_at_once * num_tiles, first = block / together * heads_at_once;
    const int left = num_heads - first, heads = left < heads_at_once ? left : heads_at_once;
    const int i = block % together;
    return {first + i % heads, i / heads};
}

/* How many heads run together: parts of about the same number of heads, each of which reads `bytes`
 * of rows. A part has at least a few hundred blocks, lest long ones wait for each other. */
static inline int heads_at_once(size_t num_heads, size_t num_tiles, size_t bytes)
{
    constexpr size_t cached_bytes = size_t(16) << 20, enough_blocks = 512;
    size_t most = cached_bytes / (bytes > 0 ? bytes : 1);
    if (most < enough_blocks / num_tiles + 1)
        most = enough_blocks / num_tiles + 1;
    const size_t parts = (num_heads + most - 1) / most;
    return int((num_heads + parts - 1) / parts);
}

/* Makes the problem from a call's shape. `operands`: all its matrices, for their alignment. */
template <typename... P>
static inline problem
make_problem(const weft_attention_shape &s, weft_dtype dtype, size_t first_key,
             const int32_t *first_seen, const weft_attention_variant &variant,
             weft_attention_piece piece, size_t value_dim, const P *...operands)
{
    problem p = {};
    p.s = s;
    p.first_key = first_key;
    p.first_seen = first_seen;
    p.piece = piece;
    p.dim = int(s.head_dim);
    p.value_dim = int(weft_value_dim(&s, value_dim));
    p.heads_each = int(s.heads / s.groups);
    p.seq_q = int(s.seq_q);
    p.seq_k = int(s.seq_k);
    const ptrdiff_t ahead = ptrdiff_t(s.first_query) - ptrdiff_t(first_key);
    const ptrdiff_t least = -ptrdiff_t(s.seq_q), most = ptrdiff_t(s.seq_k);
    p.ahead = int(ahead < least ? least : ahead > most ? most : ahead);
    const ptrdiff_t from = variant.window > 0 ? ahead + 1 - ptrdiff_t(variant.window) : least;
    p.window_from = int(from < least ? least : from > most ? most : from);
    p.chunk = int(variant.chunk < INT32_MAX / 4 ? variant.chunk : 0);
    p.softcap = variant.softcap;
    p.has_start = first_seen || variant.window > 0 || p.chunk > 0;
    p.scale = s.scale != 0 ? s.scale : 1.0f / sqrtf(float(s.head_dim));
    p.kept_factor = 1.0f / (1.0f - s.dropout);
    p.keep_from = keep_from(s.dropout);
    p.is_even = s.total_seq % 4 == 0 && first_key % 4 == 0;
    size_t odd =
        s.head_dim | s.q_token_stride | s.q_group_stride | s.k_token_stride | s.k_group_stride;
    odd |= size_t(p.value_dim);
    odd *= weft_dtype_bytes(dtype);
    ((odd |= reinterpret_cast<uintptr_t>(operands)), ...);
    p.is_aligned = odd % 16 == 0;
    return p;
}

constexpr int MAX_COLUMNS = WEFT_CUDA_MAX_HEAD_DIM;

static inline weft_status check_problem(const problem &p)
{
    if (p.s.head_dim > MAX_COLUMNS || p.value_dim > MAX_COLUMNS)
        return WEFT_ERROR(WEFT_CONFIG, "attention: head_dim %zu, of values %d, on CUDA at most %d",
                          p.s.head_dim, p.value_dim, MAX_COLUMNS);
    if (!(p.scale > 0))
        return WEFT_ERROR(WEFT_INTERNAL, "attention: on CUDA scale must be positive, is %g",
                          double(p.scale));
    const size_t num_heads = p.s.batch * p.s.heads;
    if ((p.s.seq_q | p.s.seq_k | num_heads) > INT32_MAX / 2 ||
        p.first_key + p.s.seq_k > INT32_MAX / 2 || p.s.first_query + p.s.seq_q > INT32_MAX / 2 ||
        p.s.seq_q * num_heads > INT32_MAX / 2)
        return WEFT_ERROR(WEFT_INTERNAL, "attention: more than 2^30 of something");
    return WEFT_OK;
}

/* Launches a kernel with `shared` bytes of dynamic shared memory, which it first asks CUDA for. */
#define LAUNCH_WITH_SHARED(kernel, blocks, threads, shared, stream, ...)                           \
    ([&]() -> weft_status {                                                                        \
        WEFT_TRY(WEFT_CUDA(cudaFuncSetAttribute(                                                   \
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared))));                   \
        return WEFT_LAUNCH((kernel), blocks, threads, shared, stream, __VA_ARGS__);                \
    }())

/* Runs `call` with COLUMNS bound to the padded length of a row of a query, and VALUES to that of a
 * value, which is no longer. */
#define WITH_COLUMNS(p, call)                                                                      \
    ([&]() -> weft_status {                                                                        \
        const int longest = (p).dim > (p).value_dim ? (p).dim : (p).value_dim;                     \
        if (longest <= 64) {                                                                       \
            constexpr int COLUMNS = 64, VALUES = 64;                                               \
            return call;                                                                           \
        }                                                                                          \
        if (longest <= 128) {                                                                      \
            constexpr int COLUMNS = 128, VALUES = 128;                                             \
            return call;                                                                           \
        }                                                                                          \
        if ((p).value_dim <= 128) {                                                                \
            constexpr int COLUMNS = MAX_COLUMNS, VALUES = 128;                                     \
            return call;                                                                           \
        }                                                                                          \
        constexpr int COLUMNS = MAX_COLUMNS, VALUES = MAX_COLUMNS;                                 \
        return call;                                                                               \
    }())

#endif
