#include "launcher/training/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/file.h"

/* As it travels to rank 0. */
typedef struct marks {
    uint64_t planned[WEFT_NUM_MEMORY_PURPOSES], used[WEFT_NUM_MEMORY_PURPOSES];
    uint64_t planned_device, used_device, used_pinned;
} marks;

static weft_status marks_of(const weft_trainer *t, marks *out)
{
    weft_device_stats stats;
    weft_footprint planned;
    WEFT_TRY(weft_trainer_footprint(t, &planned));
    weft_device_get_stats(t->device, &stats);
    *out = (marks){.planned_device = planned.device_bytes,
                   .used_device = stats.bytes_peak,
                   .used_pinned = stats.pinned_bytes_peak};
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++) {
        out->planned[i] = planned.bytes[i];
        out->used[i] = weft_device_memory_use(t->device, (weft_memory_purpose)i).bytes_peak;
    }
    return WEFT_OK;
}

static void write_purposes(FILE *out, const char *name, const uint64_t *bytes)
{
    fprintf(out, ", \"%s\": {", name);
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
        fprintf(out, "\"%s\": %" PRIu64 ", ", weft_memory_text((weft_memory_purpose)i), bytes[i]);
}

static void write_rank(FILE *out, const weft_mesh *mesh, int rank, const marks *m)
{
    fprintf(out, "    {\"rank\": %d, \"stage\": %d", rank,
            weft_mesh_coords(mesh, rank).at[WEFT_AXIS_PP]);
    write_purposes(out, "planned", m->planned);
    fprintf(out, "\"device in all\": %" PRIu64 "}", m->planned_device);
    write_purposes(out, "used", m->used);
    fprintf(out, "\"device in all\": %" PRIu64 ", \"pinned in all\": %" PRIu64 "}}", m->used_device,
            m->used_pinned);
}

static weft_status write_file(const char *dir, const weft_trainer *t, const marks *all)
{
    char path[4096];
    weft_new_file file;
    const weft_mesh *mesh = &t->groups.mesh;
    snprintf(path, sizeof path, "%s/memory.json", dir);
    WEFT_TRY(weft_new_file_open(path, &file));
    fprintf(file.file, "{\n  \"unit\": \"bytes\",\n  \"limit\": %lld,\n  \"ranks\": [\n",
            (long long)t->config.device.memory_limit);
    for (int rank = 0; rank < mesh->world; rank++) {
        write_rank(file.file, mesh, rank, &all[rank]);
        fprintf(file.file, rank + 1 < mesh->world ? ",\n" : "\n");
    }
    fprintf(file.file, "  ]\n}\n");
    return weft_new_file_close(&file, WEFT_OK);
}

weft_status weft_memory_write(const weft_trainer *t, const char *dir)
{
    bool writes = weft_comm_rank(t->world) == 0;
    marks own = {0}, *all = NULL;
    weft_status status = marks_of(t, &own);
    if (writes) {
        all = malloc((size_t)t->groups.mesh.world * sizeof *all);
        if (!all)
            status = WEFT_ERROR(WEFT_MEMORY, "no memory for the marks of %d ranks",
                                t->groups.mesh.world);
    }
    status = weft_comm_agree(t->world, status);
    if (status == WEFT_OK)
        status = weft_comm_gather_host(t->world, &own, all, sizeof own);
    if (status == WEFT_OK && writes)
        status = write_file(dir, t, all);
    free(all);
    return weft_comm_agree(t->world, status);
}
