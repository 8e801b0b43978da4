#include "layers/tier/clock.h"

#include <math.h>

#include "core/clock.h"

typedef struct reading {
    weft_tier_clock *clock;
    weft_tier_stamp *stamp;
} reading;

static weft_status read_on(weft_tier_clock *clock, weft_tier_stamp *stamp,
                           weft_lane_function function, weft_lane *lane)
{
    const reading r = {clock, stamp};
    return clock->runs ? weft_lane_submit(lane, "clock", function, &r, sizeof r) : WEFT_OK;
}

static weft_status begin(const void *raw)
{
    const reading *r = raw;
    r->clock->since_us = weft_now_us();
    return WEFT_OK;
}

static weft_status has(const void *raw)
{
    const reading *r = raw;
    const double waited = weft_now_us() - r->clock->since_us;
    r->clock->waited_us += waited;
    r->clock->delayed_us += fmin(waited, fmax(0, r->stamp->late_us - r->clock->delayed_us));
    r->stamp->late_us = 0;
    return WEFT_OK;
}

static weft_status frees(const void *raw)
{
    const reading *r = raw;
    r->clock->since_us = weft_now_us();
    r->stamp->freed_us = r->clock->since_us;
    r->stamp->freed_delay_us = r->clock->delayed_us;
    return WEFT_OK;
}

static weft_status asks(const void *raw)
{
    const reading *r = raw;
    r->clock->asked_us = weft_now_us();
    return WEFT_OK;
}

/* Without steps the lane would have come earlier by late_us, the slot by freed_delay_us. */
static weft_status gets(const void *raw)
{
    const reading *r = raw;
    const double free_for = fmax(0, r->clock->asked_us - r->stamp->freed_us);
    r->clock->late_us = fmin(r->clock->late_us, r->stamp->freed_delay_us + free_for);
    r->clock->asked_us = weft_now_us();
    return WEFT_OK;
}

static weft_status stepped(const void *raw)
{
    const reading *r = raw;
    r->clock->late_us += weft_now_us() - r->clock->asked_us;
    r->stamp->late_us = r->clock->late_us;
    return WEFT_OK;
}

static weft_status refreshes(const void *raw)
{
    const reading *r = raw;
    r->stamp->late_us = INFINITY;
    return WEFT_OK;
}

weft_status weft_tier_clock_begin(weft_tier_clock *clock, weft_lane *lane)
{
    return read_on(clock, NULL, begin, lane);
}

weft_status weft_tier_clock_has(weft_tier_clock *clock, weft_tier_stamp *stamp, weft_lane *lane)
{
    return read_on(clock, stamp, has, lane);
}

weft_status weft_tier_clock_frees(weft_tier_clock *clock, weft_tier_stamp *stamp, weft_lane *lane)
{
    return read_on(clock, stamp, frees, lane);
}

weft_status weft_tier_clock_asks(weft_tier_clock *clock, weft_lane *lane)
{
    return read_on(clock, NULL, asks, lane);
}

weft_status weft_tier_clock_gets(weft_tier_clock *clock, weft_tier_stamp *stamp, weft_lane *lane)
{
    return read_on(clock, stamp, gets, lane);
}

weft_status weft_tier_clock_stepped(weft_tier_clock *clock, weft_tier_stamp *stamp, weft_lane *lane)
{
    return read_on(clock, stamp, stepped, lane);
}

weft_status weft_tier_clock_refreshes(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                      weft_lane *lane)
{
    return read_on(clock, stamp, refreshes, lane);
}
