#include "schedule/pipeline/pipeline.h"

#include <string.h>

#include "schedule/pipeline/lowering.h"
#include "schedule/pipeline/order_time.h"

weft_order_shape weft_pipeline_order_shape(const weft_pipeline_shape *shape)
{
    return (weft_order_shape){.num_ranks = shape->num_stages,
                              .num_chunks = shape->num_chunks ? shape->num_chunks : 1,
                              .num_micro_batches = shape->num_micro_batches,
                              .group_size = shape->group_size,
                              .is_v = shape->is_v,
                              .pairs = shape->pairs};
}

int64_t weft_pipeline_max_micro_batches(int num_stages, int num_chunks)
{
    const int64_t v = num_chunks > 0 ? num_chunks : 1;
    return (num_stages > 4 ? ((int64_t)4 << 20) / num_stages : (int64_t)1 << 20) / v;
}

/* The orders of all ranks in time. */
typedef struct timed {
    weft_order *orders;
    int32_t **starts;
    weft_order_times times;
} timed;

/* of_forwards: when forwards end is asked too. */
static weft_status time_orders(const weft_order_shape *shape, bool of_forwards, weft_arena *scratch,
                               timed *t)
{
    const size_t p = (size_t)shape->num_ranks;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(int32_t *), &memory));
    t->starts = memory;
    int32_t **arrays[] = {&t->times.starts[0], &t->times.starts[1], &t->times.ends[0],
                          &t->times.ends[1], &t->times.over};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        WEFT_TRY(weft_arena_alloc_array(
            scratch, p * (size_t)shape->num_chunks * (size_t)shape->num_micro_batches,
            sizeof(int32_t), &memory));
        *arrays[i] = memory;
    }
    WEFT_TRY(weft_order_time(shape, t->orders, scratch, t->starts));
    for (int rank = 0; rank < shape->num_ranks; rank++)
        for (uint32_t i = 0; i < t->orders[rank].count; i++) {
            const weft_compute *c = &t->orders[rank].computes[i];
            const int stage = weft_stage_of(shape->is_v, shape->num_ranks, rank, c->chunk);
            const size_t at =
                (size_t)stage * (size_t)shape->num_micro_batches + (size_t)c->micro_batch;
            const int32_t start = t->starts[rank][i];
            const bool in_pair = shape->pairs && (c->is_paired || (i > 0 && c[-1].is_paired));
            const int32_t end = start + weft_compute_time(c->kind) +
                                (in_pair ? weft_compute_time(c[c->is_paired ? 1 : -1].kind) : 0);
            const bool backward = c->kind != WEFT_COMPUTE_FORWARD;
            if (backward)
                t->times.over[at] = end;
            if (c->kind == WEFT_COMPUTE_WEIGHT)
                continue;
            t->times.starts[backward][at] = start;
            if (backward || of_forwards)
                t->times.ends[backward][at] = end;
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
            if (orders[rank].computes[i].kind == WEFT_COMPUTE_FORWARD) {
                weft_compute *forward = &out[rank].computes[out[rank].count++];
                *forward = orders[rank].computes[i];
                forward->is_paired = 0;
            }
    }
    return WEFT_OK;
}

/* The input of all ranks' programs. */
typedef struct lowerings {
    const weft_pipeline_shape *shape;
    timed training, forwards; /* forwards: a forward_only program's */
    weft_rank_posts *posts;   /* of each rank; NULL: no host waits */
} lowerings;

/* A forward_only program has the slots of the training order. */
static weft_status lower_rank(const lowerings *all, int rank, weft_arena *scratch,
                              weft_lowering *out)
{
    const weft_pipeline_shape *shape = all->shape;
    const weft_order_shape order = weft_pipeline_order_shape(shape);
    const timed *t = shape->forward_only ? &all->forwards : &all->training;
    void *slots;
    WEFT_TRY(weft_arena_alloc(scratch, sizeof(weft_order_slots), &slots));
    WEFT_TRY(
        weft_order_slots_start(&order, shape->stash_bytes, shape->deferred_bytes, scratch, slots));
    weft_order_slots_find(&order, rank, &all->training.orders[rank], slots);
    *out = (weft_lowering){.shape = shape,
                           .rank = rank,
                           .p = order.num_ranks,
                           .v = order.num_chunks,
                           .m = order.num_micro_batches,
                           .order = &t->orders[rank],
                           .starts = t->starts[rank],
                           .times = &t->times,
                           .slots = slots,
                           .scratch = scratch};
    WEFT_TRY(weft_lowering_start(out, scratch));
    return weft_lowering_run(out);
}

static weft_status list_posts(const weft_lowering *l, weft_arena *arena, weft_rank_posts *out)
{
    const size_t all = (size_t)l->num_sends + l->num_receives;
    void *posts, *posted;
    WEFT_TRY(weft_arena_alloc_array(arena, all, sizeof(weft_post), &posts));
    WEFT_TRY(weft_arena_alloc_array(arena, all, sizeof(weft_posted), &posted));
    *out = (weft_rank_posts){.sends = posts,
                             .receives = (weft_post *)posts + l->num_sends,
                             .num_sends = l->num_sends,
                             .num_receives = l->num_receives,
                             .posted = posted};
    for (uint32_t i = 0; i < l->num_sends; i++)
        out->sends[i] = (weft_post){l->sends[i].compute, l->sends[i].peer, 0};
    for (uint32_t i = 0; i < l->num_receives; i++)
        out->receives[i] =
            (weft_post){l->receives[i].compute, l->receives[i].peer, l->receives[i].free_at};
    return WEFT_OK;
}

static weft_status find_posts(lowerings *all, const weft_order_shape *order_shape,
                              weft_arena *scratch)
{
    const timed *t = all->shape->forward_only ? &all->forwards : &all->training;
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)order_shape->num_ranks, &all->posts));
    for (int rank = 0; rank < order_shape->num_ranks; rank++) {
        weft_arena of_rank = {0};
        weft_lowering l;
        weft_status status = lower_rank(all, rank, &of_rank, &l);
        if (status == WEFT_OK)
            status = list_posts(&l, scratch, &all->posts[rank]);
        weft_arena_release(&of_rank);
        WEFT_TRY(status);
    }
    return weft_posts_find(order_shape, t->orders, t->starts, all->posts);
}

static weft_status make_program(const lowerings *all, int rank, weft_arena *scratch,
                                weft_arena *arena, weft_program *out)
{
    weft_lowering l;
    WEFT_TRY(lower_rank(all, rank, scratch, &l));
    l.posts = all->posts ? &all->posts[rank] : NULL;
    return weft_lowering_finish(&l, arena, out);
}

static bool any_host_waits(const weft_pipeline_shape *shape, int num_virtual_stages)
{
    for (int s = 0; shape->host_waits && s < num_virtual_stages; s++)
        if (shape->host_waits[s])
            return true;
    return false;
}

static weft_status lower_all(const weft_pipeline_shape *shape, weft_arena *scratch,
                             weft_arena *arena, weft_program *programs)
{
    const weft_order_shape order_shape = weft_pipeline_order_shape(shape);
    const int p = order_shape.num_ranks, v = order_shape.num_chunks;
    lowerings all = {.shape = shape};
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)p, sizeof(weft_order), &memory));
    all.training.orders = memory;
    if (shape->orders)
        memcpy(memory, shape->orders, (size_t)p * sizeof(weft_order));
    else
        WEFT_TRY(weft_order_make(shape->kind, &order_shape, scratch, all.training.orders));
    WEFT_TRY(weft_order_check_weights(&order_shape, all.training.orders));
    WEFT_TRY(time_orders(&order_shape, false, scratch, &all.training));
    if (shape->forward_only) {
        WEFT_TRY(WEFT_ARRAY(scratch, (size_t)p, &all.forwards.orders));
        WEFT_TRY(copy_forwards(&order_shape, all.training.orders, scratch, all.forwards.orders));
        WEFT_TRY(time_orders(&order_shape, true, scratch, &all.forwards));
    }
    if (any_host_waits(shape, p * v))
        WEFT_TRY(find_posts(&all, &order_shape, scratch));
    for (int rank = 0; rank < p; rank++) {
        weft_arena of_rank = {0};
        const weft_status status = make_program(&all, rank, &of_rank, arena, &programs[rank]);
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
