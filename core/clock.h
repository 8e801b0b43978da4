#ifndef WEFT_CORE_CLOCK_H
#define WEFT_CORE_CLOCK_H

/* Microseconds on the monotonic clock. */
double weft_now_us(void);

#endif
