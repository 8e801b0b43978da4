/* The stage layout: how a model's list of layers is cut into p * v virtual stages, stage s on
 * pipeline rank s mod p as its chunk s / p (Narayanan et al. 2021, §2.2). Pure.
 *
 * The first layer of the list is on virtual stage 0 and the last layer on the last stage. A stage
 * between may be empty, and then passes on what comes. From section "parallel":
 *
 *   pipeline_model_parallel_layout "E|(tt|)*6tL"  as written: E the first layer, t one between, L
 *                                                 the last, | the next stage, * repeats
 *   pipeline_model_parallel_layout "auto"         by the layers' work
 *   decoder_first_, decoder_last_pipeline_num_layers  so many layers between on the first and the
 *                                                 last rank, the rest evenly on the others
 *   else                                          evenly, stages in front take one more
 *
 * v is num_virtual_stages_per_pipeline_rank, follows from num_layers_per_virtual_pipeline_stage, or
 * is what the layout's text has; else 1. */
#ifndef WEFT_PARALLEL_MESH_LAYOUT_H
#define WEFT_PARALLEL_MESH_LAYOUT_H

#include "parallel/mesh/mesh.h"

enum { WEFT_MAX_STAGES = 8192 };

typedef struct weft_layout {
    int num_ranks, num_chunks;           /* p, v */
    int num_layers;                      /* of the whole list */
    uint16_t first[WEFT_MAX_STAGES + 1]; /* virtual stage s has [first[s], first[s + 1]) */
} weft_layout;

/* num_layers: of the list, the first and the last among them. work: the work of each layer,
 * [num_layers], for "auto", which makes the largest work of a stage as small as it can be; NULL: 1
 * a layer, 0 for the first and the last. Errors: WEFT_CONFIG with the key. */
weft_status weft_layout_build(const weft_parallel_options *options, int pp, int num_layers,
                              const double *work, weft_layout *out) WEFT_CHECKED;
/* p stages of one chunk, evenly: p <= num_layers - 2, or 1. */
weft_layout weft_layout_even(int pp, int num_layers);

int weft_layout_num_stages(const weft_layout *layout);
/* The layers [first, end) of a chunk. */
void weft_layout_range(const weft_layout *layout, int rank, int chunk, int *first, int *end);
/* As pipeline_model_parallel_layout has it: "E|tt|t|tL". Ends in "..." where it does not fit. */
const char *weft_layout_text(const weft_layout *layout, char *out, size_t capacity);

#endif
