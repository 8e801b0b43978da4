/* What the readers of imported files share. */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "launcher/measuring/import_internal.h"

/* --- lines and words ----------------------------------------------------------------------- */

bool weft_import_next_line(weft_import_lines *lines)
{
    if (!*lines->next)
        return false;
    lines->line = lines->next;
    lines->bytes = strcspn(lines->line, "\n");
    lines->next += lines->bytes + (lines->line[lines->bytes] == '\n');
    if (lines->bytes > 0 && lines->line[lines->bytes - 1] == '\r')
        lines->bytes--;
    lines->number++;
    return true;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* A terminal's colours and underlines are no part of a word: ESC [ ... letter. */
static size_t skip_escape(const weft_import_lines *lines, size_t at)
{
    if (lines->line[at] != '\x1b')
        return at;
    at++;
    if (at < lines->bytes && lines->line[at] == '[')
        at++;
    while (at < lines->bytes && !isalpha((unsigned char)lines->line[at]) &&
           !is_blank(lines->line[at]))
        at++;
    return at < lines->bytes && !is_blank(lines->line[at]) ? at + 1 : at;
}

bool weft_import_next_word(const weft_import_lines *lines, size_t *at,
                           char out[WEFT_IMPORT_WORD_BYTES])
{
    size_t used = 0, i = *at;
    while (i < lines->bytes && (is_blank(lines->line[i]) || lines->line[i] == '\x1b'))
        i = lines->line[i] == '\x1b' ? skip_escape(lines, i) : i + 1;
    while (i < lines->bytes && !is_blank(lines->line[i])) {
        if (lines->line[i] == '\x1b') {
            i = skip_escape(lines, i);
            continue;
        }
        if (used + 1 < WEFT_IMPORT_WORD_BYTES)
            out[used++] = lines->line[i];
        i++;
    }
    out[used] = '\0';
    *at = i;
    return used > 0;
}

bool weft_import_number(const char *word, double *out)
{
    char *end;
    if (!isdigit((unsigned char)*word) && *word != '.' && *word != '-')
        return false;
    const double value = strtod(word, &end);
    if (*end || !isfinite(value))
        return false;
    *out = value;
    return true;
}

bool weft_import_count(const char *word, int most, int *out)
{
    const size_t digits = strspn(word, "0123456789");
    if (digits == 0 || digits > 9 || word[digits])
        return false;
    *out = atoi(word);
    return *out <= most;
}

bool weft_import_line_has(const weft_import_lines *lines, const char *text)
{
    const size_t bytes = strlen(text);
    for (size_t i = 0; i + bytes <= lines->bytes; i++)
        if (strncasecmp(lines->line + i, text, bytes) == 0)
            return true;
    return false;
}

/* --- what is found ------------------------------------------------------------------------- */

void weft_import_note(weft_import *import, const char *format, ...)
{
    va_list args;
    if (import->num_notes == WEFT_IMPORT_MAX_NOTES)
        return;
    va_start(args, format);
    vsnprintf(import->notes[import->num_notes++], WEFT_IMPORT_NOTE_BYTES, format, args);
    va_end(args);
}

void weft_import_drop_source(weft_cluster *cluster, const char *key)
{
    for (int i = 0; i < cluster->num_sources; i++)
        if (strcmp(cluster->sources[i].key, key) == 0) {
            memmove(&cluster->sources[i], &cluster->sources[i + 1],
                    sizeof *cluster->sources * (size_t)(cluster->num_sources - i - 1));
            cluster->num_sources--;
            return;
        }
}

weft_status weft_import_source(weft_import *import, const char *key, weft_source_class class_,
                               const char *where)
{
    weft_cluster *cluster = &import->cluster;
    weft_import_drop_source(cluster, key);
    if (cluster->num_sources == WEFT_MAX_SOURCES)
        return WEFT_ERROR(WEFT_CONFIG, "%s: a cluster's file has room for %d sources", where,
                          WEFT_MAX_SOURCES);
    weft_source *source = &cluster->sources[cluster->num_sources++];
    *source = (weft_source){.class_ = class_};
    snprintf(source->key, sizeof source->key, "%s", key);
    /* The end of a path says more than its beginning; what is cut stays UTF-8. */
    const size_t bytes = strlen(where), room = sizeof source->where - 1;
    const char *from = bytes > room ? where + (bytes - room) : where;
    while ((*from & 0xc0) == 0x80)
        from++;
    snprintf(source->where, sizeof source->where, "%s", from);
    return WEFT_OK;
}

weft_status weft_import_figure(weft_import *import, weft_figure figure, double value,
                               weft_source_class class_, const char *file, int line,
                               const char *where)
{
    weft_hardware *hardware = &import->cluster.hardware;
    double meant;
    if (!weft_figure_is_plausible(figure, value, &meant))
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %s: %g %s is not possible", file, line,
                          weft_figure_path(figure), value, weft_figure_unit(figure));
    hardware->figures[figure] = value;
    hardware->given |= 1u << figure;
    return weft_import_source(import, weft_figure_path(figure), class_, where);
}

/* A count that several files may tell: the first holds. */
static void take_count(weft_import *import, const char *file, const char *key, int count,
                       bool *is_known, int *out)
{
    if (*is_known && *out != count)
        weft_import_note(import, "%s: %s says %d, an earlier file %d: %d it is", key, file, count,
                         *out, *out);
    *out = *is_known ? *out : count;
    *is_known = true;
}

void weft_import_ranks(weft_import *import, const char *file, int ranks_per_node)
{
    take_count(import, file, "ranks_per_node", ranks_per_node, &import->has_ranks,
               &import->cluster.ranks_per_node);
}

void weft_import_nodes(weft_import *import, const char *file, int num_nodes)
{
    take_count(import, file, "num_nodes", num_nodes, &import->has_nodes,
               &import->cluster.num_nodes);
}
