/* What is inside the tasks of MoE layers' programs, and these inside a pass's layers: bodies, and
 * their checker. WEFT_PROPERTY_DRAWS=10000: so many draws. */
#include <string.h>

#include "schedule/body.h"
#include "schedule/exchange/exchange.h"
#include "schedule/experts/experts.h"
#include "schedule/moe/inside.h"
#include "schedule/moe/layer.h"
#include "tests/schedule/programs.h"

enum { NUM_LAYERS = 2 };

/* programs[0] and [1]: an MoE layer's whole forward and backward; [2] and [3]: bodies of layers
 * that have these. */
typedef struct subject {
    program_set set;
    weft_program experts[2], exchange, of[2], passes[2];
    weft_moe_inside inside;
} subject;

static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const weft_program *wholes = context;
    const weft_program *whole = &wholes[task->flow == WEFT_FLOW_GRADIENT];
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    if (part == 0 || (uint32_t)part > whole->num_tasks)
        return part == 0 || (uint32_t)part == whole->num_tasks + 1;
    out->program = whole;
    out->task = (uint32_t)part - 1;
    out->lane = (weft_lane_kind)whole->tasks[out->task].lane;
    return true;
}

static void make_pass(subject *s, bool backward)
{
    weft_program_builder *builder;
    OK(weft_program_builder_create(&s->set.arena, &builder));
    for (int l = 0; l < NUM_LAYERS; l++) {
        weft_task task =
            weft_task_of(WEFT_TASK_LAYER, backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION);
        task.layer = backward ? NUM_LAYERS - 1 - l : l;
        OK(weft_program_append(builder, &task, NULL, 0, NULL));
    }
    OK(weft_program_finish(builder, 0, &s->passes[backward]));
}

static void make_subject(const weft_experts_shape *shape, const weft_moe_pipeline *pipeline,
                         weft_exchange_form form, subject *s)
{
    memset(s, 0, sizeof *s);
    OK(weft_program_exchange(form, 1, &s->set.arena, &s->exchange));
    s->inside = (weft_moe_inside){.exchange = form == WEFT_EXCHANGE_BASELINE ? NULL : &s->exchange,
                                  .experts = shape ? s->experts : NULL,
                                  .num_positions = shape ? shape->num_positions : 0,
                                  .num_partitions = pipeline->num_partitions};
    for (int b = 0; b < 2; b++) {
        if (shape)
            OK(weft_program_experts(shape, b, &s->set.arena, &s->experts[b]));
        OK(weft_program_moe(pipeline, b, &s->set.arena, &s->of[b]));
    }
    for (int b = 0; b < 2; b++) {
        OK(weft_program_moe_inside(&s->of[b], &s->inside, &s->set.arena, &s->set.programs[b]));
        make_pass(s, b);
    }
    for (int b = 0; b < 2; b++)
        OK(weft_program_body(&s->passes[b], part_of, s->set.programs, &s->set.arena,
                             &s->set.programs[2 + b]));
}

/* The wholes are looked for where they are made: a damaged one is refused before its body is. */
static weft_status check(const void *raw, const program_set *set)
{
    const subject *s = raw;
    weft_status status = WEFT_OK;
    for (int b = 0; b < 2 && status == WEFT_OK; b++)
        status = weft_program_moe_inside_check(&s->of[b], &s->inside, &set->programs[b]);
    for (int b = 0; b < 2 && status == WEFT_OK; b++)
        status =
            weft_program_body_check(&s->passes[b], part_of, set->programs, &set->programs[2 + b]);
    return status;
}

/* Weights of the second run come up while its rows travel, and the second layer's while the first
 * is computed. */
CASE(written_out)
{
    static subject s;
    weft_experts_shape shape = {.num_positions = 3,
                                .num_kept = 1,
                                .num_slots = 2,
                                .num_gradient_slots = 2,
                                .order = WEFT_EXPERT_ORDER_EXPERT};
    make_subject(&shape, &(weft_moe_pipeline){.num_partitions = 2, .by_experts = 1},
                 WEFT_EXCHANGE_BASELINE, &s);
    OK(check(&s, &s.set));
    program_is(&s.set.programs[0],
               "program in_flight=2\n"
               "slots 0-1 T_DI\n"
               "slots 2-3 T_M\n"
               "slots 4-5 home\n"
               "slots 6-7 T_DO\n"
               "slots 8-9 result\n"
               "slots 10-12 expert_weights\n"
               "slots 13-15 host_weights\n"
               "0 counts compute host\n"
               "1 permute compute part=0 to=4\n"
               "2 dispatch expert activation part=0 from=4 to=0 waits=1\n"
               "3 permute compute part=1 to=5\n"
               "4 dispatch expert activation part=1 from=5 to=1 waits=3\n"
               "5 expert compute activation part=0 x=0 middle=2 y=6 waits=2\n"
               "6 expert compute activation expert=0 weights=10 waits=step_before\n"
               "7 expert compute activation part=0 x=0 middle=2 y=6\n"
               "8 combine expert activation part=0 from=6 to=8 waits=7\n"
               "9 expert compute activation part=1 x=1 middle=3 y=7 waits=4\n"
               "10 upload to_device weight expert=1 from=14 weights=11 waits=step_before\n"
               "11 expert compute activation expert=1 weights=11 waits=10\n"
               "12 upload to_device weight expert=2 from=15 weights=12 waits=step_before\n"
               "13 expert compute activation expert=2 weights=12 waits=12\n"
               "14 expert compute activation part=1 x=1 middle=3 y=7\n"
               "15 combine expert activation part=1 from=7 to=9 waits=14\n");
    release_set(&s.set);
}

static void draw_subject(uint64_t *random, subject *s)
{
    const int num = 1 + (int)next_random(random, 4);
    weft_experts_shape shape = {.num_positions = num,
                                .num_slots = 1 + (int)next_random(random, 3),
                                .num_gradient_slots = 1 + (int)next_random(random, 2),
                                .order =
                                    (weft_expert_order)next_random(random, WEFT_NUM_EXPERT_ORDERS),
                                .accumulates = next_random(random, 2)};
    weft_moe_pipeline pipeline = {.num_partitions = 1 + (int)next_random(random, (uint32_t)num)};
    const bool away = next_random(random, 4) > 0;
    pipeline.by_experts = away || next_random(random, 2);
    if (!away)
        pipeline.reuse = (weft_reuse)next_random(random, WEFT_NUM_REUSES);
    if (next_random(random, 2))
        shape.num_kept = (int)next_random(random, (uint32_t)num + 1);
    if (shape.order == WEFT_EXPERT_ORDER_LAYER)
        shape.num_slots = num;
    if (next_random(random, 2))
        shape.num_places = 1 + (int)next_random(random, 4);
    make_subject(away ? &shape : NULL, &pipeline,
                 next_random(random, 2) ? WEFT_EXCHANGE_BASELINE : WEFT_EXCHANGE_O3, s);
}

/* Tasks beside an expert's layer wait for nothing of it. */
static void lanes_run_on(const weft_program *body)
{
    for (uint32_t t = 0; t < body->num_tasks; t++)
        for (uint32_t w = 0; w < body->tasks[t].num_waits; w++) {
            const weft_wait *wait = &body->waits[body->tasks[t].first_wait + w];
            if (wait->task == WEFT_STEP_BEFORE)
                continue;
            const bool runs_on = weft_body_runs_on(body->tasks[t].lane),
                       other = weft_body_runs_on(body->tasks[wait->task].lane);
            assert_true(!runs_on || body->tasks[wait->task].expert >= 0);
            assert_true(body->tasks[t].lane != WEFT_LANE_FILE ||
                        body->tasks[t].layer == body->tasks[wait->task].layer);
            assert_true(!other || body->tasks[t].expert >= 0);
        }
}

/* Whether a layer's whole has this for each task inside. */
CASE(have_all_tasks)
{
    uint64_t random = 3;
    for (int draw = 0; draw < property_draws() / 2; draw++) {
        static subject s;
        draw_subject(&random, &s);
        OK(check(&s, &s.set));
        for (int b = 0; b < 2; b++) {
            const weft_program *whole = &s.set.programs[b], *body = &s.set.programs[2 + b];
            uint32_t experts = 0, wanted = s.inside.experts ? s.experts[b].num_tasks : 0;
            for (uint32_t t = 0; t < whole->num_tasks; t++)
                experts += whole->tasks[t].expert >= 0;
            assert_int_equal(experts, wanted);
            assert_int_equal(body->num_tasks, NUM_LAYERS * (whole->num_tasks + 2));
            assert_int_equal(body->num_slots, whole->num_slots);
            is_read_back(body);
            lanes_run_on(body);
        }
        release_set(&s.set);
    }
}

/* No task, wait or slot is one too many, of either level. */
CASE(damaged)
{
    uint64_t random = 5;
    for (int draw = 0; draw < property_draws() / 120 + 1; draw++) {
        static subject s;
        draw_subject(&random, &s);
        for (int i = 0; i < 4; i++) {
            every_wait_is_needed(&s.set, i, check, &s, " may ");
            every_task_is_needed(&s.set, i, check, &s, "");
            every_slot_is_needed(&s.set, i, check, &s);
        }
        release_set(&s.set);
    }
}
