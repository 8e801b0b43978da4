/* Text to tokens and back.
 *
 * `bytes`: a token a byte, and 256 for the end of a document. `gpt2`: byte-level BPE (Sennrich et
 * al. 2016, Radford et al. 2019) from GPT-2's vocabulary (encoder.json) and merges (vocab.bpe).
 * `tokenizer.json`: Hugging Face's file of that name (launcher/text/tokenizer_json.h).
 * Encoding any bytes by the first two and decoding the tokens gives the same bytes; bytes that are
 * not UTF-8 are encoded one by one. Their end-of-document token never comes from text:
 * "<|endoftext|>" in a text is 13 ordinary characters. Of a tokenizer.json added tokens, special
 * ones too, stand in text as they are written.
 *
 * `weft prepare` writes PREFIX.json beside a dataset, with the tokenizer as section "tokenizer" and
 * the counts as section "dataset"; training and generating read it. A tokenizer.json is copied to
 * PREFIX.tokenizer.json, and from there into checkpoints, inside the tokenizer's description.
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
    WEFT_TOKENIZER_JSON,
} weft_tokenizer_kind;

/* What identifies a tokenizer: option section "tokenizer". Files and hashes are NULL for bytes. */
typedef struct weft_tokenizer_info {
    int kind; /* weft_tokenizer_kind */
    int64_t vocab_size;
    int64_t eod;                         /* the end-of-document token */
    bool special_tokens;                 /* documents have those of the file's post_processor */
    const char *vocab_file, *merge_file; /* absolute paths; of a tokenizer.json the first */
    const char *vocab_file_xxh64, *merge_file_xxh64; /* 16 hexadecimal digits */
    const char *vocab_text; /* the first file itself, in checkpoints; NULL: read it */
} weft_tokenizer_info;

/* What a user names a tokenizer by; zero is bytes. */
typedef struct weft_tokenizer_source {
    const char *name; /* bytes, gpt2 or the path of a tokenizer.json; NULL: bytes */
    const char *vocab_file, *merge_file; /* of gpt2 alone */
    /* Of a tokenizer.json alone: the token that ends a document, as it is written (NULL: eos_token
     * of the tokenizer_config.json beside the file, else the one special token that is called as
     * such a token is), and whether documents have no tokens of the post_processor. */
    const char *eod;
    bool no_special_tokens;
} weft_tokenizer_source;

/* What `weft prepare` counted: option section "dataset". */
typedef struct weft_prepared {
    int64_t documents, tokens;
    bool append_eod;       /* each document ends with the eod token */
    int64_t packed_length; /* of sequences that documents are packed in; 0: they are not */
} weft_prepared;

typedef struct weft_tokenizer weft_tokenizer;
typedef struct weft_encoder weft_encoder;

const char *weft_tokenizer_kind_name(weft_tokenizer_kind kind);

/* Errors: WEFT_CONFIG (an unknown name, with the nearest one; a file missing from the call, or one
 * too many; no end-of-document token), WEFT_FILE (unreadable, inconsistent or not known: the file,
 * the place and the fault). */
weft_status weft_tokenizer_create(const weft_tokenizer_source *source,
                                  weft_tokenizer **out) WEFT_CHECKED;
/* The tokenizer that `info` identifies; refuses files that have changed since (WEFT_FILE). */
weft_status weft_tokenizer_open(const weft_tokenizer_info *info, weft_tokenizer **out) WEFT_CHECKED;
/* Whether an error of weft_tokenizer_create, this thread's last, is of what is not known here or
 * not said, such as the end-of-document token, and not of a broken file. */
bool weft_tokenizer_is_unknown(weft_status status);
void weft_tokenizer_destroy(weft_tokenizer *tokenizer);
/* Writes the tokenizer.json to PREFIX.tokenizer.json, which is its file from then on; other kinds
 * have none to write (*out_file NULL). Before other threads use the tokenizer. */
weft_status weft_tokenizer_keep(weft_tokenizer *tokenizer, const char *prefix,
                                const char **out_file) WEFT_CHECKED;
/* Borrowed. */
const weft_tokenizer_info *weft_tokenizer_get_info(const weft_tokenizer *tokenizer);

/* The id of an added token, or of one in the vocabulary, by its text; -1: none. Of a tokenizer.json
 * alone. */
int32_t weft_tokenizer_find(const weft_tokenizer *tokenizer, const char *text);

/* One a thread; the tokenizer must outlive it. */
weft_status weft_encoder_create(const weft_tokenizer *tokenizer, weft_encoder **out) WEFT_CHECKED;
void weft_encoder_destroy(weft_encoder *encoder);
/* Appends the tokens of a document, of `bytes` bytes of text, to `out`. The end-of-document token
 * is among them only where a tokenizer.json puts it there. The same text gives the same tokens
 * whatever was encoded before. */
weft_status weft_encoder_encode(weft_encoder *encoder, const char *text, size_t bytes,
                                weft_tokens *out) WEFT_CHECKED;
/* Of a document that goes on: without what stands behind a whole one. */
weft_status weft_encoder_prompt(weft_encoder *encoder, const char *text, size_t bytes,
                                weft_tokens *out) WEFT_CHECKED;
/* The bytes of one token, borrowed; a character may need several tokens. The eod token, special
 * ones and ids outside the vocabulary (a padded one) have none. */
const char *weft_tokenizer_piece(const weft_tokenizer *tokenizer, int32_t id, size_t *bytes);
/* The text of some tokens, NUL-terminated, in the arena. */
weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                  weft_arena *arena, char **out, size_t *out_bytes) WEFT_CHECKED;

/* The option sections of a PREFIX.json, with these targets. */
void weft_prepared_sections(weft_tokenizer_info *info, weft_prepared *prepared,
                            weft_option_section out[2]);
/* The description with a tokenizer.json inside, for a checkpoint: JSON, in the arena. `path` is
 * PREFIX.json. Errors: as weft_prepared_read. */
weft_status weft_prepared_pack(const char *path, weft_arena *arena, const char **out) WEFT_CHECKED;
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
