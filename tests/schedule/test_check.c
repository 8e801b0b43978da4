/* The checker must refuse every program that can go wrong. Each class of mistake is made once by
 * hand, with the text that it must get; then thousands are made at random, and an independent
 * machine judges what the checker lets pass. */
#include "tests/schedule/machine.h"

#include <stdlib.h>
#include <string.h>

static edit edited;

/* 1F1B, four stages, six micro-batches, with stage `stage` open for editing. */
static program_set open_1f1b(int stage)
{
    program_set set = make_set(WEFT_PIPELINE_1F1B, 4, 6, false);
    edit_open(&set, stage, &edited);
    return set;
}

static void refuse(program_set *set, const char *text)
{
    edit_close(&edited, set);
    FAILS(check_set(set), WEFT_INTERNAL, text);
    release_set(set);
}

static weft_task *at(weft_task_kind kind, weft_flow flow, int micro_batch)
{
    for (uint32_t i = 0; i < edited.num_tasks; i++)
        if (edited.tasks[i].kind == kind && edited.tasks[i].flow == flow &&
            edited.tasks[i].micro_batch == micro_batch)
            return &edited.tasks[i];
    fail_msg("no %s %d", weft_task_kind_text(kind), micro_batch);
    return NULL;
}

static uint32_t index_of(const weft_task *task)
{
    return (uint32_t)(task - edited.tasks);
}

/* Stage 1's program is golden/1f1b_p4_m6_stage1.txt. */
CASE(form)
{
    program_set set = open_1f1b(1);
    at(WEFT_TASK_FORWARD, 0, 2)->kind = 77;
    refuse(&set, "stage 1, task 7 is malformed: kind 77, flow 0, 2 waits");

    set = open_1f1b(1);
    edited.waits[7][0].task = 7;
    refuse(&set, "stage 1, task 7 (forward compute mb=2 chunk=0 x=2 stash=2 y=3 waits=7,6) "
                 "waits for task 7, which is not an earlier one");

    set = open_1f1b(1);
    edited.waits[7][1].task = 4000000000u;
    refuse(&set, "waits for task 4000000000, which is not an earlier one");

    set = open_1f1b(1);
    at(WEFT_TASK_FORWARD, 0, 2)->lane = WEFT_LANE_REDUCE;
    refuse(&set, "(forward reduce mb=2 chunk=0 x=2 stash=2 y=3 waits=2,6) is not on the "
                 "compute lane");

    set = open_1f1b(1);
    at(WEFT_TASK_FORWARD, 0, 2)->chunk = 1;
    refuse(&set, "has no place in this program");

    set = open_1f1b(1);
    at(WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, 2)->flow = WEFT_FLOW_NONE;
    refuse(&set, "task 23 is malformed: kind 2, flow 0");

    set = open_1f1b(1);
    at(WEFT_TASK_BACKWARD, 0, 2)->flow = WEFT_FLOW_GRADIENT;
    refuse(&set, "is malformed: kind 1, flow 2");

    set = open_1f1b(1);
    at(WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, 2)->peer = 2;
    refuse(&set, "stage 1, task 23 (send send gradient mb=2 chunk=0 peer=2 from=7 waits=22) has "
                 "peer 2 instead of 0");

    set = open_1f1b(1);
    at(WEFT_TASK_FORWARD, 0, 2)->micro_batch = 6;
    refuse(&set, "has no place in this program");

    set = open_1f1b(1);
    at(WEFT_TASK_REDUCE, 0, -1)->micro_batch = 0;
    refuse(&set, "has no place in this program");

    set = open_1f1b(1);
    *operand_of(at(WEFT_TASK_FORWARD, 0, 2), WEFT_OPERAND_X) = -1;
    refuse(&set, "must read the activation, but names slot -1");

    set = open_1f1b(1);
    at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 2)->operands[1] = 1;
    refuse(&set, "must use nothing as its operand 1, but names slot 1");

    set = open_1f1b(1);
    *operand_of(at(WEFT_TASK_BACKWARD, 0, 2), WEFT_OPERAND_DX) = 9;
    refuse(&set, "names slot 9, but there are 9");

    set = open_1f1b(1);
    *operand_of(at(WEFT_TASK_FORWARD, 0, 2), WEFT_OPERAND_Y) =
        *operand_of(at(WEFT_TASK_FORWARD, 0, 2), WEFT_OPERAND_STASH);
    refuse(&set, "has the activation in slot 2, which is made for chunk 0");

    set = make_set(WEFT_PIPELINE_1F1B, 1, 1, false);
    set.programs[0].num_slots = -1;
    FAILS(check_set(&set), WEFT_INTERNAL, "stage 0 has -1 slots");
    set.shape.num_stages = 0;
    FAILS(check_set(&set), WEFT_INTERNAL, "no programs");
    set.shape = (weft_pipeline_shape){.kind = WEFT_PIPELINE_1F1B,
                                      .num_stages = 1,
                                      .num_micro_batches = 0,
                                      .forward_only = false,
                                      .boundary_bytes = 8};
    FAILS(check_set(&set), WEFT_INTERNAL, "no programs");
    release_set(&set);
}

CASE(once_and_in_order)
{
    program_set set = open_1f1b(1);
    const weft_task again = *at(WEFT_TASK_FORWARD, 0, 2);
    insert_task(&edited, 8, &again);
    refuse(&set, "stage 1, task 8 (forward compute mb=2 chunk=0 x=2 stash=2 y=3) does again "
                 "what task 7 did");

    set = open_1f1b(1);
    drop_task(&edited, index_of(at(WEFT_TASK_BACKWARD, 0, 5)));
    refuse(&set, "stage 1 has no backward compute mb=5 chunk=0");

    set = open_1f1b(1);
    drop_task(&edited, index_of(at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 3)));
    refuse(&set, "stage 1 has no send send activation mb=3 chunk=0 peer=2");

    set = open_1f1b(1);
    drop_task(&edited, index_of(at(WEFT_TASK_RECEIVE, WEFT_FLOW_GRADIENT, 0)));
    refuse(&set, "stage 1 has no receive receive gradient mb=0 chunk=0 peer=2");

    set = open_1f1b(2);
    drop_task(&edited, index_of(at(WEFT_TASK_STEP, 0, -1)));
    refuse(&set, "stage 2 has no step");

    set = open_1f1b(2);
    drop_task(&edited, index_of(at(WEFT_TASK_REDUCE, 0, -1)));
    refuse(&set, "stage 2 has no reduce");

    set = open_1f1b(3);
    swap_tasks(&edited, index_of(at(WEFT_TASK_FORWARD, 0, 2)),
               index_of(at(WEFT_TASK_BACKWARD, 0, 2)));
    refuse(&set, "from slot 0, which holds the activation of micro-batch 2, stage 3");

    /* A training step is not an evaluation, nor the other way round. */
    set = make_set(WEFT_PIPELINE_1F1B, 2, 2, false);
    set.shape.forward_only = true;
    FAILS(check_set(&set), WEFT_INTERNAL, "has no place in this program");
    release_set(&set);
    set = make_set(WEFT_PIPELINE_1F1B, 2, 2, true);
    set.shape.forward_only = false;
    FAILS(check_set(&set), WEFT_INTERNAL, "stage 0 has no receive receive gradient mb=0");
    release_set(&set);
}

CASE(slots_and_waits)
{
    program_set set = open_1f1b(1); /* a forward that does not wait for its activation */
    drop_wait(&edited, 7, 1);
    refuse(&set, "stage 1, task 7 (forward compute mb=2 chunk=0 x=2 stash=2 y=3 waits=2) may "
                 "read slot 2 before task 6 has written it: no wait says otherwise");

    set = open_1f1b(1); /* an output slot reused while it is being sent */
    drop_wait(&edited, 7, 0);
    refuse(&set, "may overwrite slot 3 while task 2 still reads it: no wait says otherwise");

    set = open_1f1b(1); /* an activation received over a stash that a backward needs */
    drop_wait(&edited, 12, 0);
    refuse(&set, "stage 1, task 12 (receive receive activation mb=3 chunk=0 peer=0 to=0) may "
                 "overwrite slot 0 while task 10 still reads it");

    set = open_1f1b(1); /* a send that does not wait for what it sends */
    drop_wait(&edited, 11, 0);
    refuse(&set, "task 11 (send send gradient mb=0 chunk=0 peer=0 from=7) may read slot 7 before "
                 "task 10 has written it");

    set = open_1f1b(1); /* received into a slot whose stash is still needed */
    *operand_of(at(WEFT_TASK_RECEIVE, WEFT_FLOW_ACTIVATION, 3), WEFT_OPERAND_TO) = 1;
    *operand_of(at(WEFT_TASK_FORWARD, 0, 3), WEFT_OPERAND_X) = 1;
    *operand_of(at(WEFT_TASK_FORWARD, 0, 3), WEFT_OPERAND_STASH) = 1;
    *operand_of(at(WEFT_TASK_BACKWARD, 0, 3), WEFT_OPERAND_STASH) = 1;
    refuse(&set, "task 16 (backward compute mb=1 chunk=0 stash=1 dy=6 dx=8 waits=15) needs the "
                 "stash of micro-batch 1, stage 1 from slot 1, which holds the stash of "
                 "micro-batch 3, stage 1");

    set = open_1f1b(1); /* the same, ordered by a wait: now it is lost for certain */
    *operand_of(at(WEFT_TASK_RECEIVE, WEFT_FLOW_ACTIVATION, 3), WEFT_OPERAND_TO) = 1;
    edited.waits[12][0].task = 4;
    refuse(&set, "needs the activation of micro-batch 3, stage 1 from slot 0, which holds the "
                 "stash of micro-batch 0, stage 1");

    set = open_1f1b(1); /* a stash away from the activation that it keeps */
    *operand_of(at(WEFT_TASK_FORWARD, 0, 2), WEFT_OPERAND_STASH) = 1;
    refuse(&set, "has the stash in slot 1, but must leave it in slot 2");

    set = open_1f1b(1); /* the other output slot, which holds an older output */
    *operand_of(at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 2), WEFT_OPERAND_FROM) = 4;
    refuse(&set, "task 8 (send send activation mb=2 chunk=0 peer=2 from=4 waits=7) needs the "
                 "activation of micro-batch 2, stage 2 from slot 4, which holds the activation of "
                 "micro-batch 1, stage 2");

    set = open_1f1b(1); /* the activation instead of the output */
    *operand_of(at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 2), WEFT_OPERAND_FROM) = 2;
    refuse(&set, "has the activation in slot 2, which is made for chunk 0");

    set = open_1f1b(1); /* memory that is not for it */
    *operand_of(at(WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, 2), WEFT_OPERAND_FROM) = 3;
    refuse(&set, "has the gradient in slot 3, which is memory for output");

    set = open_1f1b(1); /* a slot that nobody has written */
    *operand_of(at(WEFT_TASK_BACKWARD, 0, 0), WEFT_OPERAND_DY) = 6;
    refuse(&set, "reads slot 6 before anything is written to it");

    set = open_1f1b(0);
    at(WEFT_TASK_REDUCE, 0, -1)->num_waits = 0;
    refuse(&set, "(reduce reduce bucket=0) may start before the backward in task");

    set = open_1f1b(0);
    at(WEFT_TASK_NORM, 0, -1)->num_waits = 0;
    refuse(&set, "(norm compute host) may start before the reduce in task");
}

CASE(in_flight)
{
    program_set set = make_set(WEFT_PIPELINE_1F1B, 4, 6, false);
    set.programs[1].max_in_flight = 2;
    FAILS(check_set(&set), WEFT_INTERNAL,
          "stage 1, task 7 (forward compute mb=2 chunk=0 x=2 stash=2 y=3 waits=2,6) "
          "puts 3 in flight, at most 2 may be");
    release_set(&set);
}

/* Moves a task that nobody waits for to behind another one; returns its new index. */
static uint32_t move_behind(uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        swap_tasks(&edited, i, i + 1);
    return to;
}

CASE(messages_and_deadlock)
{
    /* Stage 0 of one kind, stage 1 of another: GPipe and 1F1B agree on the order of messages but
     * with two slots GPipe's forwards run ahead of what 1F1B takes before it sends gradients. */
    program_set set = make_set(WEFT_PIPELINE_1F1B, 2, 9, false);
    program_set gpipe = make_set(WEFT_PIPELINE_GPIPE, 2, 9, false);
    set.programs[0] = gpipe.programs[0];
    FAILS(check_set(&set), WEFT_INTERNAL,
          "deadlock: stage 1 task 20 (receive activation 5) waits for stage 1 task 18 "
          "(backward 4) waits for stage 1 task 11 (send gradient 2) waits for stage 0 task "
          "22 (receive gradient 2) waits for stage 0 task 14 (forward 7) waits for stage 0 "
          "task 11 (send activation 5) waits for the first again");
    release_set(&gpipe);
    release_set(&set);

    /* Two sends in the other order: the peer receives something else. */
    set = open_1f1b(0);
    move_behind(index_of(at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 4)),
                index_of(at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 5)));
    refuse(&set,
           "task 14 (send send activation mb=5 chunk=0 peer=1 from=5 waits=13) meets stage 1, task "
           "18 (receive receive activation mb=4 chunk=0 peer=0 to=1 waits=16)");

    /* A send that waits for the gradient of what it sends. Orders match on every pair of stages,
     * waits point backwards, and yet each stage waits for the other. */
    set = make_set(WEFT_PIPELINE_1F1B, 2, 2, false);
    edit_open(&set, 0, &edited);
    const uint32_t gradient = index_of(at(WEFT_TASK_RECEIVE, WEFT_FLOW_GRADIENT, 1));
    const uint32_t late =
        move_behind(index_of(at(WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 1)), gradient);
    edited.waits[late][edited.tasks[late].num_waits++] = (weft_wait){gradient - 1, -1};
    refuse(&set, "deadlock: stage 1 task 5 (forward 1) waits for stage 1 task 4 (receive "
                 "activation 1) waits for stage 0 task 6 (send activation 1) waits for stage 0 "
                 "task 5 (receive gradient 1) waits for stage 1 task 7 (send gradient 1) waits "
                 "for the first again");
}

/* A rank with MoE layers: its host waits inside every forward for the counts that replicas
 * exchange, and enqueues nothing behind it meanwhile. All replicas run one program, but not in one
 * rhythm: with a reduction ahead of a forward, one replica's lanes may stand in the reduction,
 * which another enqueues only after its own counts, which in turn need the first one. What forbids
 * it is that a reduction needs the backwards of all micro-batches, and these all forwards: none is
 * left behind. */
CASE(reductions_around_counts)
{
    static const char *const first = "program in_flight=2\nslots 0-1 activation chunk=0\n";
    static const struct {
        const char *tasks, *error; /* NULL: accepted */
    } orders[] = {
        {"0 forward compute host mb=0 chunk=0 stash=0\n"
         "1 reduce reduce bucket=0\n"
         "2 backward compute mb=0 chunk=0 stash=0\n"
         "3 forward compute host mb=1 chunk=0 stash=1\n"
         "4 step compute bucket=0\n",
         "stage 0 has no backward compute mb=1 chunk=0"},
        {"0 forward compute host mb=0 chunk=0 stash=0\n"
         "1 reduce reduce bucket=0\n"
         "2 backward compute mb=0 chunk=0 stash=0\n"
         "3 forward compute host mb=1 chunk=0 stash=1\n"
         "4 backward compute mb=1 chunk=0 stash=1\n"
         "5 norm compute host waits=1\n"
         "6 step compute bucket=0\n",
         "task 1 (reduce reduce bucket=0) may start before the backward in task 4 is over"},
        {"0 forward compute host mb=0 chunk=0 stash=0\n"
         "1 backward compute mb=0 chunk=0 stash=0\n"
         "2 reduce reduce bucket=0 waits=1\n"
         "3 forward compute host mb=1 chunk=0 stash=1\n"
         "4 backward compute mb=1 chunk=0 stash=1\n"
         "5 norm compute host waits=2\n"
         "6 step compute bucket=0\n",
         "task 2 (reduce reduce bucket=0 waits=1) may start before the backward in task 4 is over"},
        {"0 forward compute host mb=0 chunk=0 stash=0\n"
         "1 backward compute mb=0 chunk=0 stash=0\n"
         "2 forward compute host mb=1 chunk=0 stash=1\n"
         "3 backward compute mb=1 chunk=0 stash=1\n"
         "4 reduce reduce bucket=0 waits=3\n"
         "5 norm compute host waits=4\n"
         "6 step compute bucket=0\n",
         NULL},
    };
    const bool host_waits[1] = {true};
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        program_set set = make_shaped_set(&(weft_pipeline_shape){
            .num_stages = 1, .num_micro_batches = 2, .host_waits = host_waits});
        char text[1024];
        snprintf(text, sizeof(text), "%s%s", first, orders[i].tasks);
        OK(weft_program_parse(text, &set.arena, &set.programs[0]));
        if (orders[i].error)
            FAILS(check_set(&set), WEFT_INTERNAL, orders[i].error);
        else
            OK(check_set(&set));
        release_set(&set);
    }
}

/* All ranks meet in the norm, and the host waits there: a gradient that is sent behind it is never
 * enqueued, and the rank that needs it never comes. */
CASE(a_message_behind_the_norm)
{
    program_set set = make_set(WEFT_PIPELINE_1F1B, 2, 1, false);
    edit_open(&set, 1, &edited);
    move_behind(index_of(at(WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, 0)),
                index_of(at(WEFT_TASK_NORM, WEFT_FLOW_NONE, -1)));
    edit_close(&edited, &set);
    assert_string_equal(run_machine(&set, 1), "deadlock");
    FAILS(check_set(&set), WEFT_INTERNAL,
          "deadlock: stage 0 task 2 (receive gradient 0) waits for stage 1");
    release_set(&set);
}

/* No accepted program leaves a forward, and with it a host's wait for counts, behind a reduction.
 */
static void expect_no_forward_behind_reductions(const program_set *set)
{
    for (int stage = 0; stage < set->shape.num_stages; stage++) {
        bool reduced = false;
        for (uint32_t i = 0; i < set->programs[stage].num_tasks; i++) {
            const int kind = set->programs[stage].tasks[i].kind;
            reduced |= kind == WEFT_TASK_REDUCE || kind == WEFT_TASK_SUM;
            assert_false(reduced && kind == WEFT_TASK_FORWARD);
        }
    }
}

/* Random damage of every class. */
static void damage(program_set *set, uint64_t *random)
{
    const int stage = (int)next_random(random, (uint32_t)set->shape.num_stages);
    edit_open(set, stage, &edited);
    if (edited.num_tasks == 0)
        return;
    const uint32_t t = next_random(random, edited.num_tasks);
    weft_task *task = &edited.tasks[t];
    const uint32_t other = next_random(random, edited.num_tasks);
    switch (next_random(random, 9)) {
    case 0: /* a wait less */
        if (task->num_waits)
            drop_wait(&edited, t, next_random(random, task->num_waits));
        break;
    case 1: /* neighbours swapped */
        if (t + 1 < edited.num_tasks)
            swap_tasks(&edited, t, t + 1);
        break;
    case 2: /* two tasks swapped */
        swap_tasks(&edited, t, other);
        break;
    case 3: /* another slot */
        task->operands[next_random(random, WEFT_TASK_MAX_OPERANDS)] =
            (int32_t)next_random(random, (uint32_t)set->programs[stage].num_slots + 1) - 1;
        break;
    case 4: /* a task less */
        drop_task(&edited, t);
        break;
    case 5: { /* a task twice */
        const weft_task again = *task;
        insert_task(&edited, other, &again);
        break;
    }
    case 6: /* a wait more */
        if (t && task->num_waits < WEFT_TASK_MAX_WAITS)
            edited.waits[t][task->num_waits++] = (weft_wait){next_random(random, t), -1};
        break;
    case 7: /* a wait on another task */
        if (t && task->num_waits)
            edited.waits[t][next_random(random, task->num_waits)].task = next_random(random, t);
        break;
    default: /* another micro-batch */
        task->micro_batch = (int32_t)next_random(random, (uint32_t)set->shape.num_micro_batches);
    }
    edit_close(&edited, set);
}

/* Soundness: what the checker accepts runs well in any order that the machine tries. And the
 * machine itself finds a good part of what the checker refuses, so it is a judge. */
CASE(random_damage)
{
    enum { RUNS = 12 };
    const int rounds = 10 * property_draws();
    uint64_t random = 2024;
    int num_accepted = 0, num_refused = 0, num_confirmed = 0;
    for (int round = 0; round < rounds; round++) {
        bool host_waits[16];
        weft_pipeline_shape shape = {.kind = next_random(&random, 3) == 0 ? WEFT_PIPELINE_GPIPE
                                                                          : WEFT_PIPELINE_1F1B,
                                     .num_stages = 1 + (int)next_random(&random, 4),
                                     .num_micro_batches = 1 + (int)next_random(&random, 7),
                                     .forward_only = next_random(&random, 4) == 0,
                                     .boundary_bytes = 64,
                                     .num_chunks = 1 + (int)next_random(&random, 4),
                                     .host_waits = host_waits};
        for (int s = 0; s < 16; s++)
            host_waits[s] = next_random(&random, 3) == 0;
        program_set set = make_shaped_set(&shape);
        for (uint32_t times = 1 + next_random(&random, 2); times > 0; times--)
            damage(&set, &random);
        const bool accepted = check_set(&set) == WEFT_OK;
        char text[WEFT_ERROR_TEXT_BYTES];
        snprintf(text, sizeof(text), "%s", accepted ? "" : weft_error_get()->text);
        const char *went_wrong = NULL;
        for (int run = 0; run < RUNS && !went_wrong; run++)
            went_wrong = run_machine(&set, random + (uint64_t)run);
        if (accepted && went_wrong) {
            for (int stage = 0; stage < set.shape.num_stages; stage++)
                OK(weft_program_print(&set.programs[stage], stderr));
            fail_msg("round %d: accepted, but the machine says: %s", round, went_wrong);
        }
        if (!accepted)
            assert_true(strstr(text, "stage") != NULL);
        else
            expect_no_forward_behind_reductions(&set);
        num_accepted += accepted;
        num_refused += !accepted;
        num_confirmed += !accepted && went_wrong;
        release_set(&set);
    }
    print_message("%d refused (%d seen to go wrong), %d accepted\n", num_refused, num_confirmed,
                  num_accepted);
    assert_true(num_refused > rounds / 2 && num_accepted > rounds / 20);
    assert_true(num_confirmed > num_refused / 2);
}

CASE(generated_programs_run_well)
{
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 8; m++)
            for (int i = 0; i < 4; i++) {
                program_set set = make_set(i / 2, p, m, i % 2);
                for (uint64_t seed = 0; seed < 10; seed++) {
                    const char *went_wrong = run_machine(&set, seed);
                    if (went_wrong)
                        fail_msg("p=%d m=%d: %s", p, m, went_wrong);
                }
                release_set(&set);
            }
}
