/* Where a run's time went, over all starts of its folder: RUN/ledger.jsonl, a line for each thing
 * done, with the time of its end. Every moment between a start's begin and its last line belongs to
 * the line that follows it; the time from that line to the next start is waiting, unless the start
 * ended as asked. Rank 0 alone writes it. */
#ifndef WEFT_LAUNCHER_TRAINING_LEDGER_H
#define WEFT_LAUNCHER_TRAINING_LEDGER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weft/status.h>

#include "launcher/report/report.h"
#include "launcher/training/energy.h"
#include "parallel/mesh/mesh.h"

typedef enum weft_ledger_part {
    WEFT_LEDGER_PRODUCTIVE, /* steps whose update the weights still have, and evaluations */
    WEFT_LEDGER_LOST,       /* steps done again, or that updated nothing */
    WEFT_LEDGER_SAVING,
    WEFT_LEDGER_LOADING,
    WEFT_LEDGER_STARTING,
    WEFT_LEDGER_WAITING, /* for the next start; includes a step that was cut off */
    WEFT_NUM_LEDGER_PARTS
} weft_ledger_part;

typedef enum weft_ledger_did {
    WEFT_DID_BEGIN, /* a start begins; the line has no time of its own */
    WEFT_DID_START,
    WEFT_DID_LOAD, /* the weights are now those after `step`; later steps are lost */
    WEFT_DID_STEP,
    WEFT_DID_SKIP, /* a step that updated nothing */
    WEFT_DID_EVALUATE,
    WEFT_DID_SAVE,
    WEFT_DID_END, /* a start ends as asked or with the last step */
    WEFT_NUM_DID
} weft_ledger_did;

/* Who began a start: the version of Weft, and the mesh as weft_mesh_print says it. Empty: unknown.
 */
typedef struct weft_ledger_who {
    char weft[24], mesh[128];
} weft_ledger_who;

/* A line. */
typedef struct weft_ledger_entry {
    int did;       /* weft_ledger_did */
    double time_s; /* since 1970 */
    int64_t step;
    double joules, tokens; /* of a step; 0: energy was not read */
    double gpu_joules;     /* the GPUs' part of `joules` */
    int64_t saved;         /* a checkpoint published since the last line; 0: none */
    weft_ledger_who who;   /* of WEFT_DID_BEGIN */
} weft_ledger_entry;

typedef struct weft_ledger_span {
    int64_t step;
    double seconds, tokens;
} weft_ledger_span;

/* Sums over entries. Zero is valid: no entries. */
typedef struct weft_ledger_account {
    double seconds[WEFT_NUM_LEDGER_PARTS];
    int64_t num_starts, num_lost; /* steps */
    double joules, gpu_joules;    /* of processors and GPUs, if read; of GPUs alone */
    double tokens;                /* of steps that are not lost */
    int64_t num_damaged;          /* damaged lines; their time counts to the next line */
    int64_t saved;                /* the run's last checkpoint; 0: none since it began at step 0 */
    double last_s;                /* the last entry's time */
    weft_ledger_who who;          /* of the last start */
    bool ended;
    weft_ledger_span *spans; /* productive times so far, in order */
    size_t num_spans, capacity;
} weft_ledger_account;

typedef struct weft_ledger {
    FILE *file; /* NULL: not written */
    char path[4096];
    int64_t saved;               /* the newest checkpoint that this start has published; 0: none */
    weft_ledger_account account; /* earlier starts included */
} weft_ledger;

/* "productive_s", ... */
extern const char *const weft_ledger_part_texts[WEFT_NUM_LEDGER_PARTS];

/* Errors: WEFT_MEMORY. */
weft_status weft_ledger_add(weft_ledger_account *account,
                            const weft_ledger_entry *entry) WEFT_CHECKED;
double weft_ledger_sum(const weft_ledger_account *account); /* seconds */
/* The productive share; 0: no entries. */
double weft_ledger_goodput(const weft_ledger_account *account);
/* Adds up a file's lines. Damaged lines are counted and skipped. A missing file has no lines. */
weft_status weft_ledger_read(const char *path, weft_ledger_account *account) WEFT_CHECKED;
/* "ledger". */
void weft_ledger_report(weft_report *report, const weft_ledger_account *account);
void weft_ledger_account_release(weft_ledger_account *account);
/* When the command began (weft_now_us): the time in WEFT_STARTED if weft train started the ranks,
 * else `own_us`. */
double weft_ledger_began(double own_us);

/* Reads earlier starts' lines of RUN/ledger.jsonl, and opens it for appending. After a failure a
 * warning says so, and the run has no ledger. */
weft_status weft_ledger_open(weft_ledger *ledger, const char *run_dir) WEFT_CHECKED;
/* Writes that a start begins, on this mesh. */
weft_status weft_ledger_begin(weft_ledger *ledger, const weft_mesh *mesh,
                              double now_us) WEFT_CHECKED;
/* Writes a line and adds it to the account; without an open ledger does nothing. */
weft_status weft_ledger_write(weft_ledger *ledger, weft_ledger_did did, int64_t step,
                              double now_us) WEFT_CHECKED;
/* The same for a step. */
weft_status weft_ledger_write_step(weft_ledger *ledger, weft_ledger_did did, int64_t step,
                                   double now_us, const weft_joules *joules,
                                   double tokens) WEFT_CHECKED;
void weft_ledger_close(weft_ledger *ledger);

#endif
