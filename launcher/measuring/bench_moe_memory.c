/* Peak device memory of one MoE layer, by (n, S). */
#include "launcher/measuring/bench_moe.h"

weft_bench_layer_shape weft_bench_shape_of(const weft_bench_moe_options *o, int point)
{
    weft_bench_layer_shape shape = o->shape;
    if (o->num_grid > 0) {
        shape.tokens = o->grid[point][0];
        shape.hidden = o->grid[point][1];
        shape.ffn = o->grid[point][2];
    }
    return shape;
}

/* MPMoE eq. 5: what reuse saves of activations, and again of temporary buffers; elements. */
static double allowed_elements(double rows, double hidden, double middle, int n)
{
    return 2 * rows * (2 * hidden * (n - 2) / n + middle * (n - 1) / n);
}

static weft_status peak_of(weft_comm *world, const weft_bench_layer_shape *shape,
                           weft_moe_pipeline pipeline, double *out_bytes)
{
    weft_bench_layer_shape with = *shape;
    weft_bench_layer *layer = NULL;
    double us[2];
    with.moe = (weft_moe_options){.pipeline = pipeline};
    WEFT_TRY(weft_bench_layer_create(world, &with, &layer));
    /* What experts compute does not matter here: it is passed over. */
    layer->pace_flops[0] = layer->pace_flops[1] = 1e18;
    weft_status status = weft_bench_layer_run(layer, us);
    if (status == WEFT_OK)
        status = weft_bench_layer_run(layer, us);
    if (status == WEFT_OK)
        status = weft_bench_layer_peak(layer, out_bytes);
    weft_bench_layer_destroy(layer);
    return status;
}

static void report_row(weft_report *r, const weft_bench_layer_shape *shape, int n, int reuse,
                       double whole, double bytes)
{
    const double rows = (double)shape->tokens * (double)shape->topk;
    const double middle = (double)shape->ffn * (shape->swiglu ? 2 : 1);
    const double allowed = allowed_elements(rows, (double)shape->hidden, middle, n) *
                           (double)weft_dtype_bytes(shape->dtype);
    weft_report_record(r);
    weft_report_row(r, "tokens", "tokens", WEFT_UNIT_COUNT, shape->tokens);
    weft_report_row(r, "hidden", "M", WEFT_UNIT_COUNT, shape->hidden);
    weft_report_row(r, "ffn", "H", WEFT_UNIT_COUNT, shape->ffn);
    weft_report_row(r, "num_partitions", "n", WEFT_UNIT_COUNT, n);
    weft_report_text(r, "memory_reuse", "S", weft_reuse_text(reuse));
    weft_report_row(r, "synchronous_bytes", "n 1", WEFT_UNIT_BYTES, whole);
    weft_report_row(r, "bytes", "memory", WEFT_UNIT_BYTES, bytes);
    weft_report_row(r, NULL, "fall", WEFT_UNIT_BYTES, whole - bytes);
    weft_report_row(r, "allowed_bytes", "eq. 5-6", WEFT_UNIT_BYTES, allowed);
    weft_report_row(r, NULL, "of eq. 5-6", WEFT_UNIT_SHARE, (whole - bytes) / allowed);
}

static weft_status measure_shape(weft_comm *world, const weft_bench_moe_options *o,
                                 const weft_bench_layer_shape *shape, weft_report *report)
{
    double whole, bytes;
    WEFT_TRY(peak_of(world, shape, (weft_moe_pipeline){.num_partitions = 1}, &whole));
    for (int i = 0; i < o->num_partitions; i++)
        for (int reuse = WEFT_REUSE_S1; reuse < WEFT_NUM_REUSES; reuse++) {
            const int n = o->partitions[i];
            if (n < 2 || !(o->reuses & 1u << reuse))
                continue;
            weft_bench_tell(weft_comm_rank(world) == 0, "%lld tokens, M %lld, H %lld: n %d, %s",
                            (long long)shape->tokens, (long long)shape->hidden,
                            (long long)shape->ffn, n, weft_reuse_text(reuse));
            WEFT_TRY(peak_of(world, shape,
                             (weft_moe_pipeline){.num_partitions = n, .reuse = (weft_reuse)reuse},
                             &bytes));
            report_row(report, shape, n, reuse, whole, bytes);
        }
    return WEFT_OK;
}

weft_status weft_bench_moe_memory(weft_comm *world, const weft_bench_moe_options *o,
                                  weft_report *report)
{
    weft_report_open(report, WEFT_REPORT_TABLE, "memory");
    for (int i = 0; i < (o->num_grid > 0 ? o->num_grid : 1); i++) {
        const weft_bench_layer_shape shape = weft_bench_shape_of(o, i);
        WEFT_TRY(measure_shape(world, o, &shape, report));
    }
    weft_report_close(report);
    return WEFT_OK;
}
