#include "launcher/text/chat.h"

#include <string.h>

#include "launcher/text/json_lines.h"

struct weft_chat_form {
    const char *name, *first;    /* first: in front of all */
    const char *open, *open_end; /* around the role; "": no token ends it */
    const char *gap, *close, *behind;
    bool strips;
};

static const weft_chat_form forms[] = {
    {"chatml", "", "<|im_start|>", "", "\n", "<|im_end|>", "\n", false},
    {"llama3", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "\n\n",
     "<|eot_id|>", "", true}};
enum { NUM_FORMS = sizeof forms / sizeof *forms };

static weft_status find_token(const weft_chat *chat, const char *text, int32_t *out)
{
    *out = *text ? weft_tokenizer_find(chat->tokenizer, text) : 0;
    return *out >= 0 ? WEFT_OK
                     : WEFT_ERROR(WEFT_CONFIG,
                                  "--chat %s: the tokenizer has no token %s: it is of another "
                                  "template",
                                  chat->form->name, text);
}

weft_status weft_chat_open(const char *name, const weft_tokenizer *tokenizer, weft_chat *out)
{
    const char *names[NUM_FORMS];
    int32_t id;
    *out = (weft_chat){.tokenizer = tokenizer};
    for (int i = 0; i < NUM_FORMS; i++) {
        names[i] = forms[i].name;
        if (strcmp(name, names[i]) == 0)
            out->form = &forms[i];
    }
    if (!out->form) {
        const char *near = weft_nearest_name(name, names, NUM_FORMS);
        return WEFT_ERROR(WEFT_CONFIG, "--chat %.64s: Weft writes chatml and llama3%s%s%s", name,
                          near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    const weft_chat_form *f = out->form;
    WEFT_TRY(find_token(out, f->first, &id));
    WEFT_TRY(find_token(out, f->open, &id));
    WEFT_TRY(find_token(out, *f->open_end ? f->open_end : f->open, &out->header));
    WEFT_TRY(find_token(out, f->close, &out->close));
    if (out->close == weft_tokenizer_get_info(tokenizer)->eod)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--chat %s: %s ends a message, so no document: --eod-token would name "
                          "another",
                          name, f->close);
    return WEFT_OK;
}

/* --- a message ----------------------------------------------------------------------------- */

typedef struct message {
    weft_json_characters role, content;
} message;

static weft_status read_member(weft_json_span object, const char *name, size_t index,
                               weft_arena *scratch, weft_json_characters *out)
{
    weft_json_span key, value, found = {NULL, 0};
    const char *cursor = NULL;
    while (weft_json_next(object, &cursor, &key, &value))
        if (key.bytes == strlen(name) + 2 && memcmp(key.start + 1, name, strlen(name)) == 0)
            found = value;
    if (!found.start || weft_json_kind_of(found) != WEFT_JSON_STRING)
        return WEFT_ERROR(WEFT_FILE, "message %zu: \"%s\" is %s, not a string", index, name,
                          found.start ? weft_json_kind_text(found) : "missing");
    return weft_json_read_text(found, scratch, out);
}

/* The bytes of a character that Python's str.strip takes away at `at`; 0: of none. */
static size_t space_at(const char *at, const char *end)
{
    static const char *const wide[] = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                       "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                       "\xe2\x81\x9f", "\xe3\x80\x80"};
    if (at >= end)
        return 0;
    if ((*at >= '\t' && *at <= '\r') || (*at >= 0x1c && *at <= ' '))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if ((size_t)(end - at) >= strlen(wide[i]) && memcmp(at, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    return end - at >= 3 && memcmp(at, "\xe2\x80", 2) == 0 && (at[2] & 0xff) <= 0x8a ? 3 : 0;
}

static void strip(weft_json_characters *text)
{
    const char *at = text->bytes, *end = at + text->num_bytes;
    for (size_t bytes; (bytes = space_at(at, end)) > 0;)
        at += bytes;
    for (bool found = true; found && end > at;) {
        found = false;
        for (size_t bytes = 1; bytes <= 3 && !found && (size_t)(end - at) >= bytes; bytes++)
            if (space_at(end - bytes, end) == bytes) {
                end -= bytes;
                found = true;
            }
    }
    text->bytes = at;
    text->num_bytes = (size_t)(end - at);
}

/* The message as text: strings may hold zeros. */
static weft_status write_text(const weft_chat *chat, const message *m, bool is_first,
                              weft_arena *scratch, char **out, size_t *out_bytes)
{
    const weft_chat_form *f = chat->form;
    const struct {
        const char *bytes;
        size_t count;
    } parts[] = {{f->first, is_first ? strlen(f->first) : 0},
                 {f->open, strlen(f->open)},
                 {m->role.bytes, m->role.num_bytes},
                 {f->open_end, strlen(f->open_end)},
                 {f->gap, strlen(f->gap)},
                 {m->content.bytes, m->content.num_bytes},
                 {f->close, strlen(f->close)},
                 {f->behind, strlen(f->behind)}};
    enum { NUM_PARTS = sizeof parts / sizeof *parts };
    size_t bytes = 0;
    char *to;
    for (int i = 0; i < NUM_PARTS; i++)
        bytes += parts[i].count;
    WEFT_TRY(WEFT_ARRAY(scratch, bytes + 1, &to));
    *out = to;
    *out_bytes = bytes;
    for (int i = 0; i < NUM_PARTS; i++) {
        memcpy(to, parts[i].bytes, parts[i].count);
        to += parts[i].count;
    }
    return WEFT_OK;
}

/* The first of a message's tokens with a byte of the content, as Hugging Face's mask has it. */
static size_t find_content(const weft_chat *chat, const message *m, const weft_tokens *tokens,
                           size_t at)
{
    const weft_chat_form *f = chat->form;
    size_t left = strlen(f->gap) + (*f->open_end ? 0 : m->role.num_bytes), bytes;
    while (at < tokens->count && tokens->ids[at] != chat->header)
        at++;
    for (at++; at < tokens->count && left > 0; at++, left -= bytes) {
        (void)weft_tokenizer_piece(chat->tokenizer, tokens->ids[at], &bytes);
        if (bytes > left)
            break;
    }
    return at;
}

static weft_status mark(const weft_chat *chat, const message *m, const weft_tokens *tokens,
                        size_t first, weft_tokens *bears)
{
    static const char assistant[] = "assistant";
    size_t begin = tokens->count, end = tokens->count;
    if (m->role.num_bytes == sizeof assistant - 1 &&
        memcmp(m->role.bytes, assistant, sizeof assistant - 1) == 0) {
        begin = find_content(chat, m, tokens, first);
        while (end > begin && tokens->ids[end - 1] != chat->close)
            end--;
    }
    for (size_t i = first; i < tokens->count; i++)
        WEFT_TRY(weft_tokens_add(bears, i >= begin && i < end));
    return WEFT_OK;
}

static weft_status add_message(const weft_chat *chat, weft_encoder *encoder, weft_json_span object,
                               size_t index, weft_arena *scratch, weft_tokens *out,
                               weft_tokens *bears, size_t *num_halves)
{
    const size_t before = out->count;
    message m;
    char *text = NULL;
    size_t bytes = 0;
    if (weft_json_kind_of(object) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_FILE, "message %zu is %s, not an object", index,
                          weft_json_kind_text(object));
    WEFT_TRY(read_member(object, "role", index, scratch, &m.role));
    WEFT_TRY(read_member(object, "content", index, scratch, &m.content));
    if (chat->form->strips)
        strip(&m.content);
    *num_halves += m.content.num_halves + m.role.num_halves;
    WEFT_TRY(write_text(chat, &m, index == 0, scratch, &text, &bytes));
    WEFT_TRY(weft_encoder_encode(encoder, text, bytes, out));
    return mark(chat, &m, out, before, bears);
}

weft_status weft_chat_encode(const weft_chat *chat, weft_encoder *encoder, const char *line,
                             size_t bytes, const char *key, weft_arena *scratch, weft_tokens *out,
                             weft_tokens *bears, size_t *num_halves)
{
    weft_json_span messages, object;
    const char *cursor = NULL;
    *num_halves = 0;
    WEFT_TRY(weft_json_line_value(line, bytes, key, &messages));
    if (weft_json_kind_of(messages) != WEFT_JSON_ARRAY)
        return WEFT_ERROR(WEFT_FILE, "\"%.64s\" is %s, not an array of messages", key,
                          weft_json_kind_text(messages));
    for (size_t i = 0; weft_json_next(messages, &cursor, NULL, &object); i++)
        WEFT_TRY(add_message(chat, encoder, object, i, scratch, out, bears, num_halves));
    return WEFT_OK;
}
