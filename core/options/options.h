/* Options from JSON through one table of rows (<weft/options.h>) for each struct.
 *
 * The rows stand with the struct's owner. The file may have comments (// and C style). An unknown
 * or duplicate key, a wrong type or a value out of range gives an error of one line:
 * `FILE:line:column: model.num_layer: unknown key; did you mean model.num_layers?` */
#ifndef WEFT_CORE_OPTIONS_OPTIONS_H
#define WEFT_CORE_OPTIONS_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include <weft/list.h>
#include "core/key.h"
#include <weft/status.h>

#include "core/arena.h"
#include "core/json.h"

typedef struct weft_option_section {
    const char *name; /* "model" */
    const weft_key *rows;
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
/* The line and column, from 1, of `path` ("model.num_layers") in `text`, for errors found after
 * parsing (an impossible mesh). False where the text does not set it. */
bool weft_options_locate(const char *text, const char *path, int *line, int *column);
/* Writes the resolved values as JSON that parses back to the same values. */
weft_status weft_options_write(const weft_option_section *sections, size_t num_sections,
                               FILE *out) WEFT_CHECKED;
/* NULL: no row has the key. */
const weft_key *weft_key_find(const weft_key *rows, size_t num_rows, const char *key);
/* Of a row's field; SIZE_MAX: of no type. */
size_t weft_option_bytes(weft_option_type type);
/* A value as JSON text, in the arena. */
weft_status weft_option_text(const weft_option_section *section, const weft_key *row,
                             weft_arena *arena, const char **out) WEFT_CHECKED;
/* The first of the reasons that holds, in the arena; NULL: none. Reasons stand apart by "; ". One
 * says what other keys are, each by its JSON text without quotes: "offload.experts is not file",
 * "data.a, b are false and log.trace_step 0", "... is given" (no empty string), "... is below 2",
 * "... is at most 2".
 * Where that is less than the truth, the test is behind it in brackets: "model.num_experts is 0
 * (model.num_experts is 0 and device.kind is cpu)". A clause "is 0" is of `own`, "section.key".
 * Errors: WEFT_INTERNAL, an unknown key. */
weft_status weft_options_reason(const weft_option_section *sections, size_t num_sections,
                                const char *own, const char *reasons, weft_arena *arena,
                                const char **out) WEFT_CHECKED;
/* Called for a row whose two values differ, with both as JSON text. */
typedef weft_status (*weft_difference_function)(void *context, const char *section,
                                                const weft_key *row, const char *before,
                                                const char *after);
/* Visits the rows that differ between two fillings of the same sections, in their order. */
weft_status weft_options_compare(const weft_option_section *before,
                                 const weft_option_section *after, size_t num_sections,
                                 weft_difference_function visit, void *context) WEFT_CHECKED;
/* `--help`: for each option a line of key, default, bounds, unit and help. markdown: tables. */
void weft_options_help(const weft_option_section *sections, size_t num_sections, bool markdown,
                       FILE *out);
/* What a row accepts: choices with `between` between them, bounds or just its type; and its unit.
 */
void weft_option_domain(const weft_key *row, const char *between, char out[256]);
/* What the rows accept, as a JSON schema (draft 2020-12) of the file. It accepts whatever
 * weft_options_parse does but for what single precision would make 0, and no value of a wrong type,
 * section or key, none out of bounds and no choice that is none; a suffix's number is not seen. */
weft_status weft_options_schema(const weft_option_section *sections, size_t num_sections,
                                const char *title, FILE *out) WEFT_CHECKED;
/* Where a value came from: a file's text, or an override as the user gave it. */
typedef struct weft_option_source {
    const char *file, *text; /* text NULL: of the command line */
    const char *words;       /* there: "--set num_layers=8", "--steps 8" */
    bool is_bare;            /* there: a word that is no JSON, such as +8, or an option's */
} weft_option_source;

/* Reads a word of the command line as a row's value: of an override, but that strings (borrowed)
 * hold it as it is. An error has `words` before it. */
weft_status weft_option_read(const weft_key *row, const char *words, const char *text, void *field,
                             weft_arena *arena) WEFT_CHECKED;
/* The choice of this index, as a span of characters; 0 bytes where there is none. */
weft_json_span weft_option_choice(const weft_key *row, int index);

/* Puts where it is before an error: "FILE:3:20: " of `at` and the path, or the words, cut to fit.
 * Returns `status`. */
weft_status weft_option_fault(const weft_option_source *source, const char *at, const char *section,
                              const char *key, weft_status status) WEFT_CHECKED;
#define WEFT_OPTION_FAULT(source, at, section, key, ...)                                           \
    weft_option_fault((source), (at), (section), (key), WEFT_ERROR(WEFT_CONFIG, __VA_ARGS__))

/* The closest of `count` names to `name` by edit distance, or NULL when none is near. */
const char *weft_nearest_name(const char *name, const char *const *names, size_t count);
/* Names that mean what `name` says, the likeliest: other words for it ("n_embd": hidden_size), else
 * those that have all of its words or words that these shorten ("n_head": num_attention_heads), of
 * those the ones with the fewest words more, and those of [first, first + own) before others.
 * Returns how many, as indices into `names`. */
enum { WEFT_LIKELY_NAMES = 3 };
size_t weft_likely_names(const char *name, const char *const *names, size_t count, size_t first,
                         size_t own, size_t out[WEFT_LIKELY_NAMES]);
/* "train.lr": the keys that one that no row has may stand for, the likeliest, in the arena; none:
 * it is near to none. Rows of `section` (NULL: none) go before others. */
weft_status weft_options_near(const weft_option_section *sections, size_t num_sections,
                              const char *section, const char *key, weft_arena *arena,
                              weft_string_list *out) WEFT_CHECKED;
/* "a or b", each between `before` and `after`, in the arena. */
weft_status weft_options_near_text(const weft_string_list *near, const char *before,
                                   const char *after, weft_arena *arena,
                                   const char **out) WEFT_CHECKED;
/* Reads a whole file into the arena, NUL-terminated: a regular file, or what this process has open
 * as /dev/stdin or /dev/fd/N. */
weft_status weft_read_file(const char *path, weft_arena *arena, char **out,
                           size_t *out_bytes) WEFT_CHECKED;

#endif
