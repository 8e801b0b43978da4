/* Checkpoints of weights alone: what writes them gives them whole; training starts from them with
 * moments of zero, whatever stood there before. */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/parallel/checkpoint_tiny.h"

static const weft_weight weights[] = {{"beta", 1, {3}}, {"alpha", 2, {5, 7}}};

static float value_of(size_t weight, size_t element)
{
    return (float)(100 * weight + element) / 8;
}

typedef struct filling {
    size_t weight, bad; /* bad: the element that is not finite */
} filling;

static weft_status fill(void *context, size_t first, size_t count, float *out)
{
    const filling *f = context;
    for (size_t i = 0; i < count; i++)
        out[i] = first + i == f->bad ? NAN : value_of(f->weight, first + i);
    return WEFT_OK;
}

static weft_status write_all(const char *dir, size_t num, size_t bad)
{
    weft_weights_writer *writer;
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_weights_create(dir, weights, 2, &writer));
    for (size_t i = 0; status == WEFT_OK && i < num; i++) {
        filling f = {i, i == 1 ? bad : SIZE_MAX};
        status = weft_weights_write(writer, weights[i].name, fill, &f);
    }
    if (status == WEFT_OK)
        status = weft_weights_publish(writer, "{\"a\": 1}");
    weft_weights_abandon(writer);
    return status;
}

static void check_state(tiny *t)
{
    for (int i = 0; i < weft_optimizer_num_pieces(t->optimizer); i++) {
        const weft_state_piece piece = weft_optimizer_piece(t->optimizer, i);
        const size_t weight = strcmp(piece.placed->parameter.name, "alpha") == 0;
        for (size_t e = 0; e < piece.count; e++) {
            EXPECT(piece.data[WEFT_STATE_MASTER][e] == value_of(weight, piece.first + e), "%zu", e);
            for (int kind = 1; kind < WEFT_NUM_STATES; kind++)
                EXPECT(piece.data[kind][e] == 0, "moment %d: %g", kind,
                       (double)piece.data[kind][e]);
        }
    }
}

static void weights_train_with_fresh_moments(const char *dir)
{
    tiny t;
    weft_arena arena = {0};
    const char *folder = "";
    weft_checkpoint_info info = {.step = 9};
    EXPECT_OK(write_all(dir, 2, SIZE_MAX));
    EXPECT_OK(weft_checkpoint_resolve(dir, &arena, &folder));
    EXPECT_OK(weft_checkpoint_read_info(folder, &info));
    EXPECT(info.step == 0 && info.consumed_tokens == 0, "step %lld", (long long)info.step);
    if (tiny_create(&t, PLAIN)) {
        visit_state(&t, 5, true);
        EXPECT_OK(load(&t, folder));
        check_state(&t);
        EXPECT_OK(save_state(&t, dir, 6));
    }
    tiny_release(&t);
    if (tiny_create(&t, EXTRA))
        EXPECT_ERROR(load(&t, folder), WEFT_FILE, "lacks model/gamma, which the model has");
    tiny_release(&t);
    if (tiny_create(&t, LACKING))
        EXPECT_ERROR(load(&t, folder), WEFT_FILE, "has model/beta, which the model lacks");
    tiny_release(&t);
    weft_arena_release(&arena);
}

/* Of a checkpoint with the optimizer's state, too. */
static void weights_are_read(const char *dir)
{
    for (int step = 0; step <= 6; step += 6) {
        char folder[96];
        weft_weights_reader *reader;
        size_t count = 0;
        float values[4];
        snprintf(folder, sizeof folder, "%s/step-%d", dir, step);
        EXPECT_OK(weft_weights_open(folder, &reader));
        const weft_weight *list = weft_weights_list(reader, &count);
        EXPECT(count == 2 && strcmp(list[0].name, "alpha") == 0 && list[0].num_dims == 2 &&
                   list[0].dims[1] == 7,
               "%zu", count);
        EXPECT_OK(weft_weights_read(reader, 0, 20, 4, values));
        for (size_t i = 0; i < 4; i++)
            EXPECT(values[i] == value_of(1, 20 + i), "%g", (double)values[i]);
        weft_weights_close(reader);
    }
}

/* What happens to the first large write. */
typedef enum fate { KEPT, FLIPPED, FULL } fate;
static fate of_write;
static int num_beside; /* large writes of other threads than this one's */
static pthread_t own;

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    if (bytes < 1 << 20)
        return pwrite64(fd, data, bytes, at);
    const fate now = of_write;
    of_write = KEPT;
    num_beside += !pthread_equal(pthread_self(), own);
    if (now == FULL) {
        errno = ENOSPC;
        return -1;
    }
    const ssize_t written = pwrite64(fd, data, bytes, at);
    const char other = (char)~*(const char *)data;
    if (now == FLIPPED)
        EXPECT(pwrite64(fd, &other, 1, at) == 1, "cannot flip");
    return written;
}

enum { LARGE_ROWS = 3, LARGE_COLS = 1500, LARGE_DEPTH = 1000 };
static const weft_weight large = {"large", 3, {LARGE_ROWS, LARGE_COLS, LARGE_DEPTH}};

static weft_status fill_large(void *context, size_t first, size_t count, float *out)
{
    size_t *next = context;
    EXPECT(first == *next, "%zu, not %zu", first, *next);
    for (size_t i = 0; i < count; i++)
        out[i] = (float)(first + i);
    *next = first + count;
    return WEFT_OK;
}

static weft_status write_large(const char *dir, fate first)
{
    weft_weights_writer *writer;
    size_t next = 0;
    of_write = first;
    WEFT_TRY(weft_weights_create(dir, &large, 1, &writer));
    weft_status status = weft_weights_write(writer, "large", fill_large, &next);
    if (status == WEFT_OK)
        status = weft_weights_publish(writer, "{}");
    weft_weights_abandon(writer);
    return status;
}

/* Shards of many pieces, which another thread writes while the next ones are filled. Hashes are of
 * what was to be written: who reads another byte is refused. */
static void large_ones_are_written_beside(const char *dir)
{
    enum { ELEMENTS = LARGE_ROWS * LARGE_COLS * LARGE_DEPTH };
    weft_weights_reader *reader;
    char path[96];
    own = pthread_self();
    EXPECT_ERROR(write_large(dir, FULL), WEFT_FILE, "model.h5: cannot write: No space left");
    EXPECT(count_entries(dir) == 0, "%d entries", count_entries(dir));
    snprintf(path, sizeof path, "%s/step-0", dir);
    float *values = malloc(ELEMENTS * sizeof *values);
    EXPECT(values != NULL, "no memory");
    EXPECT_OK(write_large(dir, FLIPPED));
    EXPECT_OK(weft_weights_open(path, &reader));
    EXPECT_ERROR(weft_weights_read(reader, 0, 0, ELEMENTS, values), WEFT_FILE, "model/large [0:");
    weft_weights_close(reader);
    num_beside = 0;
    EXPECT_OK(write_large(dir, KEPT));
    EXPECT(num_beside > ELEMENTS * 4 >> 21, "%d writes", num_beside);
    EXPECT_OK(weft_weights_open(path, &reader));
    EXPECT_OK(weft_weights_read(reader, 0, 0, ELEMENTS, values));
    EXPECT_OK(weft_weights_finish(reader));
    for (size_t i = 0; values && i < ELEMENTS; i++)
        EXPECT(values[i] == (float)i, "%zu: %g", i, (double)values[i]);
    weft_weights_close(reader);
    free(values);
}

/* Changes a bit at a place from the end. */
static void flip(const char *path, long from_end)
{
    FILE *file = fopen(path, "r+b");
    EXPECT(file && fseek(file, -from_end, SEEK_END) == 0, "%s", path);
    const int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 1, file);
    fclose(file);
}

/* From the file's end, of element 0 of "beta": where its three numbers stand. */
static long place_of_beta(const char *path)
{
    static char bytes[1 << 16];
    float values[3];
    FILE *file = fopen(path, "rb");
    EXPECT(file != NULL, "%s", path);
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t i = 0; i < 3; i++)
        values[i] = value_of(0, i);
    for (size_t i = 0; i + sizeof values <= count; i++)
        if (memcmp(bytes + i, values, sizeof values) == 0)
            return (long)(count - i);
    EXPECT(false, "%s: no such numbers", path);
    return 1;
}

/* "beta" is. As the last element of a shard goes by, where it is read in order; before the first,
 * where it is not; in the end, where only a part was read. */
static void damage_is_found(const char *path)
{
    weft_weights_reader *reader;
    float values[35];
    EXPECT_OK(weft_weights_open(path, &reader));
    for (size_t at = 0; at < 35; at += 7)
        EXPECT_OK(weft_weights_read(reader, 0, at, 7, values + at));
    for (size_t i = 0; i < 35; i++)
        EXPECT(values[i] == value_of(1, i), "%g", (double)values[i]);
    EXPECT_OK(weft_weights_read(reader, 0, 0, 1, values));
    EXPECT_OK(weft_weights_read(reader, 1, 0, 1, values));
    EXPECT_OK(weft_weights_read(reader, 1, 1, 1, values));
    EXPECT_ERROR(weft_weights_read(reader, 1, 2, 1, values), WEFT_FILE, "damaged");
    weft_weights_close(reader);
    EXPECT_OK(weft_weights_open(path, &reader));
    EXPECT_ERROR(weft_weights_read(reader, 1, 1, 1, values), WEFT_FILE, "damaged");
    weft_weights_close(reader);
    EXPECT_OK(weft_weights_open(path, &reader));
    EXPECT_OK(weft_weights_read(reader, 0, 0, 35, values));
    EXPECT_OK(weft_weights_finish(reader));
    EXPECT_OK(weft_weights_read(reader, 1, 0, 1, values));
    EXPECT_ERROR(weft_weights_finish(reader), WEFT_FILE, "model/beta [0:3]: damaged");
    weft_weights_close(reader);
}

static void nothing_half_written(const char *dir)
{
    struct stat info;
    weft_weights_reader *reader;
    char path[96];
    EXPECT_ERROR(write_all(dir, 1, SIZE_MAX), WEFT_FILE, "model/alpha: the shards hold 0 of 35");
    EXPECT_ERROR(write_all(dir, 2, 17), WEFT_DIVERGED, "model/alpha [0:5, 0:7] is not finite");
    EXPECT(count_entries(dir) == 0, "%d entries", count_entries(dir));
    EXPECT_OK(write_all(dir, 2, SIZE_MAX));
    snprintf(path, sizeof path, "%s/step-0/model.h5", dir);
    EXPECT(stat(path, &info) == 0, "%s", path);
    const long beta = place_of_beta(path);
    flip(path, 40);
    snprintf(path, sizeof path, "%s/step-0", dir);
    EXPECT_ERROR(weft_weights_open(path, &reader), WEFT_FILE, "damaged"); /* the structure */
    snprintf(path, sizeof path, "%s/step-0/model.h5", dir);
    flip(path, 40);
    flip(path, beta);
    snprintf(path, sizeof path, "%s/step-0", dir);
    damage_is_found(path);
}

int main(void)
{
    char folder[] = "/tmp/weft-weights-XXXXXX", dir[48];
    EXPECT(mkdtemp(folder) != NULL, "no folder");
    snprintf(dir, sizeof dir, "%s/good", folder);
    weights_train_with_fresh_moments(dir);
    weights_are_read(dir);
    snprintf(dir, sizeof dir, "%s/bad", folder);
    nothing_half_written(dir);
    snprintf(dir, sizeof dir, "%s/large", folder);
    large_ones_are_written_beside(dir);
    remove_tree(folder);
    return expect_finish();
}
