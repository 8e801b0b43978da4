#include "launcher/measuring/import_slurm_yaml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/options/options.h"
#include "launcher/measuring/import_internal.h"

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
} keys[] = {
    {TOPOLOGY, "topology", TEXT, NULL},     {TOPOLOGY, "cluster_default", TEXT, NULL},
    {TOPOLOGY, "flat", TEXT, NULL},         {TOPOLOGY, "tree", TREE, NULL},
    {TOPOLOGY, "block", BLOCK, NULL},       {TREE, "switches", SWITCHES, NULL},
    {SWITCH, "switch", TEXT, "SwitchName"}, {SWITCH, "children", TEXT, "Switches"},
    {SWITCH, "nodes", TEXT, "Nodes"},       {BLOCK, "block_sizes", SIZES, NULL},
    {BLOCK, "blocks", BLOCKS, NULL},        {A_BLOCK, "block", TEXT, "BlockName"},
    {A_BLOCK, "nodes", TEXT, "Nodes"},
};
enum { NUM_KEYS = sizeof keys / sizeof *keys, MAX_LEVELS = 8 };

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
    weft_slurm_setting *setting;
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
                          keys[key].key);
    if (strcmp(keys[key].key, "topology") == 0 && y->num_topologies == y->wanted) {
        y->wanted_line = y->line;
        snprintf(y->name, sizeof y->name, "%.*s", (int)(bytes < 40 ? bytes : 40), value);
    }
    if (strcmp(keys[key].key, "cluster_default") == 0 && y->first_default == 0 && bytes == 4 &&
        strncasecmp(value, "true", 4) == 0)
        y->first_default = y->num_topologies;
    return keys[key].setting ? call(y, keys[key].setting, value, bytes) : WEFT_OK;
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
        if (keys[i].in == in) {
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                                     keys[i].key);
            names[count++] = keys[i].key;
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
        if (keys[i].in != in || strlen(keys[i].key) != length ||
            memcmp(keys[i].key, text, length) != 0)
            continue;
        if (keys[i].opens == TEXT)
            return take_text(y, i, value, left);
        if (keys[i].opens == SIZES && left > 0)
            return take_sizes(y, value, left);
        if (left > 0)
            return bad_key(y, keys[i].opens, value, left);
        return open_level(y, keys[i].opens, -1);
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

weft_status weft_slurm_yaml_read(weft_import *import, const char *file, const char *text,
                                 weft_slurm_setting *setting, void *ctx)
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
