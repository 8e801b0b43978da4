/* Reads the sections of hardware of a cluster's file. The tables of core/cluster/hardware.h say
 * what they may hold: a section's keys are the next words of the paths that begin with it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cluster/internal.h"

typedef weft_cluster_reader reader;

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
    WEFT_TRY(weft_cluster_number_read(r, value, path, key, &number));
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
    WEFT_TRY(
        weft_cluster_want(r, array, WEFT_JSON_ARRAY, "an array of [volume, share]", path, key));
    while (weft_json_next(array, &cursor, NULL, &pair)) {
        int n = curve.num_points;
        weft_cluster_element element = weft_cluster_element_of(key, n);
        double point[2];
        if (n == WEFT_SHARE_CURVE_MAX_POINTS)
            return FAULT(r, pair.start, path, element.text, "an efficiency has at most %d points",
                         WEFT_SHARE_CURVE_MAX_POINTS);
        WEFT_TRY(
            weft_cluster_numbers_read(r, pair, path, element.text, 2, "[volume, share]", point));
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
    weft_cluster_members m = {path, names, COUNT, values, keys};
    WEFT_TRY(weft_cluster_want(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(weft_cluster_members_read(r, object, &m));
    weft_network_level level = {0};
    for (int i = 0; i < COUNT; i++)
        if (!values[i].bytes)
            return FAULT(r, object.start, path, names[i], "missing");
    int before = index > 0 ? cluster->levels[index - 1].nodes : 1;
    WEFT_TRY(weft_cluster_count_read(r, values[NODES], path, names[NODES], &level.nodes));
    if (level.nodes <= before)
        return FAULT(r, values[NODES].start, path, names[NODES],
                     "%d nodes, where the level below joins %d", level.nodes, before);
    WEFT_TRY(weft_cluster_number_read(r, values[OVERSUBSCRIPTION], path, names[OVERSUBSCRIPTION],
                                      &level.oversubscription));
    if (!(level.oversubscription >= 1 && level.oversubscription <= 1000))
        return FAULT(r, values[OVERSUBSCRIPTION].start, path, names[OVERSUBSCRIPTION],
                     "%g, where 1 (all of the bandwidth) to 1000 are possible",
                     level.oversubscription);
    cluster->levels[index] = level;
    return WEFT_OK;
}

static const weft_cluster_array levels = {"between", "levels", WEFT_MAX_LEVELS, read_level};

static weft_status read_leaf(const reader *r, weft_json_span value, const char *path,
                             const char *key, int leaf, target *to)
{
    if (leaf < WEFT_NUM_FIGURES)
        return read_figure(r, value, path, key, (weft_figure)leaf, to);
    if (leaf == LEVELS_LEAF)
        return weft_cluster_array_read(r, value, &levels, "an array of levels", to->cluster,
                                       &to->cluster->num_levels);
    if (leaf == CURRENCY_LEAF)
        return weft_cluster_string_read(r, value, path, key, to->cluster->currency,
                                        sizeof to->cluster->currency);
    if (leaf == NAME_LEAF) {
        if (to->group)
            to->group->own_name = true;
        return weft_cluster_string_read(r, value, path, key, to->hardware->device_name,
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
    weft_cluster_members m = {shown, names.names, names.count, values, keys};
    WEFT_TRY(weft_cluster_want(r, object, WEFT_JSON_OBJECT, "an object", shown, NULL));
    WEFT_TRY(weft_cluster_members_read(r, object, &m));
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

weft_status weft_cluster_section_read(const weft_cluster_reader *r, weft_json_span object,
                                      int section, weft_cluster *cluster)
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
    weft_cluster_members m = {path, names, COUNT, values, keys};
    WEFT_TRY(weft_cluster_want(r, object, WEFT_JSON_OBJECT, "an object", path, NULL));
    WEFT_TRY(weft_cluster_members_read(r, object, &m));
    weft_node_group *group = &cluster->groups[index];
    *group = (weft_node_group){.hardware = cluster->hardware};
    if (!values[0].bytes)
        return FAULT(r, object.start, path, names[0], "missing");
    WEFT_TRY(weft_cluster_count_read(r, values[0], path, names[0], &group->num_nodes));
    target to = {prefix, cluster, &group->hardware, group};
    for (int i = 1; i < COUNT; i++)
        if (values[i].bytes)
            WEFT_TRY(read_section(r, values[i], names[i], &to));
    return check_hardware(r, object.start, &to);
}

weft_status weft_cluster_groups_read(const weft_cluster_reader *r, weft_json_span array,
                                     weft_cluster *cluster)
{
    static const weft_cluster_array groups = {NULL, "groups", WEFT_MAX_NODE_GROUPS, read_group};
    long long num_nodes = 0;
    WEFT_TRY(weft_cluster_array_read(r, array, &groups, "an array of groups of nodes", cluster,
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
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, what, path, source->key));
    for (; weft_json_next(array, &cursor, NULL, &value); n++) {
        char class_[16];
        if (n == 0) {
            WEFT_TRY(weft_cluster_string_read(r, value, path, source->key, class_, sizeof class_));
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
            WEFT_TRY(weft_cluster_string_read(r, value, path, source->key, source->where,
                                              sizeof source->where));
        } else if (n == 2) {
            WEFT_TRY(weft_cluster_number_read(r, value, path, source->key, &source->spread));
            if (!(source->spread >= 0 && source->spread <= 10))
                return FAULT(r, value.start, path, source->key,
                             "a spread of %g, where 0.05 is five per cent", source->spread);
        }
    }
    if (n == 2 || n == 3)
        return WEFT_OK;
    return FAULT(r, array.start, path, source->key, "expected %s", what);
}

weft_status weft_cluster_sources_read(const weft_cluster_reader *r, weft_json_span object,
                                      weft_cluster *cluster)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    WEFT_TRY(
        weft_cluster_want(r, object, WEFT_JSON_OBJECT, "an object of sources", NULL, "sources"));
    while (weft_json_next(object, &cursor, &key, &value)) {
        weft_source source = {.spread = 0};
        WEFT_TRY(weft_cluster_string_read(r, key, "sources", NULL, source.key, sizeof source.key));
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
