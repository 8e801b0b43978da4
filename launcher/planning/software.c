#include "launcher/planning/software.h"

#include <string.h>

const char *const weft_software_texts[WEFT_NUM_SOFTWARE] = {
#define ROW(name, text) [WEFT_SOFTWARE_##name] = text,
    WEFT_SOFTWARE_LIST(ROW)
#undef ROW
};

/* FlashAttention-2 beside the kernels that a device's file is of. */
static const struct flash {
    const char *device;
    double share;
} flashes[] = {{"H100", 0.62}, {"H200", 0.62}, {"B200", 0.29}};

static double flash_share(const weft_cluster *cluster)
{
    const char *name = cluster->hardware.device_name;
    for (size_t i = 0; i < sizeof flashes / sizeof *flashes; i++)
        if (strncmp(name, flashes[i].device, strlen(flashes[i].device)) == 0)
            return flashes[i].share;
    return 1;
}

double weft_software_factor(const weft_site *site, const weft_operation *operation)
{
    if (site->software == WEFT_SOFTWARE_WEFT)
        return 1;
    if (operation->fused)
        return 1 / flash_share(site->cluster);
    if (operation->kind == WEFT_OPERATION_MEMORY && strcmp(operation->module, "loss") == 0)
        return 28.0 / 6;
    return 1;
}
