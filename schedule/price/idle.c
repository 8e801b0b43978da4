/* What a priced stage waits for. */
#include <math.h>

#include "schedule/price/price.h"

static double overlap(double start, double end, const weft_span *span)
{
    return fmax(0, fmin(end, span->end_us) - fmax(start, span->start_us));
}

/* Of the tasks that `index` waits for, the one that ended last; num_tasks: none. */
static uint32_t last_awaited(const weft_program *program, const weft_span *spans, uint32_t index)
{
    const weft_task *task = &program->tasks[index];
    uint32_t last = program->num_tasks;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const uint32_t earlier = program->waits[task->first_wait + w].task;
        if (last == program->num_tasks || spans[earlier].end_us > spans[last].end_us)
            last = earlier;
    }
    return last;
}

static bool is_reduction(int lane)
{
    return lane == WEFT_LANE_REDUCE || lane == WEFT_LANE_GATHER;
}

/* The host's work on experts, reads and writes of the file included, in a gap whose next task waits
 * for it or that is the last gap. A task that waits for an upload waits for all of the host's step:
 * gradients down, steps, weights up. */
static double host_in_gap(const weft_program *program, const weft_span *spans, uint32_t awaited,
                          double start, double end)
{
    double us = 0;
    if (awaited < program->num_tasks && program->tasks[awaited].kind == WEFT_TASK_UPLOAD)
        return end - start;
    if (awaited < program->num_tasks && program->tasks[awaited].lane != WEFT_LANE_HOST)
        return 0;
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].lane == WEFT_LANE_HOST || program->tasks[i].lane == WEFT_LANE_FILE)
            us += overlap(start, end, &spans[i]);
    return fmin(us, end - start);
}

/* Adds a gap before task `index` (num_tasks: after the last) in which no task computes, by its
 * cause. *reduced: where the search in the reductions' lanes goes on; times rise. */
static void add_gap(const weft_program *program, const weft_span *spans, uint32_t index,
                    double start, double end, uint32_t *reduced, weft_idle *idle)
{
    double message = 0, reduce = 0;
    const uint32_t awaited =
        index < program->num_tasks ? last_awaited(program, spans, index) : program->num_tasks;
    if (awaited < program->num_tasks && program->tasks[awaited].kind == WEFT_TASK_RECEIVE)
        message = overlap(start, end, &spans[awaited]);
    while (*reduced < program->num_tasks &&
           (!is_reduction(program->tasks[*reduced].lane) || spans[*reduced].end_us <= start))
        ++*reduced;
    for (uint32_t r = *reduced; r < program->num_tasks; r++) {
        if (!is_reduction(program->tasks[r].lane))
            continue;
        if (spans[r].start_us >= end)
            break;
        reduce += overlap(start, end, &spans[r]);
    }
    const double host = host_in_gap(program, spans, awaited, start, end);
    if (awaited < program->num_tasks && !is_reduction(program->tasks[awaited].lane))
        reduce = 0; /* it was under way, but not waited for */
    idle->message_us += message;
    idle->host_us += host;
    idle->reduce_us += fmin(reduce, end - start - message - host);
    idle->bubble_us += fmax(0, end - start - message - host - reduce);
}

weft_idle weft_price_idle(const weft_program *program, const weft_price *price, int stage)
{
    const weft_span *spans = price->spans[stage];
    weft_idle idle = {0};
    double at = 0;
    uint32_t reduced = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        if (program->tasks[i].lane != WEFT_LANE_COMPUTE)
            continue;
        if (spans[i].start_us > at)
            add_gap(program, spans, i, at, spans[i].start_us, &reduced, &idle);
        at = fmax(at, spans[i].end_us);
    }
    if (price->makespan_us > at)
        add_gap(program, spans, program->num_tasks, at, price->makespan_us, &reduced, &idle);
    return idle;
}
