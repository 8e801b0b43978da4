#include "layers/moe/moe.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "layers/moe/internal.h"

static weft_status create_lanes(weft_moe_runtime *r)
{
    /* Threads of communication have priority over those that copy. */
    WEFT_TRY(weft_lane_create(r->device, 0, "expert", &r->lanes[WEFT_LANE_EXPERT]));
    WEFT_TRY(weft_lane_create(r->device, 1, "offload", &r->lanes[WEFT_LANE_OFFLOAD]));
    return weft_lane_create(r->device, 1, "prefetch", &r->lanes[WEFT_LANE_PREFETCH]);
}

void weft_moe_runtime_lanes(const weft_moe_runtime *r, weft_lane *compute,
                            weft_lane *lanes[WEFT_NUM_LANES])
{
    const weft_moe_pipeline *p = &r->current->pipeline;
    const bool is_synchronous = p->num_partitions == 1 && !p->reuse && !p->beside;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (r->lanes[i] && !lanes[i])
            lanes[i] = is_synchronous && i == WEFT_LANE_EXPERT ? compute : r->lanes[i];
}

/* Forms without chunks have nothing to cut. */
static weft_status create_exchange(weft_moe_runtime *r)
{
    weft_exchange_form form = r->options.form;
    bool is_program = form != WEFT_EXCHANGE_BASELINE && form != WEFT_EXCHANGE_DIRECT;
    if (!is_program)
        return WEFT_OK;
    int num_chunks = r->options.num_chunks > 0 ? r->options.num_chunks : 1;
    WEFT_TRY(weft_program_exchange(form, num_chunks, &r->arena, &r->form));
    WEFT_TRY(weft_program_exchange_check(form, num_chunks, &r->form));
    WEFT_TRY(weft_lane_create(r->device, 0, "gather", &r->lanes[WEFT_LANE_INSIDE]));
    return weft_lane_create(r->device, 1, "place", &r->lanes[WEFT_LANE_PLACE]);
}

static weft_status init(weft_moe_runtime *r)
{
    weft_moe_pipeline pipeline = r->options.pipeline;
    if (r->exchange) {
        WEFT_TRY(create_lanes(r));
        WEFT_TRY(create_exchange(r));
    } else {
        pipeline = (weft_moe_pipeline){.num_partitions = 1};
    }
    if (pipeline.num_partitions == 0)
        pipeline.num_partitions = 1;
    WEFT_TRY(weft_moe_runtime_use(r, &pipeline));
    return WEFT_OK;
}

weft_status weft_moe_runtime_create(weft_device *device, const weft_moe_options *options,
                                    bool exchange, size_t block_bytes, weft_moe_runtime **out)
{
    weft_moe_runtime *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the MoE layers' programs");
    r->device = device;
    r->options = *options;
    r->exchange = exchange;
    r->num_experts = 1;
    if (options->num_chunks > 0)
        r->direct_chunk_bytes = block_bytes / (size_t)options->num_chunks + 1;
    weft_status status = init(r);
    if (status != WEFT_OK) {
        weft_moe_runtime_destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

void weft_moe_runtime_destroy(weft_moe_runtime *r)
{
    if (!r)
        return;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        weft_lane_destroy(r->lanes[i]);
    weft_executor_release(&r->executor);
    weft_arena_release(&r->arena);
    free(r);
}

weft_status weft_moe_runtime_reserve(const weft_moe_runtime *r, const weft_comm *ep,
                                     weft_lane *compute, size_t bytes)
{
    WEFT_TRY(weft_comm_reserve(ep, compute, bytes));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (r->lanes[i])
            WEFT_TRY(weft_comm_reserve(ep, r->lanes[i], bytes));
    return WEFT_OK;
}

/* Makes and checks what the runtime's experts of this number run. */
static weft_status make_whole(weft_moe_runtime *r, const weft_moe_plan *plan, int number,
                              weft_moe_whole *out)
{
    const weft_moe_experts *experts = &r->experts[number];
    static const weft_program no_form;
    const weft_moe_inside inside = {.exchange = r->options.as_one ? &no_form : &r->form,
                                    .experts = experts->programs,
                                    .num_positions = experts->num_positions,
                                    .num_partitions = plan->pipeline.num_partitions};
    for (int i = 0; i < 2; i++) {
        weft_program *whole = &out->programs[i];
        WEFT_TRY(weft_program_moe_inside(&plan->programs[i], &inside, &r->arena, whole));
        if (!weft_device_is_note(r->device))
            WEFT_TRY(weft_program_moe_inside_check(&plan->programs[i], &inside, whole));
        for (int k = 0; k < 2; k++) {
            WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)whole->num_slots, &out->memory[k][i]));
        }
    }
    return WEFT_OK;
}

static weft_status make_wholes(weft_moe_runtime *r, weft_moe_plan *plan)
{
    for (int i = 0; i < r->num_experts; i++)
        WEFT_TRY(make_whole(r, plan, i, &plan->wholes[i]));
    return WEFT_OK;
}

weft_status weft_moe_runtime_add_experts(weft_moe_runtime *r, const weft_moe_experts *experts)
{
    const int number = r->num_experts;
    if (number == WEFT_MOE_MAX_EXPERTS)
        return WEFT_ERROR(WEFT_INTERNAL, "layers with more than %d numbers of experts",
                          WEFT_MOE_MAX_EXPERTS - 1);
    r->experts[r->num_experts++] = *experts;
    for (int i = 0; i < r->num_plans; i++)
        WEFT_TRY(make_whole(r, &r->plans[i], number, &r->plans[i].wholes[number]));
    return WEFT_OK;
}

const weft_moe_whole *weft_moe_whole_of(const weft_moe_runtime *r, const weft_moe_plan *plan,
                                        int num_positions)
{
    int i = 0;
    while (i + 1 < r->num_experts && r->experts[i].num_positions != num_positions)
        i++;
    return &plan->wholes[i];
}

/* Makes programs and checks them before they run. */
static weft_status make_plan(weft_moe_runtime *r, const weft_moe_pipeline *pipeline,
                             weft_moe_plan *plan)
{
    plan->pipeline = *pipeline;
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_moe(pipeline, backward, &r->arena, &plan->programs[backward]));
    if (!weft_device_is_note(r->device))
        WEFT_TRY(weft_program_moe_check(pipeline, &plan->programs[0], &plan->programs[1]));
    return make_wholes(r, plan);
}

weft_status weft_moe_runtime_use(weft_moe_runtime *r, const weft_moe_pipeline *asked)
{
    weft_moe_pipeline copy = *asked, *pipeline = &copy;
    copy.beside = r->options.pipeline.beside;
    for (int i = 0; i < r->num_plans; i++)
        if (memcmp(&r->plans[i].pipeline, pipeline, sizeof *pipeline) == 0) {
            r->current = &r->plans[i];
            return WEFT_OK;
        }
    if (r->num_plans == WEFT_MOE_MAX_PLANS)
        return WEFT_ERROR(WEFT_INTERNAL, "more than %d different (n, S)", WEFT_MOE_MAX_PLANS);
    WEFT_TRY(make_plan(r, pipeline, &r->plans[r->num_plans]));
    r->current = &r->plans[r->num_plans++];
    return WEFT_OK;
}

weft_status weft_moe_runtime_replace(weft_moe_runtime *r, const weft_program programs[2])
{
    r->replaced = *r->current;
    memcpy(r->replaced.programs, programs, sizeof r->replaced.programs);
    r->current = &r->replaced;
    return make_wholes(r, &r->replaced);
}
