/* Steps of experts beyond device memory, and a model's entry points to them. */
#include "layers/pass/pass.h"
#include "layers/tier/share.h"

void weft_tier_begin(weft_tier_run *t, bool training)
{
    for (int b = 0; b < t->num_experts && training; b++)
        t->experts[b].has_gradient = false;
    for (int i = 0; i < t->num_layers && training; i++)
        t->layers[i].chosen = false;
    if (training)
        weft_tier_share_begin(t);
    weft_tier_uses_begin(&t->uses, training);
}

void weft_tier_update(weft_tier_run *t, int bucket, bool is_step)
{
    const weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    weft_tier_uses_update(&t->uses, (int)(l - t->layers), l->first_bucket, bucket, is_step);
}

bool weft_tier_has_gradient(const weft_tier_run *t, int bucket)
{
    return t->experts[bucket].has_gradient;
}

weft_event *weft_tier_landed(const weft_tier_run *t, int bucket)
{
    return t->experts[bucket].landed;
}

weft_event *weft_tier_stepped(const weft_tier_run *t, int bucket)
{
    return t->experts[bucket].stepped;
}

void weft_tier_change(weft_tier_run *t, int bucket)
{
    t->experts[bucket].version++;
    weft_tier_share_change(t, bucket);
}

static weft_records *records_of(const weft_tier_run *t)
{
    return weft_parameters_records(t->setup.parameters, WEFT_SECTION_EXPERT);
}

weft_status weft_tier_make_room(weft_tier_run *t, int bucket)
{
    return weft_records_make_room(records_of(t), bucket);
}

weft_status weft_tier_read(weft_tier_run *t, int bucket, bool whole)
{
    return weft_records_read(records_of(t), bucket,
                             (t->experts[bucket].has_gradient ? WEFT_RECORD_G : 0u) |
                                 (whole ? WEFT_RECORD_W | WEFT_RECORD_S : 0u));
}

weft_lane *weft_tier_file_lane(const weft_tier_run *t)
{
    const weft_records *records = records_of(t);
    return records ? weft_records_lane(records) : NULL;
}

/* Several owners reduce an expert's gradient first, behind the backward. */
bool weft_tier_goes_ahead(const weft_tier_run *t)
{
    return records_of(t) && t->setup.at_once && weft_tier_section(t)->group_size == 1;
}

weft_status weft_tier_refresh(weft_tier_run *t, int bucket, weft_lane *lane)
{
    weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    weft_tier_choose_experts(t, l);
    for (int k = 0; k < l->num_kept; k++)
        if (l->kept[k].bucket == bucket)
            return weft_tier_upload(t, &l->kept[k], bucket, lane);
    return WEFT_OK;
}

weft_status weft_tier_reset(weft_tier_run *t)
{
    for (int b = 0; b < t->num_experts; b++)
        t->experts[b].version++;
    for (int i = 0; i < t->num_layers; i++)
        for (int k = 0; k < t->layers[i].num_kept; k++)
            WEFT_TRY(weft_tier_upload(t, &t->layers[i].kept[k], t->layers[i].kept[k].bucket,
                                      t->lanes[WEFT_LANE_TO_DEVICE]));
    WEFT_TRY(weft_tier_drain(t));
    return weft_tier_share_reset(t);
}

weft_status weft_tier_drain(weft_tier_run *t)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (t->lanes[i])
            WEFT_TRY(weft_lane_sync(t->lanes[i]));
    if (t->share)
        WEFT_TRY(weft_lane_sync(t->share->landing));
    return records_of(t) ? weft_records_drain(records_of(t)) : WEFT_OK;
}

const weft_tier_counts *weft_tier_counted(weft_tier_run *t)
{
    if (records_of(t)) {
        const weft_spill_stats file = weft_records_counted(records_of(t)).file;
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
        weft_tier_begin(model->tier, training);
}

void weft_model_update_expert(weft_model *model, int bucket, bool is_step)
{
    if (model->tier)
        weft_tier_update(model->tier, bucket, is_step);
}

bool weft_model_has_gradient(const weft_model *model, int bucket)
{
    return !model->tier || weft_tier_has_gradient(model->tier, bucket);
}

weft_event *weft_model_landed(const weft_model *model, int bucket)
{
    return model->tier ? weft_tier_landed(model->tier, bucket) : NULL;
}

weft_event *weft_model_stepped(const weft_model *model, int bucket)
{
    return model->tier ? weft_tier_stepped(model->tier, bucket) : NULL;
}

weft_status weft_model_end_update(weft_model *model, int bucket, weft_lane *lane)
{
    return model->tier ? weft_tier_end_update(model->tier, bucket, lane) : WEFT_OK;
}

int weft_model_turn(weft_model *model, int bucket, weft_tier_turn_kind kind)
{
    return model->tier ? weft_tier_turn(model->tier, bucket, kind) : bucket;
}

void weft_model_change(weft_model *model, int bucket)
{
    if (model->tier)
        weft_tier_change(model->tier, bucket);
}

weft_status weft_model_make_room(weft_model *model, int bucket)
{
    return weft_tier_make_room(model->tier, bucket);
}

weft_status weft_model_read_expert(weft_model *model, int bucket, bool whole)
{
    return weft_tier_read(model->tier, bucket, whole);
}

weft_lane *weft_model_file_lane(const weft_model *model)
{
    return model->tier ? weft_tier_file_lane(model->tier) : NULL;
}

bool weft_model_goes_ahead(const weft_model *model)
{
    return model->tier && weft_tier_goes_ahead(model->tier);
}

void weft_model_tell_passed(weft_model *model, weft_status (*passed)(void *context, int layer),
                            void *context)
{
    model->passed = passed;
    model->passed_context = context;
}

weft_status weft_model_refresh(weft_model *model, int bucket, weft_lane *lane)
{
    return model->tier ? weft_tier_refresh(model->tier, bucket, lane) : WEFT_OK;
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
    return model->tier ? weft_tier_reset(model->tier) : WEFT_OK;
}

weft_status weft_model_drain_tier(weft_model *model)
{
    return model->tier ? weft_tier_drain(model->tier) : WEFT_OK;
}

const weft_tier_counts *weft_model_tier_counts(const weft_model *model)
{
    return model->tier ? weft_tier_counted(model->tier) : NULL;
}
