/* What a run does about faults: section "reliability" of the config. docs/faults.md has the whole
 * picture. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_RELIABILITY_H
#define WEFT_LAUNCHER_PLANNING_RELIABILITY_H

#include <stdint.h>

#include "core/options/options.h"

typedef enum weft_bad_step {
    WEFT_BAD_STEP_STOP,
    WEFT_BAD_STEP_SKIP,
    WEFT_BAD_STEP_REWIND
} weft_bad_step;

typedef enum weft_replica_difference {
    WEFT_REPLICA_STOP,
    WEFT_REPLICA_MAJORITY
} weft_replica_difference;

typedef struct weft_reliability_options { /* section "reliability" */
    bool watchdog;
    /* s; the least that a limit is. */
    int64_t setup_limit_s, load_limit_s, first_step_limit_s, step_limit_s, exchange_limit_s,
        save_limit_s;
    double limit_factor;  /* of the longest lately */
    int64_t max_restarts; /* of ranks that weft train started, after faults */
    double restart_delay_s;
    int on_bad_step; /* weft_bad_step */
    int64_t max_bad_steps;
    double loss_spike_factor;       /* of the running mean; 0: no loss is a spike */
    double straggler_factor;        /* of the others' median; 0: nobody looks */
    int64_t straggler_steps;        /* in a row */
    int64_t replica_check_interval; /* steps; 0: never */
    int on_replica_difference;      /* weft_replica_difference */
    int64_t state_check_interval;   /* steps; 0: never */
} weft_reliability_options;

extern const weft_key weft_reliability_rows[];
extern const size_t weft_num_reliability_rows;

/* Of straggler_factor. */
double weft_reliability_default_factor(void);

#endif
