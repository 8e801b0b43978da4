#include <sys/statvfs.h>

#include "core/file.h"
#include "core/log.h"
#include "launcher/training/setup.h"
#include "parallel/topology/topology.h"

weft_status weft_setup_spread_room(weft_tier_room room, const weft_mesh *mesh, weft_arena *arena,
                                   weft_tier_room **out)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)mesh->pp, sizeof room, &memory));
    *out = memory;
    for (int i = 0; i < mesh->pp; i++)
        (*out)[i] = room;
    return WEFT_OK;
}

/* Of the disk; the file's folder may be missing, which is told when the file is made. */
static uint64_t disk_left(const char *folder, int num_ranks)
{
    struct statvfs info;
    return statvfs(folder, &info) == 0
               ? (uint64_t)info.f_bavail * info.f_frsize / (uint64_t)num_ranks
               : UINT64_MAX;
}

weft_tier_room weft_setup_room(const weft_config *config)
{
    weft_tier_room out = weft_tier_room_of(config);
    out.file_is_host = weft_path_is_memory(config->tier.path);
    int rank, size, local_rank, local_size;
    if (!weft_comm_launched(&rank, &size, &local_rank, &local_size) || local_size < 1)
        local_size = 1;
    if (config->tier.file_limit == 0) {
        out.file_bytes = disk_left(config->tier.path, local_size);
        out.sharers = out.file_bytes < UINT64_MAX ? local_size : 0;
    }
    if (config->tier.host_memory_limit > 0)
        return out;
    out.host_bytes = weft_machine_memory_left() / (uint64_t)local_size;
    out.is_host = config->device.kind == WEFT_DEVICE_KIND_CPU;
    return out;
}

/* The least there is on a node. Collective. */
static weft_status find_room(weft_trainer *t, weft_tier_room *out)
{
    *out = weft_setup_room(&t->config);
    double of_all[] = {-(double)out->host_bytes, out->file_is_host};
    WEFT_TRY(weft_comm_all_reduce_host(t->world, of_all, 2, WEFT_F64, WEFT_REDUCE_MAX));
    if (t->config.tier.host_memory_limit == 0)
        out->host_bytes = -of_all[0] < 0x1p63 ? (uint64_t)-of_all[0] : UINT64_MAX;
    out->file_is_host = of_all[1] > 0;
    return WEFT_OK;
}

static weft_status choose_tier(weft_trainer *t, const weft_mesh *mesh, const weft_tier_room *room,
                               weft_tier_selection *out)
{
    weft_arena arena = {0};
    weft_tier_room *rooms;
    weft_status status = weft_setup_spread_room(*room, mesh, &arena, &rooms);
    if (status == WEFT_OK)
        status = weft_tier_require(t->evaluates ? WEFT_STEP_EVALUATES : WEFT_STEP_TRAINS,
                                   &t->config, mesh, &t->moe.options, rooms, out);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_setup_tier(weft_trainer *t, const weft_config_source *source,
                            const weft_mesh *mesh)
{
    t->config.tier = weft_tier_as_asked(&t->config.tier);
    weft_tier_selection found = {.options = t->config.tier};
    weft_tier_room room;
    weft_status status = WEFT_OK;
    if (!weft_tier_pins(&t->config))
        return WEFT_OK;
    WEFT_TRY(find_room(t, &room));
    if (weft_comm_rank(t->world) == 0)
        status = choose_tier(t, mesh, &room, &found);
    WEFT_TRY(weft_comm_agree(t->world, weft_config_locate(source, status)));
    WEFT_TRY(weft_comm_broadcast_host(t->world, &found, sizeof found, 0));
    found.options.path = t->config.tier.path; /* not the other rank's */
    t->config.tier = found.options;
    if (found.reason[0])
        weft_log(WEFT_LOG_INFO, "%s", found.reason);
    if (room.file_is_host && found.options.experts == WEFT_TIER_FILE &&
        weft_comm_rank(t->world) == 0)
        weft_log(WEFT_LOG_WARN,
                 "offload.path: %s is in memory (tmpfs), not on a disk: the experts' file takes "
                 "host memory",
                 t->config.tier.path);
    return WEFT_OK;
}
