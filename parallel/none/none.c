/* No file at all, for programs that plan and never compute. */
#include "parallel/spill/spill.h"

static weft_status absent(void)
{
    return WEFT_ERROR(WEFT_INTERNAL, "a spill file: this program plans, it does not run");
}

weft_status weft_spill_create(const weft_spill_options *options, weft_spill **out)
{
    (void)options;
    (void)out;
    return absent();
}

void weft_spill_destroy(weft_spill *spill)
{
    (void)spill;
}

weft_status weft_spill_run(weft_spill *spill, const weft_spill_transfer *transfers,
                           int num_transfers)
{
    (void)spill;
    (void)transfers;
    (void)num_transfers;
    return absent();
}

void weft_spill_get_stats(weft_spill *spill, weft_spill_stats *out)
{
    (void)spill;
    *out = (weft_spill_stats){0};
}
