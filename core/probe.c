#include "core/probe.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

void weft_probe_say(weft_probe *out, weft_probe_state state, const char *version,
                    const char *format, ...)
{
    va_list arguments;
    out->state = state;
    snprintf(out->version, sizeof out->version, "%s", version);
    va_start(arguments, format);
    vsnprintf(out->note, sizeof out->note, format, arguments);
    va_end(arguments);
}

void weft_probe_say_error(weft_probe *out, const char *version)
{
    weft_probe_say(out, WEFT_PROBE_BROKEN, version, "%.250s", weft_error_get()->text);
    weft_error_clear();
}

void weft_probe_cjson(weft_probe *out)
{
    char compiled[32];
    snprintf(compiled, sizeof compiled, "%d.%d.%d", CJSON_VERSION_MAJOR, CJSON_VERSION_MINOR,
             CJSON_VERSION_PATCH);
    cJSON *json = cJSON_ParseWithOpts("{\"a\": [1.5, \"b\"]}", NULL, 1);
    cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "a");
    const cJSON *number = cJSON_GetArrayItem(list, 0);
    bool right = cJSON_IsNumber(number) && number->valuedouble == 1.5;
    cJSON_Delete(json);
    if (!right)
        weft_probe_say(out, WEFT_PROBE_BROKEN, cJSON_Version(), "parsed 1.5 as something else");
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, cJSON_Version(), "parses; compiled with %s",
                       compiled);
}

void weft_probe_huge_pages(weft_probe *out)
{
    const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
    char text[128] = "";
    FILE *file = fopen(path, "r");
    if (!file || !fgets(text, sizeof text, file)) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "%s: %s", path, strerror(errno));
    } else {
        char *mode = strchr(text, '[');
        size_t length = mode ? strcspn(++mode, "]") : 0;
        if (length == 5 && !strncmp(mode, "never", 5))
            weft_probe_say(out, WEFT_PROBE_ABSENT, "",
                           "transparent huge pages are off: large models run slower");
        else
            weft_probe_say(out, WEFT_PROBE_WORKS, "", "transparent, mode %.*s", (int)length,
                           mode ? mode : "");
    }
    if (file)
        fclose(file);
}

void weft_probe_shared_memory(weft_probe *out)
{
    enum { LEAST_MIB = 64 };
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm)) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "/dev/shm: %s", strerror(errno));
        return;
    }
    unsigned long long mib = (unsigned long long)shm.f_bavail * shm.f_frsize >> 20;
    if (mib < LEAST_MIB)
        weft_probe_say(out, WEFT_PROBE_BROKEN, "",
                       "/dev/shm has %llu MiB free: ranks of a node may crash; docker run "
                       "--shm-size=1g makes it larger",
                       mib);
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, "", "/dev/shm has %llu MiB free", mib);
}
