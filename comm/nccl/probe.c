#include "comm/probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "comm/nccl/nccl.h"

const char *weft_nccl_version(int code, char text[32])
{
    /* 2.8 and older count 1000 to a major version, later ones 10000 */
    int unit = code < 10000 ? 1000 : 10000;
    int major = code / unit, minor = code % unit / 100, patch = code % 100;
    snprintf(text, 32, "%d.%d.%d", major, minor, patch);
    if (major < 2 || (major == 2 && minor < 26))
        return "2.26 is needed, which starts the work of several groups in one order";
    if (major == 2 && minor == 28 && patch >= 3 && patch <= 8)
        return "2.28.3 to 2.28.8 can hang; NVIDIA's resiliency tools refuse them too";
    return NULL;
}

void weft_probe_nccl(weft_probe *out)
{
    int (*get)(int *) = NULL;
    int code = 0;
    char version[32];
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "%s", dlerror());
        return;
    }
    void *symbol = dlsym(library, "ncclGetVersion");
    memcpy(&get, &symbol, sizeof get);
    if (!get || get(&code)) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "libnccl.so.2 does not tell its version");
        return;
    }
    const char *why = weft_nccl_version(code, version);
    weft_probe_say(out, why ? WEFT_PROBE_BROKEN : WEFT_PROBE_WORKS, version, "%s",
                   why ? why : "loads");
}
