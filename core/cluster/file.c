/* Reads a cluster from its JSON file. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cluster/internal.h"
#include "core/file.h"
#include "core/options/options.h"

typedef weft_cluster_reader reader;
typedef weft_cluster_members members;

static weft_status read_positive(const reader *r, weft_json_span value, const char *path,
                                 const char *key, double *out)
{
    WEFT_TRY(weft_cluster_number_read(r, value, path, key, out));
    if (*out > 0)
        return WEFT_OK;
    return FAULT(r, value.start, path, key, "%g is not positive", *out);
}

/* A rate that no hardware has: in another unit, most likely. */
static weft_status check_rate(const reader *r, const char *at, const char *path, const char *key,
                              weft_cost_kind kind, double rate)
{
    double least, most;
    weft_cost_bounds(kind, &least, &most);
    if (rate >= least && rate <= most)
        return WEFT_OK;
    return FAULT(r, at, path, key,
                 "%.3g %s/s, where %.0e to %.0e are possible: volumes are in %s, times in "
                 "microseconds, peaks in %s a second; measure again with weft calibrate",
                 rate, weft_cost_unit(kind), least, most, weft_cost_unit(kind),
                 weft_cost_unit(kind));
}

static weft_status read_points(const reader *r, weft_json_span array, const char *path,
                               weft_cost_kind kind, weft_curve *curve)
{
    const char *cursor = NULL;
    weft_json_span pair;
    int n = 0;
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, "an array of [volume, microseconds]",
                               path, "points"));
    for (; weft_json_next(array, &cursor, NULL, &pair); n++) {
        weft_cluster_element key = weft_cluster_element_of("points", n);
        double point[2];
        if (n == WEFT_CURVE_MAX_POINTS)
            return FAULT(r, pair.start, path, key.text, "a curve has at most %d points",
                         WEFT_CURVE_MAX_POINTS);
        WEFT_TRY(
            weft_cluster_numbers_read(r, pair, path, key.text, 2, "[volume, microseconds]", point));
        if (point[0] < 0 || (n > 0 && point[0] <= curve->volume[n - 1]))
            return FAULT(r, pair.start, path, key.text, "the volume %g does not rise above %g",
                         point[0], n > 0 ? curve->volume[n - 1] : 0.0);
        /* Something may begin at once; nothing that moves or computes takes no time. */
        if (point[1] < 0 || (point[1] == 0 && point[0] > 0))
            return FAULT(r, pair.start, path, key.text, "%g µs is not a time", point[1]);
        double rate = point[1] > 0 ? point[0] / point[1] * 1e6 : 0, least, most;
        weft_cost_bounds(kind, &least, &most);
        if (rate > most) /* a slow one may be a long latency */
            WEFT_TRY(check_rate(r, pair.start, path, key.text, kind, rate));
        curve->volume[n] = point[0];
        curve->time_us[n] = point[1];
    }
    curve->num_points = n;
    if (n > 0)
        return WEFT_OK;
    return FAULT(r, array.start, path, "points",
                 "a curve needs a point; leave the cost out instead");
}

static double best_rate(const weft_curve *curve)
{
    double best = 0;
    for (int i = 0; i < curve->num_points; i++)
        if (curve->time_us[i] > 0)
            best = fmax(best, curve->volume[i] / (curve->time_us[i] * 1e-6));
    return best;
}

static weft_status read_cost(const reader *r, weft_json_span object, const char *name,
                             weft_cost_kind kind, weft_cost *out)
{
    enum { PEAK, POINTS, LATENCY, WIDTH, COUNT };
    static const char *const names[COUNT] = {"peak", "points", "latency_us", "width"};
    const bool is_gemm = kind == WEFT_COST_GEMM_FP32 || kind == WEFT_COST_GEMM_BF16;
    weft_json_span values[COUNT] = {{0}}, keys[COUNT] = {{0}};
    char path[64];
    snprintf(path, sizeof path, "costs.%s", name);
    members m = {path, names, is_gemm ? COUNT : WIDTH, values, keys};
    WEFT_TRY(weft_cluster_want(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(weft_cluster_members_read(r, object, &m));
    if (values[WIDTH].bytes)
        WEFT_TRY(weft_cluster_count_read(r, values[WIDTH], path, names[WIDTH], &out->width));
    if (values[PEAK].bytes)
        WEFT_TRY(read_positive(r, values[PEAK], path, names[PEAK], &out->peak));
    if (values[PEAK].bytes)
        WEFT_TRY(check_rate(r, values[PEAK].start, path, names[PEAK], kind, out->peak));
    if (!values[POINTS].bytes == !values[LATENCY].bytes)
        return FAULT(r, values[POINTS].bytes ? keys[LATENCY].start : object.start, path, NULL,
                     "needs either points or latency_us");
    if (values[POINTS].bytes) {
        WEFT_TRY(read_points(r, values[POINTS], path, kind, &out->curve));
        if (!values[PEAK].bytes)
            out->peak = best_rate(&out->curve);
        if (out->peak > 0 && isfinite(out->peak))
            return check_rate(r, values[POINTS].start, path, names[POINTS], kind, out->peak);
        return FAULT(r, values[POINTS].start, path, names[POINTS],
                     "no rate follows from these; give a peak");
    }
    if (!values[PEAK].bytes)
        return FAULT(r, object.start, path, NULL, "latency_us needs a peak beside it");
    double latency_us;
    WEFT_TRY(weft_cluster_number_read(r, values[LATENCY], path, names[LATENCY], &latency_us));
    if (latency_us < 0)
        return FAULT(r, values[LATENCY].start, path, names[LATENCY], "%g µs is not a time",
                     latency_us);
    out->curve = weft_curve_linear(latency_us, out->peak * 1e-6);
    return WEFT_OK;
}

static weft_status read_costs(const reader *r, weft_json_span object, weft_cost *costs)
{
    const char *names[WEFT_NUM_COSTS];
    weft_json_span values[WEFT_NUM_COSTS] = {{0}}, keys[WEFT_NUM_COSTS] = {{0}};
    members m = {"costs", names, WEFT_NUM_COSTS, values, keys};
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        names[i] = weft_cost_text((weft_cost_kind)i);
    WEFT_TRY(weft_cluster_want(r, object, WEFT_JSON_OBJECT, "an object of costs", m.path, NULL));
    WEFT_TRY(weft_cluster_members_read(r, object, &m));
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (values[i].bytes)
            WEFT_TRY(read_cost(r, values[i], names[i], (weft_cost_kind)i, &costs[i]));
    return WEFT_OK;
}

static weft_status read_interference(const reader *r, weft_json_span array, weft_interference *out)
{
    static const char key[] = "interference", what[] = "three rows of four numbers";
    const char *cursor = NULL;
    weft_json_span row;
    int y = 0;
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, what, NULL, key));
    for (; weft_json_next(array, &cursor, NULL, &row); y++) {
        weft_cluster_element name = weft_cluster_element_of(key, y);
        if (y >= WEFT_NUM_WORK_CLASSES)
            continue;
        WEFT_TRY(weft_cluster_numbers_read(r, row, NULL, name.text, WEFT_NUM_WORK_CLASSES + 1,
                                           "four numbers", out->alpha[y]));
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double alpha = out->alpha[y][x];
            if (!(alpha > 0 && alpha <= 2))
                return FAULT(r, row.start, NULL, name.text,
                             "%g is no share of speed: of %s beside %s, above 0, at most "
                             "2",
                             alpha, weft_work_class_text(y), weft_work_class_text(x));
            if (alpha < weft_interference_least(x))
                return FAULT(r, row.start, NULL, name.text,
                             "%g of its speed is left to %s beside %s, where sharing leaves "
                             "%.2g or more: measure again with weft calibrate on idle cores, or "
                             "leave interference out",
                             alpha, weft_work_class_text(y), weft_work_class_text(x),
                             weft_interference_least(x));
            if (x == y && alpha != 1)
                return FAULT(r, row.start, NULL, name.text,
                             "%g where %s is beside itself; that is 1", alpha,
                             weft_work_class_text(y));
        }
    }
    if (y == WEFT_NUM_WORK_CLASSES)
        return WEFT_OK;
    return FAULT(r, array.start, NULL, key, "expected %s, got %d rows", what, y);
}

/* ["bf16", m, n, k, microseconds] */
static weft_status read_product(const reader *r, weft_json_span array, int index, weft_cluster *out)
{
    static const char what[] = "[type, m, n, k, microseconds]";
    enum { TYPE, M, US = 4, COUNT };
    weft_cluster_element key = weft_cluster_element_of("products", index);
    const char *cursor = NULL;
    weft_json_span value;
    weft_product product = {.kind = WEFT_COST_GEMM_FP32};
    double *const numbers[COUNT] = {[M] = &product.m, &product.n, &product.k, &product.us};
    int n = 0;
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, what, NULL, key.text));
    for (; weft_json_next(array, &cursor, NULL, &value); n++) {
        char type[8];
        if (n == TYPE) {
            WEFT_TRY(weft_cluster_string_read(r, value, NULL, key.text, type, sizeof type));
            if (strcmp(type, "bf16") == 0)
                product.kind = WEFT_COST_GEMM_BF16;
            else if (strcmp(type, "fp32") != 0)
                return FAULT(r, value.start, NULL, key.text, "expected fp32 or bf16");
        } else if (n < COUNT) {
            WEFT_TRY(read_positive(r, value, NULL, key.text, numbers[n]));
            if (n < US && (*numbers[n] > 1e9 || *numbers[n] != floor(*numbers[n])))
                return FAULT(r, value.start, NULL, key.text, "%g is no number of rows or columns",
                             *numbers[n]);
        }
    }
    if (n != COUNT)
        return FAULT(r, array.start, NULL, key.text, "expected %s, got %d values", what, n);
    double rate = 2 * product.m * product.n * product.k / (product.us * 1e-6), least, most;
    weft_cost_bounds(product.kind, &least, &most);
    if (rate > most)
        WEFT_TRY(check_rate(r, array.start, NULL, key.text, product.kind, rate));
    out->products[index] = product;
    return WEFT_OK;
}

/* ["loss", "forward", "bf16", volume, microseconds] */
static weft_status read_operation(const reader *r, weft_json_span array, int index,
                                  weft_cluster *out)
{
    static const char what[] = "[module, phase, type, volume, microseconds]";
    enum { MODULE, PHASE, TYPE, VOLUME, US, COUNT };
    weft_cluster_element key = weft_cluster_element_of("operations", index);
    weft_timed_operation o = {.dtype = WEFT_F32};
    const char *cursor = NULL;
    weft_json_span value;
    int n = 0, phase = 0;
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, what, NULL, key.text));
    for (; weft_json_next(array, &cursor, NULL, &value); n++) {
        char text[24];
        if (n == MODULE)
            WEFT_TRY(weft_cluster_string_read(r, value, NULL, key.text, o.module, sizeof o.module));
        else if (n == VOLUME || n == US)
            WEFT_TRY(read_positive(r, value, NULL, key.text, n == US ? &o.us : &o.volume));
        else if (n < COUNT)
            WEFT_TRY(weft_cluster_string_read(r, value, NULL, key.text, text, sizeof text));
        if (n == PHASE) {
            while (phase < WEFT_NUM_PHASES && strcmp(text, weft_phase_text(phase)) != 0)
                phase++;
            if (phase == WEFT_NUM_PHASES)
                return FAULT(r, value.start, NULL, key.text, "\"%s\" is no phase", text);
            o.phase = (weft_phase)phase;
        } else if (n == TYPE) {
            o.dtype = strcmp(text, "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
            if (o.dtype == WEFT_F32 && strcmp(text, "fp32") != 0)
                return FAULT(r, value.start, NULL, key.text, "expected fp32 or bf16");
        }
    }
    if (n != COUNT)
        return FAULT(r, array.start, NULL, key.text, "expected %s, got %d values", what, n);
    out->operations[index] = o;
    return WEFT_OK;
}

static const weft_cluster_array products = {NULL, "products", WEFT_MAX_PRODUCTS, read_product},
                                operations = {NULL, "operations", WEFT_MAX_TIMED_OPERATIONS,
                                              read_operation};

static weft_status read_root(const reader *r, weft_json_span root, weft_cluster *out)
{
    enum {
        NAME,
        NODES,
        RANKS,
        COSTS,
        INTERFERENCE,
        PRODUCTS,
        OPERATIONS,
        GROUPS,
        SOURCES,
        SECTIONS,
        COUNT = SECTIONS + WEFT_CLUSTER_NUM_SECTIONS
    };
    const char *names[COUNT] = {"name",       "num_nodes",    "ranks_per_node",
                                "costs",      "interference", "products",
                                "operations", "groups",       "sources"};
    weft_json_span values[COUNT] = {{0}}, keys[COUNT] = {{0}};
    for (int i = 0; i < WEFT_CLUSTER_NUM_SECTIONS; i++)
        names[SECTIONS + i] = weft_cluster_sections[i];
    members m = {NULL, names, COUNT, values, keys};
    WEFT_TRY(weft_cluster_want(r, root, WEFT_JSON_OBJECT, "an object", NULL, NULL));
    WEFT_TRY(weft_cluster_members_read(r, root, &m));
    if (values[NAME].bytes)
        WEFT_TRY(weft_cluster_string_read(r, values[NAME], NULL, names[NAME], out->name,
                                          sizeof out->name));
    for (int i = NODES; i <= RANKS; i++) {
        if (!values[i].bytes)
            return FAULT(r, root.start, NULL, names[i], "missing");
        WEFT_TRY(weft_cluster_count_read(r, values[i], NULL, names[i],
                                         i == NODES ? &out->num_nodes : &out->ranks_per_node));
    }
    if (values[COSTS].bytes)
        WEFT_TRY(read_costs(r, values[COSTS], out->costs));
    if (values[INTERFERENCE].bytes)
        WEFT_TRY(read_interference(r, values[INTERFERENCE], &out->interference));
    if (values[PRODUCTS].bytes)
        WEFT_TRY(weft_cluster_array_read(r, values[PRODUCTS], &products, "an array of products",
                                         out, &out->num_products));
    if (values[OPERATIONS].bytes)
        WEFT_TRY(weft_cluster_array_read(r, values[OPERATIONS], &operations,
                                         "an array of operations", out, &out->num_operations));
    for (int i = 0; i < WEFT_CLUSTER_NUM_SECTIONS; i++)
        if (values[SECTIONS + i].bytes)
            WEFT_TRY(weft_cluster_section_read(r, values[SECTIONS + i], i, out));
    if (values[GROUPS].bytes)
        WEFT_TRY(weft_cluster_groups_read(r, values[GROUPS], out));
    if (values[SOURCES].bytes)
        WEFT_TRY(weft_cluster_sources_read(r, values[SOURCES], out));
    return WEFT_OK;
}

weft_status weft_cluster_parse(const char *file, const char *text, weft_arena *arena,
                               weft_cluster *out)
{
    /* Some editors start a file with a byte order mark. */
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    reader r = {.source = {.file = file, .text = text}, .arena = arena};
    weft_json_span root;
    weft_json_fault fault;
    if (!weft_json_check(text, &root, &fault))
        return FAULT(&r, fault.at, NULL, NULL, "not valid JSON: %s", fault.reason);
    int line, column;
    if (weft_options_locate(text, "model", &line, &column))
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: a config of a model, where a cluster's file belongs, such as weft "
                          "calibrate writes",
                          file);
    weft_cluster cluster = {.interference = weft_interference_none()};
    WEFT_TRY(read_root(&r, root, &cluster));
    *out = cluster;
    return WEFT_OK;
}

weft_status weft_cluster_read(const char *path, weft_cluster *out)
{
    weft_arena arena = {0};
    char *text;
    size_t bytes;
    weft_status status = weft_read_file(path, &arena, &text, &bytes);
    if (status == WEFT_OK && strlen(text) != bytes)
        status = WEFT_ERROR(WEFT_CONFIG, "%s: a zero byte stands in the text", path);
    if (status == WEFT_OK)
        status = weft_cluster_parse(path, text, &arena, out);
    weft_arena_release(&arena);
    return status;
}
