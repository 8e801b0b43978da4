/* No backend at all, for programs that plan and never compute: layers link against it, so that
 * their outlines can be made with a C compiler alone. */
#include "kernels/host.h"
#include "kernels/kernels.h"
#include "kernels/reorder.h"

const weft_kernel_ops weft_kernel_ops_cpu = {.name = "of no device"};
const weft_kernel_ops weft_kernel_ops_cuda = {.name = "of no device"};

#define ABSENT(name)                                                                               \
    weft_status weft_host_##name(const weft_##name##_args *args, int num_threads)                  \
    {                                                                                              \
        (void)args;                                                                                \
        (void)num_threads;                                                                         \
        return WEFT_ERROR(WEFT_INTERNAL, "weft_host_" #name ": this program plans, it does not "   \
                                         "run");                                                   \
    }
WEFT_HOST_KERNEL_LIST(ABSENT)
#undef ABSENT

weft_status weft_host_zero(void *to, size_t bytes, int num_threads)
{
    (void)to;
    (void)bytes;
    (void)num_threads;
    return WEFT_ERROR(WEFT_INTERNAL, "weft_host_zero: this program plans, it does not run");
}

weft_status weft_reorder(weft_lane *lane, const weft_reorder_args *args)
{
    (void)lane;
    (void)args;
    return WEFT_ERROR(WEFT_INTERNAL, "weft_reorder: this program plans, it does not run");
}
