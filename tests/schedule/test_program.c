/* The builder and the text form. With an argument DIR it writes the golden files there instead. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    weft_pipeline_kind kind;
    int p, m;
} goldens[] = {{"1f1b_p4_m6", WEFT_PIPELINE_1F1B, 4, 6},
               {"gpipe_p2_m3", WEFT_PIPELINE_GPIPE, 2, 3}};
enum { NUM_GOLDENS = sizeof(goldens) / sizeof(goldens[0]) };

CASE(golden_files)
{
    for (int g = 0; g < NUM_GOLDENS; g++) {
        program_set set = make_set(goldens[g].kind, goldens[g].p, goldens[g].m, false);
        for (int stage = 0; stage < goldens[g].p; stage++) {
            char name[64];
            snprintf(name, sizeof(name), "%s_stage%d.txt", goldens[g].name, stage);
            program_is_golden(&set.programs[stage], name);
        }
        OK(check_set(&set));
        release_set(&set);
    }
}

/* Any task that reads a slot and writes one: x and y of a forward. */
static weft_task task_on(weft_lane_kind lane, int read, int written)
{
    weft_task task = weft_task_of(WEFT_TASK_FORWARD, WEFT_FLOW_NONE);
    task.lane = (uint16_t)lane;
    *operand_of(&task, WEFT_OPERAND_X) = read;
    *operand_of(&task, WEFT_OPERAND_Y) = written;
    return task;
}

static weft_program_builder *builder_with_slots(weft_arena *arena)
{
    weft_program_builder *builder;
    const weft_slot slot = {.holds = WEFT_SLOT_ACTIVATION, .chunk = 0};
    int32_t first;
    OK(weft_program_builder_create(arena, &builder));
    OK(weft_program_add_slots(builder, &slot, 2, &first));
    assert_int_equal(first, 0);
    return builder;
}

static void assert_waits(const weft_program *program, uint32_t task, uint32_t count,
                         const weft_wait *waits)
{
    assert_int_equal(program->tasks[task].num_waits, count);
    assert_memory_equal(&program->waits[program->tasks[task].first_wait], waits,
                        count * sizeof(weft_wait));
}

/* Waits come from slots: after the writer for a reader, after readers and writer for a writer;
 * and nothing that is implied. */
CASE(waits_from_slots)
{
    weft_arena arena = {0};
    weft_program_builder *builder = builder_with_slots(&arena);
    weft_program program;
    const weft_task tasks[] = {
        task_on(WEFT_LANE_RECEIVE, -1, 0), /* 0 writes a */
        task_on(WEFT_LANE_COMPUTE, 0, 1),  /* 1 reads a, writes b: waits for 0 */
        task_on(WEFT_LANE_SEND, 1, -1),    /* 2 reads b: waits for 1 */
        task_on(WEFT_LANE_COMPUTE, 0, -1), /* 3 reads a: its lane knows 0 is done */
        task_on(WEFT_LANE_REDUCE, 0, -1),  /* 4 reads a: waits for 0 */
        task_on(WEFT_LANE_RECEIVE, -1, 0), /* 5 overwrites a: waits for both readers, 3 and 4 */
        task_on(WEFT_LANE_COMPUTE, 0, 1),  /* 6 reads a, overwrites b: waits for 2 and 5 */
        task_on(WEFT_LANE_SEND, 0, -1),    /* 7 reads a: waits for 5 */
        task_on(WEFT_LANE_REDUCE, 1, 0),   /* 8 reads b, overwrites a: 7 implies 5; 6 is not */
    };
    for (uint32_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++) {
        uint32_t index;
        OK(weft_program_append(builder, &tasks[i], NULL, 0, &index));
        assert_int_equal(index, i);
    }
    const weft_task last = task_on(WEFT_LANE_COMPUTE, -1, -1);
    const weft_wait after[] = {{0, -1}, {5, -1}, {7, -1}, {8, -1}};
    OK(weft_program_append(builder, &last, after, 4, NULL)); /* 9: 8 implies the others */
    OK(weft_program_finish(builder, 1, &program));
    assert_int_equal(program.num_tasks, 10);
    assert_int_equal(program.num_slots, 2);
    assert_int_equal(program.max_in_flight, 1);
    assert_waits(&program, 0, 0, NULL);
    assert_waits(&program, 1, 1, (const weft_wait[]){{0, -1}});
    assert_waits(&program, 2, 1, (const weft_wait[]){{1, -1}});
    assert_waits(&program, 3, 0, NULL);
    assert_waits(&program, 4, 1, (const weft_wait[]){{0, -1}});
    assert_waits(&program, 5, 2, (const weft_wait[]){{3, -1}, {4, -1}});
    assert_waits(&program, 6, 2, (const weft_wait[]){{2, -1}, {5, -1}});
    assert_waits(&program, 7, 1, (const weft_wait[]){{5, -1}});
    assert_waits(&program, 8, 2, (const weft_wait[]){{6, -1}, {7, -1}});
    assert_waits(&program, 9, 1, (const weft_wait[]){{8, -1}});
    weft_arena_release(&arena);
}

/* A point is over before those below it and before the end, and says that what the body waited for
 * is over. */
CASE(waits_for_points)
{
    weft_arena arena = {0};
    weft_program_builder *builder = builder_with_slots(&arena);
    weft_program program;
    static const struct {
        weft_lane_kind lane;
        weft_wait after[2];
        uint32_t num_after;
    } tasks[] = {
        {WEFT_LANE_RECEIVE, {{0}}, 0},
        {WEFT_LANE_COMPUTE, {{0, -1}}, 1},
        {WEFT_LANE_REDUCE, {{1, 3}}, 1},
        {WEFT_LANE_REDUCE, {{1, 5}}, 1},          /* 3: the lane knows of point 3 */
        {WEFT_LANE_REDUCE, {{1, 2}}, 1},          /* 4: but not of point 2 */
        {WEFT_LANE_SEND, {{0, -1}, {1, 4}}, 2},   /* 5: 1 began after 0 */
        {WEFT_LANE_SEND, {{1, -1}, {1, 0}}, 2},   /* 6: the end is enough */
        {WEFT_LANE_REDUCE, {{6, -1}, {1, 1}}, 2}, /* 7: 6 implies the end */
    };
    for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++) {
        const weft_task task = task_on(tasks[i].lane, -1, -1);
        OK(weft_program_append(builder, &task, tasks[i].after, tasks[i].num_after, NULL));
    }
    OK(weft_program_finish(builder, 1, &program));
    assert_waits(&program, 2, 1, (const weft_wait[]){{1, 3}});
    assert_waits(&program, 3, 0, NULL);
    assert_waits(&program, 4, 1, (const weft_wait[]){{1, 2}});
    assert_waits(&program, 5, 1, (const weft_wait[]){{1, 4}});
    assert_waits(&program, 6, 1, (const weft_wait[]){{1, -1}});
    assert_waits(&program, 7, 1, (const weft_wait[]){{6, -1}});
    weft_arena_release(&arena);
}

CASE(builder_refuses)
{
    weft_arena arena = {0};
    weft_program_builder *builder = builder_with_slots(&arena);
    const weft_task good = task_on(WEFT_LANE_COMPUTE, 0, 1);
    const weft_wait waits[WEFT_TASK_MAX_WAITS + 1] = {{0}};
    FAILS(weft_program_add(builder, &good, waits, 1, NULL), WEFT_CONFIG,
          "task 0 waits for task 0 (point 0), which is not an earlier one");
    OK(weft_program_add(builder, &good, NULL, 0, NULL));
    FAILS(weft_program_add(builder, &good, waits, WEFT_TASK_MAX_WAITS + 1, NULL), WEFT_CONFIG,
          "waits for 16 others");
    const weft_wait ahead = {1, -1}, below = {0, -3}, landed = {0, WEFT_POINT_LANDED},
                    before = {WEFT_STEP_BEFORE, -1}, inside = {WEFT_STEP_BEFORE, 0};
    FAILS(weft_program_append(builder, &good, &ahead, 1, NULL), WEFT_CONFIG,
          "task 1 waits for task 1");
    FAILS(weft_program_append(builder, &good, &below, 1, NULL), WEFT_CONFIG, "(point -3)");
    FAILS(weft_program_append(builder, &good, &landed, 1, NULL), WEFT_CONFIG, "(point -2)");
    FAILS(weft_program_append(builder, &good, &before, 1, NULL), WEFT_CONFIG, "does not serve");
    weft_task bad = good;
    bad.bucket = 1;
    FAILS(weft_program_append(builder, &bad, &inside, 1, NULL), WEFT_CONFIG, "(point 0)");
    bad.bucket = -1;
    bad.expert = 1;
    FAILS(weft_program_append(builder, &bad, &landed, 1, NULL), WEFT_CONFIG, "(point -2)");
    bad.kind = WEFT_NUM_TASK_KINDS;
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG, "has kind 27");
    bad = good;
    bad.lane = WEFT_NUM_LANES;
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG, "lane 15");
    bad = good;
    bad.flow = WEFT_FLOW_MIDDLE;
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG,
          "no task has kind 0 and flow 4");
    bad = good;
    bad.flags = 4;
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG, "flags 4");
    bad = good;
    bad.peer = -2;
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG, "peer -2");
    bad = task_on(WEFT_LANE_COMPUTE, 0, 2);
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG, "slot 2 of 2");
    bad = good;
    bad.operands[4] = 0;
    FAILS(weft_program_append(builder, &bad, NULL, 0, NULL), WEFT_CONFIG,
          "a task of kind forward has an operand 4");
    weft_slot slot = {.holds = WEFT_NUM_SLOT_KINDS};
    FAILS(weft_program_add_slots(builder, &slot, 1, NULL), WEFT_CONFIG, "1 slots of kind ");
    slot = (weft_slot){.chunk = -1};
    FAILS(weft_program_add_slots(builder, &slot, WEFT_PROGRAM_MAX_SLOTS, NULL), WEFT_CONFIG,
          "32768 slots");
    weft_arena_release(&arena);
}

/* Any task that the builder takes comes back from its text. */
CASE(any_task_round_trips)
{
    uint64_t random = 5;
    for (int round = 0; round < 200; round++) {
        weft_arena arena = {0};
        weft_program_builder *builder;
        weft_program program;
        OK(weft_program_builder_create(&arena, &builder));
        uint32_t num_slots = 0;
        for (uint32_t i = next_random(&random, 6); i > 0; i--) {
            const weft_slot slot = {.holds = next_random(&random, WEFT_NUM_SLOT_KINDS),
                                    .chunk = (int32_t)next_random(&random, 4) - 1,
                                    .bytes = next_random(&random, 2) * (UINT64_MAX / 3)};
            const int count = (int)next_random(&random, 4);
            OK(weft_program_add_slots(builder, &slot, count, NULL));
            num_slots += (uint32_t)count;
        }
        for (uint32_t i = 0; i < 50; i++) {
            const weft_operands *operands = NULL;
            while (!operands)
                operands = weft_operands_of((int)next_random(&random, WEFT_NUM_TASK_KINDS),
                                            (int)next_random(&random, WEFT_NUM_FLOWS));
            weft_task task =
                weft_task_of((weft_task_kind)operands->kind, (weft_flow)operands->flow);
            task.lane = (uint8_t)next_random(&random, WEFT_NUM_LANES);
            task.flags = (uint8_t)next_random(&random, WEFT_TASK_ALL_FLAGS + 1);
            int32_t *const numbers[] = {&task.micro_batch, &task.layer, &task.expert, &task.bucket,
                                        &task.peer};
            for (int n = 0; n < 5; n++)
                *numbers[n] =
                    next_random(&random, 9) ? (int32_t)next_random(&random, 5) - 1 : INT32_MAX;
            int16_t *const small[] = {&task.chunk, &task.part};
            for (int n = 0; n < 2; n++)
                *small[n] = (int16_t)(next_random(&random, 9) ? next_random(&random, 5) - 1
                                                              : WEFT_PROGRAM_MAX_CHUNKS - 1);
            for (int o = 0; o < operands->count; o++)
                task.operands[o] = (int16_t)(next_random(&random, num_slots + 1) - 1);
            weft_wait waits[WEFT_TASK_MAX_WAITS];
            const uint32_t num_waits = i ? next_random(&random, WEFT_TASK_MAX_WAITS + 1) : 0;
            for (uint32_t w = 0; w < num_waits; w++) {
                const int lowest = task.bucket >= 0 ? WEFT_POINT_LANDED : -1;
                waits[w] =
                    (weft_wait){next_random(&random, i), (int32_t)next_random(&random, 4) + lowest};
                if ((task.bucket >= 0 || task.expert >= 0) && next_random(&random, 9) == 0)
                    waits[w] = (weft_wait){WEFT_STEP_BEFORE, -1};
            }
            OK(weft_program_add(builder, &task, waits, num_waits, NULL));
        }
        OK(weft_program_finish(builder, -1, &program));
        is_read_back(&program);
        weft_arena_release(&arena);
    }
}

CASE(parser_refuses)
{
#define HEAD "program in_flight=1\nslots 0-1 activation chunk=0\n"
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "line 1: the line does not end"},
        {"\n", "line 1: \"\" should read \"program in_flight=0\""},
        {"program in_flight=01\n", "line 1: "},
        {"program in_flight=99999999999\n", "line 1: "},
        {"program in_flight=1\nslots 0-1 colour\n", "line 2: \"slots 0-1 colour\" is no stretch"},
        {"program in_flight=1\nslots 1-1 output\n", "should read \"slots 0-1 output\""},
        {"program in_flight=1\nslots 1-0 output\n", "is no stretch of slots"},
        {"program in_flight=1\nslots 0-0 output bytes=0\n", "should read \"slots 0-0 output\""},
        {"program in_flight=1\nslots 0-0 output chunk=-2\n", "line 2: 1 slots of kind 1 and chunk"},
        {"program in_flight=1\nslots 0-0 output chunk=32768\n", "line 2: 1 slots of kind 1 and"},
        {HEAD "0 send send activation mb=0 chunk=2147483647 peer=1 from=0\n",
         "should read \"0 send send activation mb=0 peer=1 from=0\""},
        {"program in_flight=1\nslots 0-70000 output\n", "line 2: 70001 slots"},
        {"program in_flight=1\nslots 0-0 output\nslots 1-1 output\n", "in one stretch with those"},
        {HEAD "0 forward compute\nslots 2-2 output\n", "line 4: \"slots 2-2 output\" is no task"},
        {HEAD "0 forward compute mb=0", "line 3: the line does not end"},
        {HEAD "\n", "line 3: \"\" is no task"},
        {HEAD "0 forwards compute\n", "line 3: \"0 forwards compute\" is no task"},
        {HEAD "0 forward gpu\n", "line 3: \"0 forward gpu\" is no task"},
        {HEAD "1 forward compute\n", "should read \"0 forward compute\""},
        {HEAD "0 forward  compute\n", "should read \"0 forward compute\""},
        {HEAD "0 forward compute \n", "should read \"0 forward compute\""},
        {HEAD "0 forward compute mb=03\n", "should read \"0 forward compute mb=3\""},
        {HEAD "0 forward compute mb=-1\n", "should read \"0 forward compute\""},
        {HEAD "0 forward compute mb=-2\n", "line 3: a task has micro-batch -2"},
        {HEAD "0 forward compute mb=4294967296\n", "should read"},
        {HEAD "0 forward compute mb=1,2\n", "should read"},
        {HEAD "0 forward compute chunk=1 mb=1\n", "should read"},
        {HEAD "0 forward compute mb=1 mb=1\n", "should read"},
        {HEAD "0 forward compute mb=1 host\n", "should read \"0 forward compute host mb=1\""},
        {HEAD "0 forward compute dy=1\n", "should read \"0 forward compute\""},
        {HEAD "0 forward compute y=1 x=0\n", "should read \"0 forward compute x=0 y=1\""},
        {HEAD "0 forward compute x=2\n", "line 3: a task uses slot 2 of 2"},
        {HEAD "0 forward compute gradient\n", "line 3: no task has kind 0 and flow 2"},
        {HEAD "0 forward compute colour=red\n", "should read \"0 forward compute\""},
        {HEAD "0 forward compute sideways\n", "should read \"0 forward compute\""},
        {HEAD "0 forward compute waits=0\n", "line 3: task 0 waits for task 0"},
        {HEAD "0 forward compute waits=\n", "line 3: "},
        {HEAD "0 forward compute\n1 step compute waits=0@\n", "line 4: "},
        {HEAD "0 forward compute\n1 step compute waits=0@-1\n",
         "should read \"1 step compute waits=0\""},
        {HEAD "0 forward compute\n1 step compute bucket=0 waits=0@-2\n",
         "should read \"1 step compute bucket=0 waits=0@landed\""},
        {HEAD "0 step compute bucket=0 waits=4294967295\n",
         "should read \"0 step compute bucket=0 waits=step_before\""},
        {HEAD "0 step compute waits=step_before\n", "line 3: task 0 waits for "},
        {HEAD "0 forward compute\n1 forward compute waits=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n",
         "line 4: "},
        {HEAD "0 forward compute\n\n", "line 4: \"\" is no task"},
        {HEAD "0 forward compute\n" HEAD, "line 4: \"program in_flight=1\" is no task"},
        {HEAD "0 forward compute\r\n", "line 3: "},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        weft_arena arena = {0};
        weft_program program;
        FAILS(weft_program_parse(cases[c].text, &arena, &program), WEFT_CONFIG, cases[c].error);
        weft_arena_release(&arena);
    }
    char longest[WEFT_TASK_TEXT_BYTES + 64];
    memset(longest, 'x', sizeof(longest));
    strcpy(longest + sizeof longest - 8, "\n");
    weft_arena arena = {0};
    weft_program program;
    FAILS(weft_program_parse(longest, &arena, &program), WEFT_CONFIG,
          "line 1: longer than any task");
    weft_arena_release(&arena);
#undef HEAD
}

CASE(print_reports_a_full_disk)
{
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    program_set set = make_set(WEFT_PIPELINE_1F1B, 2, 3, false);
    FAILS(weft_program_print(&set.programs[0], full), WEFT_FILE, "cannot write a program");
    fclose(full);
    release_set(&set);
}

static int write_goldens(const char *folder)
{
    for (int g = 0; g < NUM_GOLDENS; g++) {
        program_set set = make_set(goldens[g].kind, goldens[g].p, goldens[g].m, false);
        for (int stage = 0; stage < goldens[g].p; stage++) {
            char path[1024];
            snprintf(path, sizeof(path), "%s/%s_stage%d.txt", folder, goldens[g].name, stage);
            FILE *file = fopen(path, "w");
            if (!file || weft_program_print(&set.programs[stage], file) != WEFT_OK)
                return 1;
            fclose(file);
        }
        release_set(&set);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return write_goldens(argv[1]);
    return run_cases();
}
