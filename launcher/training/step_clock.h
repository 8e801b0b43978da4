/* How long the end of a step waits for what the host steps there (schedule/pipeline/update.h): by
 * when the lanes' own threads ended, so on the CPU alone. The thread that enqueues has no part in
 * it: where it shares a core with the host's steps, these may be over before it has enqueued the
 * next. */
#ifndef WEFT_LAUNCHER_TRAINING_STEP_CLOCK_H
#define WEFT_LAUNCHER_TRAINING_STEP_CLOCK_H

#include "schedule/run.h"

/* Zero is valid, and runs not. */
typedef struct weft_step_clock {
    bool runs;
    double waited_us; /* behind what computing had to do in a step, for the others; since taken */
} weft_step_clock;

/* weft_program_run; where no lane runs on, its end waits for the host's. */
weft_status weft_step_clock_run(weft_step_clock *clock, const weft_program *program,
                                weft_executor *executor) WEFT_CHECKED;
/* Microseconds since the last call. */
double weft_step_clock_take(weft_step_clock *clock);

#endif
