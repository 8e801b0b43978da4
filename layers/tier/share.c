#include "layers/tier/internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/device/device.h"
#include "core/log.h"

/* --- marks ---------------------------------------------------------------------------------- */

enum { NUM_YIELDS = 64, MIN_SLEEP_NS = 10000, MAX_SLEEP_NS = 200000 };

typedef struct mark {
    const weft_tier_share *share;
    atomic_uint_least64_t *at;
    uint64_t value;
    int bucket, rank;
} mark;

static weft_status wait_for(const void *raw)
{
    const mark *m = raw;
    long sleep_ns = MIN_SLEEP_NS;
    for (int i = 0; atomic_load_explicit(m->at, memory_order_acquire) < m->value; i++) {
        if (atomic_load_explicit(&m->share->abandoned, memory_order_relaxed))
            return WEFT_ERROR(WEFT_INTERNAL, "the run ended before rank %d was done with expert %d",
                              m->rank, m->bucket);
        if (i < NUM_YIELDS) {
            sched_yield();
            continue;
        }
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
        sleep_ns = 2 * sleep_ns < MAX_SLEEP_NS ? 2 * sleep_ns : MAX_SLEEP_NS;
    }
    return WEFT_OK;
}

/* Only the lane whose gradient is next sets a mark. */
static weft_status set(const void *raw)
{
    const mark *m = raw;
    atomic_store_explicit(m->at, m->value, memory_order_release);
    return WEFT_OK;
}

static weft_expert_marks *marks_of(const weft_tier_run *t, int bucket)
{
    const weft_tier_guest home = weft_tier_home(t, bucket);
    return weft_parameters_marks_of(t->setup.parameters, home.rank, home.bucket);
}

static weft_status submit(const weft_tier_run *t, weft_lane *lane, const char *label,
                          weft_lane_function function, int bucket, bool steps, uint64_t value)
{
    weft_expert_marks *marks = marks_of(t, bucket);
    const weft_tier_guest home = weft_tier_home(t, bucket);
    const mark m = {t->share, steps ? &marks->stepped : &marks->landed, value, home.bucket,
                    home.rank};
    return weft_lane_submit(lane, label, function, &m, sizeof m);
}

/* --- who is where --------------------------------------------------------------------------- */

static weft_tier_shared_layer *shared_of(const weft_tier_run *t, const weft_tier_layer *l)
{
    return &t->share->layers[l - t->layers];
}

weft_tier_guest weft_tier_home(const weft_tier_run *t, int bucket)
{
    return bucket < t->num_experts ? (weft_tier_guest){t->share ? t->share->rank : 0, bucket}
                                   : t->share->guests[bucket - t->num_experts];
}

const void *weft_tier_host_weights(const weft_tier_run *t, int bucket)
{
    const weft_tier_guest home = weft_tier_home(t, bucket);
    return bucket < t->num_experts
               ? weft_parameters_weight(t->setup.parameters, WEFT_SECTION_EXPERT, bucket,
                                        weft_tier_section(t)->buckets[bucket].offset)
               : weft_parameters_weight_of(t->setup.parameters, home.rank, home.bucket);
}

float *weft_tier_host_gradient(const weft_tier_run *t, int bucket)
{
    const weft_tier_guest home = weft_tier_home(t, bucket);
    return bucket < t->num_experts
               ? weft_parameters_grad(t->setup.parameters, WEFT_SECTION_EXPERT, bucket,
                                      weft_tier_section(t)->buckets[bucket].offset)
               : weft_parameters_grad_of(t->setup.parameters, home.rank, home.bucket);
}

int weft_tier_bucket(const weft_tier_run *t, const weft_tier_layer *l, int seat)
{
    return seat < l->num_experts ? l->first_bucket + seat
                                 : shared_of(t, l)->first_guest + seat - l->num_experts;
}

/* The bucket of one of the group's experts. */
static int bucket_of(const weft_tier_run *t, const weft_tier_layer *l, int expert)
{
    return weft_tier_bucket(
        t, l, weft_placing_seat(expert, t->share->rank * l->num_experts, l->num_experts));
}

weft_placing *weft_tier_placing(weft_tier_run *t)
{
    return &t->share->placing;
}

weft_status weft_tier_deal_out(weft_tier_run *t, int layer, const int64_t *sent,
                               weft_placement_part *parts, int32_t *first_part)
{
    const weft_tier_layer *l = weft_tier_layer_of(t, layer);
    const bool *keeps = shared_of(t, l)->keeps;
    weft_placing_find(&t->share->placing, l->num_experts, sent, keeps, parts, first_part);
    return weft_placing_check(&t->share->placing, keeps, parts, first_part);
}

/* --- steps ---------------------------------------------------------------------------------- */

weft_status weft_tier_wait_step(weft_tier_run *t, int bucket, weft_lane *lane)
{
    const weft_tier_expert *e = &t->experts[bucket];
    if (bucket < t->num_experts)
        return weft_lane_wait(lane, e->stepped);
    return submit(t, lane, "wait for an expert's step", wait_for, bucket, true, e->version);
}

weft_status weft_tier_end_update(weft_tier_run *t, int bucket, weft_lane *lane)
{
    const weft_tier_expert *e = &t->experts[bucket];
    if (t->share)
        WEFT_TRY(submit(t, lane, "an expert's step is over", set, bucket, true, e->version));
    return weft_lane_record(lane, e->stepped);
}

void weft_tier_share_change(weft_tier_run *t, int bucket)
{
    const weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    for (int r = 0; t->share && r < t->share->num_ranks; r++)
        if (r != t->share->rank)
            t->experts[bucket_of(t, l, r * l->num_experts + bucket - l->first_bucket)].version++;
}

weft_status weft_tier_share_reset(weft_tier_run *t)
{
    if (!t->share)
        return WEFT_OK;
    for (int b = 0; b < t->share->num_guests; b++)
        t->experts[t->num_experts + b].version++;
    for (int b = 0; b < t->num_experts; b++)
        atomic_store(&marks_of(t, b)->stepped, t->experts[b].version);
    return weft_comm_barrier(t->share->group);
}

/* --- gradients ------------------------------------------------------------------------------ */

static int num_parts(const weft_tier_call *call, int expert)
{
    const weft_placement_part *first = &call->placed[call->first_placed[expert]];
    return first->num_rows == 0 ? 0 : call->first_placed[expert + 1] - call->first_placed[expert];
}

static int parts_before(const weft_tier_call *call, int expert, int rank)
{
    int before = 0;
    for (int32_t i = call->first_placed[expert]; i < call->first_placed[expert + 1]; i++)
        before += call->placed[i].rank < rank;
    return before;
}

void weft_tier_number(weft_tier_run *t, const weft_tier_layer *l, const weft_tier_call *call)
{
    for (int s = 0; s < l->num_seats; s++) {
        weft_tier_expert *e = &t->experts[weft_tier_bucket(t, l, s)];
        if (call->offsets[s + 1] == call->offsets[s])
            continue;
        if (!t->share) {
            e->stages = e->has_gradient;
            e->has_gradient = true;
            l->rows[s] += call->offsets[s + 1] - call->offsets[s];
            continue;
        }
        const weft_tier_shared_layer *shared = shared_of(t, l);
        t->counts.num_guests += s >= l->num_experts;
        const int x = weft_placing_expert(s, t->share->rank * l->num_experts, l->num_experts);
        e->landing = shared->landings[x] + (uint64_t)parts_before(call, x, t->share->rank);
        e->stages = e->landing > shared->begun[x];
    }
}

weft_status weft_tier_expect_landings(weft_tier_run *t, const weft_tier_layer *l,
                                      const weft_tier_call *call)
{
    if (!t->share)
        return WEFT_OK;
    weft_tier_shared_layer *shared = shared_of(t, l);
    const int first = t->share->rank * l->num_experts;
    for (int x = 0; x < l->num_seats; x++) {
        const int parts = num_parts(call, x);
        shared->landings[x] += (uint64_t)parts;
        const bool is_own = x >= first && x < first + l->num_experts;
        for (int i = 0; i < parts; i++) {
            const int32_t rows = call->placed[call->first_placed[x] + i].num_rows;
            shared->rows[x] += rows;
            if (is_own)
                l->rows[x - first] += rows;
        }
        if (parts == 0 || !is_own)
            continue;
        const int bucket = l->first_bucket + x - first;
        t->experts[bucket].has_gradient = true;
        WEFT_TRY(submit(t, t->share->landing, "wait for an expert's gradients", wait_for, bucket,
                        false, shared->landings[x]));
        WEFT_TRY(weft_lane_record(t->share->landing, t->experts[bucket].landed));
    }
    return WEFT_OK;
}

weft_status weft_tier_wait_landing(weft_tier_run *t, int bucket, weft_lane *lane)
{
    return t->share ? submit(t, lane, "wait for the gradients before", wait_for, bucket, false,
                             t->experts[bucket].landing)
                    : WEFT_OK;
}

weft_status weft_tier_land(weft_tier_run *t, int bucket, weft_lane *lane)
{
    weft_tier_expert *e = &t->experts[bucket];
    e->landed_at = ++t->num_landings;
    return t->share ? submit(t, lane, "a gradient has landed", set, bucket, false, e->landing + 1)
                    : weft_lane_record(lane, e->landed);
}

void weft_tier_share_begin(weft_tier_run *t)
{
    for (int i = 0; t->share && i < t->num_layers; i++)
        memcpy(t->share->layers[i].begun, t->share->layers[i].landings,
               (size_t)t->layers[i].num_seats * sizeof(uint64_t));
}

/* Chooses kept experts like weft_tier_choose_experts, for all ranks. */
void weft_tier_share_choose(weft_tier_run *t, const weft_tier_layer *l)
{
    if (!t->share)
        return;
    weft_tier_shared_layer *shared = shared_of(t, l);
    for (int first = 0; first < l->num_seats; first += l->num_experts) {
        for (int e = 0; e < l->num_experts; e++)
            shared->order[e] = first + e;
        weft_tier_sort_by_rows(shared->order, l->num_experts, shared->rows);
        for (int e = 0; e < l->num_experts; e++)
            shared->keeps[shared->order[e]] = e < l->num_kept;
    }
    memset(shared->rows, 0, (size_t)l->num_seats * sizeof *shared->rows);
}

/* --- making it ------------------------------------------------------------------------------ */

static weft_status make_layer(weft_tier_run *t, const weft_tier_layer *l)
{
    weft_tier_share *share = t->share;
    weft_tier_shared_layer *shared = shared_of(t, l);
    const size_t num = (size_t)l->num_seats;
    const int first = share->rank * l->num_experts;
    WEFT_TRY(WEFT_ARRAY(&t->arena, num + 1, &shared->landings));
    WEFT_TRY(WEFT_ARRAY(&t->arena, num + 1, &shared->begun));
    WEFT_TRY(WEFT_ARRAY(&t->arena, num + 1, &shared->rows));
    WEFT_TRY(WEFT_ARRAY(&t->arena, num + 1, &shared->keeps));
    WEFT_TRY(WEFT_ARRAY(&t->arena, num + 1, &shared->order));
    shared->first_guest = t->num_experts + share->num_guests;
    for (int s = l->num_experts; s < l->num_seats; s++) {
        const int x = weft_placing_expert(s, first, l->num_experts);
        share->guests[share->num_guests++] =
            (weft_tier_guest){x / l->num_experts, l->first_bucket + x % l->num_experts};
    }
    for (int x = 0; x < l->num_seats; x++)
        shared->keeps[x] = x % l->num_experts < l->num_kept;
    return WEFT_OK;
}

weft_status weft_tier_share_create(weft_tier_run *t)
{
    const weft_coords *coords = &weft_parameters_groups(t->setup.parameters)->coords;
    weft_tier_share *share;
    size_t guests = 0;
    if (!weft_tier_is_placed(&t->options))
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(&t->arena, 1, &share));
    atomic_init(&share->abandoned, false);
    share->num_ranks = coords->size[WEFT_AXIS_EP];
    share->rank = coords->at[WEFT_AXIS_EP];
    t->share = share;
    for (int i = 0; i < t->num_layers; i++) {
        weft_tier_layer *l = &t->layers[i];
        l->num_seats = weft_tier_num_seats(&t->options, l->num_experts, share->num_ranks);
        guests += (size_t)(l->num_seats - l->num_experts);
    }
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)t->num_layers + 1, &share->layers));
    WEFT_TRY(WEFT_ARRAY(&t->arena, guests + 1, &share->guests));
    for (int i = 0; i < t->num_layers; i++) {
        t->layers[i].num_kept = weft_tier_num_kept(&t->options, t->layers[i].num_experts);
        WEFT_TRY(make_layer(t, &t->layers[i]));
    }
    return weft_lane_create(t->setup.device, 1, "landings", &share->landing);
}

/* A rank's rates where no pace is set: rough, and equal on every rank. */
static const double cpu_flops = 5e10, cpu_link = 8e9, gpu_flops = 3e14, gpu_link = 2.5e10;

/* A micro-batch uploads an expert twice, for forward and backward, and multiplies each of its
 * weights with a row thrice. */
static void set_times(const weft_tier_run *t, weft_placing_setup *out)
{
    const weft_device *device = t->setup.device;
    const bool is_cpu = strcmp(weft_device_name(device), "cpu") == 0;
    const weft_pace pace = weft_device_pace(device);
    const double flops = pace.flops > 0 ? pace.flops : is_cpu ? cpu_flops : gpu_flops;
    const double link = pace.link > 0 ? pace.link : is_cpu ? cpu_link : gpu_link;
    const double elements = (double)weft_tier_section(t)->buckets[0].count;
    out->upload_us = 2e6 * (double)weft_tier_weight_bytes(t, 0) / link;
    out->row_us = 6e6 * elements / flops;
}

/* Ranks that hold shards of the same experts must find the same placements. */
static weft_status check_shards(const weft_tier_run *t, weft_comm *shards, const int *nodes)
{
    int64_t *most;
    const size_t num = (size_t)t->share->num_ranks;
    weft_status status = WEFT_OK;
    if (!shards || weft_comm_size(shards) == 1)
        return WEFT_OK;
    most = malloc(num * sizeof *most);
    if (!most)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the nodes of %zu ranks", num);
    for (size_t r = 0; r < num; r++)
        most[r] = nodes[r];
    status = weft_comm_all_reduce_host(shards, most, num, WEFT_I64, WEFT_REDUCE_MAX);
    for (size_t r = 0; r < num && status == WEFT_OK; r++)
        if (most[r] != nodes[r])
            status =
                WEFT_KEY_ERROR("offload.placement",
                               "balanced with shards of an expert on nodes that other experts "
                               "do not share alike; home would, or expert_tensor_parallel_size "
                               "inside nodes");
    free(most);
    return weft_comm_agree(shards, status);
}

static weft_status init_placing(weft_tier_run *t, weft_comm *shards)
{
    const weft_tier_share *share = t->share;
    weft_placing_setup setup = {
        .num_ranks = share->num_ranks, .rank = share->rank, .replicas = (int)t->options.replicas};
    int *nodes;
    WEFT_TRY(WEFT_ARRAY(&t->arena, (size_t)share->num_ranks + 1, &nodes));
    for (int r = 0; r < share->num_ranks; r++)
        nodes[r] = weft_parameters_expert_node(t->setup.parameters, r);
    for (int i = 0; i < t->num_layers; i++)
        if (t->layers[i].num_seats > setup.num_experts)
            setup.num_experts = t->layers[i].num_seats;
    WEFT_TRY(check_shards(t, shards, nodes));
    bool alone = true;
    for (int r = 1; r < share->num_ranks; r++)
        alone = alone && nodes[r] == r;
    if (alone)
        weft_log(WEFT_LOG_INFO,
                 "offload.placement: home does as well: no two ranks that experts are dealt out "
                 "over share a node");
    setup.nodes = nodes;
    if (t->num_experts > 0)
        set_times(t, &setup);
    return weft_placing_init(&setup, &t->arena, &t->share->placing);
}

weft_status weft_tier_join(weft_tier_run *t, weft_comm *group, weft_comm *shards)
{
    if (!t->share)
        return WEFT_OK;
    t->share->group = group;
    WEFT_TRY(weft_parameters_join_experts(t->setup.parameters, group));
    return init_placing(t, shards);
}

void weft_tier_abandon(weft_tier_run *t)
{
    if (t && t->share)
        atomic_store(&t->share->abandoned, true);
}

void weft_tier_share_destroy(weft_tier_run *t)
{
    weft_tier_abandon(t);
    if (t->share)
        weft_lane_destroy(t->share->landing);
}
