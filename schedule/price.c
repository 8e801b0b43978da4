#include "schedule/price.h"

#include <math.h>
#include <stdlib.h>

#include "schedule/walk.h"

void weft_slice_of_task(const weft_task *task, int stage, int num_stages, weft_slice *out)
{
    *out = (weft_slice){.lane = task->lane,
                        .micro_batch = task->micro_batch,
                        .stage = stage + (task->chunk > 0 ? task->chunk * num_stages : 0)};
    const char *letter = weft_task_kind_letter(task->kind);
    static const char *const flow_letters[WEFT_NUM_FLOWS] = {
        [WEFT_FLOW_NONE] = "",    [WEFT_FLOW_ACTIVATION] = "", [WEFT_FLOW_GRADIENT] = "g",
        [WEFT_FLOW_INPUT] = "i",  [WEFT_FLOW_MIDDLE] = "m",    [WEFT_FLOW_WEIGHT] = "w",
        [WEFT_FLOW_TENSOR] = "t", [WEFT_FLOW_TIED] = "e",
    };
    const char *flow = flow_letters[task->flow];
    const int number = task->micro_batch >= 0 ? task->micro_batch
                       : task->part >= 0      ? task->part
                       : task->bucket >= 0    ? task->bucket
                                              : task->layer;
    if (number >= 0)
        snprintf(out->name, sizeof(out->name), "%s%s%d", letter, flow, number);
    else
        snprintf(out->name, sizeof(out->name), "%s", letter);
    snprintf(out->category, sizeof(out->category), "%s", weft_task_kind_text(task->kind));
}

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

/* What a lane is doing. A message is noted at its SEND; its RECEIVE takes no part but to occupy its
 * lane, and ends by itself where the message is buffered. */
typedef struct activity {
    bool running, slowed;
    bool buffered; /* one end of a buffered message */
    int heap_at;   /* of those that run; -1: a RECEIVE whose message is under way */
    weft_walk_step step;
    double start_us, cost_us;
    /* If it goes on at this rate, the end; where points are left, the next of them. */
    double end_us, rate;
    uint32_t next_point;          /* of the stage's points */
    double needs[WEFT_MAX_LINKS]; /* the part of its time that it needs a link */
} activity;

/* Points that tasks of a stage wait for, by task, in the order in which they pass. */
typedef struct stage_points {
    weft_wait *points;
    uint32_t count;
} stage_points;

/* Messages of one flow to a stage; they come from one lane. */
typedef struct inbox {
    int arriving;                  /* the lane that one comes from; -1: none */
    uint32_t sent, arrived, taken; /* of those that are buffered: so many were begun with */
} inbox;

enum { NUM_INBOXES = 2 }; /* activations, gradients */

typedef struct simulation {
    weft_walk walk;
    stage_points *points; /* [num_stages] */
    const weft_program *programs;
    int num_stages;
    const weft_pricing *pricing;
    activity *lanes; /* [num_stages][WEFT_NUM_LANES] */
    inbox *inboxes;  /* [num_stages][NUM_INBOXES] */
    int *heap;       /* lanes by the time they end; ties by number */
    int heap_size;
    int *touched; /* stages whose company changed; each once */
    bool *is_touched;
    int num_touched;
    bool has_met[WEFT_NUM_MEETINGS];
    double now_us;
    weft_price *price;
} simulation;

/* --- the heap ------------------------------------------------------------------------------ */

static bool is_sooner(const simulation *sim, int a, int b)
{
    const double one = sim->lanes[a].end_us, other = sim->lanes[b].end_us;
    return one < other || (one == other && a < b);
}

static void heap_put(simulation *sim, int at, int lane)
{
    sim->heap[at] = lane;
    sim->lanes[lane].heap_at = at;
}

/* Moves a lane to where its time belongs. */
static void heap_settle(simulation *sim, int lane)
{
    int at = sim->lanes[lane].heap_at;
    for (; at > 0 && is_sooner(sim, lane, sim->heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(sim, at, sim->heap[(at - 1) / 2]);
    for (int child; (child = 2 * at + 1) < sim->heap_size; at = child) {
        if (child + 1 < sim->heap_size && is_sooner(sim, sim->heap[child + 1], sim->heap[child]))
            child++;
        if (!is_sooner(sim, sim->heap[child], lane))
            break;
        heap_put(sim, at, sim->heap[child]);
    }
    heap_put(sim, at, lane);
}

static void heap_add(simulation *sim, int lane)
{
    heap_put(sim, sim->heap_size++, lane);
    heap_settle(sim, lane);
}

static int heap_take_first(simulation *sim)
{
    const int first = sim->heap[0], last = sim->heap[--sim->heap_size];
    if (sim->heap_size > 0) {
        heap_put(sim, 0, last);
        heap_settle(sim, last);
    }
    return first;
}

/* --- starting and ending ------------------------------------------------------------------- */

static void touch(simulation *sim, int stage)
{
    if (!sim->is_touched[stage])
        sim->touched[sim->num_touched++] = stage;
    sim->is_touched[stage] = true;
}

/* Its first point, or where it would stand. */
static uint32_t find_points(const stage_points *points, uint32_t task)
{
    uint32_t low = 0, high = points->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (points->points[middle].task < task)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The point that the activity comes to next; NULL: none is left. */
static const weft_wait *next_point(const simulation *sim, const activity *a)
{
    const stage_points *points = &sim->points[a->step.stage];
    const bool left =
        a->next_point < points->count && points->points[a->next_point].task == a->step.task;
    return left ? &points->points[a->next_point] : NULL;
}

/* The part of its time after which it comes to its next point, or ends. */
static double next_share(const simulation *sim, const activity *a)
{
    const weft_wait *point = next_point(sim, a);
    const weft_pricing *pricing = sim->pricing;
    return point ? pricing->point(pricing->context, a->step.stage,
                                  &sim->programs[a->step.stage].tasks[a->step.task], point->point)
                 : 1;
}

static activity *receive_of(const simulation *sim, int stage)
{
    return &sim->lanes[stage * WEFT_NUM_LANES + WEFT_LANE_RECEIVE];
}

static inbox *inbox_of(const simulation *sim, int stage, const weft_task *message)
{
    return &sim->inboxes[stage * NUM_INBOXES + (message->flow == WEFT_FLOW_GRADIENT)];
}

/* A RECEIVE occupies its lane. */
static activity *begin_receive(simulation *sim, int stage, uint32_t index, bool buffered)
{
    activity *a = receive_of(sim, stage);
    *a = (activity){.running = true,
                    .buffered = buffered,
                    .heap_at = -1,
                    .step = {.stage = stage, .peer = -1, .task = index},
                    .start_us = sim->now_us,
                    .rate = 1,
                    .next_point = sim->points[stage].count};
    return a;
}

static void end_receive(simulation *sim, activity *a)
{
    a->end_us = sim->now_us;
    heap_add(sim, (int)(a - sim->lanes));
}

/* The RECEIVE of a buffered message that has left; it ends when that is there. */
static void start_receive(simulation *sim, int stage)
{
    uint32_t index;
    if (!sim->pricing->buffered || receive_of(sim, stage)->running ||
        !weft_walk_ready(&sim->walk, stage, WEFT_LANE_RECEIVE, &index))
        return;
    inbox *box = inbox_of(sim, stage, &sim->programs[stage].tasks[index]);
    if (box->taken == box->sent)
        return;
    activity *a = begin_receive(sim, stage, index, true);
    if (++box->taken <= box->arrived)
        end_receive(sim, a);
}

/* A buffered message is there; whoever waits for it has it. */
static void arrive(simulation *sim, int stage, const weft_task *send)
{
    activity *a = receive_of(sim, stage);
    inbox *box = inbox_of(sim, stage, send);
    box->arrived++;
    if (a->running && a->buffered && a->heap_at < 0 &&
        inbox_of(sim, stage, &sim->programs[stage].tasks[a->step.task]) == box)
        end_receive(sim, a);
}

/* A SEND whose message is buffered, at the head of its lane. */
static bool find_buffered(simulation *sim, int stage, int lane, weft_walk_step *out)
{
    const weft_pricing *pricing = sim->pricing;
    uint32_t index;
    if (!pricing->buffered || lane != WEFT_LANE_SEND ||
        !weft_walk_ready(&sim->walk, stage, lane, &index))
        return false;
    const weft_task *task = &sim->programs[stage].tasks[index];
    *out = (weft_walk_step){.stage = stage, .peer = task->peer, .task = index};
    return task->kind == WEFT_TASK_SEND && task->peer >= 0 && task->peer < sim->num_stages &&
           task->peer != stage && pricing->buffered(pricing->context, stage, task);
}

static void start_lane(simulation *sim, int stage, int lane)
{
    const weft_pricing *pricing = sim->pricing;
    activity *a = &sim->lanes[stage * WEFT_NUM_LANES + lane];
    weft_walk_step step;
    if (a->running)
        return;
    const bool buffered = find_buffered(sim, stage, lane, &step);
    if (!buffered && !weft_walk_head(&sim->walk, stage, lane, &step))
        return;
    if (!buffered && step.peer >= 0) {
        if (receive_of(sim, step.peer)->running)
            return;
        begin_receive(sim, step.peer, step.receive, false);
    }
    const weft_task *task = &sim->programs[stage].tasks[step.task];
    const double us = pricing->cost(pricing->context, stage, task);
    *a = (activity){.running = true,
                    .buffered = buffered,
                    .step = step,
                    .start_us = sim->now_us,
                    .cost_us = us,
                    .end_us = sim->now_us + us,
                    .rate = 1};
    if (pricing->links && us > 0) {
        pricing->links(pricing->context, stage, task, a->needs);
        for (int l = 0; l < WEFT_MAX_LINKS; l++)
            a->needs[l] /= us;
    }
    a->next_point = find_points(&sim->points[stage], step.task);
    if (next_point(sim, a))
        a->end_us = sim->now_us + us * next_share(sim, a);
    heap_add(sim, stage * WEFT_NUM_LANES + lane);
    touch(sim, stage);
    if (step.peer >= 0) {
        inbox *box = inbox_of(sim, step.peer, task);
        box->arriving = stage * WEFT_NUM_LANES + lane;
        box->sent += buffered;
        touch(sim, step.peer);
    }
    if (buffered)
        start_receive(sim, step.peer);
}

/* Once all have come to a meeting, those who were waiting for the last. */
static void start_meetings(simulation *sim)
{
    for (int meeting = 0; meeting < WEFT_NUM_MEETINGS; meeting++) {
        if (sim->has_met[meeting] || sim->walk.come[meeting] < sim->num_stages)
            continue;
        sim->has_met[meeting] = true;
        for (int stage = 0; stage < sim->num_stages; stage++) {
            const uint32_t index = sim->walk.stages[stage].meets[meeting];
            if (index < sim->programs[stage].num_tasks)
                start_lane(sim, stage, sim->programs[stage].tasks[index].lane);
        }
    }
}

/* What may start now that this stage has gone on: its own lanes, who met it there, and who sends
 * what it receives next. */
static void start_stage(simulation *sim, int stage)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        start_lane(sim, stage, lane);
    start_receive(sim, stage);
    start_meetings(sim);
    const weft_program *program = &sim->programs[stage];
    const uint32_t receive = sim->walk.stages[stage].head[WEFT_LANE_RECEIVE];
    const int peer = receive < program->num_tasks ? program->tasks[receive].peer : -1;
    if (peer >= 0 && peer < sim->num_stages)
        start_lane(sim, peer, WEFT_LANE_SEND);
}

static weft_status note(simulation *sim, int stage, uint32_t index, const activity *done)
{
    sim->price->spans[stage][index] = (weft_span){done->start_us, done->end_us};
    if (!sim->pricing->trace)
        return WEFT_OK;
    weft_slice slice;
    weft_slice_of_task(&sim->programs[stage].tasks[index], stage, sim->num_stages, &slice);
    slice.rank = stage;
    slice.start_us = done->start_us;
    slice.end_us = done->end_us;
    WEFT_TRY(weft_trace_add(sim->pricing->trace, &slice));
    return WEFT_OK;
}

/* Whoever waits for the point may go on, and so does the task, to its next one or its end. */
static void pass_point(simulation *sim, activity *a, int number)
{
    const double share = next_share(sim, a);
    sim->walk.stages[a->step.stage].passed[a->step.task] = next_point(sim, a)->point;
    a->next_point++;
    a->end_us = sim->now_us + a->cost_us * fmax(0, next_share(sim, a) - share) / a->rate;
    heap_add(sim, number);
    start_stage(sim, a->step.stage);
}

static weft_status finish_first(simulation *sim)
{
    const int number = heap_take_first(sim);
    activity *done = &sim->lanes[number];
    if (next_point(sim, done)) {
        pass_point(sim, done, number);
        return WEFT_OK;
    }
    const weft_walk_step step = done->step;
    const weft_walk_step sent = {.stage = step.stage, .peer = -1, .task = step.task};
    const weft_task *task = &sim->programs[step.stage].tasks[step.task];
    weft_price *price = sim->price;
    done->running = false;
    weft_walk_done(&sim->walk, done->buffered ? &sent : &step);
    WEFT_TRY(note(sim, step.stage, step.task, done));
    if (task->lane == WEFT_LANE_COMPUTE)
        price->busy_us[step.stage] += done->slowed ? done->end_us - done->start_us : done->cost_us;
    price->makespan_us = fmax(price->makespan_us, done->end_us);
    touch(sim, step.stage);
    if (step.peer >= 0) {
        inbox_of(sim, step.peer, task)->arriving = -1;
        touch(sim, step.peer);
    }
    if (step.peer >= 0 && done->buffered) {
        arrive(sim, step.peer, task);
    } else if (step.peer >= 0) {
        receive_of(sim, step.peer)->running = false;
        WEFT_TRY(note(sim, step.peer, step.receive, done));
        start_stage(sim, step.peer);
    }
    start_stage(sim, step.stage);
    return WEFT_OK;
}

/* --- company ------------------------------------------------------------------------------- */

/* What is under way on a stage, messages that arrive included. */
typedef struct company {
    bool active[WEFT_NUM_WORK_CLASSES];
    double needs[2][WEFT_MAX_LINKS]; /* of what leaves, of what arrives */
} company;

/* Whether the activity needs the way of a stage's links, being at home there or arriving. */
static bool uses(const activity *a, int way, bool arrives)
{
    return a->step.peer < 0 || way == (int)arrives;
}

static void add_company(const activity *a, int lane, bool arrives, company *out)
{
    if (!a->running)
        return;
    out->active[weft_lane_work_class(lane)] = true;
    for (int way = 0; way < 2; way++)
        for (int l = 0; l < WEFT_MAX_LINKS && uses(a, way, arrives); l++)
            out->needs[way][l] += a->needs[l];
}

static company company_of(const simulation *sim, int stage)
{
    company out = {{false}, {{0}}};
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        add_company(&sim->lanes[stage * WEFT_NUM_LANES + lane], lane, false, &out);
    for (int i = 0; i < NUM_INBOXES; i++) {
        const int from = sim->inboxes[stage * NUM_INBOXES + i].arriving;
        if (from >= 0)
            add_company(&sim->lanes[from], WEFT_LANE_RECEIVE, true, &out);
    }
    return out;
}

/* The part of its speed that an activity has in such company. */
static double speed_in(const simulation *sim, const activity *a, int lane, bool arrives,
                       const company *with)
{
    const weft_interference *interference = sim->pricing->interference;
    const int class_ = (int)weft_lane_work_class(lane);
    double speed = 1;
    int beside = class_;
    for (int other = 0; other < WEFT_NUM_WORK_CLASSES; other++)
        if (with->active[other] && other != class_)
            beside = beside == class_ ? other : WEFT_WORK_ALL;
    if (interference && beside != class_)
        speed = interference->alpha[class_][beside];
    for (int way = 0; way < 2; way++)
        for (int l = 0; l < WEFT_MAX_LINKS && uses(a, way, arrives); l++)
            if (a->needs[l] > 0 && with->needs[way][l] > 1)
                speed = fmin(speed, 1 / with->needs[way][l]);
    return speed;
}

static void set_speed(simulation *sim, int number)
{
    activity *a = &sim->lanes[number];
    if (!a->running || a->heap_at < 0)
        return;
    const company own = company_of(sim, a->step.stage);
    double rate = speed_in(sim, a, number % WEFT_NUM_LANES, false, &own);
    if (a->step.peer >= 0) {
        const company other = company_of(sim, a->step.peer);
        rate = fmin(rate, speed_in(sim, a, WEFT_LANE_RECEIVE, true, &other));
    }
    if (rate == a->rate)
        return;
    a->end_us = sim->now_us + (a->end_us - sim->now_us) * a->rate / rate;
    a->rate = rate;
    a->slowed = true;
    heap_settle(sim, number);
}

/* From now on everything runs at the speed that its company allows. */
static void set_speeds(simulation *sim)
{
    const bool any = sim->pricing->interference || sim->pricing->links;
    while (sim->num_touched > 0) {
        const int stage = sim->touched[--sim->num_touched];
        sim->is_touched[stage] = false;
        for (int lane = 0; any && lane < WEFT_NUM_LANES; lane++)
            set_speed(sim, stage * WEFT_NUM_LANES + lane);
        for (int i = 0; any && i < NUM_INBOXES; i++)
            if (sim->inboxes[stage * NUM_INBOXES + i].arriving >= 0)
                set_speed(sim, sim->inboxes[stage * NUM_INBOXES + i].arriving);
    }
}

/* --- the whole ----------------------------------------------------------------------------- */

/* A task that takes no time never runs beside anything. */
static weft_status simulate(simulation *sim)
{
    for (int stage = 0; stage < sim->num_stages; stage++)
        start_stage(sim, stage);
    while (sim->heap_size > 0) {
        if (sim->lanes[sim->heap[0]].end_us > sim->now_us)
            set_speeds(sim);
        sim->now_us = sim->lanes[sim->heap[0]].end_us;
        WEFT_TRY(finish_first(sim));
    }
    WEFT_TRY(weft_walk_finish(&sim->walk));
    return WEFT_OK;
}

static weft_status take_array(weft_arena *arena, size_t count, size_t size, void *out)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, count, size, &memory));
    *(void **)out = memory;
    return WEFT_OK;
}

static int compare_points(const void *a, const void *b)
{
    const weft_wait *x = a, *y = b;
    return x->task != y->task ? (x->task < y->task ? -1 : 1)
                              : (x->point < y->point) - (x->point > y->point);
}

static weft_status list_points(const weft_program *program, weft_arena *scratch, stage_points *out)
{
    for (uint32_t i = 0; i < program->num_waits; i++)
        out->count += program->waits[i].point >= 0;
    WEFT_TRY(take_array(scratch, out->count, sizeof *out->points, &out->points));
    for (uint32_t i = 0, at = 0; i < program->num_waits; i++)
        if (program->waits[i].point >= 0)
            out->points[at++] = program->waits[i];
    if (out->count > 0)
        qsort(out->points, out->count, sizeof *out->points, compare_points);
    return WEFT_OK;
}

static weft_status start(simulation *sim, weft_arena *scratch, weft_arena *arena)
{
    const size_t stages = (size_t)sim->num_stages, lanes = stages * WEFT_NUM_LANES;
    weft_price *price = sim->price;
    *price = (weft_price){.makespan_us = 0};
    WEFT_TRY(take_array(scratch, lanes, sizeof *sim->lanes, &sim->lanes));
    WEFT_TRY(take_array(scratch, lanes, sizeof *sim->heap, &sim->heap));
    WEFT_TRY(take_array(scratch, stages * NUM_INBOXES, sizeof *sim->inboxes, &sim->inboxes));
    WEFT_TRY(take_array(scratch, stages, sizeof *sim->points, &sim->points));
    WEFT_TRY(take_array(scratch, stages, sizeof *sim->touched, &sim->touched));
    WEFT_TRY(take_array(scratch, stages, sizeof *sim->is_touched, &sim->is_touched));
    WEFT_TRY(take_array(arena, stages, sizeof *price->busy_us, &price->busy_us));
    WEFT_TRY(take_array(arena, stages, sizeof *price->spans, &price->spans));
    for (int stage = 0; stage < sim->num_stages; stage++) {
        for (int i = 0; i < NUM_INBOXES; i++)
            sim->inboxes[stage * NUM_INBOXES + i].arriving = -1;
        if (sim->pricing->point)
            WEFT_TRY(list_points(&sim->programs[stage], scratch, &sim->points[stage]));
        WEFT_TRY(take_array(arena, sim->programs[stage].num_tasks, sizeof **price->spans,
                            &price->spans[stage]));
    }
    if (sim->pricing->trace)
        weft_trace_name_lanes(sim->pricing->trace, weft_lane_kind_texts(), WEFT_NUM_LANES);
    WEFT_TRY(weft_walk_start(&sim->walk, sim->programs, sim->num_stages, scratch));
    return WEFT_OK;
}

static weft_status check_interference(const weft_interference *interference)
{
    for (int y = 0; interference && y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            if (!(interference->alpha[y][x] > 0))
                return WEFT_ERROR(WEFT_CONFIG, "%s beside %s runs at %g of its speed",
                                  weft_work_class_text(y), weft_work_class_text(x),
                                  interference->alpha[y][x]);
    return WEFT_OK;
}

weft_status weft_program_price(const weft_program *programs, int num_stages,
                               const weft_pricing *pricing, weft_arena *arena, weft_price *out)
{
    weft_price price;
    weft_arena scratch = {0};
    simulation sim = {
        .programs = programs, .num_stages = num_stages, .pricing = pricing, .price = &price};
    WEFT_TRY(check_interference(pricing->interference));
    weft_status status = start(&sim, &scratch, arena);
    if (status == WEFT_OK)
        status = simulate(&sim);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    double busy_us = 0;
    for (int stage = 0; stage < num_stages; stage++)
        busy_us += price.busy_us[stage];
    if (price.makespan_us > 0)
        price.bubble_share = 1 - busy_us / (num_stages * price.makespan_us);
    *out = price;
    return WEFT_OK;
}
