/* Filters the standard error of mpirun and its ranks: the ranks' lines pass unchanged, mpirun's
 * blocks of text about a job that failed become one line. */
#ifndef WEFT_LAUNCHER_PROCESS_MPIRUN_WORDS_H
#define WEFT_LAUNCHER_PROCESS_MPIRUN_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/watch/watch.h"

enum { WEFT_MPIRUN_MAX_BLOCK_BYTES = 4096 };

typedef struct weft_mpirun_words { /* zero but for the verb is the start */
    const char *verb;              /* that started mpirun, for messages */
    const char *run;         /* whose flight records tell where a killed rank was; NULL: none */
    weft_watch_mark verdict; /* the one that was there before */
    char line[WEFT_MPIRUN_MAX_BLOCK_BYTES];
    size_t line_bytes;
    char block[WEFT_MPIRUN_MAX_BLOCK_BYTES]; /* its words come between two lines of dashes */
    bool in_block;
    bool explained; /* a line says why the job ended */
    bool judged;    /* by the ranks' watchdog: what follows is their end */
    int killed_by;  /* the signal that mpirun says killed a rank; 0: none */
    int killed_rank;
    bool muted; /* why is known: leaves out mpirun's words */
} weft_mpirun_words;

void weft_mpirun_words_take(weft_mpirun_words *words, const char *text, size_t bytes);
/* Nothing more comes. */
void weft_mpirun_words_end(weft_mpirun_words *words);

#endif
