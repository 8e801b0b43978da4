/* Writes a cluster as a file. */
#include <errno.h>
#include <string.h>

#include "core/cluster/internal.h"
#include "core/file.h"
#include "core/json_write.h"

typedef weft_json_out json;

/* [[x, y], ...] */
static void write_pairs(json *out, const char *key, const double *x, const double *y, int count)
{
    weft_json_open_flat(out, key, '[');
    for (int i = 0; i < count; i++)
        weft_json_numbers(out, NULL, (const double[]){x[i], y[i]}, 2);
    weft_json_close(out);
}

/* --- hardware ------------------------------------------------------------------------------ */

/* What of a node's hardware is written: all that is known, or a group's own. */
typedef struct selection {
    const weft_hardware *hardware;
    uint32_t figures, efficiencies;
    bool name;
    const weft_cluster *cluster; /* of which levels and currency are; NULL: not here */
} selection;

static selection all_of(const weft_cluster *cluster)
{
    selection s = {&cluster->hardware, cluster->hardware.given, 0, *cluster->hardware.device_name,
                   cluster};
    for (int i = 0; i < WEFT_NUM_EFFICIENCIES; i++)
        s.efficiencies |= (uint32_t)(s.hardware->efficiencies[i].num_points > 0) << i;
    return s;
}

/* The part of a path that follows `above` and its dot; NULL: it is not below. */
static const char *below(const char *path, const char *above)
{
    size_t bytes = strlen(above);
    return strncmp(path, above, bytes) == 0 && path[bytes] == '.' ? path + bytes + 1 : NULL;
}

static void write_levels(const weft_cluster *cluster, json *out)
{
    weft_json_open_flat(out, "levels", '[');
    for (int i = 0; i < cluster->num_levels; i++) {
        weft_json_open(out, NULL, '{');
        weft_json_number(out, "nodes", cluster->levels[i].nodes);
        weft_json_number(out, "oversubscription", cluster->levels[i].oversubscription);
        weft_json_close(out);
    }
    weft_json_close(out);
}

/* A figure or a curve of efficiencies, by its index in both tables. */
static void write_member(const weft_hardware *hardware, int i, const char *key, json *out)
{
    if (i < WEFT_NUM_FIGURES) {
        weft_json_number(out, key, hardware->figures[i]);
        return;
    }
    const weft_share_curve *curve = &hardware->efficiencies[i - WEFT_NUM_FIGURES];
    write_pairs(out, key, curve->volume, curve->share, curve->num_points);
}

/* Members of a section: paths that hold on below `path` alike stand in one object, which the tables
 * keep together. */
static void write_members(const char *path, const selection *s, json *out)
{
    char open[32] = ""; /* the object in it that is being written */
    if (s->name && strcmp(path, "device") == 0)
        weft_json_text(out, "name", s->hardware->device_name);
    for (int i = 0; i < WEFT_NUM_FIGURES + WEFT_NUM_EFFICIENCIES; i++) {
        const int e = i - WEFT_NUM_FIGURES;
        const char *key = below(e < 0 ? weft_figure_path((weft_figure)i)
                                      : weft_efficiency_path((weft_efficiency_kind)e),
                                path);
        if (!key || !((e < 0 ? s->figures >> i : s->efficiencies >> e) & 1))
            continue;
        const size_t bytes = strcspn(key, ".");
        if (*open && (strncmp(open, key, bytes) != 0 || open[bytes])) {
            weft_json_close(out);
            *open = '\0';
        }
        if (key[bytes] && !*open) {
            snprintf(open, sizeof open, "%.*s", (int)bytes, key);
            weft_json_open_flat(out, open, '{');
        }
        write_member(s->hardware, i, key[bytes] ? key + bytes + 1 : key, out);
    }
    if (*open)
        weft_json_close(out);
    if (s->cluster && s->cluster->num_levels > 0 && strcmp(path, "between") == 0)
        write_levels(s->cluster, out);
    if (s->cluster && *s->cluster->currency && strcmp(path, "node") == 0)
        weft_json_text(out, "currency", s->cluster->currency);
}

static bool has_section(const selection *s, const char *path)
{
    for (int i = 0; i < WEFT_NUM_FIGURES; i++)
        if (s->figures >> i & 1 && below(weft_figure_path((weft_figure)i), path))
            return true;
    for (int i = 0; i < WEFT_NUM_EFFICIENCIES; i++)
        if (s->efficiencies >> i & 1 && below(weft_efficiency_path((weft_efficiency_kind)i), path))
            return true;
    return (strcmp(path, "device") == 0 && s->name) ||
           (s->cluster && strcmp(path, "between") == 0 && s->cluster->num_levels > 0) ||
           (s->cluster && strcmp(path, "node") == 0 && *s->cluster->currency);
}

/* A group's stand on a line each. */
static void write_sections(const selection *s, json *out)
{
    for (int i = 0; i < WEFT_CLUSTER_NUM_SECTIONS; i++) {
        const char *path = weft_cluster_sections[i];
        if (!has_section(s, path))
            continue;
        if (s->cluster)
            weft_json_open(out, path, '{');
        else
            weft_json_open_flat(out, path, '{');
        write_members(path, s, out);
        weft_json_close(out);
    }
}

static void write_groups(const weft_cluster *cluster, json *out)
{
    if (cluster->num_groups == 0)
        return;
    weft_json_open(out, "groups", '[');
    for (int i = 0; i < cluster->num_groups; i++) {
        const weft_node_group *group = &cluster->groups[i];
        const selection own = {&group->hardware, group->own_figures, group->own_efficiencies,
                               group->own_name, NULL};
        weft_json_open(out, NULL, '{');
        weft_json_number(out, "num_nodes", group->num_nodes);
        write_sections(&own, out);
        weft_json_close(out);
    }
    weft_json_close(out);
}

/* --- the rest ------------------------------------------------------------------------------ */

static void write_costs(const weft_cluster *cluster, json *out)
{
    weft_json_open(out, "costs", '{');
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        const weft_cost *cost = &cluster->costs[i];
        if (!weft_cluster_knows(cluster, (weft_cost_kind)i))
            continue;
        weft_json_open_flat(out, weft_cost_text((weft_cost_kind)i), '{');
        weft_json_number(out, "peak", cost->peak);
        if (cost->width)
            weft_json_number(out, "width", cost->width);
        write_pairs(out, "points", cost->curve.volume, cost->curve.time_us, cost->curve.num_points);
        weft_json_close(out);
    }
    weft_json_close(out);
}

static void write_interference(const weft_cluster *cluster, json *out)
{
    const weft_interference none = weft_interference_none();
    if (memcmp(&none, &cluster->interference, sizeof none) == 0)
        return;
    weft_json_open(out, "interference", '[');
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        weft_json_numbers(out, NULL, cluster->interference.alpha[y], WEFT_WORK_ALL + 1);
    weft_json_close(out);
}

static void write_products(const weft_cluster *cluster, json *out)
{
    if (cluster->num_products == 0)
        return;
    weft_json_open(out, "products", '[');
    for (int i = 0; i < cluster->num_products; i++) {
        const weft_product *p = &cluster->products[i];
        const double numbers[] = {p->m, p->n, p->k, p->us};
        weft_json_open_flat(out, NULL, '[');
        weft_json_text(out, NULL, p->kind == WEFT_COST_GEMM_BF16 ? "bf16" : "fp32");
        for (int n = 0; n < 4; n++)
            weft_json_number(out, NULL, numbers[n]);
        weft_json_close(out);
    }
    weft_json_close(out);
}

static void write_operations(const weft_cluster *cluster, json *out)
{
    if (cluster->num_operations == 0)
        return;
    weft_json_open(out, "operations", '[');
    for (int i = 0; i < cluster->num_operations; i++) {
        const weft_timed_operation *t = &cluster->operations[i];
        weft_json_open_flat(out, NULL, '[');
        weft_json_text(out, NULL, t->module);
        weft_json_text(out, NULL, weft_phase_text((int)t->phase));
        weft_json_text(out, NULL, weft_dtype_text(t->dtype));
        weft_json_number(out, NULL, t->volume);
        weft_json_number(out, NULL, t->us);
        weft_json_close(out);
    }
    weft_json_close(out);
}

static void write_sources(const weft_cluster *cluster, json *out)
{
    if (cluster->num_sources == 0)
        return;
    weft_json_open(out, "sources", '{');
    for (int i = 0; i < cluster->num_sources; i++) {
        const weft_source *source = &cluster->sources[i];
        weft_json_open_flat(out, source->key, '[');
        weft_json_text(out, NULL, weft_source_class_text(source->class_));
        weft_json_text(out, NULL, source->where);
        if (source->spread > 0)
            weft_json_number(out, NULL, source->spread);
        weft_json_close(out);
    }
    weft_json_close(out);
}

void weft_cluster_write_json(const weft_cluster *cluster, const char *key, weft_json_out *out)
{
    const selection all = all_of(cluster);
    weft_json_open(out, key, '{');
    weft_json_text(out, "name", cluster->name);
    weft_json_number(out, "num_nodes", cluster->num_nodes);
    weft_json_number(out, "ranks_per_node", cluster->ranks_per_node);
    write_sections(&all, out);
    write_costs(cluster, out);
    write_interference(cluster, out);
    write_products(cluster, out);
    write_operations(cluster, out);
    write_groups(cluster, out);
    write_sources(cluster, out);
    weft_json_close(out);
}

weft_status weft_cluster_print(const weft_cluster *cluster, FILE *out)
{
    json writer = {.file = out, .keeps_bytes = true};
    weft_cluster_write_json(cluster, NULL, &writer);
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write the cluster: %s", strerror(errno));
    return WEFT_OK;
}

/* What is written can be read. */
static weft_status check_text(const weft_cluster *cluster, const char *path)
{
    weft_new_text text;
    weft_arena arena = {0};
    const char *written;
    weft_cluster back;
    WEFT_TRY(weft_new_text_open(&text));
    weft_status status = weft_cluster_print(cluster, text.file);
    status = weft_new_text_close(&text, status, &arena, &written);
    if (status == WEFT_OK)
        status = weft_cluster_parse(path, written, &arena, &back);
    weft_arena_release(&arena);
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
