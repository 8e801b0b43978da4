#include "launcher/training/batch_looks.h"

weft_status weft_trainer_look_at_batch(weft_trainer *t, int m, weft_lane *lane)
{
    bool is_bad;
    t->looks.last = m;
    if (t->shape.num_chunks > 1 || t->looks.bad >= 0 || ++t->looks.count == t->batches.num)
        return WEFT_OK; /* the last one is bad where no other is; its buckets may be summed by now
                         */
    WEFT_TRY(weft_lane_sync(lane));
    if (t->lanes[WEFT_LANE_REDUCE])
        WEFT_TRY(weft_lane_sync(t->lanes[WEFT_LANE_REDUCE]));
    WEFT_TRY(weft_optimizer_look(t->optimizer, lane, &is_bad));
    if (is_bad)
        t->looks.bad = m;
    return WEFT_OK;
}
