/* docs/config.md between its two markers is what the option tables say. `test_config_page --write`
 * brings the page up to date. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/planning/config.h"
#include "tests/core/check.h"

static const char begin[] = "<!-- tables: made by test_config_page --write -->\n";
static const char end[] = "<!-- end of tables -->\n";

static char *page_path(char path[1024])
{
    const char *root = getenv("WEFT_SOURCE_DIR");
    snprintf(path, 1024, "%s/docs/config.md", root ? root : ".");
    return path;
}

/* The tables as they should be; to be freed. */
static char *make_tables(void)
{
    static weft_config config;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        abort();
    weft_options_help(sections, weft_config_sections(&config, sections), true, out);
    fclose(out);
    return text;
}

/* The page, its tables' place in *from and *to. */
static char *read_page(weft_arena *arena, size_t *from, size_t *to)
{
    char path[1024], *page;
    size_t bytes;
    if (weft_read_file(page_path(path), arena, &page, &bytes) != WEFT_OK)
        return NULL;
    char *first = strstr(page, begin), *last = strstr(page, end);
    if (!first || !last || last < first)
        return NULL;
    *from = (size_t)(first - page) + sizeof begin - 1;
    *to = (size_t)(last - page);
    return page;
}

CASE(test_tables)
{
    weft_arena arena = {0};
    size_t from, to;
    char *page = read_page(&arena, &from, &to), *tables = make_tables();
    assert_non_null(page);
    page[to] = '\0';
    if (strcmp(page + from, tables) != 0)
        fail_msg("docs/config.md is not what the options are: run test_config_page --write");
    free(tables);
    weft_arena_release(&arena);
}

/* Kernels compute in single precision: what a bound keeps out must not come in by rounding. */
CASE(test_bounds)
{
    static weft_config config;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    size_t num_sections = weft_config_sections(&config, sections);
    for (size_t s = 0; s < num_sections; s++) {
        for (size_t i = 0; i < sections[s].num_rows; i++) {
            const weft_key *row = &sections[s].rows[i];
            float min = (float)row->min, max = (float)row->max;
            if (row->type == WEFT_OPTION_DOUBLE &&
                (!isfinite(max) || (row->min > 0 && min == 0) || (row->max < 1 && max >= 1)))
                fail_msg("%s.%s: its bounds are lost in single precision", sections[s].name,
                         row->key);
        }
    }
}

/* What rows say besides: on resume, which one that core/key_rows.h does not write may leave out,
 * and of other keys. */
CASE(test_columns)
{
    static weft_config config;
    weft_arena arena = {0};
    const char *why;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    size_t num_sections = weft_config_sections(&config, sections);
    if (weft_options_parse(sections, num_sections, "f", NULL, NULL, 0, &arena) != WEFT_OK)
        fail_msg("%s", weft_error_get()->text);
    for (size_t s = 0; s < num_sections; s++)
        for (size_t i = 0; i < sections[s].num_rows; i++) {
            const weft_key *row = &sections[s].rows[i];
            char key[96];
            if (row->resume == WEFT_RESUME_UNSAID)
                fail_msg("%s.%s: no one says what it means on --resume", sections[s].name,
                         row->key);
            if (weft_options_reason(sections, num_sections, "", row->idle, &arena, &why) != WEFT_OK)
                fail_msg("%s.%s: %s", sections[s].name, row->key, weft_error_get()->text);
            snprintf(key, sizeof key, "%s.%s", sections[s].name, row->key);
            if (weft_options_reason(sections, num_sections, key, row->refused, &arena, &why) !=
                WEFT_OK)
                fail_msg("%s: %s", key, weft_error_get()->text);
            if (why)
                fail_msg("%s: its default is refused: %s", key, why);
        }
    weft_arena_release(&arena);
}

static int write_page(void)
{
    weft_arena arena = {0};
    size_t from, to;
    char path[1024], *page = read_page(&arena, &from, &to), *tables = make_tables();
    FILE *out = page ? fopen(page_path(path), "w") : NULL;
    if (!out)
        return 1;
    fprintf(out, "%.*s%s%s", (int)from, page, tables, page + to);
    return fclose(out) != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--write") == 0)
        return write_page();
    return run_cases();
}
