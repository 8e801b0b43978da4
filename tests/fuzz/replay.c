/* Runs a target on files, or on all files of folders, as libFuzzer does, without it. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { SECONDS_AN_INPUT = 60 }; /* then the alarm ends the process, which is a hang */

__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static int num_inputs;

static void run(const char *path)
{
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file && fseek(file, 0, SEEK_END) == 0, "%s", path);
    const size_t size = (size_t)ftell(file);
    uint8_t *data = malloc(size + 1);
    rewind(file);
    FUZZ_CHECK(data && fread(data, 1, size, file) == size, "%s", path);
    fclose(file);
    uint8_t *exact = malloc(size > 0 ? size : 1);
    FUZZ_CHECK(exact, "no memory");
    memcpy(exact, data, size);
    free(data);
    fprintf(stderr, "%s\n", path); /* whose input it was, should it end here */
    alarm(SECONDS_AN_INPUT);
    FUZZ_CHECK(LLVMFuzzerTestOneInput(exact, size) == 0, "%s", path);
    alarm(0);
    free(exact);
    num_inputs++;
}

int main(int argc, char **argv)
{
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        struct stat info;
        FUZZ_CHECK(stat(argv[i], &info) == 0, "%s", argv[i]);
        if (!S_ISDIR(info.st_mode)) {
            run(argv[i]);
            continue;
        }
        struct dirent **names;
        const int count = scandir(argv[i], &names, NULL, alphasort);
        FUZZ_CHECK(count >= 0, "%s", argv[i]);
        for (int k = 0; k < count; k++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], names[k]->d_name);
            if (names[k]->d_name[0] != '.')
                run(path);
            free(names[k]);
        }
        free(names);
    }
    FUZZ_CHECK(num_inputs > 0, "no inputs");
    printf("%d inputs\n", num_inputs);
    return 0;
}
