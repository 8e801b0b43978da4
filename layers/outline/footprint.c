#include "layers/outline/footprint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "parallel/optimizer/optimizer.h"
#include "schedule/pair.h"

static uint64_t row_piece(const weft_outline *outline)
{
    return weft_piece_bytes(WEFT_U8, weft_shape_boundary_bytes(&outline->shape), 1);
}

/* The last layer of a chunk writes its output to a message slot, though it counts the rows as
 * stash, unless it counts its input. */
static uint64_t given_away(const weft_outline *outline, int layer, int end)
{
    const weft_description *d = &outline->layers[layer].description;
    const uint64_t rows = row_piece(outline);
    if (layer < end - 1 || end == outline->num_layers || d->keeps_input)
        return 0;
    return d->cost.activation_bytes >= rows ? rows : 0;
}

static bool begins_group(const weft_outline *outline, int layer, int first)
{
    return layer == first ||
           outline->layers[layer - 1].recompute_group != outline->layers[layer].recompute_group;
}

/* A recomputed group keeps or sends its last layer's output, or keeps its first layer's input. */
static uint64_t kept_rows(const weft_outline *outline, int layer, int first, int end)
{
    const bool ends_chunk = layer == end - 1;
    if (outline->layers[layer].description.keeps_input)
        return begins_group(outline, layer, first) ? row_piece(outline) : 0;
    const bool ends_group = ends_chunk || outline->layers[layer + 1].recompute_group !=
                                              outline->layers[layer].recompute_group;
    return ends_group && !ends_chunk ? row_piece(outline) : 0;
}

/* An output that the next layer offloads lies in a ring. */
static uint64_t sent_out(const weft_outline *outline, int layer, int end)
{
    const uint64_t rows = row_piece(outline);
    const uint64_t counted = outline->layers[layer].description.cost.activation_bytes;
    return layer < end - 1 && outline->layers[layer + 1].offloads_input && counted >= rows ? rows
                                                                                           : 0;
}

/* One layer's part of the stash; the chunk is the layers [first, end). */
static uint64_t kept_of(const weft_outline *outline, int layer, int first, int end)
{
    const weft_outline_layer *l = &outline->layers[layer];
    return l->recompute_group > 0
               ? kept_rows(outline, layer, first, end)
               : l->description.cost.activation_bytes - l->offloaded_bytes -
                     given_away(outline, layer, end) - sent_out(outline, layer, end);
}

static uint64_t ring_bytes(const weft_outline *outline, int rank)
{
    const weft_offload_sizes sizes = weft_outline_offload_sizes(outline, rank);
    uint64_t bytes = (uint64_t)sizes.num_inputs * sizes.input_bytes;
    for (int k = 0; k < sizes.num_slots; k++)
        bytes += sizes.slot_bytes[k];
    return bytes;
}

/* A group's recomputed bytes: all but the last output. */
static uint64_t group_bytes(const weft_outline *outline, int first, int end)
{
    uint64_t bytes = 0;
    for (int l = first; l < end; l++) {
        const weft_description *d = &outline->layers[l].description;
        bytes += d->cost.activation_bytes;
        if (l == end - 1 && !d->coarse && d->cost.activation_bytes >= row_piece(outline))
            bytes -= row_piece(outline);
    }
    return bytes;
}

uint64_t weft_footprint_recomputed(const weft_outline *outline, int rank)
{
    uint64_t most = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first, next; l < end; l = next) {
            const int group = outline->layers[l].recompute_group;
            uint64_t bytes = outline->layers[l].description.cost.recomputed_bytes;
            for (next = l + 1;
                 group > 0 && next < end && outline->layers[next].recompute_group == group;)
                next++;
            if (group > 0)
                bytes = group_bytes(outline, l, next);
            most = bytes > most ? bytes : most;
        }
    }
    return (outline->pairs ? 2 : 1) * most;
}

/* With pairs, each pass's norms' output: a part of weft_footprint_stash (activations of module
 * "norms"). Else 0. */
static uint64_t norms_bytes(const weft_outline *outline)
{
    return outline->pairs ? row_piece(outline) : 0;
}

uint64_t weft_footprint_stash(const weft_outline *outline, int rank, int chunk)
{
    uint64_t bytes = 0;
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    for (int l = first; l < end; l++)
        bytes += kept_of(outline, l, first, end);
    return bytes + norms_bytes(outline);
}

uint64_t weft_footprint_deferred(const weft_outline *outline, int rank, int chunk)
{
    uint64_t bytes = 0;
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    for (int l = first; l < end; l++)
        bytes +=
            weft_outline_splits(outline, l) ? outline->layers[l].description.deferred_bytes : 0;
    return bytes;
}

uint64_t weft_footprint_left(const weft_outline *outline, int rank)
{
    uint64_t most = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks && outline->leaves_weights; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            const uint64_t bytes =
                weft_outline_splits(outline, l) ? outline->layers[l].description.deferred_bytes : 0;
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

uint64_t weft_footprint_all_deferred(const weft_outline *outline, int rank,
                                     const weft_program *program)
{
    uint64_t bytes = WEFT_PAIR_LEAVERS * weft_footprint_left(outline, rank);
    for (int i = 0; i < program->num_slots; i++)
        if (program->slots[i].holds == WEFT_SLOT_DEFERRED)
            bytes += weft_footprint_deferred(outline, rank, program->slots[i].chunk);
    return bytes;
}

static uint64_t offloaded(const weft_outline *outline, int rank, int chunk)
{
    uint64_t bytes = 0;
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    for (int l = first; l < end; l++)
        bytes += weft_outline_offloaded(outline, l);
    return bytes;
}

uint64_t weft_footprint_host(const weft_outline *outline, int rank)
{
    uint64_t most = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        uint64_t bytes = 0;
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            bytes += outline->layers[l].description.cost.host_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t weft_footprint_copies(const weft_outline *outline, int rank)
{
    uint64_t most = 0;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        const uint64_t bytes = offloaded(outline, rank, chunk);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A layer that says no more takes as much both ways. */
static uint64_t scratch_of(const weft_layer_cost *cost, bool backward)
{
    const struct weft_layer_scratch *s = &cost->scratch;
    const bool is_listed = s->own[0] + s->own[1] + s->child[0] + s->child[1] > 0;
    return is_listed ? s->own[backward] + s->child[backward] : cost->scratch_bytes;
}

/* The layers' scratch in sequence, of forwards and of backwards; only: of this layer, or -1. */
static void most_scratch(const weft_outline *outline, int rank, int only, uint64_t most[2])
{
    int first, end;
    most[0] = most[1] = 0;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            for (int backward = 0; backward < 2 && (only < 0 || l == only); backward++) {
                most[backward] = larger(most[backward],
                                        scratch_of(&outline->layers[l].description.cost, backward));
            }
    }
}

/* Below it norms' outputs and gradients between layers. */
static uint64_t forward_scratch(const weft_outline *outline, const uint64_t most[2])
{
    if (outline->pairs)
        return most[0] + 2 * row_piece(outline);
    return larger(most[0], most[1]) + (outline->shape.training ? 3 : 1) * row_piece(outline);
}

/* Of backwards that leave weights' gradients, and of those behind the next layer's first turn. */
static uint64_t leaving_scratch(const weft_outline *outline, int rank, weft_scratch_use use)
{
    uint64_t most = 0, begun = 0, left = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks && outline->leaves_weights; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            const weft_description *d = &outline->layers[l].description;
            most = larger(most, d->leaving_scratch_bytes);
            begun = larger(begun, d->begun_scratch_bytes);
            left = larger(left, d->left_scratch_bytes);
        }
    }
    return use == WEFT_SCRATCH_LEFT ? begun + left : most;
}

uint64_t weft_footprint_scratch(const weft_outline *outline, int rank, weft_scratch_use use)
{
    uint64_t most[2];
    most_scratch(outline, rank, -1, most);
    return use == WEFT_SCRATCH_FORWARD    ? forward_scratch(outline, most)
           : use != WEFT_SCRATCH_BACKWARD ? leaving_scratch(outline, rank, use)
           : outline->pairs               ? most[1]
                                          : 0;
}

uint64_t weft_footprint_scratch_of(const weft_outline *outline, int rank, weft_scratch_use use,
                                   int layer)
{
    const int other = use == WEFT_SCRATCH_FORWARD;
    uint64_t most[2];
    if (layer < 0 || use > WEFT_SCRATCH_BACKWARD)
        return weft_footprint_scratch(outline, rank, use);
    most_scratch(outline, rank, layer, most);
    most[other] = 0;
    return outline->pairs && use == WEFT_SCRATCH_BACKWARD ? most[1]
                                                          : forward_scratch(outline, most);
}

uint64_t weft_footprint_backward_scratch(const weft_outline *outline, int rank)
{
    uint64_t most = 0;
    for (int use = WEFT_SCRATCH_BACKWARD; use < WEFT_NUM_SCRATCH_USES; use++)
        most = larger(most, weft_footprint_scratch(outline, rank, (weft_scratch_use)use));
    return most;
}

static int count_parts(const weft_outline *outline, int rank)
{
    int count = 0, first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            count += (int)weft_outline_parts(&outline->layers[l]);
    }
    return count;
}

static void add_offloaded(weft_footprint *out, const char *module, uint64_t bytes);

/* The places in host memory for experts in a file. */
static uint64_t places_bytes(const weft_outline *outline, const weft_footprint_shape *s,
                             uint64_t largest, int num_experts, uint64_t state,
                             uint64_t *out_file_bytes)
{
    const weft_held_elements *held = &outline->held[s->rank];
    const weft_experts_file file = weft_tier_file(&outline->tier, state);
    const uint64_t shares = held->weights[WEFT_GRADIENT_EXPERT] / held->owned[WEFT_GRADIENT_EXPERT];
    const weft_records_sizes sizes = weft_experts_file_sizes(
        &file, outline->shape.dtype, largest, largest / shares, num_experts, !s->evaluates);
    *out_file_bytes = weft_records_file_bytes(&sizes);
    return weft_records_pinned_bytes(&sizes);
}

/* Experts in host memory: slots on the device; the rest pinned. state: bytes an element. */
static void add_tier(const weft_outline *outline, const weft_footprint_shape *s, uint64_t state,
                     weft_footprint *out)
{
    const weft_held_elements *held = &outline->held[s->rank];
    const uint64_t element = weft_dtype_bytes(outline->shape.dtype);
    uint64_t kept = 0, slots = 0, largest = 0;
    int first, end, num_experts = 0;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, s->rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            const weft_outline_layer *layer = &outline->layers[l];
            const int num = layer->num_experts;
            if (num == 0)
                continue;
            num_experts += num;
            const uint64_t wanted =
                (uint64_t)weft_tier_num_slots(&outline->tier, num, outline->shape.ep);
            kept += (uint64_t)weft_tier_num_kept(&outline->tier, num) * layer->expert_elements;
            slots = wanted > slots ? wanted : slots;
            largest = layer->expert_elements > largest ? layer->expert_elements : largest;
        }
    }
    const bool in_file = outline->tier.experts == WEFT_TIER_FILE && num_experts > 0;
    const uint64_t places =
        in_file ? places_bytes(outline, s, largest, num_experts, state, &out->file_bytes) : 0;
    const uint64_t weights = in_file ? 0 : held->weights[WEFT_GRADIENT_EXPERT] * element;
    out->bytes[WEFT_MEMORY_WEIGHTS] += (kept + slots * largest) * element;
    out->bytes[WEFT_MEMORY_PINNED] += weights + places;
    add_offloaded(out, "experts' weights", weights);
    add_offloaded(out, "experts' places", places);
    if (s->evaluates)
        return;
    const uint64_t staging =
        outline->accumulates ? WEFT_EXPERTS_STAGING * largest * sizeof(float) : 0;
    const uint64_t gradients =
        (in_file ? 0 : held->grads[WEFT_GRADIENT_EXPERT] * sizeof(float)) + staging;
    const uint64_t states = in_file ? 0 : held->owned[WEFT_GRADIENT_EXPERT] * state;
    out->bytes[WEFT_MEMORY_GRADIENTS] += WEFT_TIER_GRADIENTS * largest * sizeof(float);
    out->bytes[WEFT_MEMORY_PINNED] += gradients + states;
    add_offloaded(out, "experts' gradients", gradients);
    add_offloaded(out, "experts' optimizer", states);
}

/* State that the host steps for buckets on the device, and gradients in staging. */
static void add_stepped(const weft_outline *outline, int rank, uint64_t state, weft_footprint *out)
{
    const weft_held_elements *held = &outline->held[rank];
    const uint64_t bytes = held->stepped * (weft_dtype_bytes(outline->shape.dtype) + state) +
                           (uint64_t)held->staging * held->staged * sizeof(float);
    out->bytes[WEFT_MEMORY_PINNED] += bytes;
    add_offloaded(out, "optimizer", bytes);
}

/* state: of an element that AdamW steps. */
static uint64_t state_bytes(const weft_held_elements *held, int group, uint64_t state)
{
    return held->owned[group] * state - (held->owned[group] - held->squares[group]) * sizeof(float);
}

static void add_parameters(const weft_outline *outline, const weft_footprint_shape *s,
                           weft_footprint *out)
{
    const weft_dtype dtype = outline->shape.dtype;
    const weft_held_elements *held = &outline->held[s->rank];
    const size_t slot = held->slot;
    out->bytes[WEFT_MEMORY_WEIGHTS] +=
        (size_t)(held->weight_slots + held->beside[true]) * slot * weft_dtype_bytes(dtype);
    if (!s->evaluates)
        out->bytes[WEFT_MEMORY_GRADIENTS] +=
            (size_t)(held->gradient_slots + held->beside[false]) * slot * sizeof(float);
    const size_t state = weft_tier_state_bytes(dtype, s->split_master);
    for (int group = 0; group < WEFT_NUM_GRADIENT_GROUPS; group++) {
        if (group == WEFT_GRADIENT_EXPERT && outline->shape.experts_on_host) {
            add_tier(outline, s, state, out);
            continue;
        }
        out->bytes[WEFT_MEMORY_WEIGHTS] += held->weights[group] * weft_dtype_bytes(dtype);
        if (s->evaluates)
            continue;
        out->bytes[WEFT_MEMORY_GRADIENTS] += held->grads[group] * sizeof(float);
        if (!outline->residency.state_on_host)
            out->bytes[WEFT_MEMORY_OPTIMIZER] += state_bytes(held, group, state);
    }
    if (s->evaluates)
        return;
    out->bytes[WEFT_MEMORY_OPTIMIZER] += held->workspace_bytes;
    add_stepped(outline, s->rank, state, out);
    const int num_parts = count_parts(outline, s->rank);
    const size_t small = weft_optimizer_norm_bytes(num_parts) +
                         (s->checks_state ? weft_state_check_bytes(num_parts) : 0);
    out->bytes[WEFT_MEMORY_OTHER] += small;
    out->bytes[WEFT_MEMORY_PINNED] += small;
}

static void add_bytes(weft_module_bytes list[WEFT_MAX_MODULES], int *count, const char *module,
                      uint64_t bytes)
{
    int i = 0;
    while (i < *count && strcmp(list[i].module, module) != 0)
        i++;
    if (i == WEFT_MAX_MODULES) /* the last entry has the rest */
        i--;
    else if (i == *count)
        list[(*count)++].module = module;
    list[i].bytes += bytes;
}

static void add_module(weft_footprint *out, const char *module, uint64_t bytes)
{
    add_bytes(out->modules, &out->num_modules, module, bytes);
    out->bytes[WEFT_MEMORY_ACTIVATIONS] += bytes;
}

static void add_offloaded(weft_footprint *out, const char *module, uint64_t bytes)
{
    if (bytes > 0)
        add_bytes(out->offloaded, &out->num_offloaded, module, bytes);
}

static void add_pass(const weft_outline *outline, int rank, int chunk, weft_footprint *out)
{
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    if (outline->pairs)
        add_module(out, "norms", norms_bytes(outline));
    for (int l = first; l < end; l++) {
        const weft_description *d = &outline->layers[l].description;
        const bool goes_out =
            outline->layers[l].offloads && outline->shape.offload & WEFT_OFFLOAD_BLOCK;
        uint64_t given = given_away(outline, l, end) + sent_out(outline, l, end), listed = 0;
        uint64_t left = outline->layers[l].offloaded_bytes;
        add_offloaded(out, "input", outline->layers[l].offloads_input ? row_piece(outline) : 0);
        if (outline->layers[l].recompute_group > 0) {
            add_module(out, d->keeps_input ? "input" : "output", kept_rows(outline, l, first, end));
            continue;
        }
        uint64_t all = d->cost.activation_bytes - outline->layers[l].offloaded_bytes - given;
        for (int i = 0; i < d->num_kept; i++) {
            const bool is_output = strcmp(d->kept[i].module, "output") == 0;
            uint64_t bytes = d->kept[i].bytes;
            if (given == bytes && is_output)
                bytes = given = 0;
            if (d->kept[i].offloaded || (goes_out && !is_output)) {
                add_offloaded(out, d->kept[i].module, bytes);
                left -= bytes;
                continue;
            }
            add_module(out, d->kept[i].module, bytes);
            listed += bytes;
        }
        if (listed < all)
            add_module(out, "", all - listed);
        add_offloaded(out, "", left);
    }
}

/* What layers of the rank keep as long as they live, in pinned memory and in the cache; and the
 * step's metrics, with their own where some declares any. */
static void add_kept_by_layers(const weft_outline *outline, int rank, weft_footprint *out)
{
    uint64_t cached = 0, metrics = sizeof(weft_metrics);
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            out->bytes[WEFT_MEMORY_PINNED] += outline->layers[l].description.cost.table_bytes;
            cached += outline->layers[l].description.cost.cache_bytes;
            if (outline->layers[l].description.declares_metrics)
                metrics = sizeof(weft_metrics) + WEFT_MAX_METRICS * sizeof(weft_metric);
        }
    }
    out->bytes[WEFT_MEMORY_PINNED] += (weft_outline_repeats(outline) ? 2 : 1) * metrics;
    if (cached > 0)
        add_module(out, "cache", cached);
}

void weft_footprint_of(const weft_outline *outline, const weft_footprint_shape *s,
                       weft_footprint *out)
{
    const weft_shape *shape = &outline->shape;
    const bool keeps_inputs = outline->layers[0].description.keeps_input; /* like all layers */
    memset(out, 0, sizeof *out);
    add_parameters(outline, s, out);
    for (int i = 0; i < s->program->num_slots; i++) {
        const weft_slot *slot = &s->program->slots[i];
        int chunk = slot->chunk > 0 ? slot->chunk : 0;
        if (slot->holds != WEFT_SLOT_DEFERRED &&
            (!keeps_inputs || slot->holds != WEFT_SLOT_ACTIVATION))
            out->bytes[WEFT_MEMORY_MESSAGES] += slot->bytes;
        if (slot->holds != WEFT_SLOT_ACTIVATION)
            continue;
        add_pass(outline, s->rank, chunk, out);
        out->bytes[WEFT_MEMORY_PINNED] +=
            weft_footprint_host(outline, s->rank) + weft_footprint_copies(outline, s->rank);
    }
    const uint64_t deferred = weft_footprint_all_deferred(outline, s->rank, s->program);
    if (deferred > 0)
        add_module(out, "deferred", deferred);
    if (ring_bytes(outline, s->rank) > 0)
        add_module(out, "offloaded", ring_bytes(outline, s->rank));
    const uint64_t recomputed = weft_footprint_recomputed(outline, s->rank);
    out->bytes[WEFT_MEMORY_SCRATCH] =
        weft_footprint_scratch(outline, s->rank, WEFT_SCRATCH_FORWARD) +
        weft_footprint_backward_scratch(outline, s->rank);
    if (keeps_inputs)
        out->bytes[WEFT_MEMORY_SCRATCH] += recomputed;
    else if (recomputed > 0)
        add_module(out, "recomputed", recomputed);
    add_kept_by_layers(outline, s->rank, out);
    /* inputs of micro-batches, and the rank's tokens of a sequence */
    const size_t num_batches = (size_t)s->num_micro_batches;
    out->bytes[WEFT_MEMORY_PINNED] += sizeof(int32_t) * num_batches *
                                      ((size_t)s->num_inputs * weft_shape_local_tokens(shape) +
                                       s->num_whole_inputs * shape->seq * shape->batch);
    if (shape->cp > 1)
        out->bytes[WEFT_MEMORY_PINNED] +=
            (s->deals ? num_batches : 1) * sizeof(int32_t) * weft_shape_local_seq(shape);
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++)
        out->device_bytes += out->bytes[p];
}

const char *weft_footprint_text(const weft_footprint *footprint, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (int p = 0; p < WEFT_MEMORY_STAGING && used < capacity; p++) {
        if (footprint->bytes[p] > 0)
            used += (size_t)snprintf(out + used, capacity - used, "%s%s %s", used > 0 ? ", " : "",
                                     weft_memory_text((weft_memory_purpose)p),
                                     weft_bytes_text((double)footprint->bytes[p]).text);
    }
    return out;
}

/* --- by part --------------------------------------------------------------------------------- */

const char *weft_model_part_text(int part)
{
    static const char *const texts[WEFT_NUM_MODEL_PARTS] = {
#define PART_TEXT(name, text) [WEFT_MODEL_PART_##name] = text,
        WEFT_MODEL_PART_LIST(PART_TEXT)
#undef PART_TEXT
    };
    return texts[part];
}

static weft_model_part part_of(const weft_outline *outline, int layer)
{
    return layer == 0                         ? WEFT_MODEL_PART_EMBEDDING
           : layer == outline->num_layers - 1 ? WEFT_MODEL_PART_HEAD
                                              : WEFT_MODEL_PART_DECODER;
}

static uint64_t local_elements(const weft_outline_layer *layer, int group)
{
    uint64_t elements = 0;
    for (int i = 0; i < layer->num_parameters; i++)
        elements += (int)layer->parameters[i].group == group ? layer->parameters[i].local : 0;
    return elements;
}

/* A layer's elements in a gradient group on this rank; shares: this rank's share of its unit. */
static double held_elements(const weft_outline_layer *layer, const weft_mesh *mesh, int group,
                            bool shares)
{
    const double local = (double)local_elements(layer, group);
    const double unit = shares ? (double)layer->units[group].elements : 0;
    const double ranks = group == WEFT_GRADIENT_EXPERT ? mesh->edp : mesh->dp * mesh->cp;
    return fmax(local - unit, 0) + unit / ranks;
}

/* Splits a rank's bytes in proportion to its layers'. */
typedef struct sharing {
    const weft_outline *outline;
    const weft_mesh *mesh;
    int rank;
    weft_memory_purpose purpose;
    bool shares;
} sharing;

static void share_out(const sharing *s, int group, uint64_t bytes,
                      weft_part_bytes out[WEFT_NUM_MODEL_PARTS])
{
    const weft_outline *outline = s->outline;
    double elements[WEFT_NUM_MODEL_PARTS] = {0}, all = 0, before = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, s->rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            elements[part_of(outline, l)] +=
                held_elements(&outline->layers[l], s->mesh, group, s->shares);
    }
    for (int part = 0; part < WEFT_NUM_MODEL_PARTS; part++)
        all += elements[part];
    for (int part = 0; part < WEFT_NUM_MODEL_PARTS && all > 0; part++) {
        const double until = before + elements[part];
        out[part].bytes[s->purpose] += (uint64_t)floor((double)bytes * (until / all) + 0.5) -
                                       (uint64_t)floor((double)bytes * (before / all) + 0.5);
        before = until;
    }
}

static void split_parameters(const weft_outline *outline, const weft_mesh *mesh, int rank,
                             const weft_footprint *footprint,
                             weft_part_bytes out[WEFT_NUM_MODEL_PARTS])
{
    const weft_held_elements *held = &outline->held[rank];
    const size_t element = weft_dtype_bytes(outline->shape.dtype);
    const bool shares = outline->residency.sharding >= WEFT_SHARD_OPTIM_GRADS,
               shares_weights = outline->residency.sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS;
    const sharing weights = {outline, mesh, rank, WEFT_MEMORY_WEIGHTS, shares_weights};
    const sharing grads = {outline, mesh, rank, WEFT_MEMORY_GRADIENTS, shares};
    const sharing state = {outline, mesh, rank, WEFT_MEMORY_OPTIMIZER, false};
    uint64_t owned = 0, without_squares = 0;
    for (int group = 0; group < WEFT_NUM_GRADIENT_GROUPS; group++) {
        owned += held->owned[group];
        without_squares += held->owned[group] - held->squares[group];
    }
    const uint64_t all = footprint->bytes[WEFT_MEMORY_OPTIMIZER] - held->workspace_bytes +
                         without_squares * sizeof(float);
    for (int group = 0; group < WEFT_NUM_GRADIENT_GROUPS; group++) {
        share_out(&weights, group, held->weights[group] * element, out);
        if (footprint->bytes[WEFT_MEMORY_GRADIENTS] > 0)
            share_out(&grads, group, held->grads[group] * sizeof(float), out);
        if (owned > 0)
            share_out(&state, group, state_bytes(held, group, all / owned), out);
    }
}

static void split_activations(const weft_outline *outline, int rank, const weft_program *program,
                              weft_part_bytes out[WEFT_NUM_MODEL_PARTS])
{
    for (int i = 0; i < program->num_slots; i++) {
        const weft_slot *slot = &program->slots[i];
        int first, end;
        if (slot->holds != WEFT_SLOT_ACTIVATION)
            continue;
        weft_layout_range(&outline->layout, rank, slot->chunk > 0 ? slot->chunk : 0, &first, &end);
        for (int l = first; l < end; l++)
            out[part_of(outline, l)].bytes[WEFT_MEMORY_ACTIVATIONS] +=
                kept_of(outline, l, first, end);
    }
}

void weft_footprint_parts(const weft_outline *outline, const weft_mesh *mesh, int rank,
                          const weft_program *program, const weft_footprint *footprint,
                          weft_part_bytes out[WEFT_NUM_MODEL_PARTS])
{
    static const weft_memory_purpose purposes[] = {WEFT_MEMORY_WEIGHTS, WEFT_MEMORY_GRADIENTS,
                                                   WEFT_MEMORY_OPTIMIZER, WEFT_MEMORY_ACTIVATIONS};
    memset(out, 0, WEFT_NUM_MODEL_PARTS * sizeof *out);
    split_parameters(outline, mesh, rank, footprint, out);
    split_activations(outline, rank, program, out);
    for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++) {
        uint64_t listed = 0; /* the rest is shared by layers */
        for (int part = 0; part < WEFT_NUM_MODEL_PARTS; part++)
            listed += out[part].bytes[purposes[i]];
        out[WEFT_MODEL_PART_DECODER].bytes[purposes[i]] += footprint->bytes[purposes[i]] - listed;
    }
}
