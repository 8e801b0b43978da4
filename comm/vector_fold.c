/* The loops of a fold. folder.cmake compiles them once for each instruction set, with WEFT_ISA
 * defined as its name. They work element by element, so all variants give the same bits. */
#include "comm/fold.h"

#include <string.h>

/* Accumulators live in blocks that stay in the first-level cache; this also lets the output be one
 * of the inputs. */
enum { BLOCK = 512, LINE_BYTES = 64 };

/* Asks for the block after the one at `at`, of every input: they lie in the memory or in the caches
 * of other cores, further away than the processor looks ahead by itself. */
static void prefetch_next(const void *const *inputs, int num_inputs, size_t at, size_t count,
                          size_t element)
{
    size_t rest = count - at, n = rest < BLOCK ? 0 : rest - BLOCK < BLOCK ? rest - BLOCK : BLOCK;
    for (int k = 0; k < num_inputs; k++) {
        const char *next = (const char *)inputs[k] + (at + BLOCK) * element;
        for (size_t i = 0; i < n * element; i += LINE_BYTES)
            __builtin_prefetch(next + i);
    }
}

/* Wrapping sums, without signed overflow. */
#define ADD_FLOAT(a, b) ((a) + (b))
#define ADD_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define ADD_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))

#define DEFINE_BLOCK(name, type, add)                                                              \
    static void block_##name(weft_reduce reduce, type *restrict acc, const type *restrict in,      \
                             size_t count)                                                         \
    {                                                                                              \
        if (reduce == WEFT_REDUCE_SUM)                                                             \
            for (size_t i = 0; i < count; i++)                                                     \
                acc[i] = add(acc[i], in[i]);                                                       \
        else if (reduce == WEFT_REDUCE_MAX)                                                        \
            for (size_t i = 0; i < count; i++)                                                     \
                acc[i] = in[i] > acc[i] || in[i] != in[i] ? in[i] : acc[i];                        \
        else                                                                                       \
            for (size_t i = 0; i < count; i++)                                                     \
                acc[i] = in[i] < acc[i] || in[i] != in[i] ? in[i] : acc[i];                        \
    }

DEFINE_BLOCK(f32, float, ADD_FLOAT)
DEFINE_BLOCK(f64, double, ADD_FLOAT)
DEFINE_BLOCK(i32, int32_t, ADD_I32)
DEFINE_BLOCK(i64, int64_t, ADD_I64)

#define DEFINE_FOLD(name, type)                                                                    \
    static void fold_##name(weft_reduce reduce, const void *const *inputs, int num_inputs,         \
                            type *out, size_t count)                                               \
    {                                                                                              \
        type acc[BLOCK];                                                                           \
        for (size_t at = 0; at < count; at += BLOCK) {                                             \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                    \
            prefetch_next(inputs, num_inputs, at, count, sizeof(type));                            \
            memcpy(acc, (const type *)inputs[0] + at, n * sizeof(type));                           \
            for (int k = 1; k < num_inputs; k++)                                                   \
                block_##name(reduce, acc, (const type *)inputs[k] + at, n);                        \
            memcpy(out + at, acc, n * sizeof(type));                                               \
        }                                                                                          \
    }

DEFINE_FOLD(f32, float)
DEFINE_FOLD(f64, double)
DEFINE_FOLD(i32, int32_t)
DEFINE_FOLD(i64, int64_t)

static void widen_bf16(const uint16_t *restrict in, float *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static void narrow_bf16(const float *restrict in, uint16_t *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t quiet_nan = (bits >> 16) | 0x40u;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : nearest);
    }
}

/* fp16's exponents lie 112 lower: a product moves them, which makes its subnormals normal. */
static void widen_f16(const uint16_t *restrict in, float *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = in[i] & 0x7fffu, shifted = magnitude << 13, bits;
        float moved;
        memcpy(&moved, &shifted, sizeof moved);
        moved *= 0x1p112f;
        memcpy(&bits, &moved, sizeof bits);
        bits = magnitude >= 0x7c00u ? shifted | 0x7f800000u : bits; /* infinite, or no number */
        bits |= (uint32_t)(in[i] & 0x8000u) << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

/* To nearest even. What is subnormal in fp16 is rounded by adding 0.5, whose last bit is fp16's
 * smallest number. */
static void narrow_f16(const float *restrict in, uint16_t *restrict out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits, small;
        memcpy(&bits, &in[i], sizeof bits);
        uint32_t magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
        float rounded;
        memcpy(&rounded, &magnitude, sizeof rounded);
        rounded += 0.5f;
        memcpy(&small, &rounded, sizeof small);
        uint32_t nearest = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        uint32_t normal = magnitude >= 0x47800000u || nearest > 0x7c00u ? 0x7c00u : nearest;
        uint32_t number = magnitude < 0x38800000u ? small - 0x3f000000u : normal;
        uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
        out[i] = (uint16_t)(sign | (magnitude > 0x7f800000u ? quiet_nan : number));
    }
}

#define DEFINE_NARROW_FOLD(name)                                                                   \
    static void fold_##name(weft_reduce reduce, const void *const *inputs, int num_inputs,         \
                            uint16_t *out, size_t count)                                           \
    {                                                                                              \
        float acc[BLOCK], in[BLOCK];                                                               \
        for (size_t at = 0; at < count; at += BLOCK) {                                             \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                    \
            prefetch_next(inputs, num_inputs, at, count, sizeof *out);                             \
            widen_##name((const uint16_t *)inputs[0] + at, acc, n);                                \
            for (int k = 1; k < num_inputs; k++) {                                                 \
                widen_##name((const uint16_t *)inputs[k] + at, in, n);                             \
                block_f32(reduce, acc, in, n);                                                     \
            }                                                                                      \
            narrow_##name(acc, out + at, n);                                                       \
        }                                                                                          \
    }

DEFINE_NARROW_FOLD(bf16)
DEFINE_NARROW_FOLD(f16)

#define JOIN_(name, isa) name##_##isa
#define JOIN(name, isa) JOIN_(name, isa)

void JOIN(weft_fold, WEFT_ISA)(weft_dtype dtype, weft_reduce reduce, const void *const *inputs,
                               int num_inputs, void *out, size_t count)
{
    switch (dtype) {
    case WEFT_F32:
        fold_f32(reduce, inputs, num_inputs, out, count);
        break;
    case WEFT_BF16:
        fold_bf16(reduce, inputs, num_inputs, out, count);
        break;
    case WEFT_F64:
        fold_f64(reduce, inputs, num_inputs, out, count);
        break;
    case WEFT_I32:
        fold_i32(reduce, inputs, num_inputs, out, count);
        break;
    case WEFT_I64:
        fold_i64(reduce, inputs, num_inputs, out, count);
        break;
    case WEFT_F16:
        fold_f16(reduce, inputs, num_inputs, out, count);
        break;
    case WEFT_U8:
        break; /* refused by the wrappers */
    }
}
