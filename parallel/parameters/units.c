/* Units: what a layer shares out, and the rings through which passes see it whole. */
#include <weft/kernels.h>

#include "parallel/parameters/internal.h"

/* Of each bucket of a run. */
static size_t share_of(const weft_section *section, const weft_bucket *bucket)
{
    return weft_bucket_part(bucket) / (size_t)section->group_size;
}

bool weft_parameters_shares(const weft_parameters *p, const weft_bucket *bucket, bool weights)
{
    return bucket->unit >= 0 &&
           (!weights || p->residency.sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS);
}

/* How far behind what this rank holds of a bucket an element of the section lies. */
static size_t in_kept(const weft_parameters *p, const weft_section *section,
                      const weft_bucket *bucket, size_t element, bool weights)
{
    const size_t at = element - bucket->offset, part = weft_bucket_part(bucket),
                 share = share_of(section, bucket);
    if (!weft_parameters_shares(p, bucket, weights))
        return at;
    return at / part * share + at % part - (size_t)section->group_rank * share;
}

/* Of a bucket in a file; NULL where it is not taken. */
static char *in_record(const weft_parameters *p, int bucket, weft_record_part part, size_t bytes)
{
    char *begin = weft_records_at(p->records, bucket, part);
    return begin ? begin + bytes : NULL;
}

void *weft_parameters_weight(const weft_parameters *p, weft_section_kind kind, int index,
                             size_t element)
{
    const weft_section *section = &p->sections[kind];
    const weft_bucket *bucket = &section->buckets[index];
    if (weft_parameters_records(p, kind))
        return in_record(p, index, WEFT_RECORD_WEIGHTS,
                         (element - bucket->offset) * weft_dtype_bytes(p->dtype));
    const size_t at = bucket->weights + in_kept(p, section, bucket, element, true);
    return (char *)section->weights + at * weft_dtype_bytes(p->dtype);
}

float *weft_parameters_grad(const weft_parameters *p, weft_section_kind kind, int index,
                            size_t element)
{
    const weft_section *section = &p->sections[kind];
    const weft_bucket *bucket = &section->buckets[index];
    if (weft_parameters_records(p, kind))
        return (void *)in_record(p, index, WEFT_RECORD_GRADIENT,
                                 (element - bucket->offset) * sizeof(float));
    return section->grads + bucket->grads + in_kept(p, section, bucket, element, false);
}

/* The bucket of a parameter that holds an element of the section. */
static int bucket_of(const weft_parameters *p, const weft_placed *placed, size_t element)
{
    const weft_bucket *buckets = p->sections[placed->section].buckets;
    int index = placed->bucket;
    while (buckets[index].offset + buckets[index].count <= element)
        index++;
    return index;
}

void *weft_parameters_weight_at(const weft_parameters *p, const weft_placed *placed, size_t element)
{
    const size_t at = placed->offset + weft_parameter_place(&placed->parameter, element);
    return weft_parameters_weight(p, placed->section, bucket_of(p, placed, at), at);
}

void weft_parameters_kept(const weft_parameters *p, const weft_placed *placed, size_t part,
                          size_t *first, size_t *count)
{
    const weft_section *section = &p->sections[placed->section];
    const size_t offset = placed->offset + part * placed->parameter.expert_stride;
    const weft_bucket *bucket = &section->buckets[bucket_of(p, placed, offset)];
    const bool shares = weft_parameters_shares(p, bucket, true);
    const size_t elements = weft_bucket_part(bucket), share = share_of(section, bucket);
    const size_t from = offset - (offset - bucket->offset) % elements +
                        (shares ? (size_t)section->group_rank * share : 0),
                 end = from + (shares ? share : elements);
    const size_t own = weft_placed_part(placed);
    const size_t begin = offset > from ? offset : from,
                 stop = offset + own < end ? offset + own : end;
    *first = part * own + begin - offset;
    *count = stop > begin ? stop - begin : 0;
}

/* --- rings --------------------------------------------------------------------------------- */

static weft_status make_ring(weft_parameters *p, int num_slots, int beside, size_t bytes,
                             weft_memory_purpose purpose, const char *name, weft_ring *ring)
{
    ring->bytes = bytes;
    ring->beside = beside;
    for (; ring->num_slots < num_slots + beside; ring->num_slots++)
        WEFT_TRY(weft_device_alloc_for(p->device, WEFT_SPACE_DEVICE, purpose, bytes, name,
                                       &ring->slots[ring->num_slots]));
    return WEFT_OK;
}

weft_status weft_parameters_make_rings(weft_parameters *p, bool with_grads)
{
    if (with_grads)
        WEFT_TRY(make_ring(p, p->held.gradient_slots, p->held.beside[false],
                           p->held.slot * sizeof(float), WEFT_MEMORY_GRADIENTS,
                           "gradients of a layer", &p->rings[false]));
    return make_ring(p, p->held.weight_slots, p->held.beside[true],
                     p->held.slot * weft_dtype_bytes(p->dtype), WEFT_MEMORY_WEIGHTS,
                     "weights of a layer", &p->rings[true]);
}

void weft_parameters_free_rings(weft_parameters *p)
{
    for (int weights = 0; weights < 2; weights++)
        while (p->rings[weights].num_slots > 0)
            weft_device_free(p->device, WEFT_SPACE_DEVICE,
                             p->rings[weights].slots[--p->rings[weights].num_slots],
                             p->rings[weights].bytes);
}

const weft_ring *weft_parameters_ring(const weft_parameters *p, bool weights)
{
    return &p->rings[weights];
}

bool weft_parameters_uses_ring(const weft_parameters *p, const weft_parameter *parameter,
                               bool weights)
{
    const weft_placed *placed = (const weft_placed *)parameter;
    return p->rings[weights].num_slots > 0 &&
           p->sections[placed->section].buckets[placed->bucket].unit >= 0;
}

static size_t in_slot(const weft_parameters *p, const weft_placed *placed)
{
    const weft_bucket *bucket = &p->sections[placed->section].buckets[placed->bucket];
    return bucket->ring + placed->offset - bucket->offset;
}

float *weft_parameters_in_ring(const weft_parameters *p, const weft_placed *placed, int slot)
{
    return (float *)p->rings[false].slots[slot] + in_slot(p, placed);
}

/* The first parameter of that layer or of one behind it: layers declare in their order. */
static int first_of(const weft_parameters *p, int layer)
{
    int from = 0, end = p->count;
    while (from < end) {
        const int middle = from + (end - from) / 2;
        if (p->placed[middle]->layer < layer)
            from = middle + 1;
        else
            end = middle;
    }
    return from;
}

static int unit_of(const weft_parameters *p, const weft_placed *placed)
{
    return p->sections[placed->section].buckets[placed->bucket].unit;
}

/* --- what passes do with them --------------------------------------------------------------- */

void weft_parameters_point(weft_parameters *p, int unit, int slot, bool weights)
{
    char *memory = p->rings[true].slots[slot];
    for (int i = first_of(p, unit); i < p->count && p->placed[i]->layer == unit; i++) {
        weft_placed *placed = p->placed[i];
        if (unit_of(p, placed) != unit)
            continue;
        if (weights)
            placed->parameter.weight.data =
                memory + in_slot(p, placed) * weft_dtype_bytes(p->dtype);
        else
            placed->parameter.grad = weft_parameters_in_ring(p, placed, slot);
    }
}

/* What is done with each bucket of a unit. */
typedef weft_status (*bucket_function)(weft_parameters *p, weft_section_kind kind, int bucket,
                                       int slot, bool overwrite, weft_lane *lane);

static weft_status each_bucket(weft_parameters *p, int unit, int slot, bool overwrite,
                               weft_lane *lane, bucket_function function)
{
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        for (int b = 0; b < p->sections[kind].num_buckets; b++)
            if (p->sections[kind].buckets[b].unit == unit)
                WEFT_TRY(function(p, (weft_section_kind)kind, b, slot, overwrite, lane));
    return WEFT_OK;
}

/* Padding is summed and stepped with the rest: it has to be zero. */
static weft_status clear_bucket(weft_parameters *p, weft_section_kind kind, int index, int slot,
                                bool overwrite, weft_lane *lane)
{
    (void)overwrite;
    const weft_bucket *bucket = &p->sections[kind].buckets[index];
    return weft_lane_zero(lane, (float *)p->rings[false].slots[slot] + bucket->ring,
                          bucket->count * sizeof(float));
}

weft_status weft_parameters_use_gradients(weft_parameters *p, int unit, int slot, weft_lane *lane)
{
    weft_parameters_point(p, unit, slot, false);
    return each_bucket(p, unit, slot, false, lane, clear_bucket);
}

static weft_comm *gather_group(const weft_parameters *p, int kind)
{
    return kind == WEFT_SECTION_EXPERT ? p->groups->gather_experts : p->groups->gather_dense;
}

static weft_status gather_bucket(weft_parameters *p, weft_section_kind kind, int index, int slot,
                                 bool overwrite, weft_lane *lane)
{
    (void)overwrite;
    const weft_section *section = &p->sections[kind];
    const weft_bucket *bucket = &section->buckets[index];
    const size_t bytes = weft_dtype_bytes(p->dtype), part = weft_bucket_part(bucket) * bytes,
                 share = share_of(section, bucket);
    const char *kept = (const char *)section->weights + bucket->weights * bytes;
    char *whole = (char *)p->rings[true].slots[slot] + bucket->ring * bytes;
    for (size_t i = 0; i < (size_t)weft_bucket_parts(bucket); i++)
        WEFT_TRY(weft_all_gather(gather_group(p, kind), lane, kept + i * share * bytes,
                                 whole + i * part, share, p->dtype));
    return WEFT_OK;
}

weft_status weft_parameters_gather(weft_parameters *p, int unit, int slot, weft_lane *lane)
{
    weft_parameters_point(p, unit, slot, true);
    return each_bucket(p, unit, slot, false, lane, gather_bucket);
}

weft_status weft_parameters_reserve(const weft_parameters *p, weft_lane *gather)
{
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        size_t most = 0;
        for (int b = 0; b < p->sections[kind].num_buckets; b++) {
            const weft_bucket *bucket = &p->sections[kind].buckets[b];
            if (bucket->unit >= 0 && weft_bucket_part(bucket) > most)
                most = weft_bucket_part(bucket);
        }
        if (most > 0)
            WEFT_TRY(weft_comm_reserve(gather_group(p, kind), gather,
                                       2 * most * weft_dtype_bytes(p->dtype)));
    }
    return WEFT_OK;
}

static weft_status reduce_part(const weft_section *section, float *whole, float *kept, size_t share,
                               bool overwrite, weft_lane *lane)
{
    float *own = whole + (size_t)section->group_rank * share;
    WEFT_TRY(weft_reduce_scatter(section->group, lane, whole, overwrite ? kept : own, share,
                                 WEFT_F32, WEFT_REDUCE_SUM));
    return overwrite ? WEFT_OK
                     : weft_add(lane, &WEFT_ARGS(weft_add_args, .count = share, .dtype = WEFT_F32,
                                                 .a = kept, .b = own, .y = kept));
}

static weft_status reduce_bucket(weft_parameters *p, weft_section_kind kind, int index, int slot,
                                 bool overwrite, weft_lane *lane)
{
    const weft_section *section = &p->sections[kind];
    const weft_bucket *bucket = &section->buckets[index];
    const size_t share = share_of(section, bucket);
    float *whole = (float *)p->rings[false].slots[slot] + bucket->ring;
    float *kept = section->grads + bucket->grads;
    if (p->look)
        WEFT_TRY(weft_look_at(p->look, kind, index, whole, bucket->count, lane));
    for (size_t i = 0; i < (size_t)weft_bucket_parts(bucket); i++)
        WEFT_TRY(reduce_part(section, whole + i * weft_bucket_part(bucket), kept + i * share, share,
                             overwrite, lane));
    return WEFT_OK;
}

void weft_parameters_use_look(weft_parameters *p, const weft_look *look)
{
    p->look = look;
}

weft_status weft_parameters_reduce(weft_parameters *p, int unit, int slot, bool overwrite,
                                   weft_lane *lane)
{
    return each_bucket(p, unit, slot, overwrite, lane, reduce_bucket);
}
