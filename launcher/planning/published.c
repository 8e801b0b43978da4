#include "launcher/planning/published.h"

#include <math.h>
#include <string.h>

static const weft_published_best bests[] = {
    {"A100", false, 0.705, "Llama 13B, arXiv 2311.05610, 2023"},
    {"H100", false, 0.52, "dense models in 16 bits; Megatron-LM's README, 2024, has 49 %"},
    {"H100", true, 0.493, "Mixtral 8x22B, arXiv 2504.14960, 2025"},
    {"B200", true, 0.166, "GPT-OSS 120B, Megatron-Bridge, performance summary 26.02.01, 2026"},
    {"H200", false, 0.52, "on H100, which computes as fast"},
    {"H200", true, 0.493, "Mixtral 8x22B on H100, arXiv 2504.14960, 2025"},
};

static bool has_experts(const weft_plan *plan)
{
    const weft_outline *outline = &plan->step.outline;
    bool any = false;
    for (int i = 0; i < outline->num_layers; i++)
        any |= weft_description_has_experts(&outline->layers[i].description);
    return any;
}

const weft_published_best *weft_published_best_of(const weft_plan *plan,
                                                  const weft_cluster *cluster)
{
    const char *name = cluster->hardware.device_name;
    const bool experts = has_experts(plan);
    if (cluster->num_groups > 0 || weft_dtype_bytes(plan->step.outline.shape.dtype) != 2)
        return NULL;
    for (size_t i = 0; i < sizeof bests / sizeof *bests; i++)
        if (bests[i].experts == experts &&
            strncmp(name, bests[i].device, strlen(bests[i].device)) == 0)
            return &bests[i];
    return NULL;
}

bool weft_published_is_below(const weft_plan *plan, const weft_cluster *cluster)
{
    const weft_published_best *best = weft_published_best_of(plan, cluster);
    return best && isfinite(plan->model_flops_utilization) &&
           plan->model_flops_utilization > best->share;
}
