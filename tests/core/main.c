/* The main of a program of cases that has no other. An argument names one case. */
#include "tests/core/check.h"

__attribute__((weak)) int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return run_cases();
}
