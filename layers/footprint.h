/* The footprint: the bytes of one rank by purpose, before there is a device. A pure function of a
 * model's outline, the mesh and a rank's program. The model and the trainer reserve by it; a plan
 * says by it whether a mesh fits. */
#ifndef WEFT_LAYERS_FOOTPRINT_H
#define WEFT_LAYERS_FOOTPRINT_H

#include "layers/outline.h"
#include "schedule/program.h"

/* How a rank of the pipeline trains. */
typedef struct weft_footprint_shape {
    int rank;
    const weft_program *program; /* its step: its slots tell the micro-batches in flight and the
                                    bytes of messages */
    int num_micro_batches;       /* of the step, whose tokens and labels are held */
    int num_inputs;              /* arrays of 4 bytes a token here that are held: tokens, ... */
    size_t num_whole_inputs;     /* and a token of whole sequences: documents */
    bool deals;                  /* each micro-batch cuts its sequences in its own way */
    bool split_master;           /* where weights are bf16 */
    bool evaluates;              /* weights alone */
} weft_footprint_shape;

/* Activations of one module, of all passes. */
enum { WEFT_MAX_MODULES = 64 };
typedef struct weft_module_bytes {
    const char *module; /* static; "" where a layer gives sums alone */
    uint64_t bytes;
} weft_module_bytes;

typedef struct weft_footprint {
    uint64_t bytes[WEFT_NUM_MEMORY_PURPOSES];
    uint64_t device_bytes; /* all but the host's: staging and pinned */
    uint64_t file_bytes;   /* of the experts' file */
    int num_modules;
    weft_module_bytes modules[WEFT_MAX_MODULES]; /* they sum to the activations */
    int num_offloaded;
    weft_module_bytes offloaded[WEFT_MAX_MODULES]; /* of pinned memory what is offloaded; "input":
                                                      what layers received */
} weft_footprint;

/* Counts balanced routing, and no workspaces of lanes, which a GPU's libraries take. */
void weft_footprint_of(const weft_outline *outline, const weft_footprint_shape *shape,
                       weft_footprint *out);
/* The parts that the model reserves by. Of a pass of that chunk: what is offloaded, on the host;
 * all of its host memory; its stash. */
uint64_t weft_footprint_offloaded(const weft_outline *outline, int rank, int chunk);
uint64_t weft_footprint_host(const weft_outline *outline, int rank, int chunk);
uint64_t weft_footprint_stash(const weft_outline *outline, int rank, int chunk);
/* Of that stash one layer's, of a chunk that is the layers [first, end). */
uint64_t weft_footprint_kept(const weft_outline *outline, int layer, int first, int end);
/* Shared by all passes of the rank: the stashes of one group of recomputed layers, or of one
 * module; */
uint64_t weft_footprint_recomputed(const weft_outline *outline, int rank);
/* scratch. */
uint64_t weft_footprint_scratch(const weft_outline *outline, int rank);
/* The bytes of `offloaded`. */
uint64_t weft_footprint_on_host(const weft_footprint *footprint);
/* "weights 1.2 MB, gradients ...": those that are not 0. */
const char *weft_footprint_text(const weft_footprint *footprint, char *out, size_t capacity);

#endif
