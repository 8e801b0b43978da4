#include "schedule/exchange.h"

#include "schedule/proof.h"

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
    return weft_task_kind_lane(kind);
}

static bool has_task(weft_exchange_form form, int kind)
{
    return kind == WEFT_TASK_DISPATCH || (kind == WEFT_TASK_GATHER && gathers(form)) ||
           (kind == WEFT_TASK_PLACE && places(form));
}

/* The first staging area of what arrived and of what was gathered; -1: it goes straight to where it
 * belongs. */
typedef struct staging {
    int arrived, gathered, length;
    int num_slots;
} staging;

static staging staging_of(weft_exchange_form form, int num_chunks)
{
    staging areas = {.arrived = -1, .gathered = -1, .length = num_chunks < 2 ? 1 : 2};
    if (gathers(form)) {
        areas.arrived = 0;
        areas.num_slots = areas.length;
    }
    if (places(form)) {
        areas.gathered = areas.num_slots;
        areas.num_slots += areas.length;
    }
    return areas;
}

static weft_status check_form_and_chunks(weft_exchange_form form, int num_chunks)
{
    if ((int)form < 0 || form >= WEFT_NUM_EXCHANGES)
        return WEFT_ERROR(WEFT_CONFIG, "no form %d of an all-to-all", (int)form);
    const int most = weft_exchange_max_chunks(form);
    if (num_chunks < 1 || num_chunks > most)
        return WEFT_ERROR(WEFT_CONFIG, "an all-to-all by %s in %d chunks: 1 to %d are possible",
                          weft_exchange_text((int)form), num_chunks, most);
    return WEFT_OK;
}

static weft_status append(weft_program_builder *builder, weft_exchange_form form,
                          weft_task_kind kind, int chunk, int reads, int writes)
{
    weft_task task = weft_task_of(kind, chunk);
    task.stage = 0;
    task.lane = (uint16_t)lane_of(form, (int)kind);
    task.reads[0] = reads;
    task.writes[0] = writes;
    WEFT_TRY(weft_program_append(builder, &task, NULL, 0, NULL));
    return WEFT_OK;
}

weft_status weft_program_exchange(weft_exchange_form form, int num_chunks, weft_arena *arena,
                                  weft_program *out)
{
    WEFT_TRY(check_form_and_chunks(form, num_chunks));
    const staging areas = staging_of(form, num_chunks);
    weft_program_builder *builder = NULL;
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        const int area = chunk % areas.length;
        const int arrived = areas.arrived < 0 ? -1 : areas.arrived + area;
        const int gathered = areas.gathered < 0 ? -1 : areas.gathered + area;
        WEFT_TRY(append(builder, form, WEFT_TASK_DISPATCH, chunk, -1, arrived));
        if (gathers(form))
            WEFT_TRY(append(builder, form, WEFT_TASK_GATHER, chunk, arrived, gathered));
        if (places(form))
            WEFT_TRY(append(builder, form, WEFT_TASK_PLACE, chunk, gathered, -1));
    }
    WEFT_TRY(weft_program_finish(builder, areas.num_slots, areas.length, out));
    return WEFT_OK;
}

enum { VALUE_NOTHING, VALUE_ARRIVED, VALUE_GATHERED };
static const char *const value_texts[] = {"nothing", "what arrived", "what was gathered"};

typedef struct exchange_check {
    weft_proof proof;
    const weft_program *program;
    weft_exchange_form form;
    int num_chunks;
} exchange_check;

static int value_read(const void *context, const weft_task *task, int i)
{
    (void)context;
    if (i > 0)
        return VALUE_NOTHING;
    return task->kind == WEFT_TASK_GATHER  ? VALUE_ARRIVED
           : task->kind == WEFT_TASK_PLACE ? VALUE_GATHERED
                                           : VALUE_NOTHING;
}

static int value_written(const void *context, const weft_task *task, int i)
{
    const exchange_check *check = context;
    if (i > 0)
        return VALUE_NOTHING;
    if (task->kind == WEFT_TASK_DISPATCH && gathers(check->form))
        return VALUE_ARRIVED;
    return task->kind == WEFT_TASK_GATHER && places(check->form) ? VALUE_GATHERED : VALUE_NOTHING;
}

/* A stage stages in areas of its own: there the executor has memory of the right size for it. */
static weft_status check_area(const exchange_check *check, uint32_t index, int32_t slot, int value)
{
    const staging areas = staging_of(check->form, check->num_chunks);
    const int first = value == VALUE_ARRIVED ? areas.arrived : areas.gathered;
    if (value != VALUE_NOTHING && (slot < first || slot >= first + areas.length))
        return weft_proof_fail(&check->proof, index,
                               "has %s in slot %d, but its slots are %d to %d", value_texts[value],
                               slot, first, first + areas.length - 1);
    return WEFT_OK;
}

static weft_status check_tasks(const exchange_check *check)
{
    const weft_proof *proof = &check->proof;
    int seen[WEFT_NUM_TASK_KINDS] = {0};
    WEFT_TRY(weft_proof_num_slots(proof));
    for (uint32_t i = 0; i < check->program->num_tasks; i++) {
        const weft_task *task = &check->program->tasks[i];
        WEFT_TRY(weft_proof_waits(proof, i));
        if (!has_task(check->form, task->kind) || task->flow != WEFT_FLOW_NONE ||
            task->stage != 0 || task->peer != -1)
            return weft_proof_fail(proof, i, "has no place in this program");
        if (task->lane != lane_of(check->form, task->kind))
            return weft_proof_fail(proof, i, "is not on the %s lane",
                                   weft_lane_kind_text(lane_of(check->form, task->kind)));
        if (task->micro_batch != seen[task->kind] || seen[task->kind] == check->num_chunks)
            return weft_proof_fail(proof, i, "comes where chunk %d of %d is due", seen[task->kind],
                                   check->num_chunks);
        seen[task->kind]++;
        WEFT_TRY(weft_proof_operands(proof, i));
        WEFT_TRY(check_area(check, i, task->reads[0], value_read(check, task, 0)));
        WEFT_TRY(check_area(check, i, task->writes[0], value_written(check, task, 0)));
    }
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        if (has_task(check->form, kind) && seen[kind] < check->num_chunks)
            return WEFT_ERROR(WEFT_INTERNAL, "%s has no %s of chunk %d", proof->where,
                              weft_task_kind_text(kind), seen[kind]);
    return WEFT_OK;
}

static weft_status check_program(exchange_check *check)
{
    void *slots;
    WEFT_TRY(check_tasks(check));
    WEFT_TRY(weft_proof_pasts(&check->proof));
    WEFT_TRY(weft_arena_alloc_array(check->proof.scratch, (size_t)check->program->num_slots,
                                    sizeof(weft_slot_state), &slots));
    WEFT_TRY(weft_proof_slots(&check->proof, slots));
    return WEFT_OK;
}

weft_status weft_program_exchange_check(weft_exchange_form form, int num_chunks,
                                        const weft_program *program)
{
    WEFT_TRY(check_form_and_chunks(form, num_chunks));
    weft_arena scratch = {0};
    exchange_check check = {.program = program, .form = form, .num_chunks = num_chunks};
    check.proof = (weft_proof){.program = program,
                               .read = value_read,
                               .written = value_written,
                               .context = &check,
                               .value_texts = value_texts,
                               .scratch = &scratch};
    snprintf(check.proof.where, sizeof(check.proof.where), "%s", weft_exchange_text((int)form));
    const weft_status status = check_program(&check);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
