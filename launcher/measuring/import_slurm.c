/* Slurm's topology.conf, or topology.yaml: a tree of switches, or blocks, as levels of the network.
 *
 * Slurm takes a node below several leaf switches (rails), and switches that no root joins; it
 * warns, and no job of its spans what no switch joins (topology.conf(5), topology/tree). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/options/options.h"
#include "core/text.h"
#include "launcher/measuring/import.h"
#include "launcher/measuring/import_internal.h"

/* --- topology.yaml (Slurm 25.05 and later), as the settings of a topology.conf -----------------
 *
 * Of YAML it reads the form of topology.yaml(5): lists of "- ", "key: value" below each other,
 * names with or without quotes, comments, a list of numbers also as [4, 16]. All else is refused by
 * its line: tabs before a key, other brackets, |, >, &, *, !. */

/* What topology.conf calls it: SwitchName, Switches, Nodes, BlockName or BlockSizes. */
typedef weft_status slurm_setting(void *ctx, int line, const char *key, const char *value,
                                  size_t bytes);

/* What a line stands in: lists, and mappings of one. */
typedef enum place {
    TOPOLOGIES,
    TOPOLOGY,
    TREE,
    SWITCHES,
    SWITCH,
    BLOCK,
    BLOCKS,
    A_BLOCK,
    SIZES,
    NUM_PLACES,
    TEXT, /* of keys: it opens nothing, a value follows */
} place;

/* Lists: what an entry is; TEXT: a value. */
static const place entries[NUM_PLACES] = {
    [TOPOLOGIES] = TOPOLOGY, [SWITCHES] = SWITCH, [BLOCKS] = A_BLOCK, [SIZES] = TEXT};

static bool is_list(place p)
{
    return p == TOPOLOGIES || p == SWITCHES || p == BLOCKS || p == SIZES;
}

/* `setting`: topology.conf's name of it. */
static const struct {
    place in;
    const char *key;
    place opens;
    const char *setting;
} yaml_keys[] = {
    {TOPOLOGY, "topology", TEXT, NULL},     {TOPOLOGY, "cluster_default", TEXT, NULL},
    {TOPOLOGY, "flat", TEXT, NULL},         {TOPOLOGY, "tree", TREE, NULL},
    {TOPOLOGY, "block", BLOCK, NULL},       {TREE, "switches", SWITCHES, NULL},
    {SWITCH, "switch", TEXT, "SwitchName"}, {SWITCH, "children", TEXT, "Switches"},
    {SWITCH, "nodes", TEXT, "Nodes"},       {BLOCK, "block_sizes", SIZES, NULL},
    {BLOCK, "blocks", BLOCKS, NULL},        {A_BLOCK, "block", TEXT, "BlockName"},
    {A_BLOCK, "nodes", TEXT, "Nodes"},
};
enum { NUM_KEYS = sizeof yaml_keys / sizeof *yaml_keys, MAX_LEVELS = 8 };

typedef struct level {
    place place;
    int column; /* of its keys or dashes; -1: its first line is still to come */
} level;

typedef struct yaml {
    const char *file;
    int line;
    level levels[MAX_LEVELS];
    int num_levels;
    int num_topologies, wanted; /* wanted: the topology whose settings are called; 0: none */
    int first_default;          /* 0: none */
    int wanted_line, num_settings;
    char name[WEFT_IMPORT_WORD_BYTES]; /* of the wanted one */
    slurm_setting *setting;
    void *ctx;
} yaml;

static weft_status refuse(const yaml *y, const char *what)
{
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: topology.yaml: %s", y->file, y->line, what);
}

/* A line without its comment and the blanks behind it. */
static size_t said_bytes(const char *line, size_t bytes)
{
    size_t end = 0;
    while (end < bytes && !(line[end] == '#' && (end == 0 || strchr(" \t", line[end - 1]))))
        end++;
    while (end > 0 && strchr(" \t\r", line[end - 1]))
        end--;
    return end;
}

static bool is_marker(const char *text, size_t bytes)
{
    return bytes == 3 && memcmp(text, "---", 3) == 0;
}

bool weft_slurm_is_yaml(const char *text)
{
    weft_import_lines lines = {.next = text};
    while (weft_import_next_line(&lines)) {
        const size_t end = said_bytes(lines.line, lines.bytes);
        if (end == 0 || is_marker(lines.line, end))
            continue;
        const char *at = lines.line, *stop = lines.line + end;
        at += strspn(at, " ");
        if (at >= stop || *at != '-')
            return false;
        at += 1 + strspn(at + 1, " ");
        return stop - at >= 9 && memcmp(at, "topology:", 9) == 0;
    }
    return false;
}

/* Takes the quotes off a value. */
static weft_status unquote(const yaml *y, const char **value, size_t *bytes)
{
    const char first = *bytes > 0 ? **value : '\0';
    if (first && strchr("[]{}|>&*!%@`", first))
        return refuse(y, "lists in brackets (but for block_sizes), |, >, &, * and ! are not read");
    if (first != '"' && first != '\'')
        return WEFT_OK;
    if (*bytes < 2 || (*value)[*bytes - 1] != first || memchr(*value + 1, first, *bytes - 2) ||
        memchr(*value, '\\', *bytes))
        return refuse(y, "a quote without its other, or more of them in it");
    ++*value;
    *bytes -= 2;
    return WEFT_OK;
}

static weft_status call(yaml *y, const char *setting, const char *value, size_t bytes)
{
    if (y->num_topologies != y->wanted)
        return WEFT_OK;
    y->num_settings++;
    return y->setting(y->ctx, y->line, setting, value, bytes);
}

static weft_status take_text(yaml *y, int key, const char *value, size_t bytes)
{
    WEFT_TRY(unquote(y, &value, &bytes));
    if (bytes == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: topology.yaml: %s has no value", y->file, y->line,
                          yaml_keys[key].key);
    if (strcmp(yaml_keys[key].key, "topology") == 0 && y->num_topologies == y->wanted) {
        y->wanted_line = y->line;
        snprintf(y->name, sizeof y->name, "%.*s", (int)(bytes < 40 ? bytes : 40), value);
    }
    if (strcmp(yaml_keys[key].key, "cluster_default") == 0 && y->first_default == 0 && bytes == 4 &&
        strncasecmp(value, "true", 4) == 0)
        y->first_default = y->num_topologies;
    return yaml_keys[key].setting ? call(y, yaml_keys[key].setting, value, bytes) : WEFT_OK;
}

/* [4, 16] on its line. */
static weft_status take_sizes(yaml *y, const char *value, size_t bytes)
{
    if (bytes < 2 || value[0] != '[' || value[bytes - 1] != ']')
        return refuse(y, "block_sizes: no list such as [4, 16]");
    for (size_t at = 1, end = bytes - 1; at <= end; at++) {
        at += strspn(value + at, " ");
        const size_t length = strcspn(value + at, ", ]");
        WEFT_TRY(call(y, "BlockSizes", value + at, length));
        at += length + strspn(value + at + length, " ");
        if (at != end && value[at] != ',')
            return refuse(y, "block_sizes: no list such as [4, 16]");
    }
    return WEFT_OK;
}

static weft_status open_level(yaml *y, place p, int column)
{
    if (y->num_levels == MAX_LEVELS)
        return refuse(y, "too deep");
    y->levels[y->num_levels++] = (level){p, column};
    return WEFT_OK;
}

static weft_status bad_key(const yaml *y, place in, const char *text, size_t bytes)
{
    const char *names[NUM_KEYS];
    char key[48], list[WEFT_IMPORT_WORD_BYTES] = "";
    size_t count = 0, used = 0;
    for (int i = 0; i < NUM_KEYS; i++)
        if (yaml_keys[i].in == in) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                                     yaml_keys[i].key);
            names[count++] = yaml_keys[i].key;
        }
    snprintf(key, sizeof key, "%.*s", (int)(bytes < 47 ? bytes : 47), text);
    const char *nearest = weft_nearest_name(key, names, count);
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: topology.yaml: \"%s\" is not expected here; %s%s%s",
                      y->file, y->line, key, nearest ? "did you mean " : "there may be ",
                      nearest ? nearest : list, nearest ? "?" : "");
}

/* KEY: VALUE, or KEY: of what follows. */
static weft_status take_key(yaml *y, place in, const char *text, size_t bytes)
{
    const char *colon = memchr(text, ':', bytes);
    if (!colon || (colon + 1 < text + bytes && colon[1] != ' '))
        return refuse(y, "neither \"key: value\" nor \"- key: value\"");
    const size_t length = (size_t)(colon - text);
    const char *value = colon + 1 + strspn(colon + 1, " ");
    const size_t left = value < text + bytes ? (size_t)(text + bytes - value) : 0;
    for (int i = 0; i < NUM_KEYS; i++) {
        if (yaml_keys[i].in != in || strlen(yaml_keys[i].key) != length ||
            memcmp(yaml_keys[i].key, text, length) != 0)
            continue;
        if (yaml_keys[i].opens == TEXT)
            return take_text(y, i, value, left);
        if (yaml_keys[i].opens == SIZES && left > 0)
            return take_sizes(y, value, left);
        if (left > 0)
            return bad_key(y, yaml_keys[i].opens, value, left);
        return open_level(y, yaml_keys[i].opens, -1);
    }
    return bad_key(y, in, text, length);
}

/* Closes what the line at this column no longer stands in. */
static weft_status find_level(yaml *y, int column, bool dash)
{
    level *top = &y->levels[y->num_levels - 1];
    if (top->column < 0) {
        /* A list may begin below its key's own column, anything else stands further right. */
        const int parent = y->num_levels > 1 ? top[-1].column : 0;
        if (is_list(top->place) != dash || column < parent + !dash)
            return refuse(y, "this belongs to no key above it");
        top->column = column;
    }
    while (y->num_levels > 1 &&
           (top->column > column || (top->column == column && is_list(top->place) && !dash))) {
        top--;
        y->num_levels--;
    }
    if (top->column != column || is_list(top->place) != dash)
        return refuse(y, "this stands under no line above it: the columns differ");
    return WEFT_OK;
}

static weft_status take_line(yaml *y, const char *line, size_t bytes)
{
    size_t at = strspn(line, " ");
    if (line[at] == '\t')
        return refuse(y, "a tab before what the line says: YAML takes blanks alone");
    const bool dash = line[at] == '-' && (at + 1 == bytes || line[at + 1] == ' ');
    WEFT_TRY(find_level(y, (int)at, dash));
    place in = y->levels[y->num_levels - 1].place;
    if (!dash)
        return take_key(y, in, line + at, bytes - at);
    at++;
    at += strspn(line + at, " ");
    if (at >= bytes)
        return refuse(y, "a dash with nothing behind it");
    if (entries[in] == TEXT)
        return call(y, "BlockSizes", line + at, bytes - at);
    in = entries[in];
    WEFT_TRY(open_level(y, in, (int)at));
    y->num_topologies += in == TOPOLOGY;
    return take_key(y, in, line + at, bytes - at);
}

static weft_status read_once(yaml *y, const char *text)
{
    weft_import_lines lines = {.next = text};
    y->num_levels = 0, y->num_topologies = 0;
    WEFT_TRY(open_level(y, TOPOLOGIES, -1));
    while (weft_import_next_line(&lines)) {
        const size_t end = said_bytes(lines.line, lines.bytes);
        y->line = lines.number;
        if (end == 0 || is_marker(lines.line, end))
            continue;
        WEFT_TRY(take_line(y, lines.line, end));
    }
    return WEFT_OK;
}

/* Calls `setting` in the file's order for one topology: the first with `cluster_default: true`, or
 * the first. `import` gets a note where there are others. WEFT_CONFIG: one line with the file's
 * line. */
static weft_status slurm_yaml_read(weft_import *import, const char *file, const char *text,
                                   slurm_setting *setting, void *ctx)
{
    yaml y = {.file = file, .setting = setting, .ctx = ctx};
    WEFT_TRY(read_once(&y, text)); /* which one it is */
    y.wanted = y.first_default > 0 ? y.first_default : 1;
    WEFT_TRY(read_once(&y, text));
    if (y.num_settings == 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s:%d: topology.yaml: %s has no switches and no blocks: leave the "
                          "file out",
                          file, y.wanted_line, y.name);
    if (y.num_topologies > 1)
        weft_import_note(import, "between.levels: %s: of %d topologies %s is taken%s", file,
                         y.num_topologies, y.name,
                         y.first_default > 0 ? " (cluster_default)" : ", the first");
    return WEFT_OK;
}

enum { MAX_NAMES = 1 << 17, MAX_SWITCHES = 1 << 16, MAX_HEIGHTS = 16, MAX_NAME_BYTES = 256 };

typedef struct names {
    const char **names;
    int count;
    size_t capacity;
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
    int count;
    size_t capacity;
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

static weft_status add_name(reader *r, names *list, const char *name)
{
    if (r->total++ == 2 * MAX_NAMES)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d names", r->file, r->line,
                          2 * MAX_NAMES);
    WEFT_TRY(WEFT_ARENA_GROW(r->arena, list->names, list->capacity, (size_t)list->count + 1));
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
    if (bytes == 0 || bytes >= sizeof name)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: a switch without a name", r->file, r->line);
    if (r->count == MAX_SWITCHES)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d switches", r->file, r->line,
                          MAX_SWITCHES);
    snprintf(name, sizeof name, "%.*s", (int)bytes, text);
    WEFT_TRY(WEFT_ARENA_GROW(r->arena, r->switches, r->capacity, (size_t)r->count + 1));
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
        WEFT_TRY(slurm_yaml_read(import, file, text, take_yaml, &r));
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
