#include "parallel/optimizer/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "parallel/optimizer/internal.h"

enum { STAGING_BYTES = 1 << 20 };

typedef struct comparison {
    weft_optimizer *o;
    weft_lane *lane;
    bool mends, on_device; /* memory that the host does not read */
    char *staging;         /* [STAGING_BYTES] where it is */
    XXH64_state_t *state;
    int *units;       /* of weft_parameters_at; [number of parameters] */
    uint64_t *hashes; /* [ranks of the largest group][number of parameters], then this rank's */
    uint64_t *own;
    weft_replica_report report; /* this rank's */
} comparison;

/* What is done with each array of a parameter. */
typedef weft_status (*array_function)(comparison *c, weft_comm *group, int root, void *data,
                                      size_t bytes);

static weft_status hash_array(comparison *c, weft_comm *group, int root, void *data, size_t bytes)
{
    (void)group;
    (void)root;
    if (!c->on_device) {
        XXH64_update(c->state, data, bytes);
        return WEFT_OK;
    }
    for (size_t at = 0; at < bytes; at += STAGING_BYTES) {
        const size_t piece = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        WEFT_TRY(weft_lane_copy(c->lane, c->staging, (char *)data + at, piece));
        WEFT_TRY(weft_lane_sync(c->lane));
        XXH64_update(c->state, c->staging, piece);
    }
    return WEFT_OK;
}

static weft_status take_array(comparison *c, weft_comm *group, int root, void *data, size_t bytes)
{
    return weft_broadcast(group, c->lane, data, bytes, root);
}

static weft_status each_weight(comparison *c, const weft_placed *placed, weft_comm *group, int root,
                               array_function function)
{
    const weft_parameters *p = c->o->parameters;
    const size_t part = weft_placed_part(placed);
    for (size_t e = 0; e < weft_placed_parts(placed); e++) {
        const size_t bytes = part * weft_dtype_bytes(weft_parameters_dtype(p));
        WEFT_TRY(function(c, group, root, weft_parameters_weight_at(p, placed, e * part), bytes));
    }
    return WEFT_OK;
}

static weft_status each_state(comparison *c, int parameter, weft_comm *group, int root,
                              array_function function)
{
    weft_optimizer *o = c->o;
    for (int i = o->part.piece_of[parameter]; i >= 0; i = o->part.pieces[i].next) {
        const weft_owned_piece *piece = &o->part.pieces[i];
        const weft_owned *owned = weft_optimizer_owner(o, piece);
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
            float *state = weft_optimizer_state(o, owned, kind, piece->state);
            if (state)
                WEFT_TRY(function(c, group, root, state, piece->count * sizeof *state));
        }
        uint16_t *low = weft_optimizer_low(o, owned, piece->state);
        if (low)
            WEFT_TRY(function(c, group, root, low, piece->count * sizeof *low));
    }
    return WEFT_OK;
}

/* What replicas of a parameter have in common. shares: the group's ranks share out state. */
static weft_status each_array(comparison *c, int parameter, bool shares, weft_comm *group, int root,
                              array_function function)
{
    const weft_placed *placed = weft_parameters_at(c->o->parameters, parameter);
    const weft_bucket *bucket =
        &weft_parameters_section(c->o->parameters, placed->section)->buckets[placed->bucket];
    if (!weft_parameters_shares(c->o->parameters, bucket, true))
        WEFT_TRY(each_weight(c, placed, group, root, function));
    return shares ? WEFT_OK : each_state(c, parameter, group, root, function);
}

static weft_status hash_unit(comparison *c, int parameter, bool shares, uint64_t *out)
{
    XXH64_reset(c->state, 0);
    WEFT_TRY(each_array(c, parameter, shares, NULL, 0, hash_array));
    *out = XXH64_digest(c->state);
    return WEFT_OK;
}

/* The rank of the group whose hash most have, and how many. */
static int find_most(const comparison *c, int unit, int num_units, int size, int *out_count)
{
    int best = 0;
    *out_count = 0;
    for (int a = 0; a < size; a++) {
        int count = 0;
        for (int b = 0; b < size; b++)
            count += c->hashes[b * num_units + unit] == c->hashes[a * num_units + unit];
        if (count > *out_count) {
            *out_count = count;
            best = a;
        }
    }
    return best;
}

static void note(comparison *c, int unit, int num_units, weft_comm *group, int best, int count)
{
    weft_replica_report *r = &c->report;
    const int size = weft_comm_size(group);
    int apart = 0;
    while (c->hashes[apart * num_units + unit] == c->hashes[best * num_units + unit])
        apart++;
    r->has_majority = (r->num_differ == 0 || r->has_majority) && 2 * count > size;
    if (r->num_differ++ > 0)
        return;
    memcpy(r->name, weft_parameters_at(c->o->parameters, c->units[unit])->parameter.name,
           sizeof r->name);
    strncpy(r->group, weft_comm_name(group), sizeof r->group - 1);
    r->rank = weft_comm_world_rank(group, apart);
    r->other = weft_comm_world_rank(group, best);
    r->num_replicas = size;
}

/* Compares the first num_units of c->units over a group. */
static weft_status compare(comparison *c, int num_units, weft_comm *group, bool shares)
{
    const int size = weft_comm_size(group);
    if (size == 1 || num_units == 0)
        return WEFT_OK;
    for (int i = 0; i < num_units; i++)
        WEFT_TRY(hash_unit(c, c->units[i], shares, &c->own[i]));
    WEFT_TRY(
        weft_comm_all_gather_host(group, c->own, c->hashes, (size_t)num_units * sizeof *c->hashes));
    for (int i = 0; i < num_units; i++) {
        int count;
        const int best = find_most(c, i, num_units, size, &count);
        const weft_placed *placed = weft_parameters_at(c->o->parameters, c->units[i]);
        if (count == size)
            continue;
        note(c, i, num_units, group, best, count);
        if (c->mends && 2 * count > size &&
            !weft_parameters_on_host(c->o->parameters, placed->section))
            WEFT_TRY(each_array(c, c->units[i], shares, group, best, take_array));
        else
            c->report.is_mended = false;
    }
    return weft_lane_sync(c->lane);
}

static bool is_split_over_tp(const weft_placed *placed)
{
    for (int d = 0; d < placed->shard.num_dims; d++)
        if (placed->shard.axis[d] == WEFT_AXIS_TP)
            return true;
    return false;
}

typedef enum replica_set { BY_GRADIENTS, BY_TENSOR, BY_SHARERS, BY_STAGES } replica_set;

/* Parameters of a section whose replicas are such a set. */
static int list_units(comparison *c, int section, replica_set set)
{
    const weft_parameters *p = c->o->parameters;
    int count = 0;
    for (int i = 0; i < weft_parameters_count(p); i++) {
        const weft_placed *placed = weft_parameters_at(p, i);
        if ((int)placed->section != section ||
            weft_parameters_records(p, placed->section) != NULL ||
            (set == BY_TENSOR && is_split_over_tp(placed)))
            continue;
        c->units[count++] = i;
    }
    return count;
}

static weft_status compare_all(comparison *c)
{
    const weft_groups *groups = weft_parameters_groups(c->o->parameters);
    const bool shares = c->o->options.sharding != WEFT_NO_SHARD;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *s = weft_parameters_section(c->o->parameters, (weft_section_kind)kind);
        if (s->group)
            WEFT_TRY(compare(c, list_units(c, kind, BY_GRADIENTS), s->group, shares));
        if (kind != WEFT_SECTION_EXPERT)
            WEFT_TRY(
                compare(c, list_units(c, kind, BY_TENSOR), groups->by_axis[WEFT_AXIS_TP], false));
        if (kind == WEFT_SECTION_DENSE_SHARED && weft_parameters_sharers(c->o->parameters))
            WEFT_TRY(compare(c, list_units(c, kind, BY_SHARERS),
                             weft_parameters_sharers(c->o->parameters), false));
        if (kind == WEFT_SECTION_EMBEDDING && groups->embedding)
            WEFT_TRY(compare(c, list_units(c, kind, BY_STAGES), groups->embedding, false));
    }
    return WEFT_OK;
}

/* The report of the lowest rank that has one, on all; counts are of all. */
static weft_status share_report(weft_comm *world, weft_replica_report *r)
{
    int64_t rank = r->num_differ > 0 ? weft_comm_rank(world) : INT64_MAX;
    int64_t all[3] = {r->num_differ, r->num_differ > 0 && !r->has_majority,
                      r->num_differ > 0 && !r->is_mended};
    WEFT_TRY(weft_comm_all_reduce_host(world, all, 3, WEFT_I64, WEFT_REDUCE_MAX));
    if (all[0] == 0)
        return WEFT_OK;
    WEFT_TRY(weft_comm_all_reduce_host(world, &rank, 1, WEFT_I64, WEFT_REDUCE_MIN));
    WEFT_TRY(weft_comm_broadcast_host(world, r, sizeof *r, (int)rank));
    r->has_majority = all[1] == 0;
    r->is_mended = all[2] == 0;
    return WEFT_OK;
}

static weft_status allocate(comparison *c)
{
    const weft_parameters *p = c->o->parameters;
    const weft_groups *groups = weft_parameters_groups(p);
    const size_t units = (size_t)weft_parameters_count(p) + 1;
    size_t most = (size_t)weft_comm_size(groups->by_axis[WEFT_AXIS_TP]);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        weft_comm *group = weft_parameters_section(p, (weft_section_kind)kind)->group;
        if (group && most < (size_t)weft_comm_size(group))
            most = (size_t)weft_comm_size(group);
    }
    most = most < 2 ? 2 : most; /* stages */
    c->units = calloc(units, sizeof *c->units);
    c->hashes = calloc((most + 1) * units, sizeof *c->hashes);
    c->staging = malloc(STAGING_BYTES);
    c->state = XXH64_createState();
    if (!c->units || !c->hashes || !c->staging || !c->state)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to compare replicas");
    c->own = c->hashes + most * units;
    return WEFT_OK;
}

weft_status weft_replicas_compare(weft_optimizer *o, bool mends, weft_lane *lane,
                                  weft_replica_report *out)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    comparison c = {.o = o, .lane = lane, .mends = mends, .report = {.is_mended = true}};
    c.on_device = strcmp(weft_device_name(weft_lane_device(lane)), "cpu") != 0;
    weft_status status = weft_comm_agree(world, allocate(&c));
    if (status == WEFT_OK)
        status = compare_all(&c);
    if (status == WEFT_OK)
        status = share_report(world, &c.report);
    if (status == WEFT_OK)
        *out = c.report;
    free(c.units);
    free(c.hashes);
    free(c.staging);
    XXH64_freeState(c.state);
    return status;
}
