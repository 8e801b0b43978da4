#include "core/clock.h"
#include "kernels/cpu/cpu.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <weft/device.h>

#include "core/device/device.h"
#include "kernels/flops.h"

/* oneDNN, too, takes its number of threads from the calling thread's setting. */
static void use_threads_of_lane(void)
{
#ifdef _OPENMP
    const weft_device *device = weft_lane_current_device();
    if (device)
        omp_set_num_threads(weft_device_num_threads(device));
#endif
}

#define SUBMIT(kernel)                                                                             \
    static weft_status run_##kernel(const void *args)                                              \
    {                                                                                              \
        use_threads_of_lane();                                                                     \
        const weft_##kernel##_args *a = args;                                                      \
        const int64_t start = weft_now_ns();                                                       \
        const weft_status status = weft_cpu_##kernel(a);                                           \
        weft_pace_end(start, WEFT_KERNEL_FLOPS(a));                                                \
        return status;                                                                             \
    }                                                                                              \
    static weft_status submit_##kernel(weft_lane *lane, const weft_##kernel##_args *args)          \
    {                                                                                              \
        _Static_assert(sizeof *args <= WEFT_LANE_MAX_ARGS_BYTES, "a lane cannot carry " #kernel);  \
        return weft_pace_passes_over(lane)                                                         \
                   ? weft_pace_pass(lane, #kernel, WEFT_KERNEL_FLOPS(args))                        \
                   : weft_lane_submit(lane, #kernel, run_##kernel, args, sizeof *args);            \
    }
WEFT_KERNEL_LIST(SUBMIT)
#undef SUBMIT

const weft_kernel_ops weft_kernel_ops_cpu = {.name = "cpu",
#define SLOT(kernel) .kernel = submit_##kernel,
                                             WEFT_KERNEL_LIST(SLOT)
#undef SLOT
};
