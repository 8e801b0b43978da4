#include "launcher/planning/against.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/pass/note.h"
#include "schedule/price/price.h"

/* What a slice inside a pass says of its compute lane. */
typedef enum part {
    PART_NONE,
    PART_TRAVELS, /* experts' rows */
    PART_WORKS,
    PART_EXPERTS, /* beyond device memory: all of a layer, one of them */
    PART_EXPERT,
    PART_SUMS,     /* of tensor-parallel ranks, and gathers */
    PART_PRODUCTS, /* beside them */
    PART_SHIFTS,   /* of context-parallel ranks: what they send, and what they compute */
    PART_ATTENDS,
    PART_PASS, /* the pass itself, its layers, and what it shares out, moved by other lanes */
    PART_LAYERS,
    PART_SHARES,
    NUM_PARTS
} part;

/* A slice of a pass begins or ends. */
typedef struct edge {
    double at_us;
    part part;
    int step; /* 1, -1 */
} edge;

typedef struct timeline {
    weft_span *spans; /* of the tasks of the rank's program; NULL: not traced */
    uint32_t num_spans,
        next[WEFT_NUM_LANES]; /* next: the task that a lane's next slice may be of */
    edge *edges;
    size_t num_edges, num_slices;
    double shared_us; /* the end of the last reduction that a pass started */
} timeline;

typedef struct reading {
    const weft_plan *plan;
    timeline *ranks; /* [world] */
    double first_us, last_us;
    double beside_us; /* the end of what runs on beside the next step */
} reading;

static int stage_of(const reading *r, int rank)
{
    return weft_mesh_coords(&r->plan->mesh, rank).at[WEFT_AXIS_PP];
}

static const weft_program *program_of(const reading *r, int rank)
{
    return &r->plan->step.programs[stage_of(r, rank)];
}

/* --- slices to spans and edges ------------------------------------------------------------- */

static bool is_offloaded(const reading *r)
{
    return r->plan->step.outline.shape.experts_on_host;
}

static part part_of(const reading *r, const weft_slice *slice)
{
    static const struct {
        const char *category;
        part part;
    } rows[] = {{"counts", PART_TRAVELS},   {"dispatch", PART_TRAVELS}, {"combine", PART_TRAVELS},
                {"gather", PART_TRAVELS},   {"place", PART_TRAVELS},    {"offload", PART_TRAVELS},
                {"prefetch", PART_TRAVELS}, {"permute", PART_WORKS},    {"expert", PART_WORKS},
                {"recompute", PART_WORKS},  {"tensor", PART_SUMS},      {"product", PART_PRODUCTS}};
    static const char *const sent[] = {"shift", "dispatch", "combine", "gather", "reduce"};
    const size_t length = strcspn(slice->category, " "); /* "dispatch back" */
    if (slice->lane == WEFT_TRACK_EXPERTS)
        return PART_EXPERT;
    if (slice->lane > WEFT_TRACK_EXPERTS && slice->lane < WEFT_NUM_TRACKS)
        return PART_NONE; /* what goes up and down beside them */
    if (slice->lane == WEFT_TRACK_PARTS && is_offloaded(r) &&
        strncmp(slice->category, "expert", length) == 0)
        return PART_EXPERTS;
    if (slice->lane == WEFT_TRACK_LAYERS)
        return PART_LAYERS;
    if (slice->lane == WEFT_TRACK_TENSOR)
        return PART_SUMS;
    if (slice->lane == WEFT_LANE_GATHER || slice->lane == WEFT_LANE_REDUCE)
        return PART_SHARES;
    if ((slice->lane == WEFT_LANE_OFFLOAD || slice->lane == WEFT_LANE_PREFETCH) &&
        strncmp(slice->name + 1, weft_flow_letters(WEFT_FLOW_STASH), 1) == 0)
        return PART_NONE; /* a layer's own copies are of its rows */
    if (slice->lane >= WEFT_TRACK_CONTEXT && slice->lane <= WEFT_TRACK_KEYS_GRADIENTS) {
        for (size_t i = 0; i < sizeof sent / sizeof *sent; i++)
            if (strlen(sent[i]) == length && strncmp(sent[i], slice->category, length) == 0)
                return PART_SHIFTS;
        return PART_ATTENDS;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strlen(rows[i].category) == length &&
            strncmp(rows[i].category, slice->category, length) == 0)
            return rows[i].part;
    return PART_NONE;
}

static bool is_slice_of(const weft_slice *slice, const weft_task *task, int stage, int num_stages,
                        bool is_v)
{
    weft_slice expected;
    weft_slice_of_task(task, stage, num_stages, is_v, &expected);
    return slice->lane == expected.lane && strcmp(slice->name, expected.name) == 0 &&
           strcmp(slice->category, expected.category) == 0;
}

/* The task that the slice is of: the next on its lane, since lanes are FIFOs; num_tasks: it is of a
 * pass. */
static uint32_t find_task(const reading *r, const weft_slice *slice)
{
    const weft_program *program = program_of(r, slice->rank);
    if (slice->lane >= WEFT_NUM_LANES)
        return program->num_tasks;
    uint32_t next = r->ranks[slice->rank].next[slice->lane];
    while (next < program->num_tasks && program->tasks[next].lane != slice->lane)
        next++;
    return next < program->num_tasks &&
                   is_slice_of(slice, &program->tasks[next], stage_of(r, slice->rank),
                               r->plan->num_stages, program->is_v)
               ? next
               : program->num_tasks;
}

static bool is_pass(const weft_task *task)
{
    return task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD ||
           task->kind == WEFT_TASK_RECOMPUTE;
}

/* What the host steps beside the next step is not of this one's time. */
static bool runs_on(const reading *r, int lane)
{
    return is_offloaded(r) && r->plan->step.outline.tier.optimizer == WEFT_TIER_STEP_AUTO &&
           WEFT_STEP_RUNS_ON >> lane & 1;
}

static void add_slice(reading *r, const weft_slice *slice)
{
    timeline *t = &r->ranks[slice->rank];
    const weft_program *program = program_of(r, slice->rank);
    const uint32_t task = find_task(r, slice);
    const part says = task == program->num_tasks       ? part_of(r, slice)
                      : is_pass(&program->tasks[task]) ? PART_PASS
                                                       : PART_NONE;
    if (task < program->num_tasks) {
        t->spans[task] = (weft_span){slice->start_us, slice->end_us};
        t->next[slice->lane] = task + 1;
        t->num_spans++;
        r->first_us = fmin(r->first_us, slice->start_us);
        double *end_us = runs_on(r, slice->lane) ? &r->beside_us : &r->last_us;
        *end_us = fmax(*end_us, slice->end_us);
    }
    if (says == PART_SHARES && slice->lane == WEFT_LANE_REDUCE)
        t->shared_us = fmax(t->shared_us, slice->end_us);
    if (says != PART_NONE) {
        t->edges[t->num_edges++] = (edge){slice->start_us, says, 1};
        t->edges[t->num_edges++] = (edge){slice->end_us, says, -1};
    }
}

static weft_status read_slices(reading *r, const weft_slice *slices, size_t count,
                               weft_arena *arena)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)r->plan->mesh.world, &r->ranks));
    for (size_t i = 0; i < count; i++)
        r->ranks[slices[i].rank].num_slices++;
    for (int rank = 0; rank < r->plan->mesh.world; rank++) {
        timeline *t = &r->ranks[rank];
        if (t->num_slices == 0)
            continue;
        WEFT_TRY(WEFT_ARRAY(arena, program_of(r, rank)->num_tasks, &t->spans));
        WEFT_TRY(WEFT_ARRAY(arena, 2 * t->num_slices, &t->edges));
    }
    for (size_t i = 0; i < count; i++)
        add_slice(r, &slices[i]);
    for (int rank = 0; rank < r->plan->mesh.world; rank++) {
        const timeline *t = &r->ranks[rank];
        if (t->spans && t->num_spans < program_of(r, rank)->num_tasks)
            return WEFT_ERROR(WEFT_CONFIG, "rank %d's timeline has %u of its step's %u tasks", rank,
                              t->num_spans, program_of(r, rank)->num_tasks);
    }
    return WEFT_OK;
}

/* --- both ends, all ranks
 * ------------------------------------------------------------------------------ */

/* The span of message `number` of those that `rank` sends to a stage; NULL: not traced. */
static const weft_span *find_send(const reading *r, int rank, int stage, int number)
{
    const weft_program *program = program_of(r, rank);
    for (uint32_t i = 0; r->ranks[rank].spans && i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->kind == WEFT_TASK_SEND && task->peer == stage && number-- == 0)
            return &r->ranks[rank].spans[i];
    }
    return NULL;
}

/* A rank that receives may have waited for the other end. */
static void start_messages(const reading *r, int rank)
{
    const weft_mesh *mesh = &r->plan->mesh;
    const weft_program *program = program_of(r, rank);
    const weft_coords at = weft_mesh_coords(mesh, rank);
    const int stage = at.at[WEFT_AXIS_PP];
    for (int peer = 0; peer < mesh->pp; peer++) {
        const int sender = weft_mesh_rank(mesh, at.at[WEFT_AXIS_TP], at.at[WEFT_AXIS_CP],
                                          at.at[WEFT_AXIS_DP], peer);
        int number = 0;
        for (uint32_t i = 0; i < program->num_tasks; i++) {
            if (program->tasks[i].kind != WEFT_TASK_RECEIVE || program->tasks[i].peer != peer)
                continue;
            const weft_span *sent = find_send(r, sender, stage, number++);
            weft_span *span = &r->ranks[rank].spans[i];
            if (sent)
                span->start_us = fmin(fmax(span->start_us, sent->start_us), span->end_us);
        }
    }
}

/* What passes share out is reduced until the reduction without a bucket is over: where some of it
 * goes on behind the last pass, that one begins there. */
static void start_last_reduction(const reading *r, int rank)
{
    const weft_program *program = program_of(r, rank);
    const timeline *t = &r->ranks[rank];
    double passed_us = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (is_pass(task))
            passed_us = fmax(passed_us, t->spans[i].end_us);
        if (task->kind == WEFT_TASK_REDUCE && task->bucket < 0 && t->shared_us > passed_us)
            t->spans[i].start_us = fmin(t->spans[i].start_us, passed_us);
    }
}

/* The group of a task's collective; WEFT_AXIS_NONE: it has none. */
static weft_axis axis_of(const reading *r, int stage, const weft_task *task)
{
    if (task->kind == WEFT_TASK_SUM)
        return task->flow == WEFT_FLOW_TIED ? WEFT_AXIS_PP : WEFT_AXIS_TP;
    if ((task->kind != WEFT_TASK_REDUCE && task->kind != WEFT_TASK_GATHER) || task->bucket < 0)
        return WEFT_AXIS_NONE;
    const weft_buckets *buckets = &r->plan->step.shape.buckets[stage];
    return buckets->shapes[task->bucket].section == WEFT_SECTION_EXPERT ? WEFT_AXIS_EDP
                                                                        : WEFT_AXIS_DP_CP;
}

/* When a rank begins its task of this kind, flow and bucket; -INFINITY: it is not traced. */
static double begins(const reading *r, int rank, const weft_task *task)
{
    const weft_program *program = program_of(r, rank);
    for (uint32_t i = 0; r->ranks[rank].spans && i < program->num_tasks; i++) {
        const weft_task *other = &program->tasks[i];
        if (other->kind == task->kind && other->flow == task->flow && other->bucket == task->bucket)
            return r->ranks[rank].spans[i].start_us;
    }
    return -INFINITY;
}

/* A collective is under way once all of its ranks are there, the norm's included. */
static weft_status start_collectives(const reading *r, int rank, weft_arena *arena)
{
    const weft_mesh *mesh = &r->plan->mesh;
    const weft_program *program = program_of(r, rank);
    int *ranks = NULL;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)mesh->world, &ranks));
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const weft_axis axis = axis_of(r, stage_of(r, rank), task);
        weft_span *span = &r->ranks[rank].spans[i];
        int size = task->kind == WEFT_TASK_NORM ? mesh->world : 0;
        for (int k = 0; k < size; k++)
            ranks[k] = k;
        if (axis != WEFT_AXIS_NONE)
            size = weft_mesh_group(mesh, axis, rank, ranks, mesh->world);
        for (int k = 0; k < size; k++)
            span->start_us = fmax(span->start_us, begins(r, ranks[k], task));
        span->start_us = fmin(span->start_us, span->end_us);
    }
    return WEFT_OK;
}

/* --- sums ---------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return (x->at_us > y->at_us) - (x->at_us < y->at_us);
}

/* The time in which a layer's experts, one after the other, wait for their weights; in which rows
 * travel and no experts work, in which keys do and no queries are attended,
 * in which tensor-parallel ranks sum or gather beside no product, and in which a pass waits for
 * what it shares out. */
static void sum_edges(edge *edges, size_t count, double us_of[WEFT_NUM_TIMES])
{
    int open[NUM_PARTS] = {0};
    qsort(edges, count, sizeof *edges, by_time);
    for (size_t i = 0; i < count; i++) {
        const double us = i > 0 ? edges[i].at_us - edges[i - 1].at_us : 0;
        if (open[PART_EXPERTS] > 0)
            us_of[WEFT_TIME_UPLOAD] += open[PART_EXPERT] > 0 ? 0 : us;
        else if (open[PART_TRAVELS] > 0)
            us_of[WEFT_TIME_EXPERT] += open[PART_WORKS] > 0 ? 0 : us;
        else if (open[PART_SHIFTS] > 0)
            us_of[WEFT_TIME_CONTEXT] += open[PART_ATTENDS] > 0 ? 0 : us;
        else if (open[PART_SUMS] > 0)
            us_of[WEFT_TIME_TENSOR] += open[PART_PRODUCTS] > 0 ? 0 : us;
        else if (open[PART_PASS] > 0 && open[PART_LAYERS] == 0 && open[PART_SHARES] > 0)
            us_of[WEFT_TIME_DATA] += us;
        open[edges[i].part] += edges[i].step;
    }
}

static void add_rank(const reading *r, int rank, double step_us, weft_measured_time *out)
{
    const weft_program *program = program_of(r, rank);
    double us[WEFT_NUM_TIMES] = {0};
    weft_span *spans = r->ranks[rank].spans;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        spans[i].start_us -= r->first_us;
        spans[i].end_us -= r->first_us;
        if (task->lane == WEFT_LANE_COMPUTE)
            us[is_pass(task) ? WEFT_TIME_COMPUTE : WEFT_TIME_OPTIMIZER] +=
                spans[i].end_us - spans[i].start_us;
    }
    const weft_price price = {.makespan_us = r->last_us - r->first_us, .spans = &spans};
    const weft_idle idle = weft_price_idle(program, &price, 0);
    sum_edges(r->ranks[rank].edges, r->ranks[rank].num_edges, us);
    us[WEFT_TIME_COMPUTE] -= us[WEFT_TIME_EXPERT] + us[WEFT_TIME_CONTEXT] + us[WEFT_TIME_TENSOR] +
                             us[WEFT_TIME_DATA] + us[WEFT_TIME_UPLOAD];
    us[WEFT_TIME_PIPELINE] = idle.message_us;
    us[WEFT_TIME_DATA] += idle.reduce_us;
    us[WEFT_TIME_OPTIMIZER] += idle.host_us;
    us[WEFT_TIME_BUBBLE] = idle.bubble_us + fmax(0, step_us - price.makespan_us);
    for (int i = 0; i < WEFT_NUM_TIMES; i++) {
        out->planned_us[i] += r->plan->stages[stage_of(r, rank)].us[i] / out->num_ranks;
        out->measured_us[i] += us[i] / out->num_ranks;
    }
}

weft_status weft_measured_time_of(const weft_plan *plan, const weft_slice *slices, size_t count,
                                  double step_us, weft_arena *arena, weft_measured_time *out)
{
    reading r = {.plan = plan, .first_us = INFINITY, .last_us = -INFINITY, .beside_us = -INFINITY};
    *out = (weft_measured_time){0};
    WEFT_TRY(read_slices(&r, slices, count, arena));
    out->step_us = step_us -= fmax(0, r.beside_us - r.last_us);
    for (int rank = 0; rank < plan->mesh.world; rank++)
        if (r.ranks[rank].spans) {
            start_messages(&r, rank);
            WEFT_TRY(start_collectives(&r, rank, arena));
            start_last_reduction(&r, rank);
            out->num_ranks++;
        }
    for (int rank = 0; rank < plan->mesh.world; rank++)
        if (r.ranks[rank].spans)
            add_rank(&r, rank, step_us, out);
    return WEFT_OK;
}
