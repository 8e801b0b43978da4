/* A rank's trainer on the device that runs nothing: what its steps enqueue, with ranges. Link with
 * the wraps of tests.cmake: of its device, its groups, and where the ranks are. */
#ifndef WEFT_TESTS_LAUNCHER_NOTE_TRAINER_H
#define WEFT_TESTS_LAUNCHER_NOTE_TRAINER_H

#include "launcher/training/trainer.h"

enum { NOTE_MAX_SET = 8, NOTE_MAX_PASSES = 256 };
typedef struct note_trainer_case {
    const char *mesh;
    int world, rank, stage; /* stage: the rank's, of pp */
    const char *set[NOTE_MAX_SET];
} note_trainer_case;

typedef struct note_trainer {
    weft_arena arena;
    weft_comm *world;
    weft_trainer trainer;
    uint64_t random;    /* experts' rows and positions are drawn */
    size_t least, most; /* of experts' loads, in this step */
    bool anywhere;      /* in each of its micro-batches experts have other positions */
    size_t count; /* what was enqueued, without what the host waits for but for steps' ends, where
                     all lanes wait for each other, but the host's that run on; and without waits
                     for experts' slots inside a pass, whose program orders these */
    weft_noted *notes;
    const weft_range *ranges;
    size_t *steps;                  /* where each begins */
    size_t passes[NOTE_MAX_PASSES]; /* of the device's notes, where each begins */
    int num_passes;
} note_trainer;

void note_trainer_open(note_trainer *n, const note_trainer_case *c);
void note_trainer_close(note_trainer *n);
/* Runs so many steps, and lists what they enqueue. Where one fails, nothing but close is legal. */
weft_status note_trainer_run(note_trainer *n, int steps) WEFT_CHECKED;
/* A number below `below`, of the trainer's. */
size_t note_trainer_draw(note_trainer *n, size_t below);
/* Whether the event is of a step's end. */
bool note_trainer_ends(const weft_event *event);

#endif
