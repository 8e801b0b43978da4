/* The programs of the all-to-all's forms. */
#include <string.h>

#include "schedule/exchange/exchange.h"
#include "schedule/price/price.h"
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

static void text_is(weft_exchange_form form, int num_chunks, const char *wanted)
{
    program_set set = make_exchange(form, num_chunks);
    program_is(&set.programs[0], wanted);
    release_set(&set);
}

CASE(written_out)
{
    text_is(WEFT_EXCHANGE_BASELINE, 1,
            "program in_flight=1\n"
            "0 dispatch expert part=0\n");
    const char *one = "program in_flight=1\n"
                      "slots 0-0 arrived\n"
                      "slots 1-1 gathered\n"
                      "0 dispatch expert part=0 to=0\n"
                      "1 gather gather part=0 from=0 to=1 waits=0\n"
                      "2 place gather part=0 from=1\n";
    text_is(WEFT_EXCHANGE_O1_PAPER, 1, one);
    text_is(WEFT_EXCHANGE_O1, 1, one);
    text_is(WEFT_EXCHANGE_O2, 1, one);
    /* Chunk 2 arrives where chunk 0 did: when that is gathered. */
    text_is(WEFT_EXCHANGE_O2, 3,
            "program in_flight=2\n"
            "slots 0-1 arrived\n"
            "slots 2-3 gathered\n"
            "0 dispatch expert part=0 to=0\n"
            "1 gather gather part=0 from=0 to=2 waits=0\n"
            "2 place gather part=0 from=2\n"
            "3 dispatch expert part=1 to=1\n"
            "4 gather gather part=1 from=1 to=3 waits=3\n"
            "5 place gather part=1 from=3\n"
            "6 dispatch expert part=2 to=0 waits=1\n"
            "7 gather gather part=2 from=0 to=2 waits=6\n"
            "8 place gather part=2 from=2\n");
    /* And it is gathered where chunk 0 was: when that is placed. */
    text_is(WEFT_EXCHANGE_O3, 3,
            "program in_flight=2\n"
            "slots 0-1 arrived\n"
            "slots 2-3 gathered\n"
            "0 dispatch expert part=0 to=0\n"
            "1 gather gather part=0 from=0 to=2 waits=0\n"
            "2 place place part=0 from=2 waits=1\n"
            "3 dispatch expert part=1 to=1\n"
            "4 gather gather part=1 from=1 to=3 waits=3\n"
            "5 place place part=1 from=3 waits=4\n"
            "6 dispatch expert part=2 to=0 waits=1\n"
            "7 gather gather part=2 from=0 to=2 waits=2,6\n"
            "8 place place part=2 from=2 waits=7\n");
    text_is(WEFT_EXCHANGE_DIRECT, 3,
            "program in_flight=2\n"
            "slots 0-1 arrived\n"
            "0 dispatch expert part=0 to=0\n"
            "1 gather gather part=0 from=0 waits=0\n"
            "2 dispatch expert part=1 to=1\n"
            "3 gather gather part=1 from=1 waits=2\n"
            "4 dispatch expert part=2 to=0 waits=1\n"
            "5 gather gather part=2 from=0 waits=4\n");
}

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

static double cost_of(const void *context, int stage, const weft_task *task)
{
    const double *us = context;
    (void)stage;
    return us[task->kind == WEFT_TASK_DISPATCH ? 0 : task->kind == WEFT_TASK_GATHER ? 1 : 2];
}

static double largest(double a, double b, double c)
{
    const double ab = a > b ? a : b;
    return ab > c ? ab : c;
}

/* What MoNTA says a form takes: the longest stage fills its lane, the others show once. */
CASE(times)
{
    static const double cases[][3] = {{8, 2, 1}, {2, 8, 1}, {2, 3, 9}, {5, 3, 3}, {4, 4, 4}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (int f = 0; f < NUM_FORMS; f++)
            for (int n = 1; n <= most_chunks(forms[f]); n++) {
                const double *us = cases[c];
                const double all = us[0] + us[1] + us[2];
                const double wanted[] = {
                    us[0],
                    all,
                    all,
                    all + (n - 1) * largest(us[0], us[1] + us[2], 0),
                    all + (n - 1) * largest(us[0], us[1], us[2]),
                    us[0] + us[1] + (n - 1) * largest(us[0], us[1], 0),
                };
                program_set set = make_exchange(forms[f], n);
                weft_price price;
                OK(weft_program_price(set.programs, 1,
                                      &(weft_pricing){.cost = cost_of, .context = us}, &set.arena,
                                      &price));
                assert_true(price.makespan_us == wanted[f]);
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
