#include "launcher/planning/software.h"

#include <math.h>
#include <string.h>

const char *const weft_software_texts[WEFT_NUM_SOFTWARE] = {
#define ROW(name, text) [WEFT_SOFTWARE_##name] = text,
    WEFT_SOFTWARE_LIST(ROW)
#undef ROW
};

enum { OWN_LOSS_BYTES = 6 };
#define FLASH_TRITON 1.8 /* times the time of FlashAttention-2 */

typedef struct rules {
    bool flash_2;
    double flash_times;        /* times FlashAttention-2's time */
    double loss_bytes;         /* an element of the logits */
    double adamw_bytes;        /* an element; 0: as Weft's */
    bool copies, apart, keeps; /* gathered weights; residuals and norms' weights; norms' outputs */
    bool tp_beside, rows_once, launches_each;
} rules;

static const rules all[WEFT_NUM_SOFTWARE] = {
    [WEFT_SOFTWARE_MEGATRON] = {.loss_bytes = 52,
                                .adamw_bytes = 42,
                                .tp_beside = true,
                                .rows_once = true,
                                .launches_each = true},
    [WEFT_SOFTWARE_FSDP] = {.flash_2 = true,
                            .flash_times = 1,
                            .loss_bytes = 28,
                            .copies = true,
                            .keeps = true,
                            .rows_once = true},
    [WEFT_SOFTWARE_FSDP_2023] = {.flash_2 = true,
                                 .flash_times = FLASH_TRITON,
                                 .loss_bytes = 28,
                                 .adamw_bytes = 88,
                                 .copies = true,
                                 .apart = true,
                                 .keeps = true},
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

static bool is_of(const weft_operation *operation, const char *module)
{
    return strcmp(operation->module, module) == 0;
}

static bool is_norm(const weft_operation *o)
{
    return is_of(o, "input_layernorm") || is_of(o, "pre_mlp_layernorm");
}

/* Rows that norms and sums of residuals move over those of Weft's kernels. */
static double norm_factor(const rules *r, const weft_operation *o)
{
    if (r->keeps && o->phase == WEFT_PHASE_RECOMPUTE && !o->repeated)
        return 0;
    if (r->apart && o->phase == WEFT_PHASE_FORWARD && is_of(o, "pre_mlp_layernorm"))
        return 5.0 / 4;
    return r->apart && o->phase == WEFT_PHASE_INPUT_GRADIENT ? 8.0 / 4 : 1;
}

double weft_software_factor(const weft_site *site, const weft_operation *o)
{
    const rules *r = &all[site->software];
    if (site->software == WEFT_SOFTWARE_WEFT)
        return 1;
    if (o->fused)
        return r->flash_2 ? r->flash_times / flash_share(site->cluster) : 1;
    if (o->kind != WEFT_OPERATION_MEMORY)
        return 1;
    if (is_of(o, "loss"))
        return r->loss_bytes / OWN_LOSS_BYTES;
    if (is_norm(o))
        return norm_factor(r, o);
    return r->keeps && is_of(o, "activation") && o->phase == WEFT_PHASE_RECOMPUTE ? 0 : 1;
}

bool weft_software_is_beside(const weft_site *site, const weft_operation *o)
{
    return all[site->software].tp_beside && o->kind == WEFT_OPERATION_COLLECTIVE &&
           o->axis == WEFT_AXIS_TP && o->phase != WEFT_PHASE_FORWARD;
}

double weft_software_launches(const weft_site *site, const weft_operation *o)
{
    const double count = (double)(o->count ? o->count : 1);
    return all[site->software].launches_each && o->groups > 0 ? count * (double)o->groups : count;
}

double weft_software_exchanged(int software, const weft_group *ep, double experts, double chosen)
{
    const double nodes = ceil((double)ep->size / fmax(1, ep->near));
    const double places = nodes > 1 ? nodes : ep->size;
    const double hit = 1 - pow(1 - 1 / places, chosen);
    if (!all[software].rows_once || ep->size < 2 || !(experts > 0) || !(chosen > 0))
        return 1;
    return fmin(1, places * hit / chosen);
}

bool weft_software_copies(int software)
{
    return all[software].copies;
}

double weft_software_adamw_bytes(int software)
{
    return all[software].adamw_bytes;
}
