/* The activity that ends next, and the speeds of concurrent ones. */
#include "schedule/price/simulation.h"

#include <math.h>

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

void weft_simulation_add(weft_simulation *sim, int lane)
{
    heap_put(sim, sim->heap_size++, lane);
    settle(sim, lane);
}

int weft_simulation_take_first(weft_simulation *sim)
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
    company out = {{false}, {{0}}};
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        add_company(&sim->lanes[stage * WEFT_NUM_LANES + lane], lane, false, &out);
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

static void set_speed(weft_simulation *sim, int number)
{
    weft_activity *a = &sim->lanes[number];
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
    settle(sim, number);
}

void weft_simulation_set_speeds(weft_simulation *sim)
{
    const bool any = sim->pricing->interference || sim->pricing->links;
    while (sim->num_touched > 0) {
        const int stage = sim->touched[--sim->num_touched];
        sim->is_touched[stage] = false;
        for (int lane = 0; any && lane < WEFT_NUM_LANES; lane++)
            set_speed(sim, stage * WEFT_NUM_LANES + lane);
        for (int i = 0; any && i < WEFT_NUM_INBOXES; i++)
            if (sim->inboxes[stage * WEFT_NUM_INBOXES + i].arriving >= 0)
                set_speed(sim, sim->inboxes[stage * WEFT_NUM_INBOXES + i].arriving);
    }
}
