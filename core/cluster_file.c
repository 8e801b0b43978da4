/* A cluster as a JSON file. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cluster.h"
#include "core/file.h"
#include "core/json.h"
#include "core/options.h"
#include "core/options_value.h"

/* --- reading ------------------------------------------------------------------------------- */

typedef struct reader {
    weft_option_source source;
    weft_arena *arena;
} reader;

/* An object's members by the names it may have; a span without bytes was not given. */
typedef struct members {
    const char *path; /* NULL: the file's own */
    const char *const *names;
    size_t count;
    weft_json_span *values;
    weft_json_span *keys;
} members;

/* FILE:line:column and the path of a key, for an error about what stands at `at`. */
#define PLACE(r, at, path, key)                                                                    \
    char where[WEFT_OPTION_PLACE_BYTES];                                                           \
    weft_option_place(&(r)->source, (at), (path), (key), where)

static weft_status want_kind(const reader *r, weft_json_span value, weft_json_kind kind,
                             const char *what, const char *path, const char *key)
{
    if (weft_json_kind_of(value) == kind)
        return WEFT_OK;
    PLACE(r, value.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: expected %s, got %s", where, what,
                      weft_json_kind_text(value));
}

static weft_status unknown_key(const reader *r, const members *m, weft_json_span span,
                               const char *key)
{
    PLACE(r, span.start, m->path, key);
    const char *near = weft_nearest_name(key, m->names, m->count);
    if (near)
        return WEFT_ERROR(WEFT_CONFIG, "%s: unknown key; did you mean %s%s%s?", where,
                          m->path ? m->path : "", m->path ? "." : "", near);
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < m->count && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", m->names[i]);
    return WEFT_ERROR(WEFT_CONFIG, "%s: unknown key; the keys are %s", where, list);
}

static weft_status read_members(const reader *r, weft_json_span object, members *m)
{
    const char *cursor = NULL;
    weft_json_span key_span, value;
    while (weft_json_next(object, &cursor, &key_span, &value)) {
        const char *key;
        weft_status status = weft_json_string(key_span, r->arena, &key);
        if (status == WEFT_CONFIG) {
            PLACE(r, key_span.start, m->path, NULL);
            return weft_error_context(status, "%s", where);
        }
        WEFT_TRY(status);
        size_t i = 0;
        while (i < m->count && strcmp(m->names[i], key) != 0)
            i++;
        if (i == m->count)
            return unknown_key(r, m, key_span, key);
        if (m->values[i].bytes) {
            PLACE(r, key_span.start, m->path, key);
            int line, column;
            weft_json_position(r->source.text, m->keys[i].start, &line, &column);
            return WEFT_ERROR(WEFT_CONFIG, "%s: given twice; first at line %d, column %d", where,
                              line, column);
        }
        m->keys[i] = key_span;
        m->values[i] = value;
    }
    return WEFT_OK;
}

static weft_status read_number(const reader *r, weft_json_span value, const char *path,
                               const char *key, double *out)
{
    WEFT_TRY(want_kind(r, value, WEFT_JSON_NUMBER, "a number", path, key));
    *out = strtod(value.start, NULL); /* what follows a number in JSON is no part of one */
    if (isfinite(*out))
        return WEFT_OK;
    PLACE(r, value.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: %.*s is too large", where,
                      (int)(value.bytes < 40 ? value.bytes : 40), value.start);
}

static weft_status read_positive(const reader *r, weft_json_span value, const char *path,
                                 const char *key, double *out)
{
    WEFT_TRY(read_number(r, value, path, key, out));
    if (*out > 0)
        return WEFT_OK;
    PLACE(r, value.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: %g is not positive", where, *out);
}

static weft_status read_count(const reader *r, weft_json_span root, weft_json_span value,
                              const char *key, int *out)
{
    double number;
    if (!value.bytes) {
        PLACE(r, root.start, NULL, key);
        return WEFT_ERROR(WEFT_CONFIG, "%s: missing", where);
    }
    WEFT_TRY(read_number(r, value, NULL, key, &number));
    if (number < 1 || number > 1e6 || number != floor(number)) {
        PLACE(r, value.start, NULL, key);
        return WEFT_ERROR(WEFT_CONFIG, "%s: %g is not a whole number of 1 to 1000000", where,
                          number);
    }
    *out = (int)number;
    return WEFT_OK;
}

/* "points[3]". */
typedef struct element {
    char text[32];
} element;

static element element_of(const char *array, int index)
{
    element e;
    snprintf(e.text, sizeof e.text, "%s[%d]", array, index);
    return e;
}

/* The numbers of an array; exactly `num` of them. */
static weft_status read_numbers(const reader *r, weft_json_span array, const char *path,
                                const char *key, int num, const char *what, double *out)
{
    const char *cursor = NULL;
    weft_json_span value;
    int count = 0;
    WEFT_TRY(want_kind(r, array, WEFT_JSON_ARRAY, what, path, key));
    for (; weft_json_next(array, &cursor, NULL, &value); count++)
        if (count < num)
            WEFT_TRY(read_number(r, value, path, key, &out[count]));
    if (count == num)
        return WEFT_OK;
    PLACE(r, array.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: expected %s, got %d numbers", where, what, count);
}

/* A rate that no hardware has: in another unit, most likely. */
static weft_status check_rate(const reader *r, const char *at, const char *path, const char *key,
                              weft_cost_kind kind, double rate)
{
    double least, most;
    weft_cost_bounds(kind, &least, &most);
    if (rate >= least && rate <= most)
        return WEFT_OK;
    PLACE(r, at, path, key);
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s: %.3g %s/s, where %.0e to %.0e are possible: volumes are in %s, times in "
                      "microseconds, peaks in %s a second; measure again with weft calibrate",
                      where, rate, weft_cost_unit(kind), least, most, weft_cost_unit(kind),
                      weft_cost_unit(kind));
}

static weft_status read_points(const reader *r, weft_json_span array, const char *path,
                               weft_cost_kind kind, weft_curve *curve)
{
    const char *cursor = NULL;
    weft_json_span pair;
    int n = 0;
    WEFT_TRY(
        want_kind(r, array, WEFT_JSON_ARRAY, "an array of [volume, microseconds]", path, "points"));
    for (; weft_json_next(array, &cursor, NULL, &pair); n++) {
        element key = element_of("points", n);
        double point[2];
        PLACE(r, pair.start, path, key.text);
        if (n == WEFT_CURVE_MAX_POINTS)
            return WEFT_ERROR(WEFT_CONFIG, "%s: a curve has at most %d points", where,
                              WEFT_CURVE_MAX_POINTS);
        WEFT_TRY(read_numbers(r, pair, path, key.text, 2, "[volume, microseconds]", point));
        if (point[0] < 0 || (n > 0 && point[0] <= curve->volume[n - 1]))
            return WEFT_ERROR(WEFT_CONFIG, "%s: the volume %g does not rise above %g", where,
                              point[0], n > 0 ? curve->volume[n - 1] : 0.0);
        /* Something may begin at once; nothing that moves or computes takes no time. */
        if (point[1] < 0 || (point[1] == 0 && point[0] > 0))
            return WEFT_ERROR(WEFT_CONFIG, "%s: %g µs is not a time", where, point[1]);
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
    PLACE(r, array.start, path, "points");
    return WEFT_ERROR(WEFT_CONFIG, "%s: a curve needs a point; leave the cost out instead", where);
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
    enum { PEAK, POINTS, LATENCY, COUNT };
    static const char *const names[COUNT] = {"peak", "points", "latency_us"};
    weft_json_span values[COUNT] = {{0}}, keys[COUNT] = {{0}};
    char path[64];
    snprintf(path, sizeof path, "costs.%s", name);
    members m = {path, names, COUNT, values, keys};
    WEFT_TRY(want_kind(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(read_members(r, object, &m));
    if (values[PEAK].bytes)
        WEFT_TRY(read_positive(r, values[PEAK], path, names[PEAK], &out->peak));
    if (values[PEAK].bytes)
        WEFT_TRY(check_rate(r, values[PEAK].start, path, names[PEAK], kind, out->peak));
    if (!values[POINTS].bytes == !values[LATENCY].bytes) {
        PLACE(r, values[POINTS].bytes ? keys[LATENCY].start : object.start, path, NULL);
        return WEFT_ERROR(WEFT_CONFIG, "%s: needs either points or latency_us", where);
    }
    if (values[POINTS].bytes) {
        WEFT_TRY(read_points(r, values[POINTS], path, kind, &out->curve));
        if (!values[PEAK].bytes)
            out->peak = best_rate(&out->curve);
        if (out->peak > 0 && isfinite(out->peak))
            return check_rate(r, values[POINTS].start, path, names[POINTS], kind, out->peak);
        PLACE(r, values[POINTS].start, path, names[POINTS]);
        return WEFT_ERROR(WEFT_CONFIG, "%s: no rate follows from these; give a peak", where);
    }
    if (!values[PEAK].bytes) {
        PLACE(r, object.start, path, NULL);
        return WEFT_ERROR(WEFT_CONFIG, "%s: latency_us needs a peak beside it", where);
    }
    double latency_us;
    WEFT_TRY(read_number(r, values[LATENCY], path, names[LATENCY], &latency_us));
    if (latency_us < 0) {
        PLACE(r, values[LATENCY].start, path, names[LATENCY]);
        return WEFT_ERROR(WEFT_CONFIG, "%s: %g µs is not a time", where, latency_us);
    }
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
    WEFT_TRY(want_kind(r, object, WEFT_JSON_OBJECT, "an object of costs", m.path, NULL));
    WEFT_TRY(read_members(r, object, &m));
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
    WEFT_TRY(want_kind(r, array, WEFT_JSON_ARRAY, what, NULL, key));
    for (; weft_json_next(array, &cursor, NULL, &row); y++) {
        element name = element_of(key, y);
        if (y >= WEFT_NUM_WORK_CLASSES)
            continue;
        WEFT_TRY(read_numbers(r, row, NULL, name.text, WEFT_NUM_WORK_CLASSES + 1, "four numbers",
                              out->alpha[y]));
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double alpha = out->alpha[y][x];
            PLACE(r, row.start, NULL, name.text);
            if (!(alpha > 0 && alpha <= 2))
                return WEFT_ERROR(WEFT_CONFIG,
                                  "%s: %g is no share of speed: of %s beside %s, above 0, at most "
                                  "2",
                                  where, alpha, weft_work_class_text(y), weft_work_class_text(x));
            if (alpha < weft_interference_least(x))
                return WEFT_ERROR(
                    WEFT_CONFIG,
                    "%s: %g of its speed is left to %s beside %s, where sharing leaves "
                    "%.2g or more: measure again with weft calibrate on idle cores, or "
                    "leave interference out",
                    where, alpha, weft_work_class_text(y), weft_work_class_text(x),
                    weft_interference_least(x));
            if (x == y && alpha != 1)
                return WEFT_ERROR(WEFT_CONFIG, "%s: %g where %s is beside itself; that is 1", where,
                                  alpha, weft_work_class_text(y));
        }
    }
    if (y == WEFT_NUM_WORK_CLASSES)
        return WEFT_OK;
    PLACE(r, array.start, NULL, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: expected %s, got %d rows", where, what, y);
}

static weft_status read_root(const reader *r, weft_json_span root, weft_cluster *out)
{
    enum { NAME, NODES, RANKS, COSTS, INTERFERENCE, COUNT };
    static const char *const names[COUNT] = {"name", "num_nodes", "ranks_per_node", "costs",
                                             "interference"};
    weft_json_span values[COUNT] = {{0}}, keys[COUNT] = {{0}};
    members m = {NULL, names, COUNT, values, keys};
    WEFT_TRY(want_kind(r, root, WEFT_JSON_OBJECT, "an object", NULL, NULL));
    WEFT_TRY(read_members(r, root, &m));
    if (values[NAME].bytes) {
        const char *name;
        PLACE(r, values[NAME].start, NULL, names[NAME]);
        WEFT_TRY(want_kind(r, values[NAME], WEFT_JSON_STRING, "a string", NULL, names[NAME]));
        weft_status status = weft_json_string(values[NAME], r->arena, &name);
        if (status == WEFT_CONFIG)
            return weft_error_context(status, "%s", where);
        WEFT_TRY(status);
        if (strlen(name) >= sizeof out->name)
            return WEFT_ERROR(WEFT_CONFIG, "%s: longer than %zu bytes", where,
                              sizeof out->name - 1);
        snprintf(out->name, sizeof out->name, "%s", name);
    }
    WEFT_TRY(read_count(r, root, values[NODES], names[NODES], &out->num_nodes));
    WEFT_TRY(read_count(r, root, values[RANKS], names[RANKS], &out->ranks_per_node));
    if (values[COSTS].bytes)
        WEFT_TRY(read_costs(r, values[COSTS], out->costs));
    if (values[INTERFERENCE].bytes)
        WEFT_TRY(read_interference(r, values[INTERFERENCE], &out->interference));
    return WEFT_OK;
}

static weft_status read_text(const char *file, const char *text, weft_arena *arena,
                             weft_cluster *out)
{
    /* Some editors start a file with a byte order mark. */
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    reader r = {.source = {.file = file, .text = text}, .arena = arena};
    weft_json_span root;
    weft_json_fault fault;
    if (!weft_json_check(text, &root, &fault)) {
        PLACE(&r, fault.at, NULL, NULL);
        return WEFT_ERROR(WEFT_CONFIG, "%s: not valid JSON: %s", where, fault.reason);
    }
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
        status = read_text(path, text, &arena, out);
    weft_arena_release(&arena);
    return status;
}

/* --- writing ------------------------------------------------------------------------------- */

/* The shortest digits that read back as the same double. */
static void write_double(double value, FILE *out)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, out);
}

static void write_cost(const weft_cost *cost, FILE *out)
{
    fputs("{\"peak\": ", out);
    write_double(cost->peak, out);
    fputs(", \"points\": [", out);
    for (int i = 0; i < cost->curve.num_points; i++) {
        fputs(i ? (i % 4 ? ", [" : ",\n      [") : "\n      [", out);
        write_double(cost->curve.volume[i], out);
        fputs(", ", out);
        write_double(cost->curve.time_us[i], out);
        fputc(']', out);
    }
    fputs("]}", out);
}

weft_status weft_cluster_print(const weft_cluster *cluster, FILE *out)
{
    weft_arena arena = {0};
    const char *name;
    weft_status status = weft_json_quote(cluster->name, &arena, &name);
    if (status == WEFT_OK)
        fprintf(out,
                "{\n  \"name\": %s,\n  \"num_nodes\": %d,\n  \"ranks_per_node\": %d,\n"
                "  \"costs\": {",
                name, cluster->num_nodes, cluster->ranks_per_node);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    const char *comma = "";
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        if (!weft_cluster_knows(cluster, (weft_cost_kind)i))
            continue;
        fprintf(out, "%s\n    \"%s\": ", comma, weft_cost_text((weft_cost_kind)i));
        write_cost(&cluster->costs[i], out);
        comma = ",";
    }
    const weft_interference none = weft_interference_none();
    bool is_known = memcmp(&none, &cluster->interference, sizeof none) != 0;
    fputs(is_known ? "\n  },\n  \"interference\": [" : "\n  }\n}\n", out);
    for (int y = 0; is_known && y < WEFT_NUM_WORK_CLASSES; y++) {
        fputs(y ? ",\n    [" : "\n    [", out);
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            fputs(x ? ", " : "", out);
            write_double(cluster->interference.alpha[y][x], out);
        }
        fputc(']', out);
    }
    if (is_known)
        fputs("\n  ]\n}\n", out);
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write the cluster: %s", strerror(errno));
    return WEFT_OK;
}

/* What is written can be read. */
static weft_status check_text(const weft_cluster *cluster, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    weft_arena arena = {0};
    weft_cluster back;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for %s", path);
    weft_status status = weft_cluster_print(cluster, stream);
    fclose(stream);
    if (status == WEFT_OK)
        status = read_text(path, text, &arena, &back);
    weft_arena_release(&arena);
    free(text);
    return status;
}

weft_status weft_cluster_write(const weft_cluster *cluster, const char *path)
{
    weft_new_file file;
    WEFT_TRY(check_text(cluster, path));
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_status status = weft_cluster_print(cluster, file.file);
    if (status != WEFT_OK)
        weft_error_context(status, "%s", path);
    return weft_new_file_close(&file, status);
}
