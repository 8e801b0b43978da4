#include "schedule/experts/steps.h"

#include <stdarg.h>
#include <stdio.h>

#include "schedule/body.h"
#include "schedule/past.h"
#include "schedule/text.h"
#include "schedule/values.h"

enum { NUM_STEPS = 2, NUM_RINGS = 3 };

/* One pass of a layer's experts in one step: indices of unrolled tasks, by position. */
typedef struct pass {
    uint32_t *uploads, *experts, *landings; /* UINT32_MAX: none; landings: of gradients */
    uint32_t *firsts;                       /* the first tasks that wait for the previous step */
    uint32_t before;                        /* the number of tasks when the pass began */
    uint32_t done;                          /* its last computation */
} pass;

/* A place of a ring: 1 + its last writer, and by lane 1 + the last reader since. */
typedef struct place {
    uint32_t writer, readers[WEFT_NUM_LANES];
} place;

typedef struct layer_state {
    pass *passes[NUM_STEPS][2]; /* forward, backward: by micro-batch */
    int last[NUM_STEPS];        /* micro-batch of the last backward */
    int num_backwards[NUM_STEPS];
    weft_past landed[NUM_STEPS]; /* over once any expert's gradient has landed */
} layer_state;

/* The unrolled tasks of an offloaded bucket, by step. */
typedef struct bucket_state {
    int layer;
    uint32_t waiter[NUM_STEPS]; /* the first to wait for the landing; UINT32_MAX: none */
    uint32_t last[NUM_STEPS];   /* the last task of its update */
    uint32_t read[NUM_STEPS];   /* the read of the file; UINT32_MAX: none */
} bucket_state;

typedef struct unrolling {
    const weft_experts_steps *of;
    weft_arena *scratch;
    weft_task *tasks;
    weft_past *pasts;
    uint32_t *layers_of; /* each task's layer; UINT32_MAX: a task of the step's program */
    uint32_t num_tasks, max_tasks, last[WEFT_NUM_LANES];
    int num_batches, now; /* now: the current step */
    layer_state *layers;
    bucket_state *buckets;
    place *rings[NUM_RINGS];
    uint32_t *ends; /* by the step's tasks: the end of the unrolled ones */
    uint32_t *at;   /* by the body's tasks: the unrolled one; UINT32_MAX: none */
} unrolling;

static const weft_slot_kind ring_kinds[NUM_RINGS] = {
    WEFT_SLOT_EXPERT_WEIGHTS, WEFT_SLOT_EXPERT_GRADIENTS, WEFT_SLOT_HOST_STAGING};

/* The lanes of experts' programs, under names that a step does not use. */
static int lane_of(int lane)
{
    return lane == WEFT_LANE_TO_DEVICE ? WEFT_LANE_PREFETCH
           : lane == WEFT_LANE_HOST    ? WEFT_LANE_PLACE
           : lane == WEFT_LANE_FILE    ? WEFT_LANE_OFFLOAD
                                       : lane;
}

static weft_status fail(const unrolling *u, uint32_t index, const char *format, ...)
    WEFT_PRINTF(3, 4) WEFT_CHECKED;

static weft_status fail(const unrolling *u, uint32_t index, const char *format, ...)
{
    char what[WEFT_ERROR_TEXT_BYTES / 2], text[WEFT_TASK_TEXT_BYTES], layer[32] = "";
    const weft_wait none = {0, -1};
    weft_task task = u->tasks[index];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    task.num_waits = 0;
    if (u->layers_of[index] != UINT32_MAX)
        snprintf(layer, sizeof layer, "layer %d, ", u->of->layers[u->layers_of[index]].layer);
    return WEFT_ERROR(
        WEFT_INTERNAL, "the %s of two steps, %s%s: %s", u->now ? "second" : "first", layer,
        weft_task_format(&(weft_program){.tasks = &task, .waits = &none}, 0, text, sizeof text),
        what);
}

/* Whether task `other` is over when task `index` starts; UINT32_MAX never is. */
static bool over(const unrolling *u, uint32_t index, uint32_t other)
{
    return other != UINT32_MAX && weft_past_has(&u->pasts[index], u->tasks, (weft_wait){other, -1});
}

static void wait_for(unrolling *u, uint32_t index, uint32_t other)
{
    weft_past_add_task(&u->pasts[index], &u->pasts[other], u->tasks[other].lane, other);
}

/* Appends a task, behind the last one of its lane. */
static uint32_t add(unrolling *u, const weft_task *task, int lane, uint32_t layer)
{
    const uint32_t index = u->num_tasks++;
    u->tasks[index] = *task;
    u->tasks[index].lane = (uint8_t)lane;
    u->layers_of[index] = layer;
    if (u->last[lane])
        wait_for(u, index, u->last[lane] - 1);
    u->last[lane] = index + 1;
    return index;
}

/* --- rings --------------------------------------------------------------------------------- */

/* The operand's place in a ring that layers share; NULL: it lies in no such ring. */
static place *place_of(const unrolling *u, const weft_experts_layer *l, const weft_program *program,
                       const weft_task *task, int32_t slot)
{
    const weft_slot_kind holds = (weft_slot_kind)program->slots[slot].holds;
    const int number = weft_experts_place(&l->shape, holds, task->expert);
    for (int r = 0; r < NUM_RINGS; r++)
        if (ring_kinds[r] == holds)
            return holds != WEFT_SLOT_EXPERT_WEIGHTS ? &u->rings[r][number]
                   : number >= l->shape.num_kept     ? &u->rings[r][number - l->shape.num_kept]
                                                     : NULL;
    return NULL;
}

/* before: the number of tasks when the program began; the executor orders these before its uses. */
static weft_status use_place(unrolling *u, uint32_t index, place *p, bool writes, uint32_t before)
{
    for (int lane = 0; lane < WEFT_NUM_LANES && writes; lane++) {
        if (p->readers[lane] && p->readers[lane] <= before)
            wait_for(u, index, p->readers[lane] - 1);
        if (p->readers[lane] && !over(u, index, p->readers[lane] - 1))
            return fail(u, index, "may overwrite a slot that is still read");
    }
    if (p->writer && p->writer <= before && writes)
        wait_for(u, index, p->writer - 1);
    if (p->writer && !over(u, index, p->writer - 1))
        return fail(u, index, "may use a slot before it is written");
    if (writes)
        *p = (place){.writer = index + 1};
    else
        p->readers[u->tasks[index].lane] = index + 1;
    return WEFT_OK;
}

/* --- a pass of a layer's experts ------------------------------------------------------------- */

static weft_status take_pass(unrolling *u, int num_positions, pass *out)
{
    uint32_t **const arrays[] = {&out->uploads, &out->experts, &out->landings, &out->firsts};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++) {
        WEFT_TRY(WEFT_ARRAY(u->scratch, (size_t)num_positions, arrays[a]));
        for (int q = 0; q < num_positions; q++)
            (*arrays[a])[q] = UINT32_MAX;
    }
    return WEFT_OK;
}

/* Whether the previous step has updated every expert that may stand at the position. */
static bool knows_step(const unrolling *u, uint32_t index, int layer, int batch, int position)
{
    const uint32_t first = u->layers[layer].passes[u->now][0][batch].firsts[position];
    if (first == index || (first != UINT32_MAX && over(u, index, first)))
        return true;
    for (int b = 0; b < u->of->buckets->count; b++)
        if (weft_bucket_is_offloaded(&u->of->buckets->shapes[b]) && u->buckets[b].layer == layer &&
            !over(u, index, u->buckets[b].last[u->now - 1]))
            return false;
    return true;
}

static weft_status check_expert_task(unrolling *u, uint32_t index, int layer, int batch,
                                     bool backward, bool lands)
{
    const weft_task *task = &u->tasks[index];
    const bool kept = task->expert < u->of->layers[layer].shape.num_kept;
    const bool reads = task->kind == WEFT_TASK_UPLOAD ||
                       (task->kind == WEFT_TASK_READ && task->flow == WEFT_FLOW_WEIGHT) ||
                       (task->kind == WEFT_TASK_EXPERT && kept);
    if (u->now > 0 && (reads || lands) && !knows_step(u, index, layer, batch, task->expert))
        return fail(u, index,
                    reads ? "may read weights older than its expert's step"
                          : "may overwrite a gradient that its expert's step still reads");
    if (lands && backward && u->layers[layer].num_backwards[u->now] > 1 &&
        !u->of->layers[layer].shape.accumulates)
        return fail(u, index, "overwrites the gradient of another micro-batch");
    return WEFT_OK;
}

static weft_status use_places(unrolling *u, uint32_t index, const weft_experts_layer *l,
                              const weft_program *body, const weft_task *task, uint32_t before)
{
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int writes = 0; writes < 2; writes++)
        for (int i = 0; i < operands->count; i++) {
            place *at = task->operands[i] >= 0 && operands->rows[i].writes == (bool)writes
                            ? place_of(u, l, body, task, task->operands[i])
                            : NULL;
            if (at)
                WEFT_TRY(use_place(u, index, at, writes, before));
        }
    return WEFT_OK;
}

/* The task `index` is that of an expert. */
static weft_status unroll_expert(unrolling *u, uint32_t index, int layer, int batch, bool backward,
                                 const weft_program *body, const weft_task *task)
{
    const weft_experts_layer *l = &u->of->layers[layer];
    pass *p = &u->layers[layer].passes[u->now][backward][batch];
    const int q = task->expert;
    const bool lands = task->kind == WEFT_TASK_ACCUMULATE ||
                       (task->kind == WEFT_TASK_DOWNLOAD && !l->shape.accumulates);
    if (weft_task_awaits_step(task, body->waits))
        p->firsts[q] = index;
    if (task->kind == WEFT_TASK_UPLOAD)
        p->uploads[q] = index;
    if (task->kind == WEFT_TASK_EXPERT)
        p->experts[q] = index;
    if (lands)
        p->landings[q] = index;
    WEFT_TRY(check_expert_task(u, index, layer, batch, backward, lands));
    return use_places(u, index, l, body, task, p->before);
}

/* The number of the layer with experts; -1: it has none. */
static int find_layer(const weft_experts_steps *of, int layer, int chunk)
{
    for (int l = 0; l < of->num_layers; l++)
        if (of->layers[l].layer == layer && of->layers[l].chunk == chunk)
            return l;
    return -1;
}

static weft_status unroll_part(unrolling *u, const weft_task *of, const weft_program *body,
                               uint32_t t)
{
    const weft_task *task = &body->tasks[t];
    const bool backward = of->kind == WEFT_TASK_BACKWARD,
               computes = task->lane == WEFT_LANE_COMPUTE;
    const int layer = find_layer(u->of, task->layer, of->chunk), batch = of->micro_batch;
    u->at[t] = UINT32_MAX;
    if (layer < 0 || (!computes && !weft_body_runs_on(task->lane)))
        return WEFT_OK;
    pass *p = &u->layers[layer].passes[u->now][backward][batch];
    if (!p->uploads) {
        WEFT_TRY(take_pass(u, u->of->layers[layer].shape.num_positions, p));
        p->before = u->num_tasks;
    }
    const uint32_t index = u->at[t] = add(u, task, lane_of(task->lane), (uint32_t)layer);
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const uint32_t other = body->waits[task->first_wait + w].task;
        if (other != WEFT_STEP_BEFORE && u->at[other] != UINT32_MAX)
            wait_for(u, index, u->at[other]);
    }
    p->done = computes ? index : p->done;
    return task->expert < 0 ? WEFT_OK : unroll_expert(u, index, layer, batch, backward, body, task);
}

/* Finds what is over behind the landing of every position. */
static weft_status find_landed(unrolling *u, int layer, int batch)
{
    const pass *p = &u->layers[layer].passes[u->now][1][batch];
    weft_past *common = &u->layers[layer].landed[u->now];
    for (int q = 0; q < u->of->layers[layer].shape.num_positions; q++) {
        weft_past mine = {0};
        if (p->landings[q] == UINT32_MAX)
            return fail(u, p->done, "no gradient of expert %d comes to the host", q);
        const uint32_t landing = p->landings[q], upload = p->uploads[q];
        weft_past_add_task(&mine, &u->pasts[landing], u->tasks[landing].lane, landing);
        if (upload != UINT32_MAX && !weft_past_has(&mine, u->tasks, (weft_wait){upload, -1}))
            return fail(u, landing, "may end before the expert's weights are read");
        for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
            if (q == 0 || mine.lanes[lane].upto < common->lanes[lane].upto)
                common->lanes[lane] = (struct weft_lane_past){.upto = mine.lanes[lane].upto};
    }
    return WEFT_OK;
}

static weft_status unroll_pass(unrolling *u, uint32_t i)
{
    const weft_task *task = &u->of->step->tasks[i];
    const bool backward = task->kind == WEFT_TASK_BACKWARD;
    const weft_experts_bodies *bodies = &u->of->bodies[task->chunk];
    const weft_program *body = backward ? bodies->backward : bodies->forward;
    for (uint32_t t = 0; t < body->num_tasks; t++)
        WEFT_TRY(unroll_part(u, task, body, t));
    for (int layer = u->of->num_layers; backward && layer-- > 0;) {
        if (u->of->layers[layer].chunk != task->chunk)
            continue;
        u->layers[layer].num_backwards[u->now]++;
        u->layers[layer].last[u->now] = task->micro_batch;
        WEFT_TRY(find_landed(u, layer, task->micro_batch));
    }
    return WEFT_OK;
}

/* --- the update ------------------------------------------------------------------------------ */

/* A backward's point stands for the experts of its layer and of the layers above. */
static void wait_for_layers(unrolling *u, uint32_t index, const weft_task *pass_task, int point)
{
    for (int l = 0; l < u->of->num_layers; l++)
        if (u->of->layers[l].chunk == pass_task->chunk && u->of->layers[l].layer >= point)
            wait_for(u, index, u->layers[l].passes[u->now][1][pass_task->micro_batch].done);
}

static weft_status wait_for_landing(unrolling *u, uint32_t index, int chunk)
{
    const weft_buckets *buckets = u->of->buckets;
    const int b = u->tasks[index].bucket;
    if (b >= buckets->count || !weft_bucket_is_offloaded(&buckets->shapes[b]) ||
        buckets->shapes[b].chunk != chunk)
        return fail(u, index, "waits for a gradient that does not come to the host");
    const weft_past *landed = &u->layers[u->buckets[b].layer].landed[u->now];
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (u->pasts[index].lanes[lane].upto < landed->lanes[lane].upto)
            u->pasts[index].lanes[lane].upto = landed->lanes[lane].upto;
    if (u->buckets[b].waiter[u->now] == UINT32_MAX)
        u->buckets[b].waiter[u->now] = index;
    return WEFT_OK;
}

static weft_status add_waits(unrolling *u, uint32_t index, const weft_task *task)
{
    const weft_program *step = u->of->step;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const weft_wait *wait = &step->waits[task->first_wait + w];
        if (wait->task == WEFT_STEP_BEFORE)
            continue;
        if (wait->point == -1)
            wait_for(u, index, u->ends[wait->task]);
        else if (wait->point >= 0)
            wait_for_layers(u, index, &step->tasks[wait->task], wait->point);
        else
            WEFT_TRY(wait_for_landing(u, index, step->tasks[wait->task].chunk));
    }
    return WEFT_OK;
}

/* Whether all micro-batches' gradients of the bucket have come to the host. */
static bool has_landed(const unrolling *u, uint32_t index, int b)
{
    const layer_state *l = &u->layers[u->buckets[b].layer];
    const uint32_t waiter = u->buckets[b].waiter[u->now];
    if (waiter == UINT32_MAX || (waiter != index && !over(u, index, waiter)))
        return false;
    for (int m = 0; m < u->num_batches; m++) {
        const pass *p = &l->passes[u->now][1][m];
        for (int q = 0; m != l->last[u->now] && p->landings &&
                        q < u->of->layers[u->buckets[b].layer].shape.num_positions;
             q++)
            if (!over(u, index, p->landings[q]))
                return false;
    }
    return true;
}

/* Whether all tasks of the layer's passes are over that compute with an expert's weights (computes)
 * or upload them, the last backward's uploads aside. */
static bool has_read(const unrolling *u, uint32_t index, int layer, bool computes)
{
    const layer_state *l = &u->layers[layer];
    for (int backward = 0; backward < 2; backward++)
        for (int m = 0; m < u->num_batches; m++) {
            const pass *p = &l->passes[u->now][backward][m];
            const bool own = backward && m == l->last[u->now] && !computes;
            const uint32_t *tasks = computes ? p->experts : p->uploads;
            for (int q = 0; !own && tasks && q < u->of->layers[layer].shape.num_positions; q++)
                if (tasks[q] != UINT32_MAX && !over(u, index, tasks[q]))
                    return false;
        }
    return true;
}

static weft_status check_update_task(unrolling *u, uint32_t index, const weft_task *task)
{
    const int b = task->bucket;
    bucket_state *bucket = &u->buckets[b];
    const bool after_step = weft_task_awaits_step(task, u->of->step->waits);
    const bool writes_gradient = task->kind == WEFT_TASK_REDUCE;
    const bool in_file = weft_bucket_is_in_file(&u->of->buckets->shapes[b]);
    if (writes_gradient || task->kind == WEFT_TASK_STEP || task->kind == WEFT_TASK_READ) {
        if (u->now > 0 && !after_step && !over(u, index, bucket->last[u->now - 1]))
            return fail(u, index, "may start before the update of the step before is over");
    }
    if (writes_gradient || task->kind == WEFT_TASK_NORM || task->kind == WEFT_TASK_STEP ||
        task->kind == WEFT_TASK_READ)
        if (!has_landed(u, index, b))
            return fail(u, index, "may start before the gradient has come to the host");
    if (in_file && task->kind != WEFT_TASK_WRITE && task->kind != WEFT_TASK_READ &&
        !over(u, index, bucket->read[u->now]))
        return fail(u, index, "may start before its record is read");
    if (task->kind == WEFT_TASK_READ)
        bucket->read[u->now] = index;
    if (task->kind == WEFT_TASK_STEP && !has_read(u, index, bucket->layer, false))
        return fail(u, index, "may change weights that an upload still reads");
    if (task->kind == WEFT_TASK_UPLOAD && !has_read(u, index, bucket->layer, true))
        return fail(u, index, "may change weights that are computed with");
    if ((task->kind == WEFT_TASK_UPLOAD || task->kind == WEFT_TASK_GATHER) &&
        !over(u, index, bucket->last[u->now]))
        return fail(u, index, "may start before the step is over");
    if (task->kind == WEFT_TASK_STEP || task->kind == WEFT_TASK_GATHER ||
        task->kind == WEFT_TASK_UPLOAD)
        bucket->last[u->now] = index;
    return WEFT_OK;
}

/* --- the whole ------------------------------------------------------------------------------- */

static weft_status unroll_step(unrolling *u)
{
    const weft_program *step = u->of->step;
    for (uint32_t i = 0; i < step->num_tasks; i++) {
        const weft_task *task = &step->tasks[i];
        const bool passes = task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD;
        uint32_t index = add(u, task, task->lane, UINT32_MAX);
        WEFT_TRY(add_waits(u, index, task));
        if (passes) {
            const weft_task end = weft_task_of(WEFT_TASK_LAYER, WEFT_FLOW_NONE);
            WEFT_TRY(unroll_pass(u, i));
            index = add(u, &end, task->lane, UINT32_MAX);
        }
        u->ends[i] = index;
        if (task->bucket >= 0 && task->bucket < u->of->buckets->count &&
            weft_bucket_is_offloaded(&u->of->buckets->shapes[task->bucket]))
            WEFT_TRY(check_update_task(u, index, task));
    }
    return WEFT_OK;
}

/* Orders all lanes of the second step behind the whole first step. */
static void drain(unrolling *u)
{
    const weft_task nothing = weft_task_of(WEFT_TASK_LAYER, WEFT_FLOW_NONE);
    const uint32_t first = u->num_tasks;
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        add(u, &nothing, lane, UINT32_MAX);
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++) {
        const uint32_t index = add(u, &nothing, lane, UINT32_MAX);
        for (uint32_t other = first; other < first + WEFT_NUM_LANES; other++)
            wait_for(u, index, other);
    }
}

static weft_status start_buckets(unrolling *u)
{
    const weft_buckets *buckets = u->of->buckets;
    int *numbers = NULL;
    WEFT_TRY(WEFT_ARRAY(u->scratch, (size_t)u->of->num_layers, &numbers));
    WEFT_TRY(WEFT_ARRAY(u->scratch, (size_t)buckets->count, &u->buckets));
    for (int b = 0; b < buckets->count; b++) {
        if (!weft_bucket_is_offloaded(&buckets->shapes[b]))
            continue;
        bucket_state *state = &u->buckets[b];
        state->layer = find_layer(u->of, buckets->shapes[b].layer, buckets->shapes[b].chunk);
        if (state->layer < 0)
            return WEFT_ERROR(WEFT_INTERNAL, "bucket %d is of layer %d, which has no experts", b,
                              buckets->shapes[b].layer);
        numbers[state->layer]++;
        for (int s = 0; s < NUM_STEPS; s++)
            state->waiter[s] = state->last[s] = state->read[s] = UINT32_MAX;
    }
    for (int l = 0; l < u->of->num_layers; l++)
        if (numbers[l] != u->of->layers[l].shape.num_positions)
            return WEFT_ERROR(WEFT_INTERNAL, "layer %d has %d experts, but %d buckets of them",
                              u->of->layers[l].layer, u->of->layers[l].shape.num_positions,
                              numbers[l]);
    return WEFT_OK;
}

static weft_status start(unrolling *u)
{
    const weft_experts_steps *of = u->of;
    size_t a_pass = 0, most = 1, longest = 1;
    for (uint32_t i = 0; i < of->step->num_tasks; i++)
        if (of->step->tasks[i].micro_batch >= u->num_batches)
            u->num_batches = of->step->tasks[i].micro_batch + 1;
    WEFT_TRY(WEFT_ARRAY(u->scratch, (size_t)of->num_layers, &u->layers));
    for (int l = 0; l < of->num_layers; l++) {
        const weft_experts_shape *s = &of->layers[l].shape;
        most = most > (size_t)s->num_slots ? most : (size_t)s->num_slots;
        most = most > (size_t)s->num_gradient_slots ? most : (size_t)s->num_gradient_slots;
        for (int k = 0; k < 2 * NUM_STEPS; k++)
            WEFT_TRY(
                WEFT_ARRAY(u->scratch, (size_t)u->num_batches, &u->layers[l].passes[k / 2][k % 2]));
    }
    for (int c = 0; c < of->num_chunks; c++) {
        const size_t forward = of->bodies[c].forward->num_tasks,
                     backward = of->bodies[c].backward->num_tasks;
        a_pass += forward + backward;
        longest = longest > forward ? longest : forward;
        longest = longest > backward ? longest : backward;
    }
    WEFT_TRY(WEFT_ARRAY(u->scratch, longest, &u->at));
    most = most > WEFT_EXPERTS_STAGING ? most : WEFT_EXPERTS_STAGING;
    for (int r = 0; r < NUM_RINGS; r++)
        WEFT_TRY(WEFT_ARRAY(u->scratch, most, &u->rings[r]));
    const size_t num = NUM_STEPS * (2 * (size_t)of->step->num_tasks + 2 * WEFT_NUM_LANES +
                                    (size_t)u->num_batches * a_pass);
    WEFT_TRY(WEFT_ARRAY(u->scratch, num, &u->tasks));
    WEFT_TRY(WEFT_ARRAY(u->scratch, num, &u->pasts));
    WEFT_TRY(WEFT_ARRAY(u->scratch, num, &u->layers_of));
    WEFT_TRY(WEFT_ARRAY(u->scratch, of->step->num_tasks, &u->ends));
    return start_buckets(u);
}

static weft_status check(unrolling *u)
{
    WEFT_TRY(start(u));
    for (u->now = 0; u->now < NUM_STEPS; u->now++) {
        WEFT_TRY(unroll_step(u));
        if (u->of->drains)
            drain(u);
    }
    return WEFT_OK;
}

weft_status weft_program_experts_check_steps(const weft_experts_steps *steps)
{
    weft_arena scratch = {0};
    unrolling u = {.of = steps, .scratch = &scratch};
    const weft_status status = check(&u);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
