#include "parallel/parameters/internal.h"

#include <ctype.h>
#include <search.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/kernels.h>

#include "core/rng.h"
#include "core/sized.h"

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

weft_status weft_parameters_create(const weft_groups *groups, weft_device *device, weft_dtype dtype,
                                   weft_parameters **out)
{
    weft_parameters *p = calloc(1, sizeof *p);
    if (!p)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a parameter set");
    p->groups = groups;
    p->device = device;
    p->dtype = dtype;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        weft_axis axis = kind == WEFT_SECTION_EXPERT ? WEFT_AXIS_EDP : WEFT_AXIS_DP_CP;
        p->sections[kind].group = groups->by_axis[axis];
        p->sections[kind].group_size = groups->coords.size[axis];
        p->sections[kind].group_rank = groups->coords.at[axis];
    }
    *out = p;
    return WEFT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

const weft_residency *weft_parameters_residency(const weft_parameters *p)
{
    return &p->residency;
}

bool weft_parameters_on_host(const weft_parameters *p, weft_section_kind kind)
{
    return p->residency.experts_on_host && kind == WEFT_SECTION_EXPERT;
}

static weft_space space_of(const weft_parameters *p, int kind)
{
    return weft_parameters_on_host(p, (weft_section_kind)kind) ? WEFT_SPACE_PINNED
                                                               : WEFT_SPACE_DEVICE;
}

void weft_parameters_destroy(weft_parameters *p)
{
    if (!p)
        return;
    weft_records_destroy(p->records);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        weft_section *s = &p->sections[kind];
        const weft_space space = space_of(p, kind);
        if (weft_parameters_on_host(p, (weft_section_kind)kind) && p->share.wanted)
            continue;
        if (s->weights)
            weft_device_free(p->device, space, s->weights,
                             p->held.weights[kind] * weft_dtype_bytes(p->dtype));
        if (s->grads)
            weft_device_free(p->device, space, s->grads, p->held.grads[kind] * sizeof(float));
    }
    if (p->share.own.memory)
        weft_parameters_free_share(p);
    weft_parameters_free_rings(p);
    weft_comm_destroy(p->sharers);
    while (p->by_name)
        tdelete(*(const char **)p->by_name, &p->by_name, compare_names);
    weft_arena_release(&p->arena);
    free(p);
}

/* Names go into HDF5 paths and JSON as they are. */
static bool is_name(const char *name)
{
    for (; *name; name++) {
        if (!isalnum((unsigned char)*name) && !strchr("._-", *name))
            return false;
    }
    return true;
}

/* The axis that a split means for this parameter; refuses those of the other grid. */
static weft_status split_axis(const weft_parameter_spec *spec, const char *name, int dim,
                              weft_axis *out)
{
    switch (spec->split[dim]) {
    case WEFT_SPLIT_NONE:
        *out = WEFT_AXIS_NONE;
        return WEFT_OK;
    case WEFT_SPLIT_TP:
        if (!spec->is_expert) {
            *out = WEFT_AXIS_TP;
            return WEFT_OK;
        }
        break;
    case WEFT_SPLIT_EP:
    case WEFT_SPLIT_ETP:
        if (spec->is_expert) {
            *out = spec->split[dim] == WEFT_SPLIT_EP ? WEFT_AXIS_EP : WEFT_AXIS_ETP;
            return WEFT_OK;
        }
        break;
    }
    return WEFT_ERROR(WEFT_CONFIG, "parameter %s: dimension %d is split over %s", name, dim,
                      spec->is_expert ? "tp, but an expert's splits over ep or etp"
                                      : "the expert grid, but it is not an expert's");
}

static weft_status check_experts(const weft_parameter_spec *spec, const char *name)
{
    if (spec->by_expert && (!spec->is_expert || spec->may_pad || spec->split[0] != WEFT_SPLIT_EP))
        return WEFT_ERROR(
            WEFT_CONFIG,
            "parameter %s: by_expert is for an expert's parameters whose dimension 0, "
            "without padding, is split over ep",
            name);
    return WEFT_OK;
}

static weft_status check_rows(weft_parameters *p, const weft_parameter_spec *spec,
                              const weft_placed_rows *rows, const char *name)
{
    const int tp = p->groups->coords.size[WEFT_AXIS_TP];
    if (rows->count == 0)
        return WEFT_OK;
    if (spec->is_expert || spec->sum_over_tp || spec->is_embedding ||
        spec->split[0] != WEFT_SPLIT_TP || rows->first > spec->dims[0] ||
        rows->count > spec->dims[0] - rows->first || rows->sharers < 1 || tp % rows->sharers != 0)
        return WEFT_ERROR(WEFT_INTERNAL, "parameter %s: rows %zu to %zu of %zu, %d sharers of %d",
                          name, rows->first, rows->first + rows->count, spec->dims[0],
                          rows->sharers, tp);
    if (rows->sharers == 1)
        return WEFT_OK;
    if (p->num_sharers > 0 && p->num_sharers != rows->sharers)
        return WEFT_ERROR(WEFT_CONFIG,
                          "parameter %s: %d tensor-parallel ranks share it, and %d "
                          "another one",
                          name, rows->sharers, p->num_sharers);
    p->num_sharers = rows->sharers;
    return WEFT_OK;
}

static weft_status make_shard(const weft_parameters *p, const weft_parameter_spec *spec,
                              const char *name, bool has_rows, weft_shard *out)
{
    weft_shard shard = {.num_dims = spec->num_dims};
    size_t elements = 1;

    if (spec->num_dims < 1 || spec->num_dims > WEFT_MAX_DIMS)
        return WEFT_ERROR(WEFT_CONFIG, "parameter %s: %d dimensions, 1 to %d are possible", name,
                          spec->num_dims, WEFT_MAX_DIMS);
    for (int d = 0; d < spec->num_dims; d++) {
        size_t dim = spec->dims[d];
        if (dim == 0 || dim > SIZE_MAX / 16 / elements)
            return WEFT_ERROR(WEFT_CONFIG, "parameter %s: dimension %d has size %zu", name, d, dim);
        elements *= dim;
        shard.global_dims[d] = dim;
        WEFT_TRY(split_axis(spec, name, d, &shard.axis[d]));
        int parts = shard.axis[d] == WEFT_AXIS_NONE ? 1 : p->groups->coords.size[shard.axis[d]];
        bool may_pad = d == 0 && (spec->may_pad || spec->is_embedding || has_rows);
        if (dim % (size_t)parts != 0 && !may_pad)
            return WEFT_ERROR(WEFT_CONFIG,
                              "parameter %s: dimension %d of size %zu does not divide over %s %d",
                              name, d, dim, weft_axis_text(shard.axis[d]), parts);
    }
    *out = shard;
    return WEFT_OK;
}

static weft_status choose_section(const weft_parameters *p, const weft_parameter_spec *spec,
                                  const weft_placed_rows *rows, const char *name,
                                  weft_section_kind *out)
{
    bool tied = spec->is_embedding && weft_mesh_parts_ends(&p->groups->mesh);
    if (spec->sum_over_tp && (spec->is_expert || tied))
        return WEFT_ERROR(WEFT_CONFIG,
                          "parameter %s: sum_over_tp is for dense parameters that are not tied",
                          name);
    if (tied && !p->groups->embedding)
        return WEFT_ERROR(WEFT_CONFIG,
                          "parameter %s: a tied embedding stands on the first and last stage, "
                          "this is stage %d of %d",
                          name, p->groups->coords.at[WEFT_AXIS_PP], p->groups->mesh.pp);
    *out = spec->is_expert     ? WEFT_SECTION_EXPERT
           : tied              ? WEFT_SECTION_EMBEDDING
           : spec->sum_over_tp ? WEFT_SECTION_DENSE_SUM
           : rows->sharers > 1 ? WEFT_SECTION_DENSE_SHARED
                               : WEFT_SECTION_DENSE;
    return WEFT_OK;
}

static weft_status append(weft_parameters *p, weft_placed *placed)
{
    if (p->count == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 64;
        void *grown;
        WEFT_TRY(weft_arena_alloc_array(&p->arena, (size_t)capacity, sizeof *p->placed, &grown));
        if (p->count)
            memcpy(grown, p->placed, (size_t)p->count * sizeof *p->placed);
        p->placed = grown;
        p->capacity = capacity;
    }
    if (!tsearch(placed->parameter.name, &p->by_name, compare_names))
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the name of %s", placed->parameter.name);
    p->placed[p->count++] = placed;
    return WEFT_OK;
}

/* Whether a parameter may be a part of what has that name already. */
static bool is_next_part(const weft_parameters *p, const char *name, const weft_placed_rows *rows)
{
    const weft_parameter *found = weft_parameters_find(p, name);
    return !found || (rows->count > 0 && ((const weft_placed *)found)->rows.count > 0);
}

static weft_box box_of(const weft_shard *shard, const weft_placed_rows *rows,
                       const weft_coords *coords)
{
    weft_box box = weft_shard_box(shard, coords);
    if (rows->count > 0) {
        box.start[0] = rows->first;
        box.local[0] = box.valid[0] = rows->count;
    }
    return box;
}

weft_status weft_parameters_declare(weft_parameters *p, const char *prefix,
                                    const weft_parameter_spec *spec, int layer,
                                    weft_parameter **out)
{
    return weft_parameters_declare_rows(p, prefix, spec, &(weft_placed_rows){0}, layer, out);
}

weft_status weft_parameters_declare_rows(weft_parameters *p, const char *prefix,
                                         const weft_parameter_spec *given,
                                         const weft_placed_rows *rows, int layer,
                                         weft_parameter **out)
{
    weft_parameter_spec whole;
    const weft_parameter_spec *spec = &whole;
    WEFT_TRY(weft_sized_copy("weft_parameter_spec", given, &whole, sizeof whole));
    char name[WEFT_MAX_NAME_BYTES];
    int length = snprintf(name, sizeof name, "%s%s", prefix, spec->name);
    if (length <= 0 || (size_t)length >= sizeof name || !is_name(name))
        return WEFT_ERROR(WEFT_CONFIG,
                          "parameter name \"%s%s\": 1 to %zu letters, digits, '.', '_' and '-'",
                          prefix, spec->name, sizeof name - 1);
    if (!is_next_part(p, name, rows))
        return WEFT_ERROR(WEFT_CONFIG, "parameter %s is declared twice", name);
    if (p->laid_out)
        return WEFT_ERROR(WEFT_INTERNAL, "parameter %s is declared after the layout", name);
    if (!(spec->init_std >= 0))
        return WEFT_ERROR(WEFT_CONFIG, "parameter %s: init_std is %g, and must be 0 or more", name,
                          (double)spec->init_std);

    weft_shard shard;
    weft_section_kind section = WEFT_SECTION_DENSE;
    WEFT_TRY(check_experts(spec, name));
    WEFT_TRY(make_shard(p, spec, name, rows->count > 0, &shard));
    WEFT_TRY(check_rows(p, spec, rows, name));
    WEFT_TRY(choose_section(p, spec, rows, name, &section));

    weft_placed *placed;
    WEFT_TRY(weft_arena_alloc(&p->arena, sizeof(weft_placed), &placed));
    weft_box box = box_of(&shard, rows, &p->groups->coords);
    const weft_coords *coords = &p->groups->coords;
    *placed = (weft_placed){.shard = shard,
                            .rows = *rows,
                            .box = box,
                            .layer = layer,
                            .section = section,
                            .count = weft_box_count(&box),
                            .experts = spec->by_expert ? box.local[0] : 0};
    weft_parameter *parameter = &placed->parameter;
    memcpy(parameter->name, name, sizeof name);
    placed->spec = *spec;
    placed->spec.name = parameter->name;
    parameter->spec = &placed->spec;
    parameter->valid_rows = box.valid[0];
    parameter->lr_mult = 1;
    parameter->wd_mult = spec->no_weight_decay ? 0 : 1;
    parameter->tied_copy = section == WEFT_SECTION_EMBEDDING &&
                           coords->at[WEFT_AXIS_PP] == coords->size[WEFT_AXIS_PP] - 1;
    parameter->weight.dtype = p->dtype;
    parameter->weight.num_dims = box.num_dims;
    memcpy(parameter->weight.dims, box.local, sizeof box.local);
    WEFT_TRY(weft_placed_count_matrices(placed, coords));
    WEFT_TRY(append(p, placed));
    *out = parameter;
    return WEFT_OK;
}

weft_parameter *weft_parameters_find(const weft_parameters *p, const char *name)
{
    char *const *found = tfind(name, &p->by_name, compare_names);
    return found ? (weft_parameter *)(void *)(*found - offsetof(weft_parameter, name)) : NULL;
}

/* Places the parameters of one bucket: those with weight decay before those without, so that the
 * optimizer has few runs of one decay. */
static void place(weft_parameters *p, weft_section_kind kind, int bucket)
{
    size_t used = p->sections[kind].buckets[bucket].offset;
    for (int decays = 1; decays >= 0; decays--) {
        for (int i = p->count - 1; i >= 0; i--) {
            weft_placed *placed = p->placed[i];
            bool is_next = placed->section == kind && placed->experts == 0 &&
                           placed->bucket == bucket &&
                           placed->parameter.spec->no_weight_decay != decays;
            if (is_next) {
                placed->offset = used;
                used += round_up(placed->count, WEFT_ALIGN_ELEMENTS);
            }
        }
    }
}

static weft_residency_parameter as_counted(const weft_parameters *p, const weft_placed *placed)
{
    return (weft_residency_parameter){.section = placed->section,
                                      .group_size = p->sections[placed->section].group_size,
                                      .shared = placed->parameter.shared,
                                      .used_forward = placed->spec.used_forward,
                                      .layer = placed->layer,
                                      .elements = placed->count,
                                      .experts = placed->experts,
                                      .matrices = p->residency.muon ? placed->matrices
                                                                    : (weft_matrices){0}};
}

/* All parameters, as they are counted; those of one are a layer's. */
typedef struct counted_layer {
    const weft_residency_parameter *parameters; /* of the whole stage */
    int first, end;
} counted_layer;

static counted_layer layer_of(const weft_parameters *p, const weft_residency_parameter *all, int i)
{
    counted_layer layer = {all, i, i + 1};
    while (layer.first > 0 && all[layer.first - 1].layer == all[i].layer)
        layer.first--;
    while (layer.end < p->count && all[layer.end].layer == all[i].layer)
        layer.end++;
    return layer;
}

/* Places those of a layer that lie in expert buckets with parameter i, the first of which begins at
 * `start`: those with weight decay first, as declared. */
static void place_experts(weft_parameters *p, const counted_layer *layer, int i, int bucket,
                          size_t start)
{
    const weft_section *section = &p->sections[p->placed[i]->section];
    size_t used = start;
    while (section->buckets[bucket].offset + section->buckets[bucket].count <= start)
        bucket++;
    for (int decays = 1; decays >= 0; decays--)
        for (int k = layer->first; k < layer->end; k++) {
            weft_placed *placed = p->placed[k];
            if (placed->parameter.spec->no_weight_decay == decays ||
                !weft_residency_together(&p->residency, &layer->parameters[k],
                                         &layer->parameters[i]))
                continue;
            placed->bucket = bucket;
            placed->offset = used;
            placed->parameter.expert_stride = weft_bucket_part(&section->buckets[bucket]);
            used += round_up(weft_placed_part(placed), WEFT_ALIGN_ELEMENTS);
        }
}

static size_t count_parts(const weft_parameters *p)
{
    size_t parts = 0;
    for (int i = 0; i < p->count; i++)
        parts += weft_placed_parts(p->placed[i]);
    return parts;
}

/* Places the parameters of one section; the result depends on declarations and group sizes alone,
 * so all ranks of a gradient group agree on it. */
static weft_status lay_out(weft_parameters *p, weft_section_kind kind,
                           const weft_residency_parameter *all)
{
    weft_section *section = &p->sections[kind];
    void *buckets;
    size_t start;

    WEFT_TRY(weft_arena_alloc_array(&p->arena, count_parts(p) + 1, sizeof(weft_bucket), &buckets));
    section->buckets = buckets;
    weft_bucket_cut cut =
        weft_bucket_cut_begin(p->residency.bucket_elements, section->group_size, buckets);
    for (int k = 2 * p->count - 1; k >= 0; k--) { /* the matrices, then the rest */
        const int i = k % p->count;
        weft_placed *placed = p->placed[i];
        if (placed->section != kind || weft_residency_is_matrix(&all[i]) != (k >= p->count))
            continue;
        const counted_layer layer = layer_of(p, all, i);
        const int before = cut.num_buckets > 0 ? cut.num_buckets - 1 : 0;
        if (!weft_bucket_cut_add(&cut, &p->residency, all + layer.first, layer.end - layer.first,
                                 i - layer.first, &start))
            continue;
        if (placed->experts > 0)
            place_experts(p, &layer, i, before, start);
        else
            placed->bucket = cut.num_buckets - 1;
    }
    section->num_buckets = cut.num_buckets;
    section->count = weft_bucket_cut_end(&cut);
    for (int b = 0; b < section->num_buckets; b++)
        if (section->buckets[b].num_experts == 0)
            place(p, kind, b);
    return WEFT_OK;
}

weft_status weft_parameters_clear_gradients(weft_parameters *p, weft_lane *lane)
{
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        if (p->sections[kind].grads)
            WEFT_TRY(
                weft_lane_zero(lane, p->sections[kind].grads, p->held.grads[kind] * sizeof(float)));
    return WEFT_OK;
}

/* Padding between parameters takes part in reductions and updates, so it has to start at zero. */
static weft_status clear_sections(weft_parameters *p, weft_lane *lane)
{
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        weft_section *s = &p->sections[kind];
        if (s->weights)
            WEFT_TRY(weft_lane_zero(lane, s->weights,
                                    p->held.weights[kind] * weft_dtype_bytes(p->dtype)));
    }
    WEFT_TRY(weft_parameters_clear_gradients(p, lane));
    return weft_lane_sync(lane);
}

static weft_status allocate_section(weft_parameters *p, weft_section_kind kind, bool with_grads)
{
    weft_section *s = &p->sections[kind];
    const weft_space space = space_of(p, kind);
    const bool on_host = weft_parameters_on_host(p, kind);
    void *grads;
    if (s->count == 0)
        return WEFT_OK;
    if (on_host && p->file.folder)
        return weft_parameters_make_records(p, with_grads);
    if (on_host && p->share.wanted)
        return weft_parameters_make_share(p, with_grads);
    WEFT_TRY(weft_device_alloc_for(p->device, space,
                                   on_host ? WEFT_MEMORY_PINNED : WEFT_MEMORY_WEIGHTS,
                                   p->held.weights[kind] * weft_dtype_bytes(p->dtype),
                                   on_host ? "experts' weights" : "weights", &s->weights));
    if (!with_grads)
        return WEFT_OK;
    WEFT_TRY(weft_device_alloc_for(
        p->device, space, on_host ? WEFT_MEMORY_PINNED : WEFT_MEMORY_GRADIENTS,
        p->held.grads[kind] * sizeof(float), on_host ? "experts' gradients" : "gradients", &grads));
    s->grads = grads;
    return WEFT_OK;
}

/* What is shared out has an address in a pass. */
static void point(weft_parameters *p, weft_placed *placed)
{
    const weft_section *s = &p->sections[placed->section];
    const weft_bucket *bucket = &s->buckets[placed->bucket];
    placed->parameter.weight.data =
        weft_parameters_shares(p, bucket, true) ? NULL : weft_parameters_weight_at(p, placed, 0);
    placed->parameter.grad =
        !s->grads || weft_parameters_shares(p, bucket, false)
            ? NULL
            : weft_parameters_grad(p, placed->section, placed->bucket, placed->offset);
}

/* All ranks of a TP group declare the same. */
static weft_status join_sharers(weft_parameters *p)
{
    const int place = p->groups->coords.at[WEFT_AXIS_TP];
    return p->num_sharers == 0
               ? WEFT_OK
               : weft_comm_split(p->groups->by_axis[WEFT_AXIS_TP], place / p->num_sharers, place,
                                 "tp sharers", WEFT_PURPOSE_DATA, &p->sharers);
}

weft_status weft_parameters_allocate(weft_parameters *p, const weft_residency *residency,
                                     bool with_grads)
{
    weft_cut_sections cut;
    if (p->laid_out)
        return WEFT_ERROR(WEFT_INTERNAL, "the parameters are already laid out");
    p->laid_out = true;
    p->residency = *residency;
    weft_residency_parameter *counted;
    WEFT_TRY(WEFT_ARRAY(&p->arena, (size_t)p->count + 1, &counted));
    for (int i = 0; i < p->count; i++) {
        counted[i] = as_counted(p, p->placed[i]);
        weft_residency_count(&p->residency, &counted[i]);
    }
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *s = &p->sections[kind];
        WEFT_TRY(lay_out(p, (weft_section_kind)kind, counted));
        cut.buckets[kind] = s->buckets;
        cut.num_buckets[kind] = s->num_buckets;
        cut.group_size[kind] = s->group_size;
    }
    weft_residency_lay(&p->residency, &cut, &p->held);
    if (with_grads)
        WEFT_TRY(join_sharers(p));
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        WEFT_TRY(allocate_section(p, (weft_section_kind)kind, with_grads));
    WEFT_TRY(weft_parameters_make_rings(p, with_grads));
    for (int i = 0; i < p->count; i++)
        point(p, p->placed[i]);
    weft_lane *lane;
    WEFT_TRY(weft_lane_create(p->device, 0, "parameters", &lane));
    weft_status status = clear_sections(p, lane);
    weft_lane_destroy(lane);
    return status;
}

weft_status weft_parameters_draw(const weft_placed *placed, weft_lane *lane,
                                 const weft_random_normal_args *values)
{
    weft_random_normal_args args = *values;
    const size_t stride = placed->parameter.expert_stride * weft_dtype_bytes(args.dtype);
    args.num_dims = placed->box.num_dims;
    memcpy(args.global_dims, placed->box.global_dims, sizeof args.global_dims);
    memcpy(args.start, placed->box.start, sizeof args.start);
    memcpy(args.local_dims, placed->box.local, sizeof args.local_dims);
    if (placed->experts == 0)
        return weft_random_normal(lane, &args);
    args.local_dims[0] = 1;
    for (size_t e = 0; e < placed->experts; e++) {
        args.start[0] = placed->box.start[0] + e;
        args.x = (char *)values->x + e * stride;
        WEFT_TRY(weft_random_normal(lane, &args));
    }
    return WEFT_OK;
}

static weft_status fill_zero(const weft_placed *placed, weft_lane *lane, size_t element_bytes,
                             void *out)
{
    for (size_t e = 0; e < weft_placed_parts(placed); e++)
        WEFT_TRY(weft_lane_zero(lane,
                                (char *)out + e * placed->parameter.expert_stride * element_bytes,
                                weft_placed_part(placed) * element_bytes));
    return WEFT_OK;
}

weft_status weft_parameters_fill_part(const weft_placed *placed, size_t part, weft_lane *lane,
                                      uint64_t seed, weft_dtype dtype, void *out)
{
    weft_placed one = *placed; /* as a rank would have it that has this expert alone */
    if (placed->experts > 0) {
        one.box.start[0] += part;
        one.box.local[0] = 1;
        one.experts = 1;
        one.count = weft_placed_part(placed);
    }
    return weft_parameters_fill(&one, lane, seed, dtype, out);
}

weft_status weft_parameters_fill(const weft_placed *placed, weft_lane *lane, uint64_t seed,
                                 weft_dtype dtype, void *out)
{
    const weft_parameter_spec *spec = placed->parameter.spec;
    if (spec->init == WEFT_INIT_ZERO)
        return fill_zero(placed, lane, weft_dtype_bytes(dtype), out);
    return weft_parameters_draw(
        placed, lane,
        &WEFT_ARGS(weft_random_normal_args, .seed = seed,
                   .stream = weft_rng_stream_of(placed->parameter.name),
                   .mean = spec->init == WEFT_INIT_ONE ? 1.0f : 0.0f,
                   .std = spec->init == WEFT_INIT_ONE ? 0.0f : spec->init_std, .dtype = dtype,
                   .x = out));
}

weft_status weft_parameters_initialize(weft_parameters *p, weft_lane *lane, uint64_t seed)
{
    for (int i = 0; i < p->count; i++)
        WEFT_TRY(weft_parameters_fill(p->placed[i], lane, seed, p->dtype,
                                      p->placed[i]->parameter.weight.data));
    return WEFT_OK;
}

uint64_t weft_placed_global(const weft_placed *placed, int tp)
{
    const weft_placed_rows *rows = &placed->rows;
    uint64_t elements = rows->count > 0 ? rows->count * (uint64_t)(tp / rows->sharers)
                                        : placed->shard.global_dims[0];
    for (int d = 1; d < placed->shard.num_dims; d++)
        elements *= placed->shard.global_dims[d];
    return elements;
}

weft_comm *weft_parameters_sharers(const weft_parameters *p)
{
    return p->sharers;
}

int weft_parameters_count(const weft_parameters *p)
{
    return p->count;
}

weft_placed *weft_parameters_at(const weft_parameters *p, int index)
{
    return p->placed[index];
}

weft_section *weft_parameters_section(const weft_parameters *p, weft_section_kind kind)
{
    return (weft_section *)&p->sections[kind];
}

const weft_groups *weft_parameters_groups(const weft_parameters *p)
{
    return p->groups;
}

weft_device *weft_parameters_device(const weft_parameters *p)
{
    return p->device;
}

weft_dtype weft_parameters_dtype(const weft_parameters *p)
{
    return p->dtype;
}
