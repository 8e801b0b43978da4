/* Slurm's topology.conf, or topology.yaml: a tree of switches, or blocks, as levels of the network.
 *
 * Slurm takes a node below several leaf switches (rails), and switches that no root joins; it
 * warns, and no job of its spans what no switch joins (topology.conf(5), topology/tree). */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/options/options.h"
#include "core/text.h"
#include "launcher/measuring/import_internal.h"
#include "launcher/measuring/import_slurm_yaml.h"

enum { MAX_NAMES = 1 << 17, MAX_SWITCHES = 1 << 16, MAX_HEIGHTS = 16, MAX_NAME_BYTES = 256 };

typedef struct names {
    const char **names;
    int count, capacity;
} names;

typedef struct a_switch {
    const char *name;
    int line;
    names nodes, switches;
    bool is_block;
    int height;    /* 1: joins nodes; 0: not known yet; -1: being found out */
    int num_nodes; /* below it, each once */
    int seen;      /* the last walk that came by */
} a_switch;

typedef struct a_node {
    const char *name;
    int line; /* of the switch that it is below */
    int seen; /* the last walk that came by */
} a_node;

typedef struct reader {
    const char *file;
    int line;
    weft_arena *arena;
    a_switch *switches;
    int count, capacity;
    a_switch **by_name;        /* sorted */
    a_node *nodes;             /* sorted, each once */
    int num_nodes, num_shared; /* of them below several switches */
    int total;                 /* names, of all lists */
    int num_heights, num_walks;
    int sizes[MAX_HEIGHTS]; /* BlockSizes */
    int num_sizes;
    a_switch *yaml_switch; /* whose settings topology.yaml has now */
} reader;

/* --- names and lists of them --------------------------------------------------------------- */

static weft_status grow(reader *r, void **array, int *capacity, int count, size_t size)
{
    void *memory;
    if (count < *capacity)
        return WEFT_OK;
    const int larger = *capacity ? 2 * *capacity : 16;
    WEFT_TRY(weft_arena_alloc_array(r->arena, (size_t)larger, size, &memory));
    if (count > 0)
        memcpy(memory, *array, (size_t)count * size);
    *array = memory;
    *capacity = larger;
    return WEFT_OK;
}

static weft_status add_name(reader *r, names *list, const char *name)
{
    void *array = list->names;
    if (r->total++ == 2 * MAX_NAMES)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d names", r->file, r->line,
                          2 * MAX_NAMES);
    WEFT_TRY(grow(r, &array, &list->capacity, list->count, sizeof *list->names));
    list->names = array;
    WEFT_TRY(weft_arena_strdup(r->arena, name, &list->names[list->count]));
    list->count++;
    return WEFT_OK;
}

static weft_status bad_list(const reader *r, const char *list, size_t bytes)
{
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: \"%.*s\": no list of names such as node[01-16,20]",
                      r->file, r->line, (int)(bytes < 80 ? bytes : 80), list);
}

/* One name with brackets, such as rack[0-1]node[01-16]: `head` is what stands before `rest`. */
static weft_status expand(reader *r, const char *head, const char *rest, size_t bytes, names *out)
{
    char name[MAX_NAME_BYTES];
    const char *open = memchr(rest, '[', bytes);
    if (strlen(head) + bytes >= sizeof name)
        return bad_list(r, rest, bytes);
    if (!open) {
        if (memchr(rest, ']', bytes))
            return bad_list(r, rest, bytes);
        snprintf(name, sizeof name, "%s%.*s", head, (int)bytes, rest);
        return *name ? add_name(r, out, name) : bad_list(r, rest, bytes);
    }
    const char *close = memchr(open, ']', bytes - (size_t)(open - rest));
    if (!close)
        return bad_list(r, rest, bytes);
    const size_t left = bytes - (size_t)(close + 1 - rest);
    for (const char *at = open + 1; at < close;) {
        const int width = (int)strspn(at, "0123456789");
        if (width == 0 || width > 9)
            return bad_list(r, rest, bytes);
        int first = atoi(at), last = first;
        at += width;
        if (*at == '-') {
            const int digits = (int)strspn(++at, "0123456789");
            if (digits == 0 || digits > 9)
                return bad_list(r, rest, bytes);
            last = atoi(at);
            at += digits;
        }
        if (last < first || last - first >= MAX_NAMES)
            return bad_list(r, rest, bytes);
        for (int i = first; i <= last; i++) {
            if (snprintf(name, sizeof name, "%s%.*s%0*d", head, (int)(open - rest), rest, width,
                         i) >= (int)sizeof name)
                return bad_list(r, rest, bytes);
            WEFT_TRY(expand(r, name, close + 1, left, out));
        }
        if (*at == ',' && at + 1 < close)
            at++;
        else if (at != close)
            return bad_list(r, rest, bytes);
    }
    return open + 1 < close ? WEFT_OK : bad_list(r, rest, bytes);
}

/* Names with commas between them, but for commas in brackets. */
static weft_status expand_all(reader *r, const char *text, size_t bytes, names *out)
{
    size_t start = 0;
    bool inside = false;
    for (size_t i = 0; i <= bytes; i++) {
        if (i < bytes && (text[i] != ',' || inside)) {
            inside = text[i] == '[' || (inside && text[i] != ']');
            continue;
        }
        WEFT_TRY(expand(r, "", text + start, i - start, out));
        start = i + 1;
    }
    return WEFT_OK;
}

/* --- lines --------------------------------------------------------------------------------- */

static bool is_key(const char *text, size_t bytes, const char *key)
{
    return strlen(key) == bytes && strncasecmp(text, key, bytes) == 0;
}

static weft_status read_sizes(reader *r, const char *text, size_t bytes)
{
    names list = {0};
    WEFT_TRY(expand_all(r, text, bytes, &list));
    for (int i = 0; i < list.count && r->num_sizes < MAX_HEIGHTS; i++, r->num_sizes++)
        if (!weft_import_count(list.names[i], 1000000, &r->sizes[r->num_sizes]))
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: BlockSizes: \"%.40s\" is no number of nodes",
                              r->file, r->line, list.names[i]);
    return WEFT_OK;
}

static weft_status start_switch(reader *r, bool is_block, const char *text, size_t bytes,
                                a_switch **out)
{
    char name[MAX_NAME_BYTES];
    void *array = r->switches;
    if (bytes == 0 || bytes >= sizeof name)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: a switch without a name", r->file, r->line);
    if (r->count == MAX_SWITCHES)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d switches", r->file, r->line,
                          MAX_SWITCHES);
    snprintf(name, sizeof name, "%.*s", (int)bytes, text);
    WEFT_TRY(grow(r, &array, &r->capacity, r->count, sizeof *r->switches));
    r->switches = array;
    a_switch *s = &r->switches[r->count];
    *s = (a_switch){.line = r->line, .is_block = is_block};
    WEFT_TRY(weft_arena_strdup(r->arena, name, &s->name));
    r->count++;
    *out = s;
    return WEFT_OK;
}

/* A setting of the switch *s; its name makes a new one. False: there is no such setting here. */
static bool is_setting(const char *key, size_t bytes, const a_switch *s)
{
    const bool is_name = is_key(key, bytes, "SwitchName") || is_key(key, bytes, "BlockName");
    const bool is_list = is_key(key, bytes, "Nodes") || is_key(key, bytes, "Switches") ||
                         is_key(key, bytes, "LinkSpeed");
    return is_key(key, bytes, "BlockSizes") || (s ? is_list : is_name);
}

static weft_status take_setting(reader *r, const char *key, size_t key_bytes, const char *value,
                                size_t bytes, a_switch **s)
{
    if (is_key(key, key_bytes, "BlockSizes"))
        return read_sizes(r, value, bytes);
    if (is_key(key, key_bytes, "Nodes"))
        return expand_all(r, value, bytes, &(*s)->nodes);
    if (is_key(key, key_bytes, "Switches"))
        return expand_all(r, value, bytes, &(*s)->switches);
    if (is_key(key, key_bytes, "LinkSpeed"))
        return WEFT_OK; /* which Slurm does not use either */
    return start_switch(r, is_key(key, key_bytes, "BlockName"), value, bytes, s);
}

/* KEY=VALUE of the switch that the line's first word began. */
static weft_status read_pair(reader *r, const char *word, size_t bytes, a_switch **s)
{
    static const char *const keys[] = {"SwitchName", "BlockName", "Nodes",
                                       "Switches",   "LinkSpeed", "BlockSizes"};
    const char *equals = memchr(word, '=', bytes);
    const size_t key = equals ? (size_t)(equals - word) : bytes;
    if (equals && is_setting(word, key, *s))
        return take_setting(r, word, key, equals + 1, bytes - key - 1, s);
    char name[48];
    snprintf(name, sizeof name, "%.*s", (int)(key < 47 ? key : 47), word);
    const char *nearest = weft_nearest_name(name, keys, sizeof keys / sizeof *keys);
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: \"%s\" is not expected here%s%s%s", r->file, r->line,
                      name, nearest && strcasecmp(nearest, name) != 0 ? "; did you mean " : "",
                      nearest && strcasecmp(nearest, name) != 0 ? nearest : "",
                      nearest && strcasecmp(nearest, name) != 0 ? "?" : "");
}

/* topology.yaml's switch or block begins with its name. */
static weft_status take_yaml(void *ctx, int line, const char *key, const char *value, size_t bytes)
{
    reader *r = ctx;
    r->line = line;
    if (strcmp(key, "SwitchName") == 0 || strcmp(key, "BlockName") == 0)
        r->yaml_switch = NULL;
    if (!is_setting(key, strlen(key), r->yaml_switch))
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s:%d: topology.yaml: a switch or block begins with its name", r->file,
                          line);
    return take_setting(r, key, strlen(key), value, bytes, &r->yaml_switch);
}

/* A line, or several of which all but the last end with \. */
static weft_status read_lines(reader *r, const char *text)
{
    weft_import_lines lines = {.file = r->file, .next = text};
    a_switch *s = NULL;
    while (weft_import_next_line(&lines)) {
        size_t end = lines.bytes, at = 0;
        const char *comment = memchr(lines.line, '#', end);
        end = comment ? (size_t)(comment - lines.line) : end;
        while (end > 0 && strchr(" \t\r", lines.line[end - 1]))
            end--;
        const bool goes_on = end > 0 && lines.line[end - 1] == '\\';
        end -= goes_on;
        r->line = lines.number;
        while (at < end) {
            const size_t start = at;
            while (at < end && !strchr(" \t\r", lines.line[at]))
                at++;
            if (at > start)
                WEFT_TRY(read_pair(r, lines.line + start, at - start, &s));
            else
                at++;
        }
        if (!goes_on)
            s = NULL;
    }
    return WEFT_OK;
}

/* --- the tree ------------------------------------------------------------------------------ */

static int by_switch_name(const void *a, const void *b)
{
    return strcmp((*(a_switch *const *)a)->name, (*(a_switch *const *)b)->name);
}

static weft_status sort_switches(reader *r)
{
    WEFT_TRY(WEFT_ARRAY(r->arena, (size_t)r->count + 1, &r->by_name));
    for (int i = 0; i < r->count; i++)
        r->by_name[i] = &r->switches[i];
    qsort(r->by_name, (size_t)r->count, sizeof *r->by_name, by_switch_name);
    for (int i = 1; i < r->count; i++)
        if (strcmp(r->by_name[i - 1]->name, r->by_name[i]->name) == 0)
            return WEFT_ERROR(
                WEFT_CONFIG, "%s:%d: %.80s is there already, in line %d", r->file,
                r->by_name[i]->line > r->by_name[i - 1]->line ? r->by_name[i]->line
                                                              : r->by_name[i - 1]->line,
                r->by_name[i]->name,
                r->by_name[i]->line > r->by_name[i - 1]->line ? r->by_name[i - 1]->line
                                                              : r->by_name[i]->line);
    return WEFT_OK;
}

static a_switch *find_switch(const reader *r, const char *name)
{
    const a_switch wanted = {.name = name}, *key = &wanted;
    a_switch **found =
        bsearch(&key, r->by_name, (size_t)r->count, sizeof *r->by_name, by_switch_name);
    return found ? *found : NULL;
}

/* How far it is above the nodes. */
static weft_status find_height(reader *r, a_switch *s, int depth)
{
    if (s->height > 0)
        return WEFT_OK;
    if (s->height < 0 || depth == MAX_HEIGHTS)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %.80s is %s", r->file, s->line, s->name,
                          s->height < 0 ? "below itself" : "too far above the nodes");
    if (s->nodes.count == 0 && s->switches.count == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %.80s joins nothing, neither nodes nor switches",
                          r->file, s->line, s->name);
    int height = 1;
    s->height = -1;
    for (int i = 0; i < s->switches.count; i++) {
        a_switch *below = find_switch(r, s->switches.names[i]);
        if (!below)
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %.80s: no switch %.80s", r->file, s->line,
                              s->name, s->switches.names[i]);
        WEFT_TRY(find_height(r, below, depth + 1));
        height = below->height >= height ? below->height + 1 : height;
    }
    s->height = height;
    r->num_heights = height > r->num_heights ? height : r->num_heights;
    return WEFT_OK;
}

static int by_node(const void *a, const void *b)
{
    const a_node *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order != 0 ? order : x->line - y->line;
}

static int by_node_name(const void *a, const void *b)
{
    return strcmp(((const a_node *)a)->name, ((const a_node *)b)->name);
}

/* All nodes, each once. */
static weft_status collect_nodes(reader *r)
{
    size_t count = 0;
    for (int i = 0; i < r->count; i++)
        count += (size_t)r->switches[i].nodes.count;
    if (count == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: no switch has nodes", r->file, r->line);
    WEFT_TRY(WEFT_ARRAY(r->arena, count, &r->nodes));
    count = 0;
    for (int i = 0; i < r->count; i++)
        for (int n = 0; n < r->switches[i].nodes.count; n++)
            r->nodes[count++] =
                (a_node){.name = r->switches[i].nodes.names[n], .line = r->switches[i].line};
    qsort(r->nodes, count, sizeof *r->nodes, by_node);
    bool is_shared = false;
    for (size_t i = 0; i < count; i++) {
        a_node *last = &r->nodes[r->num_nodes - (r->num_nodes > 0)];
        const bool is_new = i == 0 || strcmp(r->nodes[i].name, last->name) != 0;
        if (!is_new && r->nodes[i].line == last->line)
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: node %.80s is there already, in line %d",
                              r->file, last->line, last->name, last->line);
        r->num_shared += !is_new && !is_shared;
        is_shared = !is_new;
        if (is_new)
            r->nodes[r->num_nodes++] = r->nodes[i];
        else
            last->line = r->nodes[i].line;
    }
    return WEFT_OK;
}

/* Nodes below `s` that this walk has not counted yet. */
static int count_below(const reader *r, a_switch *s)
{
    int count = 0;
    if (s->seen == r->num_walks)
        return 0;
    s->seen = r->num_walks;
    for (int i = 0; i < s->nodes.count; i++) {
        const a_node wanted = {.name = s->nodes.names[i]};
        a_node *node =
            bsearch(&wanted, r->nodes, (size_t)r->num_nodes, sizeof *r->nodes, by_node_name);
        count += node->seen != r->num_walks;
        node->seen = r->num_walks;
    }
    for (int i = 0; i < s->switches.count; i++)
        count += count_below(r, find_switch(r, s->switches.names[i]));
    return count;
}

static int walk(reader *r, a_switch *top)
{
    r->num_walks++;
    return count_below(r, top);
}

/* Leaves the switches below the largest: no job spans more. */
static void keep_largest(weft_import *import, reader *r)
{
    a_switch *largest = &r->switches[0];
    for (int i = 0; i < r->count; i++) {
        r->switches[i].num_nodes = walk(r, &r->switches[i]);
        if (r->switches[i].num_nodes > largest->num_nodes)
            largest = &r->switches[i];
    }
    if (largest->num_nodes == r->num_nodes || largest->is_block)
        return;
    weft_import_note(import,
                     "num_nodes: %s: no switch joins all %d nodes, and Slurm runs no job across: "
                     "taken are the %d below %.40s, the most",
                     r->file, r->num_nodes, largest->num_nodes, largest->name);
    r->num_nodes = walk(r, largest);
    r->num_heights = largest->height;
    int count = 0;
    for (int i = 0; i < r->count; i++)
        if (r->switches[i].seen == r->num_walks)
            r->switches[count++] = r->switches[i];
    r->count = count;
}

static void add_level(weft_import *import, const reader *r, int nodes)
{
    weft_cluster *cluster = &import->cluster;
    const int before = cluster->num_levels ? cluster->levels[cluster->num_levels - 1].nodes : 1;
    if (nodes <= before)
        return;
    if (cluster->num_levels == WEFT_MAX_LEVELS) {
        weft_import_note(import,
                         "between.levels: %s: switches of %d nodes: left out, above %d "
                         "levels",
                         r->file, nodes, WEFT_MAX_LEVELS);
        return;
    }
    cluster->levels[cluster->num_levels++] =
        (weft_network_level){.nodes = nodes, .oversubscription = 1};
}

/* Switches of a level that differ count as the smallest. */
static void add_height(weft_import *import, const reader *r, int height)
{
    int least = INT_MAX, most = 0;
    for (int i = 0; i < r->count; i++)
        if (r->switches[i].height == height) {
            least = r->switches[i].num_nodes < least ? r->switches[i].num_nodes : least;
            most = r->switches[i].num_nodes > most ? r->switches[i].num_nodes : most;
        }
    if (least < most)
        weft_import_note(import,
                         "between.levels: %s: switches of %d to %d nodes in one level: "
                         "taken as %d",
                         r->file, least, most, least);
    add_level(import, r, least);
}

weft_status weft_import_slurm(weft_import *import, const char *file, const char *text,
                              weft_arena *arena)
{
    reader r = {.file = file, .arena = arena};
    char where[256];
    if (weft_slurm_is_yaml(text))
        WEFT_TRY(weft_slurm_yaml_read(import, file, text, take_yaml, &r));
    else
        WEFT_TRY(read_lines(&r, text));
    WEFT_TRY(sort_switches(&r));
    for (int i = 0; i < r.count; i++)
        WEFT_TRY(find_height(&r, &r.switches[i], 0));
    WEFT_TRY(collect_nodes(&r));
    if (r.num_shared > 0)
        weft_import_note(import,
                         "between.levels: %s: %s below several switches (rails): counted once",
                         file, weft_count_text(r.num_shared, "node").text);
    keep_largest(import, &r);
    weft_import_nodes(import, file, r.num_nodes);
    import->cluster.num_levels = 0;
    for (int height = 1; height <= r.num_heights; height++)
        add_height(import, &r, height);
    for (int i = 0; i < r.num_sizes; i++)
        add_level(import, &r, r.sizes[i]);
    if (import->cluster.num_levels == 0)
        return WEFT_OK;
    weft_import_note(
        import, "between.levels: %s does not tell how far switches are oversubscribed: 1", file);
    snprintf(where, sizeof where, "%s; oversubscription 1", file);
    return weft_import_source(import, "between.levels", WEFT_SOURCE_ASSUMED, where);
}
