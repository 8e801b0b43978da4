#include "schedule/update.h"

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

weft_status weft_program_append_update(weft_program_builder *builder, const weft_buckets *buckets,
                                       const uint32_t *last_backward, uint32_t last)
{
    const weft_wait end = {last, -1};
    bool in_passes = false;
    weft_wait before_norm[2] = {end};
    uint32_t num_before_norm = 1, index;
    for (int b = 0; b < buckets->count; b++) {
        const weft_bucket_shape *shape = &buckets->shapes[b];
        const weft_wait point = {last_backward[shape->chunk], shape->layer};
        const weft_task sum = sum_task(shape->sum),
                        reduce = bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, b);
        if (begins_sum(buckets, b))
            WEFT_TRY(weft_program_append(builder, &sum, &end, 1, &index));
        in_passes |= shape->in_passes;
        if (shape->reduces)
            WEFT_TRY(
                weft_program_append(builder, &reduce, shape->layer < 0 ? &end : &point, 1, &index));
        if (begins_sum(buckets, b) || shape->reduces) {
            before_norm[1] = (weft_wait){index, -1}; /* all of them are on one lane */
            num_before_norm = 2;
        }
    }
    if (in_passes) {
        const weft_task rest = bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, -1);
        WEFT_TRY(weft_program_append(builder, &rest, &end, 1, &before_norm[1].task));
        before_norm[1].point = -1;
        num_before_norm = 2;
    }
    const weft_task norm = norm_task();
    uint32_t normed;
    WEFT_TRY(weft_program_append(builder, &norm, before_norm, num_before_norm, &normed));
    for (int b = 0; b < buckets->count; b++) {
        const weft_task step = bucket_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b),
                        gather = bucket_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b);
        weft_wait after = {normed, -1};
        WEFT_TRY(weft_program_append(builder, &step, &after, 1, &after.task));
        if (buckets->shapes[b].gathers)
            WEFT_TRY(weft_program_append(builder, &gather, &after, 1, NULL));
    }
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

/* The last backward of each chunk, as weft_update_expect has them. */
typedef struct backwards {
    const uint32_t *last;
    int num_chunks;
} backwards;

/* Behind all backwards; with a layer, behind that point of those of its chunk. */
static void list_backwards(weft_task_list *list, const backwards *all,
                           const weft_bucket_shape *until)
{
    for (int chunk = 0; chunk < all->num_chunks; chunk++)
        if (all->last[chunk] != UINT32_MAX && (!until || chunk == until->chunk))
            list_wait(list, (weft_wait){all->last[chunk], until ? until->layer : -1});
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
        if (begins_sum(buckets, b)) {
            sum = list_task(list, sum_task(shape->sum));
            list_backwards(list, &all, NULL);
        }
        in_passes |= shape->in_passes;
        if (!shape->reduces)
            continue;
        list_task(list, bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, b));
        list_backwards(list, &all, shape->layer < 0 ? NULL : shape);
        if (shape->sum != WEFT_BUCKET_SUM_NONE)
            list_wait(list, (weft_wait){sum, -1});
    }
    if (in_passes) {
        list_task(list, bucket_task(WEFT_TASK_REDUCE, WEFT_FLOW_NONE, -1));
        list_backwards(list, &all, NULL);
    }
    const uint32_t norm = list_task(list, norm_task());
    list_backwards(list, &all, NULL);
    for (uint32_t i = first; i < norm; i++)
        list_wait(list, (weft_wait){i, -1});
    for (int b = 0; b < buckets->count; b++) {
        const uint32_t step = list_task(list, bucket_task(WEFT_TASK_STEP, WEFT_FLOW_NONE, b));
        list_wait(list, (weft_wait){norm, -1});
        if (!buckets->shapes[b].gathers)
            continue;
        list_task(list, bucket_task(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT, b));
        list_wait(list, (weft_wait){step, -1});
    }
}

uint32_t weft_update_max_tasks(const weft_buckets *buckets)
{
    return 4 * (uint32_t)buckets->count + 2;
}

/* Sums, reductions and the norm wait for chunks and what stands before them; steps and gathers for
 * one task. */
uint32_t weft_update_max_waits(const weft_buckets *buckets, int num_chunks)
{
    return weft_update_max_tasks(buckets) * (2 + (uint32_t)num_chunks);
}

uint32_t weft_update_ordered(void)
{
    return 1u << WEFT_TASK_SUM | 1u << WEFT_TASK_REDUCE | 1u << WEFT_TASK_GATHER;
}
