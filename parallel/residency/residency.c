#include "parallel/residency/residency.h"

#include "core/bucket.h"

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
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
    if (r->experts_on_host && p->section == WEFT_SECTION_EXPERT)
        return false;
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

/* Elements of the unit's buckets in front of this one, those of other sections first. */
static size_t before_in_unit(const weft_cut_sections *cut, int kind, int bucket)
{
    const int unit = cut->buckets[kind][bucket].unit;
    size_t elements = 0;
    for (int b = bucket - 1; b >= 0; b--) {
        const weft_bucket *before = &cut->buckets[kind][b];
        if (before->unit == unit)
            return before->ring + before->count;
    }
    for (int k = 0; k < kind; k++)
        for (int b = 0; b < cut->num_buckets[k]; b++)
            elements += cut->buckets[k][b].unit == unit ? cut->buckets[k][b].count : 0;
    return elements;
}

/* Whether a unit's buckets of other sections come first. */
static bool begins_unit(const weft_bucket *bucket)
{
    return bucket->ring == 0;
}

/* A bucket whose state alone lies in host memory. */
static void stage(size_t owned, weft_held_elements *out)
{
    out->staged = owned > out->staged ? owned : out->staged;
    out->stepped += owned;
    out->staging += out->staging < WEFT_BUCKET_STAGING;
}

void weft_residency_lay(const weft_residency *r, weft_cut_sections *cut, weft_held_elements *out)
{
    int num_units = 0;
    bool has_last = false;
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
            const size_t owned = r->sharding == WEFT_NO_SHARD ? bucket->count : share;
            out->owned[kind] += owned;
            out->squares[kind] += bucket->has_squares ? owned : 0;
            if (bucket->matrices.workspace_bytes > out->workspace_bytes)
                out->workspace_bytes = bucket->matrices.workspace_bytes;
            if (r->state_on_host && !(r->experts_on_host && kind == WEFT_SECTION_EXPERT))
                stage(owned, out);
            if (!shares)
                continue;
            bucket->ring = before_in_unit(cut, kind, b);
            has_last |= bucket->unit == r->num_layers - 1;
            num_units += begins_unit(bucket);
            if (bucket->ring + bucket->count > out->slot)
                out->slot = bucket->ring + bucket->count;
        }
    const int slots = slots_for(num_units);
    out->weight_slots = r->sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS ? slots : 0;
    out->gradient_slots = r->overlap ? slots : slots > 0;
    out->beside[false] = r->pairs && has_last; /* whose gradients a forward makes */
    out->beside[true] = r->pairs ? out->weight_slots : 0;
}

/* --- cutting ------------------------------------------------------------------------------- */

weft_bucket_cut weft_bucket_cut_begin(size_t bucket_elements, int group_size, weft_bucket *buckets)
{
    return (weft_bucket_cut){.bucket_elements = bucket_elements,
                             .share_align = WEFT_ALIGN_ELEMENTS * (size_t)group_size,
                             .buckets = buckets};
}

static weft_bucket *last_of(const weft_bucket_cut *cut)
{
    return cut->num_buckets > 0 ? &cut->buckets[cut->num_buckets - 1] : NULL;
}

size_t weft_bucket_cut_end(const weft_bucket_cut *cut)
{
    const weft_bucket *last = last_of(cut);
    return last ? last->offset + last->count : 0;
}

static weft_bucket *begin_bucket(weft_bucket_cut *cut, int layer, int unit)
{
    const size_t start = weft_bucket_cut_end(cut);
    weft_bucket *bucket = &cut->buckets[cut->num_buckets++];
    *bucket = (weft_bucket){.offset = start, .first_layer = layer, .unit = unit};
    cut->used = start;
    return bucket;
}

static void grow(weft_bucket_cut *cut, weft_bucket *bucket, size_t elements, int layer)
{
    cut->used += elements;
    bucket->count = round_up(cut->used - bucket->offset, cut->share_align);
    bucket->first_layer = layer < bucket->first_layer ? layer : bucket->first_layer;
}

static void add_matrices(weft_bucket *bucket, const weft_matrices *m, size_t times)
{
    weft_matrices *sum = &bucket->matrices;
    sum->count += m->count * times;
    sum->flops += m->flops * (double)times;
    sum->gathered_bytes += m->gathered_bytes * times;
    if (m->workspace_bytes > sum->workspace_bytes)
        sum->workspace_bytes = m->workspace_bytes;
}

static size_t add_whole(weft_bucket_cut *cut, const weft_residency_parameter *p, int unit)
{
    weft_bucket *bucket = last_of(cut);
    const bool is_matrix = weft_residency_is_matrix(p);
    bool is_full = bucket && cut->bucket_elements &&
                   cut->used - bucket->offset + p->elements > cut->bucket_elements;
    if (!bucket || is_full || unit != bucket->unit || bucket->num_experts > 0 ||
        bucket->is_matrices != is_matrix)
        bucket = begin_bucket(cut, p->layer, unit);
    bucket->is_matrices = is_matrix;
    bucket->has_squares = !is_matrix;
    add_matrices(bucket, &p->matrices, 1);
    grow(cut, bucket, round_up(p->elements, WEFT_ALIGN_ELEMENTS), p->layer);
    return bucket->offset;
}

/* How many more of a layer's experts a run takes that has so many elements. One that begins takes
 * half of them however large they are: a step has tasks for each run, and all of a layer's
 * gradients are final together. */
static size_t room_for(const weft_bucket_cut *cut, size_t used, size_t part,
                       const weft_residency_parameter *p)
{
    const size_t room = cut->bucket_elements > used ? (cut->bucket_elements - used) / part : 0;
    const size_t half = used > 0 ? 0 : (p->experts + 1) / 2;
    return cut->bucket_elements == 0 ? p->experts : room > half ? room : half;
}

/* all: the experts' parameters together, as if they were one. */
static size_t add_experts(weft_bucket_cut *cut, const weft_residency_parameter *p,
                          const weft_bucket *all, size_t elements, int unit, bool apart)
{
    const size_t part = round_up(elements, cut->share_align), start = weft_bucket_cut_end(cut);
    for (size_t left = p->experts; left > 0;) {
        weft_bucket *run = last_of(cut);
        bool follows = run && !apart && run->num_experts > 0 && run->unit == unit &&
                       run->has_squares == all->has_squares && weft_bucket_part(run) == part &&
                       room_for(cut, run->count, part, p) > 0;
        if (!follows)
            run = begin_bucket(cut, p->layer, unit);
        const size_t room = apart ? 1 : room_for(cut, run->count, part, p);
        const size_t taken = room < left ? room : left;
        run->num_experts += (int)taken;
        run->has_squares = all->has_squares;
        add_matrices(run, &all->matrices, taken);
        grow(cut, run, taken * part, p->layer);
        left -= taken;
    }
    return start;
}

bool weft_residency_together(const weft_residency *r, const weft_residency_parameter *a,
                             const weft_residency_parameter *b)
{
    return a->experts > 0 && a->experts == b->experts && a->layer == b->layer &&
           a->section == b->section && weft_residency_unit(r, a) == weft_residency_unit(r, b);
}

/* Elements of an expert bucket without its padding: of those of a layer's parameters that lie
 * together with one of them. */
static size_t lay_out_expert(const weft_residency *r, const weft_residency_parameter *layer,
                             int count, int index)
{
    size_t elements = 0;
    for (int i = 0; i < count; i++)
        if (weft_residency_together(r, &layer[i], &layer[index]))
            elements += round_up(layer[i].elements / layer[i].experts, WEFT_ALIGN_ELEMENTS);
    return elements;
}

bool weft_bucket_cut_add(weft_bucket_cut *cut, const weft_residency *r,
                         const weft_residency_parameter *layer, int count, int index,
                         size_t *out_start)
{
    const weft_residency_parameter *p = &layer[index];
    const int unit = weft_residency_unit(r, p);
    if (p->experts == 0) {
        *out_start = add_whole(cut, p, unit);
        return true;
    }
    for (int i = index + 1; i < count; i++)
        if (weft_residency_together(r, p, &layer[i]))
            return false;
    weft_bucket all = {0};
    for (int i = 0; i <= index; i++) {
        if (!weft_residency_together(r, p, &layer[i]))
            continue;
        all.has_squares |= layer[i].matrices.count == 0;
        add_matrices(&all, &layer[i].matrices, 1);
    }
    *out_start =
        add_experts(cut, p, &all, lay_out_expert(r, layer, count, index), unit, r->experts_on_host);
    return true;
}
