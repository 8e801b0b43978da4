#include "launcher/planning/data_sources.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name_of(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    return slash ? slash + 1 : prefix;
}

static weft_status add_source(weft_data_sources *list, const char *prefix, int64_t weight)
{
    const char *name = name_of(prefix);
    if (!*name)
        return WEFT_KEY_ERROR(list->key, "\"%s\" names no dataset", prefix);
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->of[i].name, name) == 0)
            return WEFT_KEY_ERROR(list->key,
                                  "%s and %s have one name, %s, by which metrics tell them apart",
                                  list->of[i].prefix, prefix, name);
    list->of[list->count++] = (weft_data_source){prefix, name, weight};
    return WEFT_OK;
}

static weft_status make_list(const char *key, size_t most, weft_arena *arena,
                             weft_data_sources *out)
{
    void *memory = NULL;
    if (most > 0)
        WEFT_TRY(weft_arena_alloc_array(arena, most, sizeof *out->of, &memory));
    *out = (weft_data_sources){.key = key, .of = memory};
    return WEFT_OK;
}

/* --- weights ------------------------------------------------------------------------------- */

/* So that shares are exact, weights are read as decimal numbers: digits behind the point are
 * counted, and all weights are brought to the most that one has. */
enum { MAX_DECIMALS = 9, MAX_WEIGHT = 1000000000 };

typedef struct decimal {
    int64_t digits; /* without the point */
    int decimals;
} decimal;

static bool read_decimal(const char *text, decimal *out)
{
    bool behind = false, any = false;
    *out = (decimal){0};
    for (const char *at = text; *at; at++) {
        if (*at == '.' && !behind) {
            behind = true;
            continue;
        }
        if (*at < '0' || *at > '9' || out->decimals == MAX_DECIMALS || out->digits > MAX_WEIGHT)
            return false;
        out->digits = 10 * out->digits + (*at - '0');
        out->decimals += behind;
        any = true;
    }
    return any && out->digits > 0;
}

static int64_t scale(decimal d, int decimals)
{
    int64_t scaled = d.digits;
    for (; d.decimals < decimals; d.decimals++)
        scaled *= 10;
    return scaled;
}

static weft_status add_blend(const weft_string_list *blend, weft_data_sources *out)
{
    int decimals = 0;
    decimal d;
    if (blend->count % 2 != 0)
        return WEFT_KEY_ERROR(out->key, "wants weights and datasets in turn, such as "
                                        "[0.7, \"wiki\", 0.3, \"books\"]");
    for (size_t i = 0; i < blend->count; i += 2) {
        if (!read_decimal(blend->values[i], &d))
            return WEFT_KEY_ERROR(out->key,
                                  "\"%s\" is not a weight: a number above 0 of at most %d digits "
                                  "behind the point, with its dataset behind it",
                                  blend->values[i], MAX_DECIMALS);
        decimals = d.decimals > decimals ? d.decimals : decimals;
    }
    for (size_t i = 0; i < blend->count; i += 2) {
        (void)read_decimal(blend->values[i], &d);
        WEFT_TRY(add_source(out, blend->values[i + 1], scale(d, decimals)));
    }
    return WEFT_OK;
}

/* --- what there is ------------------------------------------------------------------------- */

weft_status weft_data_find_training(const weft_config *config, weft_arena *arena,
                                    weft_data_sources *out)
{
    const weft_data_options *data = &config->data;
    const bool blends = data->blend.count > 0;
    if (blends && data->data_path && !data->mock_data)
        return WEFT_KEY_ERROR("data.blend", "stands in place of data.data_path: leave out one");
    WEFT_TRY(make_list(blends ? "data.blend" : "data.data_path",
                       blends ? data->blend.count / 2 + 1 : 1, arena, out));
    if (data->mock_data)
        return WEFT_OK;
    if (blends)
        return add_blend(&data->blend, out);
    return data->data_path ? add_source(out, data->data_path, 1) : WEFT_OK;
}

weft_status weft_data_find_validation(const weft_config *config, weft_arena *arena,
                                      weft_data_sources *out)
{
    const weft_string_list *sets = &config->data.validation;
    WEFT_TRY(make_list("data.validation", sets->count, arena, out));
    for (size_t i = 0; i < sets->count; i++)
        WEFT_TRY(add_source(out, sets->values[i], 1));
    return WEFT_OK;
}

static weft_status make_path_absolute(const char **path, weft_arena *arena)
{
    char cwd[PATH_MAX];
    const char *rest = *path;
    if (!rest || rest[0] == '/' || rest[0] == '\0' || !getcwd(cwd, sizeof cwd))
        return WEFT_OK;
    return weft_arena_printf(arena, path, "%s/%s", cwd, rest);
}

/* Every `step`-th text from the first on is a path. */
static weft_status make_list_absolute(weft_string_list *list, size_t first, size_t step,
                                      weft_arena *arena)
{
    void *memory;
    if (list->count == 0)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc_array(arena, list->count, sizeof *list->values, &memory));
    const char **values = memory;
    memcpy(values, list->values, list->count * sizeof *values);
    for (size_t i = first; i < list->count; i += step)
        WEFT_TRY(make_path_absolute(&values[i], arena));
    list->values = values;
    return WEFT_OK;
}

weft_status weft_data_make_absolute(weft_data_options *data, weft_arena *arena)
{
    WEFT_TRY(make_path_absolute(&data->data_path, arena));
    WEFT_TRY(make_list_absolute(&data->blend, 1, 2, arena));
    return make_list_absolute(&data->validation, 0, 1, arena);
}
