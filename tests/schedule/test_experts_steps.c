/* Two steps of experts that the host steps beside the next forward. WEFT_PROPERTY_DRAWS=10000: so
 * many draws. */
#include <stdlib.h>
#include <string.h>

#include "schedule/body.h"
#include "schedule/experts/steps.h"
#include "schedule/moe/inside.h"
#include "schedule/moe/layer.h"
#include "tests/schedule/programs.h"

enum { MAX_LAYERS = 3, MAX_BUCKETS = 32 };

/* Of each layer by direction: its program, what is inside that, and the whole. */
typedef struct layer_programs {
    weft_program experts[2], of[2], whole[2];
    weft_moe_inside inside;
} layer_programs;

/* What a rank of one stage runs: programs[0] the step's, then forward and backward of each chunk.
 */
typedef struct subject {
    program_set set;
    weft_bucket_shape shapes[MAX_BUCKETS];
    weft_buckets buckets;
    weft_experts_layer layers[MAX_LAYERS];
    layer_programs programs[MAX_LAYERS];
    weft_program passes[2][2]; /* by chunk */
    weft_experts_bodies bodies[2];
    weft_experts_steps steps;
    bool at_once;
} subject;

static void draw_layers(uint64_t *random, subject *s)
{
    const int num_chunks = s->set.shape.num_chunks;
    const bool accumulates = s->set.shape.num_micro_batches > 1 || next_random(random, 2);
    const bool in_file = next_random(random, 2);
    s->steps.num_layers = 1 + (int)next_random(random, MAX_LAYERS);
    for (int l = 0; l < s->steps.num_layers; l++) {
        weft_experts_layer *layer = &s->layers[l];
        *layer = (weft_experts_layer){
            .layer = 2 * l + 1,
            .chunk = l * num_chunks / s->steps.num_layers,
            .shape = {.num_positions = 1 + (int)next_random(random, 4),
                      .num_slots = 2 + (int)next_random(random, 3),
                      .num_gradient_slots = 1 + (int)next_random(random, 2),
                      .order = (weft_expert_order)next_random(random, WEFT_NUM_EXPERT_ORDERS),
                      .accumulates = accumulates}};
        if (next_random(random, 2))
            layer->shape.num_kept =
                (int)next_random(random, (uint32_t)layer->shape.num_positions + 1);
        if (layer->shape.order == WEFT_EXPERT_ORDER_LAYER)
            layer->shape.num_slots = 4;
        if (in_file)
            layer->shape.num_places = 1 + (int)next_random(random, 4);
    }
}

static void list_buckets(uint64_t *random, subject *s)
{
    const bool reduces = next_random(random, 2), gathers = reduces && next_random(random, 2);
    s->at_once = !s->steps.drains && next_random(random, 2);
    for (int l = s->steps.num_layers - 1; l >= 0; l--)
        for (int q = 0; q < s->layers[l].shape.num_positions; q++) {
            const int b = s->buckets.count++;
            const weft_lies lies =
                s->layers[l].shape.num_places > 0 ? WEFT_LIES_IN_FILE : WEFT_LIES_ON_HOST;
            s->shapes[b] = (weft_bucket_shape){.layer = s->layers[l].layer,
                                               .chunk = s->layers[l].chunk,
                                               .ranks = reduces ? 2 : 1,
                                               .owners = gathers ? 2 : 1,
                                               .residency = {lies, lies, lies},
                                               .at_once = s->at_once,
                                               .refreshes = s->layers[l].shape.num_kept > 0,
                                               .elements = 64};
        }
    s->shapes[s->buckets.count++] = (weft_bucket_shape){.layer = 0, .ranks = 2, .elements = 8};
}

static void make_layer(uint64_t *random, subject *s, int l)
{
    const weft_experts_shape *shape = &s->layers[l].shape;
    layer_programs *p = &s->programs[l];
    const int n = 1 + (int)next_random(random, (uint32_t)shape->num_positions);
    const weft_moe_pipeline pipeline = {.num_partitions = n, .by_experts = 1};
    for (int b = 0; b < 2; b++) {
        OK(weft_program_experts(shape, b, &s->set.arena, &p->experts[b]));
        OK(weft_program_moe(&pipeline, b, &s->set.arena, &p->of[b]));
    }
    p->inside = (weft_moe_inside){
        .experts = p->experts, .num_positions = shape->num_positions, .num_partitions = n};
    for (int b = 0; b < 2; b++)
        OK(weft_program_moe_inside(&p->of[b], &p->inside, &s->set.arena, &p->whole[b]));
}

/* A layer's own, the whole program, and own again. */
static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const subject *s = context;
    int l = 0;
    while (s->layers[l].layer != task->layer)
        l++;
    const weft_program *whole = &s->programs[l].whole[task->flow == WEFT_FLOW_GRADIENT];
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    if (part == 0 || (uint32_t)part > whole->num_tasks)
        return part == 0 || (uint32_t)part == whole->num_tasks + 1;
    out->program = whole;
    out->task = (uint32_t)part - 1;
    out->lane = (weft_lane_kind)whole->tasks[out->task].lane;
    return true;
}

/* The layers of a chunk's pass, and its body. */
static void make_body(subject *s, int chunk, bool backward)
{
    weft_program *pass = &s->passes[chunk][backward];
    weft_program_builder *builder;
    OK(weft_program_builder_create(&s->set.arena, &builder));
    for (int i = 0; i < s->steps.num_layers; i++) {
        const weft_experts_layer *l = &s->layers[backward ? s->steps.num_layers - 1 - i : i];
        weft_task task =
            weft_task_of(WEFT_TASK_LAYER, backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION);
        task.layer = l->layer;
        if (l->chunk == chunk)
            OK(weft_program_append(builder, &task, NULL, 0, NULL));
    }
    OK(weft_program_finish(builder, 0, pass));
    OK(weft_program_body(pass, part_of, s, &s->set.arena,
                         &s->set.programs[1 + 2 * chunk + backward]));
}

static void make_subject(uint64_t *random, subject *s)
{
    *s = (subject){.set.shape = {.num_stages = 1,
                                 .num_chunks = 1 + (int)next_random(random, 2),
                                 .num_micro_batches = 1 + (int)next_random(random, 3),
                                 .boundary_bytes = 8},
                   .steps.drains = next_random(random, 4) == 0};
    draw_layers(random, s);
    list_buckets(random, s);
    s->buckets.shapes = s->shapes;
    s->set.shape.buckets = &s->buckets;
    OK(weft_program_pipeline(&s->set.shape, &s->set.arena, s->set.programs));
    for (int l = 0; l < s->steps.num_layers; l++)
        make_layer(random, s, l);
    s->steps.num_chunks = s->set.shape.num_chunks;
    for (int i = 0; i < 2 * s->steps.num_chunks; i++)
        make_body(s, i / 2, i % 2);
}

static weft_status check_steps(subject *s)
{
    for (int c = 0; c < s->steps.num_chunks; c++)
        s->bodies[c] =
            (weft_experts_bodies){&s->set.programs[1 + 2 * c], &s->set.programs[2 + 2 * c]};
    s->steps.step = &s->set.programs[0];
    s->steps.buckets = &s->buckets;
    s->steps.layers = s->layers;
    s->steps.bodies = s->bodies;
    return weft_program_experts_check_steps(&s->steps);
}

/* By the checkers of each level and by that of two steps. */
static weft_status check_all(subject *s)
{
    weft_status status = check_set(&s->set);
    for (int l = 0; l < s->steps.num_layers && status == WEFT_OK; l++) {
        layer_programs *p = &s->programs[l];
        status = weft_program_experts_check(&s->layers[l].shape, &p->experts[0], &p->experts[1]);
        for (int b = 0; b < 2 && status == WEFT_OK; b++)
            status = weft_program_moe_inside_check(&p->of[b], &p->inside, &p->whole[b]);
    }
    for (int i = 0; i < 2 * s->steps.num_chunks && status == WEFT_OK; i++)
        status =
            weft_program_body_check(&s->passes[i / 2][i % 2], part_of, s, &s->set.programs[1 + i]);
    return status == WEFT_OK ? check_steps(s) : status;
}

CASE(accepted)
{
    uint64_t random = 41;
    for (int draw = 0; draw < property_draws(); draw++) {
        static subject s;
        make_subject(&random, &s);
        OK(check_all(&s));
        release_set(&s.set);
    }
}

/* Waits of experts' programs, and for the step before, that the levels' own checkers may not see.
 */
typedef struct tally {
    int waits, found, steps, found_steps;
} tally;

/* Behind a step after which everything is drained nothing need wait for it. Beside a forward each
 * task that waits must, but at once, where the norm of all may stand behind a step. */
static void drop_step_waits(subject *s, int program, tally *sum)
{
    static edit edited;
    const weft_program whole = s->set.programs[program];
    for (uint32_t t = 0; t < whole.num_tasks; t++) {
        if (!weft_task_awaits_step(&whole.tasks[t], whole.waits))
            continue;
        edit_open(&s->set, program, &edited);
        flip_step_wait(&edited, t);
        edit_close(&edited, &s->set);
        const bool found = check_steps(s) != WEFT_OK;
        weft_error_clear();
        if (s->steps.drains ? found : !found && !s->at_once && whole.tasks[t].bucket < 0)
            fail_msg("program %d, task %u, drains %d: found %d", program, t, s->steps.drains,
                     found);
        FAILS(check_all(s), WEFT_INTERNAL, "");
        sum->steps += !s->steps.drains;
        sum->found_steps += found;
        s->set.programs[program] = whole;
    }
}

static void drop_waits(subject *s, int program, tally *sum)
{
    static edit edited;
    const weft_program whole = s->set.programs[program];
    for (uint32_t t = 0; t < whole.num_tasks; t++)
        for (uint32_t w = 0; w < whole.tasks[t].num_waits; w++) {
            if (whole.waits[whole.tasks[t].first_wait + w].task == WEFT_STEP_BEFORE)
                continue;
            edit_open(&s->set, program, &edited);
            drop_wait(&edited, t, w);
            edit_close(&edited, &s->set);
            sum->waits++;
            sum->found += check_steps(s) != WEFT_OK;
            weft_error_clear();
            FAILS(check_all(s), WEFT_INTERNAL, " may ");
            s->set.programs[program] = whole;
        }
}

/* Each wait that is dropped is found by one of the checkers. Two steps tell nothing
 * of waits for rows. */
CASE(dropped)
{
    uint64_t random = 43;
    tally sum = {0, 0, 0, 0};
    for (int draw = 0; draw < property_draws() / 10; draw++) {
        static subject s;
        make_subject(&random, &s);
        for (int program = 0; program < 1 + 2 * s.steps.num_chunks; program++) {
            drop_step_waits(&s, program, &sum);
            drop_waits(&s, program, &sum);
        }
        release_set(&s.set);
    }
    print_message("%d waits dropped, %d seen over two steps; %d for the step before, %d\n",
                  sum.waits, sum.found, sum.steps, sum.found_steps);
    assert_true(sum.found > sum.waits / 3 && sum.found_steps > sum.steps / 2);
}
