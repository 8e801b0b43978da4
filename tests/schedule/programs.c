#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

/* One on every rank, reduced at the end. */
static const weft_buckets *one_bucket(void)
{
    static const weft_bucket_shape bucket = {.layer = -1, .ranks = 2, .elements = 32};
    static weft_buckets buckets[MAX_STAGES];
    for (int rank = 0; rank < MAX_STAGES; rank++)
        buckets[rank] = (weft_buckets){&bucket, 1};
    return buckets;
}

program_set make_set(weft_pipeline_kind kind, int num_stages, int num_micro_batches,
                     bool forward_only)
{
    program_set set = {.shape = {.kind = kind,
                                 .num_stages = num_stages,
                                 .num_micro_batches = num_micro_batches,
                                 .forward_only = forward_only,
                                 .boundary_bytes = 4096,
                                 .buckets = one_bucket()}};
    OK(weft_program_pipeline(&set.shape, &set.arena, set.programs));
    return set;
}

program_set make_shaped_set(const weft_pipeline_shape *shape)
{
    program_set set = {.shape = *shape};
    if (!shape->buckets)
        set.shape.buckets = one_bucket();
    if (weft_program_pipeline(&set.shape, &set.arena, set.programs) != WEFT_OK)
        fail_msg("p=%d v=%d m=%d N=%d: %s", shape->num_stages, shape->num_chunks,
                 shape->num_micro_batches, shape->group_size, weft_error_get()->text);
    return set;
}

void release_set(program_set *set)
{
    weft_arena_release(&set->arena);
}

weft_status check_set(const program_set *set)
{
    return weft_program_pipeline_check(set->programs, &set->shape);
}

bool same_program(const weft_program *a, const weft_program *b)
{
    return a->num_tasks == b->num_tasks && a->num_waits == b->num_waits &&
           a->num_slots == b->num_slots && a->max_in_flight == b->max_in_flight &&
           memcmp(a->tasks, b->tasks, a->num_tasks * sizeof(weft_task)) == 0 &&
           memcmp(a->waits, b->waits, a->num_waits * sizeof(weft_wait)) == 0 &&
           memcmp(a->slots, b->slots, (size_t)a->num_slots * sizeof(weft_slot)) == 0;
}

char *text_of(const weft_program *program)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    assert_non_null(file);
    OK(weft_program_print(program, file));
    fclose(file);
    return text;
}

void is_read_back(const weft_program *program)
{
    weft_arena arena = {0};
    weft_program read;
    char *text = text_of(program);
    OK(weft_program_parse(text, &arena, &read));
    assert_true(same_program(program, &read));
    free(text);
    weft_arena_release(&arena);
}

void program_is(const weft_program *program, const char *wanted)
{
    char *text = text_of(program);
    assert_string_equal(text, wanted);
    free(text);
    is_read_back(program);
}

void program_is_golden(const weft_program *program, const char *name)
{
    char *golden = read_golden(name);
    program_is(program, golden);
    free(golden);
}

char *order_text(const weft_order_shape *shape, const weft_order *orders)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    assert_non_null(file);
    OK(weft_order_print(shape, orders, file));
    fclose(file);
    return text;
}

bool same_orders(const weft_order_shape *shape, const weft_order *a, const weft_order *b)
{
    bool same = true;
    for (int rank = 0; rank < shape->num_ranks; rank++)
        same =
            same && a[rank].count == b[rank].count &&
            memcmp(a[rank].computes, b[rank].computes, a[rank].count * sizeof(weft_compute)) == 0;
    return same;
}

char *read_golden(const char *name)
{
    const char *root = getenv("WEFT_SOURCE_DIR");
    char path[1024];
    snprintf(path, sizeof(path), "%s/tests/schedule/golden/%s", root ? root : ".", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    char *text = calloc(1, 65536);
    assert_non_null(text);
    assert_true(fread(text, 1, 65535, file) < 65535);
    fclose(file);
    return text;
}

uint32_t find_task(const weft_program *program, weft_task_kind kind, weft_flow flow, int number)
{
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->kind == kind && task->flow == flow &&
            (task->part < 0 ? task->micro_batch : task->part) == number)
            return i;
    }
    fail_msg("no %s %s %d", weft_task_kind_text(kind), weft_flow_text((int)flow), number);
    return 0;
}

int first_slot(const weft_program *program, weft_slot_kind holds)
{
    for (int i = 0; i < program->num_slots; i++)
        if (program->slots[i].holds == holds)
            return i;
    return -1;
}

int16_t *operand_of(weft_task *task, weft_operand_name name)
{
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int i = 0; operands && i < operands->count; i++)
        if (operands->rows[i].name == name)
            return &task->operands[i];
    fail_msg("a %s has no %s", weft_task_kind_text(task->kind), weft_operand_text((int)name));
    return NULL;
}

void edit_open(const program_set *set, int stage, edit *out)
{
    const weft_program *program = &set->programs[stage];
    assert_true(program->num_tasks < MAX_EDIT_TASKS);
    out->stage = stage;
    out->num_tasks = program->num_tasks;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        out->tasks[i] = program->tasks[i];
        for (uint32_t w = 0; w < program->tasks[i].num_waits; w++)
            out->waits[i][w] = program->waits[program->tasks[i].first_wait + w];
    }
}

static void edit_write(const edit *edited, weft_arena *arena, weft_program *program)
{
    void *tasks, *waits;
    OK(weft_arena_alloc_array(arena, edited->num_tasks, sizeof(weft_task), &tasks));
    OK(weft_arena_alloc_array(arena, edited->num_tasks * WEFT_TASK_MAX_WAITS, sizeof(weft_wait),
                              &waits));
    uint32_t num_waits = 0;
    for (uint32_t i = 0; i < edited->num_tasks; i++) {
        weft_task *task = &((weft_task *)tasks)[i];
        *task = edited->tasks[i];
        task->first_wait = num_waits;
        for (uint32_t w = 0; w < task->num_waits; w++)
            ((weft_wait *)waits)[num_waits++] = edited->waits[i][w];
    }
    program->tasks = tasks;
    program->waits = waits;
    program->num_tasks = edited->num_tasks;
    program->num_waits = num_waits;
}

void edit_close(const edit *edited, program_set *set)
{
    edit_write(edited, &set->arena, &set->programs[edited->stage]);
}

void drop_wait(edit *edited, uint32_t task, uint32_t which)
{
    assert_true(which < edited->tasks[task].num_waits);
    edited->tasks[task].num_waits--;
    for (uint32_t w = which; w < edited->tasks[task].num_waits; w++)
        edited->waits[task][w] = edited->waits[task][w + 1];
}

void flip_step_wait(edit *edited, uint32_t task)
{
    weft_task *of = &edited->tasks[task];
    for (uint32_t w = 0; w < of->num_waits; w++)
        if (edited->waits[task][w].task == WEFT_STEP_BEFORE) {
            drop_wait(edited, task, w);
            return;
        }
    assert_true(of->num_waits < WEFT_TASK_MAX_WAITS);
    edited->waits[task][of->num_waits++] = (weft_wait){WEFT_STEP_BEFORE, -1};
}

void drop_task(edit *edited, uint32_t task)
{
    edited->num_tasks--;
    for (uint32_t i = task; i < edited->num_tasks; i++) {
        edited->tasks[i] = edited->tasks[i + 1];
        memcpy(edited->waits[i], edited->waits[i + 1], sizeof(edited->waits[i]));
    }
    for (uint32_t i = 0; i < edited->num_tasks; i++)
        for (uint32_t w = edited->tasks[i].num_waits; w-- > 0;) {
            if (edited->waits[i][w].task == task)
                drop_wait(edited, i, w);
            else if (edited->waits[i][w].task != WEFT_STEP_BEFORE &&
                     edited->waits[i][w].task > task)
                edited->waits[i][w].task--;
        }
}

void swap_tasks(edit *edited, uint32_t a, uint32_t b)
{
    const weft_task task = edited->tasks[a];
    weft_wait waits[WEFT_TASK_MAX_WAITS];
    memcpy(waits, edited->waits[a], sizeof(waits));
    edited->tasks[a] = edited->tasks[b];
    memcpy(edited->waits[a], edited->waits[b], sizeof(waits));
    edited->tasks[b] = task;
    memcpy(edited->waits[b], waits, sizeof(waits));
    for (uint32_t i = 0; i < edited->num_tasks; i++)
        for (uint32_t w = 0; w < edited->tasks[i].num_waits; w++) {
            uint32_t *wait = &edited->waits[i][w].task;
            *wait = *wait == a ? b : *wait == b ? a : *wait;
        }
}

void insert_task(edit *edited, uint32_t at, const weft_task *task)
{
    assert_true(edited->num_tasks < MAX_EDIT_TASKS);
    for (uint32_t i = edited->num_tasks++; i > at; i--) {
        edited->tasks[i] = edited->tasks[i - 1];
        memcpy(edited->waits[i], edited->waits[i - 1], sizeof(edited->waits[i]));
    }
    edited->tasks[at] = *task;
    edited->tasks[at].num_waits = 0;
    for (uint32_t i = 0; i < edited->num_tasks; i++)
        for (uint32_t w = 0; w < edited->tasks[i].num_waits; w++)
            edited->waits[i][w].task +=
                edited->waits[i][w].task >= at && edited->waits[i][w].task != WEFT_STEP_BEFORE;
}

/* The set with the edited program is refused; then it has the whole one again. */
static void refuse(const edit *edited, program_set *set, program_check check, const void *of,
                   const char *error)
{
    static weft_arena arena;
    const weft_program whole = set->programs[edited->stage];
    weft_arena_reset(&arena);
    edit_write(edited, &arena, &set->programs[edited->stage]);
    FAILS(check(of, set), WEFT_INTERNAL, error);
    set->programs[edited->stage] = whole;
}

static edit edited;

void every_wait_is_needed(program_set *set, int program, program_check check, const void *of,
                          const char *error)
{
    const weft_program *whole = &set->programs[program];
    for (uint32_t t = 0; t < whole->num_tasks; t++)
        for (uint32_t w = 0; w < whole->tasks[t].num_waits; w++) {
            edit_open(set, program, &edited);
            drop_wait(&edited, t, w);
            refuse(&edited, set, check, of, error);
        }
}

void every_task_is_needed(program_set *set, int program, program_check check, const void *of,
                          const char *error)
{
    for (uint32_t t = 0; t < set->programs[program].num_tasks; t++) {
        edit_open(set, program, &edited);
        drop_task(&edited, t);
        refuse(&edited, set, check, of, error);
    }
}

void every_slot_is_needed(program_set *set, int program, program_check check, const void *of)
{
    const weft_program *whole = &set->programs[program];
    for (uint32_t t = 0; t < whole->num_tasks; t++)
        for (int k = 0; k < WEFT_TASK_MAX_OPERANDS; k++)
            for (int slot = -1; slot < (int)whole->num_slots; slot++) {
                if (slot == whole->tasks[t].operands[k])
                    continue;
                edit_open(set, program, &edited);
                edited.tasks[t].operands[k] = (int16_t)slot;
                refuse(&edited, set, check, of, "slot");
            }
}

/* What a sanitizer sees, it sees in fewer. */
#ifdef WEFT_SANITIZED
enum { DEFAULT_DRAWS = 150 };
#else
enum { DEFAULT_DRAWS = 600 };
#endif

int property_draws(void)
{
    const char *draws = getenv("WEFT_PROPERTY_DRAWS");
    return draws ? atoi(draws) : DEFAULT_DRAWS;
}

uint32_t next_random(uint64_t *state, uint32_t bound)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % bound);
}
