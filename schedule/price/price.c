#include <math.h>
#include <stdlib.h>

#include "core/stage.h"
#include "schedule/price/price.h"
#include "schedule/walk.h"

/* What a lane is doing. The SEND carries a message's activity; the RECEIVE only occupies its lane,
 * and has an end of its own where the message is buffered. */
typedef struct weft_activity {
    bool running, slowed;
    bool buffered; /* one end of a buffered message */
    int heap_at;   /* index in the heap; -1: a RECEIVE whose message is under way */
    weft_walk_step step;
    double start_us, cost_us;
    /* The end, or the next point if points are left, at the current rate. */
    double end_us, rate;
    uint32_t next_point;          /* index into the stage's points */
    double needs[WEFT_MAX_LINKS]; /* the share of its time in which it needs each link */
} weft_activity;

/* Points that tasks of a stage wait for, by the task that passes them; of one that runs or is over,
 * in the order in which they pass. */
typedef struct weft_point {
    uint32_t task, wait; /* wait: its index in the program */
    const weft_task *waiting;
    double share; /* of the task's time, known from its start on */
} weft_point;

typedef struct stage_points {
    weft_point *points;
    uint32_t count;
} stage_points;

/* Messages of one flow to a stage; they come from one lane. */
typedef struct inbox {
    int arriving;                  /* the lane of the arriving message; -1: none */
    uint32_t sent, arrived, taken; /* numbers of buffered messages */
} inbox;

enum { WEFT_NUM_INBOXES = 2 }; /* activations, gradients */

typedef struct weft_simulation {
    weft_walk walk;
    stage_points *points; /* [num_stages] */
    const weft_program *programs;
    int num_stages;
    const weft_pricing *pricing;
    weft_activity *lanes; /* [num_stages][WEFT_NUM_LANES] */
    inbox *inboxes;       /* [num_stages][WEFT_NUM_INBOXES] */
    int *heap;            /* lanes, by end; ties by number */
    int heap_size;
    int *touched; /* stages whose activities changed, each once */
    bool *is_touched;
    int num_touched;
    bool has_met[WEFT_NUM_MEETINGS];
    double now_us;
    weft_price *price;
} weft_simulation;

/* --- the activity that ends next, and the speeds of concurrent ones ------------------------- */

static bool is_sooner(const weft_simulation *sim, int a, int b)
{
    const double one = sim->lanes[a].end_us, other = sim->lanes[b].end_us;
    return one < other || (one == other && a < b);
}

static void heap_put(weft_simulation *sim, int at, int lane)
{
    sim->heap[at] = lane;
    sim->lanes[lane].heap_at = at;
}

/* Moves a lane whose end changed. */
static void settle(weft_simulation *sim, int lane)
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

/* The heap of running lanes, by their end. */
static void simulation_add(weft_simulation *sim, int lane)
{
    heap_put(sim, sim->heap_size++, lane);
    settle(sim, lane);
}

static int simulation_take_first(weft_simulation *sim)
{
    const int first = sim->heap[0], last = sim->heap[--sim->heap_size];
    if (sim->heap_size > 0) {
        heap_put(sim, 0, last);
        settle(sim, last);
    }
    return first;
}

weft_work_class weft_lane_work_class(int lane)
{
    static const weft_work_class classes[WEFT_NUM_LANES] = {
        [WEFT_LANE_COMPUTE] = WEFT_WORK_COMP,     [WEFT_LANE_SEND] = WEFT_WORK_COMM,
        [WEFT_LANE_RECEIVE] = WEFT_WORK_COMM,     [WEFT_LANE_REDUCE] = WEFT_WORK_COMM,
        [WEFT_LANE_EXPERT] = WEFT_WORK_COMM,      [WEFT_LANE_GATHER] = WEFT_WORK_COMM,
        [WEFT_LANE_PLACE] = WEFT_WORK_MEM,        [WEFT_LANE_OFFLOAD] = WEFT_WORK_MEM,
        [WEFT_LANE_PREFETCH] = WEFT_WORK_MEM,     [WEFT_LANE_TO_DEVICE] = WEFT_WORK_MEM,
        [WEFT_LANE_TO_HOST] = WEFT_WORK_MEM,      [WEFT_LANE_HOST] = WEFT_NUM_WORK_CLASSES,
        [WEFT_LANE_FILE] = WEFT_NUM_WORK_CLASSES,
    };
    return classes[lane];
}

/* The activities on a stage, arriving messages included. */
typedef struct company {
    bool active[WEFT_NUM_WORK_CLASSES];
    double needs[2][WEFT_MAX_LINKS]; /* by direction: leaving, arriving */
} company;

/* Whether the activity uses this way of a stage's links; arrives: it comes from elsewhere. */
static bool uses(const weft_activity *a, int way, bool arrives)
{
    return a->step.peer < 0 || way == (int)arrives;
}

static void add_company(const weft_activity *a, int lane, bool arrives, company *out)
{
    if (!a->running)
        return;
    const weft_work_class class_ = weft_lane_work_class(lane);
    if (class_ < WEFT_NUM_WORK_CLASSES)
        out->active[class_] = true;
    for (int way = 0; way < 2; way++)
        for (int l = 0; l < WEFT_MAX_LINKS && uses(a, way, arrives); l++)
            out->needs[way][l] += a->needs[l];
}

static company company_of(const weft_simulation *sim, int stage)
{
    const weft_walk_stage *of = &sim->walk.stages[stage];
    company out = {{false}, {{0}}};
    for (int i = 0; i < of->num_lanes; i++)
        add_company(&sim->lanes[stage * WEFT_NUM_LANES + of->lanes[i]], of->lanes[i], false, &out);
    for (int i = 0; i < WEFT_NUM_INBOXES; i++) {
        const int from = sim->inboxes[stage * WEFT_NUM_INBOXES + i].arriving;
        if (from >= 0)
            add_company(&sim->lanes[from], WEFT_LANE_RECEIVE, true, &out);
    }
    return out;
}

/* The share of its own speed that the activity keeps beside the others. */
static double speed_in(const weft_simulation *sim, const weft_activity *a, int lane, bool arrives,
                       const company *with)
{
    const weft_interference *interference = sim->pricing->interference;
    const int class_ = (int)weft_lane_work_class(lane);
    double speed = 1;
    int beside = class_;
    for (int other = 0; other < WEFT_NUM_WORK_CLASSES; other++)
        if (with->active[other] && other != class_)
            beside = beside == class_ ? other : WEFT_WORK_ALL;
    if (interference && beside != class_ && class_ < WEFT_NUM_WORK_CLASSES)
        speed = interference->alpha[class_][beside];
    for (int way = 0; way < 2; way++)
        for (int l = 0; l < WEFT_MAX_LINKS && uses(a, way, arrives); l++)
            if (a->needs[l] > 0 && with->needs[way][l] > 1)
                speed = fmin(speed, 1 / with->needs[way][l]);
    return speed;
}

/* here: of the stage. */
static void set_speed(weft_simulation *sim, int number, int stage, const company *here)
{
    weft_activity *a = &sim->lanes[number];
    if (!a->running || a->heap_at < 0)
        return;
    const bool arrives = a->step.stage != stage;
    const int lane = number % WEFT_NUM_LANES;
    double rate = speed_in(sim, a, arrives ? WEFT_LANE_RECEIVE : lane, arrives, here);
    if (a->step.peer >= 0) {
        const company there = company_of(sim, arrives ? a->step.stage : a->step.peer);
        rate = fmin(rate, speed_in(sim, a, arrives ? lane : WEFT_LANE_RECEIVE, !arrives, &there));
    }
    if (rate == a->rate)
        return;
    a->end_us = sim->now_us + (a->end_us - sim->now_us) * a->rate / rate;
    a->rate = rate;
    a->slowed = true;
    settle(sim, number);
}

/* Sets the speeds of all activities on touched stages, beside each other. */
static void simulation_set_speeds(weft_simulation *sim)
{
    const bool any = sim->pricing->interference || sim->pricing->links;
    while (sim->num_touched > 0) {
        const int stage = sim->touched[--sim->num_touched];
        const weft_walk_stage *of = &sim->walk.stages[stage];
        sim->is_touched[stage] = false;
        if (!any)
            continue;
        const company here = company_of(sim, stage);
        for (int i = 0; i < of->num_lanes; i++)
            set_speed(sim, stage * WEFT_NUM_LANES + of->lanes[i], stage, &here);
        for (int i = 0; i < WEFT_NUM_INBOXES; i++)
            if (sim->inboxes[stage * WEFT_NUM_INBOXES + i].arriving >= 0)
                set_speed(sim, sim->inboxes[stage * WEFT_NUM_INBOXES + i].arriving, stage, &here);
    }
}

static const char *const flow_letters[WEFT_NUM_FLOWS] = {
#define ROW(name, text, letters) letters,
    WEFT_FLOW_LIST(ROW)
#undef ROW
};

const char *weft_flow_letters(int flow)
{
    return flow >= 0 && flow < WEFT_NUM_FLOWS ? flow_letters[flow] : "?";
}

void weft_slices_explain(weft_trace *trace)
{
    static const weft_trace_letters rows[] = {
#define ROW(name, text, letters) {letters, text},
        WEFT_FLOW_LIST(ROW)
#undef ROW
            {"Bi", "the input's gradient"},
        {"Bw", "the weights' gradients"},
    };
    weft_trace_explain(trace, rows, sizeof rows / sizeof *rows);
}

void weft_slice_of_task(const weft_task *task, int stage, int num_stages, bool is_v,
                        weft_slice *out)
{
    *out = (weft_slice){
        .lane = task->lane,
        .micro_batch = task->micro_batch,
        .stage = weft_stage_of(is_v, num_stages, stage, task->chunk > 0 ? task->chunk : 0)};
    const char *letter = weft_task_kind_letter(task->kind);
    const int number = task->micro_batch >= 0 ? task->micro_batch
                       : task->part >= 0      ? task->part
                       : task->expert >= 0    ? task->expert
                       : task->bucket >= 0    ? task->bucket
                                              : task->layer;
    if (number >= 0)
        snprintf(out->name, sizeof(out->name), "%s%s%d", letter, weft_flow_letters(task->flow),
                 number);
    else
        snprintf(out->name, sizeof(out->name), "%s", letter);
    snprintf(out->category, sizeof(out->category), "%s", weft_task_kind_text(task->kind));
}

void weft_slice_within(const weft_slice_context *within, const weft_task *task, weft_slice *out)
{
    weft_slice_of_task(task, within->stage, within->num_stages, within->is_v, out);
    out->rank = within->rank;
    if (within->tracks)
        out->lane = within->tracks[task->lane];
    if (out->micro_batch < 0)
        out->micro_batch = within->micro_batch;
    if (within->backward)
        snprintf(out->category, sizeof out->category, "%s back", weft_task_kind_text(task->kind));
}

/* --- starting and ending ------------------------------------------------------------------- */

static void touch(weft_simulation *sim, int stage)
{
    if (!sim->is_touched[stage])
        sim->touched[sim->num_touched++] = stage;
    sim->is_touched[stage] = true;
}

/* The index of the task's first point, or where it would stand. */
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
static const weft_point *next_point(const weft_simulation *sim, const weft_activity *a)
{
    const stage_points *points = &sim->points[a->step.stage];
    const bool left =
        a->next_point < points->count && points->points[a->next_point].task == a->step.task;
    return left ? &points->points[a->next_point] : NULL;
}

/* The share of the activity's time at its next point, or at its end. */
static double next_share(const weft_simulation *sim, const weft_activity *a)
{
    const weft_point *point = next_point(sim, a);
    return point ? point->share : 1;
}

static int compare_shares(const void *a, const void *b)
{
    const weft_point *x = a, *y = b;
    return x->share != y->share ? (x->share < y->share ? -1 : 1)
                                : (x->wait > y->wait) - (x->wait < y->wait);
}

/* Puts the points of a task that starts in order, landings among layers'. */
static void begin_points(weft_simulation *sim, weft_activity *a)
{
    const weft_pricing *pricing = sim->pricing;
    const int stage = a->step.stage;
    const weft_program *program = &sim->programs[stage];
    stage_points *points = &sim->points[stage];
    uint32_t end = a->next_point = find_points(points, a->step.task);
    for (; end < points->count && points->points[end].task == a->step.task; end++) {
        weft_point *point = &points->points[end];
        point->share = pricing->point(pricing->context, stage, &program->tasks[a->step.task],
                                      program->waits[point->wait].point, point->waiting);
    }
    if (end > a->next_point)
        qsort(&points->points[a->next_point], end - a->next_point, sizeof *points->points,
              compare_shares);
}

static weft_activity *receive_of(const weft_simulation *sim, int stage)
{
    return &sim->lanes[stage * WEFT_NUM_LANES + WEFT_LANE_RECEIVE];
}

static inbox *inbox_of(const weft_simulation *sim, int stage, const weft_task *message)
{
    return &sim->inboxes[stage * WEFT_NUM_INBOXES + (message->flow == WEFT_FLOW_GRADIENT)];
}

/* A RECEIVE occupies its lane. */
static weft_activity *begin_receive(weft_simulation *sim, int stage, uint32_t index, bool buffered)
{
    weft_activity *a = receive_of(sim, stage);
    *a = (weft_activity){.running = true,
                         .buffered = buffered,
                         .heap_at = -1,
                         .step = {.stage = stage, .peer = -1, .task = index},
                         .start_us = sim->now_us,
                         .rate = 1,
                         .next_point = sim->points[stage].count};
    return a;
}

static void end_receive(weft_simulation *sim, weft_activity *a)
{
    a->end_us = sim->now_us;
    simulation_add(sim, (int)(a - sim->lanes));
}

/* Starts the RECEIVE of a buffered message that has left; it ends when the message arrives. */
static void start_receive(weft_simulation *sim, int stage)
{
    uint32_t index;
    if (!sim->pricing->buffered || receive_of(sim, stage)->running ||
        !weft_walk_ready(&sim->walk, stage, WEFT_LANE_RECEIVE, &index))
        return;
    inbox *box = inbox_of(sim, stage, &sim->programs[stage].tasks[index]);
    if (box->taken == box->sent)
        return;
    weft_activity *a = begin_receive(sim, stage, index, true);
    if (++box->taken <= box->arrived)
        end_receive(sim, a);
}

/* A buffered message has arrived; ends the RECEIVE that waits for it. */
static void arrive(weft_simulation *sim, int stage, const weft_task *send)
{
    weft_activity *a = receive_of(sim, stage);
    inbox *box = inbox_of(sim, stage, send);
    box->arrived++;
    if (a->running && a->buffered && a->heap_at < 0 &&
        inbox_of(sim, stage, &sim->programs[stage].tasks[a->step.task]) == box)
        end_receive(sim, a);
}

/* Finds a buffered message's SEND at the head of a lane. */
static bool find_buffered(weft_simulation *sim, int stage, int lane, weft_walk_step *out)
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

static void start_lane(weft_simulation *sim, int stage, int lane)
{
    const weft_pricing *pricing = sim->pricing;
    weft_activity *a = &sim->lanes[stage * WEFT_NUM_LANES + lane];
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
    double us = pricing->cost(pricing->context, stage, task);
    if (pricing->inside)
        us += pricing->inside(pricing->context, stage, task, sim->now_us);
    *a = (weft_activity){.running = true,
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
    begin_points(sim, a);
    if (next_point(sim, a))
        a->end_us = sim->now_us + us * next_share(sim, a);
    simulation_add(sim, stage * WEFT_NUM_LANES + lane);
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

/* Starts the waiting stages of a meeting to which all have come. */
static void start_meetings(weft_simulation *sim)
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

/* Starts what this stage's progress allows: its lanes, stages that met it, its senders. */
static void start_stage(weft_simulation *sim, int stage)
{
    const weft_walk_stage *of = &sim->walk.stages[stage];
    for (int i = 0; i < of->num_lanes; i++)
        start_lane(sim, stage, of->lanes[i]);
    start_receive(sim, stage);
    start_meetings(sim);
    const weft_program *program = &sim->programs[stage];
    const uint32_t receive = of->head[WEFT_LANE_RECEIVE];
    const int peer = receive < program->num_tasks ? program->tasks[receive].peer : -1;
    if (peer >= 0 && peer < sim->num_stages)
        start_lane(sim, peer, WEFT_LANE_SEND);
}

static weft_status note(weft_simulation *sim, int stage, uint32_t index, const weft_activity *done)
{
    sim->price->spans[stage][index] = (weft_span){done->start_us, done->end_us};
    if (!sim->pricing->trace)
        return WEFT_OK;
    weft_slice slice;
    weft_slice_of_task(&sim->programs[stage].tasks[index], stage, sim->num_stages,
                       sim->programs[stage].is_v, &slice);
    slice.rank = stage;
    slice.start_us = done->start_us;
    slice.end_us = done->end_us;
    WEFT_TRY(weft_trace_add(sim->pricing->trace, &slice));
    return WEFT_OK;
}

/* Passes a point: tasks that wait for it may start, and the activity goes on to its next point or
 * end. */
static void pass_point(weft_simulation *sim, weft_activity *a, int number)
{
    const double share = next_share(sim, a);
    weft_walk_pass(&sim->walk, a->step.stage, next_point(sim, a)->wait);
    a->next_point++;
    a->end_us = sim->now_us + a->cost_us * fmax(0, next_share(sim, a) - share) / a->rate;
    simulation_add(sim, number);
    start_stage(sim, a->step.stage);
}

static weft_status finish_first(weft_simulation *sim)
{
    const int number = simulation_take_first(sim);
    weft_activity *done = &sim->lanes[number];
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
    price->end_us = fmax(price->end_us, done->end_us);
    if (!(sim->pricing->runs_on >> task->lane & 1))
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

/* --- the whole ----------------------------------------------------------------------------- */

/* A task that takes no time never runs beside anything. */
static weft_status simulate(weft_simulation *sim)
{
    for (int stage = 0; stage < sim->num_stages; stage++)
        start_stage(sim, stage);
    while (sim->heap_size > 0) {
        if (sim->lanes[sim->heap[0]].end_us > sim->now_us)
            simulation_set_speeds(sim);
        sim->now_us = sim->lanes[sim->heap[0]].end_us;
        WEFT_TRY(finish_first(sim));
    }
    WEFT_TRY(weft_walk_finish(&sim->walk));
    return WEFT_OK;
}

static int compare_tasks(const void *a, const void *b)
{
    const weft_point *x = a, *y = b;
    return (x->task > y->task) - (x->task < y->task);
}

static weft_status list_points(const weft_program *program, weft_arena *scratch, stage_points *out)
{
    uint32_t room = 0;
    for (uint32_t i = 0; i < program->num_waits; i++)
        room += program->waits[i].point != -1;
    WEFT_TRY(WEFT_ARRAY(scratch, room, &out->points));
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        for (uint32_t w = task->first_wait; w < task->first_wait + task->num_waits; w++)
            if (program->waits[w].point != -1)
                out->points[out->count++] = (weft_point){program->waits[w].task, w, task, 1};
    }
    if (out->count > 0)
        qsort(out->points, out->count, sizeof *out->points, compare_tasks);
    return WEFT_OK;
}

static weft_status start(weft_simulation *sim, weft_arena *scratch, weft_arena *arena)
{
    const size_t stages = (size_t)sim->num_stages, lanes = stages * WEFT_NUM_LANES;
    weft_price *price = sim->price;
    *price = (weft_price){.makespan_us = 0};
    WEFT_TRY(WEFT_ARRAY(scratch, lanes, &sim->lanes));
    WEFT_TRY(WEFT_ARRAY(scratch, lanes, &sim->heap));
    WEFT_TRY(WEFT_ARRAY(scratch, stages * WEFT_NUM_INBOXES, &sim->inboxes));
    WEFT_TRY(WEFT_ARRAY(scratch, stages, &sim->points));
    WEFT_TRY(WEFT_ARRAY(scratch, stages, &sim->touched));
    WEFT_TRY(WEFT_ARRAY(scratch, stages, &sim->is_touched));
    WEFT_TRY(WEFT_ARRAY(arena, stages, &price->busy_us));
    WEFT_TRY(WEFT_ARRAY(arena, stages, &price->spans));
    for (int stage = 0; stage < sim->num_stages; stage++) {
        for (int i = 0; i < WEFT_NUM_INBOXES; i++)
            sim->inboxes[stage * WEFT_NUM_INBOXES + i].arriving = -1;
        if (sim->pricing->point)
            WEFT_TRY(list_points(&sim->programs[stage], scratch, &sim->points[stage]));
        WEFT_TRY(WEFT_ARRAY(arena, sim->programs[stage].num_tasks, &price->spans[stage]));
    }
    if (sim->pricing->trace) {
        weft_trace_name_lanes(sim->pricing->trace, weft_lane_kind_texts(), WEFT_NUM_LANES);
        weft_slices_explain(sim->pricing->trace);
    }
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
    weft_simulation sim = {
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

weft_status weft_program_us(const weft_program *program, const weft_pricing *pricing,
                            double *out_us)
{
    weft_arena arena = {0};
    weft_price price = {.makespan_us = 0};
    const weft_status status = weft_program_price(program, 1, pricing, &arena, &price);
    weft_arena_release(&arena);
    *out_us = price.makespan_us;
    return status;
}

/* --- in order ------------------------------------------------------------------------------ */

void weft_program_in_order(const weft_program *program, weft_task_end end, void *context,
                           weft_lanes *lanes, double *ends_us)
{
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        double start_us = fmax(lanes->us[task->lane], lanes->host_us);
        for (uint32_t w = 0; w < task->num_waits; w++)
            if (program->waits[task->first_wait + w].task != WEFT_STEP_BEFORE)
                start_us = fmax(start_us, ends_us[program->waits[task->first_wait + w].task]);
        ends_us[i] = lanes->us[task->lane] = end(context, task, start_us);
        if ((task->flags & WEFT_TASK_HOST_WAITS) && !lanes->host_goes_on)
            lanes->host_us = fmax(lanes->host_us, ends_us[i]);
    }
}

/* --- idle time ---------------------------------------------------------------------------------
 */

static double overlap(double start, double end, const weft_span *span)
{
    return fmax(0, fmin(end, span->end_us) - fmax(start, span->start_us));
}

/* Of the tasks that `index` waits for, the one that ended last; num_tasks: none. */
static uint32_t last_awaited(const weft_program *program, const weft_span *spans, uint32_t index)
{
    const weft_task *task = &program->tasks[index];
    uint32_t last = program->num_tasks;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const uint32_t earlier = program->waits[task->first_wait + w].task;
        if (earlier == WEFT_STEP_BEFORE)
            continue;
        if (last == program->num_tasks || spans[earlier].end_us > spans[last].end_us)
            last = earlier;
    }
    return last;
}

static bool is_reduction(int lane)
{
    return lane == WEFT_LANE_REDUCE || lane == WEFT_LANE_GATHER;
}

/* The host's work on experts, reads and writes of the file included, in a gap whose next task waits
 * for it or that is the last gap. A task that waits for an upload waits for all of the host's step:
 * gradients down, steps, weights up. */
static double host_in_gap(const weft_program *program, const weft_span *spans, uint32_t awaited,
                          double start, double end)
{
    double us = 0;
    if (awaited < program->num_tasks && program->tasks[awaited].kind == WEFT_TASK_UPLOAD)
        return end - start;
    if (awaited < program->num_tasks && program->tasks[awaited].lane != WEFT_LANE_HOST)
        return 0;
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].lane == WEFT_LANE_HOST || program->tasks[i].lane == WEFT_LANE_FILE)
            us += overlap(start, end, &spans[i]);
    return fmin(us, end - start);
}

/* Adds a gap before task `index` (num_tasks: after the last) in which no task computes, by its
 * cause. *reduced: where the search in the reductions' lanes goes on; times rise. */
static void add_gap(const weft_program *program, const weft_span *spans, uint32_t index,
                    double start, double end, uint32_t *reduced, weft_idle *idle)
{
    double message = 0, reduce = 0;
    const uint32_t awaited =
        index < program->num_tasks ? last_awaited(program, spans, index) : program->num_tasks;
    if (awaited < program->num_tasks && program->tasks[awaited].kind == WEFT_TASK_RECEIVE)
        message = overlap(start, end, &spans[awaited]);
    while (*reduced < program->num_tasks &&
           (!is_reduction(program->tasks[*reduced].lane) || spans[*reduced].end_us <= start))
        ++*reduced;
    for (uint32_t r = *reduced; r < program->num_tasks; r++) {
        if (!is_reduction(program->tasks[r].lane))
            continue;
        if (spans[r].start_us >= end)
            break;
        reduce += overlap(start, end, &spans[r]);
    }
    const double host = host_in_gap(program, spans, awaited, start, end);
    if (awaited < program->num_tasks && !is_reduction(program->tasks[awaited].lane))
        reduce = 0; /* it was under way, but not waited for */
    idle->message_us += message;
    idle->host_us += host;
    idle->reduce_us += fmin(reduce, end - start - message - host);
    idle->bubble_us += fmax(0, end - start - message - host - reduce);
}

weft_idle weft_price_idle(const weft_program *program, const weft_price *price, int stage)
{
    const weft_span *spans = price->spans[stage];
    weft_idle idle = {0};
    double at = 0;
    uint32_t reduced = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        if (program->tasks[i].lane != WEFT_LANE_COMPUTE)
            continue;
        if (spans[i].start_us > at)
            add_gap(program, spans, i, at, spans[i].start_us, &reduced, &idle);
        at = fmax(at, spans[i].end_us);
    }
    if (price->makespan_us > at)
        add_gap(program, spans, program->num_tasks, at, price->makespan_us, &reduced, &idle);
    return idle;
}
