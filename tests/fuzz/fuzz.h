/* What the fuzz targets share. A target is a program of one kind of input: it defines
 * LLVMFuzzerTestOneInput, which libFuzzer drives (scripts/fuzz), and replay.c on the files of
 * corpus/KIND, as they are and damaged (every run of the tests). */
#ifndef WEFT_TESTS_FUZZ_FUZZ_H
#define WEFT_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_MAX_PARTS = 16 };

/* An input cut at its NUL bytes; what is behind the last part belongs to it. Each part is memory of
 * exactly its size, so that reading past its end is seen. */
typedef struct fuzz_parts {
    char *at[FUZZ_MAX_PARTS]; /* NUL-terminated; never NULL: "" behind the last */
    size_t bytes[FUZZ_MAX_PARTS];
    int count; /* that the input has */
} fuzz_parts;

/* most: parts, 1 to FUZZ_MAX_PARTS; only the last of them may have NUL bytes in it. */
void fuzz_cut(const uint8_t *data, size_t size, int most, fuzz_parts *out);
void fuzz_release(fuzz_parts *parts);

/* Ends the process as a crash does. */
#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: expected %s: ", __FILE__, __LINE__, #condition);               \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
#define FUZZ_OK(call)                                                                              \
    FUZZ_CHECK((call) == WEFT_OK, "status %d: %s", (int)weft_error_get()->status,                  \
               weft_error_get()->text)

/* A refusal: CONFIG, FILE, MEMORY or DIVERGED, never a bug, and one line that says something.
 * Clears the record. With WEFT_FUZZ_SAY in the environment the line is printed. */
void fuzz_refused(weft_status status);
extern int fuzz_num_refused; /* calls of it so far */

/* The text that `print` writes; the caller frees it. */
typedef weft_status (*fuzz_print_function)(const void *subject, FILE *out);
char *fuzz_printed(fuzz_print_function print, const void *subject);

/* A folder of this process alone, below TMPDIR or the working folder, made by the first call and
 * removed at exit. Borrowed. */
const char *fuzz_folder(void);
/* A path in it; the buffer is used again after eight calls. */
const char *fuzz_path(const char *name);
void fuzz_write(const char *path, const void *data, size_t bytes);
/* Removes all that is in a folder. */
void fuzz_empty(const char *path);

/* Choices that an input makes: a byte each, 0 behind their end. */
typedef struct fuzz_choices {
    const char *at;
    size_t bytes;
} fuzz_choices;
uint32_t fuzz_choose(fuzz_choices *choices, uint32_t bound);

#endif
