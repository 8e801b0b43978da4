/* Steps that experts in a file owe. An expert that no token chose has a gradient of zero: it
 * decays, and its moments do. Its record is not read for that alone: the steps are kept, and when
 * it is read next they are taken one behind the other, each by the AdamW call that it would have
 * been. */
#include "parallel/optimizer/internal.h"

static const weft_bucket_shape *shape_of(const weft_optimizer *o, int bucket)
{
    return &o->buckets.shapes[bucket];
}

/* On the lane of reads and writes: the record is in its place. */
static weft_status pay(void *context, int32_t record, weft_lane *lane)
{
    weft_optimizer *o = context;
    struct weft_owing *owing = &o->debts.records[record];
    for (int64_t i = owing->first; i < owing->first + owing->count; i++)
        WEFT_TRY(weft_optimizer_step_bucket(o, owing->bucket, lane,
                                            &o->debts.steps[i % WEFT_OWED_STEPS], true));
    owing->count = 0;
    return WEFT_OK;
}

weft_status weft_optimizer_make_debts(weft_optimizer *o)
{
    weft_records *records = weft_parameters_records(o->parameters, WEFT_SECTION_EXPERT);
    void *memory;
    if (!records)
        return WEFT_OK;
    const int num = weft_parameters_section(o->parameters, WEFT_SECTION_EXPERT)->num_buckets;
    WEFT_TRY(weft_arena_alloc_array(&o->arena, (size_t)num, sizeof *o->debts.records, &memory));
    o->debts.records = memory;
    o->debts.scale = 1;
    weft_records_set_payment(records, pay, o);
    return WEFT_OK;
}

/* One in WEFT_MAX_OWED steps is taken, not of all buckets at once. */
bool weft_optimizer_may_owe(const weft_optimizer *o, int bucket, int64_t running_step)
{
    const weft_bucket_shape *shape = shape_of(o, bucket);
    return o->debts.records && shape->offloaded && !shape->reduces &&
           (running_step + bucket) % WEFT_MAX_OWED != 0;
}

/* Of an expert whose sums are zero without a look at its gradient. */
typedef struct zeros {
    double *sums;
    int count;
} zeros;

static weft_status clear_sums(const void *raw)
{
    const zeros *z = raw;
    for (int i = 0; i < z->count; i++)
        z->sums[i] = 0;
    return WEFT_OK;
}

weft_status weft_optimizer_square_zero(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    const int end = owned[num_owned - 1].end_norm;
    return weft_lane_submit(lane, "squares of no gradient", clear_sums,
                            &(zeros){o->host_sums + owned->first_norm, end - owned->first_norm},
                            sizeof(zeros));
}

void weft_optimizer_owe(weft_optimizer *o, int bucket, int64_t step, double lr)
{
    weft_debts *d = &o->debts;
    const int32_t record = shape_of(o, bucket)->index;
    weft_records *records = weft_parameters_records(o->parameters, WEFT_SECTION_EXPERT);
    struct weft_owing *owing = &d->records[record];
    if (weft_optimizer_skips(o))
        return;
    if (d->num_steps == 0 || d->steps[(d->num_steps - 1) % WEFT_OWED_STEPS].step != step)
        d->steps[d->num_steps++ % WEFT_OWED_STEPS] = (struct weft_owed_step){step, lr};
    if (!weft_records_owes(records, record))
        *owing = (struct weft_owing){.bucket = bucket, .first = d->num_steps - 1};
    owing->count++;
    weft_records_owe(records, record);
}
