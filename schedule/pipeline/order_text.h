/* An order as text: PyTorch's CSV of a pipeline schedule. A row a rank, a cell a task, such as 0F0
 * or 2B3: virtual stage, kind, micro-batch. Empty cells mean nothing.
 *
 * F is a forward, I the input's gradient, W the weights'. B is a whole backward, but of a stage and
 * micro-batch that has a W and no I the input's half: PyTorch's own files write both. BW is a whole
 * backward. (0F7;7B3)OVERLAP_F_B is a pair. Cells of messages and shards (0SEND_F0, 0UNSHARD) are
 * read over: the lowering makes messages itself. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_TEXT_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_TEXT_H

#include <stdio.h>

#include "schedule/pipeline/order.h"

/* Whether the text's lines have the stages of a V; of a loop where both are the same. */
bool weft_order_text_is_v(const char *text, int num_ranks);
/* Reads a CSV file's text. Every forward and backward must stand there once, on its rank, a
 * backward behind its forward, weights' gradients behind their input's, and no ranks may wait for
 * each other in a circle. Errors: WEFT_CONFIG with line, column (counted in cells) and cell. */
weft_status weft_order_parse(const char *text, const weft_order_shape *shape, weft_arena *arena,
                             weft_order *orders) WEFT_CHECKED;
/* Prints without empty cells: F, B of whole backwards, I and W. Errors: WEFT_FILE. */
weft_status weft_order_print(const weft_order_shape *shape, const weft_order *orders,
                             FILE *out) WEFT_CHECKED;

#endif
