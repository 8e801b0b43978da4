/* Products in chunks of layers that need tokens' order inside, as attention does: what is inside is
 * copied from gathered rows' order into tokens' order or back, chunk by chunk, and is narrow, being
 * split over the ranks. Private to layers/. */
#ifndef WEFT_LAYERS_TENSOR_ORDERED_H
#define WEFT_LAYERS_TENSOR_ORDERED_H

#include "layers/linear.h"
#include "layers/tensor/tensor.h"

enum { WEFT_ORDERED_LINEARS = 2 };
/* A product whose program's tasks are enqueued; the layer's state keeps it in place. */
typedef struct weft_ordered {
    weft_tensor_call call;
    /* The second one's columns follow the first one's in a row inside; NULL: there is one. */
    const weft_linear *linears[WEFT_ORDERED_LINEARS];
    weft_tensor inside; /* in tokens' order */
    weft_tensor moved;  /* the same in gathered rows' order, or the same tensor */
    weft_tensor x;      /* of weights' gradients: the product's input */
    bool with_bias;
} weft_ordered;
/* second: NULL, or it has no weight: there is none. */
void weft_ordered_begin(weft_ordered *ordered, const weft_chunks *chunks, const weft_linear *first,
                        const weft_linear *second);

/* All ready the product behind weft_ordered_begin, and take scratch, which stays until its program
 * has been enqueued. Forward of products split by outputs, whose rows are gathered (under sequence
 * parallelism alone; WEFT_CUT_ENTER): y in tokens' order from x, this rank's rows. */
weft_status weft_ordered_enter_forward(weft_ordered *ordered, weft_pass *pass, const weft_tensor *x,
                                       const weft_tensor *y) WEFT_CHECKED;
/* Forward of one split by inputs, whose partial sums are reduced (WEFT_CUT_EXIT): y from x in
 * tokens' order. */
weft_status weft_ordered_exit_forward(weft_ordered *ordered, weft_pass *pass, const weft_tensor *x,
                                      const weft_tensor *y) WEFT_CHECKED;
/* Backward of that one, under sequence parallelism alone: dx in tokens' order from dy, this rank's
 * rows. x NULL: the weights' gradients are left for later (WEFT_CUT_ENTER_BACK). */
weft_status weft_ordered_enter_backward(weft_ordered *ordered, weft_pass *pass,
                                        const weft_tensor *x, const weft_tensor *dy,
                                        const weft_tensor *dx) WEFT_CHECKED;
/* Behind that program: all of dy in tokens' order. */
weft_status weft_ordered_keep(const weft_ordered *ordered, weft_pass *pass,
                              const weft_tensor *kept) WEFT_CHECKED;
/* Backward of the first: dx from dy in tokens' order; x is this rank's rows, or NULL, as above. */
weft_status weft_ordered_exit_backward(weft_ordered *ordered, weft_pass *pass, const weft_tensor *x,
                                       const weft_tensor *dy, const weft_tensor *dx) WEFT_CHECKED;

#endif
