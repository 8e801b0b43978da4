#include "schedule/pair.h"

#include "schedule/build.h"
#include "schedule/price/price.h"

int weft_turns_next(weft_turns *turns, const weft_part_kind next[WEFT_PAIR_STRANDS])
{
    for (int tried = 0; tried <= WEFT_PAIR_STRANDS; tried++) {
        const weft_part_kind kind = next[turns->whose];
        if (kind == WEFT_PART_COMPUTES || (kind == WEFT_PART_TRAVELS && !turns->computed)) {
            turns->computed |= kind == WEFT_PART_COMPUTES;
            return turns->whose;
        }
        *turns = (weft_turns){.whose = !turns->whose};
    }
    return -1;
}

/* The parts by turns: a task's `layer` is its strand, its `part` the part's number there. */
static weft_status make_program(const weft_pair_part *const parts[WEFT_PAIR_STRANDS],
                                const int counts[WEFT_PAIR_STRANDS], weft_arena *arena,
                                weft_program *out)
{
    static const weft_task_kind kinds[] = {
        [WEFT_PART_COMPUTES] = WEFT_TASK_EXPERT, [WEFT_PART_TRAVELS] = WEFT_TASK_DISPATCH};
    weft_turns turns = {.whose = WEFT_PAIR_BACKWARD};
    weft_wait last[WEFT_PAIR_STRANDS] = {{0, -1}, {0, -1}};
    int at[WEFT_PAIR_STRANDS] = {0};
    weft_program_builder *builder;
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    for (;;) {
        weft_part_kind next[WEFT_PAIR_STRANDS];
        for (int s = 0; s < WEFT_PAIR_STRANDS; s++)
            next[s] = at[s] < counts[s] ? parts[s][at[s]].kind : WEFT_PART_NONE;
        const int whose = weft_turns_next(&turns, next);
        if (whose < 0)
            return weft_program_finish(builder, 0, out);
        weft_task task = weft_task_of(kinds[next[whose]], WEFT_FLOW_ACTIVATION);
        task.layer = whose;
        task.part = at[whose]++;
        WEFT_TRY(weft_program_add(builder, &task, &last[whose], task.part > 0, &last[whose].task));
    }
}

static double part_us(const void *context, int stage, const weft_task *task)
{
    const weft_pair_part *const *parts = context;
    (void)stage;
    return parts[task->layer][task->part].us;
}

weft_status weft_pair_price(const weft_pair_part *const parts[WEFT_PAIR_STRANDS],
                            const int counts[WEFT_PAIR_STRANDS],
                            const weft_interference *interference, double *out_us)
{
    const weft_pricing pricing = {.cost = part_us, .context = parts, .interference = interference};
    weft_arena arena = {0};
    weft_program program;
    weft_status status = make_program(parts, counts, &arena, &program);
    if (status == WEFT_OK)
        status = weft_program_us(&program, &pricing, out_us);
    weft_arena_release(&arena);
    return status;
}
