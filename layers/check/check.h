/* The checks of layers (weft_check_layers, weft check-layer).
 *
 * The check drives every layer of a model alone, children too: the model has memory and mesh, the
 * check makes rows and their gradient. The first place is one rank in fp32; the check compares the
 * results of other places with it. */
#ifndef WEFT_LAYERS_CHECK_CHECK_H
#define WEFT_LAYERS_CHECK_CHECK_H

#include <stdio.h>

#include "comm/comm.h"
#include "layers/model/model.h"

enum { WEFT_CHECK_VOCAB = 61 }; /* if options have none; odd, so that TP pads it */

typedef struct weft_check_setup {
    const weft_model_options *options; /* resolved */
    const void *own_options;
    int64_t micro_batch_size;
    weft_expert_binding binding;
    weft_dtype dtype;  /* the dtype to check besides fp32 */
    const char *layer; /* name or kind of the layers to check; NULL: all */
    bool json;
    FILE *out; /* rank 0 writes */
} weft_check_setup;

/* Fails unless `build` makes a model: makes its outline on one rank. */
weft_status weft_check_model(const weft_check_setup *setup, weft_model_function build,
                             weft_metric_list *out_metrics) WEFT_CHECKED;
/* Checks each distinct layer of the model; with two ranks tensor parallelism too. *out_wrong: the
 * number of failed checks. Collective over world. Errors: WEFT_CONFIG (no such layer, no model),
 * and those of the layers' functions. */
weft_status weft_check_run(weft_comm *world, const weft_check_setup *setup,
                           weft_model_function build, int *out_wrong) WEFT_CHECKED;
/* The JSON of a check that this thread's error kept from beginning. */
void weft_check_could_not_begin(FILE *out);

#endif
