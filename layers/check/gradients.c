/* Gradients against differences: along random directions and along the gradient itself, in fp32
 * with sums in fp64. The slope is (L(v + h d) - L(v - h d)) / 2h with d of the values' own size.
 * Where a layer bends (a ReLU) a step may cross the bend and a shorter one not, so the best of
 * three steps counts. Where a router chooses other experts on one side of v, the loss jumps there:
 * v itself stands for that side. A step with jumps on both sides says nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "layers/check/internal.h"
#include "layers/layers.h"

enum { NUM_RANDOM = 2, NUM_STEPS = 3, STREAM_DIRECTION = 211, MANY_ROWS = 64 };
static const double steps[NUM_STEPS] = {2e-3, 5e-4, 1.25e-4};
static const double tolerance = 1e-2;

/* The fp32 values whose gradient is checked. */
typedef struct variable {
    const char *name;
    float *values;
    const weft_parameter *parameter; /* the values' parameter, with its layout; NULL: dense */
    const float *gradient;
    size_t count;
    float *kept, *direction; /* [count] */
    double rms;              /* root mean square of the values; 1 if these are zero */
} variable;

static double rms_of(const float *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sqrt(sum / (double)count);
}

static float *value_at(const variable *v, size_t i)
{
    return &v->values[v->parameter ? weft_parameter_place(v->parameter, i) : i];
}

static void move(const variable *v, double step)
{
    for (size_t i = 0; i < v->count; i++)
        *value_at(v, i) = (float)((double)v->kept[i] + step * (double)v->direction[i]);
}

/* The values at a step along the direction. */
typedef struct point {
    double step, loss;
    uint64_t choices; /* a hash of the experts that rows chose there */
} point;

/* What the member, if it routes inside the layer, chose in the last forward; NULL: not known. */
static const weft_tensor *choices_of(const weft_check_layer *l, int member)
{
    weft_pass *pass = &l->place->model->memory.passes[0];
    return weft_check_routes(l, member)
               ? weft_moe_choices(pass->model->tree.members[member].layer, pass)
               : NULL;
}

/* Of the last forward. FNV-1a. */
static uint64_t hash_choices(const weft_check_layer *l)
{
    uint64_t hash = 14695981039346656037u;
    for (int m = 0; m < l->place->model->tree.num_members; m++) {
        const weft_tensor *choices = choices_of(l, m);
        const unsigned char *bytes = choices ? choices->data : NULL;
        for (size_t i = 0; bytes && i < weft_tensor_bytes(choices); i++)
            hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
}

static weft_status visit(const weft_check_layer *l, const variable *v, double step, point *out)
{
    move(v, step);
    weft_status status = weft_check_forward(l, 0, 0, true, WEFT_CHECK_ZEROED);
    *out = (point){.step = step};
    if (status == WEFT_OK)
        *out = (point){step, weft_check_loss(l, 0), hash_choices(l)};
    move(v, 0);
    return status;
}

/* The steps along the direction after rounding to fp32. */
static double slope_of_gradient(const variable *v, double above, double below)
{
    double sum = 0;
    for (size_t i = 0; i < v->count; i++) {
        float high = (float)((double)v->kept[i] + above * (double)v->direction[i]);
        float low = (float)((double)v->kept[i] + below * (double)v->direction[i]);
        sum += (double)v->gradient[i] * ((double)high - (double)low) / (above - below);
    }
    return sum;
}

/* The error of a loss from rounding of the outputs alone. */
static double loss_noise(const weft_check_layer *l)
{
    const weft_check_place *p = l->place;
    double sum = 0;
    for (size_t i = 0; l->gives_rows && i < p->rows * p->hidden; i++) {
        double term =
            (double)weft_check_number(&p->dy[0], i) * (double)weft_check_number(&p->y[0], i);
        sum += term * term;
    }
    return 4e-7 * (sqrt(sum) + fabs(weft_check_loss(l, 0)));
}

/* The gradient's error between the points, over its size along the direction. */
static double error_between(const weft_check_layer *l, const variable *v, const point *above,
                            const point *below)
{
    const double length = above->step - below->step, slope = (above->loss - below->loss) / length,
                 wanted = slope_of_gradient(v, above->step, below->step);
    double size = rms_of(v->gradient, v->count) * sqrt((double)v->count);
    size = fmax(size, fmax(fabs(slope), 200 * loss_noise(l) / length));
    return fabs(slope - wanted) / fmax(size, 1e-30);
}

/* *out: the error along the direction; infinite where rows choose other experts on both sides at
 * every step. */
static weft_status try_direction(const weft_check_layer *l, const variable *v, double *out)
{
    double best = INFINITY;
    point here, above, below;
    WEFT_TRY(visit(l, v, 0, &here));
    for (int s = 0; s < NUM_STEPS && best > tolerance; s++) {
        WEFT_TRY(visit(l, v, steps[s] * v->rms, &above));
        WEFT_TRY(visit(l, v, -steps[s] * v->rms, &below));
        if (above.choices != here.choices)
            above = here;
        if (below.choices != here.choices)
            below = here;
        if (above.step > below.step)
            best = fmin(best, error_between(l, v, &above, &below));
    }
    *out = best;
    return WEFT_OK;
}

/* Directions are of rms 1. The last is the gradient's own. */
static bool choose_direction(const variable *v, int index)
{
    double size = rms_of(v->gradient, v->count);
    if (index == NUM_RANDOM && !(size > 0))
        return false;
    for (size_t i = 0; i < v->count; i++)
        v->direction[i] = index == NUM_RANDOM
                              ? (float)((double)v->gradient[i] / size)
                              : weft_rng_normal(1, STREAM_DIRECTION + (uint64_t)index, i);
    return true;
}

/* Whether a layer of a program's own may choose, or a capacity drops rows by their probabilities.
 */
static bool has_unseen_choices(const weft_check_layer *l)
{
    const weft_model *model = l->place->model;
    for (int m = 0; m < model->tree.num_members; m++)
        if (weft_check_routes(l, m) && !choices_of(l, m))
            return true;
    return false;
}

static weft_status check_variable(const weft_check_layer *l, variable *v, weft_check_report *report)
{
    double worst = 0, error = 0, rms = rms_of(v->gradient, v->count);
    int num_compared = 0;
    char check[160];
    for (size_t i = 0; i < v->count; i++)
        v->kept[i] = *value_at(v, i);
    v->rms = rms_of(v->kept, v->count);
    if (!(v->rms > 0))
        v->rms = 1;
    for (int d = 0; d <= NUM_RANDOM; d++)
        if (choose_direction(v, d)) {
            WEFT_TRY(try_direction(l, v, &error));
            if (isinf(error))
                continue;
            worst = fmax(worst, error);
            num_compared++;
        }
    for (size_t i = 0; i < v->count; i++)
        *value_at(v, i) = v->kept[i];
    snprintf(check, sizeof check, "gradient of %s", v->name);
    if (num_compared == 0 ||
        (worst > tolerance && rms > 0 && l->place->rows_full > MANY_ROWS && has_unseen_choices(l)))
        weft_check_report_add(report, WEFT_CHECK_LEFT_OUT, check,
                              "of %zu rows some choose other experts at every step: give a smaller "
                              "seq_length",
                              l->place->rows_full);
    else if (worst <= tolerance)
        weft_check_report_add(report, WEFT_CHECK_OK, check,
                              "%.1e from finite differences, of size %.1e", worst, rms);
    else
        weft_check_report_add(report, WEFT_CHECK_WRONG, check,
                              "%.1e from finite differences (at most %.0e), of size %.1e%s", worst,
                              tolerance, rms,
                              rms > 0 ? "" : ": backward forgets it, and the output depends on it");
    return WEFT_OK;
}

static weft_status check_one(const weft_check_layer *l, const variable *one,
                             weft_check_report *report)
{
    variable v = *one;
    const size_t count = v.count;
    v.kept = malloc(2 * count * sizeof *v.kept);
    if (!v.kept)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
    v.direction = v.kept + count;
    weft_status status = check_variable(l, &v, report);
    free(v.kept);
    return status;
}

static void leave_out(const char *name, weft_check_report *report)
{
    char check[160];
    snprintf(check, sizeof check, "gradient of %s", name);
    weft_check_report_add(report, WEFT_CHECK_LEFT_OUT, check,
                          "no loss moves it: its sign is all that is used");
}

weft_status weft_check_gradients(const weft_check_layer *l, const weft_check_result *result,
                                 weft_check_report *report)
{
    const variable x = {
        .name = "x", .values = l->place->x[0].data, .gradient = result->dx, .count = result->count};
    if (l->reads_rows)
        WEFT_TRY(check_one(l, &x, report));
    for (int i = 0; i < l->num_parameters; i++) {
        const weft_parameter *parameter = l->parameters[i];
        const variable v = {.name = weft_check_parameter_name(l, parameter),
                            .values = parameter->weight.data,
                            .parameter = parameter,
                            .gradient = result->gradients[i],
                            .count = weft_tensor_count(&parameter->weight)};
        if (parameter->spec->sign_rate > 0)
            leave_out(v.name, report);
        else
            WEFT_TRY(check_one(l, &v, report));
    }
    return WEFT_OK;
}
