#include "parallel/optimizer.h"

#include <stdlib.h>

#include <weft/kernels.h>

#include "parallel/optimizer_internal.h"

void weft_optimizer_share(const weft_optimizer *o, weft_section_kind kind, int bucket,
                          size_t *first, size_t *count)
{
    const weft_section *section = weft_parameters_section(o->parameters, kind);
    const weft_bucket *b = &section->buckets[bucket];
    *first = b->offset;
    *count = b->count;
    if (o->options.sharding != WEFT_NO_SHARD) {
        *count = b->count / (size_t)weft_comm_size(section->group);
        *first += *count * (size_t)weft_comm_rank(section->group);
    }
}

/* Whether this rank stands for its replicas: of the ranks that hold the same elements of the
 * parameter and its state, exactly one does. */
static bool stands_for_replicas(const weft_optimizer *o, const weft_placed *placed)
{
    const weft_coords *coords = &weft_parameters_groups(o->parameters)->coords;
    bool is_expert = placed->parameter.spec->is_expert;
    const weft_axis axes[2] = {is_expert ? WEFT_AXIS_EP : WEFT_AXIS_TP,
                               is_expert ? WEFT_AXIS_ETP : WEFT_AXIS_NONE};

    if (placed->parameter.tied_copy)
        return false;
    for (int a = 0; a < 2 && axes[a] != WEFT_AXIS_NONE; a++) {
        bool is_split = false;
        for (int d = 0; d < placed->shard.num_dims; d++)
            is_split = is_split || placed->shard.axis[d] == axes[a];
        if (!is_split && coords->at[axes[a]] != 0)
            return false;
    }
    const weft_section *section = weft_parameters_section(o->parameters, placed->section);
    return o->options.sharding != WEFT_NO_SHARD || weft_comm_rank(section->group) == 0;
}

static void add_piece(weft_optimizer *o, const weft_owned *owned, const weft_placed *placed)
{
    size_t first = placed->offset > owned->first ? placed->offset : owned->first;
    size_t placed_end = placed->offset + placed->count, owned_end = owned->first + owned->count;
    size_t end = placed_end < owned_end ? placed_end : owned_end;

    if (first >= end)
        return;
    o->pieces[o->num_pieces++] = (weft_owned_piece){.placed = placed,
                                                    .first = first - placed->offset,
                                                    .count = end - first,
                                                    .at = first,
                                                    .state = owned->state + first - owned->first,
                                                    .counted = stands_for_replicas(o, placed)};
}

static bool is_frozen(const weft_owned_piece *piece)
{
    return piece->placed->parameter.frozen;
}

/* One AdamW call for each run of pieces with one weight decay, none for what is frozen. The padding
 * after a piece goes with it: weights and gradients are zero there and stay so. */
static void add_updates(weft_optimizer *o, const weft_owned *owned, int first_piece)
{
    for (int i = first_piece; i < o->num_pieces; i++) {
        const weft_owned_piece *piece = &o->pieces[i];
        bool last = i + 1 == o->num_pieces;
        size_t end = last ? owned->first + owned->count : o->pieces[i + 1].at;
        float decay =
            piece->placed->parameter.spec->no_weight_decay ? 0.0f : (float)o->options.weight_decay;
        bool follows = i > first_piece && !is_frozen(&o->pieces[i - 1]);
        weft_update *previous = follows ? &o->updates[o->num_updates - 1] : NULL;
        if (is_frozen(piece))
            continue;
        if (previous && previous->weight_decay == decay)
            previous->count = end - previous->first;
        else
            o->updates[o->num_updates++] = (weft_update){.first = piece->at,
                                                         .count = end - piece->at,
                                                         .state = piece->state,
                                                         .weight_decay = decay};
    }
}

/* One sum of squares for each run of pieces that count. Gradients of padding are zero. */
static void add_norm_runs(weft_optimizer *o, int first_piece)
{
    for (int i = first_piece; i < o->num_pieces; i++) {
        const weft_owned_piece *piece = &o->pieces[i];
        const float *grad = weft_parameters_grad(o->parameters, piece->placed->section,
                                                 piece->placed->bucket, piece->at);
        if (!piece->counted || is_frozen(piece))
            continue;
        if (i == first_piece || !piece[-1].counted || is_frozen(&piece[-1]))
            o->norm_runs[o->num_norm_runs++] = (weft_norm_run){.grad = grad, .first_piece = i};
        weft_norm_run *run = &o->norm_runs[o->num_norm_runs - 1];
        run->count = (size_t)(grad - run->grad) + piece->count;
        run->end_piece = i + 1;
    }
}

/* The owned parts of a bucket's parameters, in the order in which they lie. */
static void add_pieces(weft_optimizer *o, const weft_owned *range)
{
    for (int decays = 1; decays >= 0; decays--) {
        for (int i = weft_parameters_count(o->parameters) - 1; i >= 0; i--) {
            const weft_placed *placed = weft_parameters_at(o->parameters, i);
            const int before = o->num_pieces;
            if (placed->section != range->section || placed->bucket != range->bucket ||
                placed->parameter.spec->no_weight_decay == decays)
                continue;
            add_piece(o, range, placed);
            o->piece_of[i] = o->num_pieces > before ? before : -1;
        }
    }
}

/* Cuts what this rank updates into owned ranges, pieces, sums of squares and AdamW calls.
 */
static weft_status lay_out(weft_optimizer *o)
{
    int num_parameters = weft_parameters_count(o->parameters), num_buckets = 0;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        num_buckets += weft_parameters_section(o->parameters, (weft_section_kind)kind)->num_buckets;

    void *owned, *pieces, *updates, *norm_runs, *piece_of;
    size_t capacity = (size_t)num_parameters + 1;
    WEFT_TRY(weft_arena_alloc_array(&o->arena, (size_t)num_buckets + 1, sizeof *o->owned, &owned));
    WEFT_TRY(weft_arena_alloc_array(&o->arena, capacity, sizeof *o->pieces, &pieces));
    WEFT_TRY(weft_arena_alloc_array(&o->arena, capacity, sizeof *o->updates, &updates));
    WEFT_TRY(weft_arena_alloc_array(&o->arena, capacity, sizeof *o->norm_runs, &norm_runs));
    WEFT_TRY(weft_arena_alloc_array(&o->arena, capacity, sizeof *o->piece_of, &piece_of));
    o->piece_of = piece_of;
    o->norm_runs = norm_runs;
    o->owned = owned;
    o->pieces = pieces;
    o->updates = updates;

    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *section =
            weft_parameters_section(o->parameters, (weft_section_kind)kind);
        o->first_owned[kind] = o->num_owned;
        for (int b = 0; b < section->num_buckets; b++) {
            weft_owned *range = &o->owned[o->num_owned++];
            *range = (weft_owned){
                .section = (weft_section_kind)kind, .bucket = b, .state = o->state_count};
            weft_optimizer_share(o, range->section, b, &range->first, &range->count);
            o->state_count += range->count;
            int first_piece = o->num_pieces;
            add_pieces(o, range);
            range->first_update = o->num_updates;
            add_updates(o, range, first_piece);
            range->end_update = o->num_updates;
            add_norm_runs(o, first_piece);
        }
    }
    return WEFT_OK;
}

static weft_status order_buckets(weft_optimizer *o)
{
    weft_cut_sections cut;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *section =
            weft_parameters_section(o->parameters, (weft_section_kind)kind);
        cut.buckets[kind] = section->buckets;
        cut.num_buckets[kind] = section->num_buckets;
        cut.group_size[kind] = section->group_size;
    }
    return weft_buckets_order(&cut, &weft_parameters_groups(o->parameters)->mesh,
                              o->options.overlap, o->options.sharding, &o->arena, &o->buckets);
}

int weft_optimizer_num_buckets(const weft_optimizer *o)
{
    return o->buckets.count;
}

weft_bucket_shape weft_optimizer_bucket(const weft_optimizer *o, int bucket)
{
    return o->buckets.shapes[bucket];
}

static size_t norm_sums_bytes(const weft_optimizer *o)
{
    return ((size_t)o->num_norm_runs + 1) * sizeof(double);
}

static weft_status allocate_norm(weft_optimizer *o, weft_space space, weft_norm_buffers *out)
{
    void *memory;

    out->bytes = weft_optimizer_norm_bytes(weft_parameters_count(o->parameters));
    WEFT_TRY(
        weft_device_alloc_for(weft_parameters_device(o->parameters), space,
                              space == WEFT_SPACE_DEVICE ? WEFT_MEMORY_OTHER : WEFT_MEMORY_PINNED,
                              out->bytes, "gradient norm", &memory));
    out->sums = memory;
    out->grad_scale = (float *)((char *)memory + norm_sums_bytes(o));
    return WEFT_OK;
}

static bool splits(const weft_optimizer *o)
{
    return o->options.split_master && weft_parameters_dtype(o->parameters) == WEFT_BF16;
}

static weft_status allocate(weft_optimizer *o)
{
    weft_device *device = weft_parameters_device(o->parameters);
    static const char *const purposes[WEFT_NUM_STATES] = {
        "fp32 master weights", "optimizer exp_avg", "optimizer exp_avg_sq"};

    for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
        bool is_master = kind == WEFT_STATE_MASTER, is_low = is_master && splits(o);
        size_t bytes = o->state_count * (is_low ? sizeof *o->low : sizeof(float));
        void *memory;
        if ((is_master && weft_parameters_dtype(o->parameters) == WEFT_F32) || bytes == 0)
            continue;
        WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_OPTIMIZER, bytes,
                                       purposes[kind], &memory));
        if (is_low)
            o->low = memory;
        else
            o->state[kind] = memory;
    }
    WEFT_TRY(allocate_norm(o, WEFT_SPACE_DEVICE, &o->device_norm));
    return allocate_norm(o, WEFT_SPACE_PINNED, &o->host_norm);
}

static weft_status clear_state(weft_optimizer *o, weft_lane *lane, weft_state_kind first)
{
    for (int kind = first; kind < WEFT_NUM_STATES; kind++) {
        if (o->state[kind])
            WEFT_TRY(weft_lane_zero(lane, o->state[kind], o->state_count * sizeof(float)));
    }
    if (o->low && first == WEFT_STATE_MASTER)
        WEFT_TRY(weft_lane_zero(lane, o->low, o->state_count * sizeof *o->low));
    return WEFT_OK;
}

static weft_status init(weft_optimizer *o)
{
    weft_lane *lane;
    WEFT_TRY(lay_out(o));
    WEFT_TRY(order_buckets(o));
    WEFT_TRY(allocate(o));
    WEFT_TRY(weft_lane_create(weft_parameters_device(o->parameters), 0, "optimizer", &lane));
    weft_status status = clear_state(o, lane, WEFT_STATE_MASTER);
    if (status == WEFT_OK)
        status = weft_lane_sync(lane);
    weft_lane_destroy(lane);
    return status;
}

weft_status weft_optimizer_create(weft_parameters *parameters,
                                  const weft_optimizer_options *options, weft_optimizer **out)
{
    weft_comm *world = weft_parameters_groups(parameters)->world;
    weft_optimizer *o = calloc(1, sizeof *o);
    weft_status status;

    if (o) {
        o->parameters = parameters;
        o->options = *options;
        if (options->loss_scale.initial > 0)
            o->loss_scale = weft_loss_scale_start(&options->loss_scale);
        status = init(o);
    } else {
        status = WEFT_ERROR(WEFT_MEMORY, "no memory for an optimizer");
    }
    status = weft_comm_agree(world, status);
    if (status != WEFT_OK) {
        weft_optimizer_destroy(o);
        return status;
    }
    *out = o;
    return WEFT_OK;
}

void weft_optimizer_destroy(weft_optimizer *o)
{
    if (!o)
        return;
    weft_device *device = weft_parameters_device(o->parameters);
    for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
        if (o->state[kind])
            weft_device_free(device, WEFT_SPACE_DEVICE, o->state[kind],
                             o->state_count * sizeof(float));
    }
    if (o->low)
        weft_device_free(device, WEFT_SPACE_DEVICE, o->low, o->state_count * sizeof *o->low);
    if (o->device_norm.sums)
        weft_device_free(device, WEFT_SPACE_DEVICE, o->device_norm.sums, o->device_norm.bytes);
    if (o->host_norm.sums)
        weft_device_free(device, WEFT_SPACE_PINNED, o->host_norm.sums, o->host_norm.bytes);
    weft_arena_release(&o->arena);
    free(o);
}

weft_status weft_optimizer_initialize(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    WEFT_TRY(clear_state(o, lane, WEFT_STATE_EXP_AVG));
    return weft_parameters_dtype(o->parameters) == WEFT_F32
               ? weft_optimizer_initialize_weights(o, lane, seed)
               : weft_optimizer_initialize_masters(o, lane, seed);
}

int weft_optimizer_num_pieces(const weft_optimizer *o)
{
    return o->num_pieces;
}

weft_state_piece weft_optimizer_piece(const weft_optimizer *o, int index)
{
    const weft_owned_piece *piece = &o->pieces[index];
    weft_state_piece out = {.placed = piece->placed,
                            .first = piece->first,
                            .count = piece->count,
                            .writer = piece->counted};
    for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
        if (o->state[kind])
            out.data[kind] = o->state[kind] + piece->state;
        else if (o->low)
            out.data[kind] = weft_parameters_grad(o->parameters, piece->placed->section,
                                                  piece->placed->bucket, piece->at);
        else
            out.data[kind] = weft_parameters_weight(o->parameters, piece->placed->section,
                                                    piece->placed->bucket, piece->at);
    }
    return out;
}
