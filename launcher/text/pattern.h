/* Regular expressions as tokenizer.json has them: Oniguruma's, run by PCRE2.
 *
 * What both read alike stays as it is; \s becomes Unicode's White_Space, a script's \p{Name} loses
 * PCRE2's script extensions, ^ and $ are of lines. What Oniguruma reads otherwise than PCRE2, or is
 * not known to read alike, is refused by name. */
#ifndef WEFT_LAUNCHER_TEXT_PATTERN_H
#define WEFT_LAUNCHER_TEXT_PATTERN_H

#include <weft/status.h>

#include "launcher/text/bpe.h"

/* Never changes once it is made; any number of threads match with one. */
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

#endif
