/* Normal numbers, bit for bit those of weft_rng_normal, so that a model starts the same on every
 * device.
 *
 * The device's logarithm and sine in fp64 are not the host's to the last bit. Rounded to fp32 they
 * are, except where the number is next to the middle of two floats: such numbers, one in some ten
 * thousand, are listed for the host, which takes them anew. */
#include <math.h>

#include "kernels/cuda/random.cuh"
extern "C" {
#include "core/rng.h"
}

namespace
{

constexpr unsigned THREADS = 256;
constexpr unsigned PIECE = 1 << 24; /* elements of a launch */
/* Relative: far above what two good libraries differ by. */
constexpr double UNSURE = 0x1p-38;
constexpr unsigned MAX_UNSURE = 1 << 14; /* in a piece: ten times as many as are expected */

struct unsure_number {
    uint64_t index; /* of the stream */
    uint32_t at;    /* in the piece */
    float normal;
};

struct unsure_list {
    unsigned count;
    unsure_number numbers[MAX_UNSURE];
};

struct piece {
    weft_random_normal_args args;
    size_t first; /* of the local elements */
    unsigned num;
    unsure_list *list;          /* of the device */
    const unsure_list *settled; /* of the host, pinned */
};

/* The element of the global tensor that local element i is; false in padding. */
__device__ bool find_global(const weft_random_normal_args &a, size_t i, uint64_t *out)
{
    uint64_t below = 1, global = 0; /* global elements below the dimension */
    for (int d = a.num_dims - 1; d >= 0; d--) {
        const size_t at = a.start[d] + i % a.local_dims[d];
        if (at >= a.global_dims[d])
            return false;
        global += below * at;
        below *= a.global_dims[d];
        i /= a.local_dims[d];
    }
    *out = global;
    return true;
}

template <typename T> __device__ T scaled(const weft_random_normal_args &a, float normal)
{
    return from_float<T>(float(double(a.mean) + double(a.std) * double(normal)));
}

template <typename T> __global__ void __launch_bounds__(THREADS) fill(piece p)
{
    const unsigned at = blockIdx.x * THREADS + threadIdx.x;
    uint64_t index;
    if (at >= p.num)
        return;
    T *x = static_cast<T *>(p.args.x) + p.first + at;
    if (!find_global(p.args, p.first + at, &index)) {
        *x = from_float<T>(0.0f);
        return;
    }
    uint32_t words[4];
    random_block(p.args.seed, p.args.stream, index / 4, words);
    const uint32_t first = index % 4 < 2 ? words[0] : words[2];
    const uint32_t second = index % 4 < 2 ? words[1] : words[3];
    const double radius = sqrt(-2.0 * log((double(first) + 1.0) * 0x1p-32));
    const double angle = 6.283185307179586476925286766559 * (double(second) * 0x1p-32);
    const double normal = radius * (index % 2 ? sin(angle) : cos(angle));
    *x = scaled<T>(p.args, float(normal));
    if (float(normal * (1.0 - UNSURE)) == float(normal * (1.0 + UNSURE)))
        return;
    const unsigned entry = atomicAdd(&p.list->count, 1u);
    if (entry < MAX_UNSURE) {
        p.list->numbers[entry].index = index;
        p.list->numbers[entry].at = at;
    }
}

struct settle_args {
    unsure_list *list;
    uint64_t seed, stream;
};

weft_status settle(const void *args)
{
    const settle_args *s = static_cast<const settle_args *>(args);
    if (s->list->count > MAX_UNSURE)
        return WEFT_ERROR(WEFT_INTERNAL, "%u of %u normal numbers are next to a middle",
                          s->list->count, PIECE);
    for (unsigned i = 0; i < s->list->count; i++)
        s->list->numbers[i].normal = weft_rng_normal(s->seed, s->stream, s->list->numbers[i].index);
    return WEFT_OK;
}

template <typename T> __global__ void __launch_bounds__(THREADS) put_settled(piece p)
{
    T *x = static_cast<T *>(p.args.x) + p.first;
    for (unsigned i = threadIdx.x; i < p.settled->count && i < MAX_UNSURE; i += THREADS)
        x[p.settled->numbers[i].at] = scaled<T>(p.args, p.settled->numbers[i].normal);
}

template <typename T>
weft_status random_normal(weft_lane *lane, const weft_random_normal_args *args, size_t count)
{
    cudaStream_t stream = weft_cuda_stream(lane);
    void *on_device, *on_host;
    WEFT_TRY(weft_cuda_workspace(lane, sizeof(unsure_list), &on_device));
    WEFT_TRY(weft_cuda_pinned_workspace(lane, sizeof(unsure_list), &on_host));
    piece p = {*args, 0, 0, static_cast<unsure_list *>(on_device),
               static_cast<const unsure_list *>(on_host)};
    const settle_args settling = {static_cast<unsure_list *>(on_host), args->seed, args->stream};
    for (; p.first < count; p.first += PIECE) {
        p.num = static_cast<unsigned>(count - p.first < PIECE ? count - p.first : PIECE);
        WEFT_TRY(weft_lane_zero(lane, p.list, sizeof *p.list)); /* all of it is copied below */
        WEFT_TRY(WEFT_LAUNCH(fill<T>, num_blocks(p.num, THREADS), THREADS, 0, stream, p));
        WEFT_TRY(weft_lane_copy(lane, on_host, on_device, sizeof(unsure_list)));
        WEFT_TRY(weft_lane_submit(lane, "random normal", settle, &settling, sizeof settling));
        WEFT_TRY(WEFT_LAUNCH(put_settled<T>, 1, THREADS, 0, stream, p));
    }
    return WEFT_OK;
}

} // namespace

weft_status weft_cuda_random_normal(weft_lane *lane, const weft_random_normal_args *args)
{
    size_t count = 1;
    for (int d = 0; d < args->num_dims; d++)
        count *= args->local_dims[d];
    return WITH_DTYPE(args->dtype, random_normal<T>(lane, args, count));
}
