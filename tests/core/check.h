/* cmocka with the headers it wants before it, and checks of a call's status and of a number. */
#ifndef WEFT_TESTS_CORE_CHECK_H
#define WEFT_TESTS_CORE_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/status.h>

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
