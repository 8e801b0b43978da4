/* What this process may take of its machine: its control groups' processors and memory. */
#include "parallel/topology/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/topology/topology.h"

enum { GROUP_PATH_BYTES = 4096 };
/* This process's control group, as its hierarchy names it: "/a/b". */
typedef struct control_group {
    bool version_2;
    char path[GROUP_PATH_BYTES];
} control_group;

/* The first line of the file root + a + b + c; false where there is none. */
static bool read_group_line(const char *root, const char *a, const char *b, const char *c,
                            char *out, int capacity)
{
    char path[GROUP_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s%s%s%s", root, a, b, c);
    FILE *file = length > 0 && length < GROUP_PATH_BYTES ? fopen(path, "r") : NULL;
    if (!file)
        return false;
    bool there = fgets(out, capacity, file) != NULL;
    fclose(file);
    return there;
}

/* "cpu" among "cpu,cpuacct". */
static bool names(const char *list, const char *controller)
{
    const size_t bytes = strlen(controller);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == bytes && memcmp(at, controller, bytes) == 0)
            return true;
    return false;
}

/* The group whose `controller` ("cpu", "memory") this process is under: "0::/a/b" in version 2,
 * "4:cpu,cpuacct:/a/b" in version 1. false: none. */
static bool find_group(const char *root, const char *controller, control_group *out)
{
    char path[GROUP_PATH_BYTES], line[GROUP_PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    bool found = false;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        const bool unified = !*controllers, named = names(controllers, controller);
        if (named || (unified && !found)) { /* a hybrid system limits through version 1 */
            out->version_2 = !named;
            snprintf(out->path, sizeof out->path, "%s", group);
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

/* To the group above; false: there is none. */
static bool go_up(control_group *group)
{
    char *slash = strrchr(group->path, '/');
    if (!slash || (slash == group->path && !slash[1]))
        return false;
    slash[slash == group->path] = '\0'; /* "/a" becomes "/" */
    return true;
}

/* The limit set on one group alone; 0: none. */
static double quota_of(const char *root, bool version_2, const char *group)
{
    char text[128], period_text[128];
    double quota = 0, period = 0;
    if (version_2) { /* "max 100000" or "150000 100000" */
        if (!read_group_line(root, "/sys/fs/cgroup", group, "/cpu.max", text, sizeof text) ||
            sscanf(text, "%lf %lf", &quota, &period) != 2)
            return 0;
    } else if (!read_group_line(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_quota_us", text,
                                sizeof text) ||
               !read_group_line(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_period_us",
                                period_text, sizeof period_text) ||
               sscanf(text, "%lf", &quota) != 1 || sscanf(period_text, "%lf", &period) != 1) {
        return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

int weft_cpu_quota(const char *root)
{
    control_group group;
    double least = 0;
    if (!find_group(root, "cpu", &group))
        return 0;
    do { /* every group above limits too */
        double quota = quota_of(root, group.version_2, strcmp(group.path, "/") ? group.path : "");
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    } while (go_up(&group));
    int whole = (int)least;
    return whole + (least > whole);
}

/* Of a file of lines "name value": the value behind `name`; 0: it has none. */
static uint64_t value_of(const char *root, const char *a, const char *b, const char *c,
                         const char *name)
{
    char path[GROUP_PATH_BYTES], line[256];
    uint64_t value = 0;
    const size_t bytes = strlen(name);
    const int length = snprintf(path, sizeof path, "%s%s%s%s", root, a, b, c);
    FILE *file = length > 0 && length < GROUP_PATH_BYTES ? fopen(path, "r") : NULL;
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
    return read_group_line(root, folder, group, name, text, sizeof text) &&
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
    control_group group;
    const uint64_t kib = value_of(root, "/proc/meminfo", "", "", "MemAvailable");
    uint64_t least = kib > 0 ? kib << 10 : UINT64_MAX;
    if (find_group(root, "memory", &group))
        do { /* every group above limits too */
            const uint64_t left =
                left_in(root, group.version_2, strcmp(group.path, "/") ? group.path : "");
            least = left < least ? left : least;
        } while (go_up(&group));
    return least;
}

uint64_t weft_machine_memory_left(void)
{
    return weft_host_memory_left("");
}
