#include "layers/pass/offload.h"

#include <string.h>

#include "layers/outline/outline.h"

static const char *const names[] = {"core_attn", "mlp", "moe", "block"};
static const unsigned bits[] = {WEFT_RECOMPUTE_MODULE(CORE_ATTN), WEFT_RECOMPUTE_MODULE(MLP),
                                WEFT_RECOMPUTE_MODULE(MOE), WEFT_OFFLOAD_BLOCK};
enum { NUM_NAMES = sizeof names / sizeof *names };

weft_status weft_offload_modules(const weft_offload_options *o,
                                 const weft_recompute_options *recompute, unsigned *out)
{
    unsigned modules = 0, recomputed;
    *out = 0;
    for (size_t i = 0; i < o->modules.count; i++) {
        const char *name = o->modules.values[i];
        int module = 0;
        while (module < NUM_NAMES && strcmp(name, names[module]) != 0)
            module++;
        if (module == NUM_NAMES) {
            const char *nearest = weft_nearest_name(name, names, NUM_NAMES);
            return WEFT_KEY_ERROR("train.offload_modules", "no module \"%s\"; %s%s", name,
                                  nearest ? "did you mean " : "there are core_attn, mlp, moe ",
                                  nearest ? nearest : "and block");
        }
        modules |= bits[module];
    }
    if (!o->on)
        return WEFT_OK;
    if (modules == 0)
        return WEFT_KEY_ERROR("train.offload_modules", "none is named; there are core_attn, mlp, "
                                                       "moe and block");
    if (recompute->granularity == WEFT_RECOMPUTE_FULL)
        return WEFT_KEY_ERROR("train.fine_grained_activation_offloading",
                              "layers that train.recompute_granularity full makes again keep "
                              "nothing to offload");
    WEFT_TRY(weft_recompute_modules(recompute, &recomputed));
    for (int i = 0; i < NUM_NAMES; i++)
        if (modules & recomputed & bits[i])
            return WEFT_KEY_ERROR("train.offload_modules",
                                  "%s is recomputed: train.recompute_modules has it, too",
                                  names[i]);
    *out = modules;
    return WEFT_OK;
}

static uint64_t row_piece(const weft_outline *outline)
{
    return weft_piece_bytes(WEFT_U8, weft_shape_boundary_bytes(&outline->shape), 1);
}

static uint64_t part_of(const weft_outline *outline, int layer)
{
    const weft_description *d = &outline->layers[layer].description;
    const uint64_t all = d->cost.activation_bytes, row = row_piece(outline);
    uint64_t bytes = 0;
    if (outline->shape.offload & WEFT_OFFLOAD_BLOCK)
        return layer == 0 || layer == outline->num_layers - 1 ? 0 : all - (all >= row ? row : 0);
    for (int i = 0; i < d->num_kept; i++)
        bytes += d->kept[i].offloaded ? d->kept[i].bytes : 0;
    return bytes;
}

void weft_outline_offload(weft_outline *outline)
{
    const weft_layout *layout = &outline->layout;
    for (int stage = 0; stage < weft_layout_num_stages(layout); stage++)
        for (int l = layout->first[stage]; l < layout->first[stage + 1]; l++) {
            weft_outline_layer *layer = &outline->layers[l];
            layer->offloaded_bytes = part_of(outline, l);
            layer->offloads_input = (outline->shape.offload & WEFT_OFFLOAD_BLOCK) &&
                                    l > layout->first[stage] && l < outline->num_layers - 1;
            layer->offloads = layer->offloads_input || layer->offloaded_bytes > 0;
        }
}

static int at_most(int count, int bound)
{
    return count < bound ? count : bound;
}

weft_offload_sizes weft_outline_offload_sizes(const weft_outline *outline, int rank)
{
    weft_offload_sizes rings = {.input_bytes = row_piece(outline)};
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        int num = 0, num_inputs = 0;
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            num += outline->layers[l].offloads;
            num_inputs += outline->layers[l].offloads_input;
        }
        num = at_most(num, WEFT_OFFLOAD_SLOTS);
        num_inputs = at_most(num_inputs, WEFT_OFFLOAD_INPUTS);
        rings.num_slots = num > rings.num_slots ? num : rings.num_slots;
        rings.num_inputs = num_inputs > rings.num_inputs ? num_inputs : rings.num_inputs;
    }
    /* a chunk's layers use the slots in rotation */
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        int number = 0;
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            const weft_outline_layer *layer = &outline->layers[l];
            if (!layer->offloads)
                continue;
            uint64_t *slot = &rings.slot_bytes[number++ % rings.num_slots];
            *slot = layer->offloaded_bytes > *slot ? layer->offloaded_bytes : *slot;
        }
    }
    return rings;
}

uint64_t weft_outline_offloaded(const weft_outline *outline, int layer)
{
    const weft_outline_layer *l = &outline->layers[layer];
    return l->offloaded_bytes + (l->offloads_input ? row_piece(outline) : 0);
}
