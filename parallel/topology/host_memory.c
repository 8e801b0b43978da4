#include "parallel/topology/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/topology/topology.h"

/* Of a file of lines "name value": the value behind `name`; 0: it has none. */
static uint64_t value_of(const char *root, const char *a, const char *b, const char *c,
                         const char *name)
{
    char path[WEFT_GROUP_PATH_BYTES], line[256];
    uint64_t value = 0;
    const size_t bytes = strlen(name);
    const int length = snprintf(path, sizeof path, "%s%s%s%s", root, a, b, c);
    FILE *file = length > 0 && length < WEFT_GROUP_PATH_BYTES ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, bytes) == 0 && strchr(" :", line[bytes]))
            value = strtoull(line + bytes + 1, NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static bool read_number(const char *root, const char *folder, const char *group, const char *name,
                        uint64_t *out)
{
    char text[64];
    return weft_group_read_line(root, folder, group, name, text, sizeof text) &&
           sscanf(text, "%" SCNu64, out) == 1; /* "max" is none */
}

/* What one group's own limit leaves; files' pages that the kernel may take back do not count as
 * used. UINT64_MAX: it has no limit. */
static uint64_t left_in(const char *root, bool version_2, const char *group)
{
    const char *folder = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    uint64_t limit, used = 0;
    if (!read_number(root, folder, group, version_2 ? "/memory.max" : "/memory.limit_in_bytes",
                     &limit))
        return UINT64_MAX;
    if (!read_number(root, folder, group, version_2 ? "/memory.current" : "/memory.usage_in_bytes",
                     &used))
        used = 0;
    const uint64_t back = value_of(root, folder, group, "/memory.stat",
                                   version_2 ? "inactive_file" : "total_inactive_file");
    used -= back < used ? back : used;
    return limit > used ? limit - used : 0;
}

uint64_t weft_host_memory_left(const char *root)
{
    weft_control_group group;
    const uint64_t kib = value_of(root, "/proc/meminfo", "", "", "MemAvailable");
    uint64_t least = kib > 0 ? kib << 10 : UINT64_MAX;
    if (weft_group_find(root, "memory", &group))
        do { /* every group above limits too */
            const uint64_t left =
                left_in(root, group.version_2, strcmp(group.path, "/") ? group.path : "");
            least = left < least ? left : least;
        } while (weft_group_up(&group));
    return least;
}

uint64_t weft_machine_memory_left(void)
{
    return weft_host_memory_left("");
}
