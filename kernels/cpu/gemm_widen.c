/* bf16 GEMM as fp32 GEMMs over blocks of widened operands. */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

enum {
    /* The longest edge of a block. Converting two operands of this edge costs a few percent of
     * multiplying them; a fourth of it would cost four times as much. */
    EDGE = 1024,
    LINE = 16, /* floats in a cache line */
};

/* A dimension cut into equal blocks, but for the last. */
typedef struct cut {
    size_t length, num, edge;
} cut;

static cut cut_of(size_t length)
{
    size_t num = (length + EDGE - 1) / EDGE;
    return (cut){length, num, ((length + num - 1) / num + LINE - 1) / LINE * LINE};
}

static size_t cut_at(const cut *c, size_t block)
{
    return block * c->edge;
}

static size_t cut_length(const cut *c, size_t block)
{
    size_t rest = c->length - block * c->edge;
    return rest < c->edge ? rest : c->edge;
}

/* The leading dimension in scratch: an odd number of cache lines, so that a column's elements lie
 * in different sets of the caches. sgemm loses up to a fifth on powers of two. */
static size_t spread(size_t cols)
{
    return ((cols + LINE - 1) / LINE | 1) * LINE;
}

static size_t block_floats(const cut *rows, const cut *cols, bool transpose)
{
    return transpose ? cols->edge * spread(rows->edge) : rows->edge * spread(cols->edge);
}

/* One operand, and which of its blocks its scratch holds. */
typedef struct operand {
    const uint16_t *from;
    size_t ld;
    bool transpose;
    float *block;
    size_t ld_block, row, col; /* of the block held; SIZE_MAX: none */
} operand;

/* Makes the block of op(X) at (row, col) the one held. */
static weft_status hold(operand *x, const cut *rows, size_t row, const cut *cols, size_t col)
{
    if (x->row == row && x->col == col)
        return WEFT_OK;
    x->row = row, x->col = col;
    size_t first_row = cut_at(rows, row), first_col = cut_at(cols, col);
    weft_matrix_widen_args args = {.rows = cut_length(rows, row), .cols = cut_length(cols, col)};
    args.from = x->from + first_row * x->ld + first_col;
    if (x->transpose) {
        size_t swapped = args.rows;
        args.rows = args.cols, args.cols = swapped;
        args.from = x->from + first_col * x->ld + first_row;
    }
    args.ld_from = x->ld;
    args.to = x->block;
    args.ld_to = x->ld_block = spread(args.cols);
    return weft_cpu_matrix_widen(&args);
}

/* C's block (row, col). A sum that is to be bf16, or to have a bias, is fp32 scratch until whole.
 */
static weft_status multiply(const weft_gemm_args *args, operand *a, operand *b, float *sum,
                            const cut *m, size_t row, const cut *n, size_t col, const cut *k)
{
    const size_t rows = cut_length(m, row), cols = cut_length(n, col);
    const size_t at = cut_at(m, row) * args->ldc + cut_at(n, col);
    const bool direct = args->c_dtype == WEFT_F32 && !args->bias;
    float *to = direct ? (float *)args->c + at : sum;
    const size_t ld = direct ? args->ldc : spread(cols);
    for (size_t block = 0; block < k->num; block++) {
        WEFT_TRY(hold(a, m, row, k, block));
        WEFT_TRY(hold(b, k, block, n, col));
        float beta = block > 0 ? 1 : direct ? args->beta : 0;
        WEFT_TRY(WEFT_DNNL(dnnl_sgemm(
            a->transpose ? 'T' : 'N', b->transpose ? 'T' : 'N', (dnnl_dim_t)rows, (dnnl_dim_t)cols,
            (dnnl_dim_t)cut_length(k, block), args->alpha, a->block, (dnnl_dim_t)a->ld_block,
            b->block, (dnnl_dim_t)b->ld_block, beta, to, (dnnl_dim_t)ld)));
    }
    if (direct)
        return WEFT_OK;
    return weft_cpu_matrix_finish(&(weft_matrix_finish_args){
        .rows = rows,
        .cols = cols,
        .product = sum,
        .ld_product = ld,
        .c = (char *)args->c + at * weft_dtype_bytes(args->c_dtype),
        .ldc = args->ldc,
        .c_dtype = args->c_dtype,
        .beta = args->beta,
        .bias = args->bias ? (const uint16_t *)args->bias + cut_at(n, col) : NULL,
        .bias_dtype = WEFT_BF16,
    });
}

weft_status weft_gemm_widen(const weft_gemm_args *args)
{
    const cut m = cut_of(args->m), n = cut_of(args->n), k = cut_of(args->k);
    const size_t a_floats = block_floats(&m, &k, args->transpose_a);
    const size_t b_floats = block_floats(&k, &n, args->transpose_b);
    const size_t bytes = (a_floats + b_floats + block_floats(&m, &n, false)) * sizeof(float);
    const weft_scratch scratch = weft_scratch_take(0, bytes);
    if (!scratch.memory) {
        weft_scratch_give(scratch);
        return WEFT_ERROR(WEFT_MEMORY, "no %zu bytes to widen bf16 operands in", bytes);
    }
    float *memory = scratch.memory;
    operand a = {args->a, args->lda, args->transpose_a, memory, 0, SIZE_MAX, SIZE_MAX};
    operand b = {args->b, args->ldb, args->transpose_b, memory + a_floats, 0, SIZE_MAX, SIZE_MAX};
    float *sum = memory + a_floats + b_floats;
    /* Where k is one block, the operand of the outer loop is converted once, and the other once
     * for each of the outer loop's blocks. */
    const bool by_rows = args->m < args->n;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < m.num * n.num && status == WEFT_OK; i++) {
        size_t row = by_rows ? i / n.num : i % m.num, col = by_rows ? i % n.num : i / m.num;
        status = multiply(args, &a, &b, sum, &m, row, &n, col, &k);
    }
    weft_scratch_give(scratch);
    return status;
}
