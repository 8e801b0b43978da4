/* A torturer of training: what its parts share. A *line* is one run of a small model, from its
 * first step to its last, through many *lives*: starts of `weft train --resume`, each with a mesh,
 * tiers and ways of saving of its own, that end by a kill, a stop or the last step. Everything is
 * drawn from seed, line and life. */
#ifndef WEFT_TESTS_LAUNCHER_TORTURE_H
#define WEFT_TESTS_LAUNCHER_TORTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/launcher/child.h"

enum {
    TORTURE_BATCH = 8,       /* samples a step */
    TORTURE_SEQ_LENGTH = 16, /* tokens a sample */
    TORTURE_MAX_STEPS = 400,
    TORTURE_VARIANTS = 4,  /* models */
    TORTURE_UNCLIPPED = 1, /* whose experts the host steps at once */
    TORTURE_ROUGH = 3      /* the first in bf16: its meshes agree roughly */
};

/* --- chance ----------------------------------------------------------------------------------- */

typedef struct torture_chance {
    uint64_t state;
} torture_chance;

torture_chance torture_chance_of(uint64_t seed, int line, int life);
/* Uniform in [0, 1); in [0, bound). */
double torture_uniform(torture_chance *chance);
int torture_below(torture_chance *chance, int bound);

/* --- what a life is --------------------------------------------------------------------------- */

typedef enum torture_end {
    TORTURE_WHOLE,    /* SIGKILL to all processes at once */
    TORTURE_LAUNCHER, /* to `weft train` alone */
    TORTURE_MPIRUN,
    TORTURE_RANK,
    TORTURE_TWO_RANKS, /* one shortly after the other */
    TORTURE_WRITER,    /* of an asynchronous save; the life goes on */
    TORTURE_STOP,      /* SIGTERM: saves and ends */
    TORTURE_ENDS
} torture_end;

typedef enum torture_moment {
    TORTURE_AT_START, /* within the start and the load */
    TORTURE_IN_STEPS,
    TORTURE_IN_SAVE,   /* while a folder is being saved, or one is going */
    TORTURE_PUBLISHED, /* right after `latest` has changed */
    TORTURE_MOMENTS
} torture_moment;

enum { TORTURE_MAX_BLOWS = 3 };

typedef struct torture_blow {
    torture_end end;
    torture_moment moment;
    double share; /* of the moment's time that passes before, in [0, 1) */
    double after; /* ms between two ranks */
    int rank;     /* modulo their number */
} torture_blow;

typedef struct torture_life {
    int variant, steps, world;
    char mesh[96];
    char same[256]; /* lives in which this is equal compute the same bits from the same state */
    char config[2048];
    int save_interval, keep_latest_k, save_retain_interval, fallback, max_restarts;
    bool async, skips;
    torture_blow
        blows[TORTURE_MAX_BLOWS]; /* the last one ends it; those before only with restarts */
    int num_blows;
} torture_life;

/* Draws a life of a line's model. `before`: the life before of the line, whose mesh may stay; NULL:
 * none. fallback: at least so many. folder: for the experts' file. */
void torture_draw(torture_chance *chance, int variant, int steps, const torture_life *before,
                  int fallback, const char *folder, torture_life *out);
/* The config of the run without kills, on one rank, that saves every step. */
void torture_reference_config(int variant, int steps, char out[2048]);
const char *torture_end_name(torture_end end);
const char *torture_moment_name(torture_moment moment);

typedef struct torture_outcome {
    torture_end end; /* the last blow but those to writers; TORTURE_ENDS: none */
    bool lost_writer, was_killed;
} torture_outcome;

/* Hits `weft train`, blow by blow, until it has ended. */
torture_outcome torture_live(child *c, const torture_life *life, const char *run);
void torture_wait_for_end(child *c, const char *what);
/* After an end: no process is left; nor are the folders of the last job, after one that removes
 * them. */
void torture_check_processes(const char *when);
void torture_check_job_folders(void);

enum { TORTURE_MAX_TIMES = 4096 };
typedef struct torture_times {
    double first_ms[TORTURE_MAX_TIMES], again_ms[TORTURE_MAX_TIMES];
    int num_first, num_again;
} torture_times;
extern torture_times torture_time;
double torture_median(const double *values, int count);

/* --- violations ------------------------------------------------------------------------------- */

/* Prints one line, with what repeats it; counted. */
void torture_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- state of a line -------------------------------------------------------------------------- */

typedef struct torture_saved {
    bool is_there, is_damaged;
    uint64_t mark; /* of its manifest */
    uint64_t line; /* how its state was computed: see torture_compare.c */
} torture_saved;

typedef struct torture_state {
    const char *run, *reference; /* folders */
    int variant, steps;
    uint64_t line[TORTURE_MAX_STEPS + 1]; /* of the state after each step, as last computed */
    torture_saved saved[TORTURE_MAX_STEPS + 1];
    double losses[TORTURE_MAX_STEPS + 1]; /* of the reference, [step] */
    int latest;                           /* as the file says; 0: there is none */
    int last;                             /* last step in metrics.jsonl */
    uint64_t metrics;                     /* its mark */
} torture_state;

typedef struct torture_counts {
    long kills, starts, lives, lines, saves, stops, falls, restarts, steps, steps_again;
    long controls, compared_checkpoints, same_checkpoints, compared_losses, same_losses;
    double worst_loss, worst_share; /* largest differences seen, as torture_compare.c has them */
    long by_end[TORTURE_ENDS], by_moment[TORTURE_MOMENTS];
    long violations;
} torture_counts;
extern torture_counts torture_count;

/* Of a file, to know whether it is still the same; 0: not there. */
uint64_t torture_mark(const char *path);
uint64_t torture_hash(uint64_t hash, const void *bytes, size_t count);
/* Remembers what a chain gave; *out_known: it was there before. False: it was another one. */
bool torture_agrees(uint64_t chain, uint64_t hash, bool *out_known);
bool torture_has_reference(const torture_state *state, int step);
/* A checkpoint against the reference's, and its bits against those of equal chains. */
void torture_compare(const torture_state *state, int step);
/* A checkpoint as it is there now. */
torture_saved torture_look_at(const torture_state *state, int step);
/* Reads the losses of the reference. False: they are not all there. */
bool torture_reference_read(torture_state *state);
/* The step from which the next life must go on: of the newest whole checkpoint up to `latest`. */
int torture_expected_start(const torture_state *state);
/* Looks at the run's folder as a life has left it, and at what that life has said. `start`: the
 * step that it went on from; exit_code: of `weft train`; said, warned: what it wrote. */
void torture_judge(torture_state *state, const torture_life *life, int start, int exit_code,
                   bool lost_writer, const char *said, const char *warned);
/* The same steps in the folder `run`, of the config of the life that was just judged: the same bits
 * up to step `last`, which it has saved. */
void torture_judge_control(torture_state *state, const char *run, int start, int last);
/* Damages the newest checkpoint in a drawn way; false: none may be damaged now. `what`: its words.
 */
bool torture_damage(torture_state *state, torture_chance *chance, char what[128]);

#endif
