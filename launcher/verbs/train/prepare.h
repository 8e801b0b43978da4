/* weft prepare in three parts: prepare.c is the verb, prepare_read.c cuts what is given into
 * documents, prepare_encode.c turns them into tokens.
 *
 * One thread reads, several encode, the caller's writes. What passes between them are blocks of
 * documents, in a ring: a block has documents of 1 MiB together, or one that is longer, and all
 * blocks together 4 MiB each, or one document that is longer. Blocks are written in the order in
 * which they were read, and the first error in that order is the one that is told: files and
 * messages are the same for any number of threads. */
#ifndef WEFT_LAUNCHER_VERBS_TRAIN_PREPARE_H
#define WEFT_LAUNCHER_VERBS_TRAIN_PREPARE_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/list.h>

#include "core/dataset/dataset.h"
#include "launcher/text/chat.h"
#include "launcher/text/input.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"

typedef struct weft_prepare_options {
    const char *out;
    weft_tokenizer_source tokenizer;
    const char *jsonl; /* the key of the text, or of the messages; NULL: files are text */
    const char *chat;  /* the form that messages are written in; NULL: lines have text */
    bool append_eod, split_blank_lines, any_bytes, json;
    int num_threads, pack; /* pack: tokens of a sequence; 0: documents follow each other */
    weft_string_list texts;
} weft_prepare_options;

typedef enum weft_document_kind {
    WEFT_DOCUMENT_TEXT,
    WEFT_DOCUMENT_JSON,   /* a line, which ends with a NUL behind it */
    WEFT_DOCUMENT_TOKENS, /* int32 */
} weft_document_kind;

/* The ring and its threads. */
typedef struct weft_prepare_ring weft_prepare_ring;

/* Of the reading thread: appends bytes to the document that is read. */
weft_status weft_prepare_add(weft_prepare_ring *ring, const void *bytes, size_t count) WEFT_CHECKED;
/* Ends it, as that of this line of a file (borrowed); one without bytes is none. num_read: bytes of
 * all files so far, as they are stored. */
weft_status weft_prepare_end(weft_prepare_ring *ring, weft_document_kind kind, const char *path,
                             int64_t line, uint64_t num_read) WEFT_CHECKED;

/* What is read. */
typedef struct weft_prepare_source weft_prepare_source;
struct weft_prepare_source {
    const weft_prepare_options *options;
    weft_status (*read)(weft_prepare_source *, weft_prepare_ring *); /* weft_prepare_read */
    weft_input_list files;
    weft_chat chat;    /* of options->chat */
    int64_t eod;       /* the token at which token files are cut */
    int64_t num_empty; /* files */
};

/* Reads all files. Errors: WEFT_FILE (what is no text, with file and line), WEFT_MEMORY. */
weft_status weft_prepare_read(weft_prepare_source *source, weft_prepare_ring *ring) WEFT_CHECKED;

/* What came out. */
typedef struct weft_prepare_result {
    weft_prepared prepared;
    weft_packing packing;
    weft_known known;                               /* but for the tokenizer's part of the hash */
    int64_t num_empty_documents, num_answer_tokens; /* the latter of chats */
    int64_t num_odd_lines;                          /* of JSON, with halves of surrogate pairs */
    const char *odd_path;                           /* the first of these */
    int64_t odd_line;
    uint64_t num_bytes; /* of text */
    struct XXH64_state_s *hash;
} weft_prepare_result;

/* Where documents go. */
typedef struct weft_prepare_target {
    weft_dataset_writer *writer;
    weft_packer *packer; /* in front of the writer; NULL: none */
} weft_prepare_target;

/* Reads, encodes and writes all documents. */
weft_status weft_prepare_encode(weft_prepare_source *source, const weft_tokenizer *tokenizer,
                                const weft_prepare_target *target,
                                weft_prepare_result *out) WEFT_CHECKED;

#endif
