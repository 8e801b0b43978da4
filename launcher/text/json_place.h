/* A value of a JSON file and where it stands: errors name the file and the path to the value, as
 * "tokenizer.json: pre_tokenizer.pretokenizers[1].behavior". */
#ifndef WEFT_LAUNCHER_TEXT_JSON_PLACE_H
#define WEFT_LAUNCHER_TEXT_JSON_PLACE_H

#include "core/json.h"
#include "launcher/text/bytes.h"

typedef struct weft_json_place {
    const char *file;
    const struct weft_json_place *parent; /* NULL: the whole file */
    weft_bytes key;                       /* text NULL: element `index` of an array */
    size_t index;
    weft_json_span value; /* start NULL: not there */
} weft_json_place;

/* WEFT_FILE: the file, the path and this text. */
weft_status weft_json_refuse(const weft_json_place *at, const char *format, ...)
    WEFT_PRINTF(2, 3) WEFT_CHECKED;
/* The same of what the file may hold and Weft does not know. */
weft_status weft_json_refuse_unknown(const weft_json_place *at, const char *format, ...)
    WEFT_PRINTF(2, 3) WEFT_CHECKED;
/* The whole of a text, which must be an object. */
weft_status weft_json_whole(const char *file, const char *text, weft_json_place *out) WEFT_CHECKED;

/* The members of an object, by the names "type|behavior", into as many places, which borrow both.
 * One that is missing is not there, nor is a null. Refuses a value that is no object, other members
 * and a member that stands twice. */
weft_status weft_json_members(const weft_json_place *object, const char *names,
                              weft_json_place *out) WEFT_CHECKED;
/* One member of an object that may have others. */
weft_json_place weft_json_member(const weft_json_place *object, const char *name);
bool weft_json_is_there(const weft_json_place *at);
/* Refuses all but null and an array; *count of its elements. */
weft_status weft_json_count(const weft_json_place *array, size_t *count) WEFT_CHECKED;
/* Steps through an array; `cursor` starts as NULL. `out` borrows `array`. */
bool weft_json_each(const weft_json_place *array, const char **cursor, weft_json_place *out);

/* In the arena. Refuse another kind, and a value that is not there. */
weft_status weft_json_get_text(const weft_json_place *at, weft_arena *arena,
                               weft_bytes *out) WEFT_CHECKED;
weft_status weft_json_get_whole(const weft_json_place *at, int64_t most, int64_t *out) WEFT_CHECKED;
/* `out` stays where there is none. */
weft_status weft_json_get_flag(const weft_json_place *at, bool *out) WEFT_CHECKED;
/* Which of `names` ("a|b|c") the text is; refuses others. */
weft_status weft_json_get_choice(const weft_json_place *at, const char *names,
                                 int *out) WEFT_CHECKED;

#endif
