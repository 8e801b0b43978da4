/* What reports in JSON hold, for tests that read them. */
#ifndef WEFT_TESTS_JSON_H
#define WEFT_TESTS_JSON_H

#include <math.h>
#include <stdbool.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"

/* Whether there is something under a key that is not null. */
static inline bool has_value(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return item && !cJSON_IsNull(item);
}

/* The number under a key; without one the check fails, and it is NaN. */
static inline double number_of(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    EXPECT(cJSON_IsNumber(item), "no number %s", key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* The number under a key of what is under another. */
static inline double number_at(const cJSON *json, const char *a, const char *b)
{
    const cJSON *item =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, a), b);
    EXPECT(cJSON_IsNumber(item), "no %s, %s", a, b);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* The text under a key; without one the check fails, and it is empty. */
static inline const char *text_of(const cJSON *json, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, key));
    EXPECT(text, "no text %s", key);
    return text ? text : "";
}

#endif
