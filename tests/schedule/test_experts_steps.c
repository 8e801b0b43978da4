/* Two steps of experts that the host steps beside the next forward. WEFT_PROPERTY_DRAWS=10000: so
 * many draws. */
#include <stdlib.h>
#include <string.h>

#include "schedule/experts/steps.h"
#include "tests/schedule/programs.h"

enum { MAX_LAYERS = 3, MAX_BUCKETS = 32 };

/* What a rank of one stage runs: programs[0] the step's, then forward and backward of each layer.
 */
typedef struct subject {
    program_set set;
    weft_bucket_shape shapes[MAX_BUCKETS];
    weft_buckets buckets;
    weft_experts_layer layers[MAX_LAYERS];
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
                                               .point = WEFT_POINT_OWN + b,
                                               .at_once = s->at_once,
                                               .refreshes = s->layers[l].shape.num_kept > 0,
                                               .elements = 64};
        }
    s->shapes[s->buckets.count++] = (weft_bucket_shape){.layer = 0, .ranks = 2, .elements = 8};
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
        for (int b = 0; b < 2; b++)
            OK(weft_program_experts(&s->layers[l].shape, b, &s->set.arena,
                                    &s->set.programs[1 + 2 * l + b]));
}

static weft_status check_steps(subject *s)
{
    for (int l = 0; l < s->steps.num_layers; l++) {
        s->layers[l].forward = &s->set.programs[1 + 2 * l];
        s->layers[l].backward = &s->set.programs[2 + 2 * l];
    }
    s->steps.step = &s->set.programs[0];
    s->steps.buckets = &s->buckets;
    s->steps.layers = s->layers;
    return weft_program_experts_check_steps(&s->steps);
}

/* By the checkers of each level and by that of two steps. */
static weft_status check_all(subject *s)
{
    weft_status status = check_set(&s->set);
    for (int l = 0; l < s->steps.num_layers && status == WEFT_OK; l++)
        status = weft_program_experts_check(&s->layers[l].shape, &s->set.programs[1 + 2 * l],
                                            &s->set.programs[2 + 2 * l]);
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

/* Waits of experts' programs and flags that the levels' own checkers may not see. */
typedef struct tally {
    int waits, found, flags, found_flags;
} tally;

/* A step behind which everything is drained needs no flag. Beside a forward each is needed, but at
 * once, where the norm of all may stand behind a step. */
static void drop_flags(subject *s, int program, tally *sum)
{
    static edit edited;
    const weft_program whole = s->set.programs[program];
    for (uint32_t t = 0; t < whole.num_tasks; t++) {
        if (!(whole.tasks[t].flags & WEFT_TASK_AFTER_STEP))
            continue;
        edit_open(&s->set, program, &edited);
        edited.tasks[t].flags &= ~WEFT_TASK_AFTER_STEP;
        edit_close(&edited, &s->set);
        const bool found = check_steps(s) != WEFT_OK;
        weft_error_clear();
        if (s->steps.drains ? found : !found && !s->at_once && whole.tasks[t].bucket < 0)
            fail_msg("program %d, task %u, drains %d: found %d", program, t, s->steps.drains,
                     found);
        FAILS(check_all(s), WEFT_INTERNAL, "step");
        sum->flags += !s->steps.drains;
        sum->found_flags += found;
        s->set.programs[program] = whole;
    }
}

static void drop_waits(subject *s, int program, tally *sum)
{
    static edit edited;
    const weft_program whole = s->set.programs[program];
    for (uint32_t t = 0; t < whole.num_tasks; t++)
        for (uint32_t w = 0; w < whole.tasks[t].num_waits; w++) {
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

/* Each wait and each flag that is dropped is found by one of the checkers. */
CASE(dropped)
{
    uint64_t random = 43;
    tally sum = {0, 0, 0, 0};
    for (int draw = 0; draw < property_draws() / 10; draw++) {
        static subject s;
        make_subject(&random, &s);
        for (int program = 0; program < 1 + 2 * s.steps.num_layers; program++) {
            drop_flags(&s, program, &sum);
            drop_waits(&s, program, &sum);
        }
        release_set(&s.set);
    }
    print_message("%d waits dropped, %d seen over two steps; %d flags, %d\n", sum.waits, sum.found,
                  sum.flags, sum.found_flags);
    assert_true(sum.found > sum.waits / 2 && sum.found_flags > sum.flags / 2);
}
