#include "launcher/text/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct weft_pattern {
    pcre2_code *code;
};

struct weft_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* --- Oniguruma's words in PCRE2's ---------------------------------------------------------- */

/* Unicode's White_Space, in a class; PCRE2's own \s would add U+180E. */
#define SPACE "\\p{Z}\\x{09}-\\x{0d}\\x{85}"

typedef struct translation {
    const char *at; /* what is still to be read */
    FILE *out;
    bool in_class;
    int depth, caseless; /* of groups; of the outermost (?i:, 0: in none */
} translation;

static weft_status refuse(const translation *t, size_t bytes, const char *why)
{
    const size_t left = strlen(t->at);
    return WEFT_ERROR(WEFT_FILE, "the pattern's \"%.*s\" %s", (int)(bytes < left ? bytes : left),
                      t->at, why);
}

/* \p{Name}, \P{Name}, \p{^Name}: names of two letters are categories, longer ones scripts. */
static weft_status translate_property(translation *t)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    const char *name = t->at + 2 + (t->at[2] == '{') + (t->at[2] == '{' && t->at[3] == '^');
    const size_t bytes = strspn(name, letters);
    if (t->at[2] != '{' || name[bytes] != '}')
        return refuse(t, 4, "is not known: \\p{Name} is");
    fprintf(t->out, "\\%c{%s%s%.*s}", t->at[1], name[-1] == '^' ? "^" : "", bytes > 2 ? "sc:" : "",
            (int)bytes, name);
    t->at = name + bytes + 1;
    return WEFT_OK;
}

/* \uHHHH and \x{H...}. */
static weft_status translate_code(translation *t)
{
    const bool has_braces = t->at[1] == 'x';
    const char *code = t->at + 2 + has_braces;
    const size_t digits =
        t->at[2] == '{' || !has_braces ? strspn(code, "0123456789abcdefABCDEF") : 0;
    const size_t bytes = has_braces ? digits : 4;
    if (t->caseless)
        return refuse(t, 6, "is not known where case is ignored");
    if (digits < bytes || bytes == 0 || (has_braces && code[bytes] != '}'))
        return refuse(t, 6, "is not \\uHHHH or \\x{HHHH}");
    fprintf(t->out, "\\x{%.*s}", (int)bytes, code);
    t->at = code + bytes + has_braces;
    return WEFT_OK;
}

static weft_status translate_escape(translation *t)
{
    const char c = t->at[1];
    const char *known = NULL;
    if (c == 'p' || c == 'P')
        return translate_property(t);
    if (c == 'u' || c == 'x')
        return translate_code(t);
    if (c == 's')
        known = t->in_class ? SPACE : "[" SPACE "]";
    else if (c == 'S' && !t->in_class)
        known = "[^" SPACE "]";
    else if (c == 'd' || c == 'D')
        known = c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
    else if (c == 'v')
        known = "\\x{0b}";
    if (!known && (!c || !strchr("rntfae/-!\"#$%&'()*+,.:;<=>?@[\\]^_`{|}~", c)))
        return refuse(t, 2, t->in_class ? "is not known in a class" : "is not known");
    if (known)
        fputs(known, t->out);
    else
        fprintf(t->out, "\\%c", c);
    t->at += 2;
    return WEFT_OK;
}

/* Behind its opening bracket. */
static weft_status translate_class(translation *t)
{
    t->in_class = true;
    t->at += fputc(*t->at, t->out) == '[';
    if (*t->at == '^')
        t->at += fputc('^', t->out) == '^';
    if (*t->at == ']')
        return refuse(t, 1, "begins a class");
    while (*t->at && *t->at != ']') {
        if (*t->at == '[')
            return refuse(t, 2, "nests classes, which is not known");
        if (t->at[0] == '&' && t->at[1] == '&')
            return refuse(t, 2, "joins classes, which is not known");
        if (*t->at == '\\')
            WEFT_TRY(translate_escape(t));
        else
            fputc(*t->at++, t->out);
    }
    if (!*t->at)
        return refuse(t, 1, "ends in a class");
    fputc(*t->at++, t->out);
    t->in_class = false;
    return WEFT_OK;
}

static weft_status translate_group(translation *t)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"};
    size_t bytes = t->at[1] == '?' ? 0 : 1;
    for (size_t i = 0; bytes == 0 && i < sizeof known / sizeof *known; i++)
        if (strncmp(t->at, known[i], strlen(known[i])) == 0)
            bytes = strlen(known[i]);
    if (bytes == 0 || t->at[1] == '*')
        return refuse(t, 4, "is not known");
    t->depth++;
    if (bytes > 2 && t->at[2] == 'i' && !t->caseless)
        t->caseless = t->depth;
    fprintf(t->out, "%.*s", (int)bytes, t->at);
    t->at += bytes;
    return WEFT_OK;
}

/* Oniguruma lets "ss" match a sharp s where case is ignored, and so for each ligature of letters;
 * PCRE2 does not. */
static bool is_folded(const char *at)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strncasecmp(at, pairs[i], 2) == 0)
            return true;
    return (unsigned char)*at >= 0x80;
}

static weft_status translate_literal(translation *t)
{
    if (t->caseless && is_folded(t->at))
        return refuse(t, 2, "has ligatures where case is ignored, which is not known");
    t->depth -= *t->at == ')';
    if (t->depth < t->caseless)
        t->caseless = 0;
    fputc(*t->at++, t->out);
    return WEFT_OK;
}

/* {n}, {n,} and {n,m}. What Oniguruma makes of a + or ? behind is not what PCRE2 does. */
static weft_status translate_interval(translation *t)
{
    static const char digits[] = "0123456789";
    size_t bytes = 1 + strspn(t->at + 1, digits);
    if (bytes > 1 && t->at[bytes] == ',')
        bytes += 1 + strspn(t->at + bytes + 1, digits);
    if (bytes == 1 || t->at[bytes] != '}')
        return refuse(t, 2, "is not {n}, {n,} or {n,m}");
    if (strchr("+?*", t->at[bytes + 1]) && t->at[bytes + 1])
        return refuse(t, bytes + 2, "is not known");
    fprintf(t->out, "%.*s", (int)bytes + 1, t->at);
    t->at += bytes + 1;
    return WEFT_OK;
}

static weft_status translate(translation *t)
{
    while (*t->at) {
        if (*t->at == '\\')
            WEFT_TRY(translate_escape(t));
        else if (*t->at == '[')
            WEFT_TRY(translate_class(t));
        else if (*t->at == '(')
            WEFT_TRY(translate_group(t));
        else if (*t->at == '{')
            WEFT_TRY(translate_interval(t));
        else
            WEFT_TRY(translate_literal(t));
    }
    return WEFT_OK;
}

static weft_status compile(const char *text, pcre2_code **out)
{
    int error;
    PCRE2_SIZE at;
    uint32_t may_be_empty = 0;
    PCRE2_UCHAR why[128];
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_MULTILINE, &error, &at, NULL);
    if (!code) {
        pcre2_get_error_message(error, why, sizeof why);
        return WEFT_ERROR(WEFT_FILE, "the pattern is not known to PCRE2: %s", (char *)why);
    }
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty) {
        pcre2_code_free(code);
        return WEFT_ERROR(WEFT_FILE, "the pattern may match no character");
    }
    /* Without JIT support the interpreter matches the same, slower. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    *out = code;
    return WEFT_OK;
}

weft_status weft_pattern_create(const char *text, weft_pattern **out)
{
    char *translated = NULL;
    size_t bytes;
    pcre2_code *code = NULL;
    translation t = {.at = text, .out = open_memstream(&translated, &bytes)};
    weft_pattern *pattern = calloc(1, sizeof *pattern);
    weft_status status =
        t.out && pattern ? translate(&t) : WEFT_ERROR(WEFT_MEMORY, "no memory for a pattern");
    if (t.out && fclose(t.out) != 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_MEMORY, "no memory for a pattern");
    if (status == WEFT_OK)
        status = compile(translated, &code);
    free(translated);
    if (status != WEFT_OK) {
        free(pattern);
        return status;
    }
    pattern->code = code;
    *out = pattern;
    return WEFT_OK;
}

void weft_pattern_destroy(weft_pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

/* --- matching ------------------------------------------------------------------------------ */

/* A pattern whose alternatives go back a long way needs more than JIT's own 32 KiB. */
enum { STACK_BYTES = 32 << 10, MOST_STACK_BYTES = 64 << 20 };

weft_status weft_matcher_create(weft_matcher **out)
{
    weft_matcher *m = calloc(1, sizeof *m);
    if (m) {
        m->data = pcre2_match_data_create(1, NULL);
        m->context = pcre2_match_context_create(NULL);
        m->stack = pcre2_jit_stack_create(STACK_BYTES, MOST_STACK_BYTES, NULL);
    }
    if (!m || !m->data || !m->context) { /* no stack: no JIT support */
        weft_matcher_destroy(m);
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer's matches");
    }
    pcre2_set_match_limit(m->context, UINT32_MAX);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return WEFT_OK;
}

void weft_matcher_destroy(weft_matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    if (matcher->stack)
        pcre2_jit_stack_free(matcher->stack);
    free(matcher);
}

weft_status weft_pattern_find(const weft_pattern *pattern, weft_matcher *matcher, weft_bytes text,
                              size_t from, size_t *start, size_t *end)
{
    const int found = pcre2_match(pattern->code, (PCRE2_SPTR)text.text, text.bytes, from,
                                  PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
    *start = *end = text.bytes;
    if (found == PCRE2_ERROR_NOMATCH)
        return WEFT_OK;
    if (found < 0 || range[1] <= from || range[1] <= range[0])
        return WEFT_ERROR(WEFT_FILE, "PCRE2 cannot split the text at byte %zu: error %d", from,
                          found);
    *start = range[0];
    *end = range[1];
    return WEFT_OK;
}
