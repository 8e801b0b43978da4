/* What tensor-parallel products in chunks take: the price of their programs (schedule/tensor.h). */
#ifndef WEFT_LAUNCHER_PLANNING_TENSOR_PRICE_H
#define WEFT_LAUNCHER_PLANNING_TENSOR_PRICE_H

#include "launcher/planning/pass_price.h"

enum { WEFT_TENSOR_ROWS = 20 };
/* Of the products of one name in one half of a pass, what their tasks take, all chunks together. */
typedef struct weft_tensor_row {
    const char *module; /* static */
    int half;           /* WEFT_HALF_FORWARD, ... */
    bool deferred;      /* of a backward in two halves, the second one's */
    weft_task_time gather, product, reduce, weights;
    uint64_t num_gathers, num_reduces;
} weft_tensor_row;
/* Of a layer. num_rows 0: nothing is known yet. */
typedef struct weft_tensor_costs {
    int num_rows;
    weft_tensor_row rows[WEFT_TENSOR_ROWS];
} weft_tensor_costs;

/* Adds an operation to its product's; false: there is no room. */
bool weft_tensor_add(weft_tensor_costs *costs, const weft_operation *operation, int half,
                     const weft_estimate *estimate);
/* How long the compute lane is busy with a row's products, beside what slows it, and how long it
 * waits. The arena is empty before and behind. Errors: those of weft_program_tensor and
 * weft_program_price. */
weft_status weft_tensor_price(const weft_tensor_row *row, const weft_interference *interference,
                              weft_arena *arena, double *computed_us,
                              double *exposed_us) WEFT_CHECKED;

#endif
