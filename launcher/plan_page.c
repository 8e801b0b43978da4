#include "launcher/plan_page.h"

bool weft_plan_page_draws(const weft_config *config, const weft_config_source *source)
{
    weft_mesh mesh;
    if (weft_config_mesh(config, source, 0, &mesh) != WEFT_OK) { /* the plan will say why */
        weft_error_clear();
        return false;
    }
    return config->train.global_batch_size / config->train.micro_batch_size / mesh.dp * mesh.pp <=
           WEFT_PAGE_MAX_TASKS;
}

weft_status weft_plan_page_write(const char *path, const char *title, const weft_cluster *cluster,
                                 const weft_plan *plan, const weft_trace *trace)
{
    const weft_page page = {.title = title,
                            .plan = plan,
                            .cluster = cluster,
                            .trace = trace,
                            .no_trace = "The step has too many tasks for a timeline."};
    return weft_page_write(&page, path);
}
