/* Peak device memory of one MoE layer, by (n, S). */
#include "launcher/measuring/bench_moe.h"

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

static weft_status measure_shape(weft_comm *world, const weft_bench_moe_options *o,
                                 const weft_bench_layer_shape *shape, weft_table *table,
                                 cJSON *json)
{
    const double mib = 1 << 20;
    double whole;
    WEFT_TRY(peak_of(world, shape, (weft_moe_pipeline){.num_partitions = 1}, &whole));
    for (int i = 0; i < o->num_partitions; i++)
        for (int reuse = WEFT_REUSE_S1; reuse < WEFT_NUM_REUSES; reuse++) {
            int n = o->partitions[i];
            double bytes, rows = (double)shape->tokens * (double)shape->topk;
            double middle = (double)shape->ffn * (shape->swiglu ? 2 : 1);
            if (n < 2 || !(o->reuses & 1u << reuse))
                continue;
            weft_bench_tell(weft_comm_rank(world) == 0, "%lld tokens, M %lld, H %lld: n %d, %s",
                            (long long)shape->tokens, (long long)shape->hidden,
                            (long long)shape->ffn, n, weft_reuse_text(reuse));
            WEFT_TRY(peak_of(world, shape,
                             (weft_moe_pipeline){.num_partitions = n, .reuse = (weft_reuse)reuse},
                             &bytes));
            double allowed = allowed_elements(rows, (double)shape->hidden, middle, n) *
                             (double)weft_dtype_bytes(shape->dtype);
            double fall = whole - bytes;
            WEFT_TRY(weft_table_row(table));
            weft_table_cell(table, 0, "%lld", (long long)shape->tokens);
            weft_table_cell(table, 1, "%lld", (long long)shape->hidden);
            weft_table_cell(table, 2, "%lld", (long long)shape->ffn);
            weft_table_cell(table, 3, "%d, %s", n, weft_reuse_text(reuse));
            weft_table_cell(table, 4, "%.1f", whole / mib);
            weft_table_cell(table, 5, "%.1f", bytes / mib);
            weft_table_cell(table, 6, "%.1f", fall / mib);
            weft_table_cell(table, 7, "%.1f", allowed / mib);
            weft_table_cell(table, 8, "%.1f %%", 100 * fall / allowed);
            cJSON *row = cJSON_CreateObject();
            cJSON_AddNumberToObject(row, "tokens", (double)shape->tokens);
            cJSON_AddNumberToObject(row, "hidden", (double)shape->hidden);
            cJSON_AddNumberToObject(row, "ffn", (double)shape->ffn);
            cJSON_AddNumberToObject(row, "num_partitions", n);
            cJSON_AddStringToObject(row, "memory_reuse", weft_reuse_text(reuse));
            cJSON_AddNumberToObject(row, "synchronous_bytes", whole);
            cJSON_AddNumberToObject(row, "bytes", bytes);
            cJSON_AddNumberToObject(row, "allowed_bytes", allowed);
            cJSON_AddItemToArray(json, row);
        }
    return WEFT_OK;
}

weft_status weft_bench_moe_memory(weft_comm *world, const weft_bench_moe_options *o, cJSON *json)
{
    static const char *const heads[] = {"tokens", "M",        "H",           "n, S",      "n 1 MiB",
                                        "MiB",    "fall MiB", "eq. 5-6 MiB", "of eq. 5-6"};
    weft_table table = {0};
    weft_bench_layer_shape shape = o->shape;
    WEFT_TRY(weft_table_begin(&table, heads, sizeof heads / sizeof *heads));
    weft_status status = WEFT_OK;
    cJSON *rows = cJSON_AddArrayToObject(json, "memory");
    for (int i = 0; i < (o->num_grid > 0 ? o->num_grid : 1) && status == WEFT_OK; i++) {
        if (o->num_grid > 0) {
            shape.tokens = o->grid[i][0];
            shape.hidden = o->grid[i][1];
            shape.ffn = o->grid[i][2];
        }
        status = measure_shape(world, o, &shape, &table, rows);
    }
    if (status == WEFT_OK && weft_comm_rank(world) == 0 && !o->common.json)
        weft_table_print(&table, stdout);
    weft_table_release(&table);
    return status;
}
