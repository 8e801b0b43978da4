#include "schedule/price.h"

#include "schedule/walk.h"

/* The clocks of one stage. */
typedef struct stage_times {
    double *end_us; /* of each task */
    double lane_us[WEFT_NUM_LANES];
    uint32_t *host; /* of each task: 1 + the latest before it inside which the host waits */
} stage_times;

static weft_status start_times(const weft_program *programs, int num_stages, weft_arena *scratch,
                               stage_times **out)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)num_stages, sizeof(stage_times), &memory));
    *out = memory;
    for (int stage = 0; stage < num_stages; stage++) {
        WEFT_TRY(
            weft_arena_alloc_array(scratch, programs[stage].num_tasks, sizeof(double), &memory));
        (*out)[stage].end_us = memory;
        WEFT_TRY(
            weft_arena_alloc_array(scratch, programs[stage].num_tasks, sizeof(uint32_t), &memory));
        (*out)[stage].host = memory;
        for (uint32_t i = 1; i < programs[stage].num_tasks; i++)
            (*out)[stage].host[i] = programs[stage].tasks[i - 1].flags & WEFT_TASK_HOST_WAITS
                                        ? i
                                        : (*out)[stage].host[i - 1];
    }
    return WEFT_OK;
}

/* When the task's lane is free, its waits are over and the host has come to it. */
static double ready_us(const weft_program *program, const stage_times *times, uint32_t index)
{
    const weft_task *task = &program->tasks[index];
    double ready = times->lane_us[task->lane];
    if (times->host[index] && ready < times->end_us[times->host[index] - 1])
        ready = times->end_us[times->host[index] - 1];
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const double end = times->end_us[program->waits[task->first_wait + w].task];
        ready = ready < end ? end : ready;
    }
    return ready;
}

void weft_slice_of_task(const weft_task *task, int stage, int num_stages, weft_slice *out)
{
    *out = (weft_slice){.lane = task->lane,
                        .micro_batch = task->micro_batch,
                        .stage = stage + (task->chunk > 0 ? task->chunk * num_stages : 0)};
    const char *letter = weft_task_kind_letter(task->kind);
    static const char *const flow_letters[WEFT_NUM_FLOWS] = {
        [WEFT_FLOW_NONE] = "",   [WEFT_FLOW_ACTIVATION] = "", [WEFT_FLOW_GRADIENT] = "g",
        [WEFT_FLOW_INPUT] = "i", [WEFT_FLOW_MIDDLE] = "m",    [WEFT_FLOW_WEIGHT] = "w",
    };
    const char *flow = flow_letters[task->flow];
    const int number = task->micro_batch >= 0 ? task->micro_batch : task->part;
    if (number >= 0)
        snprintf(out->name, sizeof(out->name), "%s%s%d", letter, flow, number);
    else
        snprintf(out->name, sizeof(out->name), "%s", letter);
    snprintf(out->category, sizeof(out->category), "%s", weft_task_kind_text(task->kind));
}

static weft_status add_slice(weft_trace *trace, int stage, int num_stages, const weft_task *task,
                             double start_us, double end_us)
{
    if (!trace)
        return WEFT_OK;
    weft_slice slice;
    weft_slice_of_task(task, stage, num_stages, &slice);
    slice.rank = stage;
    slice.start_us = start_us;
    slice.end_us = end_us;
    WEFT_TRY(weft_trace_add(trace, &slice));
    return WEFT_OK;
}

static weft_status occupy(const weft_program *programs, stage_times *all_times, int stage,
                          int num_stages, uint32_t index, double start_us, double end_us,
                          weft_trace *trace)
{
    stage_times *times = &all_times[stage];
    const weft_task *task = &programs[stage].tasks[index];
    times->end_us[index] = times->lane_us[task->lane] = end_us;
    WEFT_TRY(add_slice(trace, stage, num_stages, task, start_us, end_us));
    return WEFT_OK;
}

static weft_status simulate(const weft_program *programs, int num_stages, weft_task_cost cost,
                            const void *context, weft_arena *scratch, weft_trace *trace,
                            weft_price *price)
{
    stage_times *times = NULL;
    weft_walk walk;
    WEFT_TRY(start_times(programs, num_stages, scratch, &times));
    WEFT_TRY(weft_walk_start(&walk, programs, num_stages, scratch));

    /* The walk visits a task after everything it depends on, so its start is the latest of ends
     * that are known already. */
    for (weft_walk_step step; weft_walk_next(&walk, &step);) {
        const weft_program *program = &programs[step.stage];
        const weft_task *task = &program->tasks[step.task];
        double start = ready_us(program, &times[step.stage], step.task);
        if (step.peer >= 0) {
            const double peer = ready_us(&programs[step.peer], &times[step.peer], step.receive);
            start = start < peer ? peer : start;
        }
        const double us = cost(context, step.stage, task);
        WEFT_TRY(
            occupy(programs, times, step.stage, num_stages, step.task, start, start + us, trace));
        if (step.peer >= 0)
            WEFT_TRY(occupy(programs, times, step.peer, num_stages, step.receive, start, start + us,
                            trace));
        if (task->lane == WEFT_LANE_COMPUTE)
            price->busy_us[step.stage] += us;
        if (price->makespan_us < start + us)
            price->makespan_us = start + us;
    }
    WEFT_TRY(weft_walk_finish(&walk));
    return WEFT_OK;
}

/* What a lane is doing. A message is noted at its SEND. */
typedef struct activity {
    bool running, slowed;
    weft_walk_step step;
    double start_us, cost_us;
    double end_us, rate; /* if it goes on at this rate */
} activity;

typedef struct simulation {
    weft_walk walk;
    const weft_program *programs;
    weft_task_cost cost;
    const void *context;
    const weft_interference *interference;
    activity *lanes; /* [num_stages][WEFT_NUM_LANES] */
    double now_us;
    weft_trace *trace;
} simulation;

weft_work_class weft_lane_work_class(int lane)
{
    static const weft_work_class classes[WEFT_NUM_LANES] = {
        [WEFT_LANE_COMPUTE] = WEFT_WORK_COMP, [WEFT_LANE_SEND] = WEFT_WORK_COMM,
        [WEFT_LANE_RECEIVE] = WEFT_WORK_COMM, [WEFT_LANE_REDUCE] = WEFT_WORK_COMM,
        [WEFT_LANE_EXPERT] = WEFT_WORK_COMM,  [WEFT_LANE_GATHER] = WEFT_WORK_COMM,
        [WEFT_LANE_PLACE] = WEFT_WORK_MEM,    [WEFT_LANE_OFFLOAD] = WEFT_WORK_MEM,
        [WEFT_LANE_PREFETCH] = WEFT_WORK_MEM,
    };
    return classes[lane];
}

static const weft_task *task_of(const simulation *sim, const weft_walk_step *step)
{
    return &sim->programs[step->stage].tasks[step->task];
}

/* Starts what can start now. A task that takes no time never runs beside anything. */
static bool start_all(simulation *sim)
{
    bool started = false;
    for (int i = 0; i < sim->walk.num_stages * WEFT_NUM_LANES; i++) {
        weft_walk_step step;
        if (sim->lanes[i].running ||
            !weft_walk_head(&sim->walk, i / WEFT_NUM_LANES, i % WEFT_NUM_LANES, &step))
            continue;
        const double us = sim->cost(sim->context, step.stage, task_of(sim, &step));
        sim->lanes[i] = (activity){.running = true,
                                   .step = step,
                                   .start_us = sim->now_us,
                                   .cost_us = us,
                                   .end_us = sim->now_us + us,
                                   .rate = 1};
        started = true;
    }
    return started;
}

static weft_status finish_all(simulation *sim, weft_price *price)
{
    for (int i = 0; i < sim->walk.num_stages * WEFT_NUM_LANES; i++) {
        activity *done = &sim->lanes[i];
        if (!done->running || done->end_us > sim->now_us)
            continue;
        const weft_walk_step *step = &done->step;
        const weft_task *task = task_of(sim, step);
        done->running = false;
        weft_walk_done(&sim->walk, step);
        WEFT_TRY(add_slice(sim->trace, step->stage, sim->walk.num_stages, task, done->start_us,
                           done->end_us));
        if (step->peer >= 0)
            WEFT_TRY(add_slice(sim->trace, step->peer, sim->walk.num_stages,
                               &sim->programs[step->peer].tasks[step->receive], done->start_us,
                               done->end_us));
        if (task->lane == WEFT_LANE_COMPUTE)
            price->busy_us[step->stage] +=
                done->slowed ? done->end_us - done->start_us : done->cost_us;
        if (price->makespan_us < done->end_us)
            price->makespan_us = done->end_us;
    }
    return WEFT_OK;
}

/* The speed of a class beside the others that are active on its stage. */
static double speed_of(const simulation *sim, weft_work_class class_,
                       const bool active[WEFT_NUM_WORK_CLASSES])
{
    int beside = class_;
    for (int other = 0; other < WEFT_NUM_WORK_CLASSES; other++)
        if (active[other] && other != (int)class_)
            beside = beside == (int)class_ ? other : WEFT_WORK_ALL;
    return beside == (int)class_ ? 1 : sim->interference->alpha[class_][beside];
}

/* From now on everything runs at the speed that its company allows. */
static void set_speeds(simulation *sim, bool (*active)[WEFT_NUM_WORK_CLASSES])
{
    const int num_lanes = sim->walk.num_stages * WEFT_NUM_LANES;
    for (int stage = 0; stage < sim->walk.num_stages; stage++)
        for (int c = 0; c < WEFT_NUM_WORK_CLASSES; c++)
            active[stage][c] = false;
    for (int i = 0; i < num_lanes; i++)
        if (sim->lanes[i].running) {
            active[i / WEFT_NUM_LANES][weft_lane_work_class(i % WEFT_NUM_LANES)] = true;
            if (sim->lanes[i].step.peer >= 0)
                active[sim->lanes[i].step.peer][weft_lane_work_class(WEFT_LANE_RECEIVE)] = true;
        }
    for (int i = 0; i < num_lanes; i++) {
        activity *a = &sim->lanes[i];
        if (!a->running)
            continue;
        double rate =
            speed_of(sim, weft_lane_work_class(i % WEFT_NUM_LANES), active[i / WEFT_NUM_LANES]);
        if (a->step.peer >= 0) {
            const double other =
                speed_of(sim, weft_lane_work_class(WEFT_LANE_RECEIVE), active[a->step.peer]);
            rate = other < rate ? other : rate;
        }
        if (rate == a->rate)
            continue;
        a->end_us = sim->now_us + (a->end_us - sim->now_us) * a->rate / rate;
        a->rate = rate;
        a->slowed = true;
    }
}

/* To the next end; false when nothing runs. */
static bool advance(simulation *sim)
{
    const activity *next = NULL;
    for (int i = 0; i < sim->walk.num_stages * WEFT_NUM_LANES; i++)
        if (sim->lanes[i].running && (!next || sim->lanes[i].end_us < next->end_us))
            next = &sim->lanes[i];
    if (next)
        sim->now_us = next->end_us;
    return next != NULL;
}

static weft_status simulate_beside(simulation *sim, int num_stages, weft_arena *scratch,
                                   weft_price *price)
{
    void *lanes, *active;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)num_stages * WEFT_NUM_LANES, sizeof(activity),
                                    &lanes));
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)num_stages,
                                    sizeof(bool[WEFT_NUM_WORK_CLASSES]), &active));
    sim->lanes = lanes;
    WEFT_TRY(weft_walk_start(&sim->walk, sim->programs, num_stages, scratch));
    do {
        do
            WEFT_TRY(finish_all(sim, price));
        while (start_all(sim));
        set_speeds(sim, active);
    } while (advance(sim));
    WEFT_TRY(weft_walk_finish(&sim->walk));
    return WEFT_OK;
}

static weft_status start_price(int num_stages, weft_arena *arena, weft_trace *trace,
                               weft_price *out)
{
    void *busy;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)num_stages, sizeof(double), &busy));
    *out = (weft_price){.busy_us = busy};
    if (trace)
        weft_trace_name_lanes(trace, weft_lane_kind_texts(), WEFT_NUM_LANES);
    return WEFT_OK;
}

static void finish_price(int num_stages, weft_price *price)
{
    double sum_busy_us = 0;
    for (int stage = 0; stage < num_stages; stage++)
        sum_busy_us += price->busy_us[stage];
    if (price->makespan_us > 0)
        price->bubble_share = 1 - sum_busy_us / (num_stages * price->makespan_us);
}

weft_status weft_program_price(const weft_program *programs, int num_stages, weft_task_cost cost,
                               const void *context, weft_arena *arena, weft_trace *trace,
                               weft_price *out)
{
    weft_price price;
    WEFT_TRY(start_price(num_stages, arena, trace, &price));
    weft_arena scratch = {0};
    const weft_status status =
        simulate(programs, num_stages, cost, context, &scratch, trace, &price);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    finish_price(num_stages, &price);
    *out = price;
    return WEFT_OK;
}

weft_status weft_program_price_beside(const weft_program *programs, int num_stages,
                                      weft_task_cost cost, const void *context,
                                      const weft_interference *interference, weft_arena *arena,
                                      weft_trace *trace, weft_price *out)
{
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            if (!(interference->alpha[y][x] > 0))
                return WEFT_ERROR(WEFT_CONFIG, "%s beside %s runs at %g of its speed",
                                  weft_work_class_text(y), weft_work_class_text(x),
                                  interference->alpha[y][x]);
    weft_price price;
    WEFT_TRY(start_price(num_stages, arena, trace, &price));
    simulation sim = {.programs = programs,
                      .cost = cost,
                      .context = context,
                      .interference = interference,
                      .trace = trace};
    weft_arena scratch = {0};
    const weft_status status = simulate_beside(&sim, num_stages, &scratch, &price);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    finish_price(num_stages, &price);
    *out = price;
    return WEFT_OK;
}
