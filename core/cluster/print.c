/* Writes a cluster as a file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/cluster/internal.h"
#include "core/file.h"

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
    if (cost->width)
        fprintf(out, ", \"width\": %d", cost->width);
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

/* --- hardware ------------------------------------------------------------------------------ */

/* An object that is being written: what stands before its next member. */
typedef struct object {
    FILE *out;
    const char *indent; /* of its members; NULL: all on one line */
    bool any;
} object;

static void begin_member(object *o, const char *key, size_t key_bytes)
{
    fputs(o->any ? "," : "", o->out);
    fprintf(o->out, "%s%s\"%.*s\": ",
            o->indent ? "\n"
            : o->any  ? " "
                      : "",
            o->indent ? o->indent : "", (int)key_bytes, key);
    o->any = true;
}

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

static void write_shares(const weft_share_curve *curve, FILE *out)
{
    fputc('[', out);
    for (int i = 0; i < curve->num_points; i++) {
        fputs(i ? ", [" : "[", out);
        write_double(curve->volume[i], out);
        fputs(", ", out);
        write_double(curve->share[i], out);
        fputc(']', out);
    }
    fputc(']', out);
}

static void write_levels(const weft_cluster *cluster, FILE *out)
{
    fputc('[', out);
    for (int i = 0; i < cluster->num_levels; i++) {
        fprintf(out, "%s{\"nodes\": %d, \"oversubscription\": ", i ? ", " : "",
                cluster->levels[i].nodes);
        write_double(cluster->levels[i].oversubscription, out);
        fputc('}', out);
    }
    fputc(']', out);
}

/* Members of a section, or of an object in it: paths that hold on below `path` alike stand in one
 * object, which the tables keep together. */
static weft_status write_members(object *o, const char *path, const selection *s, weft_arena *arena)
{
    const char *name;
    object inner = {o->out, NULL, false};
    char open[32] = ""; /* the object in it that is being written */
    if (s->name && strcmp(path, "device") == 0) {
        WEFT_TRY(weft_json_quote(s->hardware->device_name, arena, &name));
        begin_member(o, "name", 4);
        fputs(name, o->out);
    }
    for (int i = 0; i < WEFT_NUM_FIGURES + WEFT_NUM_EFFICIENCIES; i++) {
        const int e = i - WEFT_NUM_FIGURES;
        const char *key = below(e < 0 ? weft_figure_path((weft_figure)i)
                                      : weft_efficiency_path((weft_efficiency_kind)e),
                                path);
        if (!key || !((e < 0 ? s->figures >> i : s->efficiencies >> e) & 1))
            continue;
        size_t bytes = strcspn(key, ".");
        object *to = o;
        if (*open && (strncmp(open, key, bytes) != 0 || open[bytes])) {
            fputc('}', o->out);
            *open = '\0';
        }
        if (key[bytes]) {
            if (!*open) {
                begin_member(o, key, bytes);
                fputc('{', o->out);
                snprintf(open, sizeof open, "%.*s", (int)bytes, key);
                inner.any = false;
            }
            to = &inner;
            key += bytes + 1;
        }
        begin_member(to, key, strlen(key));
        if (e < 0)
            write_double(s->hardware->figures[i], o->out);
        else
            write_shares(&s->hardware->efficiencies[e], o->out);
    }
    if (*open)
        fputc('}', o->out);
    if (s->cluster && s->cluster->num_levels > 0 && strcmp(path, "between") == 0) {
        begin_member(o, "levels", 6);
        write_levels(s->cluster, o->out);
    }
    if (s->cluster && *s->cluster->currency && strcmp(path, "node") == 0) {
        WEFT_TRY(weft_json_quote(s->cluster->currency, arena, &name));
        begin_member(o, "currency", 8);
        fputs(name, o->out);
    }
    return WEFT_OK;
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

static weft_status write_sections(object *o, const char *indent, const selection *s,
                                  weft_arena *arena)
{
    for (int i = 0; i < WEFT_CLUSTER_NUM_SECTIONS; i++) {
        const char *path = weft_cluster_sections[i];
        if (!has_section(s, path))
            continue;
        object section = {o->out, indent, false};
        begin_member(o, path, strlen(path));
        fputc('{', o->out);
        WEFT_TRY(write_members(&section, path, s, arena));
        if (indent)
            fprintf(o->out, "\n%s", o->indent);
        fputc('}', o->out);
    }
    return WEFT_OK;
}

static weft_status write_groups(object *o, const weft_cluster *cluster, weft_arena *arena)
{
    if (cluster->num_groups == 0)
        return WEFT_OK;
    begin_member(o, "groups", 6);
    for (int i = 0; i < cluster->num_groups; i++) {
        const weft_node_group *group = &cluster->groups[i];
        const selection own = {&group->hardware, group->own_figures, group->own_efficiencies,
                               group->own_name, NULL};
        object members = {o->out, "      ", true};
        fprintf(o->out, "%s\n    {\n      \"num_nodes\": %d", i ? "," : "[", group->num_nodes);
        WEFT_TRY(write_sections(&members, NULL, &own, arena));
        fputs("\n    }", o->out);
    }
    fputs("\n  ]", o->out);
    return WEFT_OK;
}

/* --- the rest ------------------------------------------------------------------------------ */

static void write_costs(object *o, const weft_cluster *cluster)
{
    object costs = {o->out, "    ", false};
    begin_member(o, "costs", 5);
    fputc('{', o->out);
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        const char *text = weft_cost_text((weft_cost_kind)i);
        if (!weft_cluster_knows(cluster, (weft_cost_kind)i))
            continue;
        begin_member(&costs, text, strlen(text));
        write_cost(&cluster->costs[i], o->out);
    }
    fputs("\n  }", o->out);
}

static void write_interference(object *o, const weft_cluster *cluster)
{
    const weft_interference none = weft_interference_none();
    if (memcmp(&none, &cluster->interference, sizeof none) == 0)
        return;
    begin_member(o, "interference", 12);
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++) {
        fputs(y ? ",\n    [" : "[\n    [", o->out);
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            fputs(x ? ", " : "", o->out);
            write_double(cluster->interference.alpha[y][x], o->out);
        }
        fputc(']', o->out);
    }
    fputs("\n  ]", o->out);
}

static void write_products(object *o, const weft_cluster *cluster)
{
    if (cluster->num_products == 0)
        return;
    begin_member(o, "products", 8);
    for (int i = 0; i < cluster->num_products; i++) {
        const weft_product *p = &cluster->products[i];
        const double numbers[] = {p->m, p->n, p->k, p->us};
        fprintf(o->out, "%s\n    [\"%s\"", i ? "," : "[",
                p->kind == WEFT_COST_GEMM_BF16 ? "bf16" : "fp32");
        for (int n = 0; n < 4; n++) {
            fputs(", ", o->out);
            write_double(numbers[n], o->out);
        }
        fputc(']', o->out);
    }
    fputs("\n  ]", o->out);
}

static void write_operations(object *o, const weft_cluster *cluster)
{
    if (cluster->num_operations == 0)
        return;
    begin_member(o, "operations", 10);
    for (int i = 0; i < cluster->num_operations; i++) {
        const weft_timed_operation *t = &cluster->operations[i];
        fprintf(o->out, "%s\n    [\"%s\", \"%s\", \"%s\", ", i ? "," : "[", t->module,
                weft_phase_text((int)t->phase), weft_dtype_text(t->dtype));
        write_double(t->volume, o->out);
        fputs(", ", o->out);
        write_double(t->us, o->out);
        fputc(']', o->out);
    }
    fputs("\n  ]", o->out);
}

static weft_status write_sources(object *o, const weft_cluster *cluster, weft_arena *arena)
{
    if (cluster->num_sources == 0)
        return WEFT_OK;
    begin_member(o, "sources", 7);
    for (int i = 0; i < cluster->num_sources; i++) {
        const weft_source *source = &cluster->sources[i];
        const char *where;
        WEFT_TRY(weft_json_quote(source->where, arena, &where));
        fprintf(o->out, "%s\n    \"%s\": [\"%s\", %s", i ? "," : "{", source->key,
                weft_source_class_text(source->class_), where);
        if (source->spread > 0) {
            fputs(", ", o->out);
            write_double(source->spread, o->out);
        }
        fputc(']', o->out);
    }
    fputs("\n  }", o->out);
    return WEFT_OK;
}

static weft_status write_cluster(const weft_cluster *cluster, weft_arena *arena, FILE *out)
{
    const char *name;
    object root = {out, "  ", true};
    const selection all = all_of(cluster);
    WEFT_TRY(weft_json_quote(cluster->name, arena, &name));
    fprintf(out, "{\n  \"name\": %s,\n  \"num_nodes\": %d,\n  \"ranks_per_node\": %d", name,
            cluster->num_nodes, cluster->ranks_per_node);
    WEFT_TRY(write_sections(&root, "    ", &all, arena));
    write_costs(&root, cluster);
    write_interference(&root, cluster);
    write_products(&root, cluster);
    write_operations(&root, cluster);
    WEFT_TRY(write_groups(&root, cluster, arena));
    WEFT_TRY(write_sources(&root, cluster, arena));
    fputs("\n}\n", out);
    return WEFT_OK;
}

weft_status weft_cluster_print(const weft_cluster *cluster, FILE *out)
{
    weft_arena arena = {0};
    weft_status status = write_cluster(cluster, &arena, out);
    weft_arena_release(&arena);
    WEFT_TRY(status);
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
        status = weft_cluster_parse(path, text, &arena, &back);
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
