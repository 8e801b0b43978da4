/* Runs a target on files, or on all files of folders, as libFuzzer does, without it: test_fuzz_KIND
 * PATH... [--damaged N]. N inputs more are damaged ones of these, the same in every run. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum {
    SECONDS_AN_INPUT = 300, /* then the alarm ends the process, which is a hang */
    MAX_INPUTS = 256,
    ROOM = 1 << 18, /* of a damaged input */
};

__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

typedef struct input {
    char *path;
    uint8_t *data;
    size_t size;
} input;

static input inputs[MAX_INPUTS];
static int num_inputs;
static uint64_t random_state = 77;

/* Below `limit`, or 0. */
static size_t draw(size_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return limit > 0 ? (size_t)(random_state >> 33) % limit : 0;
}

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(num_inputs < MAX_INPUTS && file && fseek(file, 0, SEEK_END) == 0, "%s", path);
    const size_t size = (size_t)ftell(file);
    uint8_t *data = malloc(size + 1);
    rewind(file);
    FUZZ_CHECK(data && fread(data, 1, size, file) == size, "%s", path);
    fclose(file);
    inputs[num_inputs++] = (input){strdup(path), data, size};
}

static void load_all(const char *path)
{
    struct stat info;
    FUZZ_CHECK(stat(path, &info) == 0, "%s", path);
    if (!S_ISDIR(info.st_mode)) {
        load(path);
        return;
    }
    struct dirent **names;
    const int count = scandir(path, &names, NULL, alphasort);
    FUZZ_CHECK(count >= 0, "%s", path);
    for (int k = 0; k < count; k++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, names[k]->d_name);
        if (names[k]->d_name[0] != '.')
            load(file);
        free(names[k]);
    }
    free(names);
}

/* Memory of exactly its size, so that reading past its end is seen. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(exact, "no memory");
    memcpy(exact, data, size);
    alarm(SECONDS_AN_INPUT);
    FUZZ_CHECK(LLVMFuzzerTestOneInput(exact, size) == 0, "not 0");
    alarm(0);
    free(exact);
}

/* --- damage -------------------------------------------------------------------------------- */

typedef struct damaged {
    uint8_t data[ROOM];
    size_t size;
} damaged;

/* `cut` bytes at a place become others, which may lie in it. */
static void replace(damaged *d, size_t at, size_t cut, const void *piece, size_t size)
{
    uint8_t copy[256];
    if (at > d->size || size > sizeof copy || d->size + size > ROOM)
        return;
    cut = cut < d->size - at ? cut : d->size - at;
    memcpy(copy, piece, size);
    memmove(d->data + at + size, d->data + at + cut, d->size - at - cut);
    memcpy(d->data + at, copy, size);
    d->size += size - cut;
}

/* A whole number becomes another: a near one, or one at an end of some range. */
static void damage_number(damaged *d)
{
    static const char *const ends[] = {"-1",         "255",         "65535",
                                       "65536",      "2147483647",  "2147483648",
                                       "4294967295", "-2147483648", "18446744073709551615",
                                       "1e308",      ".",           "nan"};
    size_t at = draw(d->size), digits = 0;
    while (at < d->size && (d->data[at] < '0' || d->data[at] > '9'))
        at++;
    while (at + digits < d->size && d->data[at + digits] >= '0' && d->data[at + digits] <= '9')
        digits++;
    char near[24];
    snprintf(near, sizeof near, "%zu", draw(12));
    const char *other = draw(3) ? near : ends[draw(sizeof ends / sizeof *ends)];
    if (digits > 0)
        replace(d, at, digits, other, strlen(other));
}

static size_t line_start(const damaged *d, size_t at)
{
    while (at > 0 && d->data[at - 1] != '\n')
        at--;
    return at;
}

/* A line is left out, comes twice, or changes places with the one before. */
static void damage_line(damaged *d)
{
    const size_t at = line_start(d, draw(d->size)), how = draw(3);
    const uint8_t *end = memchr(d->data + at, '\n', d->size - at);
    const size_t size = end ? (size_t)(end - d->data) + 1 - at : d->size - at;
    uint8_t line[256];
    if (size > sizeof line)
        return;
    memcpy(line, d->data + at, size);
    if (how > 0)
        replace(d, at, size, "", 0);
    if (how != 1)
        replace(d, how == 0 || at == 0 ? at : line_start(d, at - 1), 0, line, size);
}

/* Some bytes are cut out, or become one of any value or a stretch of some input. */
static void damage_bytes(damaged *d)
{
    const input *from = &inputs[draw((size_t)num_inputs)];
    const size_t at = draw(d->size + 1), start = draw(from->size + 1);
    const size_t size = 1 + draw(32), left = from->size - start;
    const uint8_t byte = (uint8_t)draw(256);
    const size_t how = draw(4), cut = draw(16) ? draw(8) : draw(d->size);
    if (how == 0)
        replace(d, at, cut, "", 0);
    else if (how == 1)
        replace(d, at, draw(2), &byte, 1);
    else
        replace(d, at, how == 2 ? cut : 0, from->data + start, size < left ? size : left);
}

/* Of the next input; both what is taken and what is refused has to be seen. */
static void run_damaged(int num_rounds)
{
    static damaged d;
    int num_refused = 0;
    for (int round = 0; round < num_rounds; round++) {
        const input *from = &inputs[round % num_inputs];
        const int before = fuzz_num_refused;
        d.size = from->size < ROOM ? from->size : ROOM;
        memcpy(d.data, from->data, d.size);
        for (size_t times = 1 + draw(3); times > 0; times--) {
            const size_t how = draw(4);
            how < 2 ? damage_number(&d) : how == 2 ? damage_line(&d) : damage_bytes(&d);
        }
        if (round % 100 == 0)
            fprintf(stderr, "damaged: from %d\n", round); /* should it end here */
        run(d.data, d.size);
        num_refused += fuzz_num_refused > before;
    }
    printf("%d damaged inputs: %d refused\n", num_rounds, num_refused);
    FUZZ_CHECK(num_refused > num_rounds / 100 && num_refused < num_rounds - num_rounds / 100,
               "%d of %d were refused", num_refused, num_rounds);
}

int main(int argc, char **argv)
{
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    const bool damages = argc > 3 && strcmp(argv[argc - 2], "--damaged") == 0;
    for (int i = 1; i < argc - 2 * damages; i++)
        load_all(argv[i]);
    FUZZ_CHECK(num_inputs > 0, "no inputs");
    for (int i = 0; i < num_inputs; i++) {
        fprintf(stderr, "%s\n", inputs[i].path); /* whose input it was, should it end here */
        run(inputs[i].data, inputs[i].size);
    }
    printf("%d inputs\n", num_inputs);
    if (damages)
        run_damaged(atoi(argv[argc - 1]));
    for (int i = 0; i < num_inputs; i++) {
        free(inputs[i].path);
        free(inputs[i].data);
    }
    return 0;
}
