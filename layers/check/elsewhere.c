/* Compares descriptions with use, and a layer on two ranks with itself on one. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "layers/check/internal.h"

static void name_check(const char *what, const weft_check_place *place, char out[64])
{
    bool is_fp32 = place->dtype == WEFT_F32;
    snprintf(out, 64, "%s%s%s%s", what, place->mesh, is_fp32 ? "" : " in ",
             is_fp32 ? "" : weft_dtype_text(place->dtype));
}

/* --- describe ------------------------------------------------------------------------------ */

typedef struct use {
    uint64_t num_params, local_params, param_bytes, activation_bytes, scratch_bytes;
    uint64_t flops[2], tp_bytes[2];
} use;

static void measure_parameters(const weft_check_layer *l, use *out)
{
    for (int i = 0; i < l->num_parameters; i++) {
        const weft_placed *placed = (const weft_placed *)l->parameters[i]; /* its first member */
        if (!l->declared[i])
            continue;
        out->num_params += weft_placed_global(placed, l->place->groups.mesh.tp);
        out->local_params += placed->count;
        out->param_bytes += weft_tensor_bytes(&placed->parameter.weight);
    }
}

static weft_status totals(const weft_check_layer *l, uint64_t *flops, uint64_t *tp_bytes)
{
    uint64_t count;
    WEFT_TRY(weft_comm_barrier(l->place->groups.world));
    *flops = weft_gemm_flops();
    weft_comm_totals(WEFT_PURPOSE_TENSOR, tp_bytes, &count);
    return WEFT_OK;
}

static weft_status measure(const weft_check_layer *l, use *out)
{
    weft_model *model = l->place->model;
    uint64_t flops[3] = {0}, tp_bytes[3] = {0};
    memset(out, 0, sizeof *out);
    measure_parameters(l, out);
    size_t before = model->memory.scratch.used_bytes;
    model->memory.scratch.peak_bytes = before;
    WEFT_TRY(totals(l, &flops[0], &tp_bytes[0]));
    WEFT_TRY(weft_check_forward(l, 0, 0, true, WEFT_CHECK_ZEROED));
    WEFT_TRY(totals(l, &flops[1], &tp_bytes[1]));
    WEFT_TRY(weft_check_backward(l, 0));
    WEFT_TRY(totals(l, &flops[2], &tp_bytes[2]));
    out->activation_bytes = weft_model_stash_bytes(model, 0);
    out->scratch_bytes = model->memory.scratch.peak_bytes - before;
    for (int half = 0; half < 2; half++) {
        out->flops[half] = flops[half + 1] - flops[half];
        out->tp_bytes[half] = tp_bytes[half + 1] - tp_bytes[half];
    }
    return WEFT_OK;
}

bool weft_check_routes(const weft_check_layer *l, int member)
{
    const weft_model_tree *tree = &l->place->model->tree;
    int up = member;
    while (up >= 0 && tree->members[up].layer != l->layer)
        up = tree->members[up].parent;
    return up >= 0 && weft_layer_table(tree->members[member].layer).routes_tokens;
}

bool weft_check_has_experts(const weft_check_layer *l)
{
    for (int m = 0; m < l->place->model->tree.num_members; m++)
        if (weft_check_routes(l, m))
            return true;
    return false;
}

weft_status weft_check_describe(const weft_check_layer *l, weft_check_report *report)
{
    weft_description listed;
    use used;
    uint64_t redone = 0; /* recomputed FLOPs, which model FLOPs exclude */
    const weft_shape *shape = weft_model_get_shape(l->place->model);
    if (!weft_layer_describes_itself(l->layer))
        return WEFT_OK; /* it is rehearsed: its description is what it does */
    weft_description_begin(&listed, shape);
    l->layer->place->ops.describe(l->layer, shape, &listed.cost);
    WEFT_TRY(weft_description_end(&listed));
    const weft_layer_cost cost = listed.cost;
    for (int i = 0; i < listed.num_operations; i++)
        if (listed.operations[i].phase == WEFT_PHASE_RECOMPUTE)
            redone += listed.operations[i].flops;
    weft_description_release(&listed);
    WEFT_TRY(measure(l, &used));
    /* A layer of the list counts the output that the model keeps for it, a child does not. */
    uint64_t output = l->in_list && l->gives_rows
                          ? weft_piece_bytes(shape->dtype, l->place->rows, l->place->hidden)
                          : 0;
    if (cost.activation_bytes == used.activation_bytes + output)
        used.activation_bytes = cost.activation_bytes;
    const struct {
        const char *field;
        uint64_t said, used;
        bool at_least; /* the description may exceed the GEMMs' count */
    } rows[] = {
        {"num_params", cost.num_params, used.num_params, false},
        {"local_params", cost.local_params, used.local_params, false},
        {"param_bytes", cost.param_bytes, used.param_bytes, false},
        {"activation_bytes", cost.activation_bytes, used.activation_bytes, false},
        {"scratch_bytes", cost.scratch_bytes, used.scratch_bytes, false},
        {"forward_flops", cost.forward_flops, used.flops[0], true},
        {"backward_flops", cost.backward_flops + redone, used.flops[1], true},
        {"tp_forward_bytes", cost.tp_forward_bytes, used.tp_bytes[0], false},
        {"tp_backward_bytes", cost.tp_backward_bytes, used.tp_bytes[1], false},
    };
    char check[64];
    int wrong = 0;
    /* The description assumes balanced routing, which the pass did not have. */
    bool uneven = shape->ep > 1 && weft_check_has_experts(l);
    name_check("describe at ", l->place, check);
    if (shape->tp == 1 && shape->dtype == WEFT_F32)
        snprintf(check, sizeof check, "describe");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].at_least ? rows[i].said >= rows[i].used : rows[i].said == rows[i].used)
            continue;
        if (uneven && i >= 3)
            continue;
        wrong++;
        weft_check_report_add(report, WEFT_CHECK_WRONG, check,
                              "%s says %" PRIu64 ", a pass %s %" PRIu64, rows[i].field,
                              rows[i].said, i < 3 ? "finds" : "takes", rows[i].used);
    }
    if (!wrong)
        weft_check_report_add(report, WEFT_CHECK_OK, check,
                              "%" PRIu64 " parameters here, %" PRIu64 " bytes kept, %" PRIu64
                              " of scratch, %" PRIu64 " FLOPs",
                              cost.local_params, cost.activation_bytes, cost.scratch_bytes,
                              cost.forward_flops + cost.backward_flops);
    return WEFT_OK;
}

/* --- elsewhere ----------------------------------------------------------------------------- */

/* |got - wanted| and |wanted|, squared, in elements of this rank. */
typedef struct gap {
    double apart, size;
} gap;

static void add_gap(gap *g, double got, double wanted)
{
    g->apart += (got - wanted) * (got - wanted);
    g->size += wanted * wanted;
}

static double gap_of(const gap *g)
{
    double apart = sqrt(g->apart / fmax(g->size, 1e-30));
    return g->size > 0 ? apart : sqrt(g->apart);
}

/* The gradient as the optimizer would sum it, this rank's part, against the whole one. */
static weft_status compare_gradient(const weft_check_layer *l, int index, float *got,
                                    const float *wanted, double *out)
{
    const weft_placed *placed = (const weft_placed *)l->parameters[index];
    const weft_check_place *p = l->place;
    const weft_section *section =
        weft_parameters_section(weft_model_parameters(p->model), placed->section);
    gap g = {0};
    size_t at;
    WEFT_TRY(
        weft_comm_all_reduce_host(section->group, got, placed->count, WEFT_F32, WEFT_REDUCE_SUM));
    if (placed->section == WEFT_SECTION_DENSE_SUM)
        WEFT_TRY(weft_comm_all_reduce_host(p->groups.by_axis[WEFT_AXIS_TP], got, placed->count,
                                           WEFT_F32, WEFT_REDUCE_SUM));
    if (placed->section == WEFT_SECTION_DENSE_SHARED)
        WEFT_TRY(weft_comm_all_reduce_host(weft_parameters_sharers(weft_model_parameters(p->model)),
                                           got, placed->count, WEFT_F32, WEFT_REDUCE_SUM));
    for (size_t i = 0; i < placed->count; i++)
        if (weft_box_global_index(&placed->box, i, &at))
            add_gap(&g, (double)got[i], (double)wanted[at]);
    *out = gap_of(&g);
    return WEFT_OK;
}

/* One rank's gradient of the tensor that a parameter is, or is a part of (weft_placed_rows). */
static weft_status find_gradient(const weft_check_result *wanted, const char *name,
                                 const float **out)
{
    for (int i = 0; i < WEFT_CHECK_MAX_PARAMETERS && wanted->names[i]; i++)
        if (strcmp(wanted->names[i], name) == 0) {
            *out = wanted->gradients[i];
            return WEFT_OK;
        }
    return WEFT_ERROR(WEFT_CONFIG, "parameter %s is declared here, but not on one rank", name);
}

typedef struct finding {
    const char *of, *what, *hint;
    double error;
} finding;

enum { MAX_FINDINGS = 3 + WEFT_CHECK_MAX_PARAMETERS + WEFT_MAX_METRICS };

/* The first TP rank's metrics, which a step's line has, against one rank's. */
static void compare_metrics(const weft_check_layer *l, const weft_check_result *wanted,
                            const weft_check_result *got, finding *findings, int *count)
{
    const weft_check_place *p = l->place;
    if (p->dtype != WEFT_F32) /* rounding may change a count */
        return;
    for (int i = 0; i < got->num_metrics; i++) {
        double is = weft_check_metric(l, got, i), one = weft_check_metric(l, wanted, i);
        bool same = p->model->place.tp.at > 0 || (isnan(is) && isnan(one));
        findings[(*count)++] =
            (finding){"metric ", p->model->sums.list.rows[i].name,
                      "the first TP rank's counts alone: with sequence parallelism it has its own "
                      "rows, and sums over TP by weft_pass_all_reduce",
                      same ? 0 : fabs(is - one) / fmax(fabs(one), 1e-6)};
    }
}

static weft_status compare(const weft_check_layer *l, const weft_check_result *wanted,
                           weft_check_result *got, finding *findings, int *out_count)
{
    const weft_check_place *p = l->place;
    gap y = {0}, dx = {0};
    size_t start = p->first_row * p->hidden;
    double losses[2] = {got->loss, 0};
    *out_count = 0;
    for (size_t i = 0; i < got->count; i++) {
        if (l->gives_rows)
            add_gap(&y, (double)got->y[i], (double)wanted->y[start + i]);
        if (l->reads_rows)
            add_gap(&dx, (double)got->dx[i], (double)wanted->dx[start + i]);
    }
    WEFT_TRY(weft_comm_all_reduce_host(p->groups.world, losses, 1, WEFT_F64, WEFT_REDUCE_SUM));
    findings[(*out_count)++] =
        (finding){"", "y", "each rank's part, or weft_pass_partial and weft_pass_exit", gap_of(&y)};
    findings[(*out_count)++] =
        (finding){"", "the loss", "metrics are summed over ranks: one rank of a TP group counts",
                  fabs(losses[0] - wanted->loss) / fmax(fabs(wanted->loss), 1e-6)};
    findings[(*out_count)++] = (finding){
        "", "dx", "the backward of weft_pass_enter is weft_pass_partial and weft_pass_exit",
        gap_of(&dx)};
    for (int i = 0; i < l->num_parameters; i++) {
        finding *f = &findings[(*out_count)++];
        *f = (finding){"gradient of ", weft_check_parameter_name(l, l->parameters[i]),
                       "each rank's part as spec.split says, or spec.sum_over_tp where a rank's is "
                       "a partial sum",
                       0};
        const float *whole = NULL;
        WEFT_TRY(find_gradient(wanted, l->parameters[i]->name, &whole));
        WEFT_TRY(compare_gradient(l, i, got->gradients[i], whole, &f->error));
    }
    compare_metrics(l, wanted, got, findings, out_count);
    return WEFT_OK;
}

static void report_findings(const finding *findings, const double *errors, int count,
                            double tolerance, const char *check, weft_check_report *report)
{
    double worst = 0;
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        worst = fmax(worst, errors[i]);
        if (errors[i] <= tolerance)
            continue;
        wrong++;
        weft_check_report_add(report, WEFT_CHECK_WRONG, check, "%s%s: %.1e from one rank's: %s",
                              findings[i].of, findings[i].what, errors[i], findings[i].hint);
    }
    if (!wrong)
        weft_check_report_add(report, WEFT_CHECK_OK, check,
                              "output and gradients are one rank's, to %.1e", worst);
}

weft_status weft_check_elsewhere(const weft_check_layer *l, const weft_check_result *wanted,
                                 weft_check_report *report)
{
    const weft_check_place *p = l->place;
    const double tolerance = p->dtype == WEFT_F32 ? 1e-4 : 4e-2;
    weft_check_result got = {0};
    finding findings[MAX_FINDINGS];
    double errors[MAX_FINDINGS];
    int count = 0;
    char check[64];
    name_check("", p, check);
    weft_check_fill_gradients(l, 0);
    l->place->beyond = 0;
    WEFT_TRY(weft_check_forward(l, 0, 0, true, WEFT_CHECK_ZEROED));
    weft_status status = weft_check_result_forward(l, 0, &got);
    if (status == WEFT_OK)
        status = weft_check_backward(l, 0);
    weft_check_result_metrics(l, &got);
    if (status == WEFT_OK)
        status = weft_check_result_backward(l, 0, &got);
    if (status == WEFT_OK)
        status = compare(l, wanted, &got, findings, &count);
    for (int i = 0; i < count; i++)
        errors[i] = isfinite(findings[i].error) ? findings[i].error : 1e30;
    if (status == WEFT_OK)
        status = weft_comm_all_reduce_host(p->groups.world, errors, (size_t)count, WEFT_F64,
                                           WEFT_REDUCE_MAX);
    double beyond = p->beyond;
    char text[96];
    if (status == WEFT_OK)
        status = weft_comm_all_reduce_host(p->groups.world, &beyond, 1, WEFT_F64, WEFT_REDUCE_MAX);
    if (status == WEFT_OK && beyond > 0) {
        weft_check_beyond_text(beyond, text);
        weft_check_report_add(report, WEFT_CHECK_WRONG, check, "%s", text);
    }
    if (status == WEFT_OK)
        report_findings(findings, errors, count, tolerance, check, report);
    weft_check_result_release(&got);
    return status;
}
