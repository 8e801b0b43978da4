#include "tests/layers/used.h"

#include <string.h>

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "kernels/note/note.h"
#include "parallel/mesh/mesh.h"
#include "tests/expect.h"

static used_half *current, own;
static double since_us;
static bool knows_rows = true;
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

/* --- kernels --------------------------------------------------------------------------------- */

static bool is_ignored(const void *at)
{
    for (int i = 0; i < 4; i++)
        if ((const char *)at >= ignored[i].start && (const char *)at < ignored[i].end)
            return true;
    return false;
}

/* Rows that a table of choices names: known here, where kernels have run before. */
static size_t rows_of(const int32_t *row_of, size_t choices)
{
    size_t rows = 0;
    for (size_t i = 0; i < choices; i++)
        rows += row_of[i] >= 0;
    return rows;
}

#define COUNT_ROWS(name)                                                                           \
    static void use_##name(const weft_##name##_args *a)                                            \
    {                                                                                              \
        const size_t rows = rows_of(a->row_of, a->num_tokens * a->topk);                           \
        EXPECT(!knows_rows || a->num_rows == rows, #name " says %zu rows, and has %zu",            \
               a->num_rows, rows);                                                                 \
    }
COUNT_ROWS(permute_backward)
COUNT_ROWS(combine)
COUNT_ROWS(combine_backward)
#undef COUNT_ROWS

static void watch(const char *kernel, const void *args)
{
    const weft_cast_args *cast = args;
    if (strcmp(kernel, "cast") == 0 && (is_ignored(cast->from) || is_ignored(cast->to)))
        return;
    if (strcmp(kernel, "permute_backward") == 0)
        use_permute_backward(args);
    else if (strcmp(kernel, "combine") == 0)
        use_combine(args);
    else if (strcmp(kernel, "combine_backward") == 0)
        use_combine_backward(args);
    const weft_kernel_operations all = weft_kernel_operations_of(kernel, args);
    for (int i = 0; i < all.count; i++) {
        weft_operation o = all.all[i];
        o.dtype = o.kind == WEFT_OPERATION_GEMM ? o.dtype : WEFT_F32;
        add(current, o);
    }
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

void used_know_rows(bool known)
{
    knows_rows = known;
}

void used_ignore_nothing(void)
{
    memset(ignored, 0, sizeof ignored);
    next_ignored = 0;
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
