/* Allocates and frees what experts beyond device memory need. */
#include <stdlib.h>
#include <string.h>

#include "layers/tier/internal.h"

static weft_status take(const weft_tier_run *t, weft_space space, weft_memory_purpose purpose,
                        size_t bytes, const char *name, void *out)
{
    void *memory;
    WEFT_TRY(weft_device_alloc_for(t->setup.device, space, purpose, bytes, name, &memory));
    memcpy(out, &memory, sizeof memory);
    return WEFT_OK;
}

/* Lists layers with experts, in order. Every bucket of the section must have the two matrices of
 * one expert, and may have their biases. */
static weft_status find_layers(weft_tier_run *t)
{
    const weft_parameters *p = t->setup.parameters;
    const int count = weft_parameters_count(p);
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)count + 1, &t->layers));
    for (int i = 0; i < count; i++) {
        const weft_placed *placed = weft_parameters_at(p, i);
        if (placed->section != WEFT_SECTION_EXPERT)
            continue;
        if (!placed->spec.by_expert)
            return WEFT_ERROR(WEFT_CONFIG,
                              "offload.experts: parameter %s is an expert's, but not by expert",
                              placed->parameter.name);
        weft_tier_layer *before = weft_tier_layer_of(t, placed->layer);
        const char *name = placed->parameter.name, *bias = strstr(name, ".bias");
        if (before && !bias && ++before->num_parameters > 2)
            return WEFT_ERROR(WEFT_CONFIG,
                              "offload.experts: layer %d has more than one MoE layer's experts",
                              placed->layer);
        if (before) {
            before->count += weft_placed_part(placed);
            continue;
        }
        t->layers[t->num_layers++] = (weft_tier_layer){.layer = placed->layer,
                                                       .num_parameters = 1,
                                                       .num_experts = (int)placed->experts,
                                                       .num_seats = (int)placed->experts,
                                                       .count = weft_placed_part(placed),
                                                       .first_bucket = placed->bucket};
    }
    t->num_experts = weft_tier_section(t)->num_buckets;
    return WEFT_OK;
}

static weft_status make_place(const weft_tier_run *t, weft_tier_place *out)
{
    WEFT_TRY(weft_event_create(t->setup.device, &out->filled));
    return weft_event_create(t->setup.device, &out->used);
}

static weft_status make_layer(weft_tier_run *t, weft_tier_layer *l)
{
    const size_t num = (size_t)l->num_experts;
    l->num_kept = weft_tier_num_kept(t->setup.options, l->num_experts);
    WEFT_TRY(WEFT_ARRAY(&t->arena, num, &l->rows));
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)l->num_seats, &l->now));
    WEFT_TRY(WEFT_ARRAY(&t->arena, num, &l->order));
    WEFT_TRY(WEFT_ARRAY(&t->arena, num, &l->keeps));
    for (int kind = 0; kind < WEFT_NUM_TIER_TURNS; kind++) {
        WEFT_TRY(WEFT_ARRAY(&t->arena, num, &l->turns[kind].order));
        WEFT_TRY(WEFT_ARRAY(&t->arena, num, &l->turns[kind].of));
    }
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)l->num_kept + 1, &l->kept));
    for (int k = 0; k < l->num_kept; k++) {
        l->kept[k].bucket = l->first_bucket + k;
        l->kept[k].is_kept = true;
        WEFT_TRY(make_place(t, &l->kept[k]));
        WEFT_TRY(take(t, WEFT_SPACE_DEVICE, WEFT_MEMORY_WEIGHTS,
                      weft_tier_weight_bytes(t, l->first_bucket), "kept experts",
                      &l->kept[k].memory));
    }
    return WEFT_OK;
}

static weft_status make_slots(weft_tier_run *t)
{
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)t->num_slots + 1, &t->slots));
    for (int i = 0; i < t->num_slots; i++) {
        t->slots[i].bucket = -1;
        WEFT_TRY(make_place(t, &t->slots[i]));
        WEFT_TRY(take(t, WEFT_SPACE_DEVICE, WEFT_MEMORY_WEIGHTS, t->weight_bytes, "expert slots",
                      &t->slots[i].memory));
    }
    for (int i = 0; i < WEFT_TIER_GRADIENTS && t->setup.training; i++) {
        WEFT_TRY(weft_event_create(t->setup.device, &t->gradients[i].free));
        WEFT_TRY(take(t, WEFT_SPACE_DEVICE, WEFT_MEMORY_GRADIENTS, t->gradient_bytes,
                      "experts' gradients", &t->gradients[i].memory));
    }
    for (int i = 0; i < WEFT_EXPERTS_STAGING && t->setup.training && t->setup.accumulates; i++) {
        WEFT_TRY(weft_event_create(t->setup.device, &t->staging[i].free));
        WEFT_TRY(take(t, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, t->gradient_bytes,
                      "experts' gradients", &t->staging[i].memory));
    }
    return WEFT_OK;
}

static weft_status make_experts(weft_tier_run *t)
{
    const int guests = t->share ? t->share->num_guests : 0;
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)(t->num_experts + guests) + 1, &t->experts));
    for (int b = t->num_experts; b < t->num_experts + guests; b++)
        t->experts[b].version = 1;
    for (int b = 0; b < t->num_experts; b++) {
        t->experts[b].version = 1;
        WEFT_TRY(weft_event_create(t->setup.device, &t->experts[b].landed));
        WEFT_TRY(weft_event_create(t->setup.device, &t->experts[b].stepped));
    }
    return WEFT_OK;
}

/* The largest slot that a layer's experts need. */
static void size_slots(weft_tier_run *t)
{
    for (int i = 0; i < t->num_layers; i++) {
        const weft_tier_layer *l = &t->layers[i];
        const int num_slots =
            weft_tier_num_slots(t->setup.options, l->num_experts, l->num_seats / l->num_experts);
        t->num_slots = num_slots > t->num_slots ? num_slots : t->num_slots;
        if (weft_tier_weight_bytes(t, l->first_bucket) > t->weight_bytes) {
            t->weight_bytes = weft_tier_weight_bytes(t, l->first_bucket);
            t->gradient_bytes = weft_tier_gradient_bytes(t, l->first_bucket);
        }
    }
}

/* Makes and checks the programs of layers with this number of experts. */
static weft_status make_plan(weft_tier_run *t, int num_experts, int num_ranks)
{
    for (int i = 0; i < t->num_plans; i++)
        if (t->plans[i].num_experts == num_experts * num_ranks)
            return WEFT_OK;
    if (t->num_plans == WEFT_TIER_MAX_PLANS)
        return WEFT_ERROR(WEFT_CONFIG,
                          "offload.experts: layers with more than %d numbers of experts",
                          WEFT_TIER_MAX_PLANS);
    weft_tier_plan *p = &t->plans[t->num_plans];
    const weft_experts_shape shape =
        weft_tier_shape(t->setup.options, num_experts, num_ranks, t->setup.accumulates);
    p->num_experts = shape.num_positions;
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_experts(&shape, backward, &t->arena, &p->programs[backward]));
    WEFT_TRY(weft_program_experts_check(&shape, &p->programs[0], &p->programs[1]));
    t->num_plans++;
    return WEFT_OK;
}

static weft_status make_plans(weft_tier_run *t)
{
    for (int i = 0; i < t->num_layers; i++)
        WEFT_TRY(make_plan(t, t->layers[i].num_experts,
                           t->layers[i].num_seats / t->layers[i].num_experts));
    return WEFT_OK;
}

static weft_status make_lanes(weft_tier_run *t)
{
    static const weft_lane_kind kinds[] = {WEFT_LANE_TO_DEVICE, WEFT_LANE_TO_HOST, WEFT_LANE_HOST};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        WEFT_TRY(weft_lane_create(t->setup.device, 1, weft_lane_kind_text((int)kinds[i]),
                                  &t->lanes[kinds[i]]));
    return WEFT_OK;
}

static weft_status init(weft_tier_run *t)
{
    t->clock.runs = strcmp(weft_device_name(t->setup.device), "cpu") == 0;
    WEFT_TRY(find_layers(t));
    WEFT_TRY(weft_tier_share_create(t));
    for (int i = 0; i < t->num_layers; i++)
        WEFT_TRY(make_layer(t, &t->layers[i]));
    t->uses.ahead = weft_tier_goes_ahead(t);
    WEFT_TRY(weft_tier_uses_init(&t->uses,
                                 weft_parameters_records(t->setup.parameters, WEFT_SECTION_EXPERT),
                                 t->num_layers, t->num_experts, &t->arena));
    size_slots(t);
    WEFT_TRY(make_slots(t));
    WEFT_TRY(make_experts(t));
    WEFT_TRY(make_plans(t));
    return make_lanes(t);
}

weft_status weft_tier_create(const weft_tier_setup *setup, weft_tier_run **out)
{
    weft_tier_run *t = calloc(1, sizeof *t);
    if (!t)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for experts in host memory");
    t->setup = *setup;
    t->options = *setup->options;
    t->setup.options = &t->options;
    const weft_status status = init(t);
    if (status != WEFT_OK) {
        weft_tier_destroy(t);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = t;
    return WEFT_OK;
}

static void release_place(const weft_tier_run *t, weft_tier_place *p, size_t bytes)
{
    weft_event_destroy(p->filled);
    weft_event_destroy(p->used);
    weft_device_free(t->setup.device, WEFT_SPACE_DEVICE, p->memory, bytes);
}

static void release_ring(const weft_tier_run *t, weft_tier_ring_slot *s, weft_space space)
{
    weft_event_destroy(s->free);
    weft_device_free(t->setup.device, space, s->memory, t->gradient_bytes);
}

void weft_tier_destroy(weft_tier_run *t)
{
    if (!t)
        return;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        weft_lane_destroy(t->lanes[i]);
    weft_tier_share_destroy(t);
    for (int i = 0; i < t->num_layers; i++)
        for (int k = 0; t->layers[i].kept && k < t->layers[i].num_kept; k++)
            release_place(t, &t->layers[i].kept[k],
                          weft_tier_weight_bytes(t, t->layers[i].first_bucket));
    for (int i = 0; t->slots && i < t->num_slots; i++)
        release_place(t, &t->slots[i], t->weight_bytes);
    for (int i = 0; i < WEFT_TIER_GRADIENTS; i++) {
        release_ring(t, &t->gradients[i], WEFT_SPACE_DEVICE);
        release_ring(t, &t->staging[i], WEFT_SPACE_PINNED);
    }
    for (int b = 0; t->experts && b < t->num_experts; b++) {
        weft_event_destroy(t->experts[b].landed);
        weft_event_destroy(t->experts[b].stepped);
    }
    weft_arena_release(&t->arena);
    free(t);
}
