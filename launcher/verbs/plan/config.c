/* weft config: the keys of the config, by their tables. */
#include <stdio.h>
#include <string.h>

#include "core/quantity.h"
#include "launcher/arguments/rows.h"
#include "launcher/report/report.h"
#include "launcher/verbs/plan/plan.h"

typedef struct arguments {
    bool schema, json;
    const char *explain;
} arguments;

static const char *const resume_texts[] = {
    [WEFT_RESUME_UNSAID] = "may change: the run goes on, maybe with other steps",
    [WEFT_RESUME_FREE] = "may change: the run goes on",
    [WEFT_RESUME_STEP] = "may change: the run goes on, with other steps (programs, memory)",
    [WEFT_RESUME_ABOVE_0] = "may change: the run goes on, from or to 0 with other steps",
    [WEFT_RESUME_SIZE] = "may change: any mesh loads any checkpoint",
    [WEFT_RESUME_CHOICE] = "may change: the run goes on; left open, it stays what the run chose",
    [WEFT_RESUME_RUN] = "another value makes another run: --allow-change asks for it",
    [WEFT_RESUME_TASK] = "another value makes another run: --allow-change asks for it",
    [WEFT_RESUME_STATE] = ("another value makes another run, which starts by checkpoint.load of "
                           "weights alone (weft export, then weft import): a state is of one"),
    [WEFT_RESUME_SHAPES] = ("another value makes another run, which --allow-change asks for, or "
                            "another model, where parameters have other shapes by it"),
};

static const char own_page[] = "own"; /* of a program's section */

/* The page, beside docs/config.md where the section is one of Weft's, that explains a section, or
 * one key of it. */
static const char *page_of(const char *section, const char *key)
{
    static const struct {
        const char *section, *page;
    } pages[] = {{"model", "layers"},   {"parallel", "mesh"},          {"train", "optimizer"},
                 {"data", "data"},      {"checkpoint", "checkpoints"}, {"device", "cuda"},
                 {"offload", "memory"}, {"reliability", "faults"},     {"log", "running"}};
    if (strcmp(section, "model") == 0 && strcmp(key, "family") == 0)
        return "models"; /* which lists them */
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(pages[i].section, section) == 0)
            return pages[i].page;
    return own_page;
}

static void report_key(weft_report *r, const weft_option_section *section, const weft_key *row)
{
    char name[128], domain[256], docs[96];
    const weft_quantity kind = weft_quantity_of(row->unit);
    snprintf(name, sizeof name, "%s.%s", section->name, row->key);
    const char *page = page_of(section->name, row->key);
    if (strcmp(page, own_page) == 0)
        snprintf(docs, sizeof docs, "docs/%s.md", page);
    else
        snprintf(docs, sizeof docs, "docs/config.md#%s, docs/%s.md", section->name, page);
    weft_option_domain(row, "|", domain);
    weft_report_text(r, "key", "key", name);
    weft_report_text(r, "meaning", "meaning", row->help);
    weft_report_text(r, "accepts", "accepts", domain);
    if (row->unit)
        weft_report_text(r, "unit", "unit", row->unit);
    if (kind && row->type != WEFT_OPTION_STRING)
        weft_report_text(r, "suffixes", "suffixes", weft_quantity_suffixes(kind));
    weft_report_text(r, "default", "default", row->initial ? row->initial : "null");
    if (row->idle)
        weft_report_text(r, "no_effect_where", "no effect where", row->idle);
    if (row->refused)
        weft_report_text(r, "refused_where", "refused where it", row->refused);
    if (row->alias)
        weft_report_text(r, "mesh", "in --mesh", row->alias);
    weft_report_text(r, "resume", "on resume", resume_texts[row->resume]);
    weft_report_text(r, "docs", "docs", docs);
}

/* "train.lr" or "lr"; "train" names all keys of the section. */
static bool names(const char *word, const weft_option_section *section, const weft_key *row)
{
    const char *dot = strchr(word, '.');
    const size_t bytes = dot ? (size_t)(dot - word) : 0;
    if (strcmp(word, section->name) == 0)
        return true;
    return strcmp(dot ? dot + 1 : word, row->key) == 0 &&
           (!dot || (strlen(section->name) == bytes && strncmp(word, section->name, bytes) == 0));
}

static weft_status unknown(const char *word, const weft_option_section *sections, size_t count,
                           weft_arena *arena)
{
    weft_string_list near;
    const char *dot = strchr(word, '.'), *section = NULL, *text;
    if (dot)
        WEFT_TRY(weft_arena_printf(arena, &section, "%.*s", (int)(dot - word), word));
    WEFT_TRY(weft_options_near(sections, count, section, dot ? dot + 1 : word, arena, &near));
    WEFT_TRY(weft_options_near_text(&near, "", "", arena, &text));
    return WEFT_ERROR(WEFT_CONFIG, "--explain %.60s: unknown key%s%s%s", word,
                      *text ? "; did you mean " : "; weft config lists them", text,
                      *text ? "?" : "");
}

static weft_status explain(const arguments *args, const weft_option_section *sections, size_t count,
                           weft_arena *arena, weft_report *r)
{
    bool found = false;
    weft_report_open(r, WEFT_REPORT_GROUP, "keys");
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < sections[i].num_rows; j++) {
            if (args->explain && !names(args->explain, &sections[i], &sections[i].rows[j]))
                continue;
            found = true;
            weft_report_record(r);
            weft_report_open(r, WEFT_REPORT_FACTS, NULL);
            report_key(r, &sections[i], &sections[i].rows[j]);
            weft_report_close(r);
        }
    weft_report_close(r);
    return found ? WEFT_OK : unknown(args->explain, sections, count, arena);
}

static weft_status run(const arguments *args, const weft_application *application,
                       weft_arena *arena)
{
    weft_config config = {.application = application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t count = weft_config_sections(&config, sections);
    weft_report r;
    if (args->schema)
        return weft_options_schema(sections, count, "Weft " WEFT_VERSION ": the config", stdout);
    weft_report_begin(&r, args->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    if (args->explain || args->json)
        return weft_report_end(&r, explain(args, sections, count, arena, &r), stdout);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < sections[i].num_rows; j++)
            weft_report_line(&r, "%s.%s", sections[i].name, sections[i].rows[j].key);
    return weft_report_end(&r, WEFT_OK, stdout);
}

int weft_verb_config(int argc, char **argv, const weft_verb_given *given)
{
    arguments args = {0};
    weft_arena arena = {0};
    const weft_argument rows[] = {
        FLAG("schema", &args.schema,
             "a JSON schema (draft 2020-12) of the file, for editors and checkers",
             .excludes = "explain json"),
        TEXT("explain", "KEY", &args.explain,
             "what a key, or each of a section, is, takes and means on resume, and where to read "
             "more"),
        FLAG("json", &args.json, "the explanation, or all keys', as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "config",
        .about = "The keys of the config, a line each, those of the program's own among them.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0)
        code = run(&args, given->application, &arena) == WEFT_OK ? 0 : weft_verb_fail("config");
    weft_arena_release(&arena);
    return code;
}
