/* Chats: messages with roles, written as the simplest templates of chat models write them, and
 * which of their tokens a model has to learn to say.
 *
 *   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n                                     of each
 *   llama3   <|begin_of_text|>, and of each
 *            <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, CONTENT stripped
 *
 * Nothing else is written: no system message of a template's own. What bears a loss is the content
 * of the messages of role "assistant" and the token that ends each. */
#ifndef WEFT_LAUNCHER_TEXT_CHAT_H
#define WEFT_LAUNCHER_TEXT_CHAT_H

#include "launcher/text/tokenizer.h"

typedef struct weft_chat_form weft_chat_form;

typedef struct weft_chat {
    const weft_chat_form *form; /* NULL: none */
    const weft_tokenizer *tokenizer;
    int32_t header, close; /* the token that a message's header begins or ends with, and its end */
} weft_chat;

/* WEFT_CONFIG: a name that is no form's, a token that the tokenizer has not, or one that ends both
 * messages and documents. */
weft_status weft_chat_open(const char *name, const weft_tokenizer *tokenizer,
                           weft_chat *out) WEFT_CHECKED;
/* Appends the tokens of a line's messages, an array of {"role", "content"} under `key`, and as many
 * of 1 and 0 to `bears`: whether each bears a loss. *num_halves: of surrogate pairs. WEFT_FILE:
 * what is wrong, without the line's place. */
weft_status weft_chat_encode(const weft_chat *chat, weft_encoder *encoder, const char *line,
                             size_t bytes, const char *key, weft_arena *scratch, weft_tokens *out,
                             weft_tokens *bears, size_t *num_halves) WEFT_CHECKED;

#endif
