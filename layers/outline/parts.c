#include "layers/outline/parts.h"

#include <math.h>
#include <string.h>

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

static void add_parameters(const weft_outline *outline, const weft_mesh *mesh, int rank,
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
    uint64_t owned = 0;
    for (int group = 0; group < WEFT_NUM_GRADIENT_GROUPS; group++)
        owned += held->owned[group];
    for (int group = 0; group < WEFT_NUM_GRADIENT_GROUPS; group++) {
        share_out(&weights, group, held->weights[group] * element, out);
        if (footprint->bytes[WEFT_MEMORY_GRADIENTS] > 0)
            share_out(&grads, group, held->grads[group] * sizeof(float), out);
        if (owned > 0)
            share_out(&state, group,
                      held->owned[group] * (footprint->bytes[WEFT_MEMORY_OPTIMIZER] / owned), out);
    }
}

static void add_activations(const weft_outline *outline, int rank, const weft_program *program,
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
                weft_footprint_kept(outline, l, first, end);
    }
}

void weft_footprint_parts(const weft_outline *outline, const weft_mesh *mesh, int rank,
                          const weft_program *program, const weft_footprint *footprint,
                          weft_part_bytes out[WEFT_NUM_MODEL_PARTS])
{
    static const weft_memory_purpose purposes[] = {WEFT_MEMORY_WEIGHTS, WEFT_MEMORY_GRADIENTS,
                                                   WEFT_MEMORY_OPTIMIZER, WEFT_MEMORY_ACTIVATIONS};
    memset(out, 0, WEFT_NUM_MODEL_PARTS * sizeof *out);
    add_parameters(outline, mesh, rank, footprint, out);
    add_activations(outline, rank, program, out);
    for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++) {
        uint64_t listed = 0; /* the rest is shared by layers */
        for (int part = 0; part < WEFT_NUM_MODEL_PARTS; part++)
            listed += out[part].bytes[purposes[i]];
        out[WEFT_MODEL_PART_DECODER].bytes[purposes[i]] += footprint->bytes[purposes[i]] - listed;
    }
}
