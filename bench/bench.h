/* What the benches share: an end on failure, operands, a clock and order statistics. */
#ifndef WEFT_BENCH_BENCH_H
#define WEFT_BENCH_BENCH_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/device.h>

#include "core/clock.h"
#include "core/sorted.h"

static inline void check(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, weft_error_get()->text);
    exit(weft_status_exit_code(status));
}

/* The pages are there; values do not change the speed. */
static inline void *allocate_zeros(weft_device *device, size_t bytes)
{
    void *memory;
    check(weft_device_alloc(device, WEFT_SPACE_DEVICE, bytes, "operands", &memory));
    memset(memory, 0, bytes);
    return memory;
}

static inline double seconds_now(void)
{
    return 1e-6 * weft_now_us();
}

#endif
