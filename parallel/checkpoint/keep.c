#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
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

/* Which checkpoints go when a new one stands. */

static const char going[] = ".going"; /* behind ".step-N": to be removed, by whoever comes next */

static bool has_end(const char *name, const char *end)
{
    const size_t bytes = strlen(name), own = strlen(end);
    return bytes > own && strcmp(name + bytes - own, end) == 0;
}

/* What a removal or a save that was killed has left. */
static weft_status remove_left_over(const char *dir, weft_arena *arena)
{
    DIR *folder = opendir(dir);
    weft_status status = WEFT_OK;
    if (!folder)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", dir, strerror(errno));
    for (const struct dirent *entry; status == WEFT_OK && (entry = readdir(folder));) {
        const char *name = entry->d_name, *path;
        if (strncmp(name, ".step-", 6) != 0 || !(has_end(name, going) || has_end(name, ".saving")))
            continue;
        status = weft_arena_printf(arena, &path, "%s/%s", dir, name);
        if (status == WEFT_OK)
            weft_folder_remove(path);
    }
    closedir(folder);
    return status;
}

static weft_status read_latest(const char *dir, weft_arena *arena, int64_t *out)
{
    const char *path;
    char *text;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/latest", dir));
    WEFT_TRY(weft_file_read_text(path, arena, &text, NULL));
    if (sscanf(text, "step-%" SCNd64, out) != 1)
        return WEFT_ERROR(WEFT_FILE, "%s: should say \"step-N\"", path);
    return WEFT_OK;
}

/* It has another name before its first file goes: there is no half checkpoint of its own name. */
static weft_status remove_step(const char *dir, int64_t step, weft_arena *arena)
{
    static const char *const ends[] = {WEFT_ASIDE, ""}; /* the name that is found goes last */
    for (int i = 0; i < 2; i++) {
        const char *from, *to;
        WEFT_TRY(weft_arena_printf(arena, &from, "%s/step-%" PRId64 "%s", dir, step, ends[i]));
        WEFT_TRY(
            weft_arena_printf(arena, &to, "%s/.step-%" PRId64 "%s%s", dir, step, ends[i], going));
        if (rename(from, to) == 0)
            weft_folder_remove(to);
        else if (errno != ENOENT)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot remove: %s", from, strerror(errno));
    }
    return WEFT_OK;
}

static weft_status prune(const char *dir, const weft_checkpoint_keep *keep, weft_arena *arena,
                         int *removed)
{
    int64_t *steps, latest, kept = 0;
    size_t count;
    WEFT_TRY(remove_left_over(dir, arena));
    if (keep->latest_k < 1)
        return WEFT_OK;
    WEFT_TRY(read_latest(dir, arena, &latest));
    WEFT_TRY(weft_checkpoint_list(dir, arena, &steps, &count));
    for (size_t i = count; i-- > 0;) {
        if (steps[i] > latest || kept++ < keep->latest_k ||
            (keep->retain_interval > 0 && steps[i] % keep->retain_interval == 0))
            continue;
        WEFT_TRY(remove_step(dir, steps[i], arena));
        ++*removed;
    }
    return *removed > 0 ? weft_folder_sync(dir) : WEFT_OK;
}

weft_status weft_checkpoint_prune(const char *dir, const weft_checkpoint_keep *keep,
                                  int *out_removed)
{
    weft_arena arena = {0};
    int removed = 0;
    weft_status status = prune(dir, keep, &arena, &removed);
    weft_arena_release(&arena);
    *out_removed = removed;
    return status;
}
