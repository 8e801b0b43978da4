/* The elements of a checkpoint as they go to the disk: it begins with them while more is written;
 * on a Lustre large datasets begin where stripes do; numbers that are not finite are found wherever
 * they stand. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "parallel/checkpoint/internal.h"
#include "tests/expect.h"

enum { ROWS = 96, COLS = 65536, AT_ONCE = 12, HEAD = 40 }; /* 24 MiB, pieces of 3 MiB */

static int num_begun;

/* Fails: it is but a hint. */
int sync_file_range(int fd, off_t at, off_t bytes, unsigned flags)
{
    EXPECT(fd >= 0 && at == 0 && bytes == 0 && flags == SYNC_FILE_RANGE_WRITE, "flags %u", flags);
    num_begun++;
    errno = EIO;
    return -1;
}

static bool is_lustre;

int statfs(const char *path, struct statfs *out)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int result = file < 0 ? -1 : fstatfs(file, out);
    if (file >= 0)
        close(file);
    if (result == 0 && is_lustre)
        out->f_type = 0x0BD00BD0;
    return result;
}

/* Two large datasets and a small one; what is written at their offsets HDF5 reads. */
static void check_stripes(const char *path)
{
    enum { LARGE = (4 << 20) + 3, SMALL = 5, AT = LARGE - 4 };
    for (int lustre = 0; lustre < 2; lustre++) {
        weft_stored items[] = {{.name = "model/a", .num_dims = 1, .dims = {LARGE}},
                               {.name = "model/b", .num_dims = 1, .dims = {SMALL}},
                               {.name = "model/c", .num_dims = 1, .dims = {LARGE}}};
        weft_stored_list list = {items, 3};
        const weft_stored_shard shard = {.dataset = 2, .start = {AT}, .count = {4}};
        const float data[] = {1, 2, 3, 4};
        float back[4] = {0};
        weft_raw_file raw;
        weft_tensor_file *file;
        is_lustre = lustre;
        EXPECT_OK(weft_raw_reserve(path, &list));
        EXPECT_OK(weft_tensor_file_create(path, &list));
        is_lustre = false;
        EXPECT((items[0].offset % (4 << 20) == 0 && items[2].offset % (4 << 20) == 0) == lustre,
               "lustre %d: at %" PRIu64 " and %" PRIu64, lustre, items[0].offset, items[2].offset);
        EXPECT(items[1].offset < 1 << 20 || !lustre, "a small one at %" PRIu64, items[1].offset);
        EXPECT_OK(weft_raw_open(path, &raw));
        EXPECT_OK(weft_raw_write(&raw, &items[2], &shard, data));
        EXPECT_OK(weft_raw_close(&raw, false));
        EXPECT_OK(weft_tensor_file_open(path, &list, &file));
        EXPECT_OK(weft_tensor_file_read(file, &shard, back));
        EXPECT(memcmp(back, data, sizeof data) == 0, "other values");
        EXPECT_OK(weft_tensor_file_close(file));
    }
}

static void check_begins(const char *path)
{
    const weft_stored dataset = {
        .name = "model/x", .num_dims = 2, .dims = {ROWS, COLS}, .offset = HEAD};
    float *data = malloc((size_t)AT_ONCE * COLS * sizeof *data),
          *back = malloc((size_t)AT_ONCE * COLS * sizeof *data);
    weft_raw_file file;
    EXPECT(data && back, "no memory");
    int made = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(made >= 0 && close(made) == 0, "cannot make %s", path);
    EXPECT_OK(weft_raw_open(path, &file));
    for (int row = 0; row < ROWS; row += AT_ONCE) {
        const weft_stored_shard shard = {.start = {(size_t)row, 0}, .count = {AT_ONCE, COLS}};
        for (int i = 0; i < AT_ONCE * COLS; i++)
            data[i] = (float)(row * COLS + i);
        EXPECT_OK(weft_raw_write(&file, &dataset, &shard, data));
        const int pieces = row / AT_ONCE + 1;
        EXPECT(num_begun == pieces / 3, "begun %d times after %d MiB", num_begun, 3 * pieces);
    }
    EXPECT_OK(weft_raw_close(&file, true));
    EXPECT(num_begun == 2, "begun %d times", num_begun);
    made = open(path, O_RDONLY | O_CLOEXEC);
    for (int row = 0; row < ROWS; row += AT_ONCE) {
        const size_t bytes = (size_t)AT_ONCE * COLS * sizeof *back;
        const off_t at = HEAD + (off_t)row * COLS * (off_t)sizeof *back;
        EXPECT(pread(made, back, bytes, at) == (ssize_t)bytes, "cannot read %s", path);
        EXPECT(back[0] == (float)(row * COLS) &&
                   back[AT_ONCE * COLS - 1] == (float)((row + AT_ONCE) * COLS - 1),
               "row %d: %g", row, (double)back[0]);
    }
    close(made);
    free(data);
    free(back);
}

static void check_finite(void)
{
    enum { COUNT = 3 * 4096 + 17 };
    static const size_t places[] = {0, 1, 4095, 4096, 8191, 3 * 4096 - 1, 3 * 4096, COUNT - 1};
    static float data[COUNT];
    const weft_stored dataset = {.name = "model/y", .num_dims = 1, .dims = {COUNT}};
    for (size_t i = 0; i < COUNT; i++)
        data[i] = i % 2 ? 3.4e38f : -1e-42f; /* the largest, and one that is not normal */
    weft_stored_shard shard = {.count = {COUNT}};
    EXPECT_OK(weft_shard_hash(7, &dataset, &shard, data));
    EXPECT(shard.hash == XXH64(data, sizeof data, 0), "another hash");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const float bad[] = {NAN, -NAN, INFINITY, -INFINITY}, was = data[places[i]];
        for (int k = 0; k < 4; k++) {
            data[places[i]] = bad[k];
            EXPECT(weft_shard_hash(7, &dataset, &shard, data) == WEFT_DIVERGED &&
                       strstr(weft_error_get()->text, "step 7: model/y"),
                   "%g at %zu is finite: %s", (double)bad[k], places[i], weft_error_get()->text);
        }
        data[places[i]] = was;
    }
    weft_error_clear();
}

int main(void)
{
    char path[] = "/tmp/weft-raw-XXXXXX";
    int file = mkstemp(path);
    EXPECT(file >= 0 && close(file) == 0, "no file");
    check_begins(path);
    check_stripes(path);
    check_finite();
    unlink(path);
    return expect_finish();
}
