#include "parallel/optimizer/optimizer.h"

#include <stdlib.h>

#include <weft/kernels.h>

#include "parallel/optimizer/internal.h"

/* Of bucket `part` of a run, or of a bucket. */
static weft_owned owned_of(const weft_optimizer *o, weft_section_kind kind, int bucket, int part)
{
    const weft_section *section = weft_parameters_section(o->parameters, kind);
    const weft_bucket *b = &section->buckets[bucket];
    weft_owned owned = {.section = kind,
                        .bucket = bucket,
                        .start = b->offset + (size_t)part * weft_bucket_part(b),
                        .count = weft_bucket_part(b),
                        .state = o->state_count,
                        .squares = b->has_squares ? o->squares_count : SIZE_MAX};
    owned.first = owned.start;
    if (o->options.sharding != WEFT_NO_SHARD) {
        owned.count /= (size_t)weft_comm_size(section->group);
        owned.first += owned.count * (size_t)weft_comm_rank(section->group);
    }
    return owned;
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
    if (placed->rows.count > 0 && coords->at[WEFT_AXIS_TP] % placed->rows.sharers != 0)
        return false;
    const weft_section *section = weft_parameters_section(o->parameters, placed->section);
    return o->options.sharding != WEFT_NO_SHARD || weft_comm_rank(section->group) == 0;
}

/* The local expert of a parameter that lies at or behind a bucket's start; 0 where it has none. */
static size_t expert_from(const weft_placed *placed, size_t start)
{
    const size_t stride = placed->parameter.expert_stride;
    return placed->experts == 0 || start <= placed->offset
               ? 0
               : (start - placed->offset + stride - 1) / stride;
}

static void add_piece(weft_optimizer *o, const weft_owned *owned, int index)
{
    const weft_placed *placed = weft_parameters_at(o->parameters, index);
    const size_t part = expert_from(placed, owned->start), elements = weft_placed_part(placed);
    const size_t begin = placed->offset + part * placed->parameter.expert_stride;
    const size_t first = begin > owned->first ? begin : owned->first;
    const size_t owned_end = owned->first + owned->count;
    const size_t end = begin + elements < owned_end ? begin + elements : owned_end;

    if (part >= weft_placed_parts(placed) || first >= end)
        return;
    o->part.pieces[o->part.num_pieces] =
        (weft_owned_piece){.placed = placed,
                           .bucket = owned->bucket,
                           .next = o->part.piece_of[index],
                           .first = part * elements + first - begin,
                           .count = end - first,
                           .at = first,
                           .state = owned->state + first - owned->first,
                           .counted = stands_for_replicas(o, placed)};
    o->part.piece_of[index] = o->part.num_pieces++;
}

static bool is_frozen(const weft_owned_piece *piece)
{
    return piece->placed->parameter.frozen;
}

static float sign_rate_of(const weft_owned_piece *piece)
{
    return piece->placed->parameter.spec->sign_rate;
}

static bool is_in_norm(const weft_owned_piece *piece)
{
    return piece->counted && !is_frozen(piece) && sign_rate_of(piece) == 0;
}

/* One AdamW call for each run of pieces with the same rules, none for what is frozen. The padding
 * after a piece goes with it: weights and gradients are zero there and stay so. A run goes on in
 * the next bucket of a run of these where that lies right behind: AdamW is element by element. */
static void add_updates(weft_optimizer *o, const weft_owned *owned, int first_piece,
                        int first_update)
{
    for (int i = first_piece; i < o->part.num_pieces; i++) {
        const weft_owned_piece *piece = &o->part.pieces[i];
        bool last = i + 1 == o->part.num_pieces;
        size_t end = last ? owned->first + owned->count : o->part.pieces[i + 1].at;
        const weft_parameter *parameter = &piece->placed->parameter;
        const float decay = parameter->wd_mult * (float)o->options.weight_decay;
        weft_update *previous =
            o->part.num_updates > first_update ? &o->part.updates[o->part.num_updates - 1] : NULL;
        if (is_frozen(piece))
            continue;
        if (previous && previous->weight_decay == decay &&
            previous->lr_mult == parameter->lr_mult && previous->sign_rate == sign_rate_of(piece) &&
            previous->by_muon == weft_parameters_by_muon(o->parameters, piece->placed) &&
            previous->first + previous->count == piece->at &&
            previous->state + previous->count == piece->state)
            previous->count = end - previous->first;
        else
            o->part.updates[o->part.num_updates++] =
                (weft_update){.first = piece->at,
                              .count = end - piece->at,
                              .state = piece->state,
                              .weight_decay = decay,
                              .lr_mult = parameter->lr_mult,
                              .sign_rate = sign_rate_of(piece),
                              .by_muon = weft_parameters_by_muon(o->parameters, piece->placed)};
    }
}

/* One sum of squares for each run of pieces of a bucket that count. Gradients of padding are zero.
 */
static void add_norm_runs(weft_optimizer *o, int first_piece)
{
    for (int i = first_piece; i < o->part.num_pieces; i++) {
        const weft_owned_piece *piece = &o->part.pieces[i];
        if (!is_in_norm(piece))
            continue;
        if (i == first_piece || !is_in_norm(&piece[-1]))
            o->part.norm_runs[o->part.num_norm_runs++] = (weft_norm_run){.first_piece = i};
        weft_norm_run *run = &o->part.norm_runs[o->part.num_norm_runs - 1];
        run->count = piece->at - o->part.pieces[run->first_piece].at + piece->count;
        run->end_piece = i + 1;
    }
}

/* The owned parts of a bucket's parameters, in the order in which they lie: those of experts as
 * they are declared, others the other way round. */
static void add_pieces(weft_optimizer *o, const weft_owned *range, bool of_experts)
{
    const int count = weft_parameters_count(o->parameters);
    for (int decays = 1; decays >= 0; decays--) {
        for (int k = 0; k < count; k++) {
            const int i = of_experts ? k : count - 1 - k;
            const weft_placed *placed = weft_parameters_at(o->parameters, i);
            if (placed->section == range->section && (placed->experts > 0) == of_experts &&
                placed->parameter.spec->no_weight_decay != decays)
                add_piece(o, range, i);
        }
    }
}

/* Cuts what this rank updates of a bucket, or run, into owned ranges, pieces, sums of squares and
 * AdamW calls. */
static void lay_out_bucket(weft_optimizer *o, weft_section_kind kind, int bucket)
{
    const weft_bucket *b = &weft_parameters_section(o->parameters, kind)->buckets[bucket];
    const int first_update = o->part.num_updates;
    o->part.first_owned[kind][bucket] = o->part.num_owned;
    for (int part = 0; part < weft_bucket_parts(b); part++) {
        weft_owned *range = &o->part.owned[o->part.num_owned++];
        const int first_piece = o->part.num_pieces;
        *range = owned_of(o, kind, bucket, part);
        o->state_count += range->count;
        o->squares_count += b->has_squares ? range->count : 0;
        range->first_piece = first_piece;
        add_pieces(o, range, b->num_experts > 0);
        range->end_piece = o->part.num_pieces;
        range->first_update = o->part.num_updates;
        add_updates(o, range, first_piece, first_update);
        range->end_update = o->part.num_updates;
        range->first_norm = o->part.num_norm_runs;
        add_norm_runs(o, first_piece);
        range->end_norm = o->part.num_norm_runs;
    }
}

static int count_parts(const weft_optimizer *o)
{
    size_t parts = 0;
    for (int i = 0; i < weft_parameters_count(o->parameters); i++)
        parts += weft_placed_parts(weft_parameters_at(o->parameters, i));
    return (int)parts;
}

static weft_status lay_out(weft_optimizer *o)
{
    const int num_parameters = weft_parameters_count(o->parameters);
    size_t capacity = (size_t)count_parts(o) + 1; /* of buckets, too: none is empty */
    WEFT_TRY(WEFT_ARRAY(&o->arena, capacity, &o->part.owned));
    WEFT_TRY(WEFT_ARRAY(&o->arena, capacity, &o->part.pieces));
    WEFT_TRY(WEFT_ARRAY(&o->arena, capacity, &o->part.updates));
    WEFT_TRY(WEFT_ARRAY(&o->arena, capacity, &o->part.norm_runs));
    WEFT_TRY(WEFT_ARRAY(&o->arena, capacity, &o->part.piece_of));
    for (int i = 0; i < num_parameters; i++)
        o->part.piece_of[i] = -1;

    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const int num_buckets =
            weft_parameters_section(o->parameters, (weft_section_kind)kind)->num_buckets;
        WEFT_TRY(WEFT_ARRAY(&o->arena, (size_t)num_buckets + 1, &o->part.first_owned[kind]));
        for (int b = 0; b < num_buckets; b++)
            lay_out_bucket(o, (weft_section_kind)kind, b);
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
    weft_residency residency = *weft_parameters_residency(o->parameters);
    residency.overlap = o->options.overlap;
    residency.sharding = o->options.sharding;
    return weft_buckets_order(&cut, &weft_parameters_groups(o->parameters)->mesh, &residency,
                              &o->arena, &o->buckets);
}

int weft_optimizer_num_buckets(const weft_optimizer *o)
{
    return o->buckets.count;
}

weft_bucket_shape weft_optimizer_bucket(const weft_optimizer *o, int bucket)
{
    return o->buckets.shapes[bucket];
}

static weft_status allocate_norm(weft_optimizer *o, weft_space space, weft_norm_buffers *out)
{
    void *memory;

    out->bytes = weft_optimizer_norm_bytes(count_parts(o));
    WEFT_TRY(
        weft_device_alloc_for(weft_parameters_device(o->parameters), space,
                              space == WEFT_SPACE_DEVICE ? WEFT_MEMORY_OTHER : WEFT_MEMORY_PINNED,
                              out->bytes, "gradient norm", &memory));
    const int parts = count_parts(o);
    out->ends = memory;
    out->sums = (double *)(void *)(out->ends + parts + 1);
    out->found = (int32_t *)(void *)(out->sums + o->part.num_norm_runs);
    out->grad_scale = (float *)(void *)(out->found + parts);
    return WEFT_OK;
}

static weft_status allocate_state(weft_optimizer *o, weft_state_memory *m)
{
    static const char *const purposes[WEFT_NUM_STATES] = {
        "fp32 master weights", "optimizer exp_avg", "optimizer exp_avg_sq"};
    for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
        bool is_master = kind == WEFT_STATE_MASTER, is_low = is_master && weft_optimizer_splits(o);
        size_t bytes = weft_state_count(m, kind) * (is_low ? sizeof *m->low : sizeof(float));
        void *memory;
        if ((is_master && weft_parameters_dtype(o->parameters) == WEFT_F32) || bytes == 0)
            continue;
        WEFT_TRY(weft_device_alloc_for(weft_parameters_device(o->parameters), m->space,
                                       m->space == WEFT_SPACE_PINNED ? WEFT_MEMORY_PINNED
                                                                     : WEFT_MEMORY_OPTIMIZER,
                                       bytes, purposes[kind], &memory));
        if (is_low)
            m->low = memory;
        else
            m->state[kind] = memory;
    }
    return WEFT_OK;
}

/* What is on the host lies behind the rest: experts are the last section, or it is all. */
static weft_status allocate(weft_optimizer *o)
{
    size_t first = o->state_count;
    const bool in_file = weft_parameters_records(o->parameters, WEFT_SECTION_EXPERT);
    for (int i = o->part.num_owned; i-- > 0;)
        if (weft_parameters_on_host(o->parameters, o->part.owned[i].section))
            first = o->part.owned[i].state;
    const size_t end = in_file ? first : o->state_count;
    if (weft_parameters_residency(o->parameters)->state_on_host)
        first = 0;
    o->memory[0] = (weft_state_memory){.space = WEFT_SPACE_DEVICE, .count = first};
    o->memory[1] =
        (weft_state_memory){.space = WEFT_SPACE_PINNED, .first = first, .count = end - first};
    for (int i = 0; i < 2; i++)
        o->memory[i].squares = o->memory[i].count;
    if (o->squares_count < o->state_count) /* Muon's state is on the device */
        o->memory[0].squares = o->squares_count;
    WEFT_TRY(weft_muon_make(o));
    WEFT_TRY(weft_optimizer_allocate_staged(o));
    for (int i = 0; i < 2; i++)
        WEFT_TRY(allocate_state(o, &o->memory[i]));
    WEFT_TRY(WEFT_ARRAY(&o->arena, (size_t)o->part.num_norm_runs + 1, &o->norm.host_sums));
    WEFT_TRY(weft_optimizer_make_debts(o));
    WEFT_TRY(allocate_norm(o, WEFT_SPACE_DEVICE, &o->norm.device));
    WEFT_TRY(allocate_norm(o, WEFT_SPACE_PINNED, &o->norm.host));
    WEFT_TRY(weft_look_make(o->parameters, o->options.host_threads, &o->arena, &o->norm.look));
    o->norm.look.device_ends = o->norm.device.ends;
    o->norm.look.found = o->norm.device.found;
    weft_parameters_use_look(o->parameters, &o->norm.look);
    return WEFT_OK;
}

static weft_status clear_state(weft_optimizer *o, weft_lane *lane, weft_state_kind first)
{
    for (int i = 0; i < 2; i++) {
        const weft_state_memory *m = &o->memory[i];
        for (int kind = first; kind < WEFT_NUM_STATES; kind++)
            if (m->state[kind])
                WEFT_TRY(weft_lane_zero(lane, m->state[kind],
                                        weft_state_count(m, kind) * sizeof(float)));
        if (m->low && first == WEFT_STATE_MASTER)
            WEFT_TRY(weft_lane_zero(lane, m->low, m->count * sizeof *m->low));
    }
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
        status = weft_look_start(&o->norm.look, lane);
    if (status == WEFT_OK)
        status = weft_state_check_make(o, count_parts(o), lane);
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
            o->judged.loss_scale = weft_loss_scale_start(&options->loss_scale);
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
    weft_parameters_use_look(o->parameters, NULL);
    weft_device *device = weft_parameters_device(o->parameters);
    for (int i = 0; i < 2; i++) {
        const weft_state_memory *m = &o->memory[i];
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++)
            weft_device_free(device, m->space, m->state[kind],
                             weft_state_count(m, kind) * sizeof(float));
        weft_device_free(device, m->space, m->low, m->count * sizeof *m->low);
    }
    weft_muon_free(o);
    weft_optimizer_free_staged(o);
    weft_state_check_free(o);
    if (o->norm.device.ends)
        weft_device_free(device, WEFT_SPACE_DEVICE, o->norm.device.ends, o->norm.device.bytes);
    if (o->norm.host.ends)
        weft_device_free(device, WEFT_SPACE_PINNED, o->norm.host.ends, o->norm.host.bytes);
    weft_arena_release(&o->arena);
    free(o);
}

weft_status weft_optimizer_initialize(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    weft_state_check_forget(o);
    WEFT_TRY(clear_state(o, lane, WEFT_STATE_EXP_AVG));
    WEFT_TRY(weft_parameters_dtype(o->parameters) == WEFT_F32
                 ? weft_optimizer_initialize_weights(o, lane, seed)
                 : weft_optimizer_initialize_masters(o, lane, seed));
    return weft_optimizer_stage_weights(o, lane);
}
