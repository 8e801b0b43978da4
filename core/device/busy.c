#include "core/device/busy.h"

#include "core/device/ops.h"

static _Thread_local int64_t waited_ns; /* by the function that runs */

void weft_busy_note_waited(int64_t ns)
{
    waited_ns += ns;
}

void weft_busy_add(weft_lane *lane, double start_us, double end_us)
{
    const int64_t busy_ns = (int64_t)(1e3 * (end_us - start_us)) - waited_ns;
    lane->ended_us = end_us;
    if (busy_ns > 0)
        atomic_fetch_add(&lane->busy_ns, busy_ns);
    waited_ns = 0;
}

double weft_lane_ended_us(const weft_lane *lane)
{
    return lane->ended_us;
}

double weft_lane_take_busy(weft_lane *lane)
{
    return (double)atomic_exchange(&lane->busy_ns, 0) * 1e-9;
}
