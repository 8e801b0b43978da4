/* An order as text: PyTorch's compute-only CSV. A row a rank, a cell a task, such as 0F0 or 2B3:
 * virtual stage, F or B, micro-batch. Empty cells mean nothing. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_TEXT_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_TEXT_H

#include <stdio.h>

#include "schedule/pipeline/order.h"

/* Reads a CSV file's text. Every forward and backward must stand there once, on its rank, a
 * backward behind its forward, and no ranks may wait for each other in a circle. Errors:
 * WEFT_CONFIG with line, column (counted in cells) and cell. */
weft_status weft_order_parse(const char *text, const weft_order_shape *shape, weft_arena *arena,
                             weft_order *orders) WEFT_CHECKED;
/* Prints without empty cells. Errors: WEFT_FILE. */
weft_status weft_order_print(const weft_order_shape *shape, const weft_order *orders,
                             FILE *out) WEFT_CHECKED;

#endif
