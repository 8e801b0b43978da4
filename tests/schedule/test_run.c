/* The executor on real CPU lanes: a thread a stage in one process, messages that wait for both of
 * their ends, random delays, and numbers that come out right only if every task saw its data.
 *
 * Stage i multiplies by its weight: y = w_i x. With the loss sum(y_last) * (micro-batch + 1), the
 * gradient of w_i is known in closed form. */
#include "schedule/run.h"
#include "tests/schedule/programs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 16, RUN_STAGES = 4, NUM_STEPS = 3 };

/* One direction between two stages: the sender waits until the receiver stands there. */
typedef struct channel {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    double *to; /* where the receiver wants it; NULL: it is not there */
} channel;

typedef struct pipe_stage {
    const weft_program *program;
    weft_executor executor;
    weft_pipeline_shape shape;
    int index, delay_us, num_steps_done;
    double weight, gradient, reduced;
    double (*slots)[WIDTH];
    channel *up[2], *down[2]; /* to and from the stage before; to and from the stage after */
    uint64_t random;          /* only for delays, drawn while enqueuing */
    double sum_outputs;       /* of the last stage */
    weft_status status;
    char error[WEFT_ERROR_TEXT_BYTES];
} pipe_stage;

static void channel_send(channel *c, const double *from)
{
    pthread_mutex_lock(&c->mutex);
    while (!c->to)
        pthread_cond_wait(&c->changed, &c->mutex);
    memcpy(c->to, from, sizeof(double[WIDTH]));
    c->to = NULL;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

static void channel_receive(channel *c, double *to)
{
    pthread_mutex_lock(&c->mutex);
    c->to = to;
    pthread_cond_broadcast(&c->changed);
    while (c->to)
        pthread_cond_wait(&c->changed, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

/* A task as its lane runs it. */
typedef struct work {
    pipe_stage *stage;
    weft_task task;
    int delay_us;
} work;

static weft_status do_work(const void *args)
{
    const work *w = args;
    pipe_stage *stage = w->stage;
    const weft_task *task = &w->task;
    const bool first = stage->index == 0, last = stage->index == stage->shape.num_stages - 1;
    const int mb = task->micro_batch;
    double(*slots)[WIDTH] = stage->slots;
    const int stashed = weft_task_slot(task, WEFT_OPERAND_STASH);
    const int from = weft_task_slot(task, WEFT_OPERAND_FROM);
    const int to = weft_task_slot(task, WEFT_OPERAND_TO);
    if (w->delay_us)
        usleep((unsigned)w->delay_us);
    switch (task->kind) {
    case WEFT_TASK_FORWARD: {
        double *stash = slots[stashed];
        for (int i = 0; i < WIDTH && first; i++)
            stash[i] = mb * 10 + i;
        for (int i = 0; i < WIDTH; i++) {
            if (last)
                stage->sum_outputs += stage->weight * stash[i];
            else
                slots[weft_task_slot(task, WEFT_OPERAND_Y)][i] = stage->weight * stash[i];
        }
        break;
    }
    case WEFT_TASK_BACKWARD:
        for (int i = 0; i < WIDTH; i++) {
            const double dy = last ? mb + 1 : slots[weft_task_slot(task, WEFT_OPERAND_DY)][i];
            stage->gradient += dy * slots[stashed][i];
            if (!first)
                slots[weft_task_slot(task, WEFT_OPERAND_DX)][i] = dy * stage->weight;
        }
        break;
    case WEFT_TASK_SEND:
        channel_send(task->flow == WEFT_FLOW_ACTIVATION ? stage->down[0] : stage->up[0],
                     slots[from]);
        break;
    case WEFT_TASK_RECEIVE:
        channel_receive(task->flow == WEFT_FLOW_ACTIVATION ? stage->up[1] : stage->down[1],
                        slots[to]);
        break;
    case WEFT_TASK_REDUCE:
        stage->reduced = stage->gradient;
        break;
    case WEFT_TASK_NORM:
        break;
    default:
        stage->weight -= 1e-6 * stage->reduced;
        stage->gradient = 0;
        stage->num_steps_done++;
    }
    return WEFT_OK;
}

static weft_status enqueue(void *context, const weft_task *task, weft_lane *lane)
{
    pipe_stage *stage = context;
    work w = {.stage = stage, .task = *task};
    if (weft_task_opens_pair(task)) { /* the backward first: nothing orders the two */
        w.task = task[1];
        WEFT_TRY(weft_lane_submit(lane, "the backward of a pair", do_work, &w, sizeof(w)));
        w.task = *task;
    } else if (task->flags & WEFT_TASK_PAIRED) {
        return WEFT_OK;
    }
    if (stage->delay_us)
        w.delay_us = (int)next_random(&stage->random, (uint32_t)stage->delay_us);
    return weft_lane_submit(lane, weft_task_kind_text(task->kind), do_work, &w, sizeof(w));
}

static void *run_stage(void *context)
{
    pipe_stage *stage = context;
    stage->status = weft_program_run(stage->program, &stage->executor);
    if (stage->status != WEFT_OK)
        snprintf(stage->error, sizeof(stage->error), "%s", weft_error_get()->text);
    return NULL;
}

/* A whole pipeline in this process. */
typedef struct pipeline {
    program_set set;
    weft_device *device;
    pipe_stage stages[RUN_STAGES];
    channel channels[2 * RUN_STAGES];
} pipeline;

static void start_set(pipeline *pipe, const program_set *set, int delay_us)
{
    const int p = set->shape.num_stages;
    memset(pipe, 0, sizeof(*pipe));
    pipe->set = *set;
    OK(weft_device_create_cpu(1, 0, &pipe->device));
    for (int i = 0; i < 2 * p; i++) {
        pthread_mutex_init(&pipe->channels[i].mutex, NULL);
        pthread_cond_init(&pipe->channels[i].changed, NULL);
    }
    for (int i = 0; i < p; i++) {
        pipe_stage *stage = &pipe->stages[i];
        stage->program = &pipe->set.programs[i];
        stage->shape = pipe->set.shape;
        stage->index = i;
        stage->delay_us = delay_us;
        stage->weight = 1 + 0.25 * i;
        stage->random = (uint64_t)(i + 1);
        stage->slots = calloc((size_t)stage->program->num_slots, sizeof(*stage->slots));
        stage->down[0] = &pipe->channels[2 * i];
        stage->down[1] = &pipe->channels[2 * i + 1];
        if (i > 0) {
            stage->up[0] = pipe->stages[i - 1].down[1];
            stage->up[1] = pipe->stages[i - 1].down[0];
        }
        stage->executor.context = stage;
        for (int kind_index = 0; kind_index < WEFT_NUM_TASK_KINDS; kind_index++)
            stage->executor.run[kind_index] = enqueue;
        for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
            OK(weft_lane_create(pipe->device, 0, weft_lane_kind_text(lane),
                                &stage->executor.lanes[lane]));
        OK(weft_executor_prepare(&stage->executor, pipe->device, stage->program->num_tasks));
    }
}

static void start_pipeline(pipeline *pipe, weft_pipeline_kind kind, int p, int m, bool forward_only,
                           int delay_us)
{
    const program_set set = make_set(kind, p, m, forward_only);
    start_set(pipe, &set, delay_us);
}

static void start_pairs(pipeline *pipe, int p, int m, int delay_us)
{
    const program_set set = make_shaped_set(&(weft_pipeline_shape){
        .num_stages = p, .num_micro_batches = m, .boundary_bytes = 4096, .pairs = true});
    start_set(pipe, &set, delay_us);
}

static void run_step(pipeline *pipe)
{
    pthread_t threads[RUN_STAGES];
    for (int i = 0; i < pipe->set.shape.num_stages; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_stage, &pipe->stages[i]), 0);
    for (int i = 0; i < pipe->set.shape.num_stages; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < pipe->set.shape.num_stages; i++)
        if (pipe->stages[i].status != WEFT_OK)
            fail_msg("stage %d: %s", i, pipe->stages[i].error);
}

static void end_pipeline(pipeline *pipe)
{
    for (int i = 0; i < pipe->set.shape.num_stages; i++) {
        for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
            weft_lane_destroy(pipe->stages[i].executor.lanes[lane]);
        weft_executor_release(&pipe->stages[i].executor);
        free(pipe->stages[i].slots);
    }
    for (int i = 0; i < 2 * pipe->set.shape.num_stages; i++) {
        pthread_mutex_destroy(&pipe->channels[i].mutex);
        pthread_cond_destroy(&pipe->channels[i].changed);
    }
    weft_device_destroy(pipe->device);
    release_set(&pipe->set);
}

static void assert_close(double a, double b)
{
    const double scale = b < 0 ? -b : b;
    if (!(a - b <= 1e-9 * scale && b - a <= 1e-9 * scale))
        fail_msg("%.17g against %.17g", a, b);
}

/* dL/dw_i = sum over micro-batches of (mb + 1) * sum(x) * product of the other weights. */
static double expected_gradient(const double *weights, int p, int m, int of_stage)
{
    double others = 1, sum = 0;
    for (int i = 0; i < p; i++)
        others *= i == of_stage ? 1 : weights[i];
    for (int mb = 0; mb < m; mb++)
        for (int i = 0; i < WIDTH; i++)
            sum += (mb + 1) * (mb * 10.0 + i);
    return sum * others;
}

CASE(numbers_come_out_right)
{
    static pipeline pipe;
    for (int p = 1; p <= RUN_STAGES; p++)
        for (int m = 1; m <= 9; m += 2)
            for (int kind = 0; kind < 3; kind++)
                for (int delay_us = 0; delay_us <= 300; delay_us += 300) {
                    if (kind == 2)
                        start_pairs(&pipe, p, m, delay_us);
                    else
                        start_pipeline(&pipe, kind, p, m, false, delay_us);
                    for (int step = 0; step < NUM_STEPS; step++) {
                        double weights[RUN_STAGES];
                        for (int i = 0; i < p; i++)
                            weights[i] = pipe.stages[i].weight;
                        run_step(&pipe);
                        for (int i = 0; i < p; i++) {
                            const double gradient = expected_gradient(weights, p, m, i);
                            assert_close(pipe.stages[i].reduced, gradient);
                            assert_close(pipe.stages[i].weight, weights[i] - 1e-6 * gradient);
                            assert_int_equal(pipe.stages[i].num_steps_done, step + 1);
                        }
                    }
                    end_pipeline(&pipe);
                }
}

CASE(evaluation)
{
    static pipeline pipe;
    for (int p = 1; p <= RUN_STAGES; p++) {
        const int m = 7;
        start_pipeline(&pipe, WEFT_PIPELINE_1F1B, p, m, true, 200);
        run_step(&pipe);
        double expected = 0, product = 1;
        for (int i = 0; i < p; i++)
            product *= pipe.stages[i].weight;
        for (int mb = 0; mb < m; mb++)
            for (int i = 0; i < WIDTH; i++)
                expected += product * (mb * 10.0 + i);
        assert_close(pipe.stages[p - 1].sum_outputs, expected);
        assert_int_equal(pipe.stages[0].num_steps_done, 0);
        end_pipeline(&pipe);
    }
}

/* Every task has a slice, in program order; its waits and its lane's earlier task ended before it
 * began; sends and receives of one message overlap. */
CASE(measured_timeline)
{
    static pipeline pipe;
    const int p = 3, m = 5;
    start_pipeline(&pipe, WEFT_PIPELINE_1F1B, p, m, false, 200);
    run_step(&pipe); /* without a trace */
    const double origin_us = weft_now_us();
    weft_trace *traces[RUN_STAGES];
    for (int i = 0; i < p; i++) {
        OK(weft_trace_create(&traces[i]));
        pipe.stages[i].executor.trace = traces[i];
        weft_trace_set_origin(traces[i], origin_us);
        pipe.stages[i].executor.within =
            (weft_slice_context){.rank = 10 + i, .micro_batch = -1, .stage = i};
    }
    run_step(&pipe);
    const double now_us = weft_now_us() - origin_us;
    for (int s = 0; s < p; s++) {
        const weft_program *program = pipe.stages[s].program;
        const weft_slice *slices = weft_trace_slices(traces[s]);
        assert_int_equal(weft_trace_count(traces[s]), program->num_tasks);
        double lane_end_us[WEFT_NUM_LANES] = {0};
        for (uint32_t i = 0; i < program->num_tasks; i++) {
            const weft_task *task = &program->tasks[i];
            assert_int_equal(slices[i].rank, 10 + s);
            assert_int_equal(slices[i].lane, task->lane);
            assert_int_equal(slices[i].stage, s);
            assert_int_equal(slices[i].micro_batch, task->micro_batch);
            assert_string_equal(slices[i].category, weft_task_kind_text(task->kind));
            assert_true(slices[i].start_us >= lane_end_us[task->lane]);
            assert_true(slices[i].end_us >= slices[i].start_us && slices[i].end_us <= now_us);
            for (uint32_t w = 0; w < task->num_waits; w++)
                assert_true(slices[program->waits[task->first_wait + w].task].end_us <=
                            slices[i].start_us);
            lane_end_us[task->lane] = slices[i].end_us;
            if (task->kind != WEFT_TASK_SEND)
                continue;
            const weft_slice *receive = &weft_trace_slices(traces[task->peer])[find_task(
                pipe.stages[task->peer].program, WEFT_TASK_RECEIVE, task->flow, task->micro_batch)];
            assert_true(slices[i].start_us <= receive->end_us);
            assert_true(receive->start_us <= slices[i].end_us);
        }
    }
    const weft_program *second = pipe.stages[1].program;
    const weft_slice *slices = weft_trace_slices(traces[1]);
    assert_string_equal(slices[find_task(second, WEFT_TASK_FORWARD, 0, 3)].name, "F3");
    assert_string_equal(slices[find_task(second, WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, 3)].name,
                        "s3");
    assert_string_equal(slices[find_task(second, WEFT_TASK_RECEIVE, WEFT_FLOW_GRADIENT, 4)].name,
                        "rg4");
    assert_string_equal(slices[find_task(second, WEFT_TASK_STEP, 0, -1)].name, "S0");
    end_pipeline(&pipe);
    for (int i = 0; i < p; i++)
        weft_trace_destroy(traces[i]);
}

static weft_status fail_on_lane(const void *args)
{
    const int *mb = args;
    return *mb == 1 ? WEFT_ERROR(WEFT_DEVICE, "micro-batch %d caught fire", *mb) : WEFT_OK;
}

static weft_status enqueue_failing(void *context, const weft_task *task, weft_lane *lane)
{
    (void)context;
    return weft_lane_submit(lane, "failing", fail_on_lane, &task->micro_batch, sizeof(int32_t));
}

static weft_status refuse_to_enqueue(void *context, const weft_task *task, weft_lane *lane)
{
    (void)context;
    (void)lane;
    return WEFT_ERROR(WEFT_CONFIG, "no micro-batch %d today", task->micro_batch);
}

CASE(errors_come_back)
{
    static pipeline pipe;
    start_pipeline(&pipe, WEFT_PIPELINE_1F1B, 1, 3, false, 0);
    weft_executor *executor = &pipe.stages[0].executor;
    const weft_program *program = pipe.stages[0].program;

    executor->run[WEFT_TASK_STEP] = NULL;
    FAILS(weft_program_run(program, executor), WEFT_INTERNAL,
          "task 8: the executor has no function for step");
    executor->run[WEFT_TASK_STEP] = enqueue;
    weft_lane *lane = executor->lanes[WEFT_LANE_REDUCE];
    executor->lanes[WEFT_LANE_REDUCE] = NULL;
    FAILS(weft_program_run(program, executor), WEFT_INTERNAL,
          "task 6: the executor has no lane for reduce");
    executor->lanes[WEFT_LANE_REDUCE] = lane;
    OK(weft_executor_prepare(executor, pipe.device, 8));
    FAILS(weft_program_run(program, executor), WEFT_INTERNAL,
          "a program of 9 tasks, prepared for 8");
    OK(weft_executor_prepare(executor, pipe.device, 20));
    assert_int_equal(pipe.stages[0].num_steps_done, 0); /* nothing was enqueued so far */

    executor->run[WEFT_TASK_BACKWARD] = refuse_to_enqueue;
    FAILS(weft_program_run(program, executor), WEFT_CONFIG, "no micro-batch 0 today");
    executor->run[WEFT_TASK_BACKWARD] = enqueue_failing;
    FAILS(weft_program_run(program, executor), WEFT_DEVICE, "micro-batch 1 caught fire");
    assert_int_equal(pipe.stages[0].num_steps_done, 0); /* what comes after an error is skipped */
    end_pipeline(&pipe);
}

/* Running again and again takes no device memory and no host memory from arenas. */
CASE(runs_without_allocating)
{
    static pipeline pipe;
    start_pipeline(&pipe, WEFT_PIPELINE_GPIPE, 2, 4, false, 0);
    run_step(&pipe);
    weft_device_stats before, after;
    weft_device_get_stats(pipe.device, &before);
    weft_alloc_fail_after(1);
    run_step(&pipe);
    weft_alloc_fail_after(0);
    weft_device_get_stats(pipe.device, &after);
    assert_int_equal(before.num_allocs, after.num_allocs);
    assert_int_equal(pipe.stages[1].num_steps_done, 2);
    end_pipeline(&pipe);
}

/* --- programs by hand ------------------------------------------------------------------------ */

typedef struct by_hand {
    weft_arena arena;
    weft_device *device;
    weft_program program;
} by_hand;

/* Every task of the program is run by `run`, on a lane of its own name. */
static void start_by_hand(by_hand *b, const char *text, weft_task_function run,
                          weft_executor *executor)
{
    *b = (by_hand){.device = NULL};
    OK(weft_program_parse(text, &b->arena, &b->program));
    OK(weft_device_create_cpu(1, 0, &b->device));
    for (uint32_t i = 0; i < b->program.num_tasks; i++) {
        const weft_task *task = &b->program.tasks[i];
        executor->run[task->kind] = run;
        if (!executor->lanes[task->lane])
            OK(weft_lane_create(b->device, 0, weft_lane_kind_text(task->lane),
                                &executor->lanes[task->lane]));
    }
    OK(weft_executor_prepare(executor, b->device, b->program.num_tasks));
}

static void end_by_hand(by_hand *b, weft_executor *executor)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        weft_lane_destroy(executor->lanes[lane]);
    weft_executor_release(executor);
    weft_device_destroy(b->device);
    weft_arena_release(&b->arena);
}

/* --- lanes that run on ----------------------------------------------------------------------- */

typedef struct held_step {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool released;
    int num_done, num_late; /* steps; those that nobody released in time */
} held_step;

static weft_status wait_for_release(const void *args)
{
    held_step *held = *(held_step *const *)args;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    pthread_mutex_lock(&held->mutex);
    while (!held->released)
        if (pthread_cond_timedwait(&held->changed, &held->mutex, &until) != 0) {
            held->num_late++;
            break;
        }
    held->num_done++;
    pthread_mutex_unlock(&held->mutex);
    return WEFT_OK;
}

static weft_status enqueue_held(void *context, const weft_task *task, weft_lane *lane)
{
    if (task->kind != WEFT_TASK_STEP)
        return WEFT_OK;
    return weft_lane_submit(lane, "step", wait_for_release, &context, sizeof(context));
}

/* How many were done until then. */
static int release(held_step *held)
{
    pthread_mutex_lock(&held->mutex);
    const int num_done = held->num_done;
    held->released = true;
    pthread_cond_broadcast(&held->changed);
    pthread_mutex_unlock(&held->mutex);
    return num_done;
}

/* A run returns while the host's lane is still at work, the next program is enqueued behind it, and
 * drain waits for both. */
CASE(host_runs_on)
{
    held_step held = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    weft_executor executor = {.context = &held, .runs_on = 1u << WEFT_LANE_HOST};
    by_hand b;
    start_by_hand(&b,
                  "program in_flight=0\n"
                  "0 norm compute\n"
                  "1 step host bucket=0 waits=0\n"
                  "2 step host bucket=1\n",
                  enqueue_held, &executor);
    for (int step = 0; step < 2; step++)
        OK(weft_program_run(&b.program, &executor));
    const int num_done = release(&held);
    OK(weft_executor_drain(&executor));
    assert_int_equal(num_done, 0);
    assert_int_equal(held.num_late, 0);
    assert_int_equal(held.num_done, 4);
    end_by_hand(&b, &executor);
}

/* Enqueuing returns while the lanes stand still, more than one program behind the other; each task
 * has a slice by then, and its times once the lanes have passed. */
CASE(enqueue_does_not_wait)
{
    held_step held = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    held_step *of = &held;
    weft_executor executor = {.context = &held,
                              .within = {.rank = 3, .micro_batch = 7, .backward = true}};
    by_hand b;
    start_by_hand(&b,
                  "program in_flight=0\n"
                  "0 norm compute\n"
                  "1 step host bucket=0 waits=0\n"
                  "2 step compute bucket=1 waits=1\n",
                  enqueue_held, &executor);
    OK(weft_trace_create(&executor.trace));
    const double origin_us = weft_now_us();
    weft_trace_set_origin(executor.trace, origin_us);
    OK(weft_lane_submit(executor.lanes[WEFT_LANE_COMPUTE], "hold", wait_for_release, &of,
                        sizeof of));
    for (int i = 0; i < 2; i++)
        OK(weft_program_enqueue(&b.program, &executor));
    assert_int_equal(weft_trace_count(executor.trace), 2 * b.program.num_tasks);
    const double released_us = weft_now_us() - origin_us;
    assert_int_equal(release(&held), 0);
    OK(weft_lane_sync(executor.lanes[WEFT_LANE_COMPUTE]));
    OK(weft_lane_sync(executor.lanes[WEFT_LANE_HOST]));
    assert_int_equal(held.num_done, 5);
    for (uint32_t i = 0; i < 2 * b.program.num_tasks; i++) {
        const weft_slice *slice = &weft_trace_slices(executor.trace)[i];
        assert_true(slice->start_us >= released_us && slice->end_us >= slice->start_us);
        assert_int_equal(slice->rank, 3);
        assert_non_null(strstr(slice->category, " back"));
    }
    weft_trace_destroy(executor.trace);
    end_by_hand(&b, &executor);
}

/* --- tasks of several parts ------------------------------------------------------------------ */

enum { NUM_PARTS = 3 };

typedef struct in_parts {
    weft_executor executor;
    weft_event *events[NUM_PARTS], *landed; /* of points */
    int part;                               /* of the backward */
    char order[64];                         /* what is enqueued: b0, b1, ... */
} in_parts;

static weft_status enqueue_part(void *context, const weft_task *task, weft_lane *lane)
{
    in_parts *p = context;
    const bool is_body = task->kind == WEFT_TASK_BACKWARD;
    const size_t used = strlen(p->order);
    snprintf(p->order + used, sizeof p->order - used, "%s%d ", weft_task_kind_letter(task->kind),
             is_body ? p->part : (int)task->bucket);
    if (!is_body)
        return WEFT_OK;
    if (p->part == 0)
        WEFT_TRY(weft_lane_record(lane, p->landed));
    p->executor.passed = NUM_PARTS - 1 - p->part;
    p->part = (p->part + 1) % NUM_PARTS;
    return WEFT_OK;
}

static bool has_part(void *context, const weft_task *task)
{
    return task->kind == WEFT_TASK_BACKWARD && ((in_parts *)context)->part > 0;
}

static weft_event *point_event(void *context, const weft_task *waiting, weft_wait wait)
{
    in_parts *p = context;
    assert_true(waiting || wait.point >= 0);
    assert_true(wait.point >= 0 || waiting->bucket == 0);
    return wait.point >= 0 ? p->events[wait.point] : p->landed;
}

/* Of bucket 0. */
static int layer_that_lands(void *context, const weft_task *waiting)
{
    (void)context;
    assert_int_equal(waiting->bucket, 0);
    return NUM_PARTS - 1;
}

/* Of lanes that go ahead a task is enqueued behind the part whose point it waits for, if those of
 * its lane before it are; all others behind the whole task. */
CASE(parts_and_what_goes_ahead_of_them)
{
    static const struct {
        uint32_t ahead;
        const char *order;
    } cases[] = {
        {0, "B0 B1 B2 R0 S0 S1 S2 S3 N-1 "},
        {1u << WEFT_LANE_HOST, "B0 S0 B1 S1 S2 B2 R0 S3 N-1 "},
        {1u << WEFT_LANE_REDUCE, "B0 R0 B1 B2 S0 S1 S2 S3 N-1 "},
    };
    in_parts p = {0};
    by_hand b;
    p.executor = (weft_executor){
        .context = &p, .goes_on = has_part, .event = point_event, .layer_of = layer_that_lands};
    start_by_hand(&b,
                  "program in_flight=1\n"
                  "0 backward compute mb=0 chunk=0\n"
                  "1 reduce reduce bucket=0 waits=0@2\n"
                  "2 step host bucket=0 waits=0@landed\n"
                  "3 step host bucket=1 waits=0@1\n"
                  "4 step host bucket=2\n"
                  "5 step host bucket=3 waits=0\n"
                  "6 norm compute\n",
                  enqueue_part, &p.executor);
    for (int i = 0; i < NUM_PARTS; i++)
        OK(weft_event_create(b.device, &p.events[i]));
    OK(weft_event_create(b.device, &p.landed));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int again = 0; again < 2; again++) {
            p.executor.ahead = cases[c].ahead;
            p.order[0] = '\0';
            OK(weft_program_run(&b.program, &p.executor));
            assert_string_equal(p.order, cases[c].order);
        }
    weft_event_destroy(p.landed);
    for (int i = 0; i < NUM_PARTS; i++)
        weft_event_destroy(p.events[i]);
    end_by_hand(&b, &p.executor);
}

/* --- tasks set aside, and the step before ----------------------------------------------------- */

typedef struct set_aside {
    atomic_int written; /* by the norm, late */
    int seen;           /* by the reduction */
    weft_event *before; /* what a wait for the step before is for */
    int asked;          /* how often */
} set_aside;

static weft_status write_late(const void *args)
{
    usleep(50000);
    atomic_store(&(*(set_aside *const *)args)->written, 1);
    return WEFT_OK;
}

static weft_status see_written(const void *args)
{
    set_aside *a = *(set_aside *const *)args;
    a->seen = atomic_load(&a->written);
    return WEFT_OK;
}

static weft_status enqueue_aside(void *context, const weft_task *task, weft_lane *lane)
{
    if (task->kind == WEFT_TASK_BACKWARD)
        return WEFT_OK;
    return weft_lane_submit(lane, "a task", task->kind == WEFT_TASK_NORM ? write_late : see_written,
                            &context, sizeof context);
}

/* A task set aside waits for what was put behind the task that it waits for, once that ends again.
 */
CASE(set_aside_behind_more)
{
    set_aside a = {0};
    weft_executor executor = {.context = &a};
    weft_cursor cursor, aside;
    by_hand b;
    start_by_hand(&b,
                  "program in_flight=1\n"
                  "0 backward compute mb=0 chunk=0\n"
                  "1 reduce reduce bucket=0 waits=0\n"
                  "2 norm compute\n",
                  enqueue_aside, &executor);
    OK(weft_program_open(&b.program, &executor, &cursor));
    OK(weft_program_next(&cursor));
    aside = cursor;
    cursor.at++;
    OK(weft_program_next(&cursor));
    OK(weft_program_end_again(&cursor, 0));
    OK(weft_program_next(&aside));
    OK(weft_executor_drain(&executor));
    assert_int_equal(cursor.at, b.program.num_tasks);
    assert_int_equal(aside.at, 2);
    assert_int_equal(a.seen, 1);
    end_by_hand(&b, &executor);
}

static weft_event *event_before(void *context, const weft_task *waiting, weft_wait wait)
{
    set_aside *a = context;
    a->asked++;
    return wait.task == WEFT_STEP_BEFORE && waiting->bucket == 0 ? a->before : NULL;
}

/* What the step before left behind delays the task that waits for it, on one lane as on several;
 * where the caller knows of nothing, or has no event at all, the task waits itself. A point must
 * have an event. */
CASE(waits_for_the_step_before)
{
    static const struct {
        const char *text;
        int asked, seen;
    } cases[] = {
        {"program in_flight=1\n0 backward compute\n1 reduce reduce bucket=0 waits=0,step_before\n",
         1, 1},
        {"program in_flight=1\n0 reduce reduce bucket=0 waits=step_before\n", 1, 1},
        {"program in_flight=1\n0 reduce reduce bucket=1 waits=step_before\n", 1, 0},
        {"program in_flight=1\n0 backward compute\n1 reduce reduce bucket=1 waits=0@landed\n", 1,
         -1},
        {"program in_flight=1\n0 reduce reduce bucket=0 waits=step_before\n", 0, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        set_aside a = {0}, *of = &a;
        weft_executor executor = {.context = &a, .event = cases[c].asked ? event_before : NULL};
        weft_lane *host;
        by_hand b;
        start_by_hand(&b, cases[c].text, enqueue_aside, &executor);
        OK(weft_lane_create(b.device, 0, "host", &host));
        OK(weft_event_create(b.device, &a.before));
        OK(weft_lane_submit(host, "the step before", write_late, &of, sizeof of));
        OK(weft_lane_record(host, a.before));
        if (cases[c].seen < 0)
            FAILS(weft_program_run(&b.program, &executor), WEFT_INTERNAL,
                  "point -2 of task 0 is recorded nowhere");
        else
            OK(weft_program_run(&b.program, &executor));
        OK(weft_lane_sync(host));
        assert_int_equal(a.asked, cases[c].asked);
        assert_int_equal(a.seen, cases[c].seen > 0);
        weft_event_destroy(a.before);
        weft_lane_destroy(host);
        end_by_hand(&b, &executor);
    }
}
