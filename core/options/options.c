#include "core/options/options.h"

#include <string.h>

#include "core/json.h"
#include "core/options/value.h"

/* The sections being filled. */
typedef struct parse {
    const weft_option_section *sections;
    size_t num_sections;
    weft_arena *arena;
} parse;

const weft_key *weft_key_find(const weft_key *rows, size_t num_rows, const char *key)
{
    for (size_t i = 0; i < num_rows; i++)
        if (strcmp(rows[i].key, key) == 0)
            return &rows[i];
    return NULL;
}

static const weft_key *find_row(const weft_option_section *section, const char *key)
{
    return weft_key_find(section->rows, section->num_rows, key);
}

static const weft_option_section *find_section(const parse *p, const char *name)
{
    for (size_t i = 0; i < p->num_sections; i++) {
        if (strcmp(p->sections[i].name, name) == 0)
            return &p->sections[i];
    }
    return NULL;
}

static const weft_option_section *section_with_key(const parse *p, const char *key)
{
    for (size_t i = 0; i < p->num_sections; i++) {
        if (find_row(&p->sections[i], key))
            return &p->sections[i];
    }
    return NULL;
}

static weft_status near_keys(const parse *p, const char *section, const char *key, const char **out)
{
    weft_string_list near;
    WEFT_TRY(weft_options_near(p->sections, p->num_sections, section, key, p->arena, &near));
    return weft_options_near_text(&near, "", "", p->arena, out);
}

static weft_status unknown_section(const parse *p, const weft_option_source *source, const char *at,
                                   const char *name)
{
    const weft_option_section *owner = section_with_key(p, name);
    if (owner)
        return WEFT_OPTION_FAULT(source, at, name, NULL,
                                 "unknown section; %s belongs to section %s", name, owner->name);
    const char *names[32];
    size_t count = p->num_sections < 32 ? p->num_sections : 32;
    for (size_t i = 0; i < count; i++)
        names[i] = p->sections[i].name;
    const char *near = weft_nearest_name(name, names, count);
    if (near)
        return WEFT_OPTION_FAULT(source, at, name, NULL, "unknown section; did you mean %s?", near);
    WEFT_TRY(near_keys(p, NULL, name, &near));
    if (*near)
        return WEFT_OPTION_FAULT(source, at, name, NULL, "unknown section; did you mean key %s?",
                                 near);
    char list[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", names[i]);
    return WEFT_OPTION_FAULT(
        source, at, name, NULL,
        "unknown section; the sections are %s; for one of a program's own use that program", list);
}

/* `section` NULL: the key was given without one. */
static weft_status unknown_key(const parse *p, const weft_option_source *source, const char *at,
                               const weft_option_section *section, const char *key)
{
    const char *name = section ? section->name : NULL;
    const weft_option_section *owner = section_with_key(p, key);
    if (owner)
        return WEFT_OPTION_FAULT(source, at, name, key, "%s belongs to section %s", key,
                                 owner->name);
    const char *near;
    WEFT_TRY(near_keys(p, name, key, &near));
    if (*near)
        return WEFT_OPTION_FAULT(source, at, name, key, "unknown key; did you mean %s?", near);
    return WEFT_OPTION_FAULT(source, at, name, key, "unknown key");
}

static weft_status duplicate(const weft_option_source *source, const char *at, const char *first_at,
                             const char *section, const char *key)
{
    int line, column;
    weft_json_position(source->text, first_at, &line, &column);
    return WEFT_OPTION_FAULT(source, at, section, key, "given twice; first at line %d, column %d",
                             line, column);
}

static weft_status key_text(const parse *p, const weft_option_source *source, weft_json_span key,
                            const char *section, const char **out)
{
    weft_status status = weft_json_string(key, p->arena, out);
    return status == WEFT_OK ? WEFT_OK
                             : weft_option_fault(source, key.start, section, NULL, status);
}

static weft_status parse_section(const parse *p, const weft_option_source *source,
                                 const weft_option_section *section, weft_json_span object)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(p->arena, section->num_rows, sizeof(char *), &memory));
    const char **seen = memory; /* by row: where the key stood first */
    const char *cursor = NULL;
    weft_json_span key_span, value;
    while (weft_json_next(object, &cursor, &key_span, &value)) {
        const char *key;
        WEFT_TRY(key_text(p, source, key_span, section->name, &key));
        const weft_key *row = find_row(section, key);
        if (!row)
            return unknown_key(p, source, key_span.start, section, key);
        size_t index = (size_t)(row - section->rows);
        if (seen[index])
            return duplicate(source, key_span.start, seen[index], section->name, key);
        seen[index] = key_span.start;
        WEFT_TRY(weft_option_store(source, section->name, row, value, section->target, p->arena));
    }
    return WEFT_OK;
}

static weft_status parse_text(const parse *p, const char *file, const char *text)
{
    /* Some editors start a file with a byte order mark. */
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    weft_option_source source = {.file = file, .text = text};
    weft_json_span root;
    weft_json_fault fault;
    if (!weft_json_check(text, &root, &fault))
        return WEFT_OPTION_FAULT(&source, fault.at, NULL, NULL, "not valid JSON: %s", fault.reason);
    if (weft_json_kind_of(root) != WEFT_JSON_OBJECT)
        return WEFT_OPTION_FAULT(&source, root.start, NULL, NULL,
                                 "expected an object of sections, got %s",
                                 weft_json_kind_text(root));
    const char **seen;
    WEFT_TRY(WEFT_ARRAY(p->arena, p->num_sections, &seen));
    const char *cursor = NULL;
    weft_json_span key_span, value;
    while (weft_json_next(root, &cursor, &key_span, &value)) {
        const char *name;
        WEFT_TRY(key_text(p, &source, key_span, NULL, &name));
        const weft_option_section *section = find_section(p, name);
        if (!section)
            return unknown_section(p, &source, key_span.start, name);
        size_t index = (size_t)(section - p->sections);
        if (seen[index])
            return duplicate(&source, key_span.start, seen[index], name, NULL);
        seen[index] = key_span.start;
        if (weft_json_kind_of(value) != WEFT_JSON_OBJECT)
            return WEFT_OPTION_FAULT(&source, value.start, name, NULL, "expected an object, got %s",
                                     weft_json_kind_text(value));
        WEFT_TRY(parse_section(p, &source, section, value));
    }
    return WEFT_OK;
}

/* Finds what "section.key" or "key" names. */
static weft_status resolve_override(const parse *p, const weft_option_source *source,
                                    const char *path, const weft_option_section **section,
                                    const weft_key **row)
{
    const char *dot = strchr(path, '.');
    const char *key = path;
    *section = NULL;
    if (dot) {
        const char *name;
        WEFT_TRY(weft_arena_printf(p->arena, &name, "%.*s", (int)(dot - path), path));
        key = dot + 1;
        *section = find_section(p, name);
        if (!*section)
            return unknown_section(p, source, NULL, name);
    } else {
        for (size_t i = 0; i < p->num_sections; i++) {
            if (!find_row(&p->sections[i], key))
                continue;
            if (*section)
                return WEFT_ERROR(WEFT_CONFIG, "%s: %s stands in sections %s and %s: say which",
                                  source->words, key, (*section)->name, p->sections[i].name);
            *section = &p->sections[i];
        }
    }
    *row = *section ? find_row(*section, key) : NULL;
    return *row ? WEFT_OK : unknown_key(p, source, NULL, *section, key);
}

/* The value's text is JSON where the row can take it as such, else a bare string. */
static weft_status word_value(const weft_key *row, const char *text, weft_arena *arena,
                              weft_json_span *out, bool *out_bare)
{
    weft_json_fault fault;
    const char *quoted;
    if (weft_json_check(text, out, &fault)) {
        weft_json_kind kind = weft_json_kind_of(*out);
        bool wants_text = row->type == WEFT_OPTION_STRING || row->type == WEFT_OPTION_CHOICE ||
                          row->type == WEFT_OPTION_STRINGS;
        bool is_text = kind == WEFT_JSON_STRING || kind == WEFT_JSON_NULL ||
                       (kind == WEFT_JSON_ARRAY && row->type == WEFT_OPTION_STRINGS);
        const bool is_odd = kind == WEFT_JSON_NUMBER && out->bytes != strlen(text); /* " 2" */
        *out_bare = (wants_text || is_odd) && !is_text;
        if (!*out_bare)
            return WEFT_OK;
    }
    *out_bare = true;
    WEFT_TRY(weft_json_quote(text, arena, &quoted));
    *out = (weft_json_span){quoted, strlen(quoted)};
    return WEFT_OK;
}

weft_status weft_option_read(const weft_key *row, const char *words, const char *text, void *field,
                             weft_arena *arena)
{
    const weft_option_source source = {.words = words, .is_bare = true};
    bool is_bare;
    weft_key own = *row;
    weft_json_span value;
    if (row->type == WEFT_OPTION_STRING) {
        *(const char **)field = text;
        return WEFT_OK;
    }
    own.offset = 0;
    WEFT_TRY(word_value(row, text, arena, &value, &is_bare));
    return weft_option_store(&source, NULL, &own, value, field, arena);
}

static weft_status parse_override(const parse *p, const char *override)
{
    weft_option_source source = {0};
    const char *equals = strchr(override, '=');
    WEFT_TRY(weft_arena_printf(p->arena, &source.words, "--set %s", override));
    if (!equals || equals == override)
        return WEFT_OPTION_FAULT(&source, NULL, NULL, NULL, "expected key=value");
    const char *path;
    WEFT_TRY(weft_arena_printf(p->arena, &path, "%.*s", (int)(equals - override), override));
    const weft_option_section *section;
    const weft_key *row;
    WEFT_TRY(resolve_override(p, &source, path, &section, &row));
    weft_json_span value;
    WEFT_TRY(word_value(row, equals + 1, p->arena, &value, &source.is_bare));
    return weft_option_store(&source, section->name, row, value, section->target, p->arena);
}

static weft_status set_defaults(const parse *p)
{
    for (size_t i = 0; i < p->num_sections; i++) {
        const weft_option_section *section = &p->sections[i];
        for (size_t j = 0; j < section->num_rows; j++) {
            const weft_key *row = &section->rows[j];
            const char *text = row->initial ? row->initial : "null";
            weft_option_source source = {.file = "default", .text = text};
            weft_json_span value;
            weft_json_fault fault;
            if (!weft_json_check(text, &value, &fault))
                return WEFT_ERROR(WEFT_INTERNAL, "default of %s.%s: %s", section->name, row->key,
                                  fault.reason);
            WEFT_TRY(
                weft_option_store(&source, section->name, row, value, section->target, p->arena));
        }
    }
    return WEFT_OK;
}

weft_status weft_options_parse(const weft_option_section *sections, size_t num_sections,
                               const char *file, const char *text, const char *const *overrides,
                               size_t num_overrides, weft_arena *arena)
{
    parse p = {.sections = sections, .num_sections = num_sections, .arena = arena};
    WEFT_TRY(set_defaults(&p));
    if (text)
        WEFT_TRY(parse_text(&p, file, text));
    for (size_t i = 0; i < num_overrides; i++)
        WEFT_TRY(parse_override(&p, overrides[i]));
    return WEFT_OK;
}

static bool find_member(weft_json_span object, const char *name, size_t bytes, weft_json_span *key,
                        weft_json_span *value)
{
    const char *cursor = NULL;
    if (weft_json_kind_of(object) != WEFT_JSON_OBJECT)
        return false;
    while (weft_json_next(object, &cursor, key, value)) {
        if (key->bytes == bytes + 2 && memcmp(key->start + 1, name, bytes) == 0)
            return true;
    }
    return false;
}

bool weft_options_locate(const char *text, const char *path, int *line, int *column)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    weft_json_span object, key = {0}, value;
    weft_json_fault fault;
    if (!weft_json_check(text, &object, &fault))
        return false;
    for (const char *name = path; *name;) {
        size_t bytes = strcspn(name, ".");
        if (!find_member(object, name, bytes, &key, &value))
            return false;
        object = value;
        name += bytes + (name[bytes] == '.');
    }
    if (!key.start)
        return false;
    weft_json_position(text, key.start, line, column);
    return true;
}
