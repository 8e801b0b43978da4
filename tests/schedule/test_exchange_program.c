/* The programs of the all-to-all's forms. */
#include <string.h>

#include "schedule/exchange/exchange.h"
#include "tests/schedule/programs.h"

static int most_chunks(weft_exchange_form form)
{
    return form == WEFT_EXCHANGE_O2 || form == WEFT_EXCHANGE_O3 || form == WEFT_EXCHANGE_DIRECT ? 17
                                                                                                : 1;
}

/* The form's program as the only one of a set. */
static program_set make_exchange(weft_exchange_form form, int num_chunks)
{
    program_set set = {.shape = {.num_stages = 1}};
    OK(weft_program_exchange(form, num_chunks, &set.arena, &set.programs[0]));
    return set;
}

static const weft_exchange_form forms[] = {WEFT_EXCHANGE_BASELINE, WEFT_EXCHANGE_O1_PAPER,
                                           WEFT_EXCHANGE_O1,       WEFT_EXCHANGE_O2,
                                           WEFT_EXCHANGE_O3,       WEFT_EXCHANGE_DIRECT};
enum { NUM_FORMS = sizeof(forms) / sizeof(forms[0]) };

typedef struct exchange {
    weft_exchange_form form;
    int num_chunks;
} exchange;

static weft_status check(const void *of, const program_set *set)
{
    const exchange *e = of;
    return weft_program_exchange_check(e->form, e->num_chunks, &set->programs[0]);
}

/* Accepted, the same bytes every time, through text and back; and no task, wait or staging area is
 * one too many. */
CASE(exact)
{
    static edit edited;
    for (int f = 0; f < NUM_FORMS; f++)
        for (int n = 1; n <= most_chunks(forms[f]); n++) {
            program_set set = make_exchange(forms[f], n), again = make_exchange(forms[f], n);
            const weft_program whole = set.programs[0];
            OK(weft_program_exchange_check(forms[f], n, &whole));
            is_read_back(&whole);
            assert_true(same_program(&whole, &again.programs[0]));
            const exchange of = {forms[f], n};
            every_wait_is_needed(&set, 0, check, &of, " may ");
            every_task_is_needed(&set, 0, check, &of, weft_exchange_text((int)forms[f]));
            every_slot_is_needed(&set, 0, check, &of);
            /* One area a stage would not do. */
            edit_open(&set, 0, &edited);
            for (uint32_t t = 0; t < edited.num_tasks; t++)
                for (int k = 0; k < WEFT_TASK_MAX_OPERANDS; k++)
                    if (edited.tasks[t].operands[k] == 1)
                        edited.tasks[t].operands[k] = 0;
            edit_close(&edited, &set);
            if (n > 1)
                FAILS(weft_program_exchange_check(forms[f], n, &set.programs[0]), WEFT_INTERNAL,
                      "overwrite slot 0");
            release_set(&again);
            release_set(&set);
        }
}

CASE(refuses)
{
    static edit edited;
    weft_arena arena = {0};
    weft_program program;
    FAILS(weft_program_exchange(WEFT_EXCHANGE_O1, 2, &arena, &program), WEFT_CONFIG,
          "an all-to-all by o1 in 2 chunks: 1 to 1 are possible");
    FAILS(weft_program_exchange(WEFT_EXCHANGE_O3, 257, &arena, &program), WEFT_CONFIG,
          "by o3 in 257 chunks: 1 to 256");
    FAILS(weft_program_exchange(WEFT_NUM_EXCHANGES, 1, &arena, &program), WEFT_CONFIG, "no form 6");
    assert_string_equal(weft_exchange_text(WEFT_EXCHANGE_O1_PAPER), "o1_paper");
    weft_arena_release(&arena);

    /* The copy beside the next all-gather is what o3 has over o2. */
    program_set set = make_exchange(WEFT_EXCHANGE_O3, 3);
    FAILS(weft_program_exchange_check(WEFT_EXCHANGE_O2, 3, &set.programs[0]), WEFT_INTERNAL,
          "is not on the gather lane");
    FAILS(weft_program_exchange_check(WEFT_EXCHANGE_DIRECT, 3, &set.programs[0]), WEFT_INTERNAL,
          "direct, task 2 (place place part=0 from=2 waits=1) has no place in this program");
    FAILS(weft_program_exchange_check(WEFT_EXCHANGE_O3, 4, &set.programs[0]), WEFT_INTERNAL,
          "o3 has no dispatch expert part=3");
    FAILS(weft_program_exchange_check(WEFT_EXCHANGE_O3, 2, &set.programs[0]), WEFT_INTERNAL,
          "o3, task 6 (dispatch expert part=2 to=0 waits=1) has no place in this program");
    edit_open(&set, 0, &edited);
    edited.tasks[7].operands[1] = edited.tasks[8].operands[0] = 1;
    edit_close(&edited, &set);
    FAILS(weft_program_exchange_check(WEFT_EXCHANGE_O3, 3, &set.programs[0]), WEFT_INTERNAL,
          "has what was gathered in slot 1, which is memory for arrived");
    edit_open(&set, 0, &edited);
    edited.tasks[4] = weft_task_of(WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION);
    edit_close(&edited, &set);
    FAILS(weft_program_exchange_check(WEFT_EXCHANGE_O3, 3, &set.programs[0]), WEFT_INTERNAL,
          "has no place in this program");
    release_set(&set);
}
