#include "core/options.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* Longer names are compared by their beginnings. */
enum { MAX_NAME = 63 };

static int fold(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b, where case and
 * '-' against '_' cost nothing. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][MAX_NAME + 1];
    size_t na = strnlen(a, MAX_NAME), nb = strnlen(b, MAX_NAME);
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *now = rows[i % 3], *above = rows[(i + 2) % 3], *twice = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t replace = above[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            now[j] = min_of(replace, min_of(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                now[j] = min_of(now[j], twice[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

/* Other words for names of ours; letters say nothing of these. */
static const struct {
    const char *word, *name;
} synonyms[] = {
    {"gpu", "cuda"},      {"nvidia", "cuda"},          {"host", "cpu"},         {"float32", "fp32"},
    {"float", "fp32"},    {"single", "fp32"},          {"half", "fp16"},        {"float16", "fp16"},
    {"bfloat16", "bf16"}, {"layer_norm", "LayerNorm"}, {"rms_norm", "RMSNorm"}, {"rotary", "rope"},
};

static const char *find_synonym(const char *name, const char *const *names, size_t count)
{
    for (size_t s = 0; s < sizeof synonyms / sizeof *synonyms; s++)
        for (size_t i = 0; i < count && strcasecmp(synonyms[s].word, name) == 0; i++)
            if (strcmp(synonyms[s].name, names[i]) == 0)
                return names[i];
    return NULL;
}

const char *weft_nearest_name(const char *name, const char *const *names, size_t count)
{
    const char *synonym = find_synonym(name, names, count);
    if (synonym)
        return synonym;
    /* A third of the letters may be wrong; beyond that a suggestion misleads. */
    size_t bytes = strnlen(name, MAX_NAME), limit = (bytes + 2) / 3 + 1;
    const char *best = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strnlen(names[i], MAX_NAME);
        if ((other > bytes ? other - bytes : bytes - other) >= limit)
            continue; /* so many letters are missing alone */
        size_t distance = edit_distance(name, names[i]);
        if (distance < limit) {
            limit = distance;
            best = names[i];
        }
    }
    return best;
}
