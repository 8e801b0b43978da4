#include "kernels/cuda/cuda.cuh"
#include "kernels/reorder.h"

constexpr unsigned THREADS = 256;

static __global__ void __launch_bounds__(THREADS) place_tokens(weft_reorder_args a)
{
    const size_t i = size_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < a.num_rows && a.to[i] >= 0)
        a.token_of[a.to[i]] = a.scratch[i];
    if (i < a.num_choices && a.row_of[i] >= 0)
        a.row_of[i] = a.to[a.row_of[i]];
}

weft_status weft_cuda_reorder(weft_lane *lane, const weft_reorder_args *args)
{
    if (args->num_choices == 0)
        return WEFT_OK;
    if (args->num_rows > 0)
        WEFT_TRY(weft_lane_copy(lane, args->scratch, args->token_of,
                                args->num_rows * sizeof *args->scratch));
    return WEFT_LAUNCH(place_tokens, num_blocks(args->num_choices, THREADS), THREADS, 0,
                       weft_cuda_stream(lane), *args);
}
