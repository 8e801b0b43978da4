#include "launcher/planning/tensor_price.h"

#include <string.h>

#include "schedule/price/price.h"
#include "schedule/tensor.h"

#define ROUNDING 1e-9 /* of sums over a program's tasks */

static void add_time(weft_task_time *sum, const weft_estimate *estimate)
{
    sum->us += estimate->us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        sum->link_us[l] += estimate->links[l].us;
}

static bool is_of(const weft_tensor_row *row, const weft_operation *o, int half)
{
    return row->half == half && row->deferred == o->deferred && strcmp(row->module, o->module) == 0;
}

bool weft_tensor_add(weft_tensor_costs *costs, const weft_operation *o, int half,
                     const weft_estimate *estimate)
{
    int i = 0;
    while (i < costs->num_rows && !is_of(&costs->rows[i], o, half))
        i++;
    if (i == WEFT_TENSOR_ROWS)
        return false;
    weft_tensor_row *row = &costs->rows[i];
    if (i == costs->num_rows) {
        *row = (weft_tensor_row){.module = o->module, .half = half, .deferred = o->deferred};
        costs->num_rows++;
    }
    row->num_gathers += o->task == WEFT_TASK_GATHER ? o->count : 0;
    row->num_reduces += o->task == WEFT_TASK_REDUCE ? o->count : 0;
    add_time(o->task == WEFT_TASK_GATHER   ? &row->gather
             : o->task == WEFT_TASK_REDUCE ? &row->reduce
             : o->flow == WEFT_FLOW_WEIGHT ? &row->weights
                                           : &row->product,
             estimate);
    return true;
}

/* A row's program and what each of its tasks takes. */
typedef struct tensor_program {
    weft_tensor_plan plan;
    const weft_tensor_row *row;
} tensor_program;

static const weft_task_time *time_of(const weft_tensor_row *row, const weft_task *task)
{
    return task->flow == WEFT_FLOW_WEIGHT   ? &row->weights
           : task->kind == WEFT_TASK_GATHER ? &row->gather
           : task->kind == WEFT_TASK_REDUCE ? &row->reduce
                                            : &row->product;
}

static double share_of(const tensor_program *t, const weft_task *task)
{
    return task->flow == WEFT_FLOW_WEIGHT ? 1 : 1.0 / t->plan.chunks;
}

static double task_us(const void *context, int stage, const weft_task *task)
{
    const tensor_program *t = context;
    (void)stage;
    return time_of(t->row, task)->us * share_of(t, task);
}

static void task_links(const void *context, int stage, const weft_task *task,
                       double out_us[WEFT_MAX_LINKS])
{
    const tensor_program *t = context;
    (void)stage;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out_us[l] = time_of(t->row, task)->link_us[l] * share_of(t, task);
}

/* The collectives say in how many chunks. Of several products of one name the chunks are counted as
 * one's, up to the most. */
static weft_tensor_plan plan_of(const weft_tensor_row *row)
{
    const uint64_t count =
        row->num_gathers > row->num_reduces ? row->num_gathers : row->num_reduces;
    const bool multiplies = row->product.us > 0, gathers = row->num_gathers > 0;
    return (weft_tensor_plan){.chunks = count > WEFT_TENSOR_MAX_CHUNKS ? WEFT_TENSOR_MAX_CHUNKS
                                                                       : (int)count,
                              .backward = row->half == WEFT_HALF_BACKWARD,
                              .gathers = gathers,
                              .multiplies = multiplies,
                              .reads = gathers && multiplies && row->num_reduces == 0,
                              .reduces = row->num_reduces > 0 && multiplies,
                              .weights = row->weights.us > 0};
}

weft_status weft_tensor_price(const weft_tensor_row *row, const weft_interference *interference,
                              weft_arena *arena, double *computed_us, double *exposed_us)
{
    const tensor_program t = {plan_of(row), row};
    weft_program program;
    weft_price price = {.makespan_us = 0};
    *computed_us = row->product.us + row->weights.us;
    *exposed_us = row->gather.us + row->reduce.us;
    if (t.plan.chunks == 0 || *computed_us <= 0)
        return WEFT_OK;
    weft_status status = weft_program_tensor(&t.plan, arena, &program);
    if (status == WEFT_OK)
        status = weft_program_price(
            &program, 1,
            &(weft_pricing){
                .cost = task_us, .links = task_links, .context = &t, .interference = interference},
            arena, &price);
    if (status == WEFT_OK) {
        *computed_us = price.busy_us[0];
        *exposed_us = price.makespan_us - price.busy_us[0];
        if (*exposed_us < ROUNDING * price.makespan_us)
            *exposed_us = 0;
    }
    weft_arena_reset(arena);
    return status;
}
