/* No backend at all, for programs that plan and never compute: layers link against it, so that
 * their outlines can be made with a C compiler alone. */
#include "kernels/host.h"
#include "kernels/kernels.h"
#include "kernels/reorder.h"

#define ABSENT(name)                                                                               \
    weft_status weft_##name(weft_lane *lane, const weft_##name##_args *args)                       \
    {                                                                                              \
        (void)lane;                                                                                \
        (void)args;                                                                                \
        return WEFT_ERROR(WEFT_INTERNAL, "weft_" #name ": this program plans, it does not run");   \
    }
WEFT_KERNEL_LIST(ABSENT)
#undef ABSENT

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

weft_status weft_dispatch_plan_check(const weft_dispatch_plan_args *args)
{
    (void)args;
    return WEFT_ERROR(WEFT_INTERNAL, "this program plans, it does not run");
}

weft_status weft_reorder(weft_lane *lane, const weft_reorder_args *args)
{
    (void)lane;
    (void)args;
    return WEFT_ERROR(WEFT_INTERNAL, "weft_reorder: this program plans, it does not run");
}

bool weft_gemm_gelu_is_exact(const weft_lane *lane, weft_dtype c_dtype)
{
    (void)lane;
    (void)c_dtype;
    return false;
}
