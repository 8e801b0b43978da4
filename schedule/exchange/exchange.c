#include "schedule/exchange/exchange.h"

#include "schedule/build.h"
#include "schedule/check.h"

static const char *const form_texts[WEFT_NUM_EXCHANGES] = {
#define ROW(name, text) text,
    WEFT_EXCHANGE_LIST(ROW)
#undef ROW
};

const char *weft_exchange_text(int form)
{
    return form >= 0 && form < WEFT_NUM_EXCHANGES ? form_texts[form] : "?";
}

static bool is_chunked(weft_exchange_form form)
{
    return form >= WEFT_EXCHANGE_O2;
}

int weft_exchange_max_chunks(weft_exchange_form form)
{
    return is_chunked(form) ? WEFT_EXCHANGE_MAX_CHUNKS : 1;
}

static bool gathers(weft_exchange_form form)
{
    return form != WEFT_EXCHANGE_BASELINE;
}

static bool places(weft_exchange_form form)
{
    return gathers(form) && form != WEFT_EXCHANGE_DIRECT;
}

/* The lane that a form runs a kind of task on. */
static int lane_of(weft_exchange_form form, int kind)
{
    if (kind == WEFT_TASK_PLACE && form != WEFT_EXCHANGE_O3)
        return WEFT_LANE_GATHER;
    return weft_operands_of(kind, WEFT_FLOW_NONE)->lane;
}

enum { MAX_TASKS = 3 }; /* a part */

static weft_status check_form_and_parts(weft_exchange_form form, int num_parts)
{
    if ((int)form < 0 || form >= WEFT_NUM_EXCHANGES)
        return WEFT_ERROR(WEFT_CONFIG, "no form %d of an all-to-all", (int)form);
    const int most = weft_exchange_max_chunks(form);
    if (num_parts < 1 || num_parts > most)
        return WEFT_ERROR(WEFT_CONFIG, "an all-to-all by %s in %d chunks: 1 to %d are possible",
                          weft_exchange_text((int)form), num_parts, most);
    return WEFT_OK;
}

static weft_task task_of(weft_exchange_form form, weft_task_kind kind, int part)
{
    weft_task task = weft_task_of(kind, WEFT_FLOW_NONE);
    task.lane = (uint8_t)lane_of(form, (int)kind);
    task.part = part;
    return task;
}

/* The tasks of one part; `arrived` and `gathered` are its slots. */
static void tasks_of(weft_exchange_form form, int part, int arrived, int gathered,
                     weft_task out[MAX_TASKS], int *out_count)
{
    *out_count = 0;
    out[*out_count] = task_of(form, WEFT_TASK_DISPATCH, part);
    out[(*out_count)++].operands[0] = gathers(form) ? arrived : -1;
    if (!gathers(form))
        return;
    out[*out_count] = task_of(form, WEFT_TASK_GATHER, part);
    out[*out_count].operands[0] = arrived;
    out[(*out_count)++].operands[1] = places(form) ? gathered : -1;
    if (!places(form))
        return;
    out[*out_count] = task_of(form, WEFT_TASK_PLACE, part);
    out[(*out_count)++].operands[0] = gathered;
}

weft_status weft_program_exchange(weft_exchange_form form, int num_parts, weft_arena *arena,
                                  weft_program *out)
{
    WEFT_TRY(check_form_and_parts(form, num_parts));
    const int length = num_parts < 2 ? 1 : 2;
    const weft_slot arrived = {.holds = WEFT_SLOT_ARRIVED, .chunk = -1},
                    gathered = {.holds = WEFT_SLOT_GATHERED, .chunk = -1};
    weft_program_builder *builder = NULL;
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    WEFT_TRY(weft_program_add_slots(builder, &arrived, gathers(form) ? length : 0, NULL));
    WEFT_TRY(weft_program_add_slots(builder, &gathered, places(form) ? length : 0, NULL));
    for (int part = 0; part < num_parts; part++) {
        weft_task tasks[MAX_TASKS];
        int count;
        tasks_of(form, part, part % length, length + part % length, tasks, &count);
        for (int i = 0; i < count; i++)
            WEFT_TRY(weft_program_append(builder, &tasks[i], NULL, 0, NULL));
    }
    WEFT_TRY(weft_program_finish(builder, length, out));
    return WEFT_OK;
}

static weft_status check_program(weft_exchange_form form, int num_parts,
                                 const weft_program *program, weft_arena *scratch)
{
    void *tasks;
    weft_expectation expected = {.ordered = ~0u};
    WEFT_TRY(
        weft_arena_alloc_array(scratch, MAX_TASKS * (size_t)num_parts, sizeof(weft_task), &tasks));
    for (int part = 0; part < num_parts; part++) {
        int count;
        tasks_of(form, part, 0, 0, (weft_task *)tasks + expected.num_tasks, &count);
        expected.num_tasks += (uint32_t)count;
    }
    expected.tasks = tasks;
    snprintf(expected.where, sizeof(expected.where), "%s", weft_exchange_text((int)form));
    return weft_program_check(program, &expected, 1);
}

weft_status weft_program_exchange_check(weft_exchange_form form, int num_parts,
                                        const weft_program *program)
{
    WEFT_TRY(check_form_and_parts(form, num_parts));
    weft_arena scratch = {0};
    const weft_status status = check_program(form, num_parts, program, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
