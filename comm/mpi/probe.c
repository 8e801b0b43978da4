#include "comm/probe.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static const char *thread_level(int level)
{
    return level == MPI_THREAD_MULTIPLE     ? "multiple"
           : level == MPI_THREAD_SERIALIZED ? "serialized"
           : level == MPI_THREAD_FUNNELED   ? "funneled"
                                            : "single";
}

void weft_probe_mpi(weft_probe *out)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, major = 0, minor = 0, level = 0;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = '\0'; /* "Open MPI v4.1.4, package: ..." */
    MPI_Get_version(&major, &minor);
    char version[64];
    snprintf(version, sizeof version, "%.63s", library);
    if (major != MPI_VERSION) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, version,
                       "compiled for MPI %d.%d, but the library loaded is of %d.%d", MPI_VERSION,
                       MPI_SUBVERSION, major, minor);
        return;
    }
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level)) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "MPI_Init_thread failed");
        return;
    }
    int sent = 20260, received = 0;
    MPI_Sendrecv(&sent, 1, MPI_INT, 0, 1, &received, 1, MPI_INT, 0, 1, MPI_COMM_SELF,
                 MPI_STATUS_IGNORE);
    MPI_Finalize();
    if (level < MPI_THREAD_MULTIPLE)
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "thread level %s; multiple is needed",
                       thread_level(level));
    else if (received != sent)
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "a message to oneself came back changed");
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, version, "MPI %d.%d, thread level %s", major, minor,
                       thread_level(level));
}
