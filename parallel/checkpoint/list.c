#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parallel/checkpoint/internal.h"

static int compare_steps(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Whether `name` is "step-N" as it is written, or what weft_folder_publish puts aside; a manifest
 * stands last in a save. */
static bool is_whole(const char *dir, const char *name, weft_arena *arena, int64_t *out_step)
{
    char again[32];
    const char *manifest;
    if (sscanf(name, "step-%" SCNd64, out_step) != 1)
        return false;
    snprintf(again, sizeof again, "step-%" PRId64, *out_step);
    size_t length = strlen(again);
    const char *rest = name + length;
    return strncmp(name, again, length) == 0 && (!*rest || strcmp(rest, WEFT_ASIDE) == 0) &&
           weft_arena_printf(arena, &manifest, "%s/%s/" WEFT_MANIFEST_NAME, dir, name) == WEFT_OK &&
           access(manifest, F_OK) == 0;
}

weft_status weft_checkpoint_list(const char *dir, weft_arena *arena, int64_t **out_steps,
                                 size_t *out_count)
{
    size_t count = 0, capacity = 0;
    int64_t *steps = NULL, step;
    DIR *folder = opendir(dir);
    *out_steps = NULL;
    *out_count = 0;
    if (!folder && (errno == ENOENT || errno == ENOTDIR))
        return WEFT_OK;
    if (!folder)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", dir, strerror(errno));
    weft_status status = WEFT_OK;
    for (const struct dirent *entry; status == WEFT_OK && (entry = readdir(folder));) {
        if (!is_whole(dir, entry->d_name, arena, &step))
            continue;
        if (count == capacity) {
            void *larger;
            status =
                weft_arena_alloc_array(arena, capacity = 2 * capacity + 8, sizeof *steps, &larger);
            if (status != WEFT_OK)
                break;
            if (count > 0)
                memcpy(larger, steps, count * sizeof *steps);
            steps = larger;
        }
        steps[count++] = step;
    }
    closedir(folder);
    WEFT_TRY(status);
    if (count > 1)
        qsort(steps, count, sizeof *steps, compare_steps);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || steps[i] != steps[kept - 1])
            steps[kept++] = steps[i];
    *out_steps = steps;
    *out_count = kept;
    return WEFT_OK;
}
