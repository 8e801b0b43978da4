/* The programs of tensor-parallel products in chunks. */
#include "schedule/price/price.h"
#include "schedule/tensor.h"
#include "tests/schedule/programs.h"

static program_set make_tensor(const weft_tensor_plan *plan)
{
    program_set set = {.shape = {.num_stages = 1}};
    OK(weft_program_tensor(plan, &set.arena, &set.programs[0]));
    return set;
}

static weft_status check(const void *plan, const program_set *set)
{
    return weft_program_tensor_check(plan, &set->programs[0]);
}

/* Every plan of so many chunks that has tasks. */
static int each_plan(int chunks, void (*use)(const weft_tensor_plan *plan))
{
    int count = 0;
    for (unsigned bits = 0; bits < 64; bits++) {
        const weft_tensor_plan plan = {chunks,        bits & 1,      bits >> 1 & 1, bits >> 2 & 1,
                                       bits >> 3 & 1, bits >> 4 & 1, bits >> 5};
        weft_arena arena = {0};
        weft_program program;
        const weft_status status = weft_program_tensor(&plan, &arena, &program);
        const bool has_tasks = status == WEFT_OK && program.num_tasks > 0;
        weft_arena_release(&arena);
        weft_error_clear();
        if (has_tasks)
            use(&plan);
        count += has_tasks;
    }
    return count;
}

static void accepted(const weft_tensor_plan *plan)
{
    program_set set = make_tensor(plan), again = make_tensor(plan);
    OK(check(plan, &set));
    is_read_back(&set.programs[0]);
    assert_true(same_program(&set.programs[0], &again.programs[0]));
    release_set(&again);
    release_set(&set);
}

/* No task, wait, operand or slot is one too many. */
static void damaged(const weft_tensor_plan *plan)
{
    program_set set = make_tensor(plan);
    every_wait_is_needed(&set, 0, check, plan, " may ");
    every_task_is_needed(&set, 0, check, plan, "");
    every_slot_is_needed(&set, 0, check, plan);
    release_set(&set);
}

CASE(every_plan)
{
    for (int chunks = 1; chunks <= WEFT_TENSOR_MAX_CHUNKS; chunks++)
        assert_true(each_plan(chunks, accepted) > 10);
    assert_true(each_plan(1, damaged) > 10);
    assert_true(each_plan(3, damaged) > 10);
}

/* Microseconds of all chunks. */
typedef struct tensor_cost {
    weft_tensor_plan plan;
    double gather, product, reduce, weights;
} tensor_cost;

static double cost_of(const void *context, int stage, const weft_task *task)
{
    const tensor_cost *c = context;
    (void)stage;
    if (task->flow == WEFT_FLOW_WEIGHT)
        return c->weights;
    return (task->kind == WEFT_TASK_GATHER   ? c->gather
            : task->kind == WEFT_TASK_REDUCE ? c->reduce
                                             : c->product) /
           c->plan.chunks;
}

static double makespan_of(const tensor_cost *c)
{
    program_set set = make_tensor(&c->plan);
    weft_price price;
    OK(weft_program_price(&set.programs[0], 1, &(weft_pricing){.cost = cost_of, .context = c},
                          &set.arena, &price));
    release_set(&set);
    return price.makespan_us;
}

/* Beside the longer of the two one chunk of the shorter is seen, and of a backward's gathers and
 * reductions nothing that its products can hide. */
CASE(times)
{
    for (int n = 1; n <= WEFT_TENSOR_MAX_CHUNKS; n *= 2) {
        tensor_cost c = {{.chunks = n, .gathers = true, .multiplies = true, .reads = true},
                         .gather = 16,
                         .product = 64};
        assert_true(makespan_of(&c) == 64 + 16.0 / n);
        c.gather = 160;
        assert_true(makespan_of(&c) == 160 + 64.0 / n);
        c = (tensor_cost){
            {.chunks = n, .multiplies = true, .reduces = true}, .product = 64, .reduce = 32};
        assert_true(makespan_of(&c) == 64 + 32.0 / n);
        c.plan = (weft_tensor_plan){n, true, true, true, false, true, true};
        c.gather = c.weights = 64;
        assert_true(makespan_of(&c) == 128);
    }
}

CASE(refuses)
{
    const weft_tensor_plan wrong[] = {
        {.chunks = 0, .multiplies = true},
        {.chunks = WEFT_TENSOR_MAX_CHUNKS + 1, .multiplies = true},
        {.chunks = 2, .multiplies = true, .reads = true},
        {.chunks = 2, .gathers = true, .reduces = true},
        {.chunks = 2, .gathers = true, .multiplies = true},
        {.chunks = 2, .multiplies = true, .weights = true},
    };
    weft_arena arena = {0};
    weft_program program;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        FAILS(weft_program_tensor(&wrong[i], &arena, &program), WEFT_CONFIG, "product");
    weft_arena_release(&arena);
}
