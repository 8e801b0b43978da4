/* The same global gradients give, on every mesh, with and without ZeRO-1 and overlap, in fp32 and
 * bf16, and with a loss scale whose overflows skip steps, the weights of a plain AdamW, or Muon
 * beside it, with clipping in fp64, with rules for some parameters; what moves by signs has moved
 * by them alone and is no part of the norm. */
#include <weft/kernels.h>

#include "parallel/optimizer/optimizer.h"
#include "state_model.h"

enum { STEPS = 5 };

static const weft_optimizer_options base_options = {.muon = {.momentum = 0.95,
                                                             .use_nesterov = true,
                                                             .num_ns_steps = 5,
                                                             .scale_mode = WEFT_MUON_SPECTRAL,
                                                             .extra_scale_factor = 0.2},
                                                    .adam_beta1 = 0.9,
                                                    .adam_beta2 = 0.95,
                                                    .adam_eps = 1e-2, /* so that clipping shows */
                                                    .weight_decay = 0.1,
                                                    .clip_grad = 30.0};

static double rate_of(int step)
{
    return 0.02 / step;
}

static float gradient(const char *name, uint64_t index, int step)
{
    uint64_t stream = weft_rng_stream_mix(weft_rng_stream_of(name), (uint64_t)step);
    return (float)step * weft_rng_normal(STATE_SEED + 1, stream, index);
}

/* --- the reference ------------------------------------------------------------------------- */

/* The last rule that says something of a parameter counts. */
static const char *const rules[] = {
    "*qkv.weight lr_mult=0.25",          "*experts.fc? wd_mult=3 lr_mult=2",
    "decoder.layers.[12].proj.* frozen", "decoder.layers.2.proj.bias frozen=false",
    "*norm.weight wd_mult=0.5",          "decoder.layers.3.experts.fc2  lr_mult=1"};

/* The same in other words. */
static void say_rules(const char *name, double *lr_mult, double *wd_mult, bool *frozen)
{
    const int layer = strncmp(name, "decoder.layers.", 15) == 0 ? name[15] - '0' : -1;
    if (strstr(name, "qkv.weight"))
        *lr_mult = 0.25;
    if (strstr(name, "norm.weight"))
        *wd_mult = 0.5;
    if (strstr(name, "experts.fc")) {
        *wd_mult = 3;
        *lr_mult = layer == 3 && strstr(name, "fc2") ? 1 : 2;
    }
    *frozen = strstr(name, ".proj.") && (layer == 1 || (layer == 2 && strstr(name, "weight")));
}

typedef struct reference_tensor {
    char name[WEFT_MAX_NAME_BYTES];
    size_t count;
    double decay, lr_mult, sign_rate, *weight, *m, *v;
    bool frozen;
} reference_tensor;

typedef struct reference {
    reference_tensor tensors[64];
    int count;
    double norms[STEPS + 1];
} reference;

static void reference_add(reference *r, const weft_placed *p)
{
    reference_tensor *t = &r->tensors[r->count];
    for (int i = 0; i < r->count; i++) {
        if (!strcmp(r->tensors[i].name, p->parameter.name))
            return;
    }
    r->count++;
    strcpy(t->name, p->parameter.name);
    t->count = 1;
    for (int d = 0; d < p->box.num_dims; d++)
        t->count *= p->box.global_dims[d];
    double wd_mult = p->parameter.spec->no_weight_decay ? 0 : 1;
    t->lr_mult = 1;
    say_rules(t->name, &t->lr_mult, &wd_mult, &t->frozen);
    t->decay = wd_mult * base_options.weight_decay;
    t->sign_rate = (double)p->parameter.spec->sign_rate;
    t->weight = calloc(3 * t->count, sizeof(double));
    t->m = t->weight + t->count;
    t->v = t->m + t->count;
    const weft_parameter_spec *spec = p->parameter.spec;
    for (size_t i = 0; i < t->count; i++) {
        float normal = weft_rng_normal(STATE_SEED, weft_rng_stream_of(t->name), i);
        t->weight[i] = spec->init == WEFT_INIT_ZERO  ? 0.0
                       : spec->init == WEFT_INIT_ONE ? 1.0
                                                     : (double)(spec->init_std * normal);
    }
}

enum { MAX_SIDE = 24 };
static weft_dtype muon_dtype = WEFT_F32; /* of its products, and what that may change in weights */
static double muon_slack = 0;

/* x[rows, cols] becomes what five Newton-Schulz steps make of x / |x|, times 0.2 sqrt(rows or
 * cols). */
static void reference_orthogonalise(double x[MAX_SIDE][MAX_SIDE], size_t rows, size_t cols)
{
    double gram[MAX_SIDE][MAX_SIDE], poly[MAX_SIDE][MAX_SIDE], y[MAX_SIDE][MAX_SIDE], norm = 0;
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++)
            norm += x[i][k] * x[i][k];
    norm = fmax(sqrt(norm), 1e-7);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++)
            x[i][k] /= norm;
    for (int step = 0; step < 5; step++) {
        memset(gram, 0, sizeof gram);
        memset(poly, 0, sizeof poly);
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < rows; j++)
                for (size_t k = 0; k < cols; k++)
                    gram[i][j] += x[i][k] * x[j][k];
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < rows; j++) {
                poly[i][j] = -4.7750 * gram[i][j];
                for (size_t k = 0; k < rows; k++)
                    poly[i][j] += 2.0315 * gram[i][k] * gram[k][j];
            }
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j++) {
                y[i][j] = 3.4445 * x[i][j];
                for (size_t k = 0; k < rows; k++)
                    y[i][j] += poly[i][k] * x[k][j];
            }
        memcpy(x, y, sizeof y);
    }
    const double scale = 0.2 * sqrt((double)(rows > cols ? rows : cols));
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++)
            x[i][k] *= scale;
}

/* The matrices of a tensor: of its `count` blocks of rows those from `first` on, of each `period`
 * so many. rows 0: no more. */
typedef struct reference_matrices {
    const char *name;
    size_t count, block_rows, cols, period, first, rows;
} reference_matrices;
static const reference_matrices matrices[] = {
    {"qkv.weight", 1, 24, 6, 6, 0, 4},    {"qkv.weight", 1, 24, 6, 6, 4, 1},
    {"qkv.weight", 1, 24, 6, 6, 5, 1},    {"proj.weight", 1, 6, 8, 6, 0, 6},
    {"groups.weight", 1, 12, 6, 6, 0, 4}, {"groups.weight", 1, 12, 6, 6, 4, 2},
    {"experts.fc1", 8, 10, 6, 10, 0, 10}, {"experts.fc2", 8, 6, 10, 6, 0, 6}};

static void reference_step_matrices(const reference_matrices *s, double *direction)
{
    for (size_t b = 0; b < s->count; b++) {
        double x[MAX_SIDE][MAX_SIDE] = {{0}};
        size_t of[MAX_SIDE], num = 0;
        for (size_t row = 0; row < s->block_rows; row++)
            if (row % s->period >= s->first && row % s->period < s->first + s->rows)
                of[num++] = (b * s->block_rows + row) * s->cols;
        for (size_t i = 0; i < num; i++)
            memcpy(x[i], &direction[of[i]], s->cols * sizeof x[i][0]);
        reference_orthogonalise(x, num, s->cols);
        for (size_t i = 0; i < num; i++)
            memcpy(&direction[of[i]], x[i], s->cols * sizeof x[i][0]);
    }
}

/* Whether the tensor has matrices, which then are stepped. */
static bool reference_muon(reference_tensor *t, double clip, int step)
{
    const double b = base_options.muon.momentum;
    double direction[512];
    bool has = false;
    for (size_t k = 0; k < sizeof matrices / sizeof *matrices; k++) {
        if (!strstr(t->name, matrices[k].name))
            continue;
        for (size_t i = 0; i < t->count && !has; i++) {
            const double g = clip * gradient(t->name, i, step);
            t->m[i] = b * t->m[i] + (1 - b) * g;
            direction[i] = b * t->m[i] + (1 - b) * g;
        }
        has = true;
        reference_step_matrices(&matrices[k], direction);
    }
    for (size_t i = 0; i < t->count && has; i++)
        t->weight[i] -= t->lr_mult * rate_of(step) * (direction[i] + t->decay * t->weight[i]);
    return has;
}

static void reference_step(reference *r, int step)
{
    double sum = 0.0;
    const weft_optimizer_options *o = &base_options;
    for (int k = 0; k < r->count; k++) {
        const bool counts = r->tensors[k].sign_rate == 0 && !r->tensors[k].frozen;
        for (size_t i = 0; i < r->tensors[k].count && counts; i++)
            sum += pow(gradient(r->tensors[k].name, i, step), 2.0);
    }
    r->norms[step] = sqrt(sum);
    double clip = o->clip_grad / (r->norms[step] + 1e-6);
    clip = clip < 1.0 ? clip : 1.0;
    for (int k = 0; k < r->count; k++) {
        reference_tensor *t = &r->tensors[k];
        if (state_muon && !t->frozen && reference_muon(t, clip, step))
            continue;
        for (size_t i = 0; i < t->count && !t->frozen; i++) {
            double g = clip * gradient(t->name, i, step);
            if (t->sign_rate > 0) {
                t->m[i] = g;
                t->v[i] = g * g;
                t->weight[i] -= g > 0 ? t->sign_rate : -t->sign_rate;
                continue;
            }
            t->m[i] = o->adam_beta1 * t->m[i] + (1.0 - o->adam_beta1) * g;
            t->v[i] = o->adam_beta2 * t->v[i] + (1.0 - o->adam_beta2) * g * g;
            double m = t->m[i] / (1.0 - pow(o->adam_beta1, step));
            double v = t->v[i] / (1.0 - pow(o->adam_beta2, step));
            t->weight[i] -= t->lr_mult * rate_of(step) *
                            (m / (sqrt(v) + o->adam_eps) + t->decay * t->weight[i]);
        }
    }
}

/* The whole model, from a world of this process alone. */
static void reference_make(reference *r)
{
    weft_comm *self;
    state_model m;
    memset(r, 0, sizeof *r);
    EXPECT_OK(weft_comm_create_self(&self));
    if (state_model_create(&m, self, "tp=1", WEFT_F32, NULL)) {
        for (int i = 0; i < weft_parameters_count(m.parameters); i++)
            reference_add(r, weft_parameters_at(m.parameters, i));
    }
    state_model_release(&m);
    weft_comm_destroy(self);
    for (int step = 1; step <= STEPS; step++)
        reference_step(r, step);
}

static const reference_tensor *reference_find(const reference *r, const char *name)
{
    for (int i = 0; i < r->count; i++) {
        if (!strcmp(r->tensors[i].name, name))
            return &r->tensors[i];
    }
    return NULL;
}

/* --- a run --------------------------------------------------------------------------------- */

/* A rank's part of a sum, different on each rank so that a sum over a wrong group shows. */
static float part_of(int rank, int size)
{
    return 2.0f * (float)(rank + 1) / (float)(size * (size + 1));
}

static float local_part(const state_model *m, const weft_placed *p)
{
    const weft_coords *c = &m->groups.coords;
    weft_axis axis = p->parameter.spec->is_expert ? WEFT_AXIS_EDP : WEFT_AXIS_DP_CP;
    float part = part_of(c->at[axis], c->size[axis]);
    if (p->parameter.spec->sum_over_tp)
        part *= part_of(c->at[WEFT_AXIS_TP], c->size[WEFT_AXIS_TP]);
    if (p->rows.sharers > 1)
        part *= part_of(c->at[WEFT_AXIS_TP] % p->rows.sharers, p->rows.sharers);
    if (p->section == WEFT_SECTION_EMBEDDING)
        part *= p->parameter.tied_copy ? 0.75f : 0.25f;
    return part;
}

typedef struct fill {
    const state_model *m;
    int layer, step;
    float scale;   /* the loss scale */
    bool overflow; /* the layer's gradients do */
} fill;

/* Stands for a layer's backward; runs on the compute lane. */
static weft_status fill_gradients(const void *args)
{
    const fill *f = args;
    for (int i = 0; i < weft_parameters_count(f->m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(f->m->parameters, i);
        float part = f->overflow ? INFINITY : f->scale * local_part(f->m, p);
        for (size_t e = 0; p->layer == f->layer && e < p->count; e++) {
            uint64_t index;
            bool valid = state_global_index(&p->box, e, &index);
            p->parameter.grad[weft_parameter_place(&p->parameter, e)] =
                valid ? part * gradient(p->parameter.name, index, f->step) : 0.0f;
        }
    }
    return WEFT_OK;
}

/* The buckets that are complete by `layer`, with what comes before the first of a section. */
static void reduce_from(state_model *m, weft_event *filled, int *next, int layer)
{
    for (; *next < weft_optimizer_num_buckets(m->optimizer); (*next)++) {
        weft_bucket_shape shape = weft_optimizer_bucket(m->optimizer, *next);
        if (shape.layer < layer)
            break;
        EXPECT_OK(weft_lane_record(m->compute, filled));
        EXPECT_OK(weft_lane_wait(m->reduce, filled));
        if (shape.sum && weft_optimizer_bucket(m->optimizer, *next - 1).sum != shape.sum)
            EXPECT_OK(weft_optimizer_sum(m->optimizer, shape.sum, m->reduce));
        if (weft_bucket_reduces(&shape))
            EXPECT_OK(weft_optimizer_reduce(m->optimizer, *next, m->reduce));
    }
}

/* Each bucket's update on the compute lane, its gather on the reduce lane behind that. */
static weft_status update(state_model *m, weft_event *event, const double *loss, int step,
                          double rate)
{
    EXPECT_OK(weft_lane_record(m->reduce, event));
    EXPECT_OK(weft_lane_wait(m->compute, event));
    WEFT_TRY(weft_optimizer_norm(m->optimizer, m->compute, loss));
    for (int b = 0; b < weft_optimizer_num_buckets(m->optimizer); b++) {
        WEFT_TRY(weft_optimizer_update(m->optimizer, b, m->compute, step, rate));
        WEFT_TRY(weft_lane_record(m->compute, event));
        WEFT_TRY(weft_lane_wait(m->reduce, event));
        WEFT_TRY(weft_optimizer_gather(m->optimizer, b, m->reduce));
    }
    WEFT_TRY(weft_lane_sync(m->reduce));
    return weft_lane_sync(m->compute);
}

static weft_status take_step(state_model *m, int step, int overflow_layer)
{
    weft_event *event;
    int next = 0;
    EXPECT_OK(weft_event_create(weft_lane_device(m->compute), &event));
    for (int layer = STATE_LAYERS + 2; layer >= 0; layer--) {
        fill f = {.m = m,
                  .layer = layer,
                  .step = step,
                  .scale = (float)weft_loss_scale_factor(weft_optimizer_loss_scale(m->optimizer)),
                  .overflow = layer == overflow_layer};
        EXPECT_OK(weft_lane_submit(m->compute, "backward", fill_gradients, &f, sizeof f));
        reduce_from(m, event, &next, layer);
    }
    reduce_from(m, event, &next, -1);
    weft_status status = update(m, event, NULL, step, rate_of(step));
    weft_event_destroy(event);
    return status;
}

/* Buckets by layer, then those that are summed first; all elements of the stage, once. */
static void check_buckets(const state_model *m, bool distributed, bool overlap)
{
    uint64_t elements = 0, wanted = 0;
    int32_t layer = STATE_LAYERS + 2;
    weft_bucket_sum sum = WEFT_BUCKET_SUM_NONE;
    for (int b = 0; b < weft_optimizer_num_buckets(m->optimizer); b++) {
        weft_bucket_shape shape = weft_optimizer_bucket(m->optimizer, b);
        EXPECT(shape.layer <= layer && shape.sum >= sum, "bucket %d: layer %d after %d, sum %d", b,
               shape.layer, layer, shape.sum);
        EXPECT((shape.layer >= 0) == (overlap && !shape.sum) || shape.layer < 0,
               "bucket %d waits for layer %d", b, shape.layer);
        EXPECT(weft_bucket_gathers(&shape) == (weft_bucket_reduces(&shape) && distributed),
               "bucket %d gathers: %d", b, weft_bucket_gathers(&shape));
        layer = shape.layer;
        sum = shape.sum;
        elements += shape.elements;
    }
    EXPECT(!overlap || weft_optimizer_bucket(m->optimizer, 0).layer >= 0, "nothing overlaps");
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        wanted += weft_parameters_section(m->parameters, (weft_section_kind)kind)->count;
    EXPECT(elements == wanted, "buckets hold %llu elements, not %llu", (unsigned long long)elements,
           (unsigned long long)wanted);
}

static void check_weights(const state_model *m, const reference *r)
{
    bool is_bf16 = weft_parameters_dtype(m->parameters) == WEFT_BF16;
    for (int i = 0; i < weft_parameters_count(m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(m->parameters, i);
        const reference_tensor *t = reference_find(r, p->parameter.name);
        double worst = 0.0;
        for (size_t e = 0; t && e < p->count; e++) {
            uint64_t index;
            double wanted = state_global_index(&p->box, e, &index) ? t->weight[index] : 0.0;
            double slack = is_bf16 ? fabs(wanted) / 256.0 : 0.0;
            double error = fabs((double)state_weight(p, e) - wanted) - slack;
            worst = error > worst ? error : worst;
        }
        EXPECT(t && worst <= 1e-6 + muon_slack, "%s is off by %g", p->parameter.name, worst);
    }
}

static uint64_t hash_of(uint64_t hash, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return weft_rng_stream_mix(hash, bits);
}

/* Masters are within 1e-6, weights are their rounding, and each element of the model has exactly
 * one writer. Returns a hash of this rank's pieces. */
static uint64_t check_pieces(const state_model *m, const reference *r, weft_comm *world)
{
    uint64_t hash = 0;
    double written[64] = {0};
    EXPECT_OK(weft_optimizer_join(m->optimizer, m->compute));
    EXPECT_OK(weft_lane_sync(m->compute));
    for (int i = 0; i < weft_optimizer_num_pieces(m->optimizer); i++) {
        weft_state_piece piece = weft_optimizer_piece(m->optimizer, i);
        const weft_placed *p = piece.placed;
        const reference_tensor *t = reference_find(r, p->parameter.name);
        bool is_bf16 = weft_parameters_dtype(m->parameters) == WEFT_BF16;
        size_t num_unlike = 0;
        double worst = 0.0;
        for (size_t e = 0; t && e < piece.count; e++) {
            uint64_t index;
            if (!state_global_index(&p->box, piece.first + e, &index))
                continue;
            float master = piece.data[WEFT_STATE_MASTER][e];
            double errors[WEFT_NUM_STATES] = {
                fmax(0, fabs(master - t->weight[index]) - muon_slack),
                fabs(piece.data[WEFT_STATE_EXP_AVG][e] - t->m[index]),
                piece.data[WEFT_STATE_EXP_AVG_SQ]
                    ? fabs(piece.data[WEFT_STATE_EXP_AVG_SQ][e] - t->v[index])
                    : 0};
            for (int kind = 0; kind < WEFT_NUM_STATES && piece.data[kind]; kind++) {
                worst = errors[kind] > worst ? errors[kind] : worst;
                hash = hash_of(hash, piece.data[kind][e]);
            }
            float weight = is_bf16 ? state_bf16(master) : master;
            num_unlike += weight != state_weight(p, piece.first + e);
            written[t - r->tensors] += piece.writer;
        }
        EXPECT(t && worst <= 1e-6, "%s: state is off by %g", p->parameter.name, worst);
        const bool is_stepped_by_muon = state_muon && p->spec.is_matrix;
        EXPECT(is_stepped_by_muon == !piece.data[WEFT_STATE_EXP_AVG_SQ],
               "%s has second moments: %d", p->parameter.name, is_stepped_by_muon);
        EXPECT(num_unlike == 0, "%s: %zu weights are not their master's rounding",
               p->parameter.name, num_unlike);
    }
    EXPECT_OK(weft_comm_all_reduce_host(world, written, 64, WEFT_F64, WEFT_REDUCE_SUM));
    for (int i = 0; i < r->count; i++)
        EXPECT(written[i] == (double)r->tensors[i].count, "%s: %g of %zu elements have a writer",
               r->tensors[i].name, written[i], r->tensors[i].count);
    EXPECT_OK(weft_optimizer_leave(m->optimizer, m->compute));
    return hash;
}

static uint64_t check_form(weft_comm *world, const reference *r, const char *mesh, weft_dtype dtype,
                           bool distributed, bool overlap, bool split)
{
    state_model m;
    uint64_t hash = 0;
    int before = expect_failures;
    weft_optimizer_options options = base_options;
    options.sharding = distributed ? WEFT_SHARD_OPTIM : WEFT_NO_SHARD;
    options.overlap = overlap;
    options.split_master = split;
    options.muon.dtype = muon_dtype;
    if (state_model_create(&m, world, mesh, dtype, &options)) {
        EXPECT_OK(weft_optimizer_initialize(m.optimizer, m.compute, STATE_SEED));
        check_buckets(&m, distributed, overlap);
        for (int step = 1; step <= STEPS; step++) {
            EXPECT_OK(take_step(&m, step, -1));
            double norm = weft_optimizer_grad_norm(m.optimizer);
            EXPECT(fabs(norm / r->norms[step] - 1.0) < 1e-6, "norm %.9g, not %.9g", norm,
                   r->norms[step]);
        }
        check_weights(&m, r);
        hash = check_pieces(&m, r, world);
    }
    EXPECT(before == expect_failures, "on mesh %s, %s, zero %d, overlap %d, split %d", mesh,
           weft_dtype_text(dtype), distributed, overlap, split);
    state_model_release(&m);
    return hash;
}

/* bf16 masters whole and split: the same bits. */
static void check_run(weft_comm *world, const reference *r, const char *mesh, weft_dtype dtype,
                      bool distributed, bool overlap)
{
    uint64_t whole = check_form(world, r, mesh, dtype, distributed, overlap, false);
    if (dtype == WEFT_BF16)
        EXPECT(check_form(world, r, mesh, dtype, distributed, overlap, true) == whole,
               "on mesh %s, zero %d: split masters have other bits", mesh, distributed);
}

/* The norms' bits, and a hash of the experts' state, after steps whose gradients are the experts'
 * alone; runs of expert buckets are as long as `bucket_elements` lets them. */
static uint64_t step_experts(weft_comm *world, const char *mesh, bool distributed,
                             size_t bucket_elements, int *out_runs)
{
    state_model m;
    uint64_t hash = 0;
    weft_optimizer_options options = base_options;
    options.sharding = distributed ? WEFT_SHARD_OPTIM : WEFT_NO_SHARD;
    *out_runs = 0;
    state_bucket_elements = bucket_elements;
    if (state_model_create(&m, world, mesh, WEFT_BF16, &options)) {
        weft_event *event;
        EXPECT_OK(weft_event_create(m.device, &event));
        EXPECT_OK(weft_optimizer_initialize(m.optimizer, m.compute, STATE_SEED));
        for (int step = 1; step <= 3; step++) {
            int next = 0;
            for (int layer = 0; layer <= STATE_LAYERS + 2; layer++) {
                fill f = {.m = &m, .layer = layer, .step = step, .scale = 1};
                EXPECT_OK(weft_lane_submit(m.compute, "backward", fill_gradients, &f, sizeof f));
            }
            EXPECT_OK(weft_lane_sync(m.compute));
            for (int i = 0; i < weft_parameters_count(m.parameters); i++) {
                const weft_placed *p = weft_parameters_at(m.parameters, i);
                if (p->experts == 0)
                    memset(p->parameter.grad, 0, p->count * sizeof(float));
            }
            reduce_from(&m, event, &next, -1);
            EXPECT_OK(update(&m, event, NULL, step, rate_of(step)));
            uint64_t bits;
            const double norm = weft_optimizer_grad_norm(m.optimizer);
            memcpy(&bits, &norm, sizeof bits);
            hash = weft_rng_stream_mix(hash, bits);
        }
        for (int i = 0; i < weft_optimizer_num_pieces(m.optimizer); i++) {
            weft_state_piece piece = weft_optimizer_piece(m.optimizer, i);
            for (size_t e = 0; piece.placed->experts > 0 && e < piece.count; e++)
                for (int kind = 0; kind < WEFT_NUM_STATES; kind++)
                    hash +=
                        hash_of(weft_rng_stream_of(piece.placed->parameter.name) + piece.first + e,
                                piece.data[kind][e]);
        }
        for (int b = 0; b < weft_optimizer_num_buckets(m.optimizer); b++)
            *out_runs += weft_optimizer_bucket(m.optimizer, b).num_experts > 0;
        weft_event_destroy(event);
    }
    state_model_release(&m);
    state_bucket_elements = STATE_BUCKET;
    return hash;
}

static void check_runs(weft_comm *world, const char *mesh, bool distributed)
{
    int runs[3];
    const uint64_t ones = step_experts(world, mesh, distributed, 1, &runs[0]),
                   some = step_experts(world, mesh, distributed, 1100, &runs[1]),
                   all = step_experts(world, mesh, distributed, 0, &runs[2]);
    EXPECT(runs[0] >= runs[1] && runs[1] >= runs[2] && runs[0] > runs[2], "%s: %d, %d and %d runs",
           mesh, runs[0], runs[1], runs[2]);
    EXPECT(ones == some && some == all, "%s, zero %d: bits depend on the length of runs", mesh,
           distributed);
}

/* A gradient, or a part of the loss, that is not finite on one rank stops all ranks before any
 * steps. */
static void check_not_finite(weft_comm *world, const char *mesh, bool distributed, bool is_loss)
{
    state_model m;
    int rank = weft_comm_rank(world), size = weft_comm_size(world);
    weft_optimizer_options options = base_options;
    options.sharding = distributed ? WEFT_SHARD_OPTIM : WEFT_NO_SHARD;
    if (state_model_create(&m, world, mesh, WEFT_F32, &options)) {
        EXPECT_OK(weft_optimizer_initialize(m.optimizer, m.compute, STATE_SEED));
        for (int layer = 0; layer <= STATE_LAYERS + 2; layer++) {
            fill f = {.m = &m, .layer = layer, .step = 1, .scale = 1};
            EXPECT_OK(weft_lane_submit(m.compute, "backward", fill_gradients, &f, sizeof f));
        }
        EXPECT_OK(weft_lane_sync(m.compute));
        const char *name = "decoder.layers.3.experts.fc1";
        weft_parameter *bad = weft_parameters_find(m.parameters, name);
        double loss = is_loss && rank == size - 1 ? INFINITY : 1;
        if (bad && rank == size - 1 && !is_loss)
            bad->grad[5] = (float)NAN;
        weft_event *event;
        int next = 0;
        EXPECT_OK(weft_event_create(m.device, &event));
        reduce_from(&m, event, &next, -1);
        const weft_placed *p = weft_parameters_at(m.parameters, 0);
        float before = state_weight(p, 0);
        weft_status status = update(&m, event, &loss, 1, 0.1);
        char part[96];
        snprintf(part, sizeof part,
                 "gradient norm is not finite; first in decoder.layers.3.experts.fc1 on rank %d",
                 size - 1);
        if (is_loss)
            snprintf(part, sizeof part, "loss is inf on rank %d", size - 1);
        EXPECT_ERROR(status, WEFT_DIVERGED, part);
        EXPECT(before == state_weight(p, 0), "rank %d stepped", rank);
        weft_event_destroy(event);
    }
    state_model_release(&m);
}

/* Steps that overflow on one rank are taken by none; the others are as without a scale. */
static void check_scaled(weft_comm *world, const reference *r, const char *mesh, bool distributed)
{
    state_model m;
    int rank = weft_comm_rank(world), size = weft_comm_size(world), before = expect_failures;
    int overflows = rank == size - 1 ? 1 : -1; /* layer 1 of the last rank */
    weft_optimizer_options options = base_options;
    options.sharding = distributed ? WEFT_SHARD_OPTIM : WEFT_NO_SHARD;
    options.loss_scale =
        (weft_loss_scale_options){.initial = 4096, .min = 1024, .window = 2, .hysteresis = 1};
    options.split_master = distributed;
    if (state_model_create(&m, world, mesh, WEFT_BF16, &options)) {
        weft_loss_scale *scale = weft_optimizer_loss_scale(m.optimizer);
        EXPECT_OK(weft_optimizer_initialize(m.optimizer, m.compute, STATE_SEED));
        for (int step = 1; step <= STEPS; step++) {
            if (step % 2 == 1)
                EXPECT_OK(take_step(&m, step, overflows));
            EXPECT_OK(take_step(&m, step, -1));
            double norm = weft_optimizer_grad_norm(m.optimizer);
            EXPECT(fabs(norm / r->norms[step] - 1.0) < 1e-6, "norm %.9g, not %.9g", norm,
                   r->norms[step]);
        }
        EXPECT(scale->skipped_steps == 3 && scale->scale == 2048, "%lld steps skipped, scale %g",
               (long long)scale->skipped_steps, scale->scale);
        check_weights(&m, r);
        check_pieces(&m, r, world);
        EXPECT_OK(take_step(&m, 1, overflows));
        EXPECT_ERROR(take_step(&m, 1, overflows), WEFT_DIVERGED,
                     "gradients overflow at the lowest loss scale, 1024; first in ");
    }
    EXPECT(before == expect_failures, "with a loss scale on mesh %s, zero %d", mesh, distributed);
    state_model_release(&m);
}

static const char *const meshes_of_1[] = {"tp=1", NULL};
static const char *const meshes_of_2[] = {"tp=2", "pp=2", "dp=2", "dp=2,ep=2", "tp=2,binding=tp",
                                          NULL};
static const char *const meshes_of_4[] = {
    "tp=2,pp=2",      "tp=2,dp=2,binding=tp",           "dp=4,ep=2", "tp=2,dp=2,ep=2,etp=2",
    "tp=2,dp=2,ep=4", "pp=2,dp=2,order=dp-pp-tp-cp-ep", "pp=4",      NULL};
static const char *const meshes_of_8[] = {"tp=2,pp=2,dp=2,binding=tp", "tp=2,pp=2,dp=2,ep=4",
                                          "tp=4,dp=2,ep=2", NULL};

/* A bit that flips in rows that two of four TP ranks share is found by these. */
static void check_sharers(weft_comm *world)
{
    state_model m;
    weft_replica_report report = {0};
    if (state_model_create(&m, world, "tp=4", WEFT_F32, &base_options)) {
        EXPECT_OK(weft_optimizer_initialize(m.optimizer, m.compute, STATE_SEED));
        EXPECT_OK(weft_lane_sync(m.compute));
        EXPECT_OK(weft_replicas_compare(m.optimizer, false, m.compute, &report));
        EXPECT(report.num_differ == 0, "%s differs over %s", report.name, report.group);
        int i = 0;
        while (weft_parameters_at(m.parameters, i)->rows.sharers <= 1)
            i++;
        if (weft_comm_rank(world) == 3)
            *(float *)weft_parameters_at(m.parameters, i)->parameter.weight.data += 1;
        EXPECT_OK(weft_replicas_compare(m.optimizer, false, m.compute, &report));
        EXPECT(report.num_differ == 1 && !strcmp(report.group, "tp sharers") &&
                   report.num_replicas == 2 && report.rank + report.other == 5 &&
                   !strcmp(report.name, "decoder.layers.0.groups.weight"),
               "%d differ: %s over %s: %d and %d", report.num_differ, report.name, report.group,
               report.rank, report.other);
    }
    state_model_release(&m);
}

/* Muon on every mesh, and one whose step is skipped. */
static void check_muon(weft_comm *world, const char *const *meshes)
{
    static reference r;
    state_muon = true;
    reference_make(&r);
    for (int i = 0; meshes[i]; i++) {
        check_run(world, &r, meshes[i], WEFT_F32, true, true);
        check_form(world, &r, meshes[i], WEFT_BF16, i % 2, i % 2, i % 3 > 0);
    }
    check_scaled(world, &r, meshes[0], true);
    muon_dtype = WEFT_BF16;
    muon_slack = 5e-3;
    check_form(world, &r, meshes[0], WEFT_BF16, true, true, true);
    muon_slack = 0;
    muon_dtype = WEFT_F32;
    for (int i = 0; i < r.count; i++)
        free(r.tensors[i].weight);
    state_muon = false;
}

int main(void)
{
    state_rules = (weft_string_list){.values = rules, .count = sizeof rules / sizeof *rules};
    static reference r;
    weft_comm *world = world_begin(0);
    const int size = weft_comm_size(world);
    const char *const *meshes = size == 1   ? meshes_of_1
                                : size == 2 ? meshes_of_2
                                : size == 4 ? meshes_of_4
                                            : meshes_of_8;
    reference_make(&r);
    for (int i = 0; meshes[i]; i++) {
        check_run(world, &r, meshes[i], WEFT_F32, true, true);
        check_run(world, &r, meshes[i], WEFT_BF16, true, i % 2);
        check_run(world, &r, meshes[i], i % 2 ? WEFT_F32 : WEFT_BF16, false, i % 2 == 0);
        if (size < 8)
            check_run(world, &r, meshes[i], i % 2 ? WEFT_BF16 : WEFT_F32, false, i % 2);
    }
    for (int i = 0; size <= 4 && i < 2 && meshes[i]; i++)
        for (int distributed = 0; distributed < 2; distributed++)
            check_runs(world, meshes[i], distributed);
    check_not_finite(world, meshes[0], true, false);
    check_not_finite(world, meshes[0], true, true);
    if (size < 8)
        check_not_finite(world, meshes[0], false, false);
    for (int i = 0; meshes[i] && i < 3; i++)
        check_scaled(world, &r, meshes[i], i % 2 == 0);
    if (size == 4)
        check_sharers(world);
    check_muon(world, meshes);
    for (int i = 0; i < r.count; i++)
        free(r.tensors[i].weight);
    return world_finish(world);
}
