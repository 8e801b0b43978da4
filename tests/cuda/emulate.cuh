/* CUDA C++ for kernels that are compiled as plain C++ and run on the CPU (emulate_block.h): the
 * built-in variables, functions and qualifiers that the project's kernels use. The build includes
 * it before every CUDA source. Of the toolkit's own headers it keeps types, host functions and the
 * arithmetic of half precision. Nothing here knows the kernels.
 */
#ifndef WEFT_TESTS_CUDA_EMULATE_CUH
#define WEFT_TESTS_CUDA_EMULATE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <new>
#include <stdlib.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/cuda/emulate_block.h"

#undef __shared__
/* Variables of such a section can be found, and so filled with NaN before each block. */
#ifdef __clang__
#define __shared__ static __attribute__((section("weft_shared")))
#else
#define __shared__ static __attribute__((noinit))
#endif
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#define threadIdx (weft_emulate_here.thread_index)
#define blockIdx (weft_emulate_here.block_index)
#define blockDim (weft_emulate_here.block)
#define gridDim (weft_emulate_here.grid)
constexpr int warpSize = 32;

#define WEFT_DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(weft_emulate_shared())

/* As CUDA's launches tell of errors, so do these: an earlier one that nobody asked for is reported
 * too. */
#define WEFT_LAUNCH(kernel, blocks, threads, shared, stream, ...)                                  \
    (static_cast<void>(                                                                            \
         emulate_launch(#kernel, kernel, (blocks), (threads), (shared), (stream), ##__VA_ARGS__)), \
     weft_cuda_status(__FILE__, __LINE__, __func__, #kernel, cudaGetLastError()))

template <typename T> struct emulate_same {
    using type = T;
};

/* A pointer among a kernel's arguments, NULL for anything else. */
template <typename T> const void *emulate_pointer(const T &argument)
{
    if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>)
        return const_cast<const void *>(static_cast<const volatile void *>(argument));
    else
        return static_cast<void>(argument), nullptr;
}

template <typename... P>
cudaError_t emulate_launch(const char *name, void (*kernel)(P...), dim3 blocks, dim3 threads,
                           size_t shared_bytes, cudaStream_t stream,
                           typename emulate_same<P>::type... arguments)
{
    struct call {
        void (*kernel)(P...);
        std::tuple<P...> arguments;
    };
    static_assert((std::is_trivially_copyable_v<P> && ...), "a kernel's arguments are copied");
    const void *pointers[] = {emulate_pointer(arguments)..., nullptr};
    const call made{kernel, {arguments...}};
    return weft_emulate_launch(
        name, reinterpret_cast<const void *>(kernel), blocks, threads, shared_bytes, stream,
        [](const void *self) {
            const call *c = static_cast<const call *>(self);
            std::apply(c->kernel, c->arguments);
        },
        &made, sizeof made, pointers, static_cast<int>(sizeof...(P)));
}

/* The toolkit has this for nvcc only. */
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

/* Barriers. */
static inline void __syncthreads()
{
    weft_emulate_barrier();
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    weft_emulate_warp(WEFT_EMULATE_SYNC, mask, 0, 0);
}

/* Shuffles. `width` parts the warp into groups of lanes that exchange among themselves. */
static inline unsigned emulate_lane()
{
    const unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return linear % 32;
}
template <typename T> T emulate_shuffle(unsigned mask, T value, unsigned source)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = weft_emulate_warp(WEFT_EMULATE_SHUFFLE, mask, bits, source);
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}
template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    const unsigned lane = emulate_lane(), w = static_cast<unsigned>(width);
    return emulate_shuffle(mask, value, lane / w * w + static_cast<unsigned>(source) % w);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32)
{
    const unsigned lane = emulate_lane(), w = static_cast<unsigned>(width);
    const unsigned source = lane ^ static_cast<unsigned>(bits);
    return emulate_shuffle(mask, value, source < lane / w * w + w ? source : lane);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const unsigned lane = emulate_lane(), w = static_cast<unsigned>(width);
    return emulate_shuffle(mask, value, lane % w >= delta ? lane - delta : lane);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    const unsigned lane = emulate_lane(), w = static_cast<unsigned>(width);
    return emulate_shuffle(mask, value, lane % w + delta < w ? lane + delta : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    return static_cast<unsigned>(weft_emulate_warp(WEFT_EMULATE_BALLOT, mask, predicate != 0, 0));
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

/* For instructions that a whole warp executes on its registers together (mma.cuh): `meaning` runs
 * once a lane, with an array of the 32 lanes' `mine` that may be read, before any lane goes on:
 *     emulate_warp(registers, [&](const auto *const *lanes) { out = ... lanes[l]->a[0] ...; }); */
template <typename Registers, typename F> void emulate_warp(const Registers &mine, F meaning)
{
    /* Two places, in turn: lanes may read one still while others come with what is next. */
    static Registers places[2][1024];
    static bool turns[1024];
    const unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    Registers *place = &places[turns[linear]][linear];
    turns[linear] = !turns[linear];
    *place = mine;
    weft_emulate_warp(WEFT_EMULATE_PUBLISH, 0xffffffffu, reinterpret_cast<uint64_t>(place), 0);
    const Registers *lanes[32];
    memcpy(lanes, weft_emulate_published(), sizeof lanes);
    meaning(static_cast<const Registers *const *>(lanes));
}

/* Atomics: other kernels and the host may use the same memory, fibers cannot interrupt each other.
 */
template <typename T> T emulate_replace(T *address, T old, T value)
{
    __atomic_store(address, &value, __ATOMIC_RELAXED);
    return old;
}
template <typename T> T emulate_load(const T *address)
{
    T value;
    __atomic_load(const_cast<T *>(address), &value, __ATOMIC_RELAXED);
    return value;
}
template <typename T> T atomicAdd(T *address, typename emulate_same<T>::type value)
{
    if constexpr (std::is_integral_v<T>) {
        return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
    } else {
        const T old = emulate_load(address);
        return emulate_replace(address, old, static_cast<T>(old + value));
    }
}
template <typename T> T atomicMin(T *address, typename emulate_same<T>::type value)
{
    const T old = emulate_load(address);
    return emulate_replace(address, old, old < value ? old : value);
}

/* Integers. */
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* The common type's smaller and larger one; of floats, the number where one is NaN. */
template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    const T x = static_cast<T>(a), y = static_cast<T>(b);
    if constexpr (std::is_floating_point_v<T>)
        return x != x ? y : y < x ? y : x;
    else
        return y < x ? y : x;
}
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    const T x = static_cast<T>(a), y = static_cast<T>(b);
    if constexpr (std::is_floating_point_v<T>)
        return x != x ? y : x < y ? y : x;
    else
        return x < y ? y : x;
}

/* Bits. */
template <typename To, typename From> static inline To emulate_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x)
{
    return emulate_bits<unsigned>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emulate_bits<float>(x);
}

/* Functions of floats: CUDA's fast ones are exact here. glibc has a function of this name itself.
 */
#define __expf expf
static inline float __fdividef(float x, float y)
{
    return x / y;
}

/* Stores that hint at the caches. */
template <typename T> void __stcg(T *address, typename emulate_same<T>::type value)
{
    *address = value;
}

#endif
