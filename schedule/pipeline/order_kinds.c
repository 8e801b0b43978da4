/* The kinds of schedules, and the shapes that each is for. */
#include <stdio.h>

#include "schedule/pipeline/order.h"

static const struct {
    const char *text;
    bool is_v, splits;
} kinds[WEFT_NUM_PIPELINES] = {
#define KIND(name, text, is_v, splits) {text, is_v, splits},
    WEFT_PIPELINE_LIST(KIND)
#undef KIND
};

const char *weft_pipeline_kind_text(int kind)
{
    return kinds[kind].text;
}

bool weft_pipeline_kind_is_v(int kind)
{
    return kinds[kind].is_v;
}

bool weft_pipeline_kind_splits(int kind)
{
    return kinds[kind].splits;
}

#define VIRTUAL_STAGES "parallel.num_virtual_stages_per_pipeline_rank"

weft_status weft_order_check_layout(weft_pipeline_kind kind, const weft_order_shape *shape)
{
    if (kind == WEFT_PIPELINE_INTERLEAVED && shape->num_chunks < 2)
        return WEFT_KEY_ERROR(VIRTUAL_STAGES, "%d; the schedule interleaved has 2 or more",
                              shape->num_chunks);
    if (shape->is_v != kinds[kind].is_v)
        return WEFT_ERROR(WEFT_CONFIG, "the schedule %s has virtual stages in a %s, not in a %s",
                          kinds[kind].text, kinds[kind].is_v ? "V" : "loop",
                          shape->is_v ? "V" : "loop");
    if (kind == WEFT_PIPELINE_AUTO)
        return WEFT_ERROR(WEFT_INTERNAL, "the schedule auto is made from costs");
    return WEFT_OK;
}

bool weft_order_has_layout(weft_pipeline_kind kind, const weft_order_shape *shape)
{
    return kind != WEFT_PIPELINE_AUTO && shape->is_v == kinds[kind].is_v &&
           (!shape->is_v || shape->num_chunks == 2) &&
           (kind != WEFT_PIPELINE_INTERLEAVED || shape->num_chunks > 1);
}

weft_status weft_order_check_shape(const weft_order_shape *shape)
{
    const int p = shape->num_ranks, v = shape->num_chunks, m = shape->num_micro_batches;
    if (p < 1 || v < 1 || m < 1 || v > WEFT_ORDER_MAX_CHUNKS)
        return WEFT_ERROR(
            WEFT_CONFIG, "no pipeline of %d ranks with %d virtual stages each and %d micro-batches",
            p, v, m);
    if (shape->is_v && v != 2)
        return WEFT_KEY_ERROR(VIRTUAL_STAGES, "%d; a schedule with stages in a V has 2", v);
    if (shape->group_size != 0 && shape->group_size < p)
        return WEFT_ERROR(WEFT_CONFIG,
                          "groups of %d micro-batches in a pipeline of %d ranks: a group has at "
                          "least as many as there are ranks",
                          shape->group_size, p);
    return WEFT_OK;
}

static weft_status misplaced(const weft_order_shape *shape, int rank, const weft_order *order,
                             uint32_t at)
{
    const weft_compute *c = &order->computes[at];
    char place[48] = "";
    if (order->columns)
        snprintf(place, sizeof place, "line %d, column %d, ", rank + 1, (int)order->columns[at]);
    return WEFT_ERROR(
        WEFT_CONFIG,
        "%s\"%d%c%d\" is not in its turn; a stage's gradients of weights come in the order "
        "of its input gradients",
        place, weft_stage_of(shape->is_v, shape->num_ranks, rank, c->chunk),
        weft_compute_letter(c->kind), c->micro_batch);
}

static weft_status check_rank(const weft_order_shape *shape, int rank, const weft_order *order)
{
    const size_t m = (size_t)shape->num_micro_batches, v = (size_t)shape->num_chunks;
    weft_arena scratch = {0};
    weft_status status = WEFT_OK;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(&scratch, v * (m + 2), sizeof(int32_t), &memory));
    int32_t *const queues = memory, *const ends = queues + v * m, *const heads = ends + v;
    for (uint32_t i = 0; i < order->count && status == WEFT_OK; i++) {
        const weft_compute *c = &order->computes[i];
        int32_t *const queue = queues + (size_t)c->chunk * m, *head = &heads[c->chunk];
        if (weft_compute_sends_gradient(c->kind))
            queue[ends[c->chunk]++] = c->micro_batch;
        if (c->kind != WEFT_COMPUTE_BACKWARD && c->kind != WEFT_COMPUTE_WEIGHT)
            continue;
        if (*head == ends[c->chunk] || queue[*head] != c->micro_batch)
            status = misplaced(shape, rank, order, i);
        ++*head;
    }
    weft_arena_release(&scratch);
    return status;
}

weft_status weft_order_check_weights(const weft_order_shape *shape, const weft_order *orders)
{
    for (int rank = 0; rank < shape->num_ranks; rank++)
        WEFT_TRY(check_rank(shape, rank, &orders[rank]));
    return WEFT_OK;
}
