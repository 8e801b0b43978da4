#include "kernels/cpu/cpu.h"

#include "kernels/cpu/vector_math.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

/* A register's worth of floats. */
#if defined(__AVX512F__)
typedef __m512 lanes;

WEFT_INLINE lanes all(float x)
{
    return _mm512_set1_ps(x);
}

WEFT_INLINE lanes multiply_add(lanes x, lanes a, lanes b)
{
    return _mm512_fmadd_ps(x, a, b);
}

WEFT_INLINE void store(float *to, lanes x)
{
    _mm512_storeu_ps(to, x);
}
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 lanes;

WEFT_INLINE lanes all(float x)
{
    return _mm256_set1_ps(x);
}

WEFT_INLINE lanes multiply_add(lanes x, lanes a, lanes b)
{
    return _mm256_fmadd_ps(x, a, b);
}

WEFT_INLINE void store(float *to, lanes x)
{
    _mm256_storeu_ps(to, x);
}
#else
typedef struct lanes {
    float at[4];
} lanes;

WEFT_INLINE lanes all(float x)
{
    return (lanes){{x, x, x, x}};
}

WEFT_INLINE lanes multiply_add(lanes x, lanes a, lanes b)
{
    for (int i = 0; i < 4; i++)
        x.at[i] = x.at[i] * a.at[i] + b.at[i];
    return x;
}

WEFT_INLINE void store(float *to, lanes x)
{
    for (int i = 0; i < 4; i++)
        to[i] = x.at[i];
}
#endif

enum { WIDTH = sizeof(lanes) / sizeof(float) };

/* Chains enough that none waits for itself: two units, each with four or five operations under way.
 */
weft_status WEFT_VECTOR(multiply_add)(const weft_multiply_add_args *args)
{
    const lanes a = all(args->a), b = all(args->b);
    lanes x[WEFT_MULTIPLY_ADD_CHAINS];
    for (int i = 0; i < WEFT_MULTIPLY_ADD_CHAINS; i++)
        x[i] = all((float)i);
    for (size_t round = 0; round < args->rounds; round++)
        for (int i = 0; i < WEFT_MULTIPLY_ADD_CHAINS; i++)
            x[i] = multiply_add(x[i], a, b);
    float out[WIDTH];
    for (int i = 0; i < WEFT_MULTIPLY_ADD_CHAINS; i++) {
        store(out, x[i]);
        args->x[i] = out[WIDTH - 1];
    }
    *args->flops = 2.0 * (double)args->rounds * WEFT_MULTIPLY_ADD_CHAINS * WIDTH;
    return WEFT_OK;
}
