#include "kernels/cpu/cpu.h"

#include <math.h>

#include "core/rng.h"
#include "kernels/cpu/vector_math.h"

/* The normals of one Philox block: weft_rng_normal(seed, stream, 4 block + i), bit for bit, with
 * the logarithm and the angle that two of them share taken once. */
static void normals_of_block(uint64_t seed, uint64_t stream, uint64_t block, float out[4])
{
    const double two_pi = 6.283185307179586476925286766559;
    uint32_t words[4];
    weft_rng_block(seed, stream, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2.0 * log(((double)words[i] + 1.0) * 0x1p-32));
        double angle = two_pi * ((double)words[i + 1] * 0x1p-32);
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

/* Not compiled once an instruction set: parameters start equal bit for bit, also across nodes
 * with different processors. For the same reason the sum is taken in fp64, where the product is
 * exact and a fused multiply-add changes nothing. */
static void fill(const weft_random_normal_args *a, size_t local, uint64_t global, size_t num)
{
    float normals[4];
    for (size_t i = 0; i < num; i++) {
        const uint64_t index = global + i;
        if (i == 0 || index % 4 == 0)
            normals_of_block(a->seed, a->stream, index / 4, normals);
        double x = (double)a->mean + (double)a->std * (double)normals[index % 4];
        weft_vector_store(a->x, local + i, (float)x, a->dtype);
    }
}

static void zero(const weft_random_normal_args *a, size_t local, size_t num)
{
    memset(weft_vector_at(a->x, local, a->dtype), 0, num * weft_vector_bytes(a->dtype));
}

weft_status weft_cpu_random_normal(const weft_random_normal_args *args)
{
    const int last = args->num_dims - 1;
    const size_t cols = args->num_dims ? args->local_dims[last] : 1;
    size_t rows = 1;
    for (int d = 0; d < last; d++)
        rows *= args->local_dims[d];
    const size_t chunks = (cols + WEFT_VECTOR_CHUNK - 1) / WEFT_VECTOR_CHUNK;
#pragma omp parallel for schedule(static) if (rows * cols > WEFT_VECTOR_SERIAL)
    for (size_t piece = 0; piece < rows * chunks; piece++) {
        const size_t row = piece / chunks, first = piece % chunks * WEFT_VECTOR_CHUNK;
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, cols - first);
        /* This row's place in the global tensor, in elements, from the slowest dimension on. */
        uint64_t global = 0;
        size_t rest = row, below = rows;
        bool inside = true;
        for (int d = 0; d < last; d++) {
            below /= args->local_dims[d];
            size_t at = args->start[d] + rest / below;
            rest %= below;
            inside = inside && at < args->global_dims[d];
            global = global * args->global_dims[d] + at;
        }
        size_t valid = 0;
        if (inside && last < 0) {
            valid = num;
        } else if (inside && args->start[last] + first < args->global_dims[last]) {
            valid = weft_vector_min(num, args->global_dims[last] - args->start[last] - first);
            global = global * args->global_dims[last] + args->start[last] + first;
        }
        fill(args, row * cols + first, global, valid);
        zero(args, row * cols + first + valid, num - valid);
    }
    return WEFT_OK;
}
