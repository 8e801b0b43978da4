#include "tests/schedule/subjects.h"

#include <string.h>

#include "schedule/price/price.h"

static uint32_t draw(const draws *d, uint32_t bound)
{
    return d->next(d->context, bound);
}

static weft_moe_pipeline draw_pipeline(const draws *d)
{
    const int n = 1 + (int)draw(d, 5), reuse = (int)draw(d, WEFT_NUM_REUSES + 1);
    return reuse == WEFT_NUM_REUSES
               ? weft_moe_by_peers(2 * n, 2)
               : (weft_moe_pipeline){.num_partitions = n, .reuse = (weft_reuse)reuse};
}

static weft_pass_kind pass_kind(const subject *s)
{
    if (s->halves)
        return s->backward ? WEFT_PASS_WEIGHTS : WEFT_PASS_INPUT;
    return s->backward ? WEFT_PASS_BACKWARD : WEFT_PASS_FORWARD;
}

void make_subject(const draws *d, subject *s)
{
    *s = (subject){.kind = draw(d, 2) ? STEP : (int)draw(d, NUM_SUBJECTS), .backward = draw(d, 2)};
    s->num_programs = 1;
    switch (s->kind) {
    case STEP: {
        weft_pipeline_shape shape = {.kind = (weft_pipeline_kind)draw(d, 2),
                                     .num_stages = 1 + (int)draw(d, 4),
                                     .num_chunks = 1 + (int)draw(d, 3),
                                     .num_micro_batches = 1 + (int)draw(d, 6),
                                     .forward_only = draw(d, 4) == 0,
                                     .boundary_bytes = 64,
                                     .host_waits = s->host_waits};
        for (int i = 0; i < MAX_STAGES; i++)
            s->host_waits[i] = draw(d, 4) == 0;
        s->set = make_shaped_set(&shape);
        s->num_programs = shape.num_stages;
        memcpy(s->programs, s->set.programs, sizeof s->programs);
        break;
    }
    case PASS:
        s->halves = draw(d, 2);
        for (int i = 0; i < 4; i++)
            s->layers[i] = (weft_pass_layer){.stash_bytes = draw(d, 2) * 64,
                                             .in_place = draw(d, 2),
                                             .host_waits = draw(d, 2),
                                             .gathers = draw(d, 2),
                                             .reduces = draw(d, 2),
                                             .group = (int)draw(d, 3),
                                             .splits = draw(d, 2)};
        for (int i = 0; i < 4; i++)
            s->layers[i].splits = s->layers[i].splits && s->layers[i].group == 0;
        s->chunk = (weft_chunk_shape){.layers = s->layers,
                                      .first = (int)draw(d, 3),
                                      .num_layers = 1 + (int)draw(d, 4),
                                      .receives = draw(d, 2),
                                      .passes_on = draw(d, 2),
                                      .row_bytes = 64,
                                      .weight_slots = 1 + (int)draw(d, 2),
                                      .gradient_slots = 1 + (int)draw(d, 2)};
        OK(weft_program_pass(&s->chunk, pass_kind(s), &s->arena, &s->programs[0]));
        break;
    case LAYER:
        s->moe = draw_pipeline(d);
        s->num_programs = 2;
        for (int i = 0; i < 2; i++)
            OK(weft_program_moe(&s->moe, i, &s->arena, &s->programs[i]));
        break;
    case EXPERTS:
        s->experts = (weft_experts_shape){.num_positions = 1 + (int)draw(d, 5),
                                          .num_kept = (int)draw(d, 2),
                                          .num_slots = 5,
                                          .num_gradient_slots = 1 + (int)draw(d, 2),
                                          .order = (weft_expert_order)draw(d, 3),
                                          .accumulates = draw(d, 2)};
        s->num_programs = 2;
        for (int i = 0; i < 2; i++)
            OK(weft_program_experts(&s->experts, i, &s->arena, &s->programs[i]));
        break;
    default:
        s->form = (weft_exchange_form)draw(d, WEFT_NUM_EXCHANGES);
        s->chunk.num_layers = weft_exchange_max_chunks(s->form) > 1 ? 4 : 1;
        OK(weft_program_exchange(s->form, s->chunk.num_layers, &s->arena, &s->programs[0]));
    }
}

void release_subject(subject *s)
{
    weft_arena_release(&s->arena);
    if (s->kind == STEP)
        release_set(&s->set);
}

weft_status check_subject(const subject *s)
{
    switch (s->kind) {
    case STEP:
        return weft_program_pipeline_check(s->programs, &s->set.shape);
    case PASS:
        return weft_program_pass_check(&s->chunk, pass_kind(s), s->programs);
    case LAYER:
        return weft_program_moe_check(&s->moe, &s->programs[0], &s->programs[1]);
    case EXPERTS:
        return weft_program_experts_check(&s->experts, &s->programs[0], &s->programs[1]);
    default:
        return weft_program_exchange_check(s->form, s->chunk.num_layers, s->programs);
    }
}

static double some_us(const void *context, int stage, const weft_task *task)
{
    (void)context;
    return 1 + stage + task->kind % 5;
}

static double half_way(const void *context, int stage, const weft_task *task, int point,
                       const weft_task *waiting)
{
    (void)context;
    (void)stage;
    (void)task;
    return 1 / (1.0 + (point < 0 ? waiting->bucket : point));
}

static bool every_other(const void *context, int stage, const weft_task *send)
{
    (void)context;
    return (stage ^ send->micro_batch) % 2 == 0; /* numbers are damaged, too */
}

void price_subject(const subject *s, bool accepted)
{
    weft_price price;
    weft_arena arena = {0};
    weft_pricing pricing = {.cost = some_us, .point = half_way};
    for (int buffers = 0; buffers < 2; buffers++) {
        pricing.buffered = buffers ? every_other : NULL;
        const weft_status status =
            weft_program_price(s->programs, s->num_programs, &pricing, &arena, &price);
        if (status != WEFT_OK && (accepted || status != WEFT_INTERNAL))
            fail_msg("priced: status %d: %s", (int)status, weft_error_get()->text);
        weft_error_clear();
    }
    weft_arena_release(&arena);
}
