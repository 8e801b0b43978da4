/* How long compute waits for experts beyond device memory (layers/tier/run.h), and which part is
 * due to the host's steps, by clocks on the lanes' threads and so on the CPU alone.
 *
 * The uploads' lane is late by its waits for steps, less what it would have waited for a slot
 * anyway. A wait of compute for an upload is due to steps as far as the upload is later than
 * compute already is. All waits for kept experts are due to steps, since only a step makes them
 * come up again. */
#ifndef WEFT_LAYERS_TIER_CLOCK_H
#define WEFT_LAYERS_TIER_CLOCK_H

#include <stdbool.h>

#include <weft/device.h>

/* Zero is valid: a stopped clock. One lane's thread uses each field. */
typedef struct weft_tier_clock {
    bool runs;
    double since_us, waited_us, delayed_us; /* compute's; delayed: waits due to steps */
    double asked_us, late_us;               /* the uploads' */
} weft_tier_clock;

/* A stamp on device memory for an expert's weights, passed between lanes with the memory, by the
 * same events. Zero is valid. */
typedef struct weft_tier_stamp {
    double late_us;                  /* the upload's lateness, until compute uses the weights */
    double freed_us, freed_delay_us; /* compute's clock and delay when the memory became free */
} weft_tier_stamp;

typedef enum weft_tier_moment {
    WEFT_TIER_BEGIN,     /* on the compute lane: a program begins; */
    WEFT_TIER_HAS,       /* compute has the weights; */
    WEFT_TIER_FREES,     /* compute is done with them */
    WEFT_TIER_ASKS,      /* on the uploads' lane: before its wait for the slot; */
    WEFT_TIER_GETS,      /* before its wait for the step; */
    WEFT_TIER_STEPPED,   /* behind that */
    WEFT_TIER_REFRESHES, /* on the lane that updates a kept expert */
} weft_tier_moment;
/* Reads the clock at that moment of the lane. stamp: NULL for BEGIN and ASKS. */
weft_status weft_tier_clock_read(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                 weft_tier_moment moment, weft_lane *lane) WEFT_CHECKED;

#endif
