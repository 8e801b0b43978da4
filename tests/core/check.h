/* cmocka with the headers it wants before it: cases, each named where it is written and nowhere
 * else, and checks of a call's status and of a number. */
#ifndef WEFT_TESTS_CORE_CHECK_H
#define WEFT_TESTS_CORE_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/status.h>

/* The cases of a program, which stand in one of its files, in the order of their lines. */
enum { MAX_CASES = 64 };
__attribute__((weak)) struct CMUnitTest check_cases[MAX_CASES];
__attribute__((weak)) int check_lines[MAX_CASES], check_count;

/* What is done before and after all of them, and each. NULL: nothing. */
typedef struct check_fixtures {
    CMFixtureFunction set_up, tear_down, before, after;
} check_fixtures;
__attribute__((weak)) check_fixtures check_around;
#define AROUND(...)                                                                                \
    __attribute__((constructor)) static void set_around(void)                                      \
    {                                                                                              \
        check_around = (check_fixtures){__VA_ARGS__};                                              \
    }

static inline void check_add_case(const char *name, CMUnitTestFunction run, int line)
{
    int at = check_count++;
    if (at == MAX_CASES)
        abort();
    for (; at > 0 && check_lines[at - 1] > line; at--) {
        check_cases[at] = check_cases[at - 1];
        check_lines[at] = check_lines[at - 1];
    }
    check_cases[at] = (struct CMUnitTest){.name = name, .test_func = run};
    check_lines[at] = line;
}

/* Begins a case's function, which main runs (tests/core/main.c, where a program has no other). */
#define CASE(name)                                                                                 \
    static void name(void **);                                                                     \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        check_add_case(#name, name, __LINE__);                                                     \
    }                                                                                              \
    static void name(void **state __attribute__((unused)))

/* Runs the cases, for main to return. */
static inline int run_cases(void)
{
    for (int i = 0; i < check_count; i++) {
        check_cases[i].setup_func = check_around.before;
        check_cases[i].teardown_func = check_around.after;
    }
    return cmocka_run_group_tests_name("tests", check_cases, check_around.set_up,
                                       check_around.tear_down);
}

/* The call must succeed; says what went wrong otherwise. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != WEFT_OK)                                                                     \
            fail_msg("%s: %s", #call, weft_error_get()->text);                                     \
    } while (0)

/* The call must fail with this status and a text that contains `part`. */
#define FAILS(call, wanted, part)                                                                  \
    do {                                                                                           \
        weft_error_clear();                                                                        \
        assert_int_equal((call), (wanted));                                                        \
        assert_int_equal(weft_error_get()->status, (wanted));                                      \
        if (!strstr(weft_error_get()->text, (part)))                                               \
            fail_msg("\"%s\" lacks \"%s\"", weft_error_get()->text, (part));                       \
        weft_error_clear();                                                                        \
    } while (0)

/* To nine digits, of what is around 1 or above. */
static inline void close_to(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * (1 + fabs(wanted))))
        fail_msg("%.12g instead of %.12g", value, wanted);
}

#endif
