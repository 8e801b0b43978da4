#include "tests/layers/used.h"

#include <string.h>

#include "comm/comm.h"
#include "core/trace/trace.h"
#include "kernels/kernels.h"
#include "parallel/mesh/mesh.h"
#include "tests/expect.h"

static used_half *current, own;
static double since_us;
static struct {
    const char *start, *end;
} ignored[4];
static int next_ignored; /* of the ranges: the oldest makes room */

static bool alike(const weft_operation *a, const weft_operation *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->groups == b->groups && a->axis == b->axis &&
           a->collective == b->collective;
}

static void add(used_half *to, weft_operation o)
{
    int i = 0;
    while (i < to->count && !alike(&to->operations[i], &o))
        i++;
    EXPECT(i < USED_MAX, "too many operations");
    if (i == to->count)
        to->operations[to->count++] = (weft_operation){.kind = o.kind,
                                                       .dtype = o.dtype,
                                                       .m = o.m,
                                                       .n = o.n,
                                                       .k = o.k,
                                                       .groups = o.groups,
                                                       .axis = o.axis,
                                                       .collective = o.collective};
    to->operations[i].count += o.count;
    to->operations[i].flops += o.flops;
    to->operations[i].bytes += o.bytes;
}

static void add_gemm(weft_dtype dtype, size_t m, size_t n, size_t k, size_t groups, size_t count,
                     double share)
{
    add(current, (weft_operation){.kind = WEFT_OPERATION_GEMM,
                                  .dtype = dtype,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .groups = groups,
                                  .count = count,
                                  .flops = (uint64_t)(share * 2 * (double)(m * n * k * count))});
}

static void add_memory(size_t elements, weft_dtype dtype)
{
    add(current, (weft_operation){.kind = WEFT_OPERATION_MEMORY,
                                  .count = 1,
                                  .bytes = elements * weft_dtype_bytes(dtype)});
}

/* --- a kernel's arguments as operations ------------------------------------------------------ */

static void use_activation_forward(const weft_activation_forward_args *a)
{
    add_memory(a->rows * a->cols * (a->kind == WEFT_ACTIVATION_SWIGLU ? 3 : 2), a->dtype);
}

static void use_activation_backward(const weft_activation_backward_args *a)
{
    add_memory(a->rows * a->cols * (a->kind == WEFT_ACTIVATION_SWIGLU ? 5 : 3), a->dtype);
}

static void use_gemm(const weft_gemm_args *a)
{
    add_gemm(a->dtype, a->m, a->n, a->k, 0, 1, 1);
    if (a->epilogue == WEFT_GEMM_GELU) {
        weft_activation_forward_args gelu = weft_gemm_gelu(a);
        use_activation_forward(&gelu);
    } else if (a->epilogue == WEFT_GEMM_GELU_BACKWARD) {
        weft_activation_backward_args gelu = weft_gemm_gelu_backward(a);
        use_activation_backward(&gelu);
    }
}

static void use_grouped_gemm(const weft_grouped_gemm_args *a)
{
    size_t rows = (size_t)(a->row_offsets[a->num_groups] - a->row_offsets[0]);
    if (a->kind == WEFT_GROUPED_WGRAD)
        add_gemm(a->dtype, a->out, a->in, rows, a->num_groups, 1, 1);
    else if (a->kind == WEFT_GROUPED_DGRAD)
        add_gemm(a->dtype, rows, a->in, a->out, a->num_groups, 1, 1);
    else
        add_gemm(a->dtype, rows, a->out, a->in, a->num_groups, 1, 1);
}

static void use_bias_gradient(const weft_bias_gradient_args *a)
{
    add_memory(a->rows * a->cols, a->dtype);
}

static void use_norm_forward(const weft_norm_forward_args *a)
{
    add_memory((a->residual ? 4 : 2) * a->rows * a->cols, a->dtype);
}

static void use_norm_backward(const weft_norm_backward_args *a)
{
    add_memory((a->accumulate ? 4 : 3) * a->rows * a->cols, a->dtype);
}

static void use_rope(const weft_rope_args *a)
{
    add_memory(2 * a->seq * a->batch * a->heads * (a->groups ? a->groups : 1) * a->rotary_dim,
               a->dtype);
}

static void use_scores(const weft_attention_shape *s, weft_dtype dtype, size_t scores,
                       size_t values)
{
    size_t heads = s->batch * s->heads;
    double share = s->causal ? 0.5 : 1;
    add_gemm(dtype, s->seq_q, s->seq_k, s->head_dim, 0, scores * heads, share);
    add_gemm(dtype, s->seq_q, s->head_dim, s->seq_k, 0, values * heads, share);
}

static void use_attention_forward(const weft_attention_forward_args *a)
{
    use_scores(&a->shape, a->dtype, 1, 1);
}

/* Scores again and dP; dV, dQ and dK. */
static void use_attention_backward(const weft_attention_backward_args *a)
{
    use_scores(&a->shape, a->dtype, 2, 3);
}

static void use_embedding_forward(const weft_embedding_forward_args *a)
{
    add_memory((a->positions ? 3 : 2) * a->num_tokens * a->cols, a->dtype);
}

static void use_embedding_backward(const weft_embedding_backward_args *a)
{
    size_t bytes = a->num_tokens * a->cols * weft_dtype_bytes(a->dtype);
    size_t added = a->dtable ? a->num_tokens : a->num_tokens / a->batch;
    add_memory(bytes + 2 * added * a->cols * sizeof(float), WEFT_U8);
}

static void use_cross_entropy_stats(const weft_cross_entropy_stats_args *a)
{
    add_memory(a->rows * a->cols, a->dtype);
}

static void use_cross_entropy_loss(const weft_cross_entropy_loss_args *a)
{
    (void)a;
    add_memory(0, WEFT_F32);
}

static void use_cross_entropy_backward(const weft_cross_entropy_backward_args *a)
{
    add_memory(2 * a->rows * a->cols, a->dtype);
}

static void use_dropout(const weft_dropout_args *a)
{
    add_memory((a->residual ? 3 : 2) * a->rows * a->cols, a->dtype);
}

static void use_add(const weft_add_args *a)
{
    add_memory(3 * a->count, a->dtype);
}

static bool is_ignored(const void *at)
{
    for (int i = 0; i < 4; i++)
        if ((const char *)at >= ignored[i].start && (const char *)at < ignored[i].end)
            return true;
    return false;
}

static void use_cast(const weft_cast_args *a)
{
    if (!is_ignored(a->from) && !is_ignored(a->to))
        add_memory((a->rows ? a->rows : 1) * a->count *
                       (weft_dtype_bytes(a->from_dtype) + weft_dtype_bytes(a->to_dtype)),
                   WEFT_U8);
}

static void use_route(const weft_route_args *a)
{
    add_memory(2 * a->num_tokens * a->num_experts, WEFT_F32);
}

static void use_route_backward(const weft_route_backward_args *a)
{
    add_memory(3 * a->num_tokens * a->num_experts, WEFT_F32);
}

static void use_dispatch_plan(const weft_dispatch_plan_args *a)
{
    add_memory(3 * a->num_tokens * a->topk, WEFT_I32);
}

static void use_permute(const weft_permute_args *a)
{
    add_memory(2 * a->num_rows * a->cols, a->dtype);
}

static size_t rows_of(const int32_t *row_of, size_t choices)
{
    size_t rows = 0;
    for (size_t i = 0; i < choices; i++)
        rows += row_of[i] >= 0;
    return rows;
}

static void use_permute_backward(const weft_permute_backward_args *a)
{
    add_memory((rows_of(a->row_of, a->num_tokens * a->topk) + a->num_tokens) * a->cols, a->dtype);
}

static void use_combine(const weft_combine_args *a)
{
    add_memory((rows_of(a->row_of, a->num_tokens * a->topk) + a->num_tokens) * a->cols, a->dtype);
}

static void use_combine_backward(const weft_combine_backward_args *a)
{
    add_memory((2 * rows_of(a->row_of, a->num_tokens * a->topk) + a->num_tokens) * a->cols,
               a->dtype);
}

#define NONE(kernel)                                                                               \
    static void use_##kernel(const weft_##kernel##_args *a)                                        \
    {                                                                                              \
        (void)a;                                                                                   \
        EXPECT(false, "a pass calls " #kernel);                                                    \
    }
NONE(adamw)
NONE(split_master)
NONE(join_master)
NONE(sum_squares)
NONE(find_not_finite)
NONE(hash)
NONE(scale)
NONE(random_normal)
#undef NONE

static void watch(const char *kernel, const void *args)
{
#define USE(name)                                                                                  \
    if (strcmp(kernel, #name) == 0)                                                                \
        use_##name(args);
    WEFT_KERNEL_LIST(USE)
#undef USE
}

/* --- collectives ----------------------------------------------------------------------------- */

static void add_record(const weft_comm_record *r)
{
    static const struct {
        const char *kind;
        weft_collective collective;
    } kinds[] = {{"all_reduce", WEFT_COLLECTIVE_ALL_REDUCE},
                 {"all_gather", WEFT_COLLECTIVE_ALL_GATHER},
                 {"reduce_scatter", WEFT_COLLECTIVE_REDUCE_SCATTER},
                 {"all_to_all", WEFT_COLLECTIVE_ALL_TO_ALL},
                 {"send_recv", WEFT_COLLECTIVE_MESSAGE}};
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (strcmp(r->group, weft_axis_text((weft_axis)axis)) == 0 &&
                strcmp(r->kind, kinds[k].kind) == 0)
                add(current, (weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                              .axis = (weft_axis)axis,
                                              .collective = kinds[k].collective,
                                              .count = 1,
                                              .bytes = r->bytes});
}

/* --- from begin to end ----------------------------------------------------------------------- */

void used_begin(void)
{
    own.count = 0;
    current = &own;
    since_us = weft_now_us();
    weft_kernels_watch(watch);
}

void used_end(used_half *out)
{
    static weft_comm_record records[WEFT_COMM_MAX_RECORDS];
    int count = weft_comm_records(records, WEFT_COMM_MAX_RECORDS);
    weft_kernels_watch(NULL);
    for (int i = 0; i < count; i++)
        if (records[i].start_us >= since_us)
            add_record(&records[i]);
    *out = own;
}

void used_ignore(const void *start, size_t bytes)
{
    ignored[next_ignored].start = start;
    ignored[next_ignored].end = (const char *)start + bytes;
    next_ignored = (next_ignored + 1) % 4;
}

void used_add_listed(used_half *out, const weft_description *listed, bool forward)
{
    for (int i = 0; i < listed->num_operations; i++) {
        weft_operation o = listed->operations[i];
        bool alone = o.kind != WEFT_OPERATION_COLLECTIVE;
        if ((o.phase == WEFT_PHASE_FORWARD) != forward)
            continue;
        o.dtype = o.kind == WEFT_OPERATION_GEMM ? o.dtype : WEFT_F32;
        o.axis = alone ? WEFT_AXIS_NONE : o.axis;
        add(out, o);
    }
}

void used_drop_products(used_half *half)
{
    int kept = 0;
    for (int i = 0; i < half->count; i++)
        if (half->operations[i].kind != WEFT_OPERATION_GEMM)
            half->operations[kept++] = half->operations[i];
    half->count = kept;
}

static bool has(const used_half *half, const weft_operation *o)
{
    for (int i = 0; i < half->count; i++) {
        const weft_operation *mine = &half->operations[i];
        if (alike(mine, o) && mine->count == o->count && mine->flops == o->flops &&
            mine->bytes == o->bytes)
            return true;
    }
    return false;
}

static void expect_all(const used_half *half, const used_half *in, bool memory, const char *what,
                       const char *how)
{
    for (int i = 0; i < half->count; i++) {
        const weft_operation *o = &half->operations[i];
        if (o->kind == WEFT_OPERATION_MEMORY && !memory)
            continue;
        EXPECT(has(in, o),
               "%s: %s alone: kind %d, %s, %d of %d x %d x %d in %d, %d FLOPs, %d bytes, axis %s, "
               "collective %d",
               what, how, (int)o->kind, weft_dtype_text(o->dtype), (int)o->count, (int)o->m,
               (int)o->n, (int)o->k, (int)o->groups, (int)o->flops, (int)o->bytes,
               weft_axis_text(o->axis), (int)o->collective);
    }
}

void used_compare(const used_half *used, const used_half *listed, bool memory, const char *what)
{
    expect_all(used, listed, memory, what, "done");
    expect_all(listed, used, memory, what, "listed");
}
