#include "kernels/flops.h"

double weft_gemm_args_flops(const weft_gemm_args *a)
{
    return 2.0 * (double)a->m * (double)a->n * (double)a->k;
}

double weft_grouped_gemm_args_flops(const weft_grouped_gemm_args *a)
{
    if (a->num_groups == 0)
        return 0;
    int64_t rows = a->row_offsets[a->num_groups] - a->row_offsets[0];
    return 2.0 * (double)rows * (double)a->in * (double)a->out;
}

/* A query sees half of the block that its own position is in. */
static double pairs_of(const weft_attention_shape *s, size_t first_key)
{
    double queries = (double)s->seq_q, keys = (double)s->seq_k;
    double first = (double)s->first_query - (double)first_key;
    if (!s->causal)
        return queries * keys;
    if (first < 0) { /* queries that see no key */
        queries = queries + first > 0 ? queries + first : 0;
        first = 0;
    }
    double partly = keys > first ? keys - first : 0; /* queries that do not see all keys */
    if (partly > queries)
        partly = queries;
    return partly * first + partly * partly / 2 + (queries - partly) * keys;
}

double weft_attention_product_flops(const weft_attention_shape *s, size_t first_key, size_t dim)
{
    return 2.0 * (double)s->batch * (double)s->heads * (double)dim * pairs_of(s, first_key);
}

double weft_attention_forward_args_flops(const weft_attention_forward_args *a)
{
    const size_t dims = a->shape.head_dim + weft_value_dim(&a->shape, a->value_dim);
    return weft_attention_product_flops(&a->shape, a->first_key, dims);
}

double weft_attention_backward_args_flops(const weft_attention_backward_args *a)
{
    const size_t dims = 3 * a->shape.head_dim + 2 * weft_value_dim(&a->shape, a->value_dim);
    return weft_attention_product_flops(&a->shape, a->first_key, dims);
}

double weft_no_flops(const void *args)
{
    (void)args;
    return 0;
}
