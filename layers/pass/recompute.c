#include "layers/pass/recompute.h"

#include <string.h>

static const char *const names[] = {
#define ROW(name, text) text,
    WEFT_RECOMPUTE_MODULE_LIST(ROW)
#undef ROW
};

static int find(const char *name)
{
    for (int i = 0; i < WEFT_NUM_RECOMPUTE_MODULES; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

weft_status weft_recompute_modules(const weft_recompute_options *o, unsigned *out)
{
    *out = 0;
    for (size_t i = 0; i < o->modules.count; i++) {
        const char *name = o->modules.values[i];
        const int module = find(name);
        if (module < 0) {
            const char *nearest = weft_nearest_name(name, names, WEFT_NUM_RECOMPUTE_MODULES);
            return WEFT_KEY_ERROR("train.recompute_modules", "no module \"%s\"; %s%s", name,
                                  nearest ? "did you mean " : "there are core_attn, mla_up_proj, ",
                                  nearest ? nearest
                                          : "mlp, moe, shared_experts, layernorm and moe_act");
        }
        *out |= 1u << module;
    }
    if (o->granularity != WEFT_RECOMPUTE_SELECTIVE)
        *out = 0;
    return WEFT_OK;
}

bool weft_recompute_names_always(const weft_recompute_options *o)
{
    if (o->granularity != WEFT_RECOMPUTE_SELECTIVE)
        return false;
    for (size_t i = 0; i < o->modules.count; i++) {
        const int module = find(o->modules.values[i]);
        if (module >= 0 && (WEFT_RECOMPUTE_ALWAYS >> module & 1))
            return true;
    }
    return false;
}

int weft_recompute_group(const weft_recompute_options *o, const weft_layout *layout, int layer)
{
    int stage = 0;
    if (!o || o->granularity != WEFT_RECOMPUTE_FULL || layer == 0 ||
        layer == layout->num_layers - 1)
        return 0;
    while (layer >= layout->first[stage + 1])
        stage++;
    const int first = layout->first[stage] > 0 ? layout->first[stage] : 1;
    const int64_t place = layer - first;
    if (o->method == WEFT_RECOMPUTE_BLOCK)
        return place < o->num_layers ? (int)place + 1 : 0;
    return (int)(place / o->num_layers) + 1;
}
