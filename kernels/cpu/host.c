#include "kernels/host.h"

#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/cpu.h"

/* A thread's number of OpenMP threads, which it gets back: it may compute for others. */
static int set_threads(int num_threads)
{
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    omp_set_num_threads(num_threads);
    return before;
#else
    return num_threads;
#endif
}

void weft_host_prepare(void)
{
#ifdef _OPENMP
    (void)omp_get_max_threads();
#endif
}

static weft_status check_threads(const char *kernel, int num_threads)
{
    return num_threads < 1 ? WEFT_ERROR(WEFT_INTERNAL, "host %s: %d threads", kernel, num_threads)
                           : WEFT_OK;
}

#define HOST(kernel)                                                                               \
    weft_status weft_host_##kernel(const weft_##kernel##_args *args, int num_threads)              \
    {                                                                                              \
        weft_##kernel##_args whole;                                                                \
        WEFT_TRY(check_threads(#kernel, num_threads));                                             \
        WEFT_TRY(weft_kernel_accept_##kernel(args, &whole));                                       \
        const int before = set_threads(num_threads);                                               \
        const weft_status status = weft_cpu_##kernel(&whole);                                      \
        set_threads(before);                                                                       \
        return status;                                                                             \
    }
WEFT_HOST_KERNEL_LIST(HOST)
#undef HOST

weft_status weft_host_zero(void *to, size_t bytes, int num_threads)
{
    const size_t piece = (size_t)1 << 20; /* smaller ones are not worth waking threads for */
    WEFT_TRY(check_threads("zero", num_threads));
    if (bytes > 0 && !to)
        return WEFT_ERROR(WEFT_INTERNAL, "host zero of %zu bytes: no memory", bytes);
    const int before = set_threads(num_threads);
#pragma omp parallel for schedule(static) if (bytes > piece)
    for (size_t at = 0; at < bytes; at += piece)
        memset((char *)to + at, 0, bytes - at < piece ? bytes - at : piece);
    set_threads(before);
    return WEFT_OK;
}
