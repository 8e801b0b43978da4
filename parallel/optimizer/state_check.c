#include "parallel/optimizer/optimizer.h"

#include <string.h>

#include <weft/kernels.h>

#include "parallel/optimizer/internal.h"

enum { WEIGHT, MASTER, EXP_AVG, EXP_AVG_SQ, NUM_ARRAYS };
enum { LEFT, SEEN, NUM_SETS };
static const char *const names[NUM_ARRAYS] = {"weight", "master", "exp_avg", "exp_avg_sq"};

/* Memory of both kinds: the ends of all parts, then each owned range's hashes,
 * [NUM_SETS][NUM_ARRAYS][its parts]. A part is an owned piece, with the padding behind it. */
struct weft_state_check {
    uint64_t *device, *host;
    size_t bytes;      /* of each */
    int *first_part;   /* by owned range, and behind the last */
    bool *has, *looks; /* by owned range: hashes are left; they have been looked at since */
    bool leaves;
};

typedef struct state_array {
    const void *data; /* NULL: there is none */
    size_t element_bytes;
} state_array;

static state_array array_of(const weft_optimizer *o, const weft_owned *owned, int array)
{
    const uint16_t *low = weft_optimizer_low(o, owned, owned->state);
    if (array == WEIGHT)
        return (state_array){
            weft_parameters_weight(o->parameters, owned->section, owned->bucket, owned->first),
            weft_dtype_bytes(weft_parameters_dtype(o->parameters))};
    if (array == MASTER && low)
        return (state_array){low, sizeof *low};
    return (state_array){
        weft_optimizer_state(o, owned, array - MASTER + WEFT_STATE_MASTER, owned->state),
        sizeof(float)};
}

static int num_parts_of(const struct weft_state_check *c, int range)
{
    return c->first_part[range + 1] - c->first_part[range];
}

/* Where the hashes of a range begin, in elements of either memory. */
static size_t hashes_at(const weft_optimizer *o, int range, int set)
{
    const struct weft_state_check *c = o->state_check;
    return (size_t)o->part.num_pieces + (size_t)c->first_part[range] * NUM_SETS * NUM_ARRAYS +
           (size_t)(set * NUM_ARRAYS * num_parts_of(c, range));
}

static weft_status hash_range(const weft_optimizer *o, int range, int set, weft_lane *lane)
{
    const struct weft_state_check *c = o->state_check;
    const weft_owned *owned = &o->part.owned[range];
    const size_t num_parts = (size_t)num_parts_of(c, range);
    uint64_t *hashes = c->device + hashes_at(o, range, set);
    WEFT_TRY(weft_lane_zero(lane, hashes, NUM_ARRAYS * num_parts * sizeof *hashes));
    for (int array = 0; array < NUM_ARRAYS; array++) {
        const state_array a = array_of(o, owned, array);
        if (a.data)
            WEFT_TRY(
                weft_hash(lane, &WEFT_ARGS(weft_hash_args, .count = owned->count, .x = a.data,
                                           .element_bytes = a.element_bytes, .num_parts = num_parts,
                                           .ends = c->device + c->first_part[range],
                                           .hashes = hashes + (size_t)array * num_parts)));
    }
    return WEFT_OK;
}

static weft_status look(const weft_optimizer *o, int range, weft_lane *lane)
{
    struct weft_state_check *c = o->state_check;
    const size_t at = hashes_at(o, range, LEFT);
    const size_t count = (size_t)(NUM_SETS * NUM_ARRAYS * num_parts_of(c, range));
    WEFT_TRY(hash_range(o, range, SEEN, lane));
    c->looks[range] = true;
    return weft_lane_copy(lane, c->host + at, c->device + at, count * sizeof *c->host);
}

/* --- around an update ------------------------------------------------------------------------- */

static bool is_checked(const weft_optimizer *o, int bucket)
{
    const weft_bucket_shape *shape = &o->buckets.shapes[bucket];
    return o->state_check && !weft_bucket_is_offloaded(shape) && !weft_bucket_is_staged(shape) &&
           !weft_optimizer_on_host(o, bucket);
}

weft_status weft_state_check_before(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    if (!is_checked(o, bucket))
        return WEFT_OK;
    for (int i = (int)(owned - o->part.owned), end = i + num_owned; i < end; i++)
        if (o->state_check->has[i])
            WEFT_TRY(look(o, i, lane));
    return WEFT_OK;
}

weft_status weft_state_check_behind(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    struct weft_state_check *c = o->state_check;
    if (!is_checked(o, bucket))
        return WEFT_OK;
    for (int i = (int)(owned - o->part.owned), end = i + num_owned; i < end; i++) {
        c->has[i] = c->leaves && num_parts_of(c, i) > 0;
        if (c->has[i])
            WEFT_TRY(hash_range(o, i, LEFT, lane));
    }
    return WEFT_OK;
}

void weft_state_check_leave(weft_optimizer *o, bool leaves)
{
    if (o->state_check)
        o->state_check->leaves = leaves;
}

void weft_state_check_forget(weft_optimizer *o)
{
    for (int i = 0; o->state_check && i < o->part.num_owned; i++)
        o->state_check->has[i] = o->state_check->looks[i] = false;
}

/* --- what was found --------------------------------------------------------------------------- */

static void note(const weft_optimizer *o, int range, int hash, weft_state_change *change)
{
    const struct weft_state_check *c = o->state_check;
    const int num_parts = num_parts_of(c, range), part = c->first_part[range] + hash % num_parts;
    if (change->rank >= 0)
        return;
    change->rank = weft_comm_rank(weft_parameters_groups(o->parameters)->world);
    memcpy(change->name, o->part.pieces[part].placed->parameter.name, sizeof change->name);
    strncpy(change->array, names[hash / num_parts], sizeof change->array - 1);
}

static void compare(const weft_optimizer *o, weft_state_change *change)
{
    const struct weft_state_check *c = o->state_check;
    for (int i = 0; i < o->part.num_owned; i++) {
        const uint64_t *left = c->host + hashes_at(o, i, LEFT);
        const uint64_t *seen = c->host + hashes_at(o, i, SEEN);
        for (int k = 0; c->looks[i] && k < NUM_ARRAYS * num_parts_of(c, i); k++)
            if (left[k] != seen[k])
                note(o, i, k, change);
        c->looks[i] = false;
    }
}

static weft_status look_again(const weft_optimizer *o, weft_lane *lane, weft_state_change *change)
{
    for (int i = 0; i < o->part.num_owned; i++)
        if (o->state_check->has[i])
            WEFT_TRY(look(o, i, lane));
    WEFT_TRY(weft_lane_sync(lane));
    compare(o, change);
    return WEFT_OK;
}

weft_status weft_state_check_take(weft_optimizer *o, bool looks, weft_lane *lane,
                                  weft_state_change *out)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    weft_state_change change = {.rank = -1};
    if (o->state_check) {
        compare(o, &change);
        if (looks)
            WEFT_TRY(look_again(o, lane, &change));
    }
    int64_t first = change.rank >= 0 ? change.rank : INT64_MAX;
    WEFT_TRY(weft_comm_all_reduce_host(world, &first, 1, WEFT_I64, WEFT_REDUCE_MIN));
    if (first != INT64_MAX)
        WEFT_TRY(weft_comm_broadcast_host(world, &change, sizeof change, (int)first));
    *out = change;
    return WEFT_OK;
}

/* --- room ------------------------------------------------------------------------------------- */

static weft_status list_parts(weft_optimizer *o, struct weft_state_check *c)
{
    const size_t num = (size_t)o->part.num_owned + 1;
    int part = 0;
    void *memory;
    WEFT_TRY(WEFT_ARRAY(&o->arena, num, &c->first_part));
    WEFT_TRY(weft_arena_alloc_array(&o->arena, num, 2 * sizeof *c->has, &memory));
    memset(memory, 0, num * 2 * sizeof *c->has);
    c->has = memory;
    c->looks = c->has + num;
    for (int i = 0; i < o->part.num_owned; i++) {
        const weft_owned *owned = &o->part.owned[i];
        c->first_part[i] = part;
        for (;
             part < o->part.num_pieces && o->part.pieces[part].state < owned->state + owned->count;
             part++)
            c->host[part] = o->part.pieces[part].at + o->part.pieces[part].count - owned->first;
    }
    c->first_part[o->part.num_owned] = part;
    return WEFT_OK;
}

weft_status weft_state_check_make(weft_optimizer *o, int num_parts, weft_lane *lane)
{
    weft_device *device = weft_parameters_device(o->parameters);
    const size_t bytes = weft_state_check_bytes(num_parts);
    void *memory;
    if (!o->options.checks_state || bytes == 0)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc_array(&o->arena, 1, sizeof *o->state_check, &memory));
    struct weft_state_check *c = o->state_check = memory;
    *c = (struct weft_state_check){.bytes = bytes};
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_OTHER, bytes,
                                   "hashes of state", &memory));
    c->device = memory;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, bytes,
                                   "hashes of state", &memory));
    c->host = memory;
    WEFT_TRY(list_parts(o, c));
    return o->part.num_pieces > 0 ? weft_lane_copy(lane, c->device, c->host,
                                                   (size_t)o->part.num_pieces * sizeof *c->host)
                                  : WEFT_OK;
}

void weft_state_check_free(weft_optimizer *o)
{
    weft_device *device = weft_parameters_device(o->parameters);
    struct weft_state_check *c = o->state_check;
    if (c && c->device)
        weft_device_free(device, WEFT_SPACE_DEVICE, c->device, c->bytes);
    if (c && c->host)
        weft_device_free(device, WEFT_SPACE_PINNED, c->host, c->bytes);
}
