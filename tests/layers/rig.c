#include "tests/layers/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "tests/layers/stub.h"

/* --- the two ends -------------------------------------------------------------------------- */

typedef struct end {
    weft_layer base;
    rig *owner;
} end;

/* Between this rank's rows in fp32 and the model's dtype. */
static weft_status cast(weft_pass *pass, weft_dtype from_dtype, const void *from,
                        weft_dtype to_dtype, void *to, size_t count)
{
    return weft_cast(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = from_dtype,
                                .to_dtype = to_dtype, .from = from, .to = to));
}

static weft_status give(rig *r, weft_pass *pass, const float *from, weft_tensor *to)
{
    return cast(pass, WEFT_F32, from + r->first_row * r->hidden, to->dtype, to->data,
                weft_tensor_count(to));
}

static weft_status take(rig *r, weft_pass *pass, const weft_tensor *from, float *to)
{
    (void)r;
    return cast(pass, from->dtype, from->data, WEFT_F32, to, weft_tensor_count(from));
}

static weft_status source_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                  weft_tensor *y)
{
    (void)x;
    rig *r = ((end *)layer)->owner;
    return give(r, pass, r->x, y);
}

static weft_status source_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    (void)dx;
    rig *r = ((end *)layer)->owner;
    return take(r, pass, dy, r->dx);
}

static weft_status sink_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    (void)y;
    rig *r = ((end *)layer)->owner;
    return take(r, pass, x, r->y);
}

static weft_status sink_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    rig *r = ((end *)layer)->owner;
    return give(r, pass, r->dy, dx);
}

static const weft_layer_ops source_ops = {
    .struct_bytes = sizeof source_ops,
    .kind = "source",
    .reads_tokens = true,
    .describe = stub_describe,
    .init = stub_init,
    .forward = source_forward,
    .backward = source_backward,
    .destroy = stub_destroy,
};
static const weft_layer_ops sink_ops = {
    .struct_bytes = sizeof sink_ops,
    .kind = "sink",
    .makes_loss = true,
    .describe = stub_describe,
    .init = stub_init,
    .forward = sink_forward,
    .backward = sink_backward,
    .destroy = stub_destroy,
};

/* --- the rig ------------------------------------------------------------------------------- */

/* What build puts between the ends: a build function has no context of its own. */
static struct {
    rig *owner;
    rig_create_function layer;
} building;

static weft_layer *end_create(const weft_layer_ops *ops)
{
    end *e = calloc(1, sizeof *e);
    if (e) {
        e->base.ops = ops;
        e->owner = building.owner;
    }
    return (weft_layer *)e;
}

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add(model, end_create(&source_ops)));
    WEFT_TRY(weft_model_add(model, building.layer(options)));
    return weft_model_add(model, end_create(&sink_ops));
}

weft_status rig_create(rig *r, weft_comm *world, const weft_model_options *options,
                       const char *mesh, size_t batch, weft_dtype dtype, rig_create_function layer)
{
    memset(r, 0, sizeof *r);
    building.owner = r;
    building.layer = layer;
    WEFT_TRY(harness_create(&r->h, world, options, mesh, batch, dtype, build));
    const weft_mesh *m = &r->h.groups.mesh;
    r->hidden = (size_t)options->hidden_size;
    r->rows_full = r->h.rows * r->h.batch;
    r->rows = r->rows_full / (size_t)(m->sequence_parallel ? m->tp : 1);
    if (m->sequence_parallel)
        r->first_row = (size_t)r->h.groups.coords.at[WEFT_AXIS_TP] * r->rows;
    r->y = calloc(r->rows * r->hidden + 1, sizeof *r->y);
    r->dx = calloc(r->rows * r->hidden + 1, sizeof *r->dx);
    return r->y && r->dx ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for a test");
}

void rig_release(rig *r)
{
    harness_release(&r->h);
    free(r->y);
    free(r->dx);
}

const weft_layer *rig_layer(const rig *r)
{
    return weft_model_layer(r->h.model, 1);
}

void *rig_state(const rig *r)
{
    return weft_pass_state(&r->h.model->memory.passes[0], rig_layer(r));
}

weft_parameter *rig_parameter(const rig *r, const char *name)
{
    char global[WEFT_MAX_NAME_BYTES];
    snprintf(global, sizeof global, "decoder.layers.0.%s", name);
    return weft_parameters_find(weft_model_parameters(r->h.model), global);
}

weft_status rig_pass(rig *r, const float *x, const float *dy, bool overwrite)
{
    r->x = x;
    r->dy = dy;
    return harness_pass(&r->h, NULL, NULL, true, overwrite);
}

double *rig_gradient(const rig *r, int index, size_t *out_count, double *out_disagreement)
{
    const weft_placed *p = weft_parameters_at(weft_model_parameters(r->h.model), index);
    const weft_mesh *mesh = &r->h.groups.mesh;
    size_t count = 1, at;
    bool split = false;
    for (int d = 0; d < p->shard.num_dims; d++) {
        count *= p->shard.global_dims[d];
        split = split || p->shard.axis[d] == WEFT_AXIS_TP;
    }
    /* Experts lie once on each data-parallel place, split or summed parameters too; the others'
     * gradients are the same on all ranks of a TP group. */
    bool copies =
        !split && p->section != WEFT_SECTION_EXPERT && p->section != WEFT_SECTION_DENSE_SUM;
    double weight = copies ? 1.0 / mesh->tp : 1.0, most = 0, size = 0;
    double *sum = calloc(count + 1, sizeof *sum), *same = calloc(count + 1, sizeof *same);
    for (size_t i = 0; i < p->count; i++)
        if (weft_box_global_index(&p->box, i, &at)) {
            sum[at] = weight * (double)p->parameter.grad[weft_parameter_place(&p->parameter, i)];
            same[at] = (double)p->parameter.grad[weft_parameter_place(&p->parameter, i)];
        }
    weft_status status =
        weft_comm_all_reduce_host(r->h.world, sum, count, WEFT_F64, WEFT_REDUCE_SUM);
    if (status == WEFT_OK && copies)
        status = weft_comm_all_reduce_host(r->h.groups.by_axis[WEFT_AXIS_TP], same, count, WEFT_F64,
                                           WEFT_REDUCE_MAX);
    for (size_t i = 0; i < p->count && copies; i++)
        if (weft_box_global_index(&p->box, i, &at)) {
            most =
                fmax(most, fabs(same[at] -
                                (double)p->parameter.grad[weft_parameter_place(&p->parameter, i)]));
            size = fmax(size, fabs(same[at]));
        }
    free(same);
    *out_count = count;
    *out_disagreement = size > 0 ? most / size : 0;
    if (status == WEFT_OK)
        return sum;
    free(sum);
    return NULL;
}

void rig_random(float *out, size_t count, double std, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(std * (double)weft_rng_normal(seed, 17, i));
}

double rig_error(const float *a, const float *b, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(norm > 0 ? difference / norm : difference);
}

double rig_error_of_doubles(const double *a, const double *b, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(norm > 0 ? difference / norm : difference);
}
