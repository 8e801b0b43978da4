#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "core/device/device.h"
#include "kernels/host.h"
#include "kernels/note/note.h"
#include "layers/tier/internal.h"

/* --- the clock ----------------------------------------------------------------------------- */

/* How long compute waits for experts beyond device memory, and which part is
 * due to the host's steps, by clocks on the lanes' threads and so on the CPU alone.
 *
 * The uploads' lane is late by its waits for steps, less what it would have waited for a slot
 * anyway. A wait of compute for an upload is due to steps as far as the upload is later than
 * compute already is. All waits for kept experts are due to steps, since only a step makes them
 * come up again. */
typedef enum weft_tier_moment {
    WEFT_TIER_BEGIN,     /* on the compute lane: a program begins; */
    WEFT_TIER_HAS,       /* compute has the weights; */
    WEFT_TIER_FREES,     /* compute is done with them */
    WEFT_TIER_ASKS,      /* on the uploads' lane: before its wait for the slot; */
    WEFT_TIER_GETS,      /* before its wait for the step; */
    WEFT_TIER_STEPPED,   /* behind that */
    WEFT_TIER_REFRESHES, /* on the lane that updates a kept expert */
} weft_tier_moment;

typedef struct reading {
    weft_tier_clock *clock;
    weft_tier_stamp *stamp;
} reading;

static weft_status begin(const void *raw)
{
    const reading *r = raw;
    r->clock->since_us = weft_now_us();
    return WEFT_OK;
}

static weft_status has(const void *raw)
{
    const reading *r = raw;
    const double waited = weft_now_us() - r->clock->since_us;
    r->clock->waited_us += waited;
    r->clock->delayed_us += fmin(waited, fmax(0, r->stamp->late_us - r->clock->delayed_us));
    r->stamp->late_us = 0;
    return WEFT_OK;
}

static weft_status frees(const void *raw)
{
    const reading *r = raw;
    r->clock->since_us = weft_now_us();
    r->stamp->freed_us = r->clock->since_us;
    r->stamp->freed_delay_us = r->clock->delayed_us;
    return WEFT_OK;
}

static weft_status asks(const void *raw)
{
    const reading *r = raw;
    r->clock->asked_us = weft_now_us();
    return WEFT_OK;
}

/* Without steps the lane would have come earlier by late_us, the slot by freed_delay_us. */
static weft_status gets(const void *raw)
{
    const reading *r = raw;
    const double free_for = fmax(0, r->clock->asked_us - r->stamp->freed_us);
    r->clock->late_us = fmin(r->clock->late_us, r->stamp->freed_delay_us + free_for);
    r->clock->asked_us = weft_now_us();
    return WEFT_OK;
}

static weft_status stepped(const void *raw)
{
    const reading *r = raw;
    r->clock->late_us += weft_now_us() - r->clock->asked_us;
    r->stamp->late_us = r->clock->late_us;
    return WEFT_OK;
}

static weft_status refreshes(const void *raw)
{
    const reading *r = raw;
    r->stamp->late_us = INFINITY;
    return WEFT_OK;
}

/* Reads the clock at that moment of the lane. stamp: NULL for BEGIN and ASKS. */
static weft_status tier_clock_read(weft_tier_clock *clock, weft_tier_stamp *stamp,
                                   weft_tier_moment moment, weft_lane *lane)
{
    static const weft_lane_function read_at[] = {
        [WEFT_TIER_BEGIN] = begin,         [WEFT_TIER_HAS] = has,   [WEFT_TIER_FREES] = frees,
        [WEFT_TIER_ASKS] = asks,           [WEFT_TIER_GETS] = gets, [WEFT_TIER_STEPPED] = stepped,
        [WEFT_TIER_REFRESHES] = refreshes,
    };
    const reading r = {clock, stamp};
    return clock->runs ? weft_lane_submit(lane, "clock", read_at[moment], &r, sizeof r) : WEFT_OK;
}

/* --- tasks --------------------------------------------------------------------------------- */

enum { NUM_GRADIENTS = WEFT_TIER_GRADIENTS, NUM_STAGING = WEFT_EXPERTS_STAGING };

/* What a task serves. */
typedef struct work {
    weft_tier_run *tier;
    const weft_tier_layer *layer;
    const weft_tier_call *call;
} work;

/* Begin and end the work on an expert's record in a file; end: the work is enqueued. */
static weft_status take_record(const weft_tier_run *t, int bucket, unsigned reads, unsigned changes,
                               weft_lane *lane)
{
    return weft_parameters_take(t->setup.parameters, WEFT_SECTION_EXPERT, bucket, reads, changes,
                                lane);
}

static weft_status give_record(const weft_tier_run *t, int bucket, weft_lane *lane)
{
    return weft_parameters_give(t->setup.parameters, WEFT_SECTION_EXPERT, bucket, lane);
}

static int expert_at(const work *w, const weft_task *task)
{
    return w->call->positions[task->expert];
}

static bool has_rows(const work *w, const weft_task *task)
{
    const int64_t *offsets = w->call->offsets + expert_at(w, task);
    return offsets[1] > offsets[0];
}

static int bucket_at(const work *w, const weft_task *task)
{
    return weft_tier_bucket(w->tier, w->layer, expert_at(w, task));
}

static weft_tier_place *place_at(const work *w, const weft_task *task)
{
    const int kept = w->layer->num_kept;
    return task->expert < kept ? &w->layer->kept[task->expert]
                               : &w->tier->slots[(task->expert - kept) % w->tier->num_slots];
}

static bool is_up(const weft_tier_run *t, const weft_tier_place *at, int bucket)
{
    return at->bucket == bucket && at->version == t->experts[bucket].version;
}

weft_status weft_tier_upload(weft_tier_run *t, weft_tier_place *to, int bucket, weft_lane *lane)
{
    const int own = weft_tier_home(t, bucket).bucket; /* equally large */
    weft_tier_expert *e = &t->experts[bucket];
    if (is_up(t, to, bucket)) {
        t->counts.num_held++;
        return WEFT_OK;
    }
    if (!to->is_kept)
        WEFT_TRY(tier_clock_read(&t->clock, NULL, WEFT_TIER_ASKS, lane));
    WEFT_TRY(weft_lane_wait(lane, to->used));
    if (!to->is_kept)
        WEFT_TRY(tier_clock_read(&t->clock, &to->stamp, WEFT_TIER_GETS, lane));
    WEFT_TRY(weft_tier_wait_step(t, bucket, lane));
    WEFT_TRY(tier_clock_read(&t->clock, &to->stamp,
                             to->is_kept ? WEFT_TIER_REFRESHES : WEFT_TIER_STEPPED, lane));
    WEFT_TRY(take_record(t, bucket, WEFT_RECORD_W, 0, lane));
    WEFT_TRY(weft_lane_copy(lane, to->memory, weft_tier_host_weights(t, bucket),
                            weft_tier_weight_bytes(t, own)));
    WEFT_TRY(give_record(t, bucket, lane));
    to->bucket = bucket;
    to->version = e->version;
    t->counts.num_uploads++;
    t->counts.uploaded_bytes += weft_tier_weight_bytes(t, own);
    return weft_lane_record(lane, to->filled);
}

/* Notes the record's next use behind this task. Kept positions have no uploads, and positions
 * without rows no uses. */
static void expect(const work *w, const weft_task *task)
{
    weft_tier_uses *uses = &w->tier->uses;
    const int last = w->layer->num_experts - 1, bucket = bucket_at(w, task);
    const int order = w->call->backward ? last - task->expert : task->expert;
    const bool whole = w->tier->options.order == WEFT_EXPERT_ORDER_LAYER;
    if (task->flow == WEFT_FLOW_WEIGHT && w->call->backward)
        weft_tier_uses_again(uses, bucket, whole ? last + 1 + order : 2 * order + 1);
    else
        weft_tier_uses_later(uses, bucket, 2 * order, 2 * (last - order));
}

/* Notes the uses of a visit, before it starts. */
static void expect_all(const work *w)
{
    weft_tier_uses *uses = &w->tier->uses;
    const weft_tier_layer *l = w->layer;
    const bool backward = w->call->backward;
    const bool whole = w->tier->options.order == WEFT_EXPERT_ORDER_LAYER;
    weft_tier_uses_visit(uses, (int)(l - w->tier->layers), backward);
    for (int p = 0; p < l->num_experts; p++) {
        const int e = w->call->positions[p];
        const int order = backward ? l->num_experts - 1 - p : p;
        const bool kept = p < l->num_kept && !backward;
        if (w->call->offsets[e + 1] > w->call->offsets[e] && !kept)
            weft_tier_uses_again(uses, l->first_bucket + e, whole ? order : 2 * order);
        else
            weft_tier_uses_later(uses, l->first_bucket + e, 2 * l->num_experts, 2 * l->num_experts);
    }
}

/* Gets the position's record, if needed: weights that are not on the device, or a place for a
 * gradient. */
static bool is_in_file(const work *w, const weft_task *task)
{
    return has_rows(w, task) && !(task->flow == WEFT_FLOW_WEIGHT &&
                                  is_up(w->tier, place_at(w, task), bucket_at(w, task)));
}

static weft_status run_write(const work *w, const weft_task *task, weft_lane *lane)
{
    (void)lane; /* records have a lane of their own */
    if (!is_in_file(w, task))
        return WEFT_OK;
    expect(w, task);
    return weft_records_make_room(weft_tier_records(w->tier), bucket_at(w, task));
}

static weft_status run_read(const work *w, const weft_task *task, weft_lane *lane)
{
    const int bucket = bucket_at(w, task);
    const weft_tier_expert *e = &w->tier->experts[bucket];
    if (!is_in_file(w, task))
        return WEFT_OK;
    if (!w->call->backward)
        WEFT_TRY(weft_lane_wait(lane, e->stepped));
    return weft_records_read(weft_tier_records(w->tier), bucket,
                             task->flow == WEFT_FLOW_WEIGHT ? WEFT_RECORD_W
                             : e->stages                    ? WEFT_RECORD_G
                                                            : 0);
}

static weft_status run_upload(const work *w, const weft_task *task, weft_lane *lane)
{
    if (has_rows(w, task))
        expect(w, task);
    return has_rows(w, task)
               ? weft_tier_upload(w->tier, place_at(w, task), bucket_at(w, task), lane)
               : WEFT_OK;
}

static weft_status run_expert(const work *w, const weft_task *task, weft_lane *lane)
{
    const bool backward = w->call->backward;
    weft_tier_place *at = place_at(w, task);
    weft_tier_ring_slot *gradient = &w->tier->gradients[task->expert % NUM_GRADIENTS];
    const weft_tier_memory memory = {at->memory, backward ? gradient->memory : NULL};
    if (!has_rows(w, task))
        return WEFT_OK;
    if (at->bucket != bucket_at(w, task) || at->version != w->tier->experts[at->bucket].version)
        return WEFT_ERROR(WEFT_INTERNAL, "expert %d of layer %d is not on the device",
                          expert_at(w, task), w->layer->layer);
    if (at->is_kept) /* others come up in the same body */
        WEFT_TRY(weft_lane_wait(lane, at->filled));
    if (backward) {
        const size_t bytes = weft_tier_gradient_bytes(w->tier, w->layer->first_bucket);
        WEFT_TRY(weft_lane_wait(lane, gradient->free));
        if (w->layer->count * sizeof(float) < bytes) /* what pads it is in the gradients' norm */
            WEFT_TRY(weft_lane_zero(lane, gradient->memory, bytes));
    }
    WEFT_TRY(tier_clock_read(&w->tier->clock, &at->stamp, WEFT_TIER_HAS, lane));
    WEFT_TRY(w->call->run(w->call->context, expert_at(w, task), &memory, lane));
    WEFT_TRY(tier_clock_read(&w->tier->clock, &at->stamp, WEFT_TIER_FREES, lane));
    return weft_lane_record(lane, at->used);
}

static weft_status put_gradient(weft_tier_run *t, int bucket, const weft_tier_ring_slot *from,
                                weft_lane *lane)
{
    const int own = weft_tier_home(t, bucket).bucket;
    WEFT_TRY(take_record(t, bucket, 0, WEFT_RECORD_G, lane));
    WEFT_TRY(weft_lane_copy(lane, weft_tier_host_gradient(t, bucket), from->memory,
                            weft_tier_gradient_bytes(t, own)));
    return give_record(t, bucket, lane);
}

/* A step's first gradient goes to its final place, later ones to staging. The previous step has
 * read the old gradient: this expert's weights came up behind that step, so this wait is already
 * satisfied. */
static weft_status run_download(const work *w, const weft_task *task, weft_lane *lane)
{
    weft_tier_run *t = w->tier;
    const int bucket = bucket_at(w, task), own = weft_tier_home(t, bucket).bucket;
    const weft_tier_expert *e = &t->experts[bucket];
    weft_tier_ring_slot *from = &t->gradients[task->expert % NUM_GRADIENTS];
    weft_tier_ring_slot *staging = &t->staging[task->expert % NUM_STAGING];
    if (!has_rows(w, task))
        return WEFT_OK;
    expect(w, task);
    if (e->stages)
        WEFT_TRY(weft_lane_wait(lane, staging->free));
    else
        WEFT_TRY(weft_tier_wait_step(t, bucket, lane));
    if (e->stages)
        WEFT_TRY(
            weft_lane_copy(lane, staging->memory, from->memory, weft_tier_gradient_bytes(t, own)));
    else
        WEFT_TRY(put_gradient(t, bucket, from, lane));
    t->counts.downloaded_bytes += weft_tier_gradient_bytes(t, own);
    WEFT_TRY(weft_lane_record(lane, from->free));
    return e->stages ? WEFT_OK : weft_tier_land(t, bucket, lane);
}

typedef struct addition {
    weft_add_args args;
    int num_threads;
} addition;

static weft_status add(const void *raw)
{
    const addition *a = raw;
    return weft_host_add(&a->args, a->num_threads);
}

static weft_status run_accumulate(const work *w, const weft_task *task, weft_lane *lane)
{
    weft_tier_run *t = w->tier;
    const int bucket = bucket_at(w, task), own = weft_tier_home(t, bucket).bucket;
    const weft_tier_expert *e = &t->experts[bucket];
    weft_tier_ring_slot *staging = &t->staging[task->expert % NUM_STAGING];
    if (!has_rows(w, task) || !e->stages)
        return WEFT_OK;
    WEFT_TRY(weft_tier_wait_landing(t, bucket, lane));
    WEFT_TRY(take_record(t, bucket, WEFT_RECORD_G, WEFT_RECORD_G, lane));
    float *gradient = weft_tier_host_gradient(t, bucket);
    const addition sum = {
        WEFT_ARGS(weft_add_args, .count = weft_tier_section(t)->buckets[own].count,
                  .dtype = WEFT_F32, .a = gradient, .b = staging->memory, .y = gradient),
        t->setup.num_threads};
    WEFT_TRY(weft_note_host_add(lane, &sum.args));
    WEFT_TRY(weft_lane_submit(lane, "accumulate", add, &sum, sizeof sum));
    WEFT_TRY(give_record(t, bucket, lane));
    WEFT_TRY(weft_lane_record(lane, staging->free));
    return weft_tier_land(t, bucket, lane);
}

/* --- a layer ------------------------------------------------------------------------------- */

const weft_program *weft_tier_programs(const weft_tier_run *t, int i, int *num_positions)
{
    if (i >= t->num_plans)
        return NULL;
    *num_positions = t->plans[i].num_experts;
    return t->plans[i].programs;
}

void weft_tier_lanes(const weft_tier_run *t, weft_lane *lanes[WEFT_NUM_LANES])
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (t->lanes[i])
            lanes[i] = t->lanes[i];
    if (weft_tier_records(t))
        lanes[WEFT_LANE_FILE] = weft_records_lane(weft_tier_records(t));
}

static work work_of(weft_tier_run *t, const weft_tier_call *call)
{
    return (work){.tier = t, .layer = weft_tier_layer_of(t, call->layer), .call = call};
}

weft_status weft_tier_begin(weft_tier_run *t, const weft_tier_call *call, weft_lane *compute)
{
    const work w = work_of(t, call);
    const bool is_first =
        call->backward ? call->end_position == w.layer->num_seats : call->first_position == 0;
    if (is_first && call->backward)
        weft_tier_number(t, w.layer, call);
    if (is_first)
        expect_all(&w);
    return tier_clock_read(&t->clock, NULL, WEFT_TIER_BEGIN, compute);
}

weft_status weft_tier_run_task(weft_tier_run *t, const weft_tier_call *call, const weft_task *task,
                               weft_lane *lane)
{
    static weft_status (*const functions[WEFT_NUM_TASK_KINDS])(const work *, const weft_task *,
                                                               weft_lane *) = {
        [WEFT_TASK_WRITE] = run_write,       [WEFT_TASK_READ] = run_read,
        [WEFT_TASK_UPLOAD] = run_upload,     [WEFT_TASK_EXPERT] = run_expert,
        [WEFT_TASK_DOWNLOAD] = run_download, [WEFT_TASK_ACCUMULATE] = run_accumulate};
    const work w = work_of(t, call);
    return functions[task->kind](&w, task, lane);
}

weft_status weft_tier_end(weft_tier_run *t, const weft_tier_call *call)
{
    const work w = work_of(t, call);
    return call->backward && call->first_position == 0 ? weft_tier_expect_landings(t, w.layer, call)
                                                       : WEFT_OK;
}
