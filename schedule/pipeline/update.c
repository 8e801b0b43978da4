#include "schedule/pipeline/update.h"

static weft_task sum_task(weft_bucket_sum sum)
{
    return weft_task_of(WEFT_TASK_SUM,
                        sum == WEFT_BUCKET_SUM_TIED ? WEFT_FLOW_TIED : WEFT_FLOW_TENSOR);
}

static weft_task bucket_task(weft_task_kind kind, weft_flow flow, int bucket)
{
    weft_task task = weft_task_of(kind, flow);
    task.bucket = bucket;
    return task;
}

static weft_task norm_task(void)
{
    weft_task norm = weft_task_of(WEFT_TASK_NORM, WEFT_FLOW_NONE);
    norm.flags = WEFT_TASK_HOST_WAITS;
    return norm;
}

/* Whether a bucket is the first of a section that is summed. */
static bool begins_sum(const weft_buckets *buckets, int bucket)
{
    const weft_bucket_shape *shape = &buckets->shapes[bucket];
    return shape->sum != WEFT_BUCKET_SUM_NONE && (bucket == 0 || shape[-1].sum != shape->sum);
}

/* The point at which the gradients of a bucket are final; -1: all must end. */
static int point_of(const weft_bucket_shape *shape)
{
    return weft_bucket_is_offloaded(shape) ? WEFT_POINT_LANDED : shape->layer;
}

static weft_task host_task(weft_task_kind kind, weft_flow flow, int bucket)
{
    weft_task task = bucket_task(kind, flow, bucket);
    task.lane = WEFT_LANE_HOST;
    return task;
}

static const weft_wait step_before = {WEFT_STEP_BEFORE, -1};

/* The flow of the first read: what the bucket needs ahead of its norm. */
static weft_flow first_read(const weft_bucket_shape *shape)
{
    return shape->at_once ? WEFT_FLOW_WEIGHT : WEFT_FLOW_GRADIENT;
}

static weft_task uploaded_task(void)
{
    weft_task uploaded = weft_task_of(WEFT_TASK_UPLOAD, WEFT_FLOW_WEIGHT);
    uploaded.lane = WEFT_LANE_COMPUTE;
    return uploaded;
}

/* The end of a step while it is appended. */
typedef struct appending {
    weft_program_builder *builder;
    const weft_buckets *buckets;
    const uint32_t *last_backward;
    int num_chunks;
    weft_wait end; /* the end of all backwards */
    weft_wait before_norm[3];
    uint32_t num_before_norm;
    weft_wait stepped[WEFT_BUCKET_STAGING]; /* each place's last step; UINT32_MAX: none */
    weft_wait uploaded;                     /* the last upload of staged buckets */
} appending;

/* A bucket may begin in chunks above the one of its point, and an order end their backwards later.
 * An offloaded one is one layer's. */
static int num_chunks_of(const weft_bucket_shape *shape, int num_chunks)
{
    return weft_bucket_is_offloaded(shape) ? shape->chunk + 1 : num_chunks;
}

static weft_wait final_at(const appending *a, const weft_bucket_shape *shape)
{
    if (point_of(shape) == -1)
        return a->end;
    uint32_t last = a->last_backward[shape->chunk];
    for (int c = shape->chunk + 1; c < num_chunks_of(shape, a->num_chunks); c++)
        last = a->last_backward[c] > last ? a->last_backward[c] : last;
    return last == a->last_backward[shape->chunk] ? (weft_wait){last, point_of(shape)}
                                                  : (weft_wait){last, -1};
}

/* Appends the write and read of a bucket in a file, behind `after`: a place is freed only when the
 * read can follow. */
static weft_status append_read(appending *a, weft_flow flow, int b, weft_wait after, weft_wait *out)
{
    const weft_task write = bucket_task(WEFT_TASK_WRITE, flow, b),
                    read = bucket_task(WEFT_TASK_READ, flow, b);
    out->point = -1;
    WEFT_TRY(weft_program_append(a->builder, &write, &after, 1, NULL));
    return weft_program_append(a->builder, &read, &step_before, 1, &out->task);
}

/* after: the norm of all gradients; at once: the bucket's own. The upload of the step before may
 * still read the weights. */
static weft_status append_host_step(appending *a, int b, weft_wait after)
{
    const weft_bucket_shape *shape = &a->buckets->shapes[b];
    const weft_task step = host_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b),
                    gather = host_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b),
                    upload = bucket_task(WEFT_TASK_UPLOAD, WEFT_FLOW_WEIGHT, b);
    weft_wait waits[2] = {after, {a->last_backward[shape->chunk], shape->layer}};
    weft_wait before[3] = {after};
    uint32_t num_before = 1;
    if (weft_bucket_is_in_file(shape) && !shape->at_once)
        WEFT_TRY(append_read(a, WEFT_FLOW_WEIGHT, b, after, &before[num_before++]));
    if (shape->refreshes)
        before[num_before++] = step_before;
    WEFT_TRY(weft_program_append(a->builder, &step, before, num_before, &waits[0].task));
    waits[0].point = -1;
    if (weft_bucket_gathers(shape))
        WEFT_TRY(weft_program_append(a->builder, &gather, waits, 1, &waits[0].task));
    return shape->refreshes ? weft_program_append(a->builder, &upload, waits, 2, NULL) : WEFT_OK;
}

/* Only the bucket's state is in host memory. */
static weft_status append_staged_step(appending *a, int b, weft_wait normed)
{
    const weft_bucket_shape *shape = &a->buckets->shapes[b];
    const weft_task download = bucket_task(WEFT_TASK_DOWNLOAD, WEFT_FLOW_GRADIENT, b),
                    step = host_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b),
                    upload = bucket_task(WEFT_TASK_UPLOAD, WEFT_FLOW_WEIGHT, b),
                    gather = bucket_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b);
    weft_wait *stepped = &a->stepped[shape->staging], waits[2] = {normed, *stepped};
    const uint32_t num_waits = stepped->task == UINT32_MAX ? 1 : 2;
    WEFT_TRY(weft_program_append(a->builder, &download, waits, num_waits, &waits[0].task));
    WEFT_TRY(weft_program_append(a->builder, &step, waits, 1, &stepped->task));
    WEFT_TRY(weft_program_append(a->builder, &upload, stepped, 1, &a->uploaded.task));
    return weft_bucket_gathers(shape)
               ? weft_program_append(a->builder, &gather, &a->uploaded, 1, NULL)
               : WEFT_OK;
}

/* after: the gradient's point, read or reduction. A bucket that steps at once does so next, while
 * its record is in its place. */
static weft_status append_host_norm(appending *a, int b, weft_wait after, weft_wait *out)
{
    const weft_task norm = host_task(WEFT_TASK_NORM, WEFT_FLOW_NONE, b);
    out->point = -1;
    WEFT_TRY(weft_program_append(a->builder, &norm, &after, 1, &out->task));
    return a->buckets->shapes[b].at_once ? append_host_step(a, b, *out) : WEFT_OK;
}

/* Appends everything that the norm needs. */
static weft_status append_reductions(appending *a)
{
    const weft_buckets *buckets = a->buckets;
    weft_wait reduced = {UINT32_MAX, -1}, summed = {UINT32_MAX, -1}; /* each lane's last */
    bool in_passes = false;
    for (int b = 0; b < buckets->count; b++) {
        const weft_bucket_shape *shape = &buckets->shapes[b];
        weft_wait before[2] = {final_at(a, shape), step_before}, *final = &before[0];
        const weft_task sum = sum_task(shape->sum),
                        reduce = bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, b);
        const bool is_offloaded = weft_bucket_is_offloaded(shape);
        if (begins_sum(buckets, b))
            WEFT_TRY(weft_program_append(a->builder, &sum, &a->end, 1, &reduced.task));
        in_passes |= weft_bucket_is_in_passes(shape);
        if (weft_bucket_is_in_file(shape))
            WEFT_TRY(append_read(a, first_read(shape), b, *final, final));
        if (weft_bucket_reduces(shape))
            WEFT_TRY(weft_program_append(a->builder, &reduce, before, 1 + (uint32_t)is_offloaded,
                                         &reduced.task));
        if (is_offloaded)
            WEFT_TRY(
                append_host_norm(a, b, weft_bucket_reduces(shape) ? reduced : *final, &summed));
    }
    if (in_passes) {
        const weft_task rest = bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, -1);
        WEFT_TRY(weft_program_append(a->builder, &rest, &a->end, 1, &reduced.task));
    }
    a->before_norm[a->num_before_norm++] = a->end;
    if (reduced.task != UINT32_MAX)
        a->before_norm[a->num_before_norm++] = reduced;
    if (summed.task != UINT32_MAX)
        a->before_norm[a->num_before_norm++] = summed;
    return WEFT_OK;
}

weft_status weft_program_append_update(weft_program_builder *builder, const weft_buckets *buckets,
                                       const uint32_t *last_backward, int num_chunks, uint32_t last)
{
    appending a = {.builder = builder,
                   .buckets = buckets,
                   .last_backward = last_backward,
                   .num_chunks = num_chunks,
                   .end = {last, -1},
                   .uploaded = {UINT32_MAX, -1}};
    for (int i = 0; i < WEFT_BUCKET_STAGING; i++)
        a.stepped[i] = (weft_wait){UINT32_MAX, -1};
    WEFT_TRY(append_reductions(&a));
    const weft_task norm = norm_task();
    weft_wait normed = {0, -1};
    WEFT_TRY(weft_program_append(builder, &norm, a.before_norm, a.num_before_norm, &normed.task));
    for (int b = 0; b < buckets->count; b++) {
        const weft_task step = bucket_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b),
                        gather = bucket_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b);
        weft_wait after = normed;
        if (weft_bucket_is_offloaded(&buckets->shapes[b]))
            continue;
        if (weft_bucket_is_staged(&buckets->shapes[b])) {
            WEFT_TRY(append_staged_step(&a, b, normed));
            continue;
        }
        WEFT_TRY(weft_program_append(builder, &step, &after, 1, &after.task));
        if (weft_bucket_gathers(&buckets->shapes[b]))
            WEFT_TRY(weft_program_append(builder, &gather, &after, 1, NULL));
    }
    if (a.uploaded.task != UINT32_MAX) {
        const weft_task uploaded = uploaded_task();
        WEFT_TRY(weft_program_append(builder, &uploaded, &a.uploaded, 1, NULL));
    }
    for (int b = buckets->count - 1; b >= 0; b--)
        if (weft_bucket_is_offloaded(&buckets->shapes[b]) && !buckets->shapes[b].at_once)
            WEFT_TRY(append_host_step(&a, b, normed));
    return WEFT_OK;
}

static uint32_t list_task(weft_task_list *list, weft_task task)
{
    task.first_wait = list->num_waits;
    list->tasks[list->num_tasks] = task;
    return list->num_tasks++;
}

static void list_wait(weft_task_list *list, weft_wait wait)
{
    list->waits[list->num_waits++] = wait;
    list->tasks[list->num_tasks - 1].num_waits++;
}

/* The last backward of each chunk: arguments of weft_update_expect. */
typedef struct backwards {
    const uint32_t *last;
    int num_chunks;
} backwards;

/* Waits for all backwards, or a bucket's point in its chunk's. */
static void list_backwards(weft_task_list *list, const backwards *all,
                           const weft_bucket_shape *until, int point)
{
    const int end = until ? num_chunks_of(until, all->num_chunks) : all->num_chunks;
    for (int chunk = until ? until->chunk : 0; chunk < end; chunk++)
        if (all->last[chunk] != UINT32_MAX)
            list_wait(list,
                      (weft_wait){all->last[chunk], until && chunk == until->chunk ? point : -1});
}

/* Lists waits for the bucket's final gradients. */
static void list_final(weft_task_list *list, const backwards *all, const weft_bucket_shape *shape)
{
    list_backwards(list, all, point_of(shape) == -1 ? NULL : shape, point_of(shape));
}

/* The index of the bucket's task of this kind and flow, from `first` on. */
static uint32_t find_task(const weft_task_list *list, uint32_t first, weft_task_kind kind,
                          weft_flow flow, int bucket)
{
    while (list->tasks[first].kind != kind || list->tasks[first].flow != flow ||
           list->tasks[first].bucket != bucket)
        first++;
    return first;
}

static uint32_t find_norm(const weft_task_list *list, uint32_t first, int bucket)
{
    return find_task(list, first, WEFT_TASK_NORM, WEFT_FLOW_NONE, bucket);
}

/* norm: the bucket's own; after: the norm of all gradients, UINT32_MAX: it steps at once. */
static void list_host_step(weft_task_list *list, const backwards *all, const weft_buckets *buckets,
                           int b, uint32_t norm, uint32_t after)
{
    const weft_bucket_shape *shape = &buckets->shapes[b];
    uint32_t read = UINT32_MAX;
    if (weft_bucket_is_in_file(shape) && after != UINT32_MAX) {
        list_task(list, bucket_task(WEFT_TASK_WRITE, WEFT_FLOW_WEIGHT, b));
        read = list_task(list, bucket_task(WEFT_TASK_READ, WEFT_FLOW_WEIGHT, b));
        list_wait(list, (weft_wait){after, -1});
        list_wait(list, step_before);
    }
    uint32_t last = list_task(list, host_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b));
    if (shape->refreshes)
        list_wait(list, step_before);
    if (read != UINT32_MAX)
        list_wait(list, (weft_wait){read, -1});
    list_wait(list, (weft_wait){norm, -1});
    list_final(list, all, shape);
    if (after != UINT32_MAX)
        list_wait(list, (weft_wait){after, -1});
    if (weft_bucket_gathers(shape)) {
        const uint32_t step = last;
        last = list_task(list, host_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b));
        list_wait(list, (weft_wait){step, -1});
    }
    if (shape->refreshes) {
        list_task(list, bucket_task(WEFT_TASK_UPLOAD, WEFT_FLOW_WEIGHT, b));
        list_wait(list, (weft_wait){last, -1});
        list_backwards(list, all, shape, shape->layer);
    }
}

static void list_host_norm(weft_task_list *list, const backwards *all, const weft_buckets *buckets,
                           int b, uint32_t first, uint32_t reduced)
{
    const uint32_t read =
        weft_bucket_is_in_file(&buckets->shapes[b])
            ? find_task(list, first, WEFT_TASK_READ, first_read(&buckets->shapes[b]), b)
            : UINT32_MAX;
    const uint32_t norm = list_task(list, host_task(WEFT_TASK_NORM, WEFT_FLOW_NONE, b));
    if (read != UINT32_MAX)
        list_wait(list, (weft_wait){read, -1});
    if (weft_bucket_reduces(&buckets->shapes[b]))
        list_wait(list, (weft_wait){reduced, -1});
    list_final(list, all, &buckets->shapes[b]);
    if (buckets->shapes[b].at_once)
        list_host_step(list, all, buckets, b, norm, UINT32_MAX);
}

/* The step of the previous bucket in the same staging place; UINT32_MAX: none. */
static uint32_t find_stepped(const weft_task_list *list, uint32_t first,
                             const weft_buckets *buckets, int b)
{
    for (uint32_t i = list->num_tasks; i-- > first;) {
        const weft_task *task = &list->tasks[i];
        if (task->kind == WEFT_TASK_STEP && weft_bucket_is_staged(&buckets->shapes[task->bucket]) &&
            buckets->shapes[task->bucket].staging == buckets->shapes[b].staging)
            return i;
    }
    return UINT32_MAX;
}

static void list_staged_step(weft_task_list *list, const weft_buckets *buckets, int b,
                             uint32_t norm)
{
    const uint32_t before = find_stepped(list, norm, buckets, b);
    const uint32_t download =
        list_task(list, bucket_task(WEFT_TASK_DOWNLOAD, WEFT_FLOW_GRADIENT, b));
    list_wait(list, (weft_wait){norm, -1});
    if (before != UINT32_MAX)
        list_wait(list, (weft_wait){before, -1});
    const uint32_t step = list_task(list, host_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b));
    list_wait(list, (weft_wait){norm, -1});
    list_wait(list, (weft_wait){download, -1});
    const uint32_t upload = list_task(list, bucket_task(WEFT_TASK_UPLOAD, WEFT_FLOW_WEIGHT, b));
    list_wait(list, (weft_wait){step, -1});
    if (!weft_bucket_gathers(&buckets->shapes[b]))
        return;
    list_task(list, bucket_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b));
    list_wait(list, (weft_wait){upload, -1});
}

/* Lists waits for the uploads of all staged buckets. */
static void list_uploaded(weft_task_list *list, uint32_t norm, const weft_buckets *buckets)
{
    const uint32_t end = list->num_tasks;
    bool any = false;
    for (uint32_t i = norm; i < end; i++) {
        if (list->tasks[i].kind != WEFT_TASK_UPLOAD ||
            !weft_bucket_is_staged(&buckets->shapes[list->tasks[i].bucket]))
            continue;
        if (!any)
            list_task(list, uploaded_task());
        any = true;
        list_wait(list, (weft_wait){i, -1});
    }
}

void weft_update_expect(const weft_buckets *buckets, const uint32_t *last_backward, int num_chunks,
                        weft_task_list *list)
{
    const backwards all = {last_backward, num_chunks};
    const uint32_t first = list->num_tasks;
    uint32_t sum = 0;
    bool in_passes = false;
    for (int b = 0; b < buckets->count; b++) {
        const weft_bucket_shape *shape = &buckets->shapes[b];
        uint32_t reduced = 0;
        if (begins_sum(buckets, b)) {
            sum = list_task(list, sum_task(shape->sum));
            list_backwards(list, &all, NULL, -1);
        }
        in_passes |= weft_bucket_is_in_passes(shape);
        uint32_t read = UINT32_MAX;
        if (weft_bucket_is_in_file(shape)) {
            list_task(list, bucket_task(WEFT_TASK_WRITE, first_read(shape), b));
            read = list_task(list, bucket_task(WEFT_TASK_READ, first_read(shape), b));
            list_final(list, &all, shape);
            list_wait(list, step_before);
        }
        if (weft_bucket_reduces(shape)) {
            reduced = list_task(list, bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, b));
            if (weft_bucket_is_offloaded(shape))
                list_wait(list, step_before);
            if (read != UINT32_MAX)
                list_wait(list, (weft_wait){read, -1});
            list_final(list, &all, shape);
            if (shape->sum != WEFT_BUCKET_SUM_NONE)
                list_wait(list, (weft_wait){sum, -1});
        }
        if (weft_bucket_is_offloaded(shape))
            list_host_norm(list, &all, buckets, b, first, reduced);
    }
    if (in_passes) {
        list_task(list, bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, -1));
        list_backwards(list, &all, NULL, -1);
    }
    const uint32_t norm = list_task(list, norm_task());
    list_backwards(list, &all, NULL, -1);
    for (uint32_t i = first; i < norm; i++)
        if (1u << list->tasks[i].kind &
            (1u << WEFT_TASK_SUM | 1u << WEFT_TASK_REDUCE | 1u << WEFT_TASK_NORM))
            list_wait(list, (weft_wait){i, -1});
    for (int b = 0; b < buckets->count; b++) {
        if (weft_bucket_is_offloaded(&buckets->shapes[b]))
            continue;
        if (weft_bucket_is_staged(&buckets->shapes[b])) {
            list_staged_step(list, buckets, b, norm);
            continue;
        }
        const uint32_t step = list_task(list, bucket_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b));
        list_wait(list, (weft_wait){norm, -1});
        if (!weft_bucket_gathers(&buckets->shapes[b]))
            continue;
        list_task(list, bucket_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b));
        list_wait(list, (weft_wait){step, -1});
    }
    list_uploaded(list, norm, buckets);
    for (int b = buckets->count - 1; b >= 0; b--)
        if (weft_bucket_is_offloaded(&buckets->shapes[b]) && !buckets->shapes[b].at_once)
            list_host_step(list, &all, buckets, b, find_norm(list, first, b), norm);
}

uint32_t weft_update_max_tasks(const weft_buckets *buckets)
{
    uint32_t num = 4 * (uint32_t)buckets->count + 3;
    for (int b = 0; b < buckets->count; b++)
        num += (weft_bucket_is_offloaded(&buckets->shapes[b]) ||
                        weft_bucket_is_staged(&buckets->shapes[b])
                    ? 2
                    : 0) +
               (weft_bucket_is_in_file(&buckets->shapes[b]) ? 4 : 0);
    return num;
}

/* Sums, reductions and the norm wait for chunks and their predecessors, gathers for one task; a
 * step on the host for chunks and four more. */
uint32_t weft_update_max_waits(const weft_buckets *buckets, int num_chunks)
{
    return weft_update_max_tasks(buckets) * (4 + (uint32_t)num_chunks);
}

uint32_t weft_update_ordered(void)
{
    return 1u << WEFT_TASK_SUM | 1u << WEFT_TASK_REDUCE | 1u << WEFT_TASK_GATHER;
}
