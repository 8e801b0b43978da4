/* What the end of a step waits for, of what the host steps behind computing: however late the next
 * task is enqueued, and nothing where computing ends last. */
#include "launcher/training/state.h"

#include <time.h>

#include "core/clock.h"
#include "schedule/text.h"
#include "tests/core/check.h"

enum { COMPUTED_MS = 20, STEPPED_MS = 40, STEPS = 3 };

static weft_status sleep_ms(const void *args)
{
    const struct timespec delay = {.tv_nsec = 1000000L * *(const int *)args};
    while (nanosleep(&delay, NULL) != 0)
        continue;
    return WEFT_OK;
}

/* The thread that enqueues goes on when the host has stepped, as on a core that both share. */
static weft_status run_task(void *context, const weft_task *task, weft_lane *lane)
{
    const bool *is_held = context;
    const int ms = task->lane == WEFT_LANE_HOST ? STEPPED_MS : COMPUTED_MS;
    WEFT_TRY(weft_lane_submit(lane, "sleep", sleep_ms, &ms, sizeof ms));
    return *is_held && task->lane == WEFT_LANE_HOST ? weft_lane_sync(lane) : WEFT_OK;
}

/* Microseconds that each of some steps waits, and takes from its begin to its end. */
static double waits_of(const char *text, bool is_held, double *out_took)
{
    weft_executor executor = {.context = &is_held};
    weft_step_clock clock = {.runs = true};
    weft_arena arena = {0};
    weft_device *device;
    weft_program program;
    const int lanes[] = {WEFT_LANE_COMPUTE, WEFT_LANE_HOST};
    OK(weft_program_parse(text, &arena, &program));
    OK(weft_device_create_cpu(1, 0, &device));
    executor.run[WEFT_TASK_NORM] = executor.run[WEFT_TASK_STEP] = run_task;
    for (int i = 0; i < 2; i++)
        OK(weft_lane_create(device, 0, weft_lane_kind_text(lanes[i]), &executor.lanes[lanes[i]]));
    OK(weft_executor_prepare(&executor, device, program.num_tasks));
    const double start = weft_now_us();
    for (int step = 0; step < STEPS; step++)
        OK(weft_step_clock_run(&clock, &program, &executor));
    *out_took = (weft_now_us() - start) / STEPS;
    const double waited = weft_step_clock_take(&clock);
    assert_true(weft_step_clock_take(&clock) == 0);
    for (int i = 0; i < 2; i++)
        weft_lane_destroy(executor.lanes[lanes[i]]);
    weft_executor_release(&executor);
    weft_device_destroy(device);
    weft_arena_release(&arena);
    return waited / STEPS;
}

CASE(steps_behind_computing)
{
    for (int held = 0; held < 2; held++) {
        double took;
        const double waited = waits_of("program in_flight=0\n"
                                       "0 norm compute\n"
                                       "1 step host bucket=0 waits=0\n"
                                       "2 step host bucket=1 waits=0\n",
                                       held, &took);
        if (waited < 2e3 * STEPPED_MS || waited > took - 1e3 * COMPUTED_MS)
            fail_msg("held %d: waits %g of %g us", held, waited, took);
    }
}

CASE(steps_before_the_end_of_computing)
{
    double took;
    const double waited = waits_of("program in_flight=0\n"
                                   "0 step host bucket=0\n"
                                   "1 norm compute waits=0\n",
                                   false, &took);
    assert_true(waited == 0 && took >= 1e3 * (COMPUTED_MS + STEPPED_MS));
}
