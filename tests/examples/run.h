/* Running a program through the shell and reading what it left. */
#ifndef WEFT_TESTS_EXAMPLES_RUN_H
#define WEFT_TESTS_EXAMPLES_RUN_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/expect.h"

enum { RUN_COMMAND_BYTES = 4096, RUN_OUTPUT_BYTES = 16384 };

/* Runs the command; its exit code, or -1. What it wrote on both streams, cut off at
 * RUN_OUTPUT_BYTES, stands in run_output. */
static char run_output[RUN_OUTPUT_BYTES];
WEFT_PRINTF(1, 2) static int run(const char *format, ...)
{
    char command[RUN_COMMAND_BYTES], rest[256];
    va_list args;
    va_start(args, format);
    size_t length = (size_t)vsnprintf(command, sizeof command - 8, format, args);
    va_end(args);
    memcpy(command + length, " 2>&1", sizeof " 2>&1");
    FILE *output = popen(command, "r");
    if (!output)
        return -1;
    length = fread(run_output, 1, sizeof run_output - 1, output);
    run_output[length] = '\0';
    while (fread(rest, 1, sizeof rest, output) > 0)
        ;
    int status = pclose(output);
    return status < 0 || status & 0x7f ? -1 : status >> 8;
}

/* A fresh folder under /tmp, made the current one. */
static void run_enter(char folder[32])
{
    strcpy(folder, "/tmp/weft-test-XXXXXX");
    EXPECT(mkdtemp(folder) && chdir(folder) == 0, "%s", folder);
}

static void run_leave(const char *folder)
{
    EXPECT(chdir("/") == 0 && run("rm -rf %s", folder) == 0, "%s", folder);
}

#endif
