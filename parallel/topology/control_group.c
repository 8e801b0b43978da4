#include "parallel/topology/internal.h"

#include <stdio.h>
#include <string.h>

bool weft_group_read_line(const char *root, const char *a, const char *b, const char *c, char *out,
                          int capacity)
{
    char path[WEFT_GROUP_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s%s%s%s", root, a, b, c);
    FILE *file = length > 0 && length < WEFT_GROUP_PATH_BYTES ? fopen(path, "r") : NULL;
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

bool weft_group_find(const char *root, const char *controller, weft_control_group *out)
{
    char path[WEFT_GROUP_PATH_BYTES], line[WEFT_GROUP_PATH_BYTES];
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

bool weft_group_up(weft_control_group *group)
{
    char *slash = strrchr(group->path, '/');
    if (!slash || (slash == group->path && !slash[1]))
        return false;
    slash[slash == group->path] = '\0'; /* "/a" becomes "/" */
    return true;
}
