/* What comm.c stands on, for programs that plan and never communicate: their groups only note
 * (comm/note). Nothing here is ever called for them but the first. */
#include "comm/comm_ops.h"
#include "comm/fold.h"
#include "comm/staging.h"

bool weft_fold_supports(weft_dtype dtype)
{
    return dtype != WEFT_U8;
}

static weft_status absent(const char *what)
{
    return WEFT_ERROR(WEFT_INTERNAL, "%s: this program plans, it does not run", what);
}

bool weft_staging_is_needed(const weft_lane *lane)
{
    (void)lane;
    return false;
}

weft_status weft_staging_reserve(weft_lane *lane, size_t bytes)
{
    (void)lane, (void)bytes;
    return WEFT_OK;
}

weft_status weft_staging_begin(weft_lane *lane, const weft_comm_op *op, weft_staging *out)
{
    (void)lane, (void)op, (void)out;
    return absent("staging");
}

weft_status weft_staging_end(weft_lane *lane, const weft_staging *staging)
{
    (void)lane, (void)staging;
    return absent("staging");
}

weft_status weft_comm_split(weft_comm *parent, int color, int key, const char *name,
                            weft_comm_purpose purpose, weft_comm **out)
{
    (void)parent, (void)color, (void)key, (void)name, (void)purpose, (void)out;
    return absent("weft_comm_split");
}

weft_status weft_comm_split_node(weft_comm *parent, weft_comm **out)
{
    (void)parent, (void)out;
    return absent("weft_comm_split_node");
}
