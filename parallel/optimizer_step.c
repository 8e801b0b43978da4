#include <math.h>
#include <stdint.h>
#include <string.h>

#include <weft/kernels.h>

#include "parallel/optimizer_internal.h"

static weft_status sum_squares(weft_lane *lane, const float *x, size_t count, double *sum)
{
    return weft_sum_squares(lane,
                            &WEFT_ARGS(weft_sum_squares_args, .count = count, .x = x, .sum = sum));
}

/* The first piece of a run whose sum is not finite. */
static weft_status name_not_finite(weft_optimizer *o, const weft_norm_run *run, weft_lane *lane,
                                   char out[WEFT_MAX_NAME_BYTES])
{
    double *device = o->device_norm.sums, *host = o->host_norm.sums;
    for (int i = run->first_piece; i < run->end_piece; i++) {
        const weft_owned_piece *piece = &o->pieces[i];
        const weft_parameter *parameter = &piece->placed->parameter;
        WEFT_TRY(weft_lane_zero(lane, device, sizeof *device));
        const float *grad = weft_parameters_grad(o->parameters, piece->placed->section,
                                                 piece->placed->bucket, piece->at);
        WEFT_TRY(sum_squares(lane, grad, piece->count, device));
        WEFT_TRY(weft_lane_copy(lane, host, device, sizeof *host));
        WEFT_TRY(weft_lane_sync(lane));
        memcpy(out, parameter->name, WEFT_MAX_NAME_BYTES);
        if (!isfinite(*host))
            break;
    }
    return WEFT_OK;
}

/* Fills what this rank brings to the totals and its record, the runs' sums added in their order.
 * Waits for them: what is told of a gradient that is not finite takes a second look; and the loss
 * is there by then. */
static weft_status sum_own(weft_optimizer *o, weft_lane *lane, const double *loss)
{
    weft_norm_record *record = &o->own_record;
    const weft_norm_run *bad = NULL;
    size_t bytes = (size_t)o->num_norm_runs * sizeof(double);

    if (bytes > 0)
        WEFT_TRY(weft_lane_zero(lane, o->device_norm.sums, bytes));
    for (int i = 0; i < o->num_norm_runs; i++)
        WEFT_TRY(sum_squares(lane, o->norm_runs[i].grad, o->norm_runs[i].count,
                             o->device_norm.sums + i));
    if (bytes > 0)
        WEFT_TRY(weft_lane_copy(lane, o->host_norm.sums, o->device_norm.sums, bytes));
    WEFT_TRY(weft_lane_sync(lane));
    memset(record, 0, sizeof *record);
    memset(o->totals, 0, sizeof o->totals);
    record->loss = loss ? *loss : 0;
    for (int i = 0; i < o->num_norm_runs; i++) {
        double sum = o->host_norm.sums[i];
        if (!isfinite(sum) && !bad)
            bad = &o->norm_runs[i];
        o->totals[WEFT_NORM_SQUARES] += sum;
    }
    o->totals[WEFT_NORM_BAD_LOSSES] = !isfinite(record->loss);
    o->totals[WEFT_NORM_BAD_GRADIENTS] = bad != NULL;
    return bad ? name_not_finite(o, bad, lane, record->name) : WEFT_OK;
}

/* The record of the lowest rank that has something to tell, and that rank. Every rank takes part,
 * on the host: what follows on the world waits for the lane. */
static weft_status find_record(const weft_optimizer *o, bool tells, weft_norm_record *out,
                               int *out_rank)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    int64_t rank = tells ? weft_comm_rank(world) : INT64_MAX;
    WEFT_TRY(weft_comm_all_reduce_host(world, &rank, 1, WEFT_I64, WEFT_REDUCE_MIN));
    *out = o->own_record;
    *out_rank = (int)rank;
    return weft_comm_broadcast_host(world, out, sizeof *out, *out_rank);
}

static weft_status refuse_loss(const weft_optimizer *o)
{
    weft_norm_record record;
    int rank;
    WEFT_TRY(find_record(o, !isfinite(o->own_record.loss), &record, &rank));
    return WEFT_ERROR(WEFT_DIVERGED, "loss is %g on rank %d", fabs(record.loss), rank);
}

static weft_status refuse_gradient(const weft_optimizer *o)
{
    weft_norm_record record;
    int rank;
    WEFT_TRY(find_record(o, o->own_record.name[0], &record, &rank));
    return WEFT_ERROR(WEFT_DIVERGED, "gradient norm is not finite; first in %.*s on rank %d",
                      (int)sizeof record.name - 1, record.name, rank);
}

/* From the totals, which every rank has with the same bits. A loss that is not finite goes first:
 * gradients follow from it. */
static weft_status finish_norm(const void *args)
{
    weft_optimizer *o = *(weft_optimizer *const *)args;
    double scale = weft_loss_scale_factor(&o->loss_scale);

    o->overflowed = false;
    if (o->totals[WEFT_NORM_BAD_LOSSES] > 0)
        return refuse_loss(o);
    if (o->totals[WEFT_NORM_BAD_GRADIENTS] > 0) {
        if (!weft_loss_scale_is_on(&o->loss_scale))
            return refuse_gradient(o);
        o->overflowed = true;
        o->grad_norm = INFINITY;
        return WEFT_OK;
    }
    o->grad_norm = sqrt(o->totals[WEFT_NORM_SQUARES]) / scale;
    double clip = o->options.clip_grad > 0.0 ? o->options.clip_grad / (o->grad_norm + 1e-6) : 1.0;
    *o->host_norm.grad_scale = (float)((clip < 1.0 ? clip : 1.0) / scale);
    return WEFT_OK;
}

/* Each element of each global parameter is counted once over the world: see
 * weft_owned_piece.counted. */
static weft_status enqueue_norm(weft_optimizer *o, weft_lane *lane, const double *loss)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    WEFT_TRY(sum_own(o, lane, loss));
    WEFT_TRY(
        weft_all_reduce(world, lane, o->totals, WEFT_NUM_NORM_TOTALS, WEFT_F64, WEFT_REDUCE_SUM));
    WEFT_TRY(weft_lane_submit(lane, "gradient norm", finish_norm, &o, sizeof(weft_optimizer *)));
    return weft_lane_copy(lane, o->device_norm.grad_scale, o->host_norm.grad_scale, sizeof(float));
}

/* Waits for the norm and sets the next step's scale. Every rank has the same norm, so all step or
 * none does. */
static weft_status adjust_scale(weft_optimizer *o, weft_lane *lane)
{
    WEFT_TRY(weft_lane_sync(lane));
    if (weft_loss_scale_update(&o->loss_scale, &o->options.loss_scale, o->overflowed))
        return WEFT_OK;
    weft_norm_record record;
    int rank;
    WEFT_TRY(find_record(o, o->own_record.name[0], &record, &rank));
    return WEFT_ERROR(WEFT_DIVERGED,
                      "gradients overflow at the lowest loss scale, %g; first in %.*s on rank %d",
                      o->loss_scale.scale, (int)sizeof record.name - 1, record.name, rank);
}

weft_status weft_optimizer_norm(weft_optimizer *o, weft_lane *lane, const double *loss)
{
    WEFT_TRY(enqueue_norm(o, lane, loss));
    return weft_loss_scale_is_on(&o->loss_scale) ? adjust_scale(o, lane) : WEFT_OK;
}

/* Without a scale no step is skipped, and the lane may still be at the norm. */
static bool is_skipped(const weft_optimizer *o)
{
    return weft_loss_scale_is_on(&o->loss_scale) && o->overflowed;
}

weft_status weft_optimizer_update(weft_optimizer *o, int bucket, weft_lane *lane, int64_t step,
                                  double lr)
{
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    const weft_owned *owned = weft_optimizer_owned(o, bucket);
    for (int i = owned->first_update; i < owned->end_update && !is_skipped(o); i++) {
        const weft_update *update = &o->updates[i];
        void *weight =
            weft_parameters_weight(o->parameters, owned->section, owned->bucket, update->first);
        float *master = o->state[WEFT_STATE_MASTER];
        bool is_weight = dtype == WEFT_F32;
        weft_adamw_args args = {.struct_bytes = sizeof args,
                                .count = update->count,
                                .master = is_weight ? weight
                                          : master  ? master + update->state
                                                    : NULL,
                                .low = o->low ? o->low + update->state : NULL,
                                .m = o->state[WEFT_STATE_EXP_AVG] + update->state,
                                .v = o->state[WEFT_STATE_EXP_AVG_SQ] + update->state,
                                .grad = weft_parameters_grad(o->parameters, owned->section,
                                                             owned->bucket, update->first),
                                .grad_scale = o->device_norm.grad_scale,
                                .weight = is_weight ? NULL : weight,
                                .dtype = dtype,
                                .lr = (float)lr,
                                .beta1 = (float)o->options.adam_beta1,
                                .beta2 = (float)o->options.adam_beta2,
                                .epsilon = (float)o->options.adam_eps,
                                .weight_decay = update->weight_decay,
                                .step = step};
        WEFT_TRY(weft_adamw(lane, &args));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_gather(weft_optimizer *o, int bucket, weft_lane *lane)
{
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    const weft_owned *owned = weft_optimizer_owned(o, bucket);
    const weft_section *section = weft_parameters_section(o->parameters, owned->section);

    if (!o->buckets.shapes[bucket].gathers || is_skipped(o))
        return WEFT_OK;
    const size_t start = section->buckets[owned->bucket].offset;
    return weft_all_gather(
        section->group, lane,
        weft_parameters_weight(o->parameters, owned->section, owned->bucket, owned->first),
        weft_parameters_weight(o->parameters, owned->section, owned->bucket, start), owned->count,
        dtype);
}

double weft_optimizer_grad_norm(const weft_optimizer *o)
{
    return o->grad_norm;
}

weft_loss_scale *weft_optimizer_loss_scale(weft_optimizer *o)
{
    return &o->loss_scale;
}
