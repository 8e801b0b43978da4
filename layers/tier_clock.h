/* How long computing waits for experts beyond device memory (layers/tier_run.h), and how long of
 * that because the host had not stepped them yet: by clocks on the lanes' own threads, so on the
 * CPU alone.
 *
 * The uploads' lane is late by as long as it has waited for steps, less what it would have waited
 * anyway for a slot. Computing that waits for an upload is late for the steps' sake as far as that
 * upload was later than computing itself is by now. Kept experts come anew because they were
 * stepped: all waiting for them is for the steps' sake. */
#ifndef WEFT_LAYERS_TIER_CLOCK_H
#define WEFT_LAYERS_TIER_CLOCK_H

#include <stdbool.h>

#include <weft/device.h>

/* Zero is valid, and runs not. Each field is the thread's of one lane. */
typedef struct weft_tier_clock {
    bool runs;
    double since_us, waited_us, delayed_us; /* computing's; delayed: for the sake of steps */
    double asked_us, late_us;               /* the uploads' */
} weft_tier_clock;

/* Of memory on the device for an expert's weights. Zero is valid. Goes from lane to lane with the
 * memory, by the same events. */
typedef struct weft_tier_stamp {
    double late_us;                  /* of what was uploaded there, until computing has it */
    double freed_us, freed_delay_us; /* computing's clock and delay as it was free again */
} weft_tier_stamp;

/* On the compute lane: a program begins; computing has the weights; it needs them no more. */
weft_status weft_tier_clock_begin(weft_tier_clock *clock, weft_lane *lane) WEFT_CHECKED;
weft_status weft_tier_clock_has(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                weft_lane *lane) WEFT_CHECKED;
weft_status weft_tier_clock_frees(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                  weft_lane *lane) WEFT_CHECKED;
/* On the uploads' lane: before it waits for the slot; before it waits for the step; behind that. */
weft_status weft_tier_clock_asks(weft_tier_clock *clock, weft_lane *lane) WEFT_CHECKED;
weft_status weft_tier_clock_gets(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                 weft_lane *lane) WEFT_CHECKED;
weft_status weft_tier_clock_stepped(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                    weft_lane *lane) WEFT_CHECKED;
/* On whatever lane brings a kept expert up to date. */
weft_status weft_tier_clock_refreshes(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                      weft_lane *lane) WEFT_CHECKED;

#endif
