#include "tests/layers/moe_case.h"

#include <math.h>
#include <stdlib.h>

#include "layers/moe/internal.h"
#include "tests/world.h"
#include "tests/layers/moe_reference.h"

enum { MAX_PARAMETERS = 8, NUM_DIRECTIONS = 3 };

static weft_status options_of(const moe_case *c, weft_arena *arena, weft_model_options *out)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 1, \"num_attention_heads\": 4, \"kv_channels\": 4, "
             "\"vocab_size\": 8, "
             "\"init_method_std\": 0.3, %s}}",
             c->json);
    return harness_options(text, arena, out);
}

static void make_rows(const moe_case *c, size_t rows, size_t hidden, uint64_t micro_batch, float *x,
                      float *dy)
{
    rig_random(x, rows * hidden, c->form == MOE_HUGE ? 1e4 : 1, 100 + 2 * micro_batch);
    rig_random(dy, rows * hidden, 1, 101 + 2 * micro_batch);
    for (size_t i = 0; i < rows * hidden; i++) {
        if (c->form == MOE_ZERO_TOKENS)
            x[i] = 0;
        if (c->form == MOE_SAME_TOKENS && i >= hidden)
            x[i] = x[i - hidden];
        if ((c->form == MOE_ALL_TO_ONE || c->form == MOE_LAST_STARVED) && i % hidden == 0)
            x[i] = 4;
    }
}

static void steer_router(const moe_case *c, const rig *r)
{
    weft_parameter *router = rig_parameter(r, "router.weight");
    float *w = router->weight.data;
    size_t experts = router->weight.dims[0], hidden = router->weight.dims[1];
    if (c->form == MOE_ALL_TO_ONE)
        w[0] = 2; /* far above the others, and no probability rounds to 1 */
    if (c->form == MOE_LAST_STARVED)
        w[(experts - 1) * hidden] = -2;
}

/* --- one rank against the definition -------------------------------------------------------- */

static double *widen(const float *from, size_t count)
{
    double *to = malloc((count + 1) * sizeof *to);
    for (size_t i = 0; i < count; i++)
        to[i] = (double)from[i];
    return to;
}

/* The slope of the loss along NUM_DIRECTIONS random directions of `values` against the gradient's.
 */
static void check_slopes(const moe_case *c, moe_reference *m, double *values, size_t count,
                         const float *gradient, const char *what)
{
    const double step = 1e-6;
    float *direction = malloc(count * sizeof *direction);
    double *kept = malloc(count * sizeof *kept), norm = 0;
    memcpy(kept, values, count * sizeof *kept);
    for (size_t i = 0; i < count; i++)
        norm += (double)gradient[i] * (double)gradient[i];
    for (uint64_t d = 0; d < NUM_DIRECTIONS; d++) {
        double loss[2], slope = 0;
        rig_random(direction, count, 1, 900 + d);
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < count; i++)
                values[i] = kept[i] + (side ? -step : step) * (double)direction[i];
            loss[side] = moe_reference_run(m);
        }
        for (size_t i = 0; i < count; i++)
            slope += (double)gradient[i] * (double)direction[i];
        double expected = (loss[0] - loss[1]) / (2 * step);
        double noise = 1e-15 * (fabs(loss[0]) + fabs(loss[1])) / step;
        EXPECT(fabs(slope - expected) <= 1e-4 * sqrt(norm) + noise,
               "%s: slope of %s is %.9g, expected %.9g", c->name, what, slope, expected);
    }
    memcpy(values, kept, count * sizeof *kept);
    free(kept);
    free(direction);
}

/* A parameter's fp32 weight or gradient, however it lies. */
static float *contiguous(const weft_parameter *p, bool grad)
{
    size_t count = weft_tensor_count(&p->weight);
    float *out = malloc(count * sizeof *out);
    for (size_t k = 0; k < count; k++)
        out[k] = (grad ? p->grad : (const float *)p->weight.data)[weft_parameter_place(p, k)];
    return out;
}

static double *widen_parameter(const weft_parameter *p)
{
    float *values = contiguous(p, false);
    double *out = widen(values, weft_tensor_count(&p->weight));
    free(values);
    return out;
}

static bool has_slopes(const moe_case *c)
{
    return c->form != MOE_SAME_TOKENS && c->form != MOE_ZERO_TOKENS && c->form != MOE_HUGE;
}

static void check_definition(const moe_case *c, rig *r)
{
    static const char *const names[] = {
        "router.weight", "experts.linear_fc1.weight", "experts.linear_fc2.weight",
        "shared_experts.linear_fc1.weight", "shared_experts.linear_fc2.weight"};
    size_t count = r->rows_full * r->hidden, experts = (size_t)r->h.options.num_experts;
    float *x = malloc(count * sizeof *x), *dy = malloc(count * sizeof *dy);
    double *weights[5] = {NULL}, *wide_x, *wide_dy;
    make_rows(c, r->rows_full, r->hidden, 0, x, dy);
    wide_x = widen(x, count);
    wide_dy = widen(dy, count);
    steer_router(c, r);
    EXPECT_OK(rig_pass(r, x, dy, true));
    for (int i = 0; i < 5; i++)
        if (rig_parameter(r, names[i]))
            weights[i] = widen_parameter(rig_parameter(r, names[i]));
    moe_reference m = {.options = &r->h.options,
                       .tokens = r->rows_full,
                       .routed = r->rows_full,
                       .x = wide_x,
                       .dy = wide_dy,
                       .router = weights[0],
                       .fc1 = weights[1],
                       .fc2 = weights[2],
                       .shared_fc1 = weights[3],
                       .shared_fc2 = weights[4],
                       .y = malloc(count * sizeof(double)),
                       .expert_tokens = malloc(experts * sizeof(size_t))};
    moe_reference_run(&m);

    double *y = widen(r->y, count), error = rig_error_of_doubles(y, m.y, count);
    EXPECT(error <= 5e-6, "%s: y is off by %.3g", c->name, error);
    const weft_metrics *metrics = weft_model_metrics(r->h.model);
    EXPECT(fabs(metrics->aux_loss - m.aux_loss) <= 1e-5 * fabs(m.aux_loss),
           "%s: auxiliary loss %.9g against %.9g", c->name, metrics->aux_loss, m.aux_loss);
    EXPECT(metrics->dropped == (double)m.dropped, "%s: %g dropped, expected %zu", c->name,
           metrics->dropped, m.dropped);
    const weft_moe_state *state = rig_state(r);
    for (size_t e = 0; e < experts; e++)
        EXPECT((size_t)(state->cut.parts[0].offsets[e + 1] - state->cut.parts[0].offsets[e]) ==
                   m.expert_tokens[e],
               "%s: expert %zu has %lld rows, expected %zu", c->name, e,
               (long long)(state->cut.parts[0].offsets[e + 1] - state->cut.parts[0].offsets[e]),
               m.expert_tokens[e]);
    if (c->form == MOE_ALL_TO_ONE && m.dropped == 0)
        EXPECT(m.expert_tokens[0] == m.tokens, "%s: does not test what it says", c->name);
    if (c->form == MOE_LAST_STARVED)
        EXPECT(m.expert_tokens[experts - 1] == 0, "%s: does not test what it says", c->name);
    for (size_t i = 0; i < count; i++)
        EXPECT(isfinite(r->dx[i]), "%s: dx[%zu] is %g", c->name, i, (double)r->dx[i]);

    if (has_slopes(c))
        check_slopes(c, &m, wide_x, count, r->dx, "x");
    for (int i = 0; i < 5; i++)
        if (weights[i]) {
            weft_parameter *p = rig_parameter(r, names[i]);
            size_t num = weft_tensor_count(&p->weight);
            float *grad = contiguous(p, true);
            for (size_t k = 0; k < num; k++)
                EXPECT(isfinite(grad[k]), "%s: %s", c->name, names[i]);
            if (has_slopes(c))
                check_slopes(c, &m, weights[i], num, grad, names[i]);
            free(grad);
        }
    for (int i = 0; i < 5; i++)
        free(weights[i]);
    free(x);
    free(dy);
    free(wide_x);
    free(wide_dy);
    free(m.y);
    free(m.expert_tokens);
    free(y);
}

void moe_case_check_definition(const moe_case *c)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    weft_comm *self;
    rig r;
    EXPECT_OK(options_of(c, &arena, &options));
    EXPECT_OK(weft_comm_create_self(&self));
    weft_status status = rig_create(&r, self, &options, NULL, c->batch, WEFT_F32, weft_moe_create);
    EXPECT(status == WEFT_OK, "%s: %s", c->name, weft_error_get()->text);
    if (status == WEFT_OK)
        check_definition(c, &r);
    rig_release(&r);
    weft_comm_destroy(self);
    weft_arena_release(&arena);
}

/* --- a mesh against one rank ----------------------------------------------------------------- */

/* What all micro-batches gave together. */
typedef struct outcome {
    float *y, *dx;
    double *gradients[MAX_PARAMETERS];
    size_t counts[MAX_PARAMETERS];
    int num_parameters;
    double aux_loss, dropped;
} outcome;

/* Runs `parts` passes of `rows` rows each on this process alone. */
static void run_single(const moe_case *c, const weft_model_options *options, size_t parts,
                       const float *x, const float *dy, outcome *out)
{
    weft_comm *self;
    rig r;
    memset(out, 0, sizeof *out);
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(rig_create(&r, self, options, NULL, c->batch, WEFT_F32, weft_moe_create));
    steer_router(c, &r);
    size_t part = r.rows * r.hidden;
    out->y = malloc((parts * part + 1) * sizeof *out->y);
    out->dx = malloc((parts * part + 1) * sizeof *out->dx);
    for (size_t p = 0; p < parts; p++) {
        EXPECT_OK(rig_pass(&r, x + p * part, dy + p * part, p == 0));
        memcpy(out->y + p * part, r.y, part * sizeof *r.y);
        memcpy(out->dx + p * part, r.dx, part * sizeof *r.dx);
        out->aux_loss += weft_model_metrics(r.h.model)->aux_loss;
        out->dropped += weft_model_metrics(r.h.model)->dropped;
    }
    double same;
    out->num_parameters = weft_parameters_count(weft_model_parameters(r.h.model));
    for (int i = 0; i < out->num_parameters; i++)
        out->gradients[i] = rig_gradient(&r, i, &out->counts[i], &same);
    rig_release(&r);
    weft_comm_destroy(self);
}

static void outcome_release(outcome *o)
{
    for (int i = 0; i < o->num_parameters; i++)
        free(o->gradients[i]);
    free(o->y);
    free(o->dx);
}

static double compare(const moe_case *c, const char *mesh, rig *r, const outcome *expected)
{
    const double bound = c->bound == MOE_CANCELS ? 2e-4 : 5e-6;
    size_t place = (size_t)r->h.groups.coords.at[WEFT_AXIS_DP];
    size_t at = (place * r->rows_full + r->first_row) * r->hidden, count = r->rows * r->hidden;
    double worst = rig_error(r->y, expected->y + at, count);
    EXPECT(worst <= bound, "%s on %s: y is off by %.3g", c->name, mesh, worst);
    double error = rig_error(r->dx, expected->dx + at, count), same;
    EXPECT(error <= bound, "%s on %s: dx is off by %.3g", c->name, mesh, error);
    worst = fmax(worst, error);
    for (int i = 0; i < expected->num_parameters; i++) {
        const char *name = weft_parameters_at(weft_model_parameters(r->h.model), i)->parameter.name;
        size_t num;
        double *gradient = rig_gradient(r, i, &num, &same);
        EXPECT(gradient && num == expected->counts[i], "%s on %s: no gradient of %s", c->name, mesh,
               name);
        if (!gradient)
            continue;
        error = rig_error_of_doubles(gradient, expected->gradients[i], num);
        EXPECT(error <= bound, "%s on %s: gradient of %s is off by %.3g", c->name, mesh, name,
               error);
        EXPECT(same <= 1e-5, "%s on %s: ranks differ in the gradient of %s by %.3g", c->name, mesh,
               name, same);
        worst = fmax(worst, error);
        free(gradient);
    }
    /* One TP rank a micro-batch counts the loss, and drops where every TP rank routes alike. */
    double sums[2] = {weft_model_metrics(r->h.model)->aux_loss,
                      weft_model_metrics(r->h.model)->dropped};
    EXPECT_OK(weft_comm_all_reduce_host(r->h.world, sums, 2, WEFT_F64, WEFT_REDUCE_SUM));
    EXPECT(fabs(sums[0] - expected->aux_loss) <= 1e-5 * fabs(expected->aux_loss),
           "%s on %s: auxiliary loss %.9g against %.9g", c->name, mesh, sums[0],
           expected->aux_loss);
    EXPECT(sums[1] == expected->dropped, "%s on %s: %g dropped, expected %g", c->name, mesh,
           sums[1], expected->dropped);
    return worst;
}

static double check_mesh(const moe_case *c, weft_comm *world, const char *mesh)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    rig r;
    outcome expected;
    EXPECT_OK(options_of(c, &arena, &options));
    weft_status status = rig_create(&r, world, &options, mesh, c->batch, WEFT_F32, weft_moe_create);
    EXPECT(status == WEFT_OK, "%s on %s: %s", c->name, mesh, weft_error_get()->text);
    if (status != WEFT_OK)
        weft_comm_abort(world, status);
    steer_router(c, &r);
    const weft_mesh *m = &r.h.groups.mesh;
    const weft_moe *moe = (const weft_moe *)rig_layer(&r);
    size_t count = r.rows_full * r.hidden, dp = (size_t)m->dp, parts = dp;
    float *x = malloc((dp * count + 1) * sizeof *x), *dy = malloc((dp * count + 1) * sizeof *dy);
    for (size_t d = 0; d < dp; d++)
        make_rows(c, r.rows_full, r.hidden, d, x + d * count, dy + d * count);
    if (moe->dims.capacity > 0 && !moe->dims.full) {
        /* Each TP rank gives its slice of the sequence a capacity of its own. */
        EXPECT(options.moe_aux_loss_coeff == 0 && options.moe_z_loss_coeff == 0,
               "%s: a slice has no auxiliary loss of its own", c->name);
        options.seq_length /= m->tp;
        parts *= (size_t)m->tp;
    }
    run_single(c, &options, parts, x, dy, &expected);
    size_t mine = (size_t)r.h.groups.coords.at[WEFT_AXIS_DP] * count;
    status = rig_pass(&r, x + mine, dy + mine, true);
    EXPECT(status == WEFT_OK, "%s on %s: %s", c->name, mesh, weft_error_get()->text);
    if (status != WEFT_OK)
        weft_comm_abort(world, status);
    double worst = compare(c, mesh, &r, &expected);
    outcome_release(&expected);
    rig_release(&r);
    free(x);
    free(dy);
    weft_arena_release(&arena);
    return worst;
}

void moe_case_check_mesh(const moe_case *c, weft_comm *world, int ranks, const char *mesh)
{
    const bool first = weft_comm_rank(world) == 0;
    weft_comm *part = world_part(world, ranks);
    if (!part)
        return;
    const int failures = expect_failures;
    double worst = check_mesh(c, part, mesh);
    EXPECT_OK(weft_comm_all_reduce_host(part, &worst, 1, WEFT_F64, WEFT_REDUCE_MAX));
    if (first || expect_failures > failures)
        printf("%-26s %d ranks %-40s %.1e, %s, %s in %d chunks\n", c->name, ranks, mesh, worst,
               weft_moe_pipeline_text(&harness_moe.pipeline).text,
               weft_exchange_text((int)harness_moe.form), harness_moe.num_chunks);
    weft_comm_destroy(part);
}
