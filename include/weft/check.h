/* Checking layers: what `weft check-layer` does, for a program's own tests.
 *
 *     int main(void)
 *     {
 *         weft_status status = weft_check_layers(
 *             &WEFT_ARGS(weft_check, .model = "{\"num_layers\": 1, \"hidden_size\": 16, "
 *                                             "\"num_attention_heads\": 2, \"seq_length\": 8}"),
 *             build);
 *         if (status != WEFT_OK)
 *             fprintf(stderr, "%s\n", weft_error_get()->text);
 *         return weft_status_exit_code(status);
 *     }
 *
 * The check drives each layer of the model, children too, alone on the CPU in fp32. It compares
 * gradients with central differences and describe with what a pass took; it tests what the layer
 * writes, overwrites, adds to and leaves alone, and two passes in flight. Under `mpirun -n 2` it
 * also runs the layer on two tensor-parallel ranks, with and without sequence parallelism.
 * docs/layers.md has the list. */
#ifndef WEFT_CHECK_H
#define WEFT_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#include "model.h"
#include "sized.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_check {
    size_t struct_bytes;     /* sizeof(weft_check) */
    const char *model;       /* section "model" of a config, as JSON; small sizes suffice. Keys
                                left out have a config's defaults: "{}", and NULL too, is a
                                model of GPT-2's size. vocab_size 0 is 61 here */
    const void *own_options; /* what weft_model_own_options returns; NULL: nothing */
    const char *layer; /* name ("decoder.layers.0.mlp") or kind ("mlp"), with the layers inside;
                          NULL: all */
    int64_t micro_batch_size; /* 0: 2 */
    FILE *out;                /* where rank 0 writes; NULL: stdout */
    bool json;
    bool bf16; /* also run in bf16, and compare outputs and gradients with fp32's */
} weft_check;

/* Checks each distinct layer of the model that `build` makes (NULL: the one that `model` describes)
 * and writes a line for each check: ok, WRONG with a hint, or -- where it does not apply. Under a
 * launcher it is collective and starts MPI: once a process. Errors: WEFT_CONFIG (a check found
 * something; `build` makes no model; no such layer), and what the layers' own functions return.
 * Where a layer fails while it runs on several ranks together, or ranks call different collectives,
 * this does not return: the rank that has the error writes it to stderr and ends the whole job with
 * the error's exit code, since the others may wait for it. */
weft_status weft_check_layers(const weft_check *check, weft_model_function build) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
