/* A user's own program: what it adds to the weft command. */
#ifndef WEFT_APPLICATION_H
#define WEFT_APPLICATION_H

#include <stddef.h>

#include "family.h"
#include "model.h"
#include "options.h"
#include "sample.h"
#include "sized.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every part is optional. Borrowed until weft_application_main returns. */
typedef struct weft_application {
    size_t struct_bytes;
    weft_model_function build; /* NULL: the family's, or the model that the config describes */
    /* The program's own section of the config: its name, a line for --help, its rows, and the size
     * of the struct that they fill. The library allocates and fills one such struct for each
     * config; weft_model_own_options gives it to `build`. */
    const char *section; /* NULL: none */
    const char *section_help;
    const weft_option_row *rows;
    size_t num_rows; /* at most 256 */
    size_t options_bytes;
    /* The dataset where the config sets neither data.data_path nor data.mock_data; the config then
     * sets model.vocab_size. NULL: none. */
    weft_sample_function sample;
    /* Families beside Weft's own, and before them (<weft/family.h>). */
    const weft_family *const *families;
    size_t num_families;
} weft_application;

/* Runs the command line. Returns the process' exit code (see WEFT_STATUS_LIST). */
int weft_application_main(int argc, char **argv, const weft_application *application);

/* The same for an application that has only `build`. */
int weft_main(int argc, char **argv, weft_model_function build);

#ifdef __cplusplus
}
#endif
#endif
