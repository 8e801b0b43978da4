/* Products in chunks of layers that need tokens' order inside, as attention does: what is inside is
 * copied from gathered rows' order into tokens' order or back, chunk by chunk, and is narrow, being
 * split over the ranks. Private to layers/. */
#ifndef WEFT_LAYERS_TENSOR_ORDERED_H
#define WEFT_LAYERS_TENSOR_ORDERED_H

#include "layers/linear.h"
#include "layers/tensor/tensor.h"

enum { WEFT_ORDERED_LINEARS = 2 };
typedef struct weft_ordered {
    weft_chunks chunks;
    /* The second one's columns follow the first one's in a row inside; NULL: there is one. */
    const weft_linear *linears[WEFT_ORDERED_LINEARS];
    const char *name; /* static: of what travels */
} weft_ordered;

/* All are collective over tp, and take scratch. Forward of products split by outputs, whose rows
 * are gathered (under sequence parallelism alone): y in tokens' order from x, this rank's rows. */
weft_status weft_ordered_enter_forward(const weft_ordered *ordered, weft_pass *pass,
                                       const weft_tensor *x, const weft_tensor *y) WEFT_CHECKED;
/* Forward of one split by inputs, whose partial sums are reduced: y from x in tokens' order. */
weft_status weft_ordered_exit_forward(const weft_ordered *ordered, weft_pass *pass,
                                      const weft_tensor *x, const weft_tensor *y) WEFT_CHECKED;
/* Backward of that one, under sequence parallelism alone: dx in tokens' order from dy, this rank's
 * rows. x NULL: the weights' gradients are left for later, and all of dy goes to `kept`, in tokens'
 * order. */
weft_status weft_ordered_enter_backward(const weft_ordered *ordered, weft_pass *pass,
                                        const weft_tensor *x, const weft_tensor *dy,
                                        const weft_tensor *kept,
                                        const weft_tensor *dx) WEFT_CHECKED;
/* Backward of the first: dx from dy in tokens' order; x is this rank's rows, or NULL, as above. */
weft_status weft_ordered_exit_backward(const weft_ordered *ordered, weft_pass *pass,
                                       const weft_tensor *x, const weft_tensor *dy,
                                       const weft_tensor *dx) WEFT_CHECKED;

#endif
