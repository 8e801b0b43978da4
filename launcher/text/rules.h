/* From text to tokens by a vocabulary's rules, and back.
 *
 * First the text is cut where added tokens stand in it. What lies between is changed, cut again by
 * the added tokens that are looked for in changed text, changed as words need it, and cut into
 * words, which are encoded by pairs. Bytes that are not UTF-8 are encoded apart, as they are. */
#ifndef WEFT_LAUNCHER_TEXT_RULES_H
#define WEFT_LAUNCHER_TEXT_RULES_H

#include "launcher/text/added.h"
#include "launcher/text/bpe.h"
#include "launcher/text/change.h"
#include "launcher/text/pattern.h"

enum { WEFT_MOST_STEPS = 16 };

/* What becomes of what a rule finds (Hugging Face's SplitDelimiterBehavior). */
typedef enum weft_split_behavior {
    WEFT_SPLIT_ISOLATED,             /* a word of its own */
    WEFT_SPLIT_REMOVED,              /* nothing */
    WEFT_SPLIT_CONTIGUOUS,           /* neighbours are one word */
    WEFT_SPLIT_MERGED_WITH_PREVIOUS, /* the end of the word before */
    WEFT_SPLIT_MERGED_WITH_NEXT,     /* the beginning of the word behind */
} weft_split_behavior;

typedef struct weft_split {
    weft_pattern *pattern; /* owned by whoever made it; NULL: the literal */
    weft_bytes literal;
    weft_split_behavior behavior;
    bool invert; /* what lies between is what the rule finds */
} weft_split;

typedef struct weft_changes {
    weft_change steps[WEFT_MOST_STEPS];
    size_t count;
} weft_changes;

/* What is cut off a whole text that is decoded: up to so many characters of this kind. */
typedef struct weft_strip {
    weft_bytes character; /* text NULL: none */
    int64_t start, stop;
} weft_strip;

/* Never changes once it is read: any number of threads may use it. Zero is one that has nothing. */
typedef struct weft_rules {
    weft_added added;          /* looked for in the text as it is */
    weft_changes changes;      /* the normalizer's */
    weft_added added_changed;  /* looked for in changed text */
    weft_changes word_changes; /* the pre-tokenizer's */
    weft_split splits[WEFT_MOST_STEPS];
    size_t num_splits;
    weft_bpe_tables tables;
    const weft_bpe *bpe;
    weft_bytes *pieces; /* by id, tables.num_tokens: what a token decodes to; NULL: nothing */
    weft_strip strip;
    weft_tokens front, back; /* of a whole document */
} weft_rules;

/* What is not the arena's. */
void weft_rules_release(weft_rules *rules);

/* GPT-2's own files: encoder.json (ids 0 to n - 1, one of them "<|endoftext|>", all 256 bytes among
 * them) and vocab.bpe (a merge a line, the earliest first); their names are for errors. Rules that
 * failed are released all the same. */
weft_status weft_gpt2_read(const char *vocab_name, const char *vocab_text, const char *merge_name,
                           const char *merge_text, weft_arena *arena, weft_rules *out,
                           uint32_t *out_eod) WEFT_CHECKED;

/* What a thread encodes with. */
typedef struct weft_rules_worker weft_rules_worker;
weft_status weft_rules_worker_create(weft_rules_worker **out) WEFT_CHECKED;
void weft_rules_worker_destroy(weft_rules_worker *worker);

/* Appends the tokens of a text, without front and back. */
weft_status weft_rules_encode(const weft_rules *rules, weft_rules_worker *worker, weft_bytes text,
                              weft_tokens *out) WEFT_CHECKED;

#endif
