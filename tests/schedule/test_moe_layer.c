/* The programs of an MoE layer and their checker. With an argument DIR it writes the golden files
 * there instead. */
#include <stdlib.h>
#include <string.h>

#include "schedule/moe/layer.h"
#include "tests/schedule/moe_machine.h"

enum { MOST_PARTITIONS = 16 };

static weft_status check_pair(const moe_pair *pair)
{
    return weft_program_moe_check(&pair->pipeline, &pair->set.programs[0], &pair->set.programs[1]);
}

static void all_pairs(void (*test)(moe_pair *pair))
{
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        for (int n = 1; n <= MOST_PARTITIONS; n++) {
            moe_pair pair = make_pair((weft_reuse)reuse, n);
            test(&pair);
            release_set(&pair.set);
        }
    for (int n = 1; n <= MOST_PARTITIONS; n++) {
        moe_pair pair = make_pair_of(weft_moe_by_peers(n * (1 + n % 3), 1 + n % 3));
        test(&pair);
        release_set(&pair.set);
    }
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        for (int n = 1; n <= MOST_PARTITIONS; n += 1 + n / 3) {
            moe_pair pair = make_pair_of((weft_moe_pipeline){
                .num_partitions = n, .reuse = (weft_reuse)reuse, .by_experts = 1});
            test(&pair);
            release_set(&pair.set);
        }
    for (int n = 1; n <= MOST_PARTITIONS; n++) {
        moe_pair pair = make_pair_of((weft_moe_pipeline){.num_partitions = n, .beside = 1});
        test(&pair);
        release_set(&pair.set);
    }
}

static void accepted_and_reproducible(moe_pair *pair)
{
    OK(check_pair(pair));
    OK(weft_program_moe_check(&pair->pipeline, &pair->set.programs[0], NULL));
    moe_pair again = make_pair_of(pair->pipeline);
    for (int i = 0; i < 2; i++) {
        is_read_back(&pair->set.programs[i]);
        assert_true(same_program(&pair->set.programs[i], &again.set.programs[i]));
    }
    release_set(&again.set);
}

/* The order of finishing does not matter: the machine judges a few orders of each. */
static void runs_well(moe_pair *pair)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        const char *went_wrong = run_moe_machine(pair, seed);
        if (went_wrong)
            fail_msg("%s: %s", weft_moe_pipeline_text(&pair->pipeline).text, went_wrong);
    }
}

static weft_status check_of(const void *pair, const program_set *set)
{
    (void)set;
    return check_pair(pair);
}

static void every_wait_counts(moe_pair *pair)
{
    for (int i = 0; i < 2; i++)
        every_wait_is_needed(&pair->set, i, check_of, pair, " may ");
}

static void every_task_counts(moe_pair *pair)
{
    static edit edited;
    for (int i = 0; i < 2; i++) {
        const weft_program whole = pair->set.programs[i];
        every_task_is_needed(&pair->set, i, check_of, pair, i ? "backward" : "forward");
        for (uint32_t t = 0; t < whole.num_tasks; t++) {
            edit_open(&pair->set, i, &edited);
            const weft_task again = edited.tasks[t];
            insert_task(&edited, t, &again);
            edit_close(&edited, &pair->set);
            FAILS(check_pair(pair), WEFT_INTERNAL, "does again what task");
            pair->set.programs[i] = whole;
        }
    }
}

/* A ring of one slot less, under the same waits: something is overwritten too early. Rings with a
 * slot a partition hold what is needed later. */
static void every_slot_counts(moe_pair *pair)
{
    static edit edited;
    for (int i = 0; i < 2; i++) {
        const weft_program whole = pair->set.programs[i];
        for (int kind = 0; kind < WEFT_NUM_SLOT_KINDS; kind++) {
            const int first = first_slot(&whole, (weft_slot_kind)kind);
            const int length = weft_program_count_slots(&whole, (weft_slot_kind)kind, -1);
            if (length < 2 || pair->pipeline.reuse == WEFT_REUSE_NONE)
                continue;
            edit_open(&pair->set, i, &edited);
            for (uint32_t t = 0; t < edited.num_tasks; t++) {
                weft_task *task = &edited.tasks[t];
                for (int k = 0; k < WEFT_TASK_MAX_OPERANDS; k++)
                    if (task->operands[k] == first + length - 1)
                        task->operands[k] = first;
            }
            edit_close(&edited, &pair->set);
            FAILS(check_pair(pair), WEFT_INTERNAL, "slot");
            pair->set.programs[i] = whole;
        }
    }
}

/* Whoever went elsewhere would be waited for by another. */
static void every_peer_counts(moe_pair *pair)
{
    static edit edited;
    for (int i = 0; i < 2; i++) {
        const weft_program whole = pair->set.programs[i];
        for (uint32_t t = 0; t < whole.num_tasks; t++) {
            edit_open(&pair->set, i, &edited);
            edited.tasks[t].peer = edited.tasks[t].peer > 0 ? 0 : edited.tasks[t].peer + 1;
            edit_close(&edited, &pair->set);
            FAILS(check_pair(pair), WEFT_INTERNAL, "has peer ");
            pair->set.programs[i] = whole;
        }
    }
}

/* Every group is met once on the way there and once on the way back, in rising order from the
 * rank's own. */
CASE(own_rows_first)
{
    for (int ep = 2; ep <= 64; ep++)
        for (int group = 1; group <= ep; group++) {
            if (ep % group != 0)
                continue;
            moe_pair pair = make_pair_of(weft_moe_by_peers(ep, group));
            assert_int_equal(pair.pipeline.num_partitions, ep / group);
            for (int i = 0; i < 2; i++) {
                int next[WEFT_NUM_TASK_KINDS] = {0};
                for (uint32_t t = 0; t < pair.set.programs[i].num_tasks; t++) {
                    const weft_task *task = &pair.set.programs[i].tasks[t];
                    const bool travels = task->lane == WEFT_LANE_EXPERT;
                    assert_int_equal(task->peer, travels ? next[task->kind]++ : -1);
                }
                assert_int_equal(next[WEFT_TASK_DISPATCH], ep / group);
                assert_int_equal(next[WEFT_TASK_COMBINE], ep / group);
            }
            release_set(&pair.set);
        }
}

/* Forward by rising partitions, backward by falling ones; and the other way is refused. */
CASE(by_experts)
{
    for (int n = 2; n <= MOST_PARTITIONS; n++) {
        moe_pair pair = make_pair_of((weft_moe_pipeline){.num_partitions = n, .by_experts = 1});
        for (int i = 0; i < 2; i++) {
            int next[WEFT_NUM_TASK_KINDS] = {0};
            for (uint32_t t = 0; t < pair.set.programs[i].num_tasks; t++) {
                const weft_task *task = &pair.set.programs[i].tasks[t];
                const int number = next[task->kind]++;
                if (task->part >= 0)
                    assert_int_equal(task->part, i ? n - 1 - number : number);
                assert_int_equal(task->peer, -1);
            }
            assert_int_equal(next[WEFT_TASK_EXPERT], n);
        }
        pair.pipeline.by_experts = 0;
        FAILS(check_pair(&pair), WEFT_INTERNAL, "backward");
        release_set(&pair.set);
    }
}

/* Every position is in one run, and runs are as long as each other or one longer. */
CASE(runs_of_positions)
{
    for (int num = 1; num <= 70; num++)
        for (int n = 1; n <= num && n <= WEFT_MOE_MAX_PARTITIONS; n++) {
            int at = 0, first, end;
            for (int p = 0; p < n; p++, at = end) {
                weft_moe_run_of(num, n, p, &first, &end);
                assert_int_equal(first, at);
                assert_true(end - first == num / n || end - first == num / n + 1);
            }
            assert_int_equal(at, num);
        }
}

CASE(accepted)
{
    all_pairs(accepted_and_reproducible);
}

CASE(run)
{
    all_pairs(runs_well);
}

CASE(nothing_too_much)
{
    all_pairs(every_wait_counts);
    all_pairs(every_task_counts);
    all_pairs(every_slot_counts);
    all_pairs(every_peer_counts);
}

/* Every ring as long as MPMoE section III-C says, and what both directions share under the same
 * numbers. */
CASE(rings)
{
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        for (int n = 1; n <= WEFT_MOE_MAX_PARTITIONS; n++) {
            moe_pair pair = make_pair((weft_reuse)reuse, n);
            const bool keeps = reuse == WEFT_REUSE_NONE;
            const bool host_input = reuse == WEFT_REUSE_S1 || reuse == WEFT_REUSE_S3;
            const bool host_middle = reuse == WEFT_REUSE_S1 || reuse == WEFT_REUSE_S2;
            const bool again = reuse == WEFT_REUSE_S2 || reuse == WEFT_REUSE_S4;
            const int two = keeps || n == 1 ? n : 2, one = keeps ? n : 1;
            const struct {
                weft_slot_kind kind;
                int lengths[2];
            } wanted[] = {
                {WEFT_SLOT_T_DI, {two, two}},
                {WEFT_SLOT_T_M, {one, one}},
                {WEFT_SLOT_HOST_T_DI, {host_input ? n : 0, host_input ? n : 0}},
                {WEFT_SLOT_HOST_T_M, {host_middle ? n : 0, host_middle ? n : 0}},
                {WEFT_SLOT_T_DO, {two, 0}},
                {WEFT_SLOT_HOME, {two, again ? two : 0}},
                {WEFT_SLOT_RESULT, {n, 0}},
                {WEFT_SLOT_DT_DO, {0, two}},
                {WEFT_SLOT_DT_M, {0, one}},
                {WEFT_SLOT_DT_DI, {0, two}},
                {WEFT_SLOT_RESULT_GRADIENT, {0, n}},
            };
            for (int i = 0; i < 2; i++) {
                int sum = 0;
                for (size_t w = 0; w < sizeof(wanted) / sizeof(wanted[0]); w++) {
                    assert_int_equal(
                        weft_program_count_slots(&pair.set.programs[i], wanted[w].kind, -1),
                        wanted[w].lengths[i]);
                    sum += wanted[w].lengths[i];
                    if (w < 4)
                        assert_int_equal(first_slot(&pair.set.programs[0], wanted[w].kind),
                                         first_slot(&pair.set.programs[1], wanted[w].kind));
                }
                assert_int_equal(sum, pair.set.programs[i].num_slots);
            }
            release_set(&pair.set);
        }
}

/* A lane's tasks in their order, by name. */
static void lane_order(const weft_program *program, int lane, char *order, size_t bytes)
{
    *order = '\0';
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const char flows[] = {'\0', '\0', 'g', 'i', 'm'};
        const char flow[2] = {flows[task->flow], '\0'};
        if (task->lane == lane)
            snprintf(order + strlen(order), bytes - strlen(order), "%s%s%d",
                     weft_task_kind_letter(task->kind), flow, task->part);
    }
}

/* S and R alternate (MPMoE Fig. 7), the rows are permuted ahead, T_M is offloaded before the next
 * T_DI and prefetched before it, rows come before their gradient. */
CASE(lanes)
{
    static const struct {
        weft_reuse reuse;
        int n, backward;
        weft_lane_kind lane;
        const char *order;
    } cases[] = {
        {WEFT_REUSE_NONE, 1, 0, WEFT_LANE_EXPERT, "D0C0"},
        {WEFT_REUSE_NONE, 2, 0, WEFT_LANE_EXPERT, "D0D1C0C1"},
        {WEFT_REUSE_NONE, 4, 0, WEFT_LANE_EXPERT, "D0D1C0D2C1D3C2C3"},
        {WEFT_REUSE_NONE, 4, 0, WEFT_LANE_COMPUTE, "c-1P0P1E0P2E1P3E2E3"},
        {WEFT_REUSE_NONE, 4, 0, WEFT_LANE_OFFLOAD, ""},
        {WEFT_REUSE_NONE, 4, 1, WEFT_LANE_EXPERT, "Dg0Dg1Cg0Dg2Cg1Dg3Cg2Cg3"},
        {WEFT_REUSE_NONE, 4, 1, WEFT_LANE_COMPUTE, "Eg0Eg1Eg2Eg3"},
        {WEFT_REUSE_S1, 4, 0, WEFT_LANE_EXPERT, "D0D1C0D2C1D3C2C3"},
        {WEFT_REUSE_S1, 4, 0, WEFT_LANE_OFFLOAD, "Oi0Om0Oi1Om1Oi2Om2Oi3Om3"},
        {WEFT_REUSE_S1, 4, 1, WEFT_LANE_PREFETCH, "pi0pm0pi1pm1pi2pm2pi3pm3"},
        {WEFT_REUSE_S1, 4, 1, WEFT_LANE_COMPUTE, "Eg0Eg1Eg2Eg3"},
        {WEFT_REUSE_S2, 3, 0, WEFT_LANE_OFFLOAD, "Om0Om1Om2"},
        {WEFT_REUSE_S2, 3, 1, WEFT_LANE_PREFETCH, "pm0pm1pm2"},
        {WEFT_REUSE_S2, 3, 1, WEFT_LANE_EXPERT, "D0Dg0D1Dg1Cg0D2Dg2Cg1Cg2"},
        {WEFT_REUSE_S3, 3, 1, WEFT_LANE_PREFETCH, "pi0pi1pi2"},
        {WEFT_REUSE_S3, 3, 1, WEFT_LANE_COMPUTE, "M0Eg0M1Eg1M2Eg2"},
        {WEFT_REUSE_S4, 3, 0, WEFT_LANE_OFFLOAD, ""},
        {WEFT_REUSE_S4, 3, 1, WEFT_LANE_PREFETCH, ""},
        {WEFT_REUSE_S4, 3, 1, WEFT_LANE_COMPUTE, "P0P1M0Eg0P2M1Eg1M2Eg2"},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        moe_pair pair = make_pair(cases[c].reuse, cases[c].n);
        char order[256];
        lane_order(&pair.set.programs[cases[c].backward], cases[c].lane, order, sizeof(order));
        assert_string_equal(order, cases[c].order);
        release_set(&pair.set);
    }
}

static edit edited;

/* The pair of four partitions with this strategy, one direction opened. */
static moe_pair open_pair(weft_reuse reuse, int direction)
{
    moe_pair pair = make_pair(reuse, 4);
    edit_open(&pair.set, direction, &edited);
    return pair;
}

static weft_task *at(const moe_pair *pair, weft_task_kind kind, weft_flow flow, int partition)
{
    return &edited.tasks[find_task(&pair->set.programs[edited.stage], kind, flow, partition)];
}

static void refuse(moe_pair *pair, const char *error)
{
    edit_close(&edited, &pair->set);
    FAILS(check_pair(pair), WEFT_INTERNAL, error);
    release_set(&pair->set);
}

CASE(says_what_is_wrong)
{
    moe_pair pair = open_pair(WEFT_REUSE_S1, 0);
    *operand_of(at(&pair, WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION, 1), WEFT_OPERAND_X) = 0;
    refuse(&pair, "forward, task 12 (expert compute activation part=1 x=0 middle=2 y=14 waits=4,7) "
                  "needs T_DI of part 1 from slot 0, which holds T_DI of part 2");

    pair = open_pair(WEFT_REUSE_S1, 0);
    *operand_of(at(&pair, WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION, 1), WEFT_OPERAND_X) = 2;
    refuse(&pair, "has T_DI in slot 2, which is memory for T_M");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION, 1)->operands[3] = 3;
    refuse(&pair, "must use nothing as its operand 3, but names slot 3");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION, 1)->flow = WEFT_FLOW_GRADIENT;
    refuse(&pair, "has no place in this program");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 1)->kind = WEFT_TASK_SEND;
    refuse(&pair, "has no place in this program");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 1)->lane = WEFT_LANE_COMPUTE;
    refuse(&pair, "is not on the expert lane");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 1)->peer = 0;
    refuse(&pair, "has peer 0 instead of -1");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 1)->part = 4;
    refuse(&pair, "has no place in this program");

    pair = open_pair(WEFT_REUSE_S1, 0);
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 1)->part = 0;
    refuse(&pair, "does again what task 8 did");

    /* Nobody waits for another's combine, but all ranks must combine in one order. */
    pair = open_pair(WEFT_REUSE_NONE, 0);
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 2)->part = 9;
    at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 3)->part = 2;
    for (uint32_t i = 0; i < edited.num_tasks; i++)
        if (edited.tasks[i].part == 9)
            edited.tasks[i].part = 3;
    refuse(&pair, " comes before task ");

    /* Nobody reads results here, but they must be there. */
    pair = open_pair(WEFT_REUSE_S1, 0);
    ++*operand_of(at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, 1), WEFT_OPERAND_TO);
    refuse(&pair, "has result in slot 17, which is another part's");

    pair = open_pair(WEFT_REUSE_S1, 1);
    --*operand_of(at(&pair, WEFT_TASK_COMBINE, WEFT_FLOW_GRADIENT, 3), WEFT_OPERAND_TO);
    refuse(&pair, "has gradient that came back in slot 18, which is another part's");

    /* Without the offload in forward, backward would prefetch nothing. */
    pair = open_pair(WEFT_REUSE_S1, 0);
    drop_task(&edited, find_task(&pair.set.programs[0], WEFT_TASK_OFFLOAD, WEFT_FLOW_INPUT, 3));
    refuse(&pair, "forward has no offload offload input part=3");

    /* Offloaded to another partition's place. */
    pair = open_pair(WEFT_REUSE_S1, 0);
    --*operand_of(at(&pair, WEFT_TASK_OFFLOAD, WEFT_FLOW_INPUT, 3), WEFT_OPERAND_TO);
    refuse(&pair, "has T_DI on the host in slot 5, which is another part's");

    /* What a reused ring still holds when forward ends belongs to the next layer. */
    pair = make_pair(WEFT_REUSE_S4, 1);
    edit_open(&pair.set, 1, &edited);
    drop_task(&edited, find_task(&pair.set.programs[1], WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE, 0));
    refuse(&pair, "backward has no recompute compute part=0");

    /* The programs of another strategy, and of another number of partitions. */
    pair = make_pair(WEFT_REUSE_S4, 4);
    pair.pipeline.reuse = WEFT_REUSE_S3;
    FAILS(check_pair(&pair), WEFT_INTERNAL, "forward has no offload offload input part=0");
    pair.pipeline = (weft_moe_pipeline){.num_partitions = 3, .reuse = WEFT_REUSE_S4};
    FAILS(check_pair(&pair), WEFT_INTERNAL, "part=3 ");
    pair.pipeline = (weft_moe_pipeline){.num_partitions = 4, .reuse = WEFT_REUSE_S4};
    pair.set.programs[0].max_in_flight = 1;
    FAILS(check_pair(&pair), WEFT_INTERNAL, "puts 2 in flight, at most 1 may be");
    release_set(&pair.set);

    /* By tokens what is cut by peers, and the other way round. */
    pair = make_pair_of(weft_moe_by_peers(8, 2));
    pair.pipeline.peer_group = 0;
    FAILS(check_pair(&pair), WEFT_INTERNAL, "has peer 0 instead of -1");
    release_set(&pair.set);
    pair = make_pair(WEFT_REUSE_NONE, 4);
    pair.pipeline.peer_group = 2;
    FAILS(check_pair(&pair), WEFT_INTERNAL, "has peer -1 instead of 0");
    release_set(&pair.set);
}

static void refuse_late_counts(moe_pair *pair, uint32_t index)
{
    for (uint32_t t = 0; t < index; t++)
        swap_tasks(&edited, t, t + 1);
    refuse(pair, "may start before the counts in task ");
}

/* The host must know all sizes before it enqueues what needs one, and must be said to wait. */
CASE(counts_come_first)
{
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
        moe_pair pair = open_pair((weft_reuse)reuse, 0);
        assert_int_equal(edited.tasks[0].kind, WEFT_TASK_COUNTS);
        const uint32_t last = edited.num_tasks - 1;
        refuse_late_counts(&pair, last);
        for (uint32_t late = 1; late < last; late++) {
            pair = open_pair((weft_reuse)reuse, 0);
            refuse_late_counts(&pair, late);
        }

        pair = open_pair((weft_reuse)reuse, 0);
        drop_task(&edited, 0);
        refuse(&pair, "forward has no counts compute host");

        pair = open_pair((weft_reuse)reuse, 0);
        edited.tasks[0].flags = 0;
        refuse(&pair, "hides that the host waits");

        /* Backward's sizes are forward's. */
        pair = open_pair((weft_reuse)reuse, 1);
        const weft_task again = pair.set.programs[0].tasks[0];
        insert_task(&edited, 0, &again);
        refuse(&pair, "(counts compute host) has no place in this program");
    }
}

CASE(refuses_no_layer)
{
    weft_arena arena = {0};
    weft_program program;
    const weft_moe_pipeline none = {.num_partitions = 0},
                            many = {.num_partitions = 65, .reuse = WEFT_REUSE_S1},
                            other = {.num_partitions = 4, .reuse = WEFT_NUM_REUSES};
    FAILS(weft_program_moe(&none, false, &arena, &program), WEFT_CONFIG,
          "an MoE layer in 0 partitions: 1 to 64 are possible");
    FAILS(weft_program_moe(&many, true, &arena, &program), WEFT_CONFIG, "in 65 partitions");
    FAILS(weft_program_moe(&other, false, &arena, &program), WEFT_CONFIG, "strategy 5");
    FAILS(weft_program_moe_check(&none, &program, NULL), WEFT_CONFIG, "in 0 partitions");
    const weft_moe_pipeline reused = {4, WEFT_REUSE_S1, 2, 0, 0}, alone = weft_moe_by_peers(65, 1);
    FAILS(weft_program_moe(&reused, false, &arena, &program), WEFT_CONFIG,
          "partitions by peers, 2 each, with reuse s1: none would");
    FAILS(weft_program_moe(&alone, false, &arena, &program), WEFT_CONFIG, "in 65 partitions");
    assert_string_equal(weft_moe_pipeline_text(&reused).text, "partitions by peers, 2 each");
    const weft_moe_pipeline both = {4, WEFT_REUSE_NONE, 2, 1, 0},
                            experts = {4, WEFT_REUSE_NONE, 0, 1, 0};
    FAILS(weft_program_moe(&both, false, &arena, &program), WEFT_CONFIG, "by peers and by experts");
    assert_string_equal(weft_moe_pipeline_text(&experts).text,
                        "4 partitions by experts, reuse none");
    assert_string_equal(weft_moe_pipeline_text(&many).text, "65 partitions, reuse s1");
    assert_string_equal(weft_reuse_text(WEFT_REUSE_S3), "s3");
    assert_string_equal(weft_reuse_text(-1), "?");
    weft_arena_release(&arena);
}

/* Damages one of the two programs in one of a few ways. */
static void damage(moe_pair *pair, uint64_t *random)
{
    const int direction = (int)next_random(random, 2);
    edit_open(&pair->set, direction, &edited);
    const uint32_t t = next_random(random, edited.num_tasks);
    const uint32_t other = next_random(random, edited.num_tasks);
    weft_task *task = &edited.tasks[t];
    switch (next_random(random, 9)) {
    case 0:
        if (task->num_waits)
            drop_wait(&edited, t, next_random(random, task->num_waits));
        break;
    case 1:
        if (t + 1 < edited.num_tasks)
            swap_tasks(&edited, t, t + 1);
        break;
    case 2:
        swap_tasks(&edited, t, other);
        break;
    case 3:
        task->operands[next_random(random, WEFT_TASK_MAX_OPERANDS)] =
            (int32_t)next_random(random, (uint32_t)pair->set.programs[direction].num_slots + 1) - 1;
        break;
    case 4:
        drop_task(&edited, t);
        break;
    case 5: {
        const weft_task again = *task;
        insert_task(&edited, other, &again);
        break;
    }
    case 6:
        task->flags ^= WEFT_TASK_HOST_WAITS;
        break;
    case 7:
        task->peer = (int32_t)next_random(random, 8) - 1;
        break;
    default:
        if (t && task->num_waits)
            edited.waits[t][next_random(random, task->num_waits)].task = next_random(random, t);
    }
    edit_close(&edited, &pair->set);
}

/* What the checker accepts runs well in any order that the machine tries; and the machine finds a
 * good part of what the checker refuses. */
CASE(random_damage)
{
    enum { ROUNDS = 4000, RUNS = 8 };
    uint64_t random = 77;
    int num_accepted = 0, num_refused = 0, num_confirmed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const int reuse = (int)next_random(&random, WEFT_NUM_REUSES + 1);
        const int n = 1 + (int)next_random(&random, 6);
        moe_pair pair = make_pair_of(
            reuse == WEFT_NUM_REUSES
                ? weft_moe_by_peers(2 * n, 2)
                : (weft_moe_pipeline){n, (weft_reuse)reuse, 0, (int)next_random(&random, 2), 0});
        damage(&pair, &random);
        const bool good = check_pair(&pair) == WEFT_OK;
        const char *went_wrong = NULL;
        for (int i = 0; i < RUNS && !went_wrong; i++)
            went_wrong = run_moe_machine(&pair, random + (uint64_t)i);
        if (good && went_wrong)
            fail_msg("round %d: accepted, but the machine says: %s", round, went_wrong);
        num_accepted += good;
        num_refused += !good;
        num_confirmed += !good && went_wrong;
        release_set(&pair.set);
    }
    print_message("%d refused (%d seen to go wrong), %d accepted\n", num_refused, num_confirmed,
                  num_accepted);
    assert_true(num_refused > ROUNDS / 2 && num_accepted > ROUNDS / 20);
    assert_true(num_confirmed > num_refused / 2);
}

CASE(out_of_memory)
{
    const weft_moe_pipeline pipeline = {.num_partitions = 16, .reuse = WEFT_REUSE_S1};
    weft_status status = WEFT_MEMORY;
    int failures = 0;
    for (int n = 1; status != WEFT_OK; n++) {
        weft_arena arena = {0};
        weft_program programs[2];
        weft_alloc_fail_after(n);
        status = weft_program_moe(&pipeline, false, &arena, &programs[0]);
        if (status == WEFT_OK)
            status = weft_program_moe(&pipeline, true, &arena, &programs[1]);
        if (status == WEFT_OK)
            status = weft_program_moe_check(&pipeline, &programs[0], &programs[1]);
        weft_alloc_fail_after(0);
        weft_arena_release(&arena);
        assert_true(status == WEFT_OK || status == WEFT_MEMORY);
        failures += status != WEFT_OK;
    }
    assert_true(failures > 3);
}

static const struct golden {
    weft_moe_pipeline pipeline;
    const char *names[2];
} goldens[] = {
    {{4, WEFT_REUSE_S1, 0, 0, 0}, {"moe_s1_n4_forward.txt", "moe_s1_n4_backward.txt"}},
    {{4, WEFT_REUSE_NONE, 1, 0, 0}, {"moe_peers_n4_forward.txt", "moe_peers_n4_backward.txt"}},
    {{4, WEFT_REUSE_NONE, 0, 1, 0}, {"moe_experts_n4_forward.txt", "moe_experts_n4_backward.txt"}},
};
enum { NUM_GOLDENS = sizeof(goldens) / sizeof(goldens[0]) };

CASE(golden_files)
{
    for (int g = 0; g < NUM_GOLDENS; g++) {
        moe_pair pair = make_pair_of(goldens[g].pipeline);
        for (int i = 0; i < 2; i++)
            program_is_golden(&pair.set.programs[i], goldens[g].names[i]);
        release_set(&pair.set);
    }
}

static int write_goldens(const char *folder)
{
    for (int g = 0; g < NUM_GOLDENS; g++) {
        moe_pair pair = make_pair_of(goldens[g].pipeline);
        for (int i = 0; i < 2; i++) {
            char path[1024];
            snprintf(path, sizeof(path), "%s/%s", folder, goldens[g].names[i]);
            FILE *file = fopen(path, "w");
            if (!file || weft_program_print(&pair.set.programs[i], file) != WEFT_OK)
                return 1;
            fclose(file);
        }
        release_set(&pair.set);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return write_goldens(argv[1]);
    return run_cases();
}
