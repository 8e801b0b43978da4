#include "launcher/text/split.h"

typedef struct splitting {
    const weft_split *splits;
    size_t count;
    weft_matcher *matcher;
    weft_split_word word;
    void *to;
} splitting;

/* One rule on one text. */
typedef struct rule_run {
    const splitting *all;
    size_t rule;
    weft_bytes text;
    size_t start, end; /* of what is not given yet; none: both the same */
    bool is_match;     /* what that is */
} rule_run;

static weft_status apply_rules(const splitting *s, size_t rule, weft_bytes text);

/* Gives the part of the text to the rule behind. */
static weft_status give(const rule_run *r, size_t start, size_t end)
{
    return apply_rules(r->all, r->rule + 1, (weft_bytes){r->text.text + start, end - start});
}

static weft_status give_held(rule_run *r)
{
    const size_t start = r->start;
    r->start = r->end;
    return give(r, start, r->end);
}

/* Whether a part belongs to the part that is held before it. */
static bool joins(const rule_run *r, weft_split_behavior behavior, bool is_match)
{
    if (r->start == r->end)
        return false;
    return behavior == WEFT_SPLIT_CONTIGUOUS             ? is_match == r->is_match
           : behavior == WEFT_SPLIT_MERGED_WITH_PREVIOUS ? is_match && !r->is_match
                                                         : !is_match && r->is_match;
}

/* The next part of the text. */
static weft_status add_part(rule_run *r, size_t start, size_t end, bool found)
{
    const weft_split *split = &r->all->splits[r->rule];
    const bool is_match = found != split->invert;
    if (start == end)
        return WEFT_OK;
    if (split->behavior == WEFT_SPLIT_ISOLATED)
        return give(r, start, end);
    if (split->behavior == WEFT_SPLIT_REMOVED)
        return is_match ? WEFT_OK : give(r, start, end);
    const bool is_joined = joins(r, split->behavior, is_match);
    if (!is_joined) {
        WEFT_TRY(give_held(r));
        r->start = start;
    }
    r->end = end;
    r->is_match = is_match;
    return WEFT_OK;
}

static weft_status find(const rule_run *r, size_t from, size_t *start, size_t *end)
{
    const weft_split *split = &r->all->splits[r->rule];
    if (split->pattern)
        return weft_pattern_find(split->pattern, r->all->matcher, r->text, from, start, end);
    *start = *end = weft_bytes_find(r->text, from, split->literal);
    if (*start < r->text.bytes)
        *end += split->literal.bytes;
    return WEFT_OK;
}

static weft_status apply_rules(const splitting *s, size_t rule, weft_bytes text)
{
    if (text.bytes == 0)
        return WEFT_OK;
    if (rule == s->count)
        return s->word(s->to, text);
    rule_run r = {.all = s, .rule = rule, .text = text};
    for (size_t at = 0, start, end; at < text.bytes; at = end) {
        WEFT_TRY(find(&r, at, &start, &end));
        WEFT_TRY(add_part(&r, at, start, false));
        WEFT_TRY(add_part(&r, start, end, true));
    }
    return give_held(&r);
}

weft_status weft_split_text(const weft_split *splits, size_t count, weft_matcher *matcher,
                            weft_bytes text, weft_split_word word, void *to)
{
    const splitting s = {splits, count, matcher, word, to};
    return apply_rules(&s, 0, text);
}
