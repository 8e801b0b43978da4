#include "parallel/residency.h"

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

weft_bucket_cut weft_bucket_cut_begin(size_t bucket_elements, int group_size)
{
    return (weft_bucket_cut){.bucket_elements = bucket_elements,
                             .share_align = WEFT_ALIGN_ELEMENTS * (size_t)group_size,
                             .unit = -1};
}

size_t weft_bucket_cut_end(const weft_bucket_cut *cut)
{
    return cut->start + round_up(cut->used - cut->start, cut->share_align);
}

bool weft_bucket_cut_next(weft_bucket_cut *cut, size_t elements, int unit)
{
    bool is_full = cut->bucket_elements && cut->used - cut->start + elements > cut->bucket_elements;
    bool begins = cut->num_buckets == 0 || is_full || unit != cut->unit;
    if (begins) {
        cut->start = cut->used = weft_bucket_cut_end(cut);
        cut->num_buckets++;
        cut->unit = unit;
    }
    cut->used += round_up(elements, WEFT_ALIGN_ELEMENTS);
    return begins;
}

weft_residency weft_residency_of(const weft_parallel_options *options, int num_layers)
{
    return (weft_residency){.bucket_elements = (size_t)options->ddp_bucket_size,
                            .sharding = weft_parallel_sharding(options),
                            .overlap = options->overlap_grad_reduce,
                            .num_layers = num_layers};
}

/* Whether a parameter may be of a unit. */
static bool may_share(const weft_residency *r, const weft_residency_parameter *p)
{
    const bool is_last = p->layer == r->num_layers - 1;
    return r->sharding >= WEFT_SHARD_OPTIM_GRADS &&
           (p->section == WEFT_SECTION_DENSE || p->section == WEFT_SECTION_EXPERT) &&
           p->group_size > 1 && !p->shared && p->used_forward == is_last;
}

static bool is_end(const weft_residency *r, int layer)
{
    return layer == 0 || layer == r->num_layers - 1;
}

void weft_residency_count(weft_residency *r, const weft_residency_parameter *p)
{
    if (!may_share(r, p))
        return;
    if (is_end(r, p->layer)) {
        r->ends[p->layer != 0] += p->elements;
        r->end_shares += (double)p->elements / p->group_size;
        return;
    }
    if (p->layer != r->layer) {
        r->layer = p->layer;
        r->elements = 0;
        r->num_between++;
    }
    r->elements += p->elements;
    r->largest = r->elements > r->largest ? r->elements : r->largest;
}

static int slots_for(int num_units)
{
    return num_units < 2 ? num_units : 2;
}

/* Slots are as large as the largest unit: a vocabulary may make them much larger. */
static bool keeps_ends_whole(const weft_residency *r)
{
    const size_t larger = r->ends[0] > r->ends[1] ? r->ends[0] : r->ends[1];
    const size_t slot = r->largest > larger ? r->largest : larger;
    const int num_units = r->num_between + (r->ends[0] > 0) + (r->ends[1] > 0);
    const double whole =
        slots_for(r->num_between) * (double)r->largest + (double)r->ends[0] + (double)r->ends[1];
    return slots_for(num_units) * (double)slot + r->end_shares >= whole;
}

int weft_residency_unit(const weft_residency *r, const weft_residency_parameter *p)
{
    return may_share(r, p) && !(is_end(r, p->layer) && keeps_ends_whole(r)) ? p->layer : -1;
}

/* Elements of the unit's buckets in the sections up to this one, the bucket itself left out. */
static size_t before_in_unit(const weft_cut_sections *cut, int kind, int bucket)
{
    const int unit = cut->buckets[kind][bucket].unit;
    size_t elements = 0;
    for (int k = 0; k <= kind; k++)
        for (int b = 0; b < (k == kind ? bucket : cut->num_buckets[k]); b++)
            elements += cut->buckets[k][b].unit == unit ? cut->buckets[k][b].count : 0;
    return elements;
}

/* Whether a unit's buckets of other sections come first. */
static bool begins_unit(const weft_bucket *bucket)
{
    return bucket->ring == 0;
}

void weft_residency_lay(const weft_residency *r, weft_cut_sections *cut, weft_held_elements *out)
{
    int num_units = 0;
    *out = (weft_held_elements){.slot = 0};
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        for (int b = 0; b < cut->num_buckets[kind]; b++) {
            weft_bucket *bucket = &cut->buckets[kind][b];
            const size_t share = bucket->count / (size_t)cut->group_size[kind];
            const bool shares = bucket->unit >= 0;
            bucket->weights = out->weights[kind];
            bucket->grads = out->grads[kind];
            out->weights[kind] +=
                shares && r->sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS ? share : bucket->count;
            out->grads[kind] += shares ? share : bucket->count;
            out->owned[kind] += r->sharding == WEFT_NO_SHARD ? bucket->count : share;
            if (!shares)
                continue;
            bucket->ring = before_in_unit(cut, kind, b);
            num_units += begins_unit(bucket);
            if (bucket->ring + bucket->count > out->slot)
                out->slot = bucket->ring + bucket->count;
        }
    const int slots = slots_for(num_units);
    out->weight_slots = r->sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS ? slots : 0;
    out->gradient_slots = r->overlap ? slots : slots > 0;
}
