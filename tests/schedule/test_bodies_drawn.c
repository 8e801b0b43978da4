/* Bodies of passes with programs inside their layers: what is made is accepted, and what is damaged
 * is refused. */
#include "tests/schedule/programs.h"

#include <string.h>

#include "schedule/body.h"
#include "schedule/context.h"
#include "schedule/moe/layer.h"
#include "schedule/pass.h"

enum { MAX_LAYERS = 4 };

/* A chunk, and which of its layers have attention's program and an MoE layer's. */
typedef struct bodies {
    weft_arena arena;
    weft_pass_layer layers[MAX_LAYERS];
    weft_chunk_shape shape;
    weft_pass_kind kind;
    bool attends[MAX_LAYERS], routes[MAX_LAYERS];
    weft_program attention, experts, pass;
} bodies;

static weft_lane_kind lane_of(const weft_program *program, const weft_task *task, const bodies *b)
{
    if (program == &b->experts)
        return (weft_lane_kind)(weft_body_travels(task->lane) ? task->lane : WEFT_LANE_COMPUTE);
    return task->lane == WEFT_LANE_REDUCE ? WEFT_LANE_RECEIVE : (weft_lane_kind)task->lane;
}

static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const bodies *b = context;
    const int i = task->layer - b->shape.first;
    const weft_program *inside[2];
    int count = 0, own = 0;
    if (b->attends[i])
        inside[count++] = &b->attention;
    if (b->routes[i])
        inside[count++] = &b->experts;
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    for (; part > 0 && own < count; own++) {
        const weft_program *program = inside[own];
        if ((uint32_t)part <= program->num_tasks) {
            out->program = program;
            out->task = (uint32_t)part - 1;
            out->lane = lane_of(program, &program->tasks[out->task], b);
            return true;
        }
        part -= (int)program->num_tasks + 1;
    }
    return part == 0;
}

static weft_status check(const void *of, const program_set *set)
{
    const bodies *b = of;
    return weft_program_body_check(&b->pass, part_of, b, &set->programs[0]);
}

/* Random layers, rings and programs inside; the body is the set's program. */
static void draw(uint64_t *random, bodies *b, program_set *set)
{
    const bool backward = next_random(random, 2);
    const weft_context_plan ring = {WEFT_CONTEXT_P2P, 2 + (int)next_random(random, 3), 1};
    const weft_moe_pipeline pipeline = {.num_partitions = 1 + (int)next_random(random, 3),
                                        .reuse = (weft_reuse)next_random(random, WEFT_NUM_REUSES),
                                        .beside = (int)next_random(random, 2)};
    memset(b, 0, sizeof *b);
    *set = (program_set){.shape.num_stages = 1};
    b->kind = backward ? WEFT_PASS_BACKWARD : WEFT_PASS_FORWARD;
    b->shape = (weft_chunk_shape){.layers = b->layers,
                                  .first = 3,
                                  .num_layers = 1 + (int)next_random(random, MAX_LAYERS),
                                  .receives = true,
                                  .passes_on = true,
                                  .row_bytes = 64,
                                  .weight_slots = 2,
                                  .gradient_slots = 2,
                                  .weight_bytes = 50,
                                  .gradient_bytes = 90};
    for (int i = 0; i < b->shape.num_layers; i++) {
        b->layers[i] = (weft_pass_layer){.stash_bytes = 100,
                                         .gathers = next_random(random, 2),
                                         .reduces = next_random(random, 2),
                                         .host_waits = next_random(random, 2)};
        b->attends[i] = next_random(random, 2);
        b->routes[i] = next_random(random, 2);
    }
    OK(weft_program_context(&ring, backward, &b->arena, &b->attention));
    OK(weft_program_moe(&pipeline, backward, &b->arena, &b->experts));
    OK(weft_program_pass(&b->shape, b->kind, &b->arena, &b->pass));
    OK(weft_program_body(&b->pass, part_of, b, &b->arena, &set->programs[0]));
}

static void release(bodies *b, program_set *set)
{
    weft_arena_release(&b->arena);
    weft_arena_release(&set->arena);
}

CASE(bodies_are_accepted)
{
    uint64_t random = 11;
    for (int i = 0; i < property_draws(); i++) {
        bodies b;
        program_set set;
        draw(&random, &b, &set);
        OK(check(&b, &set));
        release(&b, &set);
    }
}

CASE(damaged_bodies_are_refused)
{
    uint64_t random = 12;
    for (int i = 0; i < property_draws() / 60 + 1; i++) {
        bodies b;
        program_set set;
        draw(&random, &b, &set);
        every_wait_is_needed(&set, 0, check, &b, "may start before");
        every_task_is_needed(&set, 0, check, &b, "a body, ");
        release(&b, &set);
    }
}

/* Two neighbours change places; a task has another lane, layer, part, or slot. */
CASE(other_parts_are_refused)
{
    uint64_t random = 13;
    for (int i = 0; i < property_draws() / 60 + 1; i++) {
        bodies b;
        program_set set;
        draw(&random, &b, &set);
        const weft_program right = set.programs[0];
        for (uint32_t t = 0; t < right.num_tasks; t++)
            for (int way = 0; way < 5; way++) {
                edit edited;
                edit_open(&set, 0, &edited);
                weft_task *task = &edited.tasks[t];
                if (way == 0 && t + 1 < right.num_tasks)
                    swap_tasks(&edited, t, t + 1);
                task->lane = (uint8_t)((task->lane + (way == 1)) % WEFT_NUM_LANES);
                task->layer += way == 2;
                task->part = (int16_t)(task->part + (way == 3));
                for (int o = 0; o < WEFT_TASK_MAX_OPERANDS && way == 4; o++)
                    task->operands[o] = (int16_t)(task->operands[o] + 1);
                edit_close(&edited, &set);
                if (!(way == 0 && t + 1 == right.num_tasks))
                    assert_int_not_equal(check(&b, &set), WEFT_OK);
                set.programs[0] = right;
            }
        release(&b, &set);
    }
}
