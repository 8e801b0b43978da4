#include "launcher/planning/inner_price.h"

#include "schedule/operands.h"
#include "schedule/price/price.h"

#define ROUNDING 1e-9 /* of sums over a program's tasks */

const weft_task_time *weft_inner_time(const weft_inner_costs *costs, int kind, int flow)
{
    static const weft_task_time none;
    for (int i = 0; i < costs->num_rows; i++)
        if (costs->rows[i].kind == kind && costs->rows[i].flow == flow)
            return &costs->rows[i].time;
    return &none;
}

/* A block of the rank's own counts among the others: weft_context_share shares it out. */
static int summed_flow(int flow)
{
    return flow == WEFT_FLOW_OWN ? WEFT_FLOW_GRADIENT : flow;
}

void weft_inner_add(weft_inner_costs *costs, const weft_operation *o, const weft_estimate *estimate)
{
    const int flow = summed_flow(o->flow);
    int i = 0;
    while (i < costs->num_rows && !(costs->rows[i].kind == o->task && costs->rows[i].flow == flow))
        i++;
    if (i == costs->num_rows)
        costs->rows[costs->num_rows++] = (weft_inner_row){.kind = o->task, .flow = flow};
    costs->rows[i].time.us += estimate->us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        costs->rows[i].time.link_us[l] += estimate->links[l].us;
}

static bool takes_time(const weft_task *task)
{
    return task->kind != WEFT_TASK_SUM || weft_task_slot(task, WEFT_OPERAND_FROM) >= 0;
}

static weft_task_time scaled(const weft_task_time *time, double by)
{
    weft_task_time out = {.us = time->us * by};
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out.link_us[l] = time->link_us[l] * by;
    return out;
}

/* What a kind's tasks have in all, in tasks. */
static double shares_of(const weft_program *program, const weft_inner_row *row)
{
    double sum = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->kind == row->kind && summed_flow(task->flow) == row->flow && takes_time(task))
            sum += weft_context_share_of(program, task);
    }
    return sum;
}

/* Of all that backward attends, an own block's parts take their shares. */
void weft_context_share(weft_inner_costs *costs, const weft_program *program)
{
    for (int i = 0; i < costs->num_rows; i++) {
        const double shares = shares_of(program, &costs->rows[i]);
        if (shares > 0)
            costs->rows[i].time = scaled(&costs->rows[i].time, 1 / shares);
    }
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->flow == WEFT_FLOW_OWN)
            costs->own[task->part > 0] =
                scaled(weft_inner_time(costs, task->kind, WEFT_FLOW_GRADIENT),
                       weft_context_share_of(program, task));
    }
}

const weft_task_time *weft_context_task_time(const weft_inner_costs *costs, const weft_task *task)
{
    if (task->flow == WEFT_FLOW_OWN)
        return &costs->own[task->part > 0];
    return weft_inner_time(costs, takes_time(task) ? (int)task->kind : -1, task->flow);
}

static double task_us(const void *context, int stage, const weft_task *task)
{
    (void)stage;
    return weft_context_task_time(context, task)->us;
}

static void task_links(const void *context, int stage, const weft_task *task,
                       double out_us[WEFT_MAX_LINKS])
{
    (void)stage;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out_us[l] = weft_context_task_time(context, task)->link_us[l];
}

weft_status weft_context_price(const weft_context_plan *plan, bool backward,
                               weft_inner_costs *costs, const weft_interference *interference,
                               double *computed_us, double *exposed_us)
{
    weft_arena arena = {0};
    weft_program program;
    weft_price price = {.makespan_us = 0};
    weft_status status = weft_program_context(plan, backward, &arena, &program);
    if (status == WEFT_OK) {
        weft_context_share(costs, &program);
        status = weft_program_price(&program, 1,
                                    &(weft_pricing){.cost = task_us,
                                                    .links = task_links,
                                                    .context = costs,
                                                    .interference = interference},
                                    &arena, &price);
    }
    *computed_us = status == WEFT_OK ? price.busy_us[0] : 0;
    weft_arena_release(&arena);
    WEFT_TRY(status);
    *exposed_us = price.makespan_us - *computed_us;
    if (*exposed_us < ROUNDING * price.makespan_us)
        *exposed_us = 0;
    return WEFT_OK;
}
