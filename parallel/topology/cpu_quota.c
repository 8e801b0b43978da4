#include "parallel/topology/internal.h"

#include <stdio.h>
#include <string.h>

/* The limit set on one group alone; 0: none. */
static double quota_of(const char *root, bool version_2, const char *group)
{
    char text[128], period_text[128];
    double quota = 0, period = 0;
    if (version_2) { /* "max 100000" or "150000 100000" */
        if (!weft_group_read_line(root, "/sys/fs/cgroup", group, "/cpu.max", text, sizeof text) ||
            sscanf(text, "%lf %lf", &quota, &period) != 2)
            return 0;
    } else if (!weft_group_read_line(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_quota_us", text,
                                     sizeof text) ||
               !weft_group_read_line(root, "/sys/fs/cgroup/cpu", group, "/cpu.cfs_period_us",
                                     period_text, sizeof period_text) ||
               sscanf(text, "%lf", &quota) != 1 || sscanf(period_text, "%lf", &period) != 1) {
        return 0;
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

int weft_cpu_quota(const char *root)
{
    weft_control_group group;
    double least = 0;
    if (!weft_group_find(root, "cpu", &group))
        return 0;
    do { /* every group above limits too */
        double quota = quota_of(root, group.version_2, strcmp(group.path, "/") ? group.path : "");
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    } while (weft_group_up(&group));
    int whole = (int)least;
    return whole + (least > whole);
}
