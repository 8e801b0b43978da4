#include <math.h>
#include <stdint.h>
#include <string.h>

#include <weft/kernels.h>

#include "core/device/device.h"
#include "parallel/optimizer/internal.h"

static weft_status sum_squares(weft_lane *lane, const float *x, size_t count, double *sum)
{
    return weft_sum_squares(lane,
                            &WEFT_ARGS(weft_sum_squares_args, .count = count, .x = x, .sum = sum));
}

/* The host has summed those in its memory. */
static bool is_on_host(const weft_optimizer *o, const weft_norm_run *run)
{
    return weft_parameters_on_host(o->parameters, o->part.pieces[run->first_piece].placed->section);
}

/* The first piece of a run whose sum is not finite. */
static weft_status name_not_finite(weft_optimizer *o, const weft_norm_run *run, weft_lane *lane,
                                   int *out_layer, char out[WEFT_MAX_NAME_BYTES])
{
    double *device = o->norm.device.sums, *host = o->norm.host.sums;
    for (int i = run->first_piece; i < run->end_piece; i++) {
        const weft_owned_piece *piece = &o->part.pieces[i];
        const weft_parameter *parameter = &piece->placed->parameter;
        const weft_section_kind section = piece->placed->section;
        WEFT_TRY(weft_lane_zero(lane, device, sizeof *device));
        WEFT_TRY(
            weft_parameters_take(o->parameters, section, piece->bucket, WEFT_RECORD_G, 0, lane));
        WEFT_TRY(sum_squares(lane,
                             weft_parameters_grad(o->parameters, section, piece->bucket, piece->at),
                             piece->count, device));
        WEFT_TRY(weft_parameters_give(o->parameters, section, piece->bucket, lane));
        WEFT_TRY(weft_lane_copy(lane, host, device, sizeof *host));
        WEFT_TRY(weft_lane_sync(lane));
        memcpy(out, parameter->name, WEFT_MAX_NAME_BYTES);
        *out_layer = piece->placed->layer;
        if (!isfinite(*host))
            break;
    }
    return WEFT_OK;
}

/* What was not finite before ranks summed it, where that is known: by its name one finds who made
 * it. */
static void name_origin(weft_optimizer *o)
{
    weft_norm_record *record = &o->norm.own_record;
    weft_look_result look;
    weft_look_take(&o->norm.look, o->parameters, o->norm.host.found, &look);
    record->num_before = look.count;
    if (look.count == 0)
        return;
    const weft_placed *first = weft_parameters_at(o->parameters, look.first);
    const weft_placed *last = weft_parameters_at(o->parameters, look.last);
    record->knows = look.is_beside_experts ? WEFT_KNOWS_ORIGIN : WEFT_KNOWS_EXPERT;
    memcpy(record->name, first->parameter.name, WEFT_MAX_NAME_BYTES);
    memcpy(record->last, last->parameter.name, WEFT_MAX_NAME_BYTES);
    record->layer = first->layer;
    record->expert = look.first_expert;
    o->norm.totals[WEFT_NORM_BAD_GRADIENTS] = 1;
}

/* Fills what this rank brings to the totals and its record, the runs' sums added in their order.
 * Waits for them: what is told of a gradient that is not finite takes a second look; and the loss
 * is there by then. */
static weft_status sum_own(weft_optimizer *o, weft_lane *lane, const double *loss)
{
    weft_norm_record *record = &o->norm.own_record;
    const weft_norm_run *bad = NULL;
    size_t bytes = (size_t)o->part.num_norm_runs * sizeof(double);

    if (bytes > 0)
        WEFT_TRY(weft_lane_zero(lane, o->norm.device.sums, bytes));
    for (int i = 0; i < o->part.num_norm_runs; i++)
        if (!is_on_host(o, &o->part.norm_runs[i]))
            WEFT_TRY(sum_squares(lane, weft_optimizer_run_grad(o, &o->part.norm_runs[i]),
                                 o->part.norm_runs[i].count, o->norm.device.sums + i));
    const size_t found = (size_t)o->norm.look.num_parts * sizeof(int32_t); /* behind the sums */
    if (bytes + found > 0)
        WEFT_TRY(weft_lane_copy(lane, o->norm.host.sums, o->norm.device.sums, bytes + found));
    if (found > 0)
        WEFT_TRY(weft_lane_zero(lane, o->norm.look.found, found));
    WEFT_TRY(weft_lane_sync(lane));
    memset(record, 0, sizeof *record);
    memset(o->norm.totals, 0, sizeof o->norm.totals);
    record->loss = loss ? *loss : 0;
    for (int i = 0; i < o->part.num_norm_runs; i++) {
        double sum =
            (is_on_host(o, &o->part.norm_runs[i]) ? o->norm.host_sums : o->norm.host.sums)[i];
        if (!isfinite(sum) && !bad)
            bad = &o->part.norm_runs[i];
        o->norm.totals[WEFT_NORM_SQUARES] += sum;
    }
    o->norm.totals[WEFT_NORM_BAD_LOSSES] = !isfinite(record->loss);
    o->norm.totals[WEFT_NORM_LOSS] = isfinite(record->loss) ? record->loss : 0;
    o->norm.totals[WEFT_NORM_BAD_GRADIENTS] = bad != NULL;
    record->expert = -1;
    record->knows = bad ? WEFT_KNOWS_SUM : WEFT_KNOWS_NOTHING;
    if (bad)
        WEFT_TRY(name_not_finite(o, bad, lane, &record->layer, record->name));
    name_origin(o);
    return WEFT_OK;
}

/* From the totals, which every rank has with the same bits. A loss that is not finite goes first:
 * gradients follow from it. */
static weft_status finish_norm(const void *args)
{
    weft_optimizer *o = *(weft_optimizer *const *)args;
    double scale = weft_loss_scale_factor(&o->judged.loss_scale);

    o->judged.overflowed = false;
    o->judged.fault = (weft_fault){0};
    if (o->norm.totals[WEFT_NORM_BAD_LOSSES] > 0)
        return weft_optimizer_note_fault(o, WEFT_FAULT_LOSS);
    if (o->norm.totals[WEFT_NORM_BAD_GRADIENTS] > 0) {
        if (!weft_loss_scale_is_on(&o->judged.loss_scale))
            return weft_optimizer_note_fault(o, WEFT_FAULT_GRADIENT);
        o->judged.overflowed = true;
        o->norm.grad_norm = INFINITY;
        return WEFT_OK;
    }
    o->norm.grad_norm = sqrt(o->norm.totals[WEFT_NORM_SQUARES]) / scale;
    if (weft_loss_mean_spikes(&o->judged.loss_mean, o->norm.totals[WEFT_NORM_LOSS],
                              o->options.loss_spike_factor))
        return weft_optimizer_note_fault(o, WEFT_FAULT_SPIKE);
    double clip =
        o->options.clip_grad > 0.0 ? o->options.clip_grad / (o->norm.grad_norm + 1e-6) : 1.0;
    *o->norm.host.grad_scale = (float)((clip < 1.0 ? clip : 1.0) / scale);
    return WEFT_OK;
}

/* Each element of each global parameter is counted once over the world: see
 * weft_owned_piece.counted. */
static weft_status enqueue_norm(weft_optimizer *o, weft_lane *lane, const double *loss)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    WEFT_TRY(sum_own(o, lane, loss));
    WEFT_TRY(weft_all_reduce(world, lane, o->norm.totals, WEFT_NUM_NORM_TOTALS, WEFT_F64,
                             WEFT_REDUCE_SUM));
    const weft_range ranges[] = {
        {.name = "totals", .base = o->norm.totals, .bytes = sizeof o->norm.totals},
        {.name = "scale", .base = o->norm.host.grad_scale, .bytes = sizeof(float), .writes = true}};
    WEFT_TRY(weft_note_ranges(lane, "gradient norm", ranges, 2));
    WEFT_TRY(weft_lane_submit(lane, "gradient norm", finish_norm, &o, sizeof(weft_optimizer *)));
    return weft_lane_copy(lane, o->norm.device.grad_scale, o->norm.host.grad_scale, sizeof(float));
}

/* Sets the next step's scale. Every rank has the same norm, so all step or none does. */
static weft_status adjust_scale(weft_optimizer *o)
{
    if (weft_loss_scale_update(&o->judged.loss_scale, &o->options.loss_scale, o->judged.overflowed))
        return WEFT_OK;
    return weft_optimizer_refuse_scale(o);
}

weft_status weft_optimizer_norm(weft_optimizer *o, weft_lane *lane, const double *loss)
{
    const bool scales = weft_loss_scale_is_on(&o->judged.loss_scale);
    WEFT_TRY(enqueue_norm(o, lane, loss));
    if (!scales && !o->options.skips_faults)
        return WEFT_OK;
    WEFT_TRY(weft_lane_sync(lane));
    if (o->judged.held || o->judged.fault.kind != WEFT_FAULT_NONE)
        return WEFT_OK;
    if (!o->judged.overflowed && o->options.loss_spike_factor > 0)
        weft_loss_mean_add(&o->judged.loss_mean, o->norm.totals[WEFT_NORM_LOSS]);
    return scales ? adjust_scale(o) : WEFT_OK;
}

/* Without memory of earlier gradients AdamW's step is g / sqrt(g^2): the sign. */
static void move_by_sign(weft_adamw_args *args, float rate)
{
    args->lr = rate;
    args->beta1 = args->beta2 = args->weight_decay = 0;
    args->epsilon = 1e-30f;
}

/* The gradient is the direction. */
static void move_by_direction(weft_adamw_args *args)
{
    args->m = args->v = NULL;
    args->grad_scale = NULL;
}

/* Enqueues a bucket's AdamW calls; owed: on a record that is read, with a gradient of zero. */
static weft_status step_bucket(weft_optimizer *o, int bucket, weft_lane *lane,
                               const struct weft_owed_step *step, bool owed)
{
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    const int end = owned[num_owned - 1].end_update;
    const bool on_host =
        weft_optimizer_on_host(o, bucket) || weft_bucket_is_staged(&o->buckets.shapes[bucket]);
    for (int i = owned->first_update; i < end; i++) {
        const weft_update *update = &o->part.updates[i];
        const weft_update_place place = weft_optimizer_update_place(o, bucket, owned, update);
        bool is_weight = dtype == WEFT_F32;
        weft_adamw_args args = {
            .struct_bytes = sizeof args,
            .count = update->count,
            .master = is_weight ? place.weight
                                : weft_optimizer_state(o, owned, WEFT_STATE_MASTER, update->state),
            .low = weft_optimizer_low(o, owned, update->state),
            .m = weft_optimizer_state(o, owned, WEFT_STATE_EXP_AVG, update->state),
            .v = weft_optimizer_state(o, owned, WEFT_STATE_EXP_AVG_SQ, update->state),
            .grad = place.grad,
            .grad_scale = owed ? &o->debts.scale : o->norm.device.grad_scale,
            .weight = is_weight ? NULL : place.weight,
            .dtype = dtype,
            .lr = update->lr_mult * (float)step->lr,
            .beta1 = (float)o->options.adam_beta1,
            .beta2 = (float)o->options.adam_beta2,
            .epsilon = (float)o->options.adam_eps,
            .weight_decay = update->weight_decay,
            .step = step->step};
        if (update->sign_rate > 0)
            move_by_sign(&args, update->sign_rate);
        if (update->by_muon)
            move_by_direction(&args);
        WEFT_TRY(on_host ? weft_optimizer_host_adamw(o, owned, &args, lane)
                         : weft_adamw(lane, &args));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_update(weft_optimizer *o, int bucket, weft_lane *lane, int64_t step,
                                  double lr)
{
    const unsigned changes = WEFT_RECORD_W | WEFT_RECORD_S;
    const struct weft_owed_step now = {step, lr};
    if (!weft_optimizer_skips(o)) {
        WEFT_TRY(weft_optimizer_take(o, bucket, changes | WEFT_RECORD_G, changes, lane));
        WEFT_TRY(weft_state_check_before(o, bucket, lane));
        WEFT_TRY(weft_muon_directions(o, bucket, lane));
        WEFT_TRY(step_bucket(o, bucket, lane, &now, false));
        WEFT_TRY(weft_state_check_behind(o, bucket, lane));
    }
    return weft_optimizer_end_update(o, bucket, lane, !weft_optimizer_skips(o));
}

weft_status weft_optimizer_gather(weft_optimizer *o, int bucket, weft_lane *lane)
{
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned), *end = owned + num_owned;
    const weft_section *section = weft_parameters_section(o->parameters, owned->section);

    weft_comm *group = weft_bucket_is_offloaded(&o->buckets.shapes[bucket])
                           ? weft_parameters_groups(o->parameters)->gather_experts
                           : section->group;

    if (!weft_bucket_gathers(&o->buckets.shapes[bucket]) || weft_optimizer_skips(o))
        return WEFT_OK;
    WEFT_TRY(weft_optimizer_take(o, bucket, WEFT_RECORD_W, WEFT_RECORD_W, lane));
    for (; owned < end; owned++)
        WEFT_TRY(weft_all_gather(
            group, lane,
            weft_parameters_weight(o->parameters, owned->section, owned->bucket, owned->first),
            weft_parameters_weight(o->parameters, owned->section, owned->bucket, owned->start),
            owned->count, dtype));
    return weft_optimizer_give(o, bucket, lane);
}

double weft_optimizer_grad_norm(const weft_optimizer *o)
{
    return o->norm.grad_norm;
}

weft_loss_scale *weft_optimizer_loss_scale(weft_optimizer *o)
{
    return &o->judged.loss_scale;
}

/* Steps that experts in a file owe. An expert that no token chose has a gradient of zero: it
 * decays, and its moments do. Its record is not read for that alone: the steps are kept, and when
 * it is read next they are taken one behind the other, each by the AdamW call that it would have
 * been. */

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
        WEFT_TRY(step_bucket(o, owing->bucket, lane, &o->debts.steps[i % WEFT_OWED_STEPS], true));
    owing->count = 0;
    return WEFT_OK;
}

weft_status weft_optimizer_make_debts(weft_optimizer *o)
{
    weft_records *records = weft_parameters_records(o->parameters, WEFT_SECTION_EXPERT);
    if (!records)
        return WEFT_OK;
    const int num = weft_parameters_section(o->parameters, WEFT_SECTION_EXPERT)->num_buckets;
    WEFT_TRY(WEFT_ARRAY(&o->arena, (size_t)num, &o->debts.records));
    o->debts.scale = 1;
    weft_records_set_payment(records, pay, o);
    return WEFT_OK;
}

/* One in WEFT_MAX_OWED steps is taken, not of all buckets at once. */
bool weft_optimizer_may_owe(const weft_optimizer *o, int bucket, int64_t running_step)
{
    const weft_bucket_shape *shape = shape_of(o, bucket);
    return o->debts.records && weft_bucket_is_offloaded(shape) && !weft_bucket_reduces(shape) &&
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
    const zeros z = {o->norm.host_sums + owned->first_norm,
                     owned[num_owned - 1].end_norm - owned->first_norm};
    const weft_range range = {
        .name = "sums", .base = z.sums, .bytes = (size_t)z.count * sizeof *z.sums, .writes = true};
    WEFT_TRY(weft_note_ranges(lane, "squares of no gradient", &range, 1));
    return weft_lane_submit(lane, "squares of no gradient", clear_sums, &z, sizeof z);
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
