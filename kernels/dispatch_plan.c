#include <weft/kernels.h>

weft_status weft_dispatch_plan_check(const weft_dispatch_plan_args *args)
{
    if (args->wrong->choice < 0)
        return WEFT_OK;
    size_t choice = (size_t)args->wrong->choice;
    return WEFT_ERROR(WEFT_INTERNAL, "choice %zu of token %zu is expert %d of %zu",
                      choice % args->topk, choice / args->topk, (int)args->wrong->expert,
                      args->num_experts);
}
