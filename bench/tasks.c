/* What the programs of a step and of its passes cost beside their work.
 *
 *     bench_tasks [STEP_MS] [MICRO_BATCHES] [LAYERS]
 *
 * Every task's function returns at once: what is left is the executors', lanes' and events'. One
 * rank runs a step of MICRO_BATCHES (32), each forward and backward a program of LAYERS (24), with
 * four buckets of which each is reduced amid the backward, stepped and gathered. Prints the tasks
 * of a step, the time of a task and of them all (median of 101), and their share of STEP_MS (500).
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "schedule/pass.h"
#include "schedule/pipeline/pipeline.h"
#include "schedule/run.h"

enum { ROUNDS = 101, BUCKETS = 4 };

typedef struct bench {
    weft_program step, passes[2];
    weft_executor step_executor, pass_executor;
    weft_event **points; /* by layer */
    bool has_points;     /* of the running pass */
} bench;

static weft_status run_nothing(void *context, const weft_task *task, weft_lane *lane)
{
    (void)context;
    (void)task;
    (void)lane;
    return WEFT_OK;
}

static weft_status run_layer(void *context, const weft_task *task, weft_lane *lane)
{
    const bench *b = context;
    return b->has_points && b->points[task->layer] ? weft_lane_record(lane, b->points[task->layer])
                                                   : WEFT_OK;
}

static weft_status run_pass(void *context, const weft_task *task, weft_lane *lane)
{
    bench *b = context;
    const bool backward = task->kind == WEFT_TASK_BACKWARD;
    b->pass_executor.lanes[WEFT_LANE_COMPUTE] = lane;
    b->has_points = backward && b->step.tasks + b->step.num_tasks - task < 6 * BUCKETS;
    return weft_program_enqueue(&b->passes[backward], &b->pass_executor);
}

static weft_event *event_of(void *context, const weft_task *waiting, weft_wait wait)
{
    (void)waiting;
    return ((bench *)context)->points[wait.point];
}

static void make(bench *b, weft_device *device, int num_micro_batches, int num_layers,
                 weft_arena *arena)
{
    weft_bucket_shape shapes[BUCKETS];
    void *memory;
    check(weft_arena_alloc_array(arena, (size_t)num_layers, sizeof(weft_event *), &memory));
    b->points = memory;
    for (int i = 0; i < BUCKETS; i++) {
        const int layer = (BUCKETS - 1 - i) * num_layers / BUCKETS;
        shapes[i] = (weft_bucket_shape){.layer = layer, .ranks = 2, .owners = 2};
        if (!b->points[layer])
            check(weft_event_create(device, &b->points[layer]));
    }
    const weft_buckets buckets = {shapes, BUCKETS};
    const weft_pipeline_shape step = {
        .num_stages = 1, .num_micro_batches = num_micro_batches, .buckets = &buckets};
    check(weft_program_pipeline(&step, arena, &b->step));
    check(weft_arena_alloc_array(arena, (size_t)num_layers, sizeof(weft_pass_layer), &memory));
    const weft_chunk_shape chunk = {.layers = memory, .num_layers = num_layers};
    for (int backward = 0; backward < 2; backward++)
        check(weft_program_pass(&chunk, backward, arena, &b->passes[backward]));
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        b->step_executor.run[kind] = run_nothing;
    b->step_executor.run[WEFT_TASK_FORWARD] = b->step_executor.run[WEFT_TASK_BACKWARD] = run_pass;
    b->step_executor.event = event_of;
    b->pass_executor.run[WEFT_TASK_LAYER] = run_layer;
    b->step_executor.context = b->pass_executor.context = b;
    check(weft_executor_prepare(&b->step_executor, device, b->step.num_tasks));
    check(weft_executor_prepare(&b->pass_executor, device, (uint32_t)num_layers));
}

int main(int argc, char **argv)
{
    const double step_ms = argc > 1 ? atof(argv[1]) : 500;
    const int num_micro_batches = argc > 2 ? atoi(argv[2]) : 32;
    const int num_layers = argc > 3 ? atoi(argv[3]) : 24;
    static bench b;
    weft_arena arena = {0};
    weft_device *device;
    double us[ROUNDS];
    if (step_ms <= 0 || num_micro_batches < 1 || num_layers < BUCKETS) {
        fprintf(stderr, "usage: bench_tasks [STEP_MS] [MICRO_BATCHES] [LAYERS, at least %d]\n",
                BUCKETS);
        return 2;
    }
    check(weft_device_create_cpu(1, 0, &device));
    make(&b, device, num_micro_batches, num_layers, &arena);
    const int lanes[] = {WEFT_LANE_COMPUTE, WEFT_LANE_REDUCE};
    for (int i = 0; i < 2; i++)
        check(weft_lane_create(device, 0, weft_lane_kind_text(lanes[i]),
                               &b.step_executor.lanes[lanes[i]]));
    for (int i = 0; i < ROUNDS; i++) {
        const double start = weft_now_us();
        check(weft_program_run(&b.step, &b.step_executor));
        us[i] = weft_now_us() - start;
    }
    weft_sort(us, ROUNDS);
    const uint32_t num_tasks =
        b.step.num_tasks +
        (uint32_t)num_micro_batches * (b.passes[0].num_tasks + b.passes[1].num_tasks);
    printf("%u tasks of step and passes, %.3f us a task, %.0f us: %.3f %% of a step of %g ms\n",
           num_tasks, us[ROUNDS / 2] / num_tasks, us[ROUNDS / 2], us[ROUNDS / 2] / step_ms / 10,
           step_ms);
    for (int i = 0; i < 2; i++)
        weft_lane_destroy(b.step_executor.lanes[lanes[i]]);
    weft_executor_release(&b.step_executor);
    weft_executor_release(&b.pass_executor);
    for (int l = 0; l < num_layers; l++)
        weft_event_destroy(b.points[l]);
    weft_arena_release(&arena);
    weft_device_destroy(device);
    return 0;
}
