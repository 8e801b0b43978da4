/* Properties of the generators, over all small shapes and random larger ones. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

/* The most micro-batches between their forward and their backward, counted along the program. */
static int most_in_flight(const weft_program *program)
{
    int now = 0, most = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        now += program->tasks[i].kind == WEFT_TASK_FORWARD;
        now -= program->tasks[i].kind == WEFT_TASK_BACKWARD;
        most = now > most ? now : most;
    }
    return most;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static void check_shape(weft_pipeline_kind kind, int p, int m, bool forward_only)
{
    program_set set = make_set(kind, p, m, forward_only),
                again = make_set(kind, p, m, forward_only), training = make_set(kind, p, m, false);
    if (check_set(&set) != WEFT_OK)
        fail_msg("%s p=%d m=%d forward_only=%d: %s", kind ? "GPipe" : "1F1B", p, m, forward_only,
                 weft_error_get()->text);
    for (int i = 0; i < p; i++) {
        const weft_program *program = &set.programs[i];
        assert_true(same_program(program, &again.programs[i]));

        const int bound = kind == WEFT_PIPELINE_1F1B ? smaller(p - i, m) : m;
        if (forward_only) {
            /* Of training's slots, no others. */
            assert_int_equal(program->max_in_flight, bound);
            assert_true(program->num_slots <= training.programs[i].num_slots);
            for (int slot = 0; slot < program->num_slots; slot++) {
                const weft_slot *mine = &program->slots[slot],
                                *other = &training.programs[i].slots[slot];
                assert_memory_equal(mine, other, sizeof *mine);
            }
        } else {
            assert_int_equal(program->max_in_flight, bound);
            assert_int_equal(most_in_flight(program), bound);
        }
        is_read_back(program);
    }
    release_set(&set);
    release_set(&again);
    release_set(&training);
}

CASE(small_shapes)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 16; m++)
            for (int forward_only = 0; forward_only < 2; forward_only++) {
                check_shape(WEFT_PIPELINE_1F1B, p, m, forward_only);
                check_shape(WEFT_PIPELINE_GPIPE, p, m, forward_only);
            }
}

CASE(random_larger_shapes)
{
    uint64_t random = 11;
    for (int i = 0; i < 60; i++) {
        const int p = 1 + (int)next_random(&random, MAX_STAGES);
        const int m = 1 + (int)next_random(&random, 64);
        check_shape(next_random(&random, 2) ? WEFT_PIPELINE_GPIPE : WEFT_PIPELINE_1F1B, p, m,
                    next_random(&random, 4) == 0);
    }
}

/* The program of a rank that begins no computation, and posts nothing behind it, before all
 * messages posted so far have come: as where the driver loads a kernel (core/device/cuda/cuda.h).
 */
static weft_program held_up(const weft_program *program, weft_arena *arena)
{
    weft_program slow = *program;
    void *tasks, *waits;
    OK(weft_arena_alloc_array(arena, program->num_tasks, sizeof(weft_task), &tasks));
    OK(weft_arena_alloc_array(arena, 2 * (size_t)program->num_tasks + program->num_waits,
                              sizeof(weft_wait), &waits));
    weft_task *to = tasks;
    weft_wait *wait = waits;
    /* One more than the newest message of each lane, and what of it came before a computation. */
    uint32_t newest[WEFT_NUM_LANES] = {0}, awaited[WEFT_NUM_LANES] = {0};
    slow.num_waits = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        to[i] = program->tasks[i];
        to[i].first_wait = slow.num_waits;
        for (uint32_t w = 0; w < to[i].num_waits; w++)
            wait[slow.num_waits++] = program->waits[program->tasks[i].first_wait + w];
        if (to[i].lane == WEFT_LANE_COMPUTE)
            memcpy(awaited, newest, sizeof awaited);
        for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
            if (awaited[lane])
                wait[slow.num_waits++] = (weft_wait){awaited[lane] - 1, -1};
        if (to[i].kind == WEFT_TASK_SEND || to[i].kind == WEFT_TASK_RECEIVE)
            newest[to[i].lane] = i + 1;
        to[i].num_waits = slow.num_waits - to[i].first_wait;
    }
    slow.tasks = tasks;
    slow.waits = waits;
    return slow;
}

CASE(each_computation_may_wait_for_all_messages)
{
    for (int shape = 0; shape < 4; shape++)
        for (int p = 2; p <= 6; p++)
            for (int m = 1; m <= 12; m++) {
                program_set set =
                    make_set(shape % 2 ? WEFT_PIPELINE_GPIPE : WEFT_PIPELINE_1F1B, p, m, shape / 2);
                for (int i = 0; i < p; i++)
                    set.programs[i] = held_up(&set.programs[i], &set.arena);
                if (check_set(&set) != WEFT_OK)
                    fail_msg("shape %d p=%d m=%d: %s", shape, p, m, weft_error_get()->text);
                release_set(&set);
            }
}

/* The order of a stage's compute, written down from the papers: Narayanan et al. 2021, figure 4,
 * for four stages and eight micro-batches; Huang et al. 2019, figure 2. */
CASE(compute_order)
{
    static const struct {
        weft_pipeline_kind kind;
        int p, m, stage;
        const char *order;
    } cases[] = {
        {WEFT_PIPELINE_1F1B, 4, 8, 0, "F0F1F2F3B0F4B1F5B2F6B3F7B4B5B6B7"},
        {WEFT_PIPELINE_1F1B, 4, 8, 2, "F0F1B0F2B1F3B2F4B3F5B4F6B5F7B6B7"},
        {WEFT_PIPELINE_1F1B, 4, 8, 3, "F0B0F1B1F2B2F3B3F4B4F5B5F6B6F7B7"},
        {WEFT_PIPELINE_1F1B, 4, 2, 0, "F0F1B0B1"},
        {WEFT_PIPELINE_GPIPE, 4, 4, 1, "F0F1F2F3B0B1B2B3"},
        {WEFT_PIPELINE_1F1B, 1, 3, 0, "F0B0F1B1F2B2"},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        program_set set = make_set(cases[c].kind, cases[c].p, cases[c].m, false);
        const weft_program *program = &set.programs[cases[c].stage];
        char order[256] = "";
        for (uint32_t i = 0; i < program->num_tasks; i++) {
            const weft_task *task = &program->tasks[i];
            if (task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD)
                snprintf(order + strlen(order), sizeof(order) - strlen(order), "%s%d",
                         weft_task_kind_letter(task->kind), task->micro_batch);
        }
        assert_string_equal(order, cases[c].order);
        release_set(&set);
    }
}

static weft_status check(const void *unused, const program_set *set)
{
    (void)unused;
    return check_set(set);
}

/* Every single wait is needed: without it the checker finds a race. */
CASE(no_wait_too_many)
{
    for (int p = 1; p <= 5; p++)
        for (int m = 1; m <= 9; m++)
            for (int kind = 0; kind < 2; kind++)
                for (int forward_only = 0; forward_only < 2; forward_only++) {
                    program_set set = make_set(kind, p, m, forward_only);
                    for (int i = 0; i < p; i++)
                        every_wait_is_needed(&set, i, check, NULL, " may ");
                    release_set(&set);
                }
}

CASE(refuses_no_pipeline)
{
    weft_arena arena = {0};
    weft_program program;
    const weft_pipeline_shape shapes[] = {{.kind = WEFT_PIPELINE_1F1B,
                                           .num_stages = 0,
                                           .num_micro_batches = 4,
                                           .forward_only = false,
                                           .boundary_bytes = 8},
                                          {.kind = WEFT_PIPELINE_1F1B,
                                           .num_stages = 4,
                                           .num_micro_batches = 0,
                                           .forward_only = false,
                                           .boundary_bytes = 8},
                                          {.kind = WEFT_PIPELINE_GPIPE,
                                           .num_stages = 4,
                                           .num_micro_batches = -1,
                                           .forward_only = true,
                                           .boundary_bytes = 8}};
    for (int i = 0; i < 3; i++)
        FAILS(weft_program_pipeline(&shapes[i], &arena, &program), WEFT_CONFIG,
              "no pipeline program for");
    weft_arena_release(&arena);
}

/* Wherever memory ends, it is said and nothing leaks. */
CASE(out_of_memory)
{
    const weft_pipeline_shape shape = {.kind = WEFT_PIPELINE_1F1B,
                                       .num_stages = 2,
                                       .num_micro_batches = 40,
                                       .forward_only = false,
                                       .boundary_bytes = 8};
    weft_status status = WEFT_MEMORY;
    int failures = 0;
    for (int n = 1; status != WEFT_OK; n++) {
        weft_arena arena = {0};
        weft_program programs[2];
        weft_alloc_fail_after(n);
        status = weft_program_pipeline(&shape, &arena, programs);
        if (status == WEFT_OK)
            status = weft_program_pipeline_check(programs, &shape);
        weft_alloc_fail_after(0);
        weft_arena_release(&arena);
        assert_true(status == WEFT_OK || status == WEFT_MEMORY);
        failures += status != WEFT_OK;
    }
    assert_true(failures > 10);
}
