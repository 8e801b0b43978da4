#include <weft/status.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local weft_error current;

static void add_frame(const char *file, int line, const char *function)
{
    if (current.num_frames < WEFT_ERROR_MAX_FRAMES)
        current.frames[current.num_frames++] =
            (weft_error_where){.file = file, .line = line, .function = function};
}

/* One line: what an argument quotes may hold any byte. */
static void write_line(char *text, size_t bytes, const char *format, va_list args)
{
    vsnprintf(text, bytes, format, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
}

weft_status weft_error_set(const char *file, int line, const char *function, weft_status status,
                           const char *format, ...)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    /* Formatted apart from the record: an argument may be the text of the record it replaces. */
    char text[WEFT_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    write_line(text, sizeof text, format, args);
    va_end(args);

    current.status = status;
    current.is_unknown = false;
    current.is_shared = false;
    current.own_at = 0;
    memcpy(current.text, text, sizeof text);
    current.key[0] = '\0';
    current.num_frames = 0;
    add_frame(file, line, function);
    return status;
}

weft_status weft_error_set_key(const char *file, int line, const char *function, const char *key,
                               const char *format, ...)
{
    char text[WEFT_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    weft_error_set(file, line, function, WEFT_CONFIG, "%s%s%s", key, *text == ' ' ? "" : ": ",
                   text);
    snprintf(current.key, sizeof current.key, "%s", key);
    return WEFT_CONFIG;
}

weft_status weft_error_key(weft_status status, const char *key)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    weft_error_context(status, "%s", key);
    current.status = status;
    snprintf(current.key, sizeof current.key, "%s", key);
    return status;
}

weft_status weft_error_frame(const char *file, int line, const char *function, weft_status status)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    if (current.status == WEFT_OK)
        return weft_error_set(file, line, function, status, "%s", weft_status_text(status));
    add_frame(file, line, function);
    return status;
}

weft_status weft_error_context(weft_status status, const char *format, ...)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    if (current.status == WEFT_OK) {
        current = (weft_error){.status = status};
        snprintf(current.text, sizeof current.text, "%s", weft_status_text(status));
    }
    current.own_at = 0;
    char context[WEFT_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    write_line(context, sizeof context - 2, format, args);
    va_end(args);
    size_t length = strlen(context);
    memcpy(context + length, ": ", 2);
    length += 2;

    /* The context stays whole; the end of a long text gives way. */
    size_t room = sizeof current.text - length - 1, kept = strlen(current.text);
    if (kept > room)
        kept = room;
    memmove(current.text + length, current.text, kept);
    memcpy(current.text, context, length);
    current.text[length + kept] = '\0';
    return status;
}

weft_status weft_error_unknown(weft_status status)
{
    current.is_unknown = status != WEFT_OK;
    return status;
}

weft_status weft_error_of_rank(weft_status status, int rank)
{
    if (status == WEFT_OK || current.own_at > 0)
        return status;
    weft_error_context(status, "rank %d", rank);
    current.found_by = rank;
    current.own_at = snprintf(NULL, 0, "rank %d: ", rank);
    return status;
}

weft_status weft_error_share(weft_status status, int speaker)
{
    current.is_shared = status != WEFT_OK;
    current.speaker = speaker;
    return status;
}

const weft_error *weft_error_get(void)
{
    return &current;
}

void weft_error_clear(void)
{
    current.status = WEFT_OK;
    current.text[0] = current.key[0] = '\0';
    current.is_unknown = false;
    current.is_shared = false;
    current.own_at = 0;
    current.num_frames = 0;
}

void weft_error_take(weft_error *out)
{
    *out = current;
    weft_error_clear();
}

weft_status weft_error_put(const weft_error *error)
{
    current = *error;
    return error->status;
}

static const struct {
    int exit_code;
    const char *text;
} statuses[] = {
#define STATUS_ROW(name, code, words) [WEFT_##name] = {code, words},
    WEFT_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

static size_t status_index(weft_status status)
{
    size_t count = sizeof statuses / sizeof statuses[0];
    return (size_t)status < count ? (size_t)status : (size_t)WEFT_INTERNAL;
}

const char *weft_status_text(weft_status status)
{
    return statuses[status_index(status)].text;
}

int weft_status_exit_code(weft_status status)
{
    return statuses[status_index(status)].exit_code;
}
