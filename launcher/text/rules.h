/* From text to tokens by a vocabulary's rules, and back.
 *
 * First the text is cut where added tokens stand in it. What lies between is changed, cut again by
 * the added tokens that are looked for in changed text, changed as words need it, and cut into
 * words, which are encoded by pairs. Bytes that are not UTF-8 are encoded apart, as they are. */
#ifndef WEFT_LAUNCHER_TEXT_RULES_H
#define WEFT_LAUNCHER_TEXT_RULES_H

#include <weft/status.h>

#include "launcher/text/bpe.h"
#include "launcher/text/bytes.h"

/* A regular expression as tokenizer.json has them: Oniguruma's, run by PCRE2.
 *
 * What both read alike stays as it is; \s becomes Unicode's White_Space, a script's \p{Name} loses
 * PCRE2's script extensions, ^ and $ are of lines. What Oniguruma reads otherwise than PCRE2, or is
 * not known to read alike, is refused by name. Never changes once it is made; any number of threads
 * match with one. */
typedef struct weft_pattern weft_pattern;
/* What a thread matches with: any pattern, one match at a time. */
typedef struct weft_matcher weft_matcher;

/* Every match has a character at least. WEFT_FILE: the construct (the error names no file). */
weft_status weft_pattern_create(const char *text, weft_pattern **out) WEFT_CHECKED;
void weft_pattern_destroy(weft_pattern *pattern);

weft_status weft_matcher_create(weft_matcher **out) WEFT_CHECKED;
void weft_matcher_destroy(weft_matcher *matcher);

/* The first match that begins at `from` or behind, as offsets into the text; *start is text.bytes
 * where there is none. The text is valid UTF-8. */
weft_status weft_pattern_find(const weft_pattern *pattern, weft_matcher *matcher, weft_bytes text,
                              size_t from, size_t *start, size_t *end) WEFT_CHECKED;

typedef enum weft_change_kind {
    WEFT_CHANGE_NFC, /* Unicode's normal forms */
    WEFT_CHANGE_NFD,
    WEFT_CHANGE_NFKC,
    WEFT_CHANGE_NFKD,
    WEFT_CHANGE_REPLACE,
    WEFT_CHANGE_PREPEND,
} weft_change_kind;

typedef struct weft_change {
    weft_change_kind kind;
    weft_pattern *pattern; /* REPLACE: owned by whoever made it; NULL: `from` */
    weft_bytes from, to;   /* REPLACE; PREPEND: `to` */
    bool unless_there;     /* PREPEND: not to a text that begins so */
    bool first_alone;      /* PREPEND: to what begins a document */
} weft_change;

/* Where a text stands. */
typedef struct weft_change_place {
    bool begins_document;
    bool goes_on; /* behind bytes that are not UTF-8: nothing is prepended */
} weft_change_place;

/* The text with all changes made, in order: borrowed from `room` or the text itself. It is valid
 * UTF-8 where the text is. */
weft_status weft_change_text(const weft_change *changes, size_t count, weft_matcher *matcher,
                             weft_change_place place, weft_bytes text, weft_buffer room[2],
                             weft_bytes *out) WEFT_CHECKED;

typedef struct weft_added_token {
    weft_bytes text; /* not empty */
    uint32_t id;
    bool takes_spaces_before, takes_spaces_behind; /* lstrip, rstrip */
    bool single_word;                              /* only with no letter on either side */
} weft_added_token;

typedef struct weft_added {
    weft_added_token *tokens; /* in the order of their bytes */
    size_t count;
    bool begins[256]; /* some token begins with this byte */
} weft_added;

/* Sorts the tokens, which are borrowed. */
void weft_added_init(weft_added *added, weft_added_token *tokens, size_t count);

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
