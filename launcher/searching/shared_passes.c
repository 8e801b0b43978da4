#include "launcher/searching/bound.h"

#include <math.h>
#include <string.h>

#include "launcher/planning/sharding_price.h"
#include "launcher/planning/step_price.h"
#include "layers/pass/offload.h"

typedef struct finding {
    const weft_config *config;
    const weft_cluster *cluster, *experts;
    weft_plan plan;          /* of it: the mesh, the outline, how MoE layers run */
    weft_pass_price *layers; /* of the chunk at hand, by the outline's */
    weft_shared_chunk *chunks;
    double *tail_us;
} finding;

/* The chunk c of a stage. */
typedef struct place {
    int stage, chunk, first, end;
} place;

static place place_at(const weft_outline *outline, int stage, int chunk)
{
    place p = {.stage = stage, .chunk = chunk};
    weft_layout_range(&outline->layout, stage, chunk, &p.first, &p.end);
    return p;
}

static bool same_layer(const weft_outline *outline, int a, int b)
{
    const weft_outline_layer *x = &outline->layers[a], *y = &outline->layers[b];
    return weft_pass_same_layer(outline, a, b) && x->recompute_group == y->recompute_group &&
           x->in_place == y->in_place && x->host_waits == y->host_waits &&
           x->offloads == y->offloads && x->offloads_input == y->offloads_input &&
           x->offloaded_bytes == y->offloaded_bytes &&
           memcmp(x->units, y->units, sizeof x->units) == 0;
}

static bool same_rings(const weft_outline *outline, int a, int b)
{
    const weft_offload_sizes x = weft_outline_offload_sizes(outline, a),
                             y = weft_outline_offload_sizes(outline, b);
    return x.num_slots == y.num_slots && x.num_inputs == y.num_inputs;
}

/* Whether two chunks have the same passes: between the model's ends, of the same layers, on stages
 * whose rings are alike. */
static bool is_same(const weft_outline *outline, const place *a, const place *b)
{
    const weft_held_elements *x = &outline->held[a->stage], *y = &outline->held[b->stage];
    if (a->end - a->first != b->end - b->first || a->first == 0 || b->first == 0 ||
        a->end == outline->num_layers || b->end == outline->num_layers ||
        x->weight_slots != y->weight_slots || x->gradient_slots != y->gradient_slots ||
        !same_rings(outline, a->stage, b->stage))
        return false;
    for (int i = 0; i < a->end - a->first; i++)
        if (!same_layer(outline, a->first + i, b->first + i))
            return false;
    return true;
}

static double all_us(const weft_sharding_time *time)
{
    return time->exposed_us + time->host_us + time->clear_us;
}

/* Of the chunk's layers alone, which are priced. */
static weft_status forward_us(finding *f, const weft_site *site, const place *at, double *out)
{
    const weft_outline *outline = &f->plan.step.outline;
    weft_pass_price sum = {0}, one = {0};
    for (int l = at->first; l < at->end; l++) {
        if (l == at->first || !weft_pass_same_layer(outline, l - 1, l)) {
            one = (weft_pass_price){0};
            WEFT_TRY(weft_pass_price_add(site, outline, l, l + 1, &one));
        }
        f->layers[l] = one;
        weft_pass_time_add(&sum.forward, &one.forward);
    }
    *out = weft_pass_us(&sum.forward);
    return WEFT_OK;
}

static weft_status find_chunk(finding *f, const weft_site *site, const place *at)
{
    const weft_outline *outline = &f->plan.step.outline;
    weft_shared_chunk *out = &f->chunks[at->stage * outline->layout.num_chunks + at->chunk];
    double between_us = 0;
    weft_sharding_time forward, backward, apart;
    WEFT_TRY(forward_us(f, site, at, &between_us));
    WEFT_TRY(
        weft_sharding_price(site, outline, f->layers, at->stage, at->chunk, false, 0, &forward));
    WEFT_TRY(
        weft_sharding_price(site, outline, f->layers, at->stage, at->chunk, true, 0, &backward));
    apart = backward;
    if (outline->residency.sharding == WEFT_SHARD_OPTIM_GRADS)
        WEFT_TRY(weft_sharding_price(site, outline, f->layers, at->stage, at->chunk, true,
                                     between_us, &apart));
    *out = (weft_shared_chunk){
        .us = {all_us(&forward), fmin(all_us(&backward), all_us(&apart))},
        .start_us = {forward.start_us, fmin(backward.start_us, apart.start_us)}};
    if (at->chunk == 0)
        f->tail_us[at->stage] = fmin(backward.tail_us, apart.tail_us);
    return WEFT_OK;
}

static bool same_group(const weft_group *a, const weft_group *b)
{
    return a->size == b->size && a->near == b->near && a->stride == b->stride &&
           a->sharing == b->sharing && a->direct == b->direct;
}

static bool same_site(const weft_site *a, const weft_site *b)
{
    bool same = same_group(&a->heads, &b->heads) && same_group(&a->ring, &b->ring);
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        same &= same_group(&a->groups[axis], &b->groups[axis]);
    return same;
}

/* A chunk like the same one of the stage before takes as long. */
static weft_status find_all(finding *f)
{
    const weft_outline *outline = &f->plan.step.outline;
    const int num_chunks = outline->layout.num_chunks;
    weft_site before = {0};
    for (int s = 0; s < f->plan.mesh.pp; s++) {
        weft_site site;
        WEFT_TRY(weft_step_site(f->config, f->cluster, f->experts, &f->plan, s, 0, &site));
        site.unsourced = true;
        const bool alike = s > 0 && same_site(&site, &before);
        for (int c = 0; c < num_chunks; c++) {
            const place at = place_at(outline, s, c),
                        left = place_at(outline, alike ? s - 1 : s, c);
            if (alike && is_same(outline, &at, &left)) {
                f->chunks[s * num_chunks + c] = f->chunks[(s - 1) * num_chunks + c];
                f->tail_us[s] = c == 0 ? f->tail_us[s - 1] : f->tail_us[s];
            } else {
                WEFT_TRY(find_chunk(f, &site, &at));
            }
        }
        before = site;
    }
    return WEFT_OK;
}

static weft_status find(finding *f, weft_arena *arena, weft_shared_passes *out)
{
    const size_t num_chunks = (size_t)f->plan.step.outline.layout.num_chunks,
                 num_stages = (size_t)f->plan.mesh.pp;
    WEFT_TRY(WEFT_ARRAY(arena, num_stages * num_chunks, &f->chunks));
    WEFT_TRY(WEFT_ARRAY(arena, num_stages, &f->tail_us));
    WEFT_TRY(find_all(f));
    *out = (weft_shared_passes){.num_stages = (int)num_stages,
                                .num_chunks = (int)num_chunks,
                                .chunks = f->chunks,
                                .tail_us = f->tail_us};
    return WEFT_OK;
}

weft_status weft_shared_passes_find(const weft_config *config, const weft_cluster *cluster,
                                    const weft_cluster *experts, const weft_mesh *mesh,
                                    const weft_moe_options *moe, weft_arena *arena,
                                    weft_layout *out_layout, weft_shared_passes *out)
{
    const weft_model_setup setup = weft_step_setup(config, moe);
    finding f = {.config = config, .cluster = cluster, .experts = experts};
    f.plan.mesh = *mesh;
    f.plan.step.moe = *moe;
    WEFT_TRY(weft_model_outline(&setup, mesh, weft_config_build(config), &f.plan.step.outline));
    *out_layout = f.plan.step.outline.layout;
    weft_arena scratch = {0};
    weft_status status = WEFT_ARRAY(&scratch, (size_t)f.plan.step.outline.num_layers, &f.layers);
    if (status == WEFT_OK)
        status = find(&f, arena, out);
    weft_arena_release(&scratch);
    weft_outline_release(&f.plan.step.outline);
    return status;
}
