/* The application that a program gives to weft_application_main. */
#include <string.h>

#include "core/sized.h"
#include "launcher/planning/config.h"

static weft_status check_row(const weft_application *app, const weft_option_row *row)
{
    if (!row->key || !row->key[0] || strpbrk(row->key, ".= \""))
        return WEFT_ERROR(WEFT_CONFIG, "application: a row of section %s has no plain key",
                          app->section);
    size_t bytes = weft_option_bytes(row->type);
    if (bytes > app->options_bytes || row->offset > app->options_bytes - bytes)
        return WEFT_ERROR(WEFT_CONFIG,
                          "application: %s.%s lies outside the %zu bytes of its options",
                          app->section, row->key, app->options_bytes);
    if (row->type == WEFT_OPTION_CHOICE && !row->choices)
        return WEFT_ERROR(WEFT_CONFIG, "application: %s.%s has no choices", app->section, row->key);
    for (const weft_option_row *other = app->rows; other < row; other++)
        if (strcmp(other->key, row->key) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "application: two rows are named %s.%s", app->section,
                              row->key);
    return WEFT_OK;
}

static weft_status check_section(const weft_application *app)
{
    weft_config config = {0};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    size_t count = weft_config_sections(&config, sections);
    for (size_t i = 0; i < count; i++)
        if (strcmp(sections[i].name, app->section) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "application: section %s is Weft's own; name another",
                              app->section);
    if (!app->section[0] || strpbrk(app->section, ".= \""))
        return WEFT_ERROR(WEFT_CONFIG, "application: \"%s\" names no section", app->section);
    if (app->num_rows > 0 && !app->rows)
        return WEFT_ERROR(WEFT_CONFIG, "application: section %s has no rows", app->section);
    if (app->num_rows > WEFT_MAX_OWN_ROWS)
        return WEFT_ERROR(WEFT_CONFIG, "application: section %s has %zu rows; at most %d",
                          app->section, app->num_rows, WEFT_MAX_OWN_ROWS);
    for (size_t i = 0; i < app->num_rows; i++)
        WEFT_TRY(check_row(app, &app->rows[i]));
    return WEFT_OK;
}

weft_status weft_application_take(const weft_application *given, weft_application *out)
{
    weft_application app;
    WEFT_TRY(weft_sized_copy("weft_application", given, &app, sizeof app));
    if (app.section)
        WEFT_TRY(check_section(&app));
    *out = app;
    return WEFT_OK;
}
