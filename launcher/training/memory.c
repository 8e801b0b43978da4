#include "launcher/training/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/log.h"
#include "parallel/checkpoint/checkpoint.h"

/* The message to rank 0. */
typedef struct marks {
    uint64_t planned[WEFT_NUM_MEMORY_PURPOSES], used[WEFT_NUM_MEMORY_PURPOSES];
    uint64_t at_load[WEFT_NUM_MEMORY_PURPOSES];
    uint64_t planned_device, at_load_device, used_device, used_pinned;
    uint64_t staging, copies; /* host memory of saves */
    uint64_t spare;           /* unused bytes of grown blocks on the device */
    weft_moe_held_loads loads;
} marks;

/* Blocks that grew by an uneven load have spare room; only their used bytes count. */
uint64_t weft_trainer_memory_use(const weft_trainer *t, weft_memory_purpose purpose)
{
    const weft_memory_use use = weft_device_memory_use(t->device, purpose);
    weft_stack_use held;
    weft_model_held(t->model, purpose, &held);
    return held.grew ? use.bytes_now - held.blocks_bytes + held.bytes : use.bytes_peak;
}

static uint64_t spare_of(const weft_trainer *t, weft_memory_purpose purpose)
{
    weft_stack_use held;
    weft_model_held(t->model, purpose, &held);
    return held.grew ? held.blocks_bytes - held.bytes : 0;
}

static weft_status marks_of(const weft_trainer *t, marks *out)
{
    weft_device_stats stats;
    weft_footprint planned, at_load;
    WEFT_TRY(weft_trainer_footprint(t, &planned));
    WEFT_TRY(weft_trainer_footprint_at_load(t, &at_load));
    weft_device_get_stats(t->device, &stats);
    *out = (marks){.planned_device = planned.device_bytes,
                   .at_load_device = at_load.device_bytes,
                   .used_device = stats.bytes_peak,
                   .used_pinned = stats.pinned_bytes_peak};
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++) {
        out->planned[i] = planned.bytes[i];
        out->at_load[i] = at_load.bytes[i];
        out->used[i] = weft_trainer_memory_use(t, (weft_memory_purpose)i);
        if (i < WEFT_MEMORY_STAGING)
            out->spare += spare_of(t, (weft_memory_purpose)i);
    }
    weft_model_held_loads(t->model, &out->loads);
    out->staging = t->writer ? weft_checkpoint_writer_bytes(t->writer) : 0;
    out->copies = t->writer ? weft_copies_bytes(t->writer) : 0;
    return WEFT_OK;
}

static void write_purposes(FILE *out, const char *name, const uint64_t *bytes)
{
    fprintf(out, ", \"%s\": {", name);
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
        fprintf(out, "\"%s\": %" PRIu64 ", ", weft_memory_text((weft_memory_purpose)i), bytes[i]);
}

/* layer: of the list, that took the scratch; -1: none is told. */
static void write_load(FILE *out, const char *name, const weft_moe_load *load, int layer)
{
    fprintf(out,
            ", \"%s\": {\"rows\": %.17g, \"sent\": %.17g, \"part_rows\": %.17g, "
            "\"part_sent\": %.17g",
            name, load->rows, load->sent, load->part_rows, load->part_sent);
    if (layer >= 0)
        fprintf(out, ", \"layer\": %d", layer);
    fputc('}', out);
}

static void write_loads(FILE *out, const weft_moe_held_loads *loads)
{
    static const char *const scratch[WEFT_NUM_SCRATCH_USES] = {
        [WEFT_SCRATCH_FORWARD] = "scratch_load",
        [WEFT_SCRATCH_BACKWARD] = "backward_scratch_load",
        [WEFT_SCRATCH_LEAVING] = "leaving_scratch_load",
        [WEFT_SCRATCH_LEFT] = "left_scratch_load"};
    write_load(out, "load", &loads->passes, -1);
    write_load(out, "pinned_load", &loads->pinned, -1);
    write_load(out, "recomputed_load", &loads->recomputed, -1);
    write_load(out, "deferred_load", &loads->deferred, -1);
    write_load(out, "offloaded_load_0", &loads->offloaded[0], -1);
    write_load(out, "offloaded_load_1", &loads->offloaded[1], -1);
    for (int i = 0; i < WEFT_NUM_SCRATCH_USES; i++)
        write_load(out, scratch[i], &loads->scratch[i], loads->scratch_layer[i]);
}

static void write_rank(FILE *out, const weft_mesh *mesh, int rank, bool routes, const marks *m)
{
    fprintf(out, "    {\"rank\": %d, \"stage\": %d", rank,
            weft_mesh_coords(mesh, rank).at[WEFT_AXIS_PP]);
    write_purposes(out, "planned", m->planned);
    fprintf(out, "\"device in all\": %" PRIu64 "}", m->planned_device);
    if (routes) {
        write_purposes(out, "planned_at_load", m->at_load);
        fprintf(out, "\"device in all\": %" PRIu64 "}", m->at_load_device);
        write_loads(out, &m->loads);
    }
    write_purposes(out, "used", m->used);
    fprintf(out,
            "\"spare\": %" PRIu64 ", \"device in all\": %" PRIu64 ", \"pinned in all\": %" PRIu64
            "}",
            m->spare, m->used_device, m->used_pinned);
    if (m->staging > 0)
        fprintf(out, ", \"saves\": {\"staging\": %" PRIu64 ", \"peer_copies\": %" PRIu64 "}",
                m->staging, m->copies);
    fputc('}', out);
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
        write_rank(file.file, mesh, rank, t->config.model.num_experts > 0, &all[rank]);
        fprintf(file.file, rank + 1 < mesh->world ? ",\n" : "\n");
    }
    fprintf(file.file, "  ]\n}\n");
    return weft_new_file_close(&file, WEFT_OK);
}

enum { MOST_OVER = 50, FEW_BYTES = 4096 }; /* one part in so many may be over the plan, or few */

/* Says once which rank's device held more than its plan with the experts' real load. own: some
 * layers are a program's. */
static void warn_beyond(const marks *all, int world, bool own)
{
    int worst = -1;
    double most = 1 + 1.0 / MOST_OVER;
    for (int rank = 0; rank < world; rank++) {
        const double used = (double)(all[rank].used_device - all[rank].spare),
                     planned = (double)all[rank].at_load_device;
        if (used > most * planned && used > planned + FEW_BYTES) {
            most = used / planned;
            worst = rank;
        }
    }
    if (worst < 0)
        return;
    const marks *m = &all[worst];
    int purpose = 0;
    for (int i = 1; i < WEFT_MEMORY_STAGING; i++)
        if (m->used[i] - (double)m->at_load[i] > m->used[purpose] - (double)m->at_load[purpose])
            purpose = i;
    weft_log(WEFT_LOG_WARN,
             "rank %d's device held %" PRIu64 " bytes, its plan %" PRIu64 " (%s: %" PRIu64
             ", planned %" PRIu64 ")%s",
             worst, m->used_device - m->spare, m->at_load_device,
             weft_memory_text((weft_memory_purpose)purpose), m->used[purpose], m->at_load[purpose],
             own ? ": a layer's describe says too little; check-layer names it"
                 : ": Weft's plan says too little");
}

weft_status weft_memory_write(const weft_trainer *t, const char *dir)
{
    bool writes = weft_comm_rank(t->world) == 0;
    marks own = {0}, *all = NULL;
    weft_arena scratch = {0};
    weft_status status = marks_of(t, &own);
    if (status == WEFT_OK && writes)
        status = WEFT_ARRAY(&scratch, (size_t)t->groups.mesh.world, &all);
    status = weft_comm_agree(t->world, status);
    if (status == WEFT_OK)
        status = weft_comm_gather_host(t->world, &own, all, sizeof own);
    if (status == WEFT_OK && writes) {
        warn_beyond(all, t->groups.mesh.world, weft_config_has_own_model(&t->config));
        status = write_file(dir, t, all);
    }
    weft_arena_release(&scratch);
    return weft_comm_agree(t->world, status);
}
