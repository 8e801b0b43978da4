/* Calls that the device `note` kept, made again on another device. */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/note/note.h"

/* Kernels that a pass calls: name, number of pointers, pointers. */
#define KERNELS(ROW)                                                                               \
    ROW(gemm, 5, a, b, c, bias, pre)                                                               \
    ROW(grouped_gemm, 7, row_offsets, x, w, y, wgrad, w_of, wgrad_of)                              \
    ROW(bias_gradient, 3, dy, db, row_offsets)                                                     \
    ROW(bias_add, 3, bias, y, row_offsets)                                                         \
    ROW(norm_forward, 8, x, residual, sum, weight, bias, y, mean, rstd)                            \
    ROW(norm_backward, 8, dy, x, weight, mean, rstd, dx, dweight, dbias)                           \
    ROW(heads_norm_forward, 5, x, weight, bias, y, sums)                                           \
    ROW(heads_norm_backward, 7, x, weight, dx, sums, along, dweight, dbias)                        \
    ROW(heads_sums, 4, a, b, weight, sums)                                                         \
    ROW(heads_share, 2, one, heads)                                                                \
    ROW(activation_forward, 2, x, y)                                                               \
    ROW(activation_backward, 3, x, dy, dx)                                                         \
    ROW(rope, 2, x, index)                                                                         \
    ROW(attention_forward, 7, q, k, v, out, lse, first_seen, variant.sinks)                        \
    ROW(attention_backward, 11, q, k, v, out, dout, lse, delta, dq, dk, dv, first_seen)            \
    ROW(attention_sinks, 4, sinks, lse, delta, dsinks)                                             \
    ROW(embedding_forward, 5, tokens, table, positions, y, index)                                  \
    ROW(embedding_backward, 5, tokens, dy, dtable, dpositions, index)                              \
    ROW(cross_entropy_stats, 5, logits, labels, row_max, row_sum, target)                          \
    ROW(cross_entropy_loss, 6, row_max, row_sum, target, mask, loss, loss_sum)                     \
    ROW(cross_entropy_backward, 5, logits, labels, row_max, row_sum, mask)                         \
    ROW(dropout, 4, x, residual, y, index)                                                         \
    ROW(add, 3, a, b, y)                                                                           \
    ROW(scale, 1, x)                                                                               \
    ROW(cast, 2, from, to)                                                                         \
    ROW(route, 8, logits, scores, top_index, top_prob, counts, score_sums, z_sum, bias)            \
    ROW(route_backward, 7, logits, scores, top_index, top_prob, dtop_prob, fraction, dlogits)      \
    ROW(dispatch_plan, 9, top_index, top_prob, counts, partition_counts, row_of, token_of,         \
        dropped, wrong, scratch)                                                                   \
    ROW(permute, 3, x, token_of, rows)                                                             \
    ROW(permute_backward, 3, drows, row_of, dx)                                                    \
    ROW(combine, 4, rows, row_of, top_prob, y)                                                     \
    ROW(combine_backward, 6, dy, rows, row_of, top_prob, drows, dtop_prob)

#define RUN(name, ...)                                                                             \
    static weft_status run_##name(weft_lane *lane, const void *args)                               \
    {                                                                                              \
        return weft_##name(lane, args);                                                            \
    }
KERNELS(RUN)
#undef RUN

#define KIND(pointer)                                                                              \
    _Generic((pointer), const int32_t *: WEFT_POINTER_INDEX, int32_t *: WEFT_POINTER_MADE_INDEX,   \
             const void *const *: WEFT_POINTER_ADDRESSES, float *const *: WEFT_POINTER_ADDRESSES,  \
             default: WEFT_POINTER_NUMBERS)
#define AT(kernel, field)                                                                          \
    {                                                                                              \
        offsetof(weft_##kernel##_args, field), KIND(((weft_##kernel##_args *)0)->field)            \
    }
#define AT1(kernel, field) AT(kernel, field)
#define AT2(kernel, field, other) AT(kernel, field), AT(kernel, other)
#define AT3(kernel, field, ...) AT(kernel, field), AT2(kernel, __VA_ARGS__)
#define AT4(kernel, field, ...) AT(kernel, field), AT3(kernel, __VA_ARGS__)
#define AT5(kernel, field, ...) AT(kernel, field), AT4(kernel, __VA_ARGS__)
#define AT6(kernel, field, ...) AT(kernel, field), AT5(kernel, __VA_ARGS__)
#define AT7(kernel, field, ...) AT(kernel, field), AT6(kernel, __VA_ARGS__)
#define AT8(kernel, field, ...) AT(kernel, field), AT7(kernel, __VA_ARGS__)
#define AT9(kernel, field, ...) AT(kernel, field), AT8(kernel, __VA_ARGS__)
#define AT10(kernel, field, ...) AT(kernel, field), AT9(kernel, __VA_ARGS__)
#define AT11(kernel, field, ...) AT(kernel, field), AT10(kernel, __VA_ARGS__)
#define ROW(kernel, num, ...)                                                                      \
    {#kernel, sizeof(weft_##kernel##_args), run_##kernel, num, {AT##num(kernel, __VA_ARGS__)}},
static const weft_kernel_again kernels[] = {KERNELS(ROW)};

const weft_kernel_again *weft_kernel_again_of(const char *kernel)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, kernel) == 0)
            return &kernels[i];
    return NULL;
}
