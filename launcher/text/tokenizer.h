/* Text to tokens and back.
 *
 * `bytes`: a token a byte, and 256 for the end of a document. `gpt2`: byte-level BPE (Sennrich et
 * al. 2016, Radford et al. 2019) from GPT-2's vocabulary (encoder.json) and merges (vocab.bpe).
 * Encoding any bytes and decoding the tokens gives the same bytes; bytes that are not UTF-8 are
 * encoded one by one. The end-of-document token never comes from text: "<|endoftext|>" in a text
 * is 13 ordinary characters.
 *
 * `weft prepare` writes PREFIX.json beside a dataset, with the tokenizer as section "tokenizer" and
 * the counts as section "dataset"; training and generating read it.
 *
 * Threads: a tokenizer never changes once it is made, and any number of threads may use it. Each
 * thread that encodes has an encoder of its own, which caches words. */
#ifndef WEFT_LAUNCHER_TEXT_TOKENIZER_H
#define WEFT_LAUNCHER_TEXT_TOKENIZER_H

#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"
#include "core/options/options.h"
#include "launcher/text/bpe.h"

typedef enum weft_tokenizer_kind {
    WEFT_TOKENIZER_BYTES,
    WEFT_TOKENIZER_GPT2,
} weft_tokenizer_kind;

/* What identifies a tokenizer: option section "tokenizer". Files and hashes are NULL for bytes. */
typedef struct weft_tokenizer_info {
    int kind; /* weft_tokenizer_kind */
    int64_t vocab_size;
    int64_t eod;                                     /* the end-of-document token */
    const char *vocab_file, *merge_file;             /* absolute paths */
    const char *vocab_file_xxh64, *merge_file_xxh64; /* 16 hexadecimal digits */
} weft_tokenizer_info;

/* What `weft prepare` counted: option section "dataset". */
typedef struct weft_prepared {
    int64_t documents, tokens;
    bool append_eod; /* each document ends with the eod token */
} weft_prepared;

typedef struct weft_tokenizer weft_tokenizer;
typedef struct weft_encoder weft_encoder;

/* "bytes" or "gpt2"; WEFT_CONFIG with the nearest name otherwise. */
weft_status weft_tokenizer_kind_parse(const char *name, weft_tokenizer_kind *out) WEFT_CHECKED;
const char *weft_tokenizer_kind_name(weft_tokenizer_kind kind);

/* The files are for gpt2 alone. Errors: WEFT_CONFIG (a file missing from the call), WEFT_FILE
 * (unreadable or inconsistent: the file, the line and the fault). */
weft_status weft_tokenizer_create(weft_tokenizer_kind kind, const char *vocab_file,
                                  const char *merge_file, weft_tokenizer **out) WEFT_CHECKED;
/* The tokenizer that `info` identifies; refuses files that have changed since (WEFT_FILE). */
weft_status weft_tokenizer_open(const weft_tokenizer_info *info, weft_tokenizer **out) WEFT_CHECKED;
void weft_tokenizer_destroy(weft_tokenizer *tokenizer);
/* Borrowed. */
const weft_tokenizer_info *weft_tokenizer_get_info(const weft_tokenizer *tokenizer);

/* One a thread; the tokenizer must outlive it. */
weft_status weft_encoder_create(const weft_tokenizer *tokenizer, weft_encoder **out) WEFT_CHECKED;
void weft_encoder_destroy(weft_encoder *encoder);
/* Appends the tokens of a document, of `bytes` bytes of text, to `out`; the end-of-document token
 * is not among them. The same text gives the same tokens whatever was encoded before. */
weft_status weft_encoder_encode(weft_encoder *encoder, const char *text, size_t bytes,
                                weft_tokens *out) WEFT_CHECKED;
/* The bytes of one token, borrowed; a character may need several tokens. The eod token and ids
 * outside the vocabulary (a padded one) have none. */
const char *weft_tokenizer_piece(const weft_tokenizer *tokenizer, int32_t id, size_t *bytes);
/* The text of some tokens, NUL-terminated, in the arena. */
weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                  weft_arena *arena, char **out, size_t *out_bytes) WEFT_CHECKED;

/* The option sections of a PREFIX.json, with these targets. */
void weft_prepared_sections(weft_tokenizer_info *info, weft_prepared *prepared,
                            weft_option_section out[2]);
/* Reads a PREFIX.json (`path` is the file itself). Finds vocabulary files that have moved with it
 * beside it. Strings live in the arena. WEFT_FILE when there is none, WEFT_CONFIG when it is
 * damaged. */
weft_status weft_prepared_read(const char *path, weft_arena *arena, weft_tokenizer_info *info,
                               weft_prepared *prepared) WEFT_CHECKED;
/* That of a dataset, WEFT_FILE also when it is damaged; all zero where there is none, as of
 * Megatron's datasets. */
weft_status weft_prepared_find(const char *prefix, weft_arena *arena, weft_tokenizer_info *info,
                               weft_prepared *prepared) WEFT_CHECKED;
/* A text, in the arena, that differs between tokenizers and not with the paths of their files: a
 * dataset may be moved. "" for none. */
weft_status weft_tokenizer_identity(const weft_tokenizer_info *info, weft_arena *arena,
                                    const char **out) WEFT_CHECKED;

#endif
