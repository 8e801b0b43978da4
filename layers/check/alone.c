/* What a layer writes, keeps and repeats, on one rank. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/check/internal.h"

static size_t count_unwritten(const float *values, size_t count)
{
    size_t unwritten = 0;
    for (size_t i = 0; i < count; i++)
        unwritten += isnan(values[i]);
    return unwritten;
}

static bool same_bits(const float *a, const float *b, size_t count)
{
    return memcmp(a, b, count * sizeof *a) == 0;
}

/* The parameter whose gradients differ; -1: none. */
static int other_gradient(const weft_check_layer *l, const weft_check_result *a,
                          const weft_check_result *b)
{
    for (int i = 0; i < l->num_parameters; i++)
        if (!same_bits(a->gradients[i], b->gradients[i],
                       weft_tensor_count(&l->parameters[i]->weight)))
            return i;
    return -1;
}

/* The metric to which the passes added other numbers; -1: none. */
static int other_metric(const weft_check_result *a, const weft_check_result *b)
{
    for (int i = 0; i < a->num_metrics && i < b->num_metrics; i++)
        if (memcmp(&a->metrics[i], &b->metrics[i], sizeof a->metrics[i]) != 0)
            return i;
    return -1;
}

static const char *short_name(const weft_check_layer *l, int parameter)
{
    return weft_check_parameter_name(l, l->parameters[parameter]);
}

/* Whether the layer's backward is the first of the step that writes this gradient. */
static bool writes_first(const weft_check_layer *l, int parameter)
{
    return !(l->parameters[parameter]->shared && l->declared[parameter]);
}

static weft_status pass(const weft_check_layer *l, int slot, int batch, bool overwrite,
                        weft_check_memory memory, weft_check_result *out)
{
    WEFT_TRY(weft_check_forward(l, slot, batch, overwrite, memory));
    WEFT_TRY(weft_check_result_forward(l, slot, out));
    WEFT_TRY(weft_check_backward(l, slot));
    weft_check_result_metrics(l, out);
    return weft_check_result_backward(l, slot, out);
}

/* --- what is written ----------------------------------------------------------------------- */

static weft_status check_written(const weft_check_layer *l, weft_check_report *report,
                                 weft_check_result *out)
{
    weft_check_place *p = l->place;
    size_t bytes = weft_tensor_bytes(&p->x[0]);
    char *before = malloc(2 * bytes + 1);
    if (!before)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
    memcpy(before, p->x[0].data, bytes);
    memcpy(before + bytes, p->dy[0].data, bytes);
    weft_check_fill_gradients(l, 0);
    p->beyond = 0;
    weft_status status = pass(l, 0, 0, true, WEFT_CHECK_ZEROED, out);
    bool x_kept = memcmp(before, p->x[0].data, bytes) == 0;
    bool dy_kept = memcmp(before + bytes, p->dy[0].data, bytes) == 0;
    memcpy(p->x[0].data, before, bytes);
    memcpy(p->dy[0].data, before + bytes, bytes);
    free(before);
    WEFT_TRY(status);
    size_t y = l->gives_rows ? count_unwritten(out->y, out->count) : 0;
    size_t dx = l->reads_rows ? count_unwritten(out->dx, out->count) : 0, gradient = 0;
    for (int i = 0; i < l->num_parameters; i++)
        gradient +=
            count_unwritten(out->gradients[i], weft_tensor_count(&l->parameters[i]->weight));
    out->is_whole = y + dx + gradient == 0 && isfinite(out->loss);
    if (y)
        weft_check_report_add(report, WEFT_CHECK_WRONG, "written",
                              "%zu of %zu elements of y are NaN: forward has to write all of y, "
                              "and must not read it",
                              y, out->count);
    if (dx)
        weft_check_report_add(report, WEFT_CHECK_WRONG, "written",
                              "%zu of %zu elements of dx are NaN: backward has to write all of dx, "
                              "and must not read dx, y, or scratch that forward filled",
                              dx, out->count);
    if (!y && !dx && !out->is_whole)
        weft_check_report_add(report, WEFT_CHECK_WRONG, "written",
                              "%zu gradients or the loss are NaN", gradient);
    if (!x_kept || !dy_kept)
        weft_check_report_add(report, WEFT_CHECK_WRONG, "kept",
                              "%s is changed, and is not the layer's to change",
                              !x_kept ? "x" : "dy");
    char text[96];
    if (p->beyond > 0) {
        weft_check_beyond_text(p->beyond, text);
        weft_check_report_add(report, WEFT_CHECK_WRONG, "written", "%s", text);
    }
    out->is_whole = out->is_whole && x_kept && dy_kept && p->beyond <= 0;
    if (out->is_whole)
        weft_check_report_add(report, WEFT_CHECK_OK, "written", "all of %s%s; x and dy are kept",
                              l->gives_rows ? "y" : "the loss", l->reads_rows ? " and dx" : "");
    return WEFT_OK;
}

/* --- the same bits ------------------------------------------------------------------------- */

/* Writes the difference into `text`; false: none. */
static bool differs(const weft_check_layer *l, const weft_check_result *a,
                    const weft_check_result *b, bool with_gradients, char text[128])
{
    int gradient = with_gradients ? other_gradient(l, a, b) : -1, metric = other_metric(a, b);
    text[0] = '\0';
    if (l->gives_rows && !same_bits(a->y, b->y, a->count))
        snprintf(text, 128, "y");
    else if (!(a->loss <= b->loss && a->loss >= b->loss))
        snprintf(text, 128, "the loss");
    else if (l->reads_rows && !same_bits(a->dx, b->dx, a->count))
        snprintf(text, 128, "dx");
    else if (gradient >= 0)
        snprintf(text, 128, "gradient of %s", short_name(l, gradient));
    else if (metric >= 0)
        snprintf(text, 128, "metric %s", l->place->model->sums.list.rows[metric].name);
    return text[0] != '\0';
}

/* Repeats the pass in another slot, with poisoned memory. */
static weft_status check_again(const weft_check_layer *l, const weft_check_result *first,
                               weft_check_report *report, bool *out_same)
{
    weft_check_result second = {0};
    char what[128];
    weft_check_fill_gradients(l, 0);
    weft_status status = pass(l, 1, 0, true, WEFT_CHECK_POISONED, &second);
    *out_same = status == WEFT_OK && !differs(l, first, &second, true, what);
    if (status == WEFT_OK && !*out_same)
        weft_check_report_add(report, WEFT_CHECK_WRONG, "again",
                              "%s differs: the layer reads memory that it has not written, or "
                              "keeps something between passes",
                              what);
    else if (status == WEFT_OK)
        weft_check_report_add(report, WEFT_CHECK_OK, "again",
                              "a second pass gives the same bits, from memory not cleared");
    weft_check_result_release(&second);
    return status;
}

/* Runs the pass with x and dy that arrive on the lane after the function is called, as in a
 * step. */
static weft_status check_lane(const weft_check_layer *l, const weft_check_result *first,
                              weft_check_report *report)
{
    weft_check_result second = {0};
    char what[128];
    weft_check_fill_gradients(l, 0);
    l->place->late = true;
    weft_status status = pass(l, 0, 0, true, WEFT_CHECK_ZEROED, &second);
    l->place->late = false;
    if (status == WEFT_OK && differs(l, first, &second, true, what))
        weft_check_report_add(report, WEFT_CHECK_WRONG, "lane",
                              "%s differs where x and dy arrive late: what reads them has to be "
                              "queued on the pass' lane, or to come after weft_lane_sync",
                              what);
    else if (status == WEFT_OK)
        weft_check_report_add(report, WEFT_CHECK_OK, "lane",
                              "what reads x and dy waits until the lane has made them");
    weft_check_result_release(&second);
    return status;
}

/* Forwards of two micro-batches, then their backwards. */
static weft_status pass_both(const weft_check_layer *l, weft_check_result out[2])
{
    for (int b = 0; b < 2; b++) {
        WEFT_TRY(weft_check_forward(l, b, b, true, WEFT_CHECK_POISONED));
        WEFT_TRY(weft_check_result_forward(l, b, &out[b]));
    }
    for (int b = 0; b < 2; b++) {
        weft_check_fill_gradients(l, 0);
        WEFT_TRY(weft_check_backward(l, b));
        WEFT_TRY(weft_check_result_backward(l, b, &out[b]));
    }
    return WEFT_OK;
}

static weft_status check_in_flight(const weft_check_layer *l, const weft_check_result *first,
                                   weft_check_report *report)
{
    weft_check_result alone = {0}, beside[2] = {{0}, {0}};
    char what[128];
    weft_check_fill_gradients(l, 0);
    weft_status status = pass(l, 1, 1, true, WEFT_CHECK_POISONED, &alone);
    if (status == WEFT_OK)
        status = pass_both(l, beside);
    /* A last layer may make its gradients in forward. */
    bool gradients = l->gives_rows;
    if (status == WEFT_OK && (differs(l, first, &beside[0], gradients, what) ||
                              differs(l, &alone, &beside[1], gradients, what)))
        weft_check_report_add(report, WEFT_CHECK_WRONG, "in flight",
                              "%s differs while another micro-batch is in flight: what backward "
                              "needs belongs into the pass' stash and state",
                              what);
    else if (status == WEFT_OK)
        weft_check_report_add(report, WEFT_CHECK_OK, "in flight",
                              "two micro-batches in flight do not disturb each other");
    weft_check_result_release(&alone);
    weft_check_result_release(&beside[0]);
    weft_check_result_release(&beside[1]);
    return status;
}

/* --- overwrite and add --------------------------------------------------------------------- */

/* The largest error of the gradient, over its largest element. */
static double distance(const float *got, const float *wanted, size_t count, double above)
{
    double most = 0, size = 1e-30;
    for (size_t i = 0; i < count; i++) {
        double apart = fabs((double)got[i] - (double)wanted[i] - above);
        most = !(apart <= most) ? apart : most; /* a NaN too */
        size = fmax(size, fabs((double)wanted[i]));
    }
    return most / fmax(size, above);
}

static weft_status check_overwrite(const weft_check_layer *l, const weft_check_result *first,
                                   bool overwrite, weft_check_report *report)
{
    const double tolerance = 1e-4, there = 1;
    const char *check = overwrite ? "overwrite" : "add";
    weft_check_result second = {0};
    weft_check_fill_gradients(l, (float)there);
    weft_status status = pass(l, 0, 0, overwrite, WEFT_CHECK_ZEROED, &second);
    int wrong = 0;
    for (int i = 0; i < l->num_parameters && status == WEFT_OK; i++) {
        bool adds = !overwrite || !writes_first(l, i);
        size_t count = weft_tensor_count(&l->parameters[i]->weight);
        double as_told =
            distance(second.gradients[i], first->gradients[i], count, adds ? there : 0);
        if (as_told <= tolerance)
            continue;
        wrong++;
        weft_check_report_add(
            report, WEFT_CHECK_WRONG, check, "gradient of %s: %s", short_name(l, i),
            overwrite ? "what was there is kept; where weft_pass_overwrite() is true it has to go"
            : distance(second.gradients[i], first->gradients[i], count, 0) <= tolerance
                ? "what was there is gone; only where weft_pass_overwrite() is true it has to go"
                : "neither the gradient nor its sum with what was there, which it has to be");
    }
    if (!wrong && status == WEFT_OK && l->num_parameters > 0)
        weft_check_report_add(report, WEFT_CHECK_OK, check, "%s",
                              overwrite ? "the first micro-batch writes the gradients"
                                        : "the others add to them");
    weft_check_result_release(&second);
    return status;
}

weft_status weft_check_alone(const weft_check_layer *l, weft_check_report *report,
                             weft_check_result *out)
{
    WEFT_TRY(check_written(l, report, out));
    if (!out->is_whole)
        return WEFT_OK;
    bool same;
    WEFT_TRY(check_again(l, out, report, &same));
    if (same)
        WEFT_TRY(check_lane(l, out, report));
    if (same)
        WEFT_TRY(check_in_flight(l, out, report));
    WEFT_TRY(check_overwrite(l, out, true, report));
    return check_overwrite(l, out, false, report);
}
