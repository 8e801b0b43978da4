#include "schedule/pipeline.h"

#include <string.h>

#include "schedule/lowering.h"
#include "schedule/order_time.h"

weft_order_shape weft_pipeline_order_shape(const weft_pipeline_shape *shape)
{
    return (weft_order_shape){.num_ranks = shape->num_stages,
                              .num_chunks = shape->num_chunks ? shape->num_chunks : 1,
                              .num_micro_batches = shape->num_micro_batches,
                              .group_size = shape->group_size};
}

int64_t weft_pipeline_max_micro_batches(int num_stages, int num_chunks)
{
    const int64_t v = num_chunks > 0 ? num_chunks : 1;
    return (num_stages > 4 ? ((int64_t)4 << 20) / num_stages : (int64_t)1 << 20) / v;
}

/* The orders of all ranks in time. */
typedef struct timed {
    weft_order *orders;
    int64_t **starts, *times[2];
} timed;

static weft_status time_orders(const weft_order_shape *shape, weft_arena *scratch, timed *t)
{
    const size_t p = (size_t)shape->num_ranks;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(int64_t *), &memory));
    t->starts = memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_arena_alloc_array(
            scratch, p * (size_t)shape->num_chunks * (size_t)shape->num_micro_batches,
            sizeof(int64_t), &memory));
        t->times[i] = memory;
    }
    WEFT_TRY(weft_order_time(shape, t->orders, scratch, t->starts));
    for (int rank = 0; rank < shape->num_ranks; rank++)
        for (uint32_t i = 0; i < t->orders[rank].count; i++) {
            const weft_compute *c = &t->orders[rank].computes[i];
            const size_t stage = (size_t)(c->chunk * shape->num_ranks + rank);
            t->times[c->backward][stage * (size_t)shape->num_micro_batches +
                                  (size_t)c->micro_batch] = t->starts[rank][i];
        }
    return WEFT_OK;
}

static weft_status copy_forwards(const weft_order_shape *shape, const weft_order *orders,
                                 weft_arena *scratch, weft_order *out)
{
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        void *memory;
        WEFT_TRY(
            weft_arena_alloc_array(scratch, orders[rank].count, sizeof(weft_compute), &memory));
        out[rank] = (weft_order){.computes = memory};
        for (uint32_t i = 0; i < orders[rank].count; i++)
            if (!orders[rank].computes[i].backward)
                out[rank].computes[out[rank].count++] = orders[rank].computes[i];
    }
    return WEFT_OK;
}

/* training: rows of each pool of the training program, where this one only evaluates. out_rows:
 * those of this one; a NULL program: these alone are wanted. */
static weft_status lower(const weft_pipeline_shape *shape, int rank, const weft_order *order,
                         int64_t *const *times, const int64_t *starts, const int *training,
                         weft_arena *scratch, weft_arena *arena, int *out_rows, weft_program *out)
{
    weft_lowering l = {.shape = shape,
                       .rank = rank,
                       .p = shape->num_stages,
                       .v = shape->num_chunks ? shape->num_chunks : 1,
                       .m = shape->num_micro_batches,
                       .order = order,
                       .starts = starts,
                       .times = {times[0], times[1]},
                       .scratch = scratch};
    WEFT_TRY(weft_lowering_start(&l, scratch, training));
    weft_lowering_run(&l);
    for (int i = 0; i < l.v + WEFT_POOL_ACTIVATION; i++)
        out_rows[i] = weft_lowering_num_slots(&l, i);
    if (!out)
        return WEFT_OK;
    return weft_lowering_finish(&l, arena, training, out);
}

static weft_status lower_all(const weft_pipeline_shape *shape, weft_arena *scratch,
                             weft_arena *arena, weft_program *programs)
{
    const weft_order_shape order_shape = weft_pipeline_order_shape(shape);
    const size_t p = (size_t)shape->num_stages, v = (size_t)order_shape.num_chunks;
    timed training = {0}, forwards = {0};
    weft_pipeline_shape trained = *shape;
    trained.forward_only = false;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(weft_order), &memory));
    training.orders = memory;
    if (shape->orders)
        memcpy(memory, shape->orders, p * sizeof(weft_order));
    else
        WEFT_TRY(weft_order_make(shape->kind, &order_shape, scratch, training.orders));
    WEFT_TRY(time_orders(&order_shape, scratch, &training));
    if (shape->forward_only) {
        WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(weft_order), &memory));
        forwards.orders = memory;
        WEFT_TRY(copy_forwards(&order_shape, training.orders, scratch, forwards.orders));
        WEFT_TRY(time_orders(&order_shape, scratch, &forwards));
    }
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * (v + WEFT_POOL_ACTIVATION), sizeof(int), &memory));
    int *rows = memory, *own_rows = rows + v + WEFT_POOL_ACTIVATION;
    for (int rank = 0; rank < shape->num_stages; rank++) {
        weft_arena of_rank = {0};
        weft_status status =
            lower(&trained, rank, &training.orders[rank], training.times, training.starts[rank],
                  NULL, &of_rank, arena, rows, shape->forward_only ? NULL : &programs[rank]);
        if (status == WEFT_OK && shape->forward_only)
            status = lower(shape, rank, &forwards.orders[rank], forwards.times,
                           forwards.starts[rank], rows, &of_rank, arena, own_rows, &programs[rank]);
        weft_arena_release(&of_rank);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

weft_status weft_program_pipeline(const weft_pipeline_shape *shape, weft_arena *arena,
                                  weft_program *programs)
{
    if (shape->num_stages < 1 || shape->num_micro_batches < 1 || shape->num_chunks < 0 ||
        shape->num_micro_batches >
            weft_pipeline_max_micro_batches(shape->num_stages, shape->num_chunks))
        return WEFT_ERROR(WEFT_CONFIG, "no pipeline program for %d stages with %d micro-batches",
                          shape->num_stages, shape->num_micro_batches);
    weft_arena scratch = {0};
    const weft_status status = lower_all(shape, &scratch, arena, programs);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
