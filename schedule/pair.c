#include "schedule/pair.h"

#include "schedule/build.h"
#include "schedule/price/price.h"

/* Behind a turn that computed: whether what is left comes now. */
static bool takes_left(weft_turns *turns, const weft_part_kind next[WEFT_PAIR_STRANDS],
                       weft_pair_left left)
{
    const bool all = turns->whose == WEFT_PAIR_FORWARD ||
                     next[WEFT_PAIR_FORWARD] == WEFT_PART_NONE ||
                     next[WEFT_PAIR_BACKWARD] == WEFT_PART_NONE;
    const bool takes = turns->computed && left >= (all ? WEFT_LEFT_LATE : WEFT_LEFT_SOON);
    *turns = (weft_turns){.whose = !turns->whose, .soon = takes && !all};
    return takes;
}

int weft_turns_next(weft_turns *turns, const weft_part_kind next[WEFT_PAIR_STRANDS],
                    weft_pair_left left)
{
    for (int tried = 0; tried <= WEFT_PAIR_STRANDS; tried++) {
        const weft_part_kind kind = next[turns->whose];
        if (kind == WEFT_PART_COMPUTES || (kind == WEFT_PART_TRAVELS && !turns->computed)) {
            turns->computed |= kind == WEFT_PART_COMPUTES;
            return turns->whose;
        }
        if (takes_left(turns, next, left))
            return WEFT_PAIR_LEFT;
    }
    return left ? WEFT_PAIR_LEFT : -1;
}

/* A pair's parts while its program is made. */
typedef struct pair_maker {
    const weft_pair_part *const *parts;
    const int *counts;
    double *left_us; /* by task of what is left */
    int num_left;
    weft_program_builder *builder;
} pair_maker;

/* A task's `layer` is its strand, its `part` the part's number there. */
static weft_task task_of(const pair_maker *m, int whose, int at)
{
    static const weft_task_kind kinds[] = {
        [WEFT_PART_COMPUTES] = WEFT_TASK_EXPERT, [WEFT_PART_TRAVELS] = WEFT_TASK_DISPATCH};
    const weft_part_kind kind =
        whose == WEFT_PAIR_LEFT ? WEFT_PART_COMPUTES : m->parts[whose][at].kind;
    weft_task task = weft_task_of(kinds[kind], WEFT_FLOW_ACTIVATION);
    task.layer = whose;
    task.part = at;
    return task;
}

/* Only its lane orders it. */
static weft_status add_left(pair_maker *m, double us)
{
    const weft_task task = task_of(m, WEFT_PAIR_LEFT, m->num_left);
    m->left_us[m->num_left++] = us;
    return weft_program_add(m->builder, &task, NULL, 0, NULL);
}

/* The parts by turns. */
static weft_status make_tasks(pair_maker *m)
{
    weft_turns turns = {.whose = WEFT_PAIR_BACKWARD};
    weft_wait last[WEFT_PAIR_STRANDS] = {{0, -1}, {0, -1}};
    int at[WEFT_PAIR_STRANDS] = {0};
    double soon_us = 0, late_us = 0;
    for (;;) {
        weft_part_kind next[WEFT_PAIR_STRANDS];
        for (int s = 0; s < WEFT_PAIR_STRANDS; s++)
            next[s] = at[s] < m->counts[s] ? m->parts[s][at[s]].kind : WEFT_PART_NONE;
        const weft_pair_left left = soon_us > 0   ? WEFT_LEFT_SOON
                                    : late_us > 0 ? WEFT_LEFT_LATE
                                                  : WEFT_LEFT_NONE;
        const int whose = weft_turns_next(&turns, next, left);
        if (whose < 0)
            return WEFT_OK;
        if (whose == WEFT_PAIR_LEFT) {
            WEFT_TRY(add_left(m, soon_us + (turns.soon ? 0 : late_us)));
            late_us = turns.soon ? late_us : 0;
            soon_us = 0;
            continue;
        }
        const weft_pair_part *part = &m->parts[whose][at[whose]];
        const weft_task task = task_of(m, whose, at[whose]);
        soon_us += part->soon_us;
        late_us += part->late_us;
        WEFT_TRY(
            weft_program_add(m->builder, &task, &last[whose], at[whose]++ > 0, &last[whose].task));
    }
}

static double part_us(const void *context, int stage, const weft_task *task)
{
    const pair_maker *m = context;
    (void)stage;
    return task->layer == WEFT_PAIR_LEFT ? m->left_us[task->part]
                                         : m->parts[task->layer][task->part].us;
}

static weft_status price(pair_maker *m, const weft_interference *interference, weft_arena *arena,
                         double *out_us)
{
    const weft_pricing pricing = {.cost = part_us, .context = m, .interference = interference};
    weft_program program;
    WEFT_TRY(WEFT_ARRAY(arena, 2 * (size_t)m->counts[WEFT_PAIR_BACKWARD] + 1, &m->left_us));
    WEFT_TRY(weft_program_builder_create(arena, &m->builder));
    WEFT_TRY(make_tasks(m));
    WEFT_TRY(weft_program_finish(m->builder, 0, &program));
    return weft_program_us(&program, &pricing, out_us);
}

weft_status weft_pair_price(const weft_pair_part *const parts[WEFT_PAIR_STRANDS],
                            const int counts[WEFT_PAIR_STRANDS],
                            const weft_interference *interference, double *out_us)
{
    pair_maker m = {.parts = parts, .counts = counts};
    weft_arena arena = {0};
    const weft_status status = price(&m, interference, &arena, out_us);
    weft_arena_release(&arena);
    return status;
}
