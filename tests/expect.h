/* Checks that record a failure and go on, for tests under MPI: a check that jumped out would leave
 * the other ranks waiting. Finish with `return expect_finish();` (exit 0 or 1). Under MPI a
 * rank's failure makes mpirun end the test with its code. */
#ifndef WEFT_TESTS_EXPECT_H
#define WEFT_TESTS_EXPECT_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/status.h>

/* One for all files of a program: a check in a helper's file counts, too. */
__attribute__((weak)) int expect_failures;

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            expect_failures++;                                                                     \
            fprintf(stderr, "%s:%d: expected %s: ", __FILE__, __LINE__, #condition);               \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
        }                                                                                          \
    } while (0)

/* The call must succeed; prints the error record otherwise. */
#define EXPECT_OK(call)                                                                            \
    do {                                                                                           \
        if ((call) != WEFT_OK) {                                                                   \
            expect_failures++;                                                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, weft_error_get()->text); \
        }                                                                                          \
    } while (0)

/* The call must fail with this status and a text that contains `part`. */
#define EXPECT_ERROR(call, wanted, part)                                                           \
    do {                                                                                           \
        weft_status expect_status_ = (call);                                                       \
        if (expect_status_ != (wanted) || !strstr(weft_error_get()->text, (part))) {               \
            expect_failures++;                                                                     \
            fprintf(stderr, "%s:%d: %s: got status %d, text \"%s\"\n", __FILE__, __LINE__, #call,  \
                    (int)expect_status_, weft_error_get()->text);                                  \
        }                                                                                          \
        weft_error_clear();                                                                        \
    } while (0)

#define EXPECT_NEAR(a, b, tolerance)                                                               \
    do {                                                                                           \
        double expect_a_ = (a), expect_b_ = (b);                                                   \
        EXPECT(fabs(expect_a_ - expect_b_) <= (tolerance), "%.9g against %.9g", expect_a_,         \
               expect_b_);                                                                         \
    } while (0)

/* The shell's command line must succeed. */
__attribute__((format(printf, 1, 2))) static inline void expect_shell(const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    EXPECT(system(command) == 0, "%s", command);
}

static inline int expect_finish(void)
{
    if (expect_failures)
        fprintf(stderr, "%d checks failed\n", expect_failures);
    return expect_failures ? 1 : 0;
}

#endif
