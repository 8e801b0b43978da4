#include "launcher/text/json_lines.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/options/options.h"

/* What a message shows of a key. */
enum { SHOWN_BYTES = 48, MAX_SHOWN = 8 };

static bool is_key(weft_json_span key, const char *name, size_t bytes)
{
    return key.bytes == bytes + 2 && memcmp(key.start + 1, name, bytes) == 0;
}

/* "its keys are "id", "text"", and the nearest. */
static weft_status refuse_key(weft_json_span object, const char *name)
{
    char shown[MAX_SHOWN][SHOWN_BYTES], list[MAX_SHOWN * (SHOWN_BYTES + 4)] = "";
    const char *names[MAX_SHOWN], *cursor = NULL;
    weft_json_span key, value;
    size_t count = 0, used = 0;
    while (count < MAX_SHOWN && weft_json_next(object, &cursor, &key, &value)) {
        const int bytes = (int)(key.bytes - 2 < SHOWN_BYTES - 1 ? key.bytes - 2 : SHOWN_BYTES - 1);
        snprintf(shown[count], SHOWN_BYTES, "%.*s", bytes, key.start + 1);
        names[count] = shown[count];
        used += (size_t)snprintf(list + used, sizeof list - used, "%s\"%s\"", count ? ", " : "",
                                 shown[count]);
        count++;
    }
    const char *near = weft_nearest_name(name, names, count);
    return WEFT_ERROR(WEFT_FILE, "no key \"%.64s\"%s%.200s%s%s%s", name,
                      count ? "; its keys are " : ": an empty object", list,
                      near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* The last member of this name. */
static bool find_member(weft_json_span object, const char *name, size_t bytes, weft_json_span *out)
{
    weft_json_span key, value;
    const char *cursor = NULL;
    bool found = false;
    while (weft_json_next(object, &cursor, &key, &value))
        if (is_key(key, name, bytes)) {
            *out = value;
            found = true;
        }
    return found;
}

static weft_status find_value(weft_json_span at, const char *key, weft_json_span *out)
{
    const char *rest = key;
    for (;;) {
        if (weft_json_kind_of(at) != WEFT_JSON_OBJECT)
            return WEFT_ERROR(WEFT_FILE, "%.*s%s%s, not an object%s",
                              (int)(rest > key ? rest - key - 1 : 0), key, rest > key ? " is " : "",
                              weft_json_kind_text(at),
                              rest == key && weft_json_kind_of(at) == WEFT_JSON_ARRAY
                                  ? ": jq -c '.[]' would print one a line"
                                  : "");
        const size_t first = strcspn(rest, ".");
        if (find_member(at, rest, strlen(rest), out))
            return WEFT_OK;
        if (!rest[first] || !find_member(at, rest, first, out))
            return refuse_key(at, rest);
        at = *out;
        rest += first + 1;
    }
}

weft_status weft_json_line_value(const char *line, size_t bytes, const char *key,
                                 weft_json_span *out)
{
    weft_json_span root;
    weft_json_fault fault;
    const char *zero = memchr(line, '\0', bytes);
    if (zero)
        return WEFT_ERROR(WEFT_FILE, "column %zu: a zero byte", (size_t)(zero - line) + 1);
    if (!weft_json_check_any(line, &root, &fault))
        return WEFT_ERROR(WEFT_FILE, "column %zu: %s", (size_t)(fault.at - line) + 1, fault.reason);
    return find_value(root, key, out);
}

weft_status weft_json_line_text(const char *line, size_t bytes, const char *key, weft_arena *arena,
                                weft_json_characters *out)
{
    weft_json_span value;
    WEFT_TRY(weft_json_line_value(line, bytes, key, &value));
    if (weft_json_kind_of(value) != WEFT_JSON_STRING)
        return WEFT_ERROR(WEFT_FILE, "\"%.64s\" is %s, not a string", key,
                          weft_json_kind_text(value));
    return weft_json_read_text(value, arena, out);
}
