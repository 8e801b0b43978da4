#include "launcher/planning/sharding_price.h"

#include <math.h>
#include <string.h>

#include "launcher/planning/software.h"
#include "schedule/price/price.h"

/* A collective of each bucket; *bytes: of all of them. */
static weft_status add_collectives(const weft_site *site, const weft_outline_layer *layer,
                                   weft_section_kind section, weft_collective kind,
                                   double element_bytes, double *us, double links[WEFT_NUM_LINKS])
{
    const weft_unit_shape *unit = &layer->units[section];
    const weft_group *group =
        &site->groups[section == WEFT_SECTION_EXPERT ? WEFT_AXIS_EDP : WEFT_AXIS_DP_CP];
    weft_estimate estimate;
    if (unit->num_buckets == 0)
        return WEFT_OK;
    WEFT_TRY(weft_collective_us(
        site, group, kind, element_bytes * (double)unit->elements / unit->num_buckets, &estimate));
    *us += unit->num_buckets * estimate.us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        links[l] += unit->num_buckets * estimate.links[l].us;
    return WEFT_OK;
}

static const double ROUNDING = 1e-9;

/* A share is read, what is kept is read and written. */
enum { SHARE_BYTES = 12 };

weft_status weft_unit_price(const weft_site *site, const weft_outline *outline, int layer,
                            weft_unit_time *out)
{
    const weft_outline_layer *l = &outline->layers[layer];
    const double element_bytes = (double)weft_dtype_bytes(outline->shape.dtype);
    weft_estimate estimate;
    const double offloaded = (double)weft_outline_offloaded(outline, layer),
                 sharded = weft_software_value(site->software, WEFT_RULE_SHARDED_BYTES);
    double elements = 0, shares = 0;
    *out = (weft_unit_time){0};
    WEFT_TRY(weft_work_us(site, WEFT_COST_TO_HOST, offloaded, &estimate));
    out->offload_us = estimate.us;
    WEFT_TRY(weft_work_us(site, WEFT_COST_TO_DEVICE, offloaded, &estimate));
    out->prefetch_us = estimate.us;
    for (int section = 0; section < WEFT_NUM_SECTIONS; section++) {
        const weft_axis axis = section == WEFT_SECTION_EXPERT ? WEFT_AXIS_EDP : WEFT_AXIS_DP_CP;
        WEFT_TRY(add_collectives(site, l, (weft_section_kind)section, WEFT_COLLECTIVE_ALL_GATHER,
                                 element_bytes, &out->gather_us, out->link_us[0]));
        WEFT_TRY(add_collectives(
            site, l, (weft_section_kind)section, WEFT_COLLECTIVE_REDUCE_SCATTER,
            sharded > 0 ? sharded : sizeof(float), &out->reduce_us, out->link_us[1]));
        elements += (double)l->units[section].elements;
        shares += (double)l->units[section].elements / site->groups[axis].size;
    }
    if (elements == 0)
        return WEFT_OK;
    WEFT_TRY(weft_work_us(site, WEFT_COST_MEMORY, SHARE_BYTES * shares, &estimate));
    out->reduce_us += estimate.us;
    const double copied = weft_software_value(site->software, WEFT_RULE_GATHER_COPIES) * elements +
                          weft_software_value(site->software, WEFT_RULE_SHARE_COPIES) * shares,
                 reduced = weft_software_value(site->software, WEFT_RULE_GRADIENT_COPIES);
    WEFT_TRY(weft_work_us(site, WEFT_COST_MEMORY,
                          (reduced > 0 ? reduced : sizeof(float)) * elements, &estimate));
    out->clear_us = estimate.us;
    WEFT_TRY(weft_work_us(site, WEFT_COST_MEMORY, copied, &estimate));
    out->copy_us = copied > 0 ? estimate.us : 0;
    return WEFT_OK;
}

weft_task_time weft_unit_task_time(const weft_unit_time *unit, const weft_task *task)
{
    const bool gathers = task->kind == WEFT_TASK_GATHER;
    weft_task_time time = {.us = gathers ? unit->gather_us : unit->reduce_us};
    if (gathers || task->kind == WEFT_TASK_REDUCE) {
        memcpy(time.link_us, unit->link_us[!gathers], sizeof time.link_us);
        return time;
    }
    time.us = task->kind == WEFT_TASK_OFFLOAD ? unit->offload_us : unit->prefetch_us;
    time.link_us[WEFT_LINK_HOST] = time.us;
    return time;
}

/* The layers of a chunk, twice where two passes follow each other: the second finds the rings as
 * the first leaves them. */
typedef struct pricing {
    const weft_outline *outline;
    const weft_pass_price *prices; /* by the outline's layers */
    int first, num_layers;
    weft_unit_time *units;
    weft_made_programs made;
    weft_layer_body **layers, **again; /* of the pass; recomputed */
    double *more_us;                   /* on the compute lane, beside what a layer does */
    bool without_copies;
    double reduced_us, reduced_link_us[WEFT_NUM_LINKS]; /* all reductions of the pass */
    double between_us; /* ahead of the layer with which the second pass begins */
    int second;        /* its number; -1: one pass */
    bool is_alone;     /* the pass neither gathers nor reduces */
    const weft_interference *interference; /* NULL: none */
} pricing;

static int number_of(const pricing *p, const weft_task *task)
{
    return (task->layer - p->first) % p->num_layers;
}

static const weft_layer_body *layer_body(const void *context, const weft_task *task)
{
    const pricing *p = context;
    return (task->kind == WEFT_TASK_RECOMPUTE ? p->again : p->layers)[number_of(p, task)];
}

static double more_us(const void *context, const weft_task *task)
{
    const pricing *p = context;
    return task->kind == WEFT_TASK_RECOMPUTE
               ? 0
               : p->more_us[number_of(p, task)] + (task->layer == p->second ? p->between_us : 0);
}

static weft_task_time beside_time(const void *context, const weft_task *task)
{
    const pricing *p = context;
    const bool copies = task->kind == WEFT_TASK_OFFLOAD || task->kind == WEFT_TASK_PREFETCH;
    return copies && p->without_copies ? (weft_task_time){0}
                                       : weft_unit_task_time(&p->units[number_of(p, task)], task);
}

/* So many passes, one after the other: how long the compute lane waits until their layers are over,
 * and how much longer the rest takes. */
typedef struct waiting {
    double layers_us, rest_us;
} waiting;

static weft_status price_passes(pricing *p, const weft_chunk_shape *chunk, bool backward, int times,
                                weft_arena *arena, waiting *out)
{
    const weft_body_source source = {
        .layer = layer_body, .more_us = more_us, .beside = beside_time, .context = p};
    weft_chunk_shape shape = *chunk;
    weft_program program;
    weft_priced_body body;
    const weft_pricing asked = {.cost = weft_priced_body_us,
                                .interference = p->interference,
                                .links = weft_priced_body_links,
                                .context = &body};
    weft_price price;
    double end = 0, computed = 0;
    p->second = times < 2 ? -1 : chunk->first + chunk->num_layers - backward;
    shape.num_layers = times * chunk->num_layers;
    weft_pass_layer *layers;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)shape.num_layers, &layers));
    for (int i = 0; i < shape.num_layers; i++) {
        layers[i] = chunk->layers[i % chunk->num_layers];
        if (layers[i].group > 0) /* no group crosses passes */
            layers[i].group += i / chunk->num_layers * p->outline->num_layers;
    }
    shape.layers = layers;
    WEFT_TRY(weft_program_pass(&shape, backward ? WEFT_PASS_BACKWARD : WEFT_PASS_FORWARD, arena,
                               &program));
    WEFT_TRY(weft_priced_body_make(&program, &source, arena, &body));
    WEFT_TRY(weft_program_price(&body.program, 1, &asked, arena, &price));
    for (uint32_t i = 0; i < body.program.num_tasks; i++)
        if (body.program.tasks[i].lane == WEFT_LANE_COMPUTE)
            end = fmax(end, price.spans[0][i].end_us);
    for (uint32_t i = 0; i < program.num_tasks; i++)
        if (!weft_body_beside(&program.tasks[i]))
            computed += layer_body(p, &program.tasks[i])->us + more_us(p, &program.tasks[i]);
    *out = (waiting){fmax(0, end - computed), fmax(0, price.makespan_us - end)};
    return WEFT_OK;
}

static bool same_unit(const weft_outline *outline, int a, int b)
{
    const weft_outline_layer *x = &outline->layers[a], *y = &outline->layers[b];
    for (int i = 0; i < WEFT_NUM_SECTIONS; i++)
        if (x->units[i].elements != y->units[i].elements ||
            x->units[i].num_buckets != y->units[i].num_buckets)
            return false;
    return weft_outline_offloaded(outline, a) == weft_outline_offloaded(outline, b);
}

/* Whether a layer's exchange of experts' rows and the gathers or reductions load the same link.
 * What attention and tensor-parallel products send travels nearly as long as these compute: it lies
 * evenly over the own part before it. */
static bool meets(const pricing *p, const weft_site *site, int i)
{
    const weft_group *ep = &site->groups[WEFT_AXIS_EP];
    double us[WEFT_NUM_LINKS];
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        us[l] = p->units[i].link_us[0][l] + p->units[i].link_us[1][l];
    return !p->is_alone &&
           weft_description_travels(&p->outline->layers[p->first + i].description) &&
           ((ep->near > 1 && us[WEFT_LINK_INSIDE] > 0) ||
            (ep->near < ep->size && us[WEFT_LINK_BETWEEN] > 0));
}

/* Of layers that are alike one's. */
static weft_status make_bodies(pricing *p, const weft_site *site, int i, bool backward)
{
    const weft_pass_price *price = &p->prices[p->first + i];
    const int half = backward ? WEFT_HALF_BACKWARD : WEFT_HALF_FORWARD;
    const bool slowed = p->interference != NULL;
    const bool inlines = meets(p, site, i);
    if (i > 0 && weft_pass_same_layer(p->outline, p->first + i - 1, p->first + i) &&
        same_unit(p->outline, p->first + i - 1, p->first + i)) {
        p->layers[i] = p->layers[i - 1];
        p->again[i] = p->again[i - 1];
        return WEFT_OK;
    }
    WEFT_TRY(weft_pass_body_make(site, p->outline, p->first + i, half, inlines, slowed,
                                 backward ? &price->backward : &price->forward, &p->made,
                                 &p->layers[i]));
    return p->outline->layers[p->first + i].recompute_group == 0
               ? WEFT_OK
               : weft_pass_body_make(site, p->outline, p->first + i, WEFT_HALF_AGAIN, inlines,
                                     slowed, &price->recompute, &p->made, &p->again[i]);
}

/* *out_beside: reductions alone stand beside the passes, so that those of one go on behind it. */
static weft_status price_layers(pricing *p, const weft_site *site, const weft_chunk_shape *chunk,
                                bool backward, weft_sharding_time *out, bool *out_beside)
{
    const weft_flow flow = backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    *out_beside = backward && chunk->offload_slots == 0;
    p->is_alone = true;
    for (int i = 0; i < p->num_layers; i++) {
        const weft_unit_time *unit = &p->units[i];
        const bool gathers = weft_pass_gathers(chunk, i, flow),
                   reduces = weft_pass_reduces(chunk, i, flow);
        *out_beside &= !gathers;
        if (i > 0 && same_unit(p->outline, p->first + i - 1, p->first + i))
            p->units[i] = p->units[i - 1];
        else
            WEFT_TRY(weft_unit_price(site, p->outline, p->first + i, &p->units[i]));
        p->is_alone &= !gathers && !reduces;
        p->more_us[i] = (reduces ? unit->clear_us : 0) + (gathers ? unit->copy_us : 0);
        out->clear_us += p->more_us[i];
        p->reduced_us += reduces ? unit->reduce_us : 0;
        for (int l = 0; l < WEFT_NUM_LINKS; l++) {
            out->link_us[l] += gathers ? unit->link_us[0][l] : 0;
            p->reduced_link_us[l] += reduces ? unit->link_us[1][l] : 0;
        }
        out->copies_us += backward ? unit->prefetch_us : unit->offload_us;
    }
    return WEFT_OK;
}

static weft_status price_chunk(pricing *p, const weft_site *site, int rank, int chunk,
                               bool backward, double between_us, weft_arena *arena,
                               weft_sharding_time *out)
{
    bool beside;
    weft_chunk_shape shape;
    waiting once = {0, 0}, twice = {0, 0};
    WEFT_TRY(weft_outline_pass(p->outline, rank, chunk, arena, &shape));
    p->first = shape.first;
    p->num_layers = shape.num_layers;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)p->num_layers, &p->units));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)p->num_layers, &p->layers));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)p->num_layers, &p->again));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)p->num_layers, &p->more_us));
    WEFT_TRY(price_layers(p, site, &shape, backward, out, &beside));
    p->between_us = beside ? between_us : 0;
    if (p->is_alone && shape.offload_slots == 0)
        return WEFT_OK;
    out->link_us[WEFT_LINK_HOST] += out->copies_us;
    p->without_copies = true;
    p->made.arena = arena;
    for (int i = 0; i < p->num_layers; i++)
        WEFT_TRY(make_bodies(p, site, i, backward));
    if (!p->is_alone)
        WEFT_TRY(price_passes(p, &shape, backward, 1, arena, &once));
    if (!p->is_alone)
        WEFT_TRY(price_passes(p, &shape, backward, 2, arena, &twice));
    out->exposed_us = fmax(0, twice.layers_us - once.layers_us);
    out->start_us = once.layers_us - out->exposed_us;
    if (!beside)
        out->start_us = fmax(0, out->start_us);
    out->tail_us = once.rest_us;
    /* What goes on behind a pass does not make the pass itself longer. */
    const double within = p->reduced_us > 0 ? fmax(0, 1 - once.rest_us / p->reduced_us) : 1;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out->link_us[l] += within * p->reduced_link_us[l];
    if (shape.offload_slots == 0)
        return WEFT_OK;
    p->without_copies = false;
    WEFT_TRY(price_passes(p, &shape, backward, 1, arena, &once));
    WEFT_TRY(price_passes(p, &shape, backward, 2, arena, &twice));
    const double longer = twice.layers_us - once.layers_us - out->exposed_us;
    out->host_us = longer > ROUNDING * out->copies_us ? longer : 0;
    return WEFT_OK;
}

weft_status weft_sharding_price(const weft_site *site, const weft_outline *outline,
                                const weft_pass_price *layers, int rank, int chunk, bool backward,
                                double between_us, weft_sharding_time *out)
{
    const weft_held_elements *held = &outline->held[rank];
    pricing p = {.outline = outline,
                 .prices = layers,
                 .interference = weft_pass_is_slowed(site) ? &site->cluster->interference : NULL};
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    *out = (weft_sharding_time){0};
    if ((held->gradient_slots == 0 && weft_outline_offload_sizes(outline, rank).num_slots == 0) ||
        first == end)
        return WEFT_OK;
    weft_arena arena = {0};
    const weft_status status =
        price_chunk(&p, site, rank, chunk, backward, between_us, &arena, out);
    weft_arena_release(&arena);
    return status;
}
