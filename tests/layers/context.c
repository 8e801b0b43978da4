/* Attention over context-parallel ranks against one rank's, forward and backward. */
#include "layers/context/context.h"

#include <stdlib.h>

#include "core/rng.h"
#include "tests/expect.h"

typedef struct job {
    weft_device *device;
    weft_lane *lane;
    weft_comm *world;
    int rank, size;
} job;

typedef struct problem {
    weft_context_plan plan;
    size_t seq, batch, heads, groups, head_dim;
    weft_dtype dtype;
    float dropout;
} problem;

/* One rank's tensors, or those of the whole sequence; fp32 in host memory. */
typedef struct tensors {
    float *qkv, *out, *dout, *dqkv;
} tensors;

static size_t width_of(const problem *p)
{
    return (p->heads + 2 * p->groups) * p->head_dim;
}

static size_t result_of(const problem *p)
{
    return p->heads * p->head_dim;
}

/* As the pass aligns it; a byte behind it to be left alone. */
static void *take(size_t bytes)
{
    char *memory = aligned_alloc(64, (bytes / 64 + 1) * 64);
    memset(memory, 0x7f, bytes + 1);
    return memory;
}

static void cast(job *j, weft_dtype from_dtype, const void *from, weft_dtype to_dtype, void *to,
                 size_t count)
{
    EXPECT_OK(
        weft_cast(j->lane, &WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = from_dtype,
                                      .to_dtype = to_dtype, .from = from, .to = to)));
    EXPECT_OK(weft_lane_sync(j->lane));
}

static float *random_floats(size_t count, uint64_t stream)
{
    float *x = malloc((count + 1) * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = weft_rng_normal(7, stream, i);
    return x;
}

static tensors whole_tensors(const problem *p)
{
    const size_t rows = p->seq * p->batch;
    return (tensors){.qkv = random_floats(rows * width_of(p), 1),
                     .out = malloc(rows * result_of(p) * sizeof(float)),
                     .dout = random_floats(rows * result_of(p), 2),
                     .dqkv = malloc(rows * width_of(p) * sizeof(float))};
}

static void free_tensors(tensors *t)
{
    free(t->qkv);
    free(t->out);
    free(t->dout);
    free(t->dqkv);
}

static weft_attention_shape attention_of(const problem *p)
{
    const size_t group = (p->heads / p->groups + 2) * p->head_dim;
    return (weft_attention_shape){.seq_q = p->seq,
                                  .seq_k = p->seq,
                                  .batch = p->batch,
                                  .heads = p->heads,
                                  .groups = p->groups,
                                  .head_dim = p->head_dim,
                                  .q_token_stride = width_of(p),
                                  .q_group_stride = group,
                                  .k_token_stride = width_of(p),
                                  .k_group_stride = group,
                                  .causal = true,
                                  .dropout = p->dropout,
                                  .seed = 3,
                                  .stream = 4,
                                  .total_heads = p->heads,
                                  .total_seq = p->seq};
}

/* All keys on one rank, in `dtype`. */
static void run_whole(job *j, const problem *p, weft_dtype dtype, tensors *t)
{
    const size_t rows = p->seq * p->batch, wide = rows * width_of(p), narrow = rows * result_of(p);
    const size_t each = weft_dtype_bytes(dtype), keys = p->heads / p->groups * p->head_dim * each;
    char *qkv = take(wide * each), *dqkv = take(wide * each);
    void *out = take(narrow * each), *dout = take(narrow * each);
    float *lse = take(p->heads * rows * sizeof(float));
    float *delta = take(p->heads * rows * sizeof(float));
    const size_t value = keys + p->head_dim * each;
    cast(j, WEFT_F32, t->qkv, dtype, qkv, wide);
    cast(j, WEFT_F32, t->dout, dtype, dout, narrow);
    EXPECT_OK(weft_attention_forward(
        j->lane, &WEFT_ARGS(weft_attention_forward_args, .shape = attention_of(p), .dtype = dtype,
                            .q = qkv, .k = qkv + keys, .v = qkv + value, .out = out, .lse = lse)));
    EXPECT_OK(weft_attention_backward(
        j->lane,
        &WEFT_ARGS(weft_attention_backward_args, .shape = attention_of(p), .dtype = dtype, .q = qkv,
                   .k = qkv + keys, .v = qkv + value, .out = out, .dout = dout, .lse = lse,
                   .delta = delta, .dq = dqkv, .dk = dqkv + keys, .dv = dqkv + value)));
    cast(j, dtype, out, WEFT_F32, t->out, narrow);
    cast(j, dtype, dqkv, WEFT_F32, t->dqkv, wide);
    free(qkv);
    free(dqkv);
    free(out);
    free(dout);
    free(lse);
    free(delta);
}

/* Between the sequence's rows and this rank's; `row`: elements of a row. */
static void deal_rows(const job *j, const problem *p, const weft_sequence_cut *cut, size_t row,
                      float *whole, float *mine, bool back)
{
    const size_t local = p->seq / (size_t)j->size, bytes = p->batch * row * sizeof(float);
    int32_t *index = malloc(local * sizeof *index);
    weft_sequence_index(cut, j->rank, index);
    for (size_t i = 0; i < local; i++) {
        float *there = whole + (size_t)index[i] * p->batch * row, *here = mine + i * p->batch * row;
        memcpy(back ? there : here, back ? here : there, bytes);
    }
    free(index);
}

/* A direction's tasks, one behind the other. */
static weft_status run_program(job *j, weft_context_runtime *runtime, const weft_context_call *call,
                               bool backward)
{
    weft_context_work work;
    weft_context_begin(&work, runtime, call, backward, backward);
    for (uint32_t i = 0; i < work.program->num_tasks; i++)
        WEFT_TRY(weft_context_run_task(&work, &work.program->tasks[i], j->lane));
    return weft_context_end(&work, j->lane);
}

/* The same over the ranks; fills this rank's rows of t->out and t->dqkv. */
static void run_parallel(job *j, const problem *p, const weft_sequence_cut *cut, tensors *t)
{
    const size_t rows = p->seq * p->batch / (size_t)j->size, each = weft_dtype_bytes(p->dtype);
    const size_t wide = rows * width_of(p), narrow = rows * result_of(p);
    const weft_context_shape shape = {.plan = p->plan,
                                      .rows = rows,
                                      .batch = p->batch,
                                      .heads = p->heads,
                                      .groups = p->groups,
                                      .head_dim = p->head_dim,
                                      .value_dim = p->head_dim,
                                      .dtype = p->dtype};
    const bool exchanges = weft_context_exchanges(&p->plan);
    const size_t forward_bytes = weft_context_scratch_bytes(&shape, false);
    const size_t backward_bytes = weft_context_scratch_bytes(&shape, true);
    const size_t scratch_bytes = forward_bytes > backward_bytes ? forward_bytes : backward_bytes;
    float *mine = malloc((wide + 1) * sizeof *mine);
    void *qkv = take(wide * each), *out = take(narrow * each);
    void *dout = take(narrow * each), *dqkv = take(wide * each);
    char *scratch = take(scratch_bytes);
    weft_context_call call = {
        .shape = shape,
        .attention = {.dropout = p->dropout,
                      .seed = 3,
                      .stream = 4,
                      .total_heads = p->heads,
                      .total_seq = p->seq},
        .cut = cut,
        .qkv = qkv,
        .heads = exchanges ? take(wide * each) : NULL,
        .heads_out = exchanges ? take(narrow * each) : NULL,
        .out = out,
        .lse = take(p->heads * rows * sizeof(float)),
        .dout = dout,
        .dqkv = dqkv,
        .scratch = scratch,
    };
    weft_context_runtime *runtime = NULL;
    EXPECT_OK(weft_context_runtime_create(j->device, j->world, &p->plan, &runtime));
    EXPECT_OK(weft_context_runtime_reserve(runtime, j->lane, &shape));
    deal_rows(j, p, cut, width_of(p), t->qkv, mine, false);
    cast(j, WEFT_F32, mine, p->dtype, qkv, wide);
    deal_rows(j, p, cut, result_of(p), t->dout, mine, false);
    cast(j, WEFT_F32, mine, p->dtype, dout, narrow);
    for (int again = 0; again < 2; again++) { /* as recomputation does */
        memset(scratch, 0x7f, scratch_bytes + 1);
        EXPECT_OK(run_program(j, runtime, &call, false));
        EXPECT_OK(weft_lane_sync(j->lane));
        EXPECT(scratch[forward_bytes] == 0x7f, "forward wrote behind its scratch");
    }
    memset(scratch, 0x7f, scratch_bytes + 1);
    EXPECT_OK(run_program(j, runtime, &call, true));
    cast(j, p->dtype, out, WEFT_F32, mine, narrow);
    EXPECT(scratch[backward_bytes] == 0x7f, "backward wrote behind its scratch");
    deal_rows(j, p, cut, result_of(p), t->out, mine, true);
    cast(j, p->dtype, dqkv, WEFT_F32, mine, wide);
    deal_rows(j, p, cut, width_of(p), t->dqkv, mine, true);
    weft_context_runtime_destroy(runtime);
    if (exchanges) {
        free(call.heads);
        free(call.heads_out);
    }
    free(call.lse);
    free(scratch);
    free(qkv);
    free(out);
    free(dout);
    free(dqkv);
    free(mine);
}

/* Root mean square of a - b over this rank's rows, and of b. */
static double distance(const job *j, const problem *p, const weft_sequence_cut *cut, size_t row,
                       const float *a, const float *b, double *out_norm)
{
    const size_t local = p->seq / (size_t)j->size, each = p->batch * row;
    int32_t *index = malloc(local * sizeof *index);
    double sum = 0, norm = 0;
    weft_sequence_index(cut, j->rank, index);
    for (size_t i = 0; i < local; i++)
        for (size_t k = 0; k < each; k++) {
            const size_t at = (size_t)index[i] * each + k;
            sum += ((double)a[at] - (double)b[at]) * ((double)a[at] - (double)b[at]);
            norm += (double)b[at] * (double)b[at];
        }
    free(index);
    *out_norm = sqrt(norm);
    return sqrt(sum);
}

static void compare(job *j, const problem *p, const char *what)
{
    int32_t *runs = malloc(2 * (size_t)j->size * sizeof *runs);
    const weft_sequence_cut cut = weft_sequence_head_tail(p->seq, j->size, runs);
    tensors wanted = whole_tensors(p), got = whole_tensors(p), rounded = whole_tensors(p);
    run_whole(j, p, WEFT_F32, &wanted);
    run_whole(j, p, p->dtype, &rounded);
    run_parallel(j, p, &cut, &got);
    const struct {
        const char *name;
        size_t row;
        const float *got, *wanted, *rounded;
    } rows[] = {{"out", result_of(p), got.out, wanted.out, rounded.out},
                {"dqkv", width_of(p), got.dqkv, wanted.dqkv, rounded.dqkv}};
    for (int i = 0; i < 2; i++) {
        double norm;
        const double error = distance(j, p, &cut, rows[i].row, rows[i].got, rows[i].wanted, &norm);
        const double alone =
            distance(j, p, &cut, rows[i].row, rows[i].rounded, rows[i].wanted, &norm);
        const double most = p->dtype == WEFT_F32 ? 1e-6 * norm : 1.1 * alone;
        EXPECT(error <= most && norm > 0, "%s, %s, cp %d, %s: error %g of %g, at most %g", what,
               weft_context_form_text((int)p->plan.form), p->plan.cp, rows[i].name, error, norm,
               most);
    }
    free_tensors(&wanted);
    free_tensors(&got);
    free_tensors(&rounded);
    free(runs);
}

static void run_all(job *j)
{
    const int cp = j->size;
    const struct {
        const char *what;
        size_t seq, batch, heads, groups, head_dim;
        weft_dtype dtype;
        float dropout;
    } cases[] = {
        {"each head its own keys", 64, 2, 8, 8, 16, WEFT_F32, 0},
        {"grouped queries", 48, 1, 16, 8, 8, WEFT_F32, 0},
        {"dropout", 32, 2, 8, 8, 8, WEFT_F32, 0.2f},
        {"bf16", 96, 1, 8, 8, 16, WEFT_BF16, 0},
    };
    const weft_context_plan plans[] = {{WEFT_CONTEXT_P2P, cp, 1},
                                       {WEFT_CONTEXT_ALL_GATHER, cp, 1},
                                       {WEFT_CONTEXT_A2A, cp, cp},
                                       {WEFT_CONTEXT_A2A_P2P, cp, 2}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t f = 0; f < (cp > 2 ? 4 : 3); f++) {
            const problem p = {plans[f],       cases[c].seq,    cases[c].batch,
                               cases[c].heads, cases[c].groups, cases[c].head_dim,
                               cases[c].dtype, cases[c].dropout};
            compare(j, &p, cases[c].what);
        }
}

int main(void)
{
    job j = {0};
    if (weft_comm_create_world(&j.world) != WEFT_OK ||
        weft_device_create_cpu(1, 0, &j.device) != WEFT_OK ||
        weft_lane_create(j.device, 0, "compute", &j.lane) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error_get()->text);
        return 1;
    }
    j.rank = weft_comm_rank(j.world);
    j.size = weft_comm_size(j.world);
    run_all(&j);
    weft_lane_destroy(j.lane);
    weft_comm_destroy(j.world);
    weft_device_destroy(j.device);
    return expect_finish();
}
