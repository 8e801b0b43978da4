/* Probes: does a library or a facility of the machine work here? Each folder probes the libraries
 * that it alone may include (comm/probe.h, kernels/probe.h, parallel/probe.h). `weft doctor` runs
 * each probe in a process of its own, since a broken library may crash or hang. */
#ifndef WEFT_CORE_PROBE_H
#define WEFT_CORE_PROBE_H

#include <weft/status.h>

typedef enum weft_probe_state {
    WEFT_PROBE_BROKEN, /* there, but does not work. Zero: a probe that says nothing is broken */
    WEFT_PROBE_ABSENT,
    WEFT_PROBE_WORKS,
} weft_probe_state;

/* Plain bytes: it travels through a pipe. */
typedef struct weft_probe {
    weft_probe_state state;
    char version[64];
    char note[256]; /* what was tried, or why it does not work */
} weft_probe;

/* Fills *out. `version` may be "". */
void weft_probe_say(weft_probe *out, weft_probe_state state, const char *version,
                    const char *format, ...) WEFT_PRINTF(4, 5);
/* Says BROKEN, with this thread's error record as the reason. */
void weft_probe_say_error(weft_probe *out, const char *version);

void weft_probe_cjson(weft_probe *out);
void weft_probe_huge_pages(weft_probe *out);
/* Open MPI and Weft pass data between the ranks of a node through /dev/shm. */
void weft_probe_shared_memory(weft_probe *out);
/* Finds driver and runtime, and copies through each device's memory. */
void weft_probe_cuda(weft_probe *out);

#endif
