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

/* Pairs of a query and a key at or before it. The first query stands `first` behind the first key.
 * A query sees half of the block that its own position is in. */
static double causal_pairs(double queries, double keys, double first)
{
    if (first < 0) { /* queries that see no key */
        queries = queries + first > 0 ? queries + first : 0;
        first = 0;
    }
    double partly = keys > first ? keys - first : 0; /* queries that do not see all keys */
    if (partly > queries)
        partly = queries;
    return partly * first + partly * partly / 2 + (queries - partly) * keys;
}

/* Those in the same chunk. */
static double chunk_pairs(const weft_attention_shape *s, size_t first_key, size_t chunk)
{
    double pairs = 0;
    const size_t end = s->first_query + s->seq_q;
    for (size_t q = s->first_query, next; q < end; q = next) {
        const size_t start = q - q % chunk, from = start > first_key ? start : first_key;
        const size_t last = first_key + s->seq_k;
        next = start + chunk < end ? start + chunk : end;
        if (from < last)
            pairs +=
                causal_pairs((double)(next - q), (double)(last - from), (double)q - (double)from);
    }
    return pairs;
}

static double pairs_of(const weft_attention_shape *s, size_t first_key,
                       const weft_attention_variant *v)
{
    const double queries = (double)s->seq_q, keys = (double)s->seq_k;
    const double first = (double)s->first_query - (double)first_key;
    if (!s->causal)
        return queries * keys;
    if (v->chunk > 0)
        return chunk_pairs(s, first_key, v->chunk);
    const double hidden =
        v->window > 0 ? causal_pairs(queries, keys, first - (double)v->window) : 0;
    return causal_pairs(queries, keys, first) - hidden;
}

double weft_attention_product_flops(const weft_attention_shape *s, size_t first_key,
                                    const weft_attention_variant *v, size_t dim)
{
    return 2.0 * (double)s->batch * (double)s->heads * (double)dim * pairs_of(s, first_key, v);
}

double weft_attention_forward_args_flops(const weft_attention_forward_args *a)
{
    const size_t dims = a->shape.head_dim + weft_value_dim(&a->shape, a->value_dim);
    return weft_attention_product_flops(&a->shape, a->first_key, &a->variant, dims);
}

double weft_attention_backward_args_flops(const weft_attention_backward_args *a)
{
    const size_t dims = 3 * a->shape.head_dim + 2 * weft_value_dim(&a->shape, a->value_dim);
    return weft_attention_product_flops(&a->shape, a->first_key, &a->variant, dims);
}

double weft_no_flops(const void *args)
{
    (void)args;
    return 0;
}
