#include "core/cluster/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const phase_texts[WEFT_NUM_PHASES] = {
#define ROW(name, text) text,
    WEFT_PHASE_LIST(ROW)
#undef ROW
};

const char *weft_phase_text(int phase)
{
    return phase_texts[phase];
}

static const struct cost_row {
    const char *text, *help;
    weft_cost_part part;
} costs[WEFT_NUM_COSTS] = {
#define COST_ROW(name, part, text, help) [WEFT_COST_##name] = {text, help, WEFT_PART_##part},
    WEFT_COST_LIST(COST_ROW)
#undef COST_ROW
};

weft_cost_part weft_cost_part_of(weft_cost_kind kind)
{
    return costs[kind].part;
}

const char *weft_cost_text(weft_cost_kind kind)
{
    return costs[kind].text;
}

const char *weft_cost_unit(weft_cost_kind kind)
{
    return costs[kind].part == WEFT_PART_PRODUCTS ? "FLOPs" : "bytes";
}

const char *weft_cost_help(weft_cost_kind kind)
{
    return costs[kind].help;
}

const char *weft_work_class_text(int class_)
{
    static const char *const texts[] = {
        [WEFT_WORK_COMP] = "comp",
        [WEFT_WORK_COMM] = "comm",
        [WEFT_WORK_MEM] = "mem",
        [WEFT_WORK_ALL] = "all",
    };
    return texts[class_];
}

weft_interference weft_interference_none(void)
{
    weft_interference none;
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            none.alpha[y][x] = 1;
    return none;
}

double weft_interference_least(int beside)
{
    return beside == WEFT_WORK_ALL ? 1.0 / 6 : 0.25;
}

bool weft_interference_fault(const weft_interference *interference, int *out_y, int *out_x)
{
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            if (!(interference->alpha[y][x] >= weft_interference_least(x))) {
                *out_y = y;
                *out_x = x;
                return true;
            }
    return false;
}

void weft_cost_bounds(weft_cost_kind kind, double *out_least, double *out_most)
{
    const weft_cost_part part = weft_cost_part_of(kind);
    const bool computes = part == WEFT_PART_PRODUCTS,
               is_memory = part == WEFT_PART_MEMORY || part == WEFT_PART_HOST;
    *out_least = computes || is_memory ? 1e6 : 1e5;
    *out_most = computes ? 1e17 : is_memory ? 1e14 : 1e13;
}

double weft_cluster_us(const weft_cluster *cluster, weft_cost_kind kind, double volume)
{
    return volume > 0 ? weft_curve_time_us(&cluster->costs[kind].curve, volume) : 0;
}

static void set_peaks(weft_hardware *hardware, double flops)
{
    static const weft_figure peaks[] = {WEFT_FIGURE_PEAK_FP32, WEFT_FIGURE_PEAK_BF16,
                                        WEFT_FIGURE_PEAK_FP16};
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        hardware->figures[peaks[i]] = flops;
        hardware->given |= 1u << peaks[i];
    }
    hardware->given &= ~(1u << WEFT_FIGURE_MULTIPROCESSORS);
    for (int kind = 0; kind < WEFT_NUM_EFFICIENCIES; kind++)
        if (kind != WEFT_EFFICIENCY_MEMORY && kind < WEFT_EFFICIENCY_INSIDE)
            hardware->efficiencies[kind].num_points = 0;
}

weft_interference weft_interference_paced(const weft_interference *interference,
                                          weft_work_class class_)
{
    weft_interference i = *interference;
    for (int x = 0; x <= WEFT_NUM_WORK_CLASSES; x++)
        i.alpha[class_][x] = 1;
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        if (y != (int)class_) {
            const int third = WEFT_WORK_COMP + WEFT_WORK_COMM + WEFT_WORK_MEM - y - (int)class_;
            i.alpha[y][class_] = 1;
            i.alpha[y][WEFT_WORK_ALL] = i.alpha[y][third];
        }
    return i;
}

/* What was said of a cost that is another now. */
static void forget_source(weft_cluster *cluster, weft_cost_kind kind)
{
    for (int i = 0; i < cluster->num_sources; i++)
        if (strncmp(cluster->sources[i].key, "costs.", 6) == 0 &&
            strcmp(cluster->sources[i].key + 6, weft_cost_text(kind)) == 0)
            cluster->sources[i--] = cluster->sources[--cluster->num_sources];
}

static void set_rate(weft_cluster *cluster, weft_cost_kind kind, double rate)
{
    cluster->costs[kind] = (weft_cost){.curve = weft_curve_linear(0, rate * 1e-6), .peak = rate};
    forget_source(cluster, kind);
}

void weft_cluster_set_pace(weft_cluster *cluster, double flops)
{
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (weft_cost_part_of((weft_cost_kind)i) == WEFT_PART_PRODUCTS)
            set_rate(cluster, (weft_cost_kind)i, flops);
    cluster->num_products = 0;
    for (int i = 0; i < cluster->num_operations; i++) /* attention's products */
        if (strcmp(cluster->operations[i].module, WEFT_MODULE_ATTENTION) == 0)
            cluster->operations[i--] = cluster->operations[--cluster->num_operations];
    cluster->interference = weft_interference_paced(&cluster->interference, WEFT_WORK_COMP);
    set_peaks(&cluster->hardware, flops);
    for (int i = 0; i < cluster->num_groups; i++)
        set_peaks(&cluster->groups[i].hardware, flops);
}

static void set_link(weft_hardware *hardware, double bytes)
{
    hardware->figures[WEFT_FIGURE_HOST_LINK] = bytes;
    hardware->given |= 1u << WEFT_FIGURE_HOST_LINK;
}

void weft_cluster_set_link_pace(weft_cluster *cluster, double bytes)
{
    set_rate(cluster, WEFT_COST_TO_HOST, bytes);
    set_rate(cluster, WEFT_COST_TO_DEVICE, bytes);
    cluster->interference = weft_interference_paced(&cluster->interference, WEFT_WORK_MEM);
    set_link(&cluster->hardware, bytes);
    for (int i = 0; i < cluster->num_groups; i++)
        set_link(&cluster->groups[i].hardware, bytes);
}

static int near_of(int ranks, int near)
{
    return near < 1 ? 1 : near < ranks ? near : ranks;
}

double weft_cluster_exchange_us(const weft_cluster *cluster, double bytes, int ranks, int near)
{
    near = near_of(ranks, near);
    double between = 0, inside = 0;
    if (ranks > near)
        between = weft_cluster_us(cluster, WEFT_COST_ALL_TO_ALL, bytes * (ranks - near) / ranks);
    if (near > 1)
        inside = weft_cluster_us(cluster, WEFT_COST_ALL_TO_ALL_INSIDE, bytes * (near - 1) / ranks);
    return between > inside ? between : inside;
}

weft_cost_kind weft_cluster_lacks_exchange(const weft_cluster *cluster, int ranks, int near)
{
    near = near_of(ranks, near);
    if (ranks > near && !weft_cluster_knows(cluster, WEFT_COST_ALL_TO_ALL))
        return WEFT_COST_ALL_TO_ALL;
    if (near > 1 && !weft_cluster_knows(cluster, WEFT_COST_ALL_TO_ALL_INSIDE))
        return WEFT_COST_ALL_TO_ALL_INSIDE;
    return WEFT_NUM_COSTS;
}

bool weft_cluster_knows(const weft_cluster *cluster, weft_cost_kind kind)
{
    return cluster->costs[kind].curve.num_points > 0;
}

double weft_cluster_efficiency(const weft_cluster *cluster, weft_cost_kind kind, double volume)
{
    double us = weft_cluster_us(cluster, kind, volume), peak = cluster->costs[kind].peak;
    /* A small message may ride in a shaper's burst, faster than the link. */
    return us > 0 && peak > 0 ? fmin(volume / (us * 1e-6) / peak, 1) : 1;
}

const weft_hardware *weft_cluster_hardware(const weft_cluster *cluster, int group)
{
    return group >= 0 && group < cluster->num_groups ? &cluster->groups[group].hardware
                                                     : &cluster->hardware;
}

int weft_cluster_group_of(const weft_cluster *cluster, int node)
{
    for (int i = 0; i < cluster->num_groups; i++) {
        node -= cluster->groups[i].num_nodes;
        if (node < 0)
            return i;
    }
    return -1;
}

static const weft_source *longest_source(const weft_cluster *cluster, const char *path)
{
    const weft_source *best = NULL;
    size_t best_bytes = 0;
    for (int i = 0; i < cluster->num_sources; i++) {
        const weft_source *source = &cluster->sources[i];
        size_t bytes = 0; /* that are the same: asked for each number of each operation */
        while (source->key[bytes] && path[bytes] == source->key[bytes])
            bytes++;
        const bool covers = !source->key[bytes] && (!path[bytes] || path[bytes] == '.');
        if (covers && bytes > best_bytes) {
            best = source;
            best_bytes = bytes;
        }
    }
    return best;
}

/* Whether the nodes of a group have the figure or efficiency at a path for themselves. */
static bool owns(const weft_cluster *cluster, int group, const char *path)
{
    const weft_node_group *g = &cluster->groups[group];
    for (int i = 0; i < WEFT_NUM_FIGURES; i++)
        if (g->own_figures >> i & 1 && strcmp(weft_figure_path((weft_figure)i), path) == 0)
            return true;
    for (int i = 0; i < WEFT_NUM_EFFICIENCIES; i++)
        if (g->own_efficiencies >> i & 1 &&
            strcmp(weft_efficiency_path((weft_efficiency_kind)i), path) == 0)
            return true;
    return false;
}

const weft_source *weft_cluster_source(const weft_cluster *cluster, int group, const char *path)
{
    char own[96];
    const bool differs = group >= 0 && group < cluster->num_groups;
    if (differs)
        snprintf(own, sizeof own, "groups[%d].%s", group, path);
    const weft_source *source = differs ? longest_source(cluster, own) : NULL;
    /* What others' nodes have is no source of a number of its own. */
    return source || (differs && owns(cluster, group, path)) ? source
                                                             : longest_source(cluster, path);
}

static const char mark[] = "cluster";

static weft_status set_key(const char *key)
{
    weft_error error;
    weft_error_take(&error);
    snprintf(error.key, sizeof error.key, "%s", key);
    return weft_error_put(&error);
}

weft_status weft_lack_mark(weft_status status)
{
    return status == WEFT_OK ? WEFT_OK : set_key(mark);
}

bool weft_lack_is(const weft_error *error)
{
    return error->status != WEFT_OK && strcmp(error->key, mark) == 0;
}

weft_status weft_lack_name_file(weft_status status, const char *path)
{
    if (status == WEFT_OK || !path || !weft_lack_is(weft_error_get()))
        return status;
    set_key("");
    return weft_error_context(status, "%s", path);
}
