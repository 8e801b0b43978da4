/* The device that the environment variable WEFT_TEST_DEVICE names: cpu, which is the default, or
 * cuda. The same tests hold on both. */
#ifndef WEFT_TESTS_CORE_DEVICE_UNDER_TEST_H
#define WEFT_TESTS_CORE_DEVICE_UNDER_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/device.h>

static inline bool on_cuda(void)
{
    const char *device = getenv("WEFT_TEST_DEVICE");
    return device && !strcmp(device, "cuda");
}

/* Ends the program as skipped, and says why, where the device is not there. */
static inline void skip_without_device(void)
{
    const char *why = NULL;
    if (on_cuda() && weft_device_num_cuda(&why) == 0) {
        printf("skipped: no CUDA device: %s\n", why);
        exit(77);
    }
}

/* `num_threads` as for weft_device_create_cpu. */
static inline weft_status device_under_test(int num_threads, size_t budget_bytes, weft_device **out)
{
    return on_cuda() ? weft_device_create_cuda(0, budget_bytes, out)
                     : weft_device_create_cpu(num_threads, budget_bytes, out);
}

#endif
