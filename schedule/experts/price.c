#include <math.h>

#include "schedule/experts/experts.h"
#include "schedule/price/price.h"

double weft_experts_task_us(const weft_expert_costs *costs, const double *rows,
                            const weft_task *task)
{
    const double mine = rows[task->expert];
    if (!(mine > 0))
        return 0;
    switch (task->kind) {
    case WEFT_TASK_UPLOAD:
        return costs->upload_us;
    case WEFT_TASK_EXPERT:
        return costs->launch_us + mine * costs->row_us[task->flow == WEFT_FLOW_GRADIENT];
    case WEFT_TASK_DOWNLOAD:
        return costs->download_us;
    case WEFT_TASK_ACCUMULATE:
        return costs->accumulate_us;
    case WEFT_TASK_READ:
        return costs->read_us[task->flow == WEFT_FLOW_GRADIENT];
    case WEFT_TASK_WRITE:
        return costs->write_us[task->flow == WEFT_FLOW_GRADIENT];
    default:
        return 0; /* the task belongs to no expert */
    }
}

typedef struct pricing {
    const weft_expert_costs *costs;
    const double *rows;
} pricing;

static double cost_of(const void *context, int stage, const weft_task *task)
{
    const pricing *p = context;
    (void)stage;
    return weft_experts_task_us(p->costs, p->rows, task);
}

static weft_status price(const weft_program *program, const weft_pricing *how, weft_arena *arena,
                         weft_experts_price *out)
{
    weft_price price;
    WEFT_TRY(weft_program_price(program, 1, how, arena, &price));
    *out = (weft_experts_price){.us = price.makespan_us};
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_span span = price.spans[0][t];
        out->busy_us[program->tasks[t].lane] += span.end_us - span.start_us;
        if (program->tasks[t].kind == WEFT_TASK_EXPERT)
            out->compute_us = fmax(out->compute_us, span.end_us);
    }
    return WEFT_OK;
}

weft_status weft_program_experts_price(const weft_program *program, const weft_expert_costs *costs,
                                       const double *rows, const weft_interference *interference,
                                       weft_trace *trace, weft_experts_price *out)
{
    const pricing p = {costs, rows};
    const weft_pricing how = {
        .cost = cost_of, .context = &p, .interference = interference, .trace = trace};
    weft_arena arena = {0};
    const weft_status status = price(program, &how, &arena, out);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    return WEFT_OK;
}
