#include "launcher/measuring/import.h"

#include <string.h>
#include <strings.h>

#include "core/text.h"
#include "launcher/measuring/import_internal.h"

void weft_import_start(weft_import *import)
{
    memset(import, 0, sizeof *import);
    import->cluster.interference = weft_interference_none();
}

/* --- which file is what -------------------------------------------------------------------- */

typedef enum format { CLUSTER, HWLOC, NVIDIA, SLURM, NCCL, UNKNOWN } format;

static bool begins_like_json(const char *text)
{
    const char *start = text + strspn(text, " \t\r\n");
    return *start == '{' || (start[0] == '/' && (start[1] == '/' || start[1] == '*'));
}

static format recognize(const char *text)
{
    if (begins_like_json(text))
        return CLUSTER;
    if (text[strspn(text, " \t\r\n")] == '<')
        return HWLOC;
    if (weft_slurm_is_yaml(text))
        return SLURM;
    weft_import_lines lines = {.next = text};
    while (weft_import_next_line(&lines)) {
        char first[WEFT_IMPORT_WORD_BYTES], second[WEFT_IMPORT_WORD_BYTES];
        size_t at = 0;
        if (!weft_import_next_word(&lines, &at, first))
            continue;
        if (strncasecmp(first, "SwitchName=", 11) == 0 || strncasecmp(first, "BlockName=", 10) == 0)
            return SLURM;
        if (weft_import_line_has(&lines, " algbw ") && weft_import_line_has(&lines, " busbw "))
            return NCCL;
        if (strcmp(first, "GPU0") == 0 && weft_import_next_word(&lines, &at, second))
            return NVIDIA;
    }
    return UNKNOWN;
}

/* The numbers that the others replace. */
static weft_status take_cluster(weft_import *import, const char *file)
{
    if (import->num_notes > 0 || import->has_nodes || import->has_ranks ||
        import->cluster.num_sources > 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: a cluster's file comes before the files that change it",
                          file);
    weft_cluster cluster;
    weft_status status = weft_cluster_read(file, &cluster);
    if (status != WEFT_OK)
        return status;
    import->cluster = cluster;
    return WEFT_OK;
}

static weft_status take(weft_import *import, const char *file, const char *text, weft_arena *arena)
{
    switch (recognize(text)) {
    case CLUSTER:
        return take_cluster(import, file);
    case HWLOC:
        return weft_import_hwloc(import, file, text);
    case NVIDIA:
        return weft_import_nvidia(import, file, text);
    case SLURM:
        return weft_import_slurm(import, file, text, arena);
    case NCCL:
        return weft_import_nccl(import, file, text, arena);
    case UNKNOWN:
        break;
    }
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s:1: not hwloc's XML, nvidia-smi topo -m, a topology.conf or "
                      "topology.yaml, the output of nccl-tests or a cluster's file",
                      file);
}

weft_status weft_import_take(weft_import *import, const char *file, const char *text,
                             weft_arena *arena)
{
    weft_import *copy;
    WEFT_TRY(weft_arena_alloc(arena, sizeof *import, &copy));
    *copy = *import;
    WEFT_TRY(take(copy, file, text, arena));
    *import = *copy;
    return WEFT_OK;
}

/* --- when all are taken -------------------------------------------------------------------- */

/* A curve holds while all ranks of a node do the same at once. A lone rank of a node shows that
 * time too where each rank has a card of its own. */
static void drop_curves_of_others(weft_import *import)
{
    weft_cluster *cluster = &import->cluster;
    const double cards = cluster->hardware.figures[WEFT_FIGURE_CARDS];
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        const weft_cost_kind kind = (weft_cost_kind)i;
        const int ranks = import->curve_ranks[i];
        if (ranks == 0 || ranks == cluster->ranks_per_node ||
            (weft_cost_part_of(kind) == WEFT_PART_BETWEEN && ranks == 1 &&
             cards >= cluster->ranks_per_node))
            continue;
        char key[72];
        snprintf(key, sizeof key, "costs.%s", weft_cost_text(kind));
        weft_import_drop_source(cluster, key);
        cluster->costs[i] = (weft_cost){0};
        weft_import_note(import, "costs.%s: %s ran %s of a node, which has %d: left out",
                         weft_cost_text(kind), import->curve_files[i],
                         weft_count_text(ranks, "rank").text, cluster->ranks_per_node);
    }
}

static void note_missing(weft_import *import)
{
    const weft_cluster *cluster = &import->cluster;
    const weft_figure figures[] = {WEFT_FIGURE_MEMORY, WEFT_FIGURE_MEMORY_BANDWIDTH,
                                   WEFT_FIGURE_PEAK_BF16, WEFT_FIGURE_INSIDE_BANDWIDTH,
                                   WEFT_FIGURE_BETWEEN_BANDWIDTH};
    char list[WEFT_IMPORT_NOTE_BYTES] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (!weft_hardware_knows(&cluster->hardware, figures[i]))
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                                     weft_figure_path(figures[i]));
    if (used > 0)
        weft_import_note(import, "no file tells %s", list);
}

static void replace_count(weft_import *import, const char *key, const char *option, int given,
                          int *count)
{
    if (given == 0)
        return;
    if (*count > 0 && *count != given)
        weft_import_note(import, "%s: a file says %d, --%s %d: %d it is", key, *count, option,
                         given, given);
    *count = given;
}

weft_status weft_import_finish(weft_import *import, int num_nodes, int ranks_per_node,
                               const char *name)
{
    weft_cluster *cluster = &import->cluster;
    replace_count(import, "num_nodes", "nodes", num_nodes, &cluster->num_nodes);
    replace_count(import, "ranks_per_node", "ranks-per-node", ranks_per_node,
                  &cluster->ranks_per_node);
    if (cluster->ranks_per_node == 0)
        return WEFT_ERROR(WEFT_CONFIG, "no file tells how many ranks a node has: "
                                       "--ranks-per-node N says it");
    if (cluster->num_nodes == 0) {
        cluster->num_nodes = 1;
        weft_import_note(import, "no file tells num_nodes: 1; --nodes N says it");
    }
    if (name)
        snprintf(cluster->name, sizeof cluster->name, "%s", name);
    else if (!cluster->name[0])
        snprintf(cluster->name, sizeof cluster->name, "imported");
    drop_curves_of_others(import);
    note_missing(import);
    return WEFT_OK;
}
