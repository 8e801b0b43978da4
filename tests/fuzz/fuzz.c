#include "tests/fuzz/fuzz.h"

#include <ftw.h>
#include <unistd.h>

static char *copied(const uint8_t *data, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    FUZZ_CHECK(copy, "no memory");
    if (bytes > 0)
        memcpy(copy, data, bytes);
    copy[bytes] = '\0';
    return copy;
}

void fuzz_cut(const uint8_t *data, size_t size, int most, fuzz_parts *out)
{
    *out = (fuzz_parts){.count = 0};
    for (int i = 0; i < FUZZ_MAX_PARTS; i++) {
        const uint8_t *end = i < most - 1 && size > 0 ? memchr(data, 0, size) : NULL;
        const size_t bytes = i >= most ? 0 : end ? (size_t)(end - data) : size;
        out->count += i == 0 || (i < most && size > 0);
        out->at[i] = copied(data, bytes);
        out->bytes[i] = bytes;
        data = end ? end + 1 : data;
        size = end ? size - bytes - 1 : 0;
    }
}

void fuzz_release(fuzz_parts *parts)
{
    for (int i = 0; i < FUZZ_MAX_PARTS; i++)
        free(parts->at[i]);
}

int fuzz_num_refused;

void fuzz_refused(weft_status status)
{
    const weft_error *error = weft_error_get();
    if (getenv("WEFT_FUZZ_SAY"))
        fprintf(stderr, "refused: %s\n", error->text);
    FUZZ_CHECK(status == WEFT_CONFIG || status == WEFT_FILE || status == WEFT_MEMORY ||
                   status == WEFT_DIVERGED,
               "status %d: %s", (int)status, error->text);
    FUZZ_CHECK(error->text[0] && !strchr(error->text, '\n'), "\"%s\"", error->text);
    weft_error_clear();
    fuzz_num_refused++;
}

char *fuzz_printed(fuzz_print_function print, const void *subject)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    FUZZ_CHECK(out, "no memory");
    FUZZ_OK(print(subject, out));
    FUZZ_CHECK(fclose(out) == 0, "no memory");
    return text;
}

/* --- files ----------------------------------------------------------------------------------- */

static char folder[4096];

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind;
    return where->level == 0 ? 0 : remove(path);
}

void fuzz_empty(const char *path)
{
    FUZZ_CHECK(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "%s", path);
}

static void remove_folder(void)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    const char *above = getenv("TMPDIR");
    char here[2048];
    if (folder[0])
        return folder;
    if (!above || !above[0])
        above = getcwd(here, sizeof here);
    FUZZ_CHECK(above, "no working folder");
    snprintf(folder, sizeof folder, "%s/weft_fuzz_XXXXXX", above);
    FUZZ_CHECK(mkdtemp(folder), "%s", folder);
    atexit(remove_folder);
    return folder;
}

const char *fuzz_path(const char *name)
{
    static char paths[8][sizeof folder + 256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    return path;
}

void fuzz_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    FUZZ_CHECK(file, "%s", path);
    const bool written = fwrite(data, 1, bytes, file) == bytes;
    FUZZ_CHECK(fclose(file) == 0 && written, "%s", path);
}

uint32_t fuzz_choose(fuzz_choices *choices, uint32_t bound)
{
    if (choices->bytes == 0)
        return 0;
    choices->bytes--;
    return (uint32_t)(uint8_t)(*choices->at++ - '0') % bound;
}
