#include "launcher/process/output_files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Where a file that is not there would be. */
static bool find_folder(const char *path, struct stat *out)
{
    char folder[PATH_MAX];
    const size_t bytes = (size_t)(name_of(path) - path);
    if (bytes + 2 > sizeof folder)
        return false;
    snprintf(folder, sizeof folder, "%.*s.", (int)bytes, path);
    return stat(folder, out) == 0;
}

bool weft_same_file(const char *a, const char *b)
{
    struct stat x, y;
    const bool has_a = stat(a, &x) == 0, has_b = stat(b, &y) == 0;
    if (has_a != has_b)
        return false;
    if (has_a)
        return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    return strcmp(name_of(a), name_of(b)) == 0 && find_folder(a, &x) && find_folder(b, &y) &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

weft_status weft_output_check(const weft_line_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count && files[i].is_output && files[i].path; k++)
            if (k != i && files[k].path && (k < i || !files[k].is_output) &&
                weft_same_file(files[i].path, files[k].path))
                return WEFT_ERROR(WEFT_CONFIG, "%s %s: the same file as %s", files[i].option,
                                  files[i].path, files[k].option);
    return WEFT_OK;
}

weft_status weft_output_try(const char *path)
{
    weft_new_file file;
    if (!path)
        return WEFT_OK;
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_new_file_drop(&file);
    return WEFT_OK;
}
