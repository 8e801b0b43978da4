#include "launcher/planning/data_sources.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dataset/dataset.h"
#include "core/file.h"

static weft_status add_source(weft_data_sources *list, const char *prefix, int64_t weight)
{
    const char *name = weft_path_name(prefix);
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
    *out = (weft_data_sources){.key = key};
    return most > 0 ? WEFT_ARRAY(arena, most, &out->of) : WEFT_OK;
}

/* --- weights ------------------------------------------------------------------------------- */

/* So that shares are exact, weights are read as decimal numbers. Where their period is then longer
 * than an order can be, they are rounded to millionths of their sum. */
enum { MAX_DIGITS = 15, MAX_DECIMALS = 30, MILLION = 1000000 };

/* digits * 10^-decimals */
typedef struct decimal {
    int64_t digits;
    int decimals;
} decimal;

/* A JSON number above 0, however it is spelled: 0.5, 5e-1, 1E3. Digits behind the 15th are left. */
static bool read_decimal(const char *text, decimal *out)
{
    const char *at = text;
    bool behind = false, any = false;
    int num_digits = 0;
    char *end = NULL;
    *out = (decimal){0};
    for (; (*at >= '0' && *at <= '9') || (*at == '.' && !behind); at++) {
        behind = behind || *at == '.';
        if (*at == '.')
            continue;
        any = true;
        num_digits += num_digits > 0 || *at != '0';
        if (num_digits <= MAX_DIGITS)
            out->digits = 10 * out->digits + (*at - '0');
        out->decimals += behind - (num_digits > MAX_DIGITS);
    }
    if (any && (*at == 'e' || *at == 'E')) {
        const long power = strtol(at + 1, &end, 10);
        if (end == at + 1 || at[1] == ' ' || labs(power) > MAX_DECIMALS)
            return false;
        out->decimals -= (int)power;
        at = end;
    }
    for (; out->digits > 0 && out->digits % 10 == 0; out->digits /= 10)
        out->decimals--;
    return any && !*at && out->digits > 0 && abs(out->decimals) <= MAX_DECIMALS;
}

/* As whole numbers, if they are of few digits. */
static bool scale_exactly(const decimal *d, size_t count, int64_t *weights)
{
    int most = -MAX_DECIMALS;
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        most = d[i].decimals > most ? d[i].decimals : most;
    for (size_t i = 0; i < count; i++) {
        weights[i] = d[i].digits;
        for (int k = d[i].decimals; k < most; k++)
            if ((weights[i] *= 10) > WEFT_BLEND_MAX_PERIOD)
                return false;
        if (weights[i] > WEFT_BLEND_MAX_PERIOD || (sum += weights[i]) > WEFT_BLEND_MAX_PERIOD)
            return false;
    }
    return true;
}

static void scale_rounded(const decimal *d, size_t count, int64_t *weights)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)d[i].digits * pow(10, -d[i].decimals);
    for (size_t i = 0; i < count; i++) {
        const double share = (double)d[i].digits * pow(10, -d[i].decimals) / sum;
        weights[i] = (int64_t)fmax(1, round(share * MILLION));
    }
}

static weft_status add_blend(const weft_string_list *blend, weft_arena *arena,
                             weft_data_sources *out)
{
    const size_t count = blend->count / 2;
    if (blend->count % 2 != 0)
        return WEFT_KEY_ERROR(out->key, "wants weights and datasets in turn, such as "
                                        "[0.7, \"wiki\", 0.3, \"books\"]");
    decimal *decimals;
    WEFT_TRY(WEFT_ARRAY(arena, count, &decimals));
    int64_t *weights;
    WEFT_TRY(WEFT_ARRAY(arena, count, &weights));
    for (size_t i = 0; i < count; i++)
        if (!read_decimal(blend->values[2 * i], &decimals[i]))
            return WEFT_KEY_ERROR(out->key,
                                  "\"%s\" is not a weight: a number above 0, with its dataset "
                                  "behind it",
                                  blend->values[2 * i]);
    if (!scale_exactly(decimals, count, weights))
        scale_rounded(decimals, count, weights);
    for (size_t i = 0; i < count; i++)
        WEFT_TRY(add_source(out, blend->values[2 * i + 1], weights[i]));
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
        return add_blend(&data->blend, arena, out);
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
    if (list->count == 0)
        return WEFT_OK;
    const char **values;
    WEFT_TRY(WEFT_ARRAY(arena, list->count, &values));
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
