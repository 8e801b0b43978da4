/* A step of experts beyond device memory: which ones are kept, the order of updates, and a model's
 * entry points. */
#include <string.h>

#include "layers/pass/pass.h"
#include "layers/tier/internal.h"

static bool is_kept(const weft_tier_layer *l, int e)
{
    for (int i = 0; i < l->num_kept; i++)
        if (l->kept[i].bucket == l->first_bucket + e)
            return true;
    return false;
}

void weft_tier_positions(const weft_tier_run *t, int layer, const int64_t *offsets, int32_t *out)
{
    const weft_tier_layer *l = weft_tier_layer_of(t, layer);
    int count = l->num_kept;
    for (int e = 0; e < l->num_seats; e++)
        l->now[e] = offsets[e + 1] - offsets[e];
    for (int i = 0; i < l->num_kept; i++)
        out[i] = l->kept[i].bucket - l->first_bucket;
    for (int e = 0; e < l->num_seats; e++)
        if (e >= l->num_experts || !is_kept(l, e))
            out[count++] = e;
    weft_tier_sort_by_rows(out + l->num_kept, l->num_seats - l->num_kept, l->now);
}

void weft_tier_stand(int num, const int64_t *kept, const int64_t *rows, int32_t *out)
{
    int num_kept = 0, count;
    for (int e = 0; e < num; e++)
        num_kept += kept[e] > 0;
    count = num_kept;
    for (int e = 0; e < num; e++)
        out[kept[e] > 0 ? kept[e] - 1 : count++] = e;
    weft_tier_sort_by_rows(out + num_kept, num - num_kept, rows);
}

void weft_tier_kept_places(const weft_tier_run *t, int layer, int64_t *out)
{
    const weft_tier_layer *l = weft_tier_layer_of(t, layer);
    memset(out, 0, (size_t)l->num_experts * sizeof *out);
    for (int i = 0; i < l->num_kept; i++)
        out[l->kept[i].bucket - l->first_bucket] = i + 1;
}

/* Orders updates like the next forward's positions, if its rows are like this step's; or by landing
 * of gradients, after experts without rows in the last backward. */
static void order_updates(const weft_tier_run *t, weft_tier_layer *l)
{
    int32_t *wanted = l->turns[WEFT_TIER_TURN_WANTED].order;
    int32_t *landed = l->turns[WEFT_TIER_TURN_LANDED].order;
    int count = l->num_kept;
    for (int k = 0; k < l->num_kept; k++)
        wanted[k] = l->kept[k].bucket - l->first_bucket;
    for (int i = 0; i < l->num_experts; i++)
        if (!is_kept(l, l->order[i]))
            wanted[count++] = l->order[i];
    for (int e = 0; e < l->num_experts; e++) {
        landed[e] = e;
        l->now[e] = -(int64_t)t->experts[l->first_bucket + e].landed_at;
    }
    weft_tier_sort_by_rows(landed, l->num_experts, l->now);
}

/* Keeps the experts with most rows in the last step on the device; those that drop out free their
 * places for new ones. */
static void choose_kept(weft_tier_layer *l)
{
    for (int e = 0; e < l->num_experts; e++)
        l->order[e] = e;
    weft_tier_sort_by_rows(l->order, l->num_experts, l->rows);
    for (int e = 0; e < l->num_experts; e++)
        l->keeps[l->order[e]] = e < l->num_kept;
    for (int i = 0; i < l->num_kept; i++) {
        const int bucket = l->kept[i].bucket;
        if (bucket >= 0 && l->keeps[bucket - l->first_bucket])
            l->keeps[bucket - l->first_bucket] = false; /* it has a place already */
        else
            l->kept[i].bucket = -1;
    }
    for (int i = 0, e = 0; i < l->num_kept; i++) {
        if (l->kept[i].bucket >= 0)
            continue;
        while (!l->keeps[e])
            e++;
        l->kept[i].bucket = l->first_bucket + e++;
        l->kept[i].version = 0; /* its weights are not there yet */
    }
}

/* Once a step. */
static void choose_experts(weft_tier_run *t, weft_tier_layer *l)
{
    if (l->chosen)
        return;
    choose_kept(l);
    order_updates(t, l);
    weft_tier_share_choose(t, l);
    memset(l->rows, 0, (size_t)l->num_experts * sizeof *l->rows);
    l->chosen = true;
    for (int kind = 0; kind < WEFT_NUM_TIER_TURNS; kind++) {
        l->turns[kind].count = 0;
        for (int e = 0; e < l->num_experts; e++)
            l->turns[kind].of[e] = -1;
    }
}

/* The expert whose gradient landed first goes first, or that which the next forward is likely to
 * need first, by this step's rows. */
static int turn_of(weft_tier_run *t, int bucket, weft_tier_turn_kind kind)
{
    weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    if (t->options.experts == WEFT_TIER_FILE) /* records leave host memory in the list's order */
        return bucket;
    choose_experts(t, l);
    weft_tier_turns *turns = &l->turns[kind];
    int32_t *turn = &turns->of[bucket - l->first_bucket];
    if (*turn < 0)
        *turn = turns->order[turns->count++];
    return l->first_bucket + *turn;
}

/* In a step no expert has a gradient yet, and the previous step's most loaded experts are kept. An
 * evaluation changes neither. */
static void begin(weft_tier_run *t, bool training)
{
    for (int b = 0; b < t->num_experts && training; b++)
        t->experts[b].has_gradient = false;
    for (int i = 0; i < t->num_layers && training; i++)
        t->layers[i].chosen = false;
    if (training)
        weft_tier_share_begin(t);
    weft_tier_uses_begin(&t->uses, training);
}

/* Several owners reduce an expert's gradient first, behind the backward. */
bool weft_tier_goes_ahead(const weft_tier_run *t)
{
    return weft_tier_records(t) && t->setup.at_once && weft_tier_section(t)->group_size == 1;
}

static weft_status refresh(weft_tier_run *t, int bucket, weft_lane *lane)
{
    weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    choose_experts(t, l);
    for (int k = 0; k < l->num_kept; k++)
        if (l->kept[k].bucket == bucket)
            return weft_tier_upload(t, &l->kept[k], bucket, lane);
    return WEFT_OK;
}

static weft_status drain(weft_tier_run *t)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (t->lanes[i])
            WEFT_TRY(weft_lane_sync(t->lanes[i]));
    if (t->share)
        WEFT_TRY(weft_lane_sync(t->share->landing));
    return weft_tier_records(t) ? weft_records_drain(weft_tier_records(t)) : WEFT_OK;
}

static weft_status reset(weft_tier_run *t)
{
    for (int b = 0; b < t->num_experts; b++)
        t->experts[b].version++;
    for (int i = 0; i < t->num_layers; i++)
        for (int k = 0; k < t->layers[i].num_kept; k++)
            WEFT_TRY(weft_tier_upload(t, &t->layers[i].kept[k], t->layers[i].kept[k].bucket,
                                      t->lanes[WEFT_LANE_TO_DEVICE]));
    WEFT_TRY(drain(t));
    return weft_tier_share_reset(t);
}

static const weft_tier_counts *count(weft_tier_run *t)
{
    if (weft_tier_records(t)) {
        const weft_spill_stats file = weft_records_counted(weft_tier_records(t)).file;
        t->counts.read_bytes = file.bytes_read;
        t->counts.written_bytes = file.bytes_written;
    }
    t->counts.waited_us = t->clock.waited_us;
    t->counts.delayed_us = t->clock.delayed_us;
    return &t->counts;
}

/* --- the model's ---------------------------------------------------------------------------- */

void weft_model_begin_tier(weft_model *model, bool training)
{
    if (model->tier)
        begin(model->tier, training);
}

void weft_model_update_expert(weft_model *model, int bucket, bool is_step)
{
    weft_tier_run *t = model->tier;
    if (!t)
        return;
    const weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    weft_tier_uses_update(&t->uses, (int)(l - t->layers), l->first_bucket, bucket, is_step);
}

bool weft_model_has_gradient(const weft_model *model, int bucket)
{
    return !model->tier || model->tier->experts[bucket].has_gradient;
}

weft_event *weft_model_landed(const weft_model *model, int bucket)
{
    return model->tier ? model->tier->experts[bucket].landed : NULL;
}

weft_event *weft_model_stepped(const weft_model *model, int bucket)
{
    return model->tier ? model->tier->experts[bucket].stepped : NULL;
}

weft_status weft_model_end_update(weft_model *model, int bucket, weft_lane *lane)
{
    return model->tier ? weft_tier_end_update(model->tier, bucket, lane) : WEFT_OK;
}

int weft_model_turn(weft_model *model, int bucket, weft_tier_turn_kind kind)
{
    return model->tier ? turn_of(model->tier, bucket, kind) : bucket;
}

void weft_model_change(weft_model *model, int bucket)
{
    if (!model->tier)
        return;
    model->tier->experts[bucket].version++;
    weft_tier_share_change(model->tier, bucket);
}

weft_status weft_model_make_room(weft_model *model, int bucket)
{
    return weft_records_make_room(weft_tier_records(model->tier), bucket);
}

weft_status weft_model_read_expert(weft_model *model, int bucket, bool whole)
{
    const weft_tier_run *t = model->tier;
    return weft_records_read(weft_tier_records(t), bucket,
                             (t->experts[bucket].has_gradient ? WEFT_RECORD_G : 0u) |
                                 (whole ? WEFT_RECORD_W | WEFT_RECORD_S : 0u));
}

weft_lane *weft_model_file_lane(const weft_model *model)
{
    const weft_records *records = model->tier ? weft_tier_records(model->tier) : NULL;
    return records ? weft_records_lane(records) : NULL;
}

bool weft_model_goes_ahead(const weft_model *model)
{
    return model->tier && weft_tier_goes_ahead(model->tier);
}

weft_status weft_model_refresh(weft_model *model, int bucket, weft_lane *lane)
{
    return model->tier ? refresh(model->tier, bucket, lane) : WEFT_OK;
}

weft_status weft_model_join_tier(weft_model *model)
{
    weft_comm *const *groups = model->setup.groups->by_axis;
    const bool by_tp = model->setup.groups->mesh.binding == WEFT_BINDING_TP;
    return model->tier ? weft_tier_join(model->tier, groups[by_tp ? WEFT_AXIS_TP : WEFT_AXIS_EP],
                                        groups[WEFT_AXIS_ETP])
                       : WEFT_OK;
}

weft_status weft_model_reset_tier(weft_model *model)
{
    return model->tier ? reset(model->tier) : WEFT_OK;
}

weft_status weft_model_drain_tier(weft_model *model)
{
    return model->tier ? drain(model->tier) : WEFT_OK;
}

const weft_tier_counts *weft_model_tier_counts(const weft_model *model)
{
    return model->tier ? count(model->tier) : NULL;
}
