/* How long lanes compute: what their threads spend in functions submitted to them, without waits
 * for other lanes and for other ranks. Of the CPU device; elsewhere 0. */
#ifndef WEFT_CORE_DEVICE_BUSY_H
#define WEFT_CORE_DEVICE_BUSY_H

#include <stdint.h>

#include <weft/device.h>

/* On any thread: so much of the time of the function that runs there is not computing; below 0: it
 * counts as more than it took. */
void weft_busy_note_waited(int64_t ns);
/* On a lane's thread, after a function that ran from start_us to end_us (core/clock.h): adds what
 * of it was computing. */
void weft_busy_add(weft_lane *lane, double start_us, double end_us);
/* Seconds since the last call. */
double weft_lane_take_busy(weft_lane *lane);
/* When the last function ended that was submitted to an idle lane (core/clock.h); 0: none did. */
double weft_lane_ended_us(const weft_lane *lane);

#endif
