/* Options from JSON through one row table per struct.
 *
 * The rows stand with the struct's owner; the parser, `--help`, docs and the errors with the
 * nearest right key all derive from them. Comments (// and C style) are allowed in the file. An
 * unknown or duplicate key, a wrong type or a value out of range is one clear line:
 * `FILE:line:column: model.num_layer: unknown key; did you mean model.num_layers?`
 * The rows are <weft/options.h>'s: programs have sections of their own. */
#ifndef WEFT_CORE_OPTIONS_H
#define WEFT_CORE_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include <weft/list.h>
#include <weft/options.h>
#include <weft/status.h>

#include "core/arena.h"

typedef struct weft_option_section {
    const char *name; /* "model" */
    const weft_option_row *rows;
    size_t num_rows;
    void *target; /* the struct to fill */
    const char *help;
} weft_option_section;

/* Fills every section: defaults, then the file's JSON `text` (NULL: none), then the overrides
 * ("key=value" or "section.key=value", value as JSON or a bare string; an unqualified key must be
 * unique). `file` names the text in errors. Strings live in the arena. Errors: WEFT_CONFIG,
 * WEFT_MEMORY. */
weft_status weft_options_parse(const weft_option_section *sections, size_t num_sections,
                               const char *file, const char *text, const char *const *overrides,
                               size_t num_overrides, weft_arena *arena) WEFT_CHECKED;
/* Line and column (1-based) where `path` ("model.num_layers") stands in the last parsed text, for
 * errors found after parsing (an impossible mesh). Returns false where the file does not set it. */
bool weft_options_locate(const char *text, const char *path, int *line, int *column);
/* Writes the resolved values as JSON that parses back to the same values. */
weft_status weft_options_write(const weft_option_section *sections, size_t num_sections,
                               FILE *out) WEFT_CHECKED;
/* Called for a row whose two values differ, with both as they would be written. */
typedef weft_status (*weft_difference_function)(void *context, const char *section,
                                                const weft_option_row *row, const char *before,
                                                const char *after);
/* Visits the rows that differ between two fillings of the same sections, in their order. */
weft_status weft_options_compare(const weft_option_section *before,
                                 const weft_option_section *after, size_t num_sections,
                                 weft_difference_function visit, void *context) WEFT_CHECKED;
/* `--help`: a line an option: key, default, bounds, unit, help. markdown: as tables for docs. */
void weft_options_help(const weft_option_section *sections, size_t num_sections, bool markdown,
                       FILE *out);
/* The closest of `count` names to `name` by edit distance, or NULL when none is near. */
const char *weft_nearest_name(const char *name, const char *const *names, size_t count);
/* Reads a whole file into the arena, NUL-terminated: a regular one, or whatever this process has
 * open and gets as /dev/stdin or /dev/fd/N. */
weft_status weft_read_file(const char *path, weft_arena *arena, char **out,
                           size_t *out_bytes) WEFT_CHECKED;

#endif
