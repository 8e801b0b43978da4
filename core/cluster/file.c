/* Reads a cluster from its JSON file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cluster/internal.h"
#include "core/json.h"
#include "core/options/options.h"

/* --- single values: errors name their place -------------------------------------------------- */

typedef struct reader {
    weft_option_source source;
    weft_arena *arena;
} reader;

/* An object's members by the names it may have. A member that is missing has a span of 0 bytes. */
typedef struct members {
    const char *path; /* NULL: the file's own */
    const char *const *names;
    size_t count;
    weft_json_span *values;
    weft_json_span *keys;
} members;

/* FAULT(r, at, path, key, "%g is odd", x): the error with FILE:line:column of `at` and the path of
 * a key. */
#define FAULT(r, ...) WEFT_OPTION_FAULT(&(r)->source, __VA_ARGS__)

/* "points[3]". */
typedef struct element_name {
    char text[48];
} element_name;

/* Reads an array of at most `most` elements into the cluster; *count: of those that are read. */
typedef struct array_rule {
    const char *path, *key;
    int most;
    weft_status (*read)(const reader *r, weft_json_span element, int index, weft_cluster *cluster);
} array_rule;

/* Errors of all: WEFT_CONFIG, one line with the place. */
static weft_status want(const reader *r, weft_json_span value, weft_json_kind kind,
                        const char *what, const char *path, const char *key)
{
    if (weft_json_kind_of(value) == kind)
        return WEFT_OK;
    return FAULT(r, value.start, path, key, "expected %s, got %s", what,
                 weft_json_kind_text(value));
}

static weft_status unknown_key(const reader *r, const members *m, weft_json_span span,
                               const char *key)
{
    const char *near = weft_nearest_name(key, m->names, m->count);
    if (near)
        return FAULT(r, span.start, m->path, key, "unknown key; did you mean %s%s%s?",
                     m->path ? m->path : "", m->path ? "." : "", near);
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < m->count && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", m->names[i]);
    return FAULT(r, span.start, m->path, key, "unknown key; the keys are %s", list);
}

static weft_status read_members(const reader *r, weft_json_span object, members *m)
{
    const char *cursor = NULL;
    weft_json_span key_span, value;
    while (weft_json_next(object, &cursor, &key_span, &value)) {
        const char *key;
        weft_status status = weft_json_string(key_span, r->arena, &key);
        if (status == WEFT_CONFIG) {
            return weft_option_fault(&r->source, key_span.start, m->path, NULL, status);
        }
        WEFT_TRY(status);
        size_t i = 0;
        while (i < m->count && strcmp(m->names[i], key) != 0)
            i++;
        if (i == m->count)
            return unknown_key(r, m, key_span, key);
        if (m->values[i].bytes) {
            int line, column;
            weft_json_position(r->source.text, m->keys[i].start, &line, &column);
            return FAULT(r, key_span.start, m->path, key,
                         "given twice; first at line %d, column %d", line, column);
        }
        m->keys[i] = key_span;
        m->values[i] = value;
    }
    return WEFT_OK;
}

static weft_status read_number(const reader *r, weft_json_span value, const char *path,
                               const char *key, double *out)
{
    WEFT_TRY(want(r, value, WEFT_JSON_NUMBER, "a number", path, key));
    *out = strtod(value.start, NULL); /* what follows a number in JSON is no part of one */
    if (isfinite(*out))
        return WEFT_OK;
    return FAULT(r, value.start, path, key, "%.*s is too large",
                 (int)(value.bytes < 40 ? value.bytes : 40), value.start);
}

/* Reads a whole number from 1 to 1000000. */
static weft_status read_count(const reader *r, weft_json_span value, const char *path,
                              const char *key, int *out)
{
    double number;
    WEFT_TRY(read_number(r, value, path, key, &number));
    if (number < 1 || number > 1e6 || number != floor(number))
        return FAULT(r, value.start, path, key, "%g is not a whole number of 1 to 1000000", number);
    *out = (int)number;
    return WEFT_OK;
}

/* `text` has room for `bytes`. */
static weft_status read_string(const reader *r, weft_json_span value, const char *path,
                               const char *key, char *text, size_t bytes)
{
    const char *string;
    WEFT_TRY(want(r, value, WEFT_JSON_STRING, "a string", path, key));
    weft_status status = weft_json_string(value, r->arena, &string);
    if (status == WEFT_CONFIG)
        return weft_option_fault(&r->source, value.start, path, key, status);
    WEFT_TRY(status);
    if (strlen(string) >= bytes)
        return FAULT(r, value.start, path, key, "longer than %zu bytes", bytes - 1);
    snprintf(text, bytes, "%s", string);
    return WEFT_OK;
}

static element_name element_of(const char *array, int index)
{
    element_name e;
    snprintf(e.text, sizeof e.text, "%s[%d]", array, index);
    return e;
}

static weft_status read_array(const reader *r, weft_json_span array, const array_rule *of,
                              const char *what, weft_cluster *cluster, int *count)
{
    const char *cursor = NULL;
    weft_json_span element;
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, what, of->path, of->key));
    while (weft_json_next(array, &cursor, NULL, &element)) {
        if (*count == of->most)
            return FAULT(r, element.start, of->path, of->key, "at most %d %s", of->most, of->key);
        WEFT_TRY(of->read(r, element, *count, cluster));
        ++*count;
    }
    return WEFT_OK;
}

/* Reads an array of exactly `num` numbers. */
static weft_status read_numbers(const reader *r, weft_json_span array, const char *path,
                                const char *key, int num, const char *what, double *out)
{
    const char *cursor = NULL;
    weft_json_span value;
    int count = 0;
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, what, path, key));
    for (; weft_json_next(array, &cursor, NULL, &value); count++)
        if (count < num)
            WEFT_TRY(read_number(r, value, path, key, &out[count]));
    if (count == num)
        return WEFT_OK;
    return FAULT(r, array.start, path, key, "expected %s, got %d numbers", what, count);
}

/* --- the sections of hardware ---------------------------------------------------------------- */

/* The tables of core/cluster/hardware.h say
 * what they may hold: a section's keys are the next words of the paths that begin with it. */

const char *const weft_cluster_sections[WEFT_CLUSTER_NUM_SECTIONS] = {
    "device", "inside", "between", "host", "storage", "node"};
_Static_assert(WEFT_NUM_FIGURES <= 32, "weft_hardware.given has a bit a figure");

/* --- paths --------------------------------------------------------------------------------- */

enum {
    NAME_LEAF = WEFT_NUM_FIGURES + WEFT_NUM_EFFICIENCIES,
    LEVELS_LEAF,
    CURRENCY_LEAF,
    NUM_LEAVES,
    MAX_CHILDREN = 16,
    PATH_BYTES = 80,
};

static const char *leaf_path(int leaf)
{
    return leaf < WEFT_NUM_FIGURES ? weft_figure_path((weft_figure)leaf)
           : leaf < NAME_LEAF
               ? weft_efficiency_path((weft_efficiency_kind)(leaf - WEFT_NUM_FIGURES))
           : leaf == NAME_LEAF   ? "device.name"
           : leaf == LEVELS_LEAF ? "between.levels"
                                 : "node.currency";
}

/* The leaf at a path; NUM_LEAVES: it is none. */
static int find_leaf(const char *path)
{
    int leaf = 0;
    while (leaf < NUM_LEAVES && strcmp(leaf_path(leaf), path) != 0)
        leaf++;
    return leaf;
}

static bool is_below(const char *path, const char *above)
{
    size_t bytes = strlen(above);
    return strncmp(path, above, bytes) == 0 && path[bytes] == '.';
}

typedef struct children {
    char text[MAX_CHILDREN][24];
    const char *names[MAX_CHILDREN];
    size_t count;
} children;

/* The keys that an object at this path may have. */
static void list_children(const char *path, children *out)
{
    out->count = 0;
    for (int leaf = 0; leaf < NUM_LEAVES; leaf++) {
        if (!is_below(leaf_path(leaf), path))
            continue;
        const char *child = leaf_path(leaf) + strlen(path) + 1;
        int bytes = (int)strcspn(child, ".");
        char *text = out->text[out->count];
        snprintf(text, sizeof out->text[0], "%.*s", bytes, child);
        size_t i = 0;
        while (i < out->count && strcmp(out->text[i], text) != 0)
            i++;
        if (i == out->count)
            out->names[out->count++] = text;
    }
}

/* --- sections ------------------------------------------------------------------------------ */

/* Where what is read goes: to the cluster, or to a group of its nodes. */
typedef struct target {
    const char *prefix; /* of paths in errors: "groups[1]."; "" */
    weft_cluster *cluster;
    weft_hardware *hardware;
    weft_node_group *group; /* NULL: the cluster itself */
} target;

static weft_status read_figure(const reader *r, weft_json_span value, const char *path,
                               const char *key, weft_figure figure, target *to)
{
    double number, meant;
    WEFT_TRY(read_number(r, value, path, key, &number));
    const char *unit = weft_figure_unit(figure), *space = *unit ? " " : "";
    if (!weft_figure_is_plausible(figure, number, &meant)) {
        char text[32];
        snprintf(text, sizeof text, "%g", number);
        if (meant > 0 && meant > number && !strchr(text, 'e'))
            return FAULT(r, value.start, path, key, "%g%s%s: meant %ge%.0f?", number, space, unit,
                         number, log10(meant / number));
        if (meant > 0)
            return FAULT(r, value.start, path, key, "%g%s%s: meant %g?", number, space, unit,
                         meant);
        return FAULT(r, value.start, path, key, "%g%s%s is not possible: %s", number, space, unit,
                     weft_figure_help(figure));
    }
    to->hardware->figures[figure] = number;
    to->hardware->given |= 1u << figure;
    if (to->group)
        to->group->own_figures |= 1u << figure;
    return WEFT_OK;
}

/* No query sees as many keys. */
#define MOST_KEYS 1e8

static weft_status read_shares(const reader *r, weft_json_span array, const char *path,
                               const char *key, weft_efficiency_kind kind, weft_share_curve *out)
{
    const char *unit = weft_efficiency_unit(kind);
    const double most = strcmp(unit, "keys") == 0 ? MOST_KEYS : INFINITY;
    const char *cursor = NULL;
    weft_json_span pair;
    weft_share_curve curve = {0};
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, "an array of [volume, share]", path, key));
    while (weft_json_next(array, &cursor, NULL, &pair)) {
        int n = curve.num_points;
        element_name element = element_of(key, n);
        double point[2];
        if (n == WEFT_SHARE_CURVE_MAX_POINTS)
            return FAULT(r, pair.start, path, element.text, "an efficiency has at most %d points",
                         WEFT_SHARE_CURVE_MAX_POINTS);
        WEFT_TRY(read_numbers(r, pair, path, element.text, 2, "[volume, share]", point));
        double before = n > 0 ? curve.volume[n - 1] : 0;
        if (point[0] > most)
            return FAULT(r, pair.start, path, element.text, "a volume of %g %s: FLOPs?", point[0],
                         unit);
        if (!(point[0] > before))
            return FAULT(r, pair.start, path, element.text, "the volume %g does not rise above %g",
                         point[0], before);
        if (!(point[1] >= 1e-6 && point[1] <= 1))
            return FAULT(r, pair.start, path, element.text,
                         "an efficiency of %g, where 1e-6 to 1 are possible%s", point[1],
                         point[1] > 1 && point[1] <= 100 ? ": per cent?" : "");
        if (n > 0 && point[0] / point[1] < before / curve.share[n - 1])
            return FAULT(r, pair.start, path, element.text,
                         "a volume of %g would take less time than one of %g", point[0], before);
        curve.volume[n] = point[0];
        curve.share[n] = point[1];
        curve.num_points = n + 1;
    }
    if (curve.num_points == 0)
        return FAULT(r, array.start, path, key,
                     "an efficiency needs a point; leave it out instead");
    *out = curve;
    return WEFT_OK;
}

static weft_status read_level(const reader *r, weft_json_span object, int index,
                              weft_cluster *cluster)
{
    enum { NODES, OVERSUBSCRIPTION, COUNT };
    static const char *const names[COUNT] = {"nodes", "oversubscription"};
    weft_json_span values[COUNT] = {{0}}, keys[COUNT] = {{0}};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "between.levels[%d]", index);
    members m = {path, names, COUNT, values, keys};
    WEFT_TRY(want(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(read_members(r, object, &m));
    weft_network_level level = {0};
    for (int i = 0; i < COUNT; i++)
        if (!values[i].bytes)
            return FAULT(r, object.start, path, names[i], "missing");
    int before = index > 0 ? cluster->levels[index - 1].nodes : 1;
    WEFT_TRY(read_count(r, values[NODES], path, names[NODES], &level.nodes));
    if (level.nodes <= before)
        return FAULT(r, values[NODES].start, path, names[NODES],
                     "%d nodes, where the level below joins %d", level.nodes, before);
    WEFT_TRY(read_number(r, values[OVERSUBSCRIPTION], path, names[OVERSUBSCRIPTION],
                         &level.oversubscription));
    if (!(level.oversubscription >= 1 && level.oversubscription <= 1000))
        return FAULT(r, values[OVERSUBSCRIPTION].start, path, names[OVERSUBSCRIPTION],
                     "%g, where 1 (all of the bandwidth) to 1000 are possible",
                     level.oversubscription);
    cluster->levels[index] = level;
    return WEFT_OK;
}

static const array_rule levels = {"between", "levels", WEFT_MAX_LEVELS, read_level};

static weft_status read_leaf(const reader *r, weft_json_span value, const char *path,
                             const char *key, int leaf, target *to)
{
    if (leaf < WEFT_NUM_FIGURES)
        return read_figure(r, value, path, key, (weft_figure)leaf, to);
    if (leaf == LEVELS_LEAF)
        return read_array(r, value, &levels, "an array of levels", to->cluster,
                          &to->cluster->num_levels);
    if (leaf == CURRENCY_LEAF)
        return read_string(r, value, path, key, to->cluster->currency,
                           sizeof to->cluster->currency);
    if (leaf == NAME_LEAF) {
        if (to->group)
            to->group->own_name = true;
        return read_string(r, value, path, key, to->hardware->device_name,
                           sizeof to->hardware->device_name);
    }
    int kind = leaf - WEFT_NUM_FIGURES;
    if (to->group)
        to->group->own_efficiencies |= 1u << kind;
    return read_shares(r, value, path, key, (weft_efficiency_kind)kind,
                       &to->hardware->efficiencies[kind]);
}

/* An object at a path and all below it. Paths have three parts at most. */
static weft_status read_section(const reader *r, weft_json_span object, const char *path,
                                target *to)
{
    children names;
    weft_json_span values[MAX_CHILDREN] = {{0}}, keys[MAX_CHILDREN] = {{0}};
    char shown[PATH_BYTES], below[PATH_BYTES];
    list_children(path, &names);
    snprintf(shown, sizeof shown, "%s%s", to->prefix, path);
    members m = {shown, names.names, names.count, values, keys};
    WEFT_TRY(want(r, object, WEFT_JSON_OBJECT, "an object", shown, NULL));
    WEFT_TRY(read_members(r, object, &m));
    for (size_t i = 0; i < names.count; i++) {
        if (!values[i].bytes)
            continue;
        snprintf(below, sizeof below, "%s.%s", path, names.names[i]);
        int leaf = find_leaf(below);
        if ((leaf == LEVELS_LEAF || leaf == CURRENCY_LEAF) && to->group)
            return FAULT(r, keys[i].start, shown, names.names[i],
                         "the %s is one for all nodes: give it there",
                         leaf == LEVELS_LEAF ? "network" : "currency");
        WEFT_TRY(leaf == NUM_LEAVES ? read_section(r, values[i], below, to)
                                    : read_leaf(r, values[i], shown, names.names[i], leaf, to));
    }
    return WEFT_OK;
}

/* What one number says beside another. */
static weft_status check_hardware(const reader *r, const char *at, const target *to)
{
    const double *f = to->hardware->figures;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%sdevice.reserved_bytes", to->prefix);
    if (!weft_hardware_knows(to->hardware, WEFT_FIGURE_MEMORY) ||
        f[WEFT_FIGURE_RESERVED] < f[WEFT_FIGURE_MEMORY])
        return WEFT_OK;
    return FAULT(r, at, NULL, path, "%g bytes of a device's %g", f[WEFT_FIGURE_RESERVED],
                 f[WEFT_FIGURE_MEMORY]);
}

/* Reads one of them into the cluster. */
static weft_status read_top_section(const reader *r, weft_json_span object, int section,
                                    weft_cluster *cluster)
{
    target to = {"", cluster, &cluster->hardware, NULL};
    WEFT_TRY(read_section(r, object, weft_cluster_sections[section], &to));
    return check_hardware(r, object.start, &to);
}

/* --- groups -------------------------------------------------------------------------------- */

static weft_status read_group(const reader *r, weft_json_span object, int index,
                              weft_cluster *cluster)
{
    enum { COUNT = WEFT_CLUSTER_NUM_SECTIONS + 1 };
    const char *names[COUNT] = {"num_nodes"};
    weft_json_span values[COUNT] = {{0}}, keys[COUNT] = {{0}};
    char path[PATH_BYTES], prefix[PATH_BYTES];
    for (int i = 0; i < WEFT_CLUSTER_NUM_SECTIONS; i++)
        names[i + 1] = weft_cluster_sections[i];
    snprintf(path, sizeof path, "groups[%d]", index);
    snprintf(prefix, sizeof prefix, "groups[%d].", index);
    members m = {path, names, COUNT, values, keys};
    WEFT_TRY(want(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(read_members(r, object, &m));
    weft_node_group *group = &cluster->groups[index];
    *group = (weft_node_group){.hardware = cluster->hardware};
    if (!values[0].bytes)
        return FAULT(r, object.start, path, names[0], "missing");
    WEFT_TRY(read_count(r, values[0], path, names[0], &group->num_nodes));
    target to = {prefix, cluster, &group->hardware, group};
    for (int i = 1; i < COUNT; i++)
        if (values[i].bytes)
            WEFT_TRY(read_section(r, values[i], names[i], &to));
    return check_hardware(r, object.start, &to);
}

static weft_status read_groups(const reader *r, weft_json_span array, weft_cluster *cluster)
{
    static const array_rule groups = {NULL, "groups", WEFT_MAX_NODE_GROUPS, read_group};
    long long num_nodes = 0;
    WEFT_TRY(read_array(r, array, &groups, "an array of groups of nodes", cluster,
                        &cluster->num_groups));
    for (int n = 0; n < cluster->num_groups; n++)
        num_nodes += cluster->groups[n].num_nodes;
    if (cluster->num_groups == 0 || num_nodes == cluster->num_nodes)
        return WEFT_OK;
    return FAULT(r, array.start, NULL, "groups", "they have %lld nodes, num_nodes says %d",
                 num_nodes, cluster->num_nodes);
}

/* --- sources ------------------------------------------------------------------------------- */

/* Whether the file gives what a leaf holds, for all nodes or for a group of them. */
static bool gives_leaf(const weft_cluster *cluster, const weft_node_group *group, int leaf)
{
    const weft_hardware *hardware = &cluster->hardware;
    int kind = leaf - WEFT_NUM_FIGURES;
    if (leaf == LEVELS_LEAF)
        return !group && cluster->num_levels > 0;
    if (leaf == CURRENCY_LEAF)
        return !group && *cluster->currency;
    if (leaf == NAME_LEAF)
        return group ? group->own_name : *hardware->device_name != '\0';
    if (kind < 0)
        return (group ? group->own_figures : hardware->given) & 1u << leaf;
    return group ? group->own_efficiencies & 1u << kind
                 : hardware->efficiencies[kind].num_points > 0;
}

/* Whether the file gives anything at or below this key. */
static bool gives(const weft_cluster *cluster, const char *key)
{
    const weft_node_group *group = NULL;
    int index, bytes = 0;
    if (sscanf(key, "groups[%1d]%n", &index, &bytes) == 1 && bytes > 0) {
        if (index >= cluster->num_groups || key[bytes] != '.')
            return false;
        group = &cluster->groups[index];
        key += bytes + 1;
    }
    for (int leaf = 0; leaf < NUM_LEAVES; leaf++)
        if ((strcmp(leaf_path(leaf), key) == 0 || is_below(leaf_path(leaf), key)) &&
            gives_leaf(cluster, group, leaf))
            return true;
    for (int i = 0; !group && i < WEFT_NUM_COSTS; i++) {
        bool is_all = strcmp(key, "costs") == 0;
        const char *text = weft_cost_text((weft_cost_kind)i);
        if (weft_cluster_knows(cluster, (weft_cost_kind)i) &&
            (is_all || (is_below(key, "costs") && strcmp(key + strlen("costs."), text) == 0)))
            return true;
    }
    return !group && ((strcmp(key, "products") == 0 && cluster->num_products > 0) ||
                      (strcmp(key, "operations") == 0 && cluster->num_operations > 0) ||
                      strcmp(key, "interference") == 0);
}

static weft_status read_source(const reader *r, weft_json_span array, weft_source *source)
{
    static const char path[] = "sources";
    static const char what[] =
        "[\"measured\", \"datasheet\", \"published\" or \"assumed\", where, spread]";
    const char *cursor = NULL;
    weft_json_span value;
    int n = 0;
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, what, path, source->key));
    for (; weft_json_next(array, &cursor, NULL, &value); n++) {
        char class_[16];
        if (n == 0) {
            WEFT_TRY(read_string(r, value, path, source->key, class_, sizeof class_));
            int c = 0;
            while (c < WEFT_NUM_SOURCE_CLASSES &&
                   (c == WEFT_SOURCE_SCALED ||
                    strcmp(class_, weft_source_class_text((weft_source_class)c)) != 0))
                c++;
            if (c == WEFT_NUM_SOURCE_CLASSES)
                return FAULT(r, value.start, path, source->key,
                             "expected measured, datasheet, published or assumed");
            source->class_ = (weft_source_class)c;
        } else if (n == 1) {
            WEFT_TRY(read_string(r, value, path, source->key, source->where, sizeof source->where));
        } else if (n == 2) {
            WEFT_TRY(read_number(r, value, path, source->key, &source->spread));
            if (!(source->spread >= 0 && source->spread <= 10))
                return FAULT(r, value.start, path, source->key,
                             "a spread of %g, where 0.05 is five per cent", source->spread);
        }
    }
    if (n == 2 || n == 3)
        return WEFT_OK;
    return FAULT(r, array.start, path, source->key, "expected %s", what);
}

/* Read "groups", after all sections, and "sources", after everything else. */
static weft_status cluster_sources_read(const reader *r, weft_json_span object,
                                        weft_cluster *cluster)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    WEFT_TRY(want(r, object, WEFT_JSON_OBJECT, "an object of sources", NULL, "sources"));
    while (weft_json_next(object, &cursor, &key, &value)) {
        weft_source source = {.spread = 0};
        WEFT_TRY(read_string(r, key, "sources", NULL, source.key, sizeof source.key));
        if (find_leaf(source.key) < NUM_LEAVES && !gives(cluster, source.key))
            return FAULT(r, key.start, "sources", source.key,
                         "%s is missing; give it, or take its source away", source.key);
        if (!gives(cluster, source.key))
            return FAULT(r, key.start, "sources", source.key, "the file has no such key");
        for (int i = 0; i < cluster->num_sources; i++)
            if (strcmp(cluster->sources[i].key, source.key) == 0)
                return FAULT(r, key.start, "sources", source.key, "given twice");
        if (cluster->num_sources == WEFT_MAX_SOURCES)
            return FAULT(r, key.start, "sources", source.key, "at most %d sources",
                         WEFT_MAX_SOURCES);
        WEFT_TRY(read_source(r, value, &source));
        cluster->sources[cluster->num_sources++] = source;
    }
    return WEFT_OK;
}

typedef reader reader;

static weft_status read_positive(const reader *r, weft_json_span value, const char *path,
                                 const char *key, double *out)
{
    WEFT_TRY(read_number(r, value, path, key, out));
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
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, "an array of [volume, microseconds]", path, "points"));
    for (; weft_json_next(array, &cursor, NULL, &pair); n++) {
        element_name key = element_of("points", n);
        double point[2];
        if (n == WEFT_CURVE_MAX_POINTS)
            return FAULT(r, pair.start, path, key.text, "a curve has at most %d points",
                         WEFT_CURVE_MAX_POINTS);
        WEFT_TRY(read_numbers(r, pair, path, key.text, 2, "[volume, microseconds]", point));
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
    WEFT_TRY(want(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(read_members(r, object, &m));
    if (values[WIDTH].bytes)
        WEFT_TRY(read_count(r, values[WIDTH], path, names[WIDTH], &out->width));
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
    WEFT_TRY(read_number(r, values[LATENCY], path, names[LATENCY], &latency_us));
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
    WEFT_TRY(want(r, object, WEFT_JSON_OBJECT, "an object of costs", m.path, NULL));
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
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, what, NULL, key));
    for (; weft_json_next(array, &cursor, NULL, &row); y++) {
        element_name name = element_of(key, y);
        if (y >= WEFT_NUM_WORK_CLASSES)
            continue;
        WEFT_TRY(read_numbers(r, row, NULL, name.text, WEFT_NUM_WORK_CLASSES + 1, "four numbers",
                              out->alpha[y]));
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
    element_name key = element_of("products", index);
    const char *cursor = NULL;
    weft_json_span value;
    weft_product product = {.kind = WEFT_COST_GEMM_FP32};
    double *const numbers[COUNT] = {[M] = &product.m, &product.n, &product.k, &product.us};
    int n = 0;
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, what, NULL, key.text));
    for (; weft_json_next(array, &cursor, NULL, &value); n++) {
        char type[8];
        if (n == TYPE) {
            WEFT_TRY(read_string(r, value, NULL, key.text, type, sizeof type));
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
    element_name key = element_of("operations", index);
    weft_timed_operation o = {.dtype = WEFT_F32};
    const char *cursor = NULL;
    weft_json_span value;
    int n = 0, phase = 0;
    WEFT_TRY(want(r, array, WEFT_JSON_ARRAY, what, NULL, key.text));
    for (; weft_json_next(array, &cursor, NULL, &value); n++) {
        char text[24];
        if (n == MODULE)
            WEFT_TRY(read_string(r, value, NULL, key.text, o.module, sizeof o.module));
        else if (n == VOLUME || n == US)
            WEFT_TRY(read_positive(r, value, NULL, key.text, n == US ? &o.us : &o.volume));
        else if (n < COUNT)
            WEFT_TRY(read_string(r, value, NULL, key.text, text, sizeof text));
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

static const array_rule products = {NULL, "products", WEFT_MAX_PRODUCTS, read_product},
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
    WEFT_TRY(want(r, root, WEFT_JSON_OBJECT, "an object", NULL, NULL));
    WEFT_TRY(read_members(r, root, &m));
    if (values[NAME].bytes)
        WEFT_TRY(read_string(r, values[NAME], NULL, names[NAME], out->name, sizeof out->name));
    for (int i = NODES; i <= RANKS; i++) {
        if (!values[i].bytes)
            return FAULT(r, root.start, NULL, names[i], "missing");
        WEFT_TRY(read_count(r, values[i], NULL, names[i],
                            i == NODES ? &out->num_nodes : &out->ranks_per_node));
    }
    if (values[COSTS].bytes)
        WEFT_TRY(read_costs(r, values[COSTS], out->costs));
    if (values[INTERFERENCE].bytes)
        WEFT_TRY(read_interference(r, values[INTERFERENCE], &out->interference));
    if (values[PRODUCTS].bytes)
        WEFT_TRY(read_array(r, values[PRODUCTS], &products, "an array of products", out,
                            &out->num_products));
    if (values[OPERATIONS].bytes)
        WEFT_TRY(read_array(r, values[OPERATIONS], &operations, "an array of operations", out,
                            &out->num_operations));
    for (int i = 0; i < WEFT_CLUSTER_NUM_SECTIONS; i++)
        if (values[SECTIONS + i].bytes)
            WEFT_TRY(read_top_section(r, values[SECTIONS + i], i, out));
    if (values[GROUPS].bytes)
        WEFT_TRY(read_groups(r, values[GROUPS], out));
    if (values[SOURCES].bytes)
        WEFT_TRY(cluster_sources_read(r, values[SOURCES], out));
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
