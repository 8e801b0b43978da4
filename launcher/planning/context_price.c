#include "launcher/planning/context_price.h"

#include <string.h>

#include "schedule/operands.h"
#include "schedule/price/price.h"

#define ROUNDING 1e-9 /* of sums over a program's tasks */

/* Which tasks the description's modules are, forward and backward. */
static const struct {
    const char *module;
    weft_task_kind kind;
    weft_flow flows[2];
} rows[] = {
    {WEFT_MODULE_ATTENTION, WEFT_TASK_ATTEND, {WEFT_FLOW_ACTIVATION, WEFT_FLOW_GRADIENT}},
    {"context.permute", WEFT_TASK_PERMUTE, {WEFT_FLOW_NONE, WEFT_FLOW_NONE}},
    {"context.dispatch", WEFT_TASK_DISPATCH, {WEFT_FLOW_HEADS, WEFT_FLOW_HEADS_GRADIENT}},
    {"context.keys", WEFT_TASK_PERMUTE, {WEFT_FLOW_KEYS, WEFT_FLOW_KEYS}},
    {"context.gather", WEFT_TASK_GATHER, {WEFT_FLOW_KEYS, WEFT_FLOW_KEYS}},
    {"context.shift", WEFT_TASK_SHIFT, {WEFT_FLOW_KEYS, WEFT_FLOW_KEYS}},
    {"context.sum", WEFT_TASK_SUM, {WEFT_FLOW_KEYS, WEFT_FLOW_KEYS}},
    {"context.hand_on", WEFT_TASK_SHIFT, {WEFT_FLOW_GRADIENT, WEFT_FLOW_GRADIENT}},
    {"context.reduce", WEFT_TASK_REDUCE, {WEFT_FLOW_KEYS, WEFT_FLOW_KEYS}},
    {"context.place", WEFT_TASK_PLACE, {WEFT_FLOW_ACTIVATION, WEFT_FLOW_GRADIENT}},
    {"context.combine", WEFT_TASK_COMBINE, {WEFT_FLOW_HEADS, WEFT_FLOW_HEADS_GRADIENT}},
    {"context.home", WEFT_TASK_PLACE, {WEFT_FLOW_HEADS, WEFT_FLOW_HEADS}},
};

bool weft_context_add(weft_context_costs *costs, bool backward, const weft_operation *operation,
                      const weft_estimate *estimate)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_task_time *time = &costs->times[rows[i].kind][rows[i].flows[backward]];
        if (strcmp(operation->module, rows[i].module) != 0)
            continue;
        time->us += estimate->us;
        for (int l = 0; l < WEFT_NUM_LINKS; l++)
            time->link_us[l] += estimate->links[l].us;
        return costs->any = true;
    }
    return false;
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

/* Of all that backward attends, an own block's parts take their shares. */
double weft_context_share(weft_context_costs *costs, const weft_program *program)
{
    weft_task_time *attended = &costs->times[WEFT_TASK_ATTEND][WEFT_FLOW_GRADIENT];
    double computed_us = 0, own[2] = {0};
    double counts[WEFT_NUM_TASK_KINDS][WEFT_NUM_FLOWS] = {{0}};
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const double share = takes_time(task) ? weft_context_share_of(program, task) : 0;
        const bool is_own = task->flow == WEFT_FLOW_OWN;
        counts[task->kind][is_own ? WEFT_FLOW_GRADIENT : task->flow] += share;
        if (is_own)
            own[task->part > 0] = share;
    }
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        for (int flow = 0; flow < WEFT_NUM_FLOWS; flow++)
            if (counts[kind][flow] > 0)
                costs->times[kind][flow] =
                    scaled(&costs->times[kind][flow], 1 / counts[kind][flow]);
    for (int i = 0; i < 2; i++)
        costs->own[i] = scaled(attended, own[i]);
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].lane == WEFT_LANE_COMPUTE)
            computed_us += weft_context_task_time(costs, &program->tasks[i])->us;
    return computed_us;
}

const weft_task_time *weft_context_task_time(const weft_context_costs *costs, const weft_task *task)
{
    static const weft_task_time none;
    if (task->flow == WEFT_FLOW_OWN)
        return &costs->own[task->part > 0];
    return takes_time(task) ? &costs->times[task->kind][task->flow] : &none;
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
                               weft_context_costs *costs, const weft_interference *interference,
                               double *computed_us, double *exposed_us)
{
    weft_arena arena = {0};
    weft_program program;
    weft_price price = {.makespan_us = 0};
    weft_status status = weft_program_context(plan, backward, &arena, &program);
    if (status == WEFT_OK) {
        *computed_us = weft_context_share(costs, &program);
        status = weft_program_price(&program, 1,
                                    &(weft_pricing){.cost = task_us,
                                                    .links = task_links,
                                                    .context = costs,
                                                    .interference = interference},
                                    &arena, &price);
    }
    weft_arena_release(&arena);
    WEFT_TRY(status);
    *exposed_us = price.makespan_us - *computed_us;
    if (*exposed_us < ROUNDING * price.makespan_us)
        *exposed_us = 0;
    return WEFT_OK;
}
