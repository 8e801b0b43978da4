#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "parallel/checkpoint/internal.h"

enum { PATH_BYTES = 4096 };

static weft_status join(const char *folder, const char *name, char out[PATH_BYTES])
{
    return weft_path_print(out, PATH_BYTES, "%s/%s", folder, name);
}

weft_status weft_folder_make(const char *path)
{
    char part[PATH_BYTES];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return WEFT_ERROR(WEFT_FILE, "\"%.200s\": not a folder's path", path);
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        char end = part[i];
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", part, strerror(errno));
        part[i] = end;
    }
    if (!weft_folder_exists(path))
        return WEFT_ERROR(WEFT_FILE, "%s: not a folder", path);
    return WEFT_OK;
}

bool weft_folder_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

void weft_folder_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        if (fd >= 0)
            close(fd);
        unlink(path); /* a link goes, what it leads to stays */
        return;
    }
    for (const struct dirent *entry; (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(fd, entry->d_name, 0);
    closedir(folder);
    rmdir(path);
}

weft_status weft_folder_make_new(const char *path)
{
    char parent[PATH_BYTES];
    const char *end = strrchr(path, '/');
    WEFT_TRY(weft_path_print(parent, sizeof parent, "%.*s", end ? (int)(end - path) : 1,
                             end ? path : "."));
    if (*parent)
        WEFT_TRY(weft_folder_make(parent));
    weft_folder_remove(path);
    if (mkdir(path, 0777) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", path, strerror(errno));
    return WEFT_OK;
}

weft_status weft_folder_create_file(const char *folder, const char *name, FILE **out)
{
    char path[PATH_BYTES];
    WEFT_TRY(join(folder, name, path));
    FILE *file = weft_file_create(path);
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    *out = file;
    return WEFT_OK;
}

weft_status weft_folder_finish_file(const char *folder, const char *name, FILE *file)
{
    bool failed = ferror(file) != 0;
    int reason = errno;
    if (!failed && (fflush(file) != 0 || fsync(fileno(file)) != 0)) {
        failed = true;
        reason = errno;
    }
    if (fclose(file) != 0 && !failed) {
        failed = true;
        reason = errno;
    }
    if (failed)
        return WEFT_ERROR(WEFT_FILE, "%s/%s: cannot write: %s", folder, name, strerror(reason));
    return WEFT_OK;
}

weft_status weft_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    int failed = fsync(fd);
    int reason = errno;
    close(fd);
    if (failed)
        return WEFT_ERROR(WEFT_FILE, "%s: fsync failed: %s", path, strerror(reason));
    return WEFT_OK;
}

static weft_status aside_of(const char *target, char out[PATH_BYTES])
{
    return weft_path_print(out, PATH_BYTES, "%s" WEFT_ASIDE, target);
}

/* Where the file system cannot exchange two names at once, the old folder steps aside first, to
 * where find_whole looks for it. */
static weft_status replace_in_two_steps(const char *temporary, const char *target,
                                        const char *aside)
{
    weft_folder_remove(aside);
    if (rename(target, aside) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot replace: %s", target, strerror(errno));
    if (rename(temporary, target) != 0) {
        int reason = errno;
        if (rename(aside, target) != 0)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot replace: %s; it is now %s", target,
                              strerror(reason), aside);
        return WEFT_ERROR(WEFT_FILE, "%s: cannot replace: %s", target, strerror(reason));
    }
    return WEFT_OK;
}

weft_status weft_folder_publish(const char *temporary, const char *target)
{
    char aside[PATH_BYTES];
    WEFT_TRY(aside_of(target, aside));
    if (rename(temporary, target) != 0) {
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot rename %s to it: %s", target, temporary,
                              strerror(errno));
        if (renameat2(AT_FDCWD, temporary, AT_FDCWD, target, RENAME_EXCHANGE) == 0)
            weft_folder_remove(temporary); /* the old one has that name now */
        else
            WEFT_TRY(replace_in_two_steps(temporary, target, aside));
    }
    weft_folder_remove(aside); /* of now, or of a save that was killed between its renames */
    return WEFT_OK;
}

weft_status weft_folder_point(const char *dir, const char *link, const char *text)
{
    char name[64], from[PATH_BYTES], to[PATH_BYTES];
    FILE *file;
    snprintf(name, sizeof name, ".%s.saving", link);
    WEFT_TRY(join(dir, name, from));
    WEFT_TRY(join(dir, link, to));
    WEFT_TRY(weft_folder_create_file(dir, name, &file));
    fprintf(file, "%s\n", text);
    WEFT_TRY(weft_folder_finish_file(dir, name, file));
    if (rename(from, to) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot move it: %s", to, strerror(errno));
    return weft_folder_sync(dir);
}

static weft_status has_manifest(const char *folder, weft_arena *arena, bool *out)
{
    const char *manifest;
    WEFT_TRY(weft_arena_printf(arena, &manifest, "%s/" WEFT_MANIFEST_NAME, folder));
    *out = access(manifest, F_OK) == 0;
    return WEFT_OK;
}

/* The checkpoint that `path` names: there, or where a save that was killed while it replaced it has
 * put it aside. NULL: neither. */
static weft_status find_whole(const char *path, weft_arena *arena, const char **out)
{
    char aside[PATH_BYTES];
    bool found;
    *out = NULL;
    WEFT_TRY(has_manifest(path, arena, &found));
    if (found)
        return weft_arena_strdup(arena, path, out);
    WEFT_TRY(aside_of(path, aside));
    WEFT_TRY(has_manifest(aside, arena, &found));
    return found ? weft_arena_strdup(arena, aside, out) : WEFT_OK;
}

/* The folder that dir/latest names, or NULL where there is no such file. */
static weft_status follow_latest(const char *dir, weft_arena *arena, const char **out)
{
    const char *latest, *named;
    char *text;
    size_t bytes;
    int64_t step;
    int used = 0;

    *out = NULL;
    WEFT_TRY(weft_arena_printf(arena, &latest, "%s/latest", dir));
    if (access(latest, F_OK) != 0)
        return WEFT_OK;
    WEFT_TRY(weft_file_read_text(latest, arena, &text, &bytes));
    if (sscanf(text, "step-%" SCNd64 "%n", &step, &used) != 1 ||
        text[used + strspn(text + used, "\n")])
        return WEFT_ERROR(WEFT_FILE, "%s: should say \"step-N\"", latest);
    text[used] = '\0';
    WEFT_TRY(weft_arena_printf(arena, &named, "%s/%s", dir, text));
    WEFT_TRY(find_whole(named, arena, out));
    if (!*out)
        return WEFT_ERROR(WEFT_FILE, "%s: names %s, which has no " WEFT_MANIFEST_NAME, latest,
                          text);
    return WEFT_OK;
}

weft_status weft_checkpoint_resolve(const char *path, weft_arena *arena, const char **out_folder)
{
    const char *below, *found;
    WEFT_TRY(find_whole(path, arena, &found));
    if (!found)
        WEFT_TRY(follow_latest(path, arena, &found));
    if (!found) {
        WEFT_TRY(weft_arena_printf(arena, &below, "%s/checkpoints", path));
        WEFT_TRY(follow_latest(below, arena, &found));
    }
    if (!found)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: no checkpoint there (no " WEFT_MANIFEST_NAME
                          ", no latest, no checkpoints/latest)",
                          path);
    *out_folder = found;
    return WEFT_OK;
}

/* Bytes of a path without its last name, and without the slashes before that. */
static size_t cut_name(const char *path, size_t bytes)
{
    while (bytes > 0 && path[bytes - 1] == '/')
        bytes--;
    while (bytes > 0 && path[bytes - 1] != '/')
        bytes--;
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    return bytes;
}

weft_status weft_checkpoint_run(const char *folder, weft_arena *arena, const char **out)
{
    const size_t bytes = cut_name(folder, cut_name(folder, strlen(folder)));
    struct stat is, wanted;
    const char *name, *above;
    WEFT_TRY(weft_arena_printf(arena, &name, "%.*s", bytes ? (int)bytes : 1, bytes ? folder : "."));
    WEFT_TRY(weft_arena_printf(arena, &above, "%s/../..", folder));
    const bool is_same = stat(name, &is) == 0 && stat(above, &wanted) == 0 &&
                         is.st_dev == wanted.st_dev && is.st_ino == wanted.st_ino;
    *out = is_same ? name : above; /* through a link they differ */
    return WEFT_OK;
}
