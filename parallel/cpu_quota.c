#include "parallel/topology_internal.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATH_BYTES = 4096 };

/* The first line of root + a + b + c; false where there is none. */
static bool read_line(const char *root, const char *a, const char *b, const char *c, char *out,
                      int capacity)
{
    char path[MAX_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s%s%s%s", root, a, b, c);
    FILE *file = length > 0 && length < MAX_PATH_BYTES ? fopen(path, "r") : NULL;
    if (!file)
        return false;
    bool there = fgets(out, capacity, file) != NULL;
    fclose(file);
    return there;
}

/* The limit set on one group alone; 0: none. */
static double quota_of(const char *root, bool version_2, const char *group)
{
    char text[128], period_text[128];
    double quota = 0, period = 0;
    if (version_2) { /* "max 100000" or "150000 100000" */
        if (!read_line(root, "/sys/fs/cgroup", group, "/cpu.max", text, sizeof text) ||
            sscanf(text, "%lf %lf", &quota, &period) != 2)
            return 0;
    } else if (!read_line(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_quota_us", text,
                          sizeof text) ||
               !read_line(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_period_us", period_text,
                          sizeof period_text) ||
               sscanf(text, "%lf", &quota) != 1 || sscanf(period_text, "%lf", &period) != 1) {
        return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* This process' group: "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1. */
static bool find_group(const char *root, bool *version_2, char *out, size_t capacity)
{
    char path[MAX_PATH_BYTES], line[MAX_PATH_BYTES];
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
        bool unified = !*controllers;
        bool cpu =
            !strncmp(controllers, "cpu,", 4) || !strcmp(controllers, "cpu") ||
            strstr(controllers, ",cpu,") ||
            (strlen(controllers) > 4 && !strcmp(controllers + strlen(controllers) - 4, ",cpu"));
        if (cpu || (unified && !found)) { /* a hybrid system limits through version 1 */
            *version_2 = !cpu;
            snprintf(out, capacity, "%s", group);
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

int weft_cpu_quota(const char *root)
{
    char group[MAX_PATH_BYTES];
    bool version_2 = false;
    double least = 0;
    if (!find_group(root, &version_2, group, sizeof group))
        return 0;
    for (;;) { /* every group above limits too */
        double quota = quota_of(root, version_2, strcmp(group, "/") ? group : "");
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        char *slash = strrchr(group, '/');
        if (!slash || (slash == group && !slash[1]))
            break;
        slash[slash == group] = '\0'; /* "/a" becomes "/" */
    }
    int whole = (int)least;
    return whole + (least > whole);
}
