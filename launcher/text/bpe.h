/* Byte-level byte-pair encoding with GPT-2's pattern and files.
 *
 * GPT-2's regular expression splits text into words. A word starts as its bytes; encoding joins the
 * neighbouring pair with the earliest merge, until no pair has one. A heap of pairs makes a word of
 * n bytes cost n log n, and a cache gives words that come again. */
#ifndef WEFT_LAUNCHER_TEXT_BPE_H
#define WEFT_LAUNCHER_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

/* A growing list; zero is an empty one. */
typedef struct weft_tokens {
    int32_t *ids;
    size_t count, capacity;
} weft_tokens;

/* Never changes once it is made: any number of threads encode with one, each with its cache. */
typedef struct weft_bpe weft_bpe;
typedef struct weft_bpe_cache weft_bpe_cache;

/* From the texts of encoder.json (ids 0 to n - 1, one of them "<|endoftext|>", all 256 bytes among
 * them) and vocab.bpe (a merge a line, the earliest first); their names are for errors. */
weft_status weft_bpe_create(const char *vocab_name, const char *vocab_text, const char *merge_name,
                            const char *merge_text, weft_bpe **out) WEFT_CHECKED;
void weft_bpe_destroy(weft_bpe *bpe);
int32_t weft_bpe_vocab_size(const weft_bpe *bpe);
int32_t weft_bpe_eod(const weft_bpe *bpe);
weft_status weft_bpe_cache_create(weft_bpe_cache **out) WEFT_CHECKED;
void weft_bpe_cache_destroy(weft_bpe_cache *cache);
/* As weft_encoder_encode and weft_tokenizer_piece. */
weft_status weft_bpe_encode(const weft_bpe *bpe, weft_bpe_cache *cache, const char *text,
                            size_t bytes, weft_tokens *out) WEFT_CHECKED;
const char *weft_bpe_piece(const weft_bpe *bpe, int32_t id, size_t *bytes);

weft_status weft_tokens_add(weft_tokens *tokens, int32_t id) WEFT_CHECKED;
/* Makes room for `more` further ids. */
weft_status weft_tokens_reserve(weft_tokens *tokens, size_t more) WEFT_CHECKED;
void weft_tokens_release(weft_tokens *tokens);

#endif
