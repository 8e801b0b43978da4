/* What a step's end waits for beside its backwards: the host's lanes. */
#include <math.h>

#include "core/device/device.h"
#include "launcher/training/state.h"

static double last_end_us(const weft_executor *executor)
{
    double last = 0;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (executor->lanes[i])
            last = fmax(last, weft_lane_ended_us(executor->lanes[i]));
    return last;
}

weft_status weft_step_clock_run(weft_step_clock *clock, const weft_program *program,
                                weft_executor *executor)
{
    WEFT_TRY(weft_program_run(program, executor));
    if (clock->runs && executor->runs_on == 0)
        clock->waited_us +=
            last_end_us(executor) - weft_lane_ended_us(executor->lanes[WEFT_LANE_COMPUTE]);
    return WEFT_OK;
}

double weft_step_clock_take(weft_step_clock *clock)
{
    const double waited_us = clock->waited_us;
    clock->waited_us = 0;
    return waited_us;
}
