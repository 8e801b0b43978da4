/* Makes groups, and chooses their backend. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_ops.h"
#include "core/log.h"

#ifdef WEFT_HAS_NCCL
#include "comm/nccl/nccl.h"

static weft_status use_nccl(weft_comm *world, weft_device *device, char *why, size_t why_bytes,
                            bool *out_used)
{
    return weft_nccl_use(world, device, why, why_bytes, out_used);
}

static void use_no_nccl(void)
{
    weft_nccl_use_none();
}

static weft_status adopt(weft_comm **group)
{
    return weft_nccl_adopt(group);
}

void weft_comm_stop_backends(void)
{
    weft_nccl_stop();
}

#else

static weft_status use_nccl(weft_comm *world, weft_device *device, char *why, size_t why_bytes,
                            bool *out_used)
{
    (void)world;
    (void)device;
    snprintf(why, why_bytes, "Weft was built without NCCL's header nccl.h");
    *out_used = false;
    return WEFT_OK;
}

static void use_no_nccl(void)
{
}

static weft_status adopt(weft_comm **group)
{
    (void)group;
    return WEFT_OK;
}

void weft_comm_stop_backends(void)
{
}

#endif

weft_status weft_comm_split(weft_comm *parent, int color, int key, const char *name,
                            weft_comm_purpose purpose, weft_comm **out)
{
    weft_comm *group = NULL;
    WEFT_TRY(parent->ops->split(parent, color, key, name, purpose, &group));
    weft_status status = group ? adopt(&group) : WEFT_OK;
    if (status != WEFT_OK) {
        weft_comm_destroy(group);
        return status;
    }
    if (group)
        weft_comm_match_within(group, parent);
    *out = group;
    return WEFT_OK;
}

weft_status weft_comm_split_node(weft_comm *parent, weft_comm **out)
{
    WEFT_TRY(parent->ops->split_node(parent, out));
    weft_comm_match_within(*out, parent);
    return WEFT_OK;
}

weft_status weft_comm_use_nccl(weft_comm *world, weft_device *device, weft_comm_choice wanted,
                               const char **out_why)
{
    static char why[256];
    bool on_gpu = strcmp(weft_device_name(device), "cuda") == 0, used = false;
    use_no_nccl();
    if (!on_gpu)
        snprintf(why, sizeof why, "the device is no GPU");
    else if (wanted == WEFT_COMM_BY_MPI)
        snprintf(why, sizeof why, "as the configuration says");
    else if (world->size == 1)
        snprintf(why, sizeof why, "there is one rank");
    else
        WEFT_TRY(use_nccl(world, device, why, sizeof why, &used));
    if (wanted == WEFT_COMM_BY_NCCL && !used && (world->size > 1 || !on_gpu))
        return WEFT_ERROR(WEFT_CONFIG, "no communication by NCCL: %s", why);
    if (on_gpu && world->size > 1)
        weft_log(WEFT_LOG_INFO, "groups communicate by %s: %s",
                 used ? "nccl" : "mpi with copies in pinned memory", why);
    if (out_why)
        *out_why = why;
    return WEFT_OK;
}
