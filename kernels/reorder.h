/* A dispatch plan's rows in another order: a kernel of the library's own layers alone. */
#ifndef WEFT_KERNELS_REORDER_H
#define WEFT_KERNELS_REORDER_H

#include <weft/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Row i goes to to[i], which no other row goes to; or nowhere, -1. token_of[to[i]] = token_of[i],
 * and row_of follows. On a GPU all memory is the GPU's or pinned. */
typedef struct weft_reorder_args {
    size_t num_choices, num_rows; /* T * K; of those that have a row */
    const int32_t *to;            /* [num_rows], each less than num_choices */
    int32_t *row_of;              /* [num_choices] */
    int32_t *token_of;            /* [num_choices] */
    int32_t *scratch;             /* [num_rows] */
} weft_reorder_args;

/* Enqueued. */
weft_status weft_reorder(weft_lane *lane, const weft_reorder_args *args) WEFT_CHECKED;
/* Where CUDA is built in. */
weft_status weft_cuda_reorder(weft_lane *lane, const weft_reorder_args *args) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
