#include "layers/tier/clock.h"

#include <math.h>

#include "core/clock.h"

typedef struct reading {
    weft_tier_clock *clock;
    weft_tier_stamp *stamp;
} reading;

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

weft_status weft_tier_clock_read(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                 weft_tier_moment moment, weft_lane *lane)
{
    static const weft_lane_function read_at[] = {
        [WEFT_TIER_BEGIN] = begin,         [WEFT_TIER_HAS] = has,   [WEFT_TIER_FREES] = frees,
        [WEFT_TIER_ASKS] = asks,           [WEFT_TIER_GETS] = gets, [WEFT_TIER_STEPPED] = stepped,
        [WEFT_TIER_REFRESHES] = refreshes,
    };
    const reading r = {clock, stamp};
    return clock->runs ? weft_lane_submit(lane, "clock", read_at[moment], &r, sizeof r) : WEFT_OK;
}
