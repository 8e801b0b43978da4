/* The programs of experts beyond device memory. WEFT_PROPERTY_DRAWS=10000: so many draws of each.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/experts/experts.h"
#include "schedule/moe/layer.h"
#include "schedule/price/price.h"
#include "tests/schedule/programs.h"

/* Forward and backward of a shape. */
static program_set make_experts(const weft_experts_shape *shape)
{
    program_set set = {.shape = {.num_stages = 2}};
    for (int backward = 0; backward < 2; backward++)
        OK(weft_program_experts(shape, backward, &set.arena, &set.programs[backward]));
    return set;
}

static weft_status check(const void *shape, const program_set *set)
{
    return weft_program_experts_check(shape, &set->programs[0], &set->programs[1]);
}

static weft_experts_shape draw_shape(uint64_t *random, int most)
{
    weft_experts_shape s = {.num_positions = 1 + (int)next_random(random, (uint32_t)most),
                            .num_slots = 1 + (int)next_random(random, 4),
                            .num_gradient_slots = 1 + (int)next_random(random, 3),
                            .order = (weft_expert_order)next_random(random, WEFT_NUM_EXPERT_ORDERS),
                            .accumulates = next_random(random, 2)};
    if (next_random(random, 2))
        s.num_kept = (int)next_random(random, (uint32_t)s.num_positions + 1);
    if (s.order == WEFT_EXPERT_ORDER_LAYER)
        s.num_slots += s.num_positions;
    if (next_random(random, 2))
        s.num_places = 1 + (int)next_random(random, 5);
    return s;
}

static void text_is(const weft_experts_shape *shape, int backward, const char *wanted)
{
    program_set set = make_experts(shape);
    program_is(&set.programs[backward], wanted);
    release_set(&set);
}

CASE(written_out)
{
    weft_experts_shape shape = {.num_positions = 4,
                                .num_kept = 1,
                                .num_slots = 2,
                                .num_gradient_slots = 2,
                                .order = WEFT_EXPERT_ORDER_EXPERT,
                                .accumulates = true};
    text_is(&shape, 0,
            "program in_flight=0\n"
            "slots 0-2 expert_weights\n"
            "slots 3-6 host_weights\n"
            "0 expert compute activation expert=0 weights=0 waits=step_before\n"
            "1 upload to_device weight expert=1 from=4 weights=1 waits=step_before\n"
            "2 expert compute activation expert=1 weights=1 waits=1\n"
            "3 upload to_device weight expert=2 from=5 weights=2 waits=step_before\n"
            "4 expert compute activation expert=2 weights=2 waits=3\n"
            "5 upload to_device weight expert=3 from=6 weights=1 waits=2,step_before\n"
            "6 expert compute activation expert=3 weights=1 waits=5\n");
    text_is(&shape, 1,
            "program in_flight=0\n"
            "slots 0-2 expert_weights\n"
            "slots 3-6 host_weights\n"
            "slots 7-8 expert_gradients\n"
            "slots 9-12 host_gradients\n"
            "slots 13-14 host_staging\n"
            "0 upload to_device weight expert=3 from=6 weights=1\n"
            "1 expert compute gradient expert=3 weights=1 weight_gradients=8 waits=0\n"
            "2 download to_host gradient expert=3 from=8 staging=14 waits=1\n"
            "3 accumulate host gradient expert=3 from=14 to=12 waits=2\n"
            "4 upload to_device weight expert=2 from=5 weights=2\n"
            "5 expert compute gradient expert=2 weights=2 weight_gradients=7 waits=4\n"
            "6 download to_host gradient expert=2 from=7 staging=13 waits=5\n"
            "7 accumulate host gradient expert=2 from=13 to=11 waits=6\n"
            "8 upload to_device weight expert=1 from=4 weights=1 waits=1\n"
            "9 expert compute gradient expert=1 weights=1 weight_gradients=8 waits=2,8\n"
            "10 download to_host gradient expert=1 from=8 staging=14 waits=3,9\n"
            "11 accumulate host gradient expert=1 from=14 to=10 waits=10\n"
            "12 expert compute gradient expert=0 weights=0 weight_gradients=7 waits=6\n"
            "13 download to_host gradient expert=0 from=7 staging=13 waits=7,12\n"
            "14 accumulate host gradient expert=0 from=13 to=9 waits=13\n");
}

/* Two places in host memory: the third position's wait until the first's are up. */
CASE(written_out_in_file)
{
    weft_experts_shape shape = {.num_positions = 4,
                                .num_kept = 1,
                                .num_slots = 2,
                                .num_gradient_slots = 2,
                                .order = WEFT_EXPERT_ORDER_EXPERT,
                                .num_places = 2};
    text_is(&shape, 0,
            "program in_flight=0\n"
            "slots 0-2 expert_weights\n"
            "slots 3-4 host_weights\n"
            "0 expert compute activation expert=0 weights=0 waits=step_before\n"
            "1 write file weight expert=1 from=4\n"
            "2 read file weight expert=1 to=4 waits=step_before\n"
            "3 upload to_device weight expert=1 from=4 weights=1 waits=2\n"
            "4 expert compute activation expert=1 weights=1 waits=3\n"
            "5 write file weight expert=2 from=3\n"
            "6 read file weight expert=2 to=3 waits=step_before\n"
            "7 upload to_device weight expert=2 from=3 weights=2 waits=6\n"
            "8 expert compute activation expert=2 weights=2 waits=7\n"
            "9 write file weight expert=3 from=4 waits=3\n"
            "10 read file weight expert=3 to=4 waits=step_before\n"
            "11 upload to_device weight expert=3 from=4 weights=1 waits=4,10\n"
            "12 expert compute activation expert=3 weights=1 waits=11\n");
}

CASE(accepted)
{
    uint64_t random = 7;
    for (int i = 0; i < property_draws(); i++) {
        const weft_experts_shape shape = draw_shape(&random, 40);
        program_set set = make_experts(&shape), again = make_experts(&shape);
        OK(check(&shape, &set));
        OK(weft_program_experts_check(&shape, &set.programs[0], NULL));
        for (int b = 0; b < 2; b++) {
            is_read_back(&set.programs[b]);
            assert_true(same_program(&set.programs[b], &again.programs[b]));
        }
        release_set(&again);
        release_set(&set);
    }
}

/* No task, wait, operand or slot is one too many, and no wait for the step before is missing. */
CASE(damaged)
{
    static edit edited;
    uint64_t random = 11;
    for (int i = 0; i < property_draws() / 20; i++) {
        const weft_experts_shape shape = draw_shape(&random, 7);
        program_set set = make_experts(&shape);
        for (int b = 0; b < 2; b++) {
            const weft_program whole = set.programs[b];
            every_wait_is_needed(&set, b, check, &shape, " may ");
            every_task_is_needed(&set, b, check, &shape, "");
            every_slot_is_needed(&set, b, check, &shape);
            for (uint32_t t = 0; t < whole.num_tasks; t++) {
                edit_open(&set, b, &edited);
                flip_step_wait(&edited, t);
                edit_close(&edited, &set);
                FAILS(check(&shape, &set), WEFT_INTERNAL, "step");
                set.programs[b] = whole;
            }
        }
        release_set(&set);
    }
}

/* A program of partitions: each slice has the computations of its run of positions and what follows
 * them, and what comes up for these and no others; together they are the program. */
CASE(slices)
{
    uint64_t random = 17;
    for (int draw = 0; draw < property_draws(); draw++) {
        const weft_experts_shape shape = draw_shape(&random, 40);
        program_set set = make_experts(&shape);
        const int n = 1 + (int)next_random(&random, (uint32_t)shape.num_positions);
        const bool whole = shape.order == WEFT_EXPERT_ORDER_LAYER;
        for (int backward = 0; backward < 2 && n <= WEFT_MOE_MAX_PARTITIONS; backward++) {
            const weft_program *program = &set.programs[backward];
            uint32_t at = 0;
            for (int i = 0; i < n; i++) {
                int first, end;
                uint32_t begins, ends;
                weft_moe_run_of(shape.num_positions, n, backward ? n - 1 - i : i, &first, &end);
                weft_experts_slice(program, backward, first, end, &begins, &ends);
                assert_int_equal(begins, at);
                for (at = begins; at < ends; at++) {
                    const weft_task *task = &program->tasks[at];
                    const bool is_own = task->expert >= first && task->expert < end;
                    assert_true(is_own || (whole && i == 0 && task->flow == WEFT_FLOW_WEIGHT));
                }
                assert_true(ends > begins && program->tasks[ends - 1].flow != WEFT_FLOW_WEIGHT);
            }
            assert_int_equal(at, program->num_tasks);
        }
        release_set(&set);
    }
}

/* --- a machine of lanes that ends tasks in a random order ------------------------------------ */

enum { MACHINE_SLOTS = 256 };

typedef struct machine {
    const weft_program *program;
    double weights[8], sums[8]; /* of each expert; of its gradients, added up, in the file */
    int held[2][8];             /* by place, of weights and of gradients: 1 + whose they are */
    int num_places;
    double gradients[8]; /* what this pass makes */
    double slots[MACHINE_SLOTS];
    int users[MACHINE_SLOTS]; /* that read; -1: one writes */
    double written;           /* by the write that runs */
    double computed[8];       /* the weights that each was computed with */
    bool running[WEFT_NUM_LANES], done[MAX_EDIT_TASKS];
    const char *fault;
} machine;

static bool can_start(const machine *m, uint32_t index)
{
    const weft_task *task = &m->program->tasks[index];
    for (uint32_t i = 0; i < index; i++)
        if (m->program->tasks[i].lane == task->lane && !m->done[i])
            return false;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const uint32_t other = m->program->waits[task->first_wait + w].task;
        if (other != WEFT_STEP_BEFORE && !m->done[other])
            return false;
    }
    return !m->running[task->lane] && !m->done[index];
}

static void hold(machine *m, const weft_task *task, bool starts)
{
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int i = 0; i < operands->count; i++) {
        const int32_t slot = task->operands[i];
        if (slot < 0)
            continue;
        const bool writes = operands->rows[i].writes;
        if (starts && (writes ? m->users[slot] != 0 : m->users[slot] < 0))
            m->fault = writes ? "written while in use" : "read while it was written";
        if (writes)
            m->users[slot] = starts ? -1 : 0;
        else
            m->users[slot] += starts ? 1 : -1;
        if (starts && writes && task->kind == WEFT_TASK_WRITE)
            m->written = m->slots[slot];
        if (starts && writes)
            m->slots[slot] = task->kind == WEFT_TASK_ACCUMULATE ? m->slots[slot] : NAN;
    }
}

static void finish(machine *m, const weft_task *task)
{
    const int from = weft_task_slot(task, WEFT_OPERAND_FROM);
    const int weights = weft_task_slot(task, WEFT_OPERAND_WEIGHTS);
    int to = weft_task_slot(task, WEFT_OPERAND_TO);
    const bool of_gradient = task->flow == WEFT_FLOW_GRADIENT;
    switch (task->kind) {
    case WEFT_TASK_WRITE: /* what lies in the place: of a gradient, its sum */
        if (of_gradient && m->held[1][task->expert % m->num_places])
            m->sums[m->held[1][task->expert % m->num_places] - 1] = m->written;
        break;
    case WEFT_TASK_READ:
        m->slots[to] = of_gradient ? m->sums[task->expert] : m->weights[task->expert];
        m->held[of_gradient][task->expert % m->num_places] = 1 + task->expert;
        break;
    case WEFT_TASK_UPLOAD:
        m->slots[weights] = m->slots[from];
        break;
    case WEFT_TASK_EXPERT:
        m->computed[task->expert] = m->slots[weights];
        if (task->flow == WEFT_FLOW_GRADIENT)
            m->slots[weft_task_slot(task, WEFT_OPERAND_WEIGHT_GRADIENTS)] =
                m->gradients[task->expert];
        break;
    case WEFT_TASK_DOWNLOAD:
        to = to < 0 ? weft_task_slot(task, WEFT_OPERAND_STAGING) : to;
        m->slots[to] = m->slots[from];
        break;
    default:
        m->slots[to] += m->slots[from];
    }
}

static void run(machine *m, const weft_program *program, uint64_t *random)
{
    m->program = program;
    memset(m->done, 0, sizeof m->done);
    uint32_t left = program->num_tasks;
    static bool begun[MAX_EDIT_TASKS];
    memset(begun, 0, sizeof begun);
    for (int idle = 0; left > 0 && !m->fault; idle++) {
        const uint32_t t = next_random(random, program->num_tasks);
        const weft_task *task = &program->tasks[t];
        if (idle > 100000)
            m->fault = "stands still";
        if (begun[t] && !m->done[t]) {
            hold(m, task, false);
            finish(m, task);
            m->running[task->lane] = false;
            m->done[t] = true;
            left--;
        } else if (!begun[t] && can_start(m, t)) {
            hold(m, task, true);
            m->running[task->lane] = begun[t] = true;
        } else
            continue;
        idle = 0;
    }
}

/* Two micro-batches, of which the second adds. */
static void machine_runs(const weft_experts_shape *shape, uint64_t *random)
{
    static machine m;
    program_set set = make_experts(shape);
    const weft_program *both = set.programs;
    m = (machine){.fault = NULL, .num_places = shape->num_places};
    for (int i = 0; i < MACHINE_SLOTS; i++)
        m.slots[i] = NAN;
    const int host = first_slot(&both[1], WEFT_SLOT_HOST_WEIGHTS);
    const int sums = first_slot(&both[1], WEFT_SLOT_HOST_GRADIENTS);
    for (int q = 0; q < shape->num_positions; q++) {
        m.weights[q] = 1 + q;
        if (shape->num_places == 0) {
            m.slots[host + q] = m.weights[q];
            m.slots[sums + q] = 0;
        }
        if (q < shape->num_kept)
            m.slots[q] = m.weights[q];
    }
    for (int batch = 0; batch < 1 + shape->accumulates && !m.fault; batch++)
        for (int b = 0; b < 2; b++) {
            for (int q = 0; q < shape->num_positions; q++) {
                m.computed[q] = 0;
                m.gradients[q] = 10 * q + batch + 1;
            }
            run(&m, &both[b], random);
            for (int q = 0; q < shape->num_positions; q++)
                if (!m.fault && m.computed[q] != m.weights[q])
                    m.fault = "computed with other weights";
        }
    for (int k = 0; k < shape->num_places && k < shape->num_positions; k++)
        if (m.held[1][k])
            m.sums[m.held[1][k] - 1] = m.slots[sums + k];
    for (int q = 0; q < shape->num_positions; q++)
        if (!m.fault && (shape->num_places > 0 ? m.sums[q] : m.slots[sums + q]) !=
                            (shape->accumulates ? 20 * q + 3 : 10 * q + 1))
            m.fault = "a gradient is missing";
    if (m.fault)
        fail_msg("%d experts, %d kept, %d slots, order %s: %s", shape->num_positions,
                 shape->num_kept, shape->num_slots, weft_expert_order_text((int)shape->order),
                 m.fault);
    release_set(&set);
}

CASE(any_timing)
{
    uint64_t random = 3;
    for (int i = 0; i < property_draws() / 4; i++) {
        const weft_experts_shape shape = draw_shape(&random, 8);
        machine_runs(&shape, &random);
    }
}

/* --- times ----------------------------------------------------------------------------------- */

/* Of one direction, and how long each lane is busy. */
typedef struct lane_times {
    double us;         /* until all lanes are done */
    double compute_us; /* until the last computation ends */
    double busy_us[WEFT_NUM_LANES];
} lane_times;

typedef struct costing {
    const weft_expert_costs *costs;
    const double *rows;
} costing;

static double task_us(const void *context, int stage, const weft_task *task)
{
    const costing *c = context;
    (void)stage;
    return weft_experts_task_us(c->costs, c->rows, task);
}

static double ordered_end(void *context, const weft_task *task, double start_us)
{
    return start_us + task_us(context, 0, task);
}

/* To the bit what the simulation says, though nothing is an event. */
static void in_order_agrees(const weft_program *program, costing *c, const weft_price *price,
                            weft_arena *arena)
{
    weft_lanes lanes = {.host_us = 0};
    double *ends;
    OK(WEFT_ARRAY(arena, program->num_tasks, &ends));
    weft_program_in_order(program, ordered_end, c, &lanes, ends);
    for (uint32_t i = 0; i < program->num_tasks; i++)
        assert_true(ends[i] == price->spans[0][i].end_us);
}

static lane_times price_of(const weft_experts_shape *shape, bool backward,
                           const weft_expert_costs *costs, const double *rows)
{
    weft_price price;
    program_set set = make_experts(shape);
    const weft_program *program = &set.programs[backward];
    costing asked = {costs, rows};
    const weft_pricing pricing = {.cost = task_us, .context = &asked};
    OK(weft_program_price(program, 1, &pricing, &set.arena, &price));
    in_order_agrees(program, &asked, &price, &set.arena);
    lane_times out = {.us = price.makespan_us};
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_span span = price.spans[0][t];
        out.busy_us[program->tasks[t].lane] += span.end_us - span.start_us;
        if (program->tasks[t].kind == WEFT_TASK_EXPERT)
            out.compute_us = fmax(out.compute_us, span.end_us);
    }
    release_set(&set);
    return out;
}

static double busiest(const lane_times *price)
{
    double most = 0;
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        most = fmax(most, price->busy_us[lane]);
    return most;
}

/* Compute to upload 2:1, 1:1 and 1:2: of 32 experts the first upload alone, or the last
 * computation, is not hidden; backward also the last one's way down. */
CASE(hidden)
{
    double rows[48];
    for (int i = 0; i < 48; i++)
        rows[i] = 10;
    for (int batches = 1; batches <= 2; batches++)
        for (int num_slots = 2; num_slots <= 4; num_slots++)
            for (int k = 0; k < 3; k++) {
                const weft_expert_costs costs = {.upload_us = k == 2 ? 200 : 100,
                                                 .download_us = k == 2 ? 200 : 100,
                                                 .accumulate_us = 50,
                                                 .row_us = {k == 0 ? 20 : 10, k == 0 ? 20 : 10}};
                weft_experts_shape shape = {.num_positions = 48,
                                            .num_slots = num_slots,
                                            .num_gradient_slots = 2,
                                            .accumulates = batches > 1};
                for (int b = 0; b < 2; b++) {
                    const lane_times price = price_of(&shape, b, &costs, rows);
                    const double most = busiest(&price);
                    if (!(price.us <= 1.08 * most && price.us >= most))
                        fail_msg("backward %d, ratio %d, %d slots: %g us, busiest %g us", b, k,
                                 num_slots, price.us, most);
                    assert_true(price.compute_us <= price.us);
                }
                shape.order = WEFT_EXPERT_ORDER_DEMAND;
                const lane_times demand = price_of(&shape, false, &costs, rows);
                assert_true(demand.us == 48 * (costs.upload_us + 10 * costs.row_us[0]));
                const lane_times back = price_of(&shape, true, &costs, rows);
                assert_true(back.compute_us == demand.us);
                shape.order = WEFT_EXPERT_ORDER_LAYER;
                shape.num_slots = 48;
                const lane_times layer = price_of(&shape, false, &costs, rows);
                assert_true(layer.us == demand.us);
            }
}

/* No time is below the busiest lane's nor above the sum, experts without rows take none, and what
 * is kept is not uploaded. */
CASE(bounds)
{
    uint64_t random = 21;
    for (int i = 0; i < property_draws(); i++) {
        const weft_experts_shape shape = draw_shape(&random, 40);
        const weft_expert_costs costs = {.upload_us = next_random(&random, 50),
                                         .download_us = next_random(&random, 50),
                                         .accumulate_us = next_random(&random, 20),
                                         .launch_us = next_random(&random, 4),
                                         .read_us = {next_random(&random, 30), 5},
                                         .write_us = {next_random(&random, 30), 7},
                                         .row_us = {1, 2}};
        const bool in_file = shape.num_places > 0;
        double rows[40], wanted[2] = {0, 0}, uploads = 0, used = 0, file = 0;
        for (int q = 0; q < shape.num_positions; q++) {
            rows[q] = next_random(&random, 3) ? next_random(&random, 30) : 0;
            used += rows[q] > 0;
            uploads += rows[q] > 0 && q >= shape.num_kept ? costs.upload_us : 0;
            file += in_file && rows[q] > 0 && q >= shape.num_kept
                        ? costs.read_us[0] + costs.write_us[0]
                        : 0;
            for (int b = 0; b < 2; b++)
                wanted[b] += rows[q] > 0 ? costs.launch_us + rows[q] * costs.row_us[b] : 0;
        }
        for (int b = 0; b < 2; b++) {
            const lane_times price = price_of(&shape, b, &costs, rows);
            double sum = 0;
            for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
                sum += price.busy_us[lane];
            assert_true(price.us >= busiest(&price) - 1e-6 && price.us <= sum + 1e-6);
            assert_true(fabs(price.busy_us[WEFT_LANE_COMPUTE] - wanted[b]) < 1e-6);
            assert_true(fabs(price.busy_us[WEFT_LANE_TO_DEVICE] - uploads) < 1e-6);
            assert_true(
                fabs(price.busy_us[WEFT_LANE_FILE] - file - (in_file && b ? 12 * used : 0)) < 1e-6);
            assert_true(
                fabs(price.busy_us[WEFT_LANE_TO_HOST] - (b ? used * costs.download_us : 0)) < 1e-6);
            assert_true(fabs(price.busy_us[WEFT_LANE_HOST] -
                             (b && shape.accumulates ? used * costs.accumulate_us : 0)) < 1e-6);
        }
    }
}

CASE(refuses)
{
    const struct {
        weft_experts_shape shape;
        const char *text;
    } cases[] = {
        {{0, 0, 2, 2, WEFT_EXPERT_ORDER_EXPERT, false, 0}, "a layer of 0 experts on a rank: 1 to"},
        {{4, 5, 2, 2, WEFT_EXPERT_ORDER_EXPERT, false, 0}, "5 of 4 experts cannot be kept"},
        {{4, 0, 0, 2, WEFT_EXPERT_ORDER_EXPERT, false, 0}, "needs 1 slots"},
        {{4, 1, 2, 2, WEFT_EXPERT_ORDER_LAYER, false, 0}, "needs 3 slots"},
        {{4, 1, 2, 0, WEFT_EXPERT_ORDER_DEMAND, false, 0}, "there are 2 and 0"},
        {{4, 1, 2, 2, WEFT_EXPERT_ORDER_EXPERT, false, -1}, "cannot have -1 places"},
        {{4, 1, 2, 2, WEFT_NUM_EXPERT_ORDERS, false, 0}, "no order 3"},
    };
    weft_arena arena = {0};
    weft_program program;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        FAILS(weft_program_experts(&cases[i].shape, false, &arena, &program), WEFT_CONFIG,
              cases[i].text);
    weft_arena_release(&arena);
    assert_string_equal(weft_expert_order_text(WEFT_EXPERT_ORDER_DEMAND), "demand");
    assert_string_equal(weft_expert_order_text(-1), "?");
}
