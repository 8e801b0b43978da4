/* A folder for a test's files, removed with all that is in it. */
#ifndef WEFT_TESTS_CORE_TEMPORARY_H
#define WEFT_TESTS_CORE_TEMPORARY_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/core/check.h"

static char temporary_folder[64];

static inline int temporary_create(void **state)
{
    (void)state;
    snprintf(temporary_folder, sizeof(temporary_folder), "test_XXXXXX");
    return mkdtemp(temporary_folder) ? 0 : -1;
}

static inline int temporary_remove_one(const char *path, const struct stat *info, int kind,
                                       struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline int temporary_remove(void **state)
{
    (void)state;
    return nftw(temporary_folder, temporary_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A path inside the folder; the buffer is used again after 64 calls. */
static inline const char *temporary_path(const char *name)
{
    static char paths[64][256];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof(paths[0]), "%s/%s", temporary_folder, name);
    return path;
}

static inline void temporary_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* malloc'd. */
static inline unsigned char *temporary_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

#endif
