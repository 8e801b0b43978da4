#include "schedule/cost/costing.h"

#include <string.h>

static const char *const cost_paths[WEFT_NUM_COSTS] = {
#define COST_PATH(name, part, text, help) [WEFT_COST_##name] = "costs." text,
    WEFT_COST_LIST(COST_PATH)
#undef COST_PATH
};

const char *weft_input_path(int input)
{
    return input < WEFT_INPUT_EFFICIENCIES ? weft_figure_path((weft_figure)input)
           : input < WEFT_INPUT_COSTS
               ? weft_efficiency_path((weft_efficiency_kind)(input - WEFT_INPUT_EFFICIENCIES))
           : input < WEFT_INPUT_PRODUCTS    ? cost_paths[input - WEFT_INPUT_COSTS]
           : input == WEFT_INPUT_PRODUCTS   ? "products"
           : input == WEFT_INPUT_OPERATIONS ? "operations"
                                            : "between.levels";
}

weft_costing weft_costing_start(const weft_site *site, int node_group)
{
    return (weft_costing){.cluster = site->cluster,
                          .node_group = node_group,
                          .hardware = weft_cluster_hardware(site->cluster, node_group),
                          .unmeasured = WEFT_NUM_COSTS,
                          .inputs = site->inputs,
                          .unsourced = site->unsourced};
}

void weft_costing_at_least(weft_costing *p, weft_source_class class_)
{
    if (class_ > p->estimate.source)
        p->estimate.source = class_;
}

void weft_costing_note(weft_costing *p, int input)
{
    const uint64_t bit = UINT64_C(1) << input;
    _Static_assert(WEFT_NUM_INPUTS <= 64, "an input has a bit");
    if (p->noted & bit) /* already noted */
        return;
    p->noted |= bit;
    if (p->inputs)
        p->inputs->used |= bit;
    if (p->unsourced)
        return;
    const char *path = weft_input_path(input);
    const weft_source *source = weft_cluster_source(p->cluster, p->node_group, path);
    const bool is_measured = input >= WEFT_INPUT_COSTS && input != WEFT_INPUT_LEVELS;
    weft_costing_at_least(p, source        ? source->class_
                             : is_measured ? WEFT_SOURCE_MEASURED
                                           : WEFT_SOURCE_ASSUMED);
    if (source && source->spread > p->estimate.spread)
        p->estimate.spread = source->spread;
}

void weft_costing_scale(weft_costing *p, int input)
{
    weft_costing_at_least(p, WEFT_SOURCE_SCALED);
    if (p->inputs)
        p->inputs->scaled |= UINT64_C(1) << input;
}

double weft_costing_figure(weft_costing *p, weft_figure figure)
{
    if (!weft_hardware_knows(p->hardware, figure)) {
        if (!p->lacks)
            p->lacks = weft_figure_path(figure);
        return 1;
    }
    weft_costing_note(p, (int)figure);
    return p->hardware->figures[figure];
}

double weft_costing_figure_or(weft_costing *p, weft_figure figure, double otherwise)
{
    return weft_hardware_knows(p->hardware, figure) ? weft_costing_figure(p, figure) : otherwise;
}

double weft_costing_share(weft_costing *p, weft_efficiency_kind kind, double volume)
{
    const weft_share_curve *curve = &p->hardware->efficiencies[kind];
    if (curve->num_points > 0)
        weft_costing_note(p, WEFT_INPUT_EFFICIENCIES + (int)kind);
    else if (p->inputs) /* the figure counts as 1, which the list of inputs shows */
        p->inputs->used |= UINT64_C(1) << (WEFT_INPUT_EFFICIENCIES + (int)kind);
    return weft_share_at(curve, volume);
}

/* The section of the file that describes the hardware of a cost. */
static const char *section_of(weft_cost_kind kind)
{
    static const char *const sections[] = {
        [WEFT_PART_BETWEEN] = "between", [WEFT_PART_INSIDE] = "inside",
        [WEFT_PART_PRODUCTS] = "device", [WEFT_PART_MEMORY] = "device",
        [WEFT_PART_HOST] = "host",       [WEFT_PART_STORAGE] = "storage",
        [WEFT_PART_DIRECT] = "storage"};
    return sections[weft_cost_part_of(kind)];
}

/* Nodes that have a section's numbers of their own are not those that were measured. */
bool weft_costing_is_measured_here(const weft_costing *p, const char *section)
{
    if (p->node_group < 0 || p->node_group >= p->cluster->num_groups)
        return true;
    const weft_node_group *group = &p->cluster->groups[p->node_group];
    for (int i = 0; i < WEFT_NUM_FIGURES; i++)
        if (group->own_figures >> i & 1 &&
            strncmp(weft_figure_path((weft_figure)i), section, strlen(section)) == 0)
            return false;
    return true;
}

bool weft_costing_knows(weft_costing *p, weft_cost_kind kind)
{
    const bool knows =
        weft_cluster_knows(p->cluster, kind) && weft_costing_is_measured_here(p, section_of(kind));
    if (!knows && p->unmeasured == WEFT_NUM_COSTS)
        p->unmeasured = kind;
    return knows;
}

double weft_costing_curve(weft_costing *p, weft_cost_kind kind, double volume, bool scaled)
{
    weft_costing_note(p, WEFT_INPUT_COSTS + (int)kind);
    if (scaled)
        weft_costing_scale(p, WEFT_INPUT_COSTS + (int)kind);
    return weft_cluster_us(p->cluster, kind, volume);
}
