/* Instructions that C++ has no words for: a warp's products of 16-bit matrices, loads of their
 * fragments, copies into shared memory that bypass the registers, and powers of two.
 *
 * A fragment is a matrix in the registers of a warp, as the PTX ISA lays it out ("Matrix fragments
 * for mma.m16n8k16"). Thread t of the warp, with row = t / 4 and column = 2 (t % 4), has
 *   A [16, 16], four registers of two neighbours in a row: (row, column), (row + 8, column),
 *               (row, column + 8), (row + 8, column + 8);
 *   B [16, 8],  two registers of two neighbours in a column: (column, row), (column + 8, row);
 *   C [16, 8],  four floats: (row, column), (row, column + 1), and both in row + 8.
 * So two C side by side, rounded to 16 bits, are an A.
 *
 * Each instruction stands here twice: as PTX, and as C++ with the same meaning, which the emulation
 * runs. */
#ifndef WEFT_KERNELS_CUDA_MMA_CUH
#define WEFT_KERNELS_CUDA_MMA_CUH

#include <string.h>

#include "kernels/cuda/cuda.cuh"

static __device__ inline unsigned warp_thread()
{
    return threadIdx.x % WARP;
}

/* Two numbers, rounded, in one register: the first in its lower half. */
template <typename T> static __device__ inline uint32_t pack_pair(float first, float second);
template <> __device__ inline uint32_t pack_pair<__nv_bfloat16>(float first, float second)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
template <> __device__ inline uint32_t pack_pair<__half>(float first, float second)
{
    const __half2 pair = __floats2half2_rn(first, second);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

#ifndef WEFT_CUDA_EMULATED

static __device__ inline uint32_t shared_address(const void *shared)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/* C += A B. */
template <typename T>
static __device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void mma<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices [8, 8] of 16-bit numbers: thread t names row t % 8 of matrix t / 8, eight numbers
 * in shared memory, and receives of each matrix the numbers (t / 4, 2 (t % 4)) and next to it. */
static __device__ inline void load_matrices(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/* The same of the matrices' transposes: the numbers (2 (t % 4), t / 4) and below it. */
static __device__ inline void load_matrices_transposed(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Begin to copy 16 bytes (4 bytes) to shared memory, or zeros where `is_there` is false and `from`
 * is not read; both addresses are aligned to as many. */
static __device__ inline void copy_16_bytes(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}
static __device__ inline void copy_4_bytes(void *to, const void *from, bool is_there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(is_there ? 4 : 0)
                 : "memory");
}
/* Until this thread's copies are there; others see them after a barrier. */
static __device__ inline void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 2^x, relative error about 2^-22; results below 2^-126 are 0. */
static __device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else
/* Number `index` (0 or 1) of the two in a register. */
template <typename T> static inline float unpack(uint32_t pair, int index)
{
    const uint16_t bits = static_cast<uint16_t>(pair >> 16 * index);
    T x;
    memcpy(static_cast<void *>(&x), &bits, sizeof bits);
    return to_float(x);
}

/* C += A B. */
template <typename T>
static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    struct registers {
        float a[4][2], b[2][2];
    } mine;
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 4; j++)
            mine.a[j][i] = unpack<T>(a[j], i);
        mine.b[0][i] = unpack<T>(b0, i);
        mine.b[1][i] = unpack<T>(b1, i);
    }
    const unsigned row = warp_thread() / 4, column = warp_thread() % 4 * 2;
    emulate_warp(mine, [&](const registers *const *threads) {
        for (unsigned k = 0; k < 16; k += 2) {
            const registers &left = *threads[row * 4 + k % 8 / 2];
            for (unsigned e = 0; e < 4; e++) {
                const float *x = left.a[e / 2 + k / 8 * 2];
                const float *y = threads[(column + e % 2) * 4 + k % 8 / 2]->b[k / 8];
                c[e] += x[0] * y[0] + x[1] * y[1];
            }
        }
    });
}

/* Four matrices [8, 8] of 16-bit numbers: thread t names row t % 8 of matrix t / 8, eight numbers
 * in shared memory, and receives of each matrix the numbers (t / 4, 2 (t % 4)) and next to it. */
static inline void load_matrices(uint32_t (&to)[4], const void *row)
{
    const unsigned t = warp_thread();
    const char *mine = static_cast<const char *>(row);
    emulate_warp(mine, [&](const char *const *const *rows) {
        for (unsigned i = 0; i < 4; i++)
            memcpy(&to[i], *rows[8 * i + t / 4] + t % 4 * 4, 4);
    });
}
/* The same of the matrices' transposes: the numbers (2 (t % 4), t / 4) and below it. */
static inline void load_matrices_transposed(uint32_t (&to)[4], const void *row)
{
    const unsigned t = warp_thread();
    const char *mine = static_cast<const char *>(row);
    emulate_warp(mine, [&](const char *const *const *rows) {
        for (unsigned i = 0; i < 4; i++)
            for (unsigned j = 0; j < 2; j++)
                memcpy(reinterpret_cast<char *>(&to[i]) + 2 * j,
                       *rows[8 * i + t % 4 * 2 + j] + t / 4 * 2, 2);
    });
}

/* Begin to copy 16 bytes (4 bytes) to shared memory, or zeros where `is_there` is false and `from`
 * is not read; both addresses are aligned to as many. */
static inline void copy_16_bytes(void *to, const void *from, bool is_there)
{
    weft_emulate_copy_async(to, from, 16, is_there ? 16 : 0);
}
static inline void copy_4_bytes(void *to, const void *from, bool is_there)
{
    weft_emulate_copy_async(to, from, 4, is_there ? 4 : 0);
}
/* Until this thread's copies are there; others see them after a barrier. */
static inline void wait_for_copies()
{
    weft_emulate_copy_commit();
    weft_emulate_copy_wait(0);
}

/* 2^x, relative error about 2^-22; results below 2^-126 are 0. */
static inline float power_of_two(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
#endif
#endif
