/* Cutting a text into words, by one rule behind the other. */
#ifndef WEFT_LAUNCHER_TEXT_SPLIT_H
#define WEFT_LAUNCHER_TEXT_SPLIT_H

#include "launcher/text/pattern.h"

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

typedef weft_status (*weft_split_word)(void *to, weft_bytes word);

/* Gives each word, in order; none is empty. The text is valid UTF-8. */
weft_status weft_split_text(const weft_split *splits, size_t count, weft_matcher *matcher,
                            weft_bytes text, weft_split_word word, void *to) WEFT_CHECKED;

#endif
