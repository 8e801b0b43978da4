/* The state of a simulation, which prices programs. */
#ifndef WEFT_SCHEDULE_PRICE_SIMULATION_H
#define WEFT_SCHEDULE_PRICE_SIMULATION_H

#include "schedule/price/price.h"
#include "schedule/walk.h"

/* What a lane is doing. The SEND carries a message's activity; the RECEIVE only occupies its lane,
 * and has an end of its own where the message is buffered. */
typedef struct weft_activity {
    bool running, slowed;
    bool buffered; /* one end of a buffered message */
    int heap_at;   /* index in the heap; -1: a RECEIVE whose message is under way */
    weft_walk_step step;
    double start_us, cost_us;
    /* The end, or the next point if points are left, at the current rate. */
    double end_us, rate;
    uint32_t next_point;          /* index into the stage's points */
    double needs[WEFT_MAX_LINKS]; /* the share of its time in which it needs each link */
} weft_activity;

/* Points that tasks of a stage wait for, by task; of one that runs or is over, in the order in
 * which they pass. */
typedef struct weft_point {
    weft_wait wait;
    double share; /* of the task's time, known from its start on */
} weft_point;
typedef struct weft_stage_points {
    weft_point *points;
    uint32_t count;
} weft_stage_points;

/* Messages of one flow to a stage; they come from one lane. */
typedef struct weft_inbox {
    int arriving;                  /* the lane of the arriving message; -1: none */
    uint32_t sent, arrived, taken; /* numbers of buffered messages */
} weft_inbox;

enum { WEFT_NUM_INBOXES = 2 }; /* activations, gradients */

typedef struct weft_simulation {
    weft_walk walk;
    weft_stage_points *points; /* [num_stages] */
    const weft_program *programs;
    int num_stages;
    const weft_pricing *pricing;
    weft_activity *lanes; /* [num_stages][WEFT_NUM_LANES] */
    weft_inbox *inboxes;  /* [num_stages][WEFT_NUM_INBOXES] */
    int *heap;            /* lanes, by end; ties by number */
    int heap_size;
    int *touched; /* stages whose activities changed, each once */
    bool *is_touched;
    int num_touched;
    bool has_met[WEFT_NUM_MEETINGS];
    double now_us;
    weft_price *price;
} weft_simulation;

/* The heap of running lanes, by their end. */
void weft_simulation_add(weft_simulation *sim, int lane);
int weft_simulation_take_first(weft_simulation *sim);
/* Sets the speeds of all activities on touched stages, beside each other. */
void weft_simulation_set_speeds(weft_simulation *sim);

#endif
