/* Walks a set of programs, one a rank, in an order in which they can really run. Lanes are FIFOs. A
 * task starts when its waits are over; a wait for a point is over when the caller says so, at
 * the latest when its task is done; one for the step before is. Behind a task inside which the host
 * waits nothing starts before that task is done. A message happens when its SEND and its RECEIVE
 * both stand at the head of their lanes (rendezvous). All ranks meet in NORM, and those with tied
 * embeddings in their SUM: no rank starts such a task before all have reached it. Other
 * collectives, such as an MoE layer's counts, are between replicas of a rank, which run the same
 * program in step; the walk treats them like any task. The walk decides order alone: the checker
 * uses it to prove that programs end, the price adds times. Every order that keeps the rules gets
 * equally far, because finishing one task never stops another. */
#ifndef WEFT_SCHEDULE_WALK_H
#define WEFT_SCHEDULE_WALK_H

#include "schedule/program.h"

enum { WEFT_NUM_MEETINGS = 2 }; /* NORM; SUM of tied embeddings */

typedef struct weft_walk_stage {
    uint32_t head[WEFT_NUM_LANES]; /* next task of the lane; num_tasks: none is left */
    uint8_t lanes[WEFT_NUM_LANES]; /* that have tasks, by number */
    int num_lanes;
    bool *done;    /* [num_tasks] */
    bool *passed;  /* by the program's waits: for a point that is passed */
    uint32_t host; /* the next task inside which the host waits; num_tasks: none */
    uint32_t meets[WEFT_NUM_MEETINGS]; /* the task in which ranks meet; num_tasks: none */
} weft_walk_stage;

typedef struct weft_walk {
    const weft_program *programs;
    int num_stages;
    weft_walk_stage *stages;
    int cursor;                  /* the next (stage, lane) to try */
    int come[WEFT_NUM_MEETINGS]; /* how many stages, from the first, have come */
} weft_walk;

/* A task, or a message: then `task` is its SEND and `receive` its RECEIVE on stage `peer`. */
typedef struct weft_walk_step {
    int stage, peer; /* peer -1: no message */
    uint32_t task, receive;
} weft_walk_step;

/* Whether a RECEIVE of rank `receiver` takes what a SEND of rank `sender` carries. is_v: as in
 * weft_program. */
bool weft_is_message(const weft_task *send, int sender, const weft_task *receive, int receiver,
                     int num_ranks, bool is_v);

/* The programs must be well-formed (the builder's ranges; waits on earlier tasks). */
weft_status weft_walk_start(weft_walk *walk, const weft_program *programs, int num_stages,
                            weft_arena *scratch) WEFT_CHECKED;
/* Finds the next step and marks it done; false when nothing more can run. */
bool weft_walk_next(weft_walk *walk, weft_walk_step *out);
/* The two halves of weft_walk_next. Finds the step at the head of this lane (a message's at its
 * SEND's); false when it cannot run yet or there is none. */
bool weft_walk_head(weft_walk *walk, int stage, int lane, weft_walk_step *out);
/* Whether the task at the head of this lane could run without its meeting; for prices of buffered
 * messages. */
bool weft_walk_ready(const weft_walk *walk, int stage, int lane, uint32_t *out_task);
/* The point is passed that this one of the program's waits is for. */
void weft_walk_pass(weft_walk *walk, int stage, uint32_t wait);
void weft_walk_done(weft_walk *walk, const weft_walk_step *step);
/* After the last step: WEFT_INTERNAL, saying who waits for whom, unless every task is done. */
weft_status weft_walk_finish(const weft_walk *walk) WEFT_CHECKED;

#endif
