/* What the readers of imported files share. Private to launcher/measuring/. */
#ifndef WEFT_LAUNCHER_MEASURING_IMPORT_INTERNAL_H
#define WEFT_LAUNCHER_MEASURING_IMPORT_INTERNAL_H

#include "launcher/measuring/import.h"

/* A file's lines, one after the other. */
typedef struct weft_import_lines {
    const char *file, *next;
    const char *line; /* not terminated */
    size_t bytes;
    int number; /* from 1 */
} weft_import_lines;
bool weft_import_next_line(weft_import_lines *lines);

enum { WEFT_IMPORT_WORD_BYTES = 80 };
/* Copies the next word of the line from *at on, cut where it is too long; *at starts as 0. False:
 * there is none. */
bool weft_import_next_word(const weft_import_lines *lines, size_t *at,
                           char out[WEFT_IMPORT_WORD_BYTES]);
/* A word that is a number from beginning to end, and finite. */
bool weft_import_number(const char *word, double *out);
/* A word that is digits alone, at most `most`. */
bool weft_import_count(const char *word, int most, int *out);
/* Whether the line has this text, in any case. */
bool weft_import_line_has(const weft_import_lines *lines, const char *text);

void weft_import_note(weft_import *import, const char *format, ...) WEFT_PRINTF(2, 3);
/* Says where the number at a key comes from. */
weft_status weft_import_source(weft_import *import, const char *key, weft_source_class class_,
                               const char *where) WEFT_CHECKED;
void weft_import_drop_source(weft_cluster *cluster, const char *key);
/* weft_import_source, and sets the figure. WEFT_CONFIG: the value is impossible; `line` is where it
 * is. */
weft_status weft_import_figure(weft_import *import, weft_figure figure, double value,
                               weft_source_class class_, const char *file, int line,
                               const char *where) WEFT_CHECKED;
void weft_import_ranks(weft_import *import, const char *file, int ranks_per_node);
void weft_import_nodes(weft_import *import, const char *file, int num_nodes);

/* A reader a format. */
weft_status weft_import_hwloc(weft_import *import, const char *file, const char *text) WEFT_CHECKED;
weft_status weft_import_nvidia(weft_import *import, const char *file,
                               const char *text) WEFT_CHECKED;
/* Whether the first line that says something begins a list of topologies. */
bool weft_slurm_is_yaml(const char *text);
weft_status weft_import_slurm(weft_import *import, const char *file, const char *text,
                              weft_arena *arena) WEFT_CHECKED;
weft_status weft_import_nccl(weft_import *import, const char *file, const char *text,
                             weft_arena *arena) WEFT_CHECKED;

#endif
