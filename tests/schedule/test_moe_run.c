/* The programs of MoE layers, run on lanes with random delays: every partition's numbers come out
 * as if its tasks had run one after the other. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "schedule/run.h"
#include "tests/schedule/moe_machine.h"

enum { MOST_SLOTS = 256 };

typedef struct layer {
    double slots[MOST_SLOTS];
    double x[WEFT_MOE_MAX_PARTITIONS];
    uint64_t random;
    int delay_us;
} layer;

typedef struct work {
    layer *of;
    weft_task task;
    int delay_us;
} work;

static weft_status do_work(const void *args)
{
    const work *w = args;
    const weft_task *task = &w->task;
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    double *slots = w->of->slots, read[WEFT_TASK_MAX_OPERANDS] = {0}, written[2] = {0, 0};
    const bool gradient = task->flow == WEFT_FLOW_GRADIENT;
    int num_read = 0;
    for (int i = 0; i < operands->count; i++)
        if (!operands->rows[i].writes && task->operands[i] >= 0)
            read[num_read++] = slots[task->operands[i]];
    if (w->delay_us)
        usleep((useconds_t)w->delay_us);
    switch (task->kind) {
    case WEFT_TASK_PERMUTE:
        written[0] = w->of->x[task->part];
        break;
    case WEFT_TASK_DISPATCH:
        written[0] = 2 * read[0];
        break;
    case WEFT_TASK_RECOMPUTE:
        written[0] = read[0] + 1;
        break;
    case WEFT_TASK_EXPERT:
        written[0] = gradient ? read[2] * read[1] : read[0] + 1;
        written[1] = gradient ? written[0] + read[0] : 3 * written[0];
        break;
    case WEFT_TASK_COMBINE:
        written[0] = read[0] / 2;
        break;
    default: /* offload, prefetch */
        written[0] = read[0];
    }
    for (int i = num_read; i < operands->count && task->operands[i] >= 0; i++)
        slots[task->operands[i]] = written[i - num_read];
    return WEFT_OK;
}

static weft_status enqueue(void *context, const weft_task *task, weft_lane *lane)
{
    layer *of = context;
    const work w = {of, *task,
                    of->delay_us ? (int)next_random(&of->random, (uint32_t)of->delay_us) : 0};
    return weft_lane_submit(lane, weft_task_kind_text(task->kind), do_work, &w, sizeof(w));
}

/* Other layers use what this one does not keep. */
static void spoil(layer *of, const weft_program *forward, bool keeps)
{
    for (int i = 0; i < MOST_SLOTS; i++) {
        const int kind = i < forward->num_slots ? (int)forward->slots[i].holds : -1;
        const bool kept = kind == WEFT_SLOT_HOST_T_DI || kind == WEFT_SLOT_HOST_T_M ||
                          (keeps && (kind == WEFT_SLOT_T_DI || kind == WEFT_SLOT_T_M));
        if (!kept)
            of->slots[i] = NAN;
    }
}

static void run_layer(weft_executor *executor, layer *of, weft_reuse reuse, int n)
{
    moe_pair pair = make_pair(reuse, n);
    const weft_program *forward = &pair.set.programs[0], *backward = &pair.set.programs[1];
    const int result = first_slot(forward, WEFT_SLOT_RESULT);
    const int gradient_at = first_slot(backward, WEFT_SLOT_RESULT_GRADIENT);
    spoil(of, forward, false);
    for (int p = 0; p < n; p++)
        of->x[p] = 10 + p;
    OK(weft_program_run(&pair.set.programs[0], executor));
    for (int p = 0; p < n; p++)
        assert_true(of->slots[result + p] == 3 * (2 * of->x[p] + 1) / 2);

    spoil(of, forward, reuse == WEFT_REUSE_NONE);
    for (int p = 0; p < n; p++)
        of->slots[gradient_at + p] = 100 + p;
    OK(weft_program_run(&pair.set.programs[1], executor));
    for (int p = 0; p < n; p++) {
        const double input = 2 * of->x[p], gradient = 2 * (100 + p);
        assert_true(of->slots[gradient_at + p] == (gradient * (input + 1) + input) / 2);
    }
    release_set(&pair.set);
}

static weft_executor executor;
static layer shared;

static weft_device *start(void)
{
    weft_device *device;
    OK(weft_device_create_cpu(1, 0, &device));
    executor = (weft_executor){.context = &shared};
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        executor.run[kind] = enqueue;
    const weft_lane_kind lanes[] = {WEFT_LANE_COMPUTE, WEFT_LANE_EXPERT, WEFT_LANE_OFFLOAD,
                                    WEFT_LANE_PREFETCH};
    for (int i = 0; i < 4; i++)
        OK(weft_lane_create(device, 0, weft_lane_kind_text((int)lanes[i]),
                            &executor.lanes[lanes[i]]));
    OK(weft_executor_prepare(&executor, device, 200));
    return device;
}

static void end(weft_device *device)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        weft_lane_destroy(executor.lanes[lane]);
    weft_executor_release(&executor);
    weft_device_destroy(device);
}

CASE(numbers_come_out_right)
{
    weft_device *device = start();
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        for (int n = 1; n <= 12; n += n < 4 ? 1 : 4)
            for (int delay_us = 0; delay_us <= 200; delay_us += 100) {
                shared.random = (uint64_t)(reuse * 100 + n);
                shared.delay_us = delay_us;
                run_layer(&executor, &shared, (weft_reuse)reuse, n);
            }
    end(device);
}

static weft_status hold(const void *args)
{
    const int *ends = args;
    char byte;
    return read(ends[0], &byte, 1) == 1 ? WEFT_OK : WEFT_ERROR(WEFT_INTERNAL, "nothing to read");
}

/* Enqueuing returns while the lanes stand still, more than one program behind the other; each task
 * has a slice by then, and its times once the lanes have passed. */
CASE(enqueue_does_not_wait)
{
    weft_device *device = start();
    const int n = 4;
    moe_pair pair = make_pair(WEFT_REUSE_NONE, n);
    const weft_program *forward = &pair.set.programs[0];
    const int result = first_slot(forward, WEFT_SLOT_RESULT);
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    executor.trace = trace;
    executor.within = (weft_slice_context){.rank = 3, .micro_batch = 7, .backward = true};
    const double origin_us = weft_now_us();
    weft_trace_set_origin(trace, origin_us);
    shared.delay_us = 0;
    spoil(&shared, forward, false);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    OK(weft_lane_submit(executor.lanes[WEFT_LANE_COMPUTE], "hold", hold, ends, sizeof(ends)));
    OK(weft_program_enqueue(forward, &executor));
    OK(weft_program_enqueue(forward, &executor));
    for (int p = 0; p < n; p++)
        shared.x[p] = p; /* not read yet */
    const double released_us = weft_now_us() - origin_us;
    assert_int_equal(write(ends[1], "x", 1), 1);
    OK(weft_lane_sync(executor.lanes[WEFT_LANE_COMPUTE]));
    OK(weft_lane_sync(executor.lanes[WEFT_LANE_EXPERT]));
    for (int p = 0; p < n; p++)
        assert_true(shared.slots[result + p] == 3 * (2 * p + 1) / 2.0);
    assert_int_equal(weft_trace_count(trace), 2 * forward->num_tasks);
    for (uint32_t i = 0; i < 2 * forward->num_tasks; i++) {
        const weft_slice *slice = &weft_trace_slices(trace)[i];
        assert_true(slice->start_us >= released_us && slice->end_us >= slice->start_us);
        assert_int_equal(slice->rank, 3);
        assert_non_null(strstr(slice->category, " back"));
    }
    close(ends[0]);
    close(ends[1]);
    weft_trace_destroy(trace);
    release_set(&pair.set);
    end(device);
}
