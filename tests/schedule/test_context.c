/* The programs of attention over context-parallel ranks. */
#include <string.h>

#include "schedule/context.h"
#include "schedule/price/price.h"
#include "tests/schedule/programs.h"

/* Forward and backward of a plan. */
static program_set make_context(const weft_context_plan *plan)
{
    program_set set = {.shape = {.num_stages = 2}};
    for (int backward = 0; backward < 2; backward++)
        OK(weft_program_context(plan, backward, &set.arena, &set.programs[backward]));
    return set;
}

static weft_status check(const void *plan, const program_set *set)
{
    return weft_program_context_check(plan, &set->programs[0], &set->programs[1]);
}

static void text_is(weft_context_form form, int cp, int inner, int backward, const char *wanted)
{
    const weft_context_plan plan = {form, cp, inner};
    program_set set = make_context(&plan);
    program_is(&set.programs[backward], wanted);
    release_set(&set);
}

CASE(written_out)
{
    /* Block 2's keys come where block 0's were, when those are used up. */
    text_is(WEFT_CONTEXT_P2P, 3, 1, 0,
            "program in_flight=3\n"
            "slots 0-1 keys\n"
            "slots 2-2 partial\n"
            "0 permute compute keys part=0 to=0\n"
            "1 shift send keys part=0 from=0 to=1 waits=0\n"
            "2 attend compute activation part=0 keys=0 y=2\n"
            "3 shift send keys part=1 from=1 to=0 waits=2\n"
            "4 attend compute activation part=1 keys=1 y=2 waits=1\n"
            "5 attend compute activation part=2 keys=0 y=2 waits=3\n"
            "6 place compute activation part=2 from=2\n");
    /* A gradient is sent while the next block is computed, the last of them the own one's rest. */
    text_is(WEFT_CONTEXT_P2P, 3, 1, 1,
            "program in_flight=3\n"
            "slots 0-1 keys\n"
            "slots 2-2 partial\n"
            "slots 3-3 own_gradient\n"
            "slots 4-5 keys_gradient\n"
            "slots 6-6 arrived\n"
            "0 permute compute keys part=0 to=0\n"
            "1 shift send keys part=0 from=0 to=1 waits=0\n"
            "2 attend compute own part=0 y=2 to=3\n"
            "3 shift send keys part=1 from=1 to=0\n"
            "4 attend compute gradient part=1 keys=1 y=2 to=5 waits=1\n"
            "5 sum compute keys part=1 x=5 to=5\n"
            "6 shift reduce gradient part=1 from=5 to=6 waits=5\n"
            "7 attend compute gradient part=2 keys=0 y=2 to=4 waits=3\n"
            "8 sum compute keys part=2 x=4 from=6 to=4 waits=6\n"
            "9 shift reduce gradient part=2 from=4 to=6 waits=8\n"
            "10 attend compute own part=3 x=3 y=2 to=3\n"
            "11 place compute gradient part=3 y=2 from=6 keys=3 waits=9\n");
    /* The keys do not wait for the gradient's heads. */
    text_is(WEFT_CONTEXT_A2A_P2P, 4, 2, 1,
            "program in_flight=2\n"
            "slots 0-0 heads\n"
            "slots 1-1 home\n"
            "slots 2-3 keys\n"
            "slots 4-4 partial\n"
            "slots 5-5 heads_gradient\n"
            "slots 6-6 own_gradient\n"
            "slots 7-7 keys_gradient\n"
            "slots 8-8 arrived\n"
            "0 permute compute keys part=0 from=0 to=2\n"
            "1 shift send keys part=0 from=2 to=3 waits=0\n"
            "2 permute compute part=0 to=1\n"
            "3 dispatch expert heads_gradient part=0 from=1 to=5 waits=2\n"
            "4 attend compute own part=0 from=0 dy=5 y=4 to=6 waits=3\n"
            "5 attend compute gradient part=1 from=0 dy=5 keys=3 y=4 to=7 waits=1\n"
            "6 sum compute keys part=1 x=7 to=7\n"
            "7 shift reduce gradient part=1 from=7 to=8 waits=6\n"
            "8 attend compute own part=2 from=0 dy=5 x=6 y=4 to=6\n"
            "9 place compute gradient part=2 y=4 from=8 keys=6 to=5 waits=7\n"
            "10 combine expert heads_gradient part=0 from=5 to=1 waits=9\n"
            "11 place compute heads part=0 from=1 waits=10\n");
}

/* Calls `use` with every plan over up to 8 ranks. */
static void each_plan(void (*use)(const weft_context_plan *plan))
{
    for (int cp = 2; cp <= 8; cp++)
        for (int form = 0; form < WEFT_NUM_CONTEXT_FORMS; form++)
            for (int inner = 1; inner <= cp; inner++) {
                const weft_context_plan plan = {(weft_context_form)form, cp, inner};
                weft_arena arena = {0};
                weft_program program;
                const weft_status status = weft_program_context(&plan, false, &arena, &program);
                weft_arena_release(&arena);
                weft_error_clear();
                if (status == WEFT_OK)
                    use(&plan);
            }
}

static int num_plans;

static void accepted(const weft_context_plan *plan)
{
    program_set set = make_context(plan), again = make_context(plan);
    num_plans++;
    OK(check(plan, &set));
    for (int b = 0; b < 2; b++) {
        is_read_back(&set.programs[b]);
        assert_true(same_program(&set.programs[b], &again.programs[b]));
    }
    release_set(&again);
    release_set(&set);
}

/* No task, wait, operand or slot is one too many. */
static void damaged(const weft_context_plan *plan)
{
    program_set set = make_context(plan);
    for (int b = 0; b < 2; b++) {
        every_wait_is_needed(&set, b, check, plan, " may ");
        every_task_is_needed(&set, b, check, plan, "");
        every_slot_is_needed(&set, b, check, plan);
    }
    release_set(&set);
}

CASE(every_plan)
{
    each_plan(accepted);
    assert_int_equal(num_plans, 7 * 3 + 1 + 2 + 2); /* a2a+p2p: 4 by 2, 6 by 2 and 3, 8 by 2, 4 */
    each_plan(damaged);
}

/* Of a block: how long it is attended, its keys' way, its gradient's. */
typedef struct block_cost {
    weft_context_plan plan;
    double attend, keys, gradient;
    const weft_program *program;
} block_cost;

static double cost_of(const void *context, int stage, const weft_task *task)
{
    const block_cost *c = context;
    (void)stage;
    switch (task->kind) {
    case WEFT_TASK_ATTEND:
        return c->attend * weft_context_share_of(c->program, task);
    case WEFT_TASK_SHIFT:
        return task->flow == WEFT_FLOW_KEYS ? c->keys : c->gradient;
    default:
        return 0;
    }
}

static double makespan_of(const block_cost *c, bool backward)
{
    program_set set = make_context(&c->plan);
    weft_price price;
    block_cost of_program = *c;
    const weft_pricing pricing = {.cost = cost_of, .context = &of_program};
    of_program.program = &set.programs[backward];
    OK(weft_program_price(&set.programs[backward], 1, &pricing, &set.arena, &price));
    release_set(&set);
    return price.makespan_us;
}

static double above(double time, double hidden)
{
    return time > hidden ? time - hidden : 0;
}

/* Of what travels is exposed what the own block's two parts do not hide: the first keys are longer
 * on their way than a quarter of a block, or the last gradient than three. */
CASE(times)
{
    static const double cases[][3] = {
        {12, 8, 8}, {12, 12, 12}, {12, 4, 9}, {12, 2, 10}, {12.5, 4, 8}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int cp = 2; cp <= 8; cp++) {
            const block_cost c = {
                {WEFT_CONTEXT_P2P, cp, 1}, cases[k][0], cases[k][1], cases[k][2], NULL};
            const double exposed = above(c.keys, c.attend / 4) + above(c.gradient, 0.75 * c.attend);
            assert_true(makespan_of(&c, false) == cp * c.attend);
            assert_true(makespan_of(&c, true) == cp * c.attend + exposed);
        }
}

/* A forward block takes 1.25 times as long as its keys, a backward one 2.5 times as long as that,
 * and gradients are twice the keys: nine tenths of what travels is hidden on any number of ranks.
 */
CASE(hidden)
{
    for (int cp = 2; cp <= 8; cp++) {
        const block_cost c = {{WEFT_CONTEXT_P2P, cp, 1}, 2.5 * 1.25, 1, 2, NULL};
        const double exposed = makespan_of(&c, true) - cp * c.attend;
        assert_true(exposed <= 0.1 * (cp - 1) * (c.keys + c.gradient));
    }
}

CASE(refuses)
{
    const struct {
        weft_context_plan plan;
        const char *text;
    } cases[] = {
        {{WEFT_CONTEXT_P2P, 1, 1}, "over 1 context-parallel ranks: 2 to 1024"},
        {{WEFT_CONTEXT_P2P, 4, 2}, "p2p over 4 ranks cannot deal heads among 2"},
        {{WEFT_CONTEXT_A2A, 4, 2}, "a2a over 4 ranks cannot deal heads among 2"},
        {{WEFT_CONTEXT_A2A_P2P, 4, 3}, "a2a+p2p over 4 ranks cannot deal heads among 3"},
        {{WEFT_CONTEXT_A2A_P2P, 4, 4}, "a2a+p2p over 4 ranks cannot deal heads among 4"},
        {{WEFT_NUM_CONTEXT_FORMS, 4, 1}, "no form 4"},
    };
    weft_arena arena = {0};
    weft_program program;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        FAILS(weft_program_context(&cases[i].plan, false, &arena, &program), WEFT_CONFIG,
              cases[i].text);
    weft_arena_release(&arena);
}
