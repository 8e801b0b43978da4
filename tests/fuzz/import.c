/* What weft calibrate --import reads: one file or, behind NULs, several. */
#include "launcher/measuring/import.h"

#include <math.h>

#include "tests/fuzz/fuzz.h"

static weft_status print(const void *cluster, FILE *out)
{
    return weft_cluster_print(cluster, out);
}

static void check_taken(weft_import *import)
{
    const weft_status status = weft_import_finish(import, 0, import->has_ranks ? 0 : 2, "fuzz");
    if (status != WEFT_OK) {
        fuzz_refused(status);
        return;
    }
    free(fuzz_printed(print, &import->cluster));
    FUZZ_CHECK(import->cluster.num_nodes >= 1 && import->cluster.ranks_per_node >= 1, "%d %d",
               import->cluster.num_nodes, import->cluster.ranks_per_node);
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        const weft_curve *curve = &import->cluster.costs[i].curve;
        for (int p = 0; p < curve->num_points; p++)
            FUZZ_CHECK(curve->time_us[p] > 0 && isfinite(curve->time_us[p]) &&
                           (p == 0 || curve->volume[p] > curve->volume[p - 1]),
                       "point %d of %s", p, weft_cost_text((weft_cost_kind)i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"f", "all_gather_perf.txt", "alltoall_perf.log"};
    static weft_import import;
    fuzz_parts parts;
    weft_arena arena = {0};
    weft_status status = WEFT_OK;
    fuzz_cut(data, size, 3, &parts);
    weft_import_start(&import);
    for (int i = 0; status == WEFT_OK && i < parts.count; i++)
        if (parts.bytes[i] == strlen(parts.at[i]))
            status = weft_import_take(&import, names[i], parts.at[i], &arena);
    if (status == WEFT_OK)
        check_taken(&import);
    else
        fuzz_refused(status);
    weft_arena_release(&arena);
    fuzz_release(&parts);
    return 0;
}
