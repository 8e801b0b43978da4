#include "kernels/reorder.h"

#include <string.h>

static weft_status reorder(const void *raw)
{
    const weft_reorder_args *a = raw;
    for (size_t i = 0; i < a->num_rows; i++)
        a->scratch[i] = a->token_of[i];
    for (size_t i = 0; i < a->num_rows; i++)
        if (a->to[i] >= 0)
            a->token_of[a->to[i]] = a->scratch[i];
    for (size_t i = 0; i < a->num_choices; i++)
        if (a->row_of[i] >= 0)
            a->row_of[i] = a->to[a->row_of[i]];
    return WEFT_OK;
}

weft_status weft_reorder(weft_lane *lane, const weft_reorder_args *args)
{
    if (args->num_rows > args->num_choices)
        return WEFT_ERROR(WEFT_INTERNAL, "reorder: %zu rows of %zu choices", args->num_rows,
                          args->num_choices);
#ifdef WEFT_HAS_CUDA
    if (strcmp(weft_device_name(weft_lane_device(lane)), "cuda") == 0)
        return weft_cuda_reorder(lane, args);
#endif
    return weft_lane_submit(lane, "reorder", reorder, args, sizeof *args);
}
