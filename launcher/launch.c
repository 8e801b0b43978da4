#include "launcher/launch.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARGS = 256 };

weft_status weft_launch_mpirun(int world, int argc, char **argv)
{
    static char ranks[16], self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return WEFT_ERROR(WEFT_COMM, "cannot find this program's own path");
    self[length] = '\0';
    snprintf(ranks, sizeof ranks, "%d", world);
    /* More ranks than cores are fine here: waiting ranks yield. Without CMA, in containers, Open
     * MPI's single-copy path fails loudly; copying twice always works. */
    const char *fixed[] = {"mpirun",
                           "-n",
                           ranks,
                           "--oversubscribe",
                           "--bind-to",
                           "none",
                           "--mca",
                           "mpi_yield_when_idle",
                           "1",
                           "--mca",
                           "btl_vader_single_copy_mechanism",
                           "none",
                           self};
    char *args[MAX_ARGS];
    int count = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        args[count++] = (char *)(uintptr_t)fixed[i];
        if (i == 0 && geteuid() == 0)
            args[count++] = (char *)(uintptr_t) "--allow-run-as-root";
    }
    if (argc + count > MAX_ARGS)
        return WEFT_ERROR(WEFT_CONFIG, "too many arguments: %d", argc);
    for (int i = 1; i < argc; i++)
        args[count++] = argv[i];
    args[count] = NULL;
    setenv("WEFT_TTY", isatty(STDOUT_FILENO) ? "1" : "0", 1);
    execvp(args[0], args);
    return WEFT_ERROR(WEFT_COMM, "cannot start mpirun for %d ranks: %s", world, strerror(errno));
}
