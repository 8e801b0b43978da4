/* The footprint: the bytes of one rank by purpose, before there is a device. A pure function of a
 * model's outline, the mesh and a rank's program. The model and the trainer reserve by it; a plan
 * says by it whether a mesh fits. */
#ifndef WEFT_LAYERS_OUTLINE_FOOTPRINT_H
#define WEFT_LAYERS_OUTLINE_FOOTPRINT_H

#include "layers/outline/outline.h"
#include "schedule/program.h"

/* How a rank of the pipeline trains. */
typedef struct weft_footprint_shape {
    int rank;
    const weft_program *program; /* the step's program: its slots give micro-batches in flight and
                                    bytes of messages */
    int num_micro_batches;   /* micro-batches of a step, whose tokens and labels are in memory */
    int num_inputs;          /* arrays of 4 bytes a token of this rank: tokens, ... */
    size_t num_whole_inputs; /* arrays of 4 bytes a token of whole sequences: documents */
    bool deals;              /* each micro-batch has its own cut of sequences */
    bool split_master;       /* masters of bf16 weights are split */
    bool checks_state;       /* parallel/optimizer/optimizer.h */
    bool evaluates;          /* weights alone */
} weft_footprint_shape;

/* One module's activations in all passes. */
enum { WEFT_MAX_MODULES = 64 };
typedef struct weft_module_bytes {
    const char *module; /* static; "" where a layer gives sums alone */
    uint64_t bytes;
} weft_module_bytes;

typedef struct weft_footprint {
    uint64_t bytes[WEFT_NUM_MEMORY_PURPOSES];
    uint64_t device_bytes; /* without the host's, staging and pinned */
    uint64_t file_bytes;   /* bytes of the experts' file */
    int num_modules;
    weft_module_bytes modules[WEFT_MAX_MODULES]; /* they sum to the activations */
    int num_offloaded;
    weft_module_bytes offloaded[WEFT_MAX_MODULES]; /* offloaded activations, in pinned memory;
                                                      "input": layers' inputs */
} weft_footprint;

/* Assumes balanced routing; leaves out workspaces of a GPU's libraries. */
void weft_footprint_of(const weft_outline *outline, const weft_footprint_shape *shape,
                       weft_footprint *out);
/* The parts that the model reserves: for a pass of the chunk its stash; for any pass, the most of
 * the rank's chunks, its host memory and what it offloads. */
uint64_t weft_footprint_stash(const weft_outline *outline, int rank, int chunk);
uint64_t weft_footprint_host(const weft_outline *outline, int rank);
uint64_t weft_footprint_copies(const weft_outline *outline, int rank);
/* Of one slot that keeps what the weights' half of the chunk's backward needs (activations of
 * module "deferred"). */
uint64_t weft_footprint_deferred(const weft_outline *outline, int rank, int chunk);
/* Of a layer, what a whole backward's parts in a pair leave for later; there is memory for
 * WEFT_PAIR_LEAVERS layers. 0: nothing is left. */
uint64_t weft_footprint_left(const weft_outline *outline, int rank);
/* Of all such slots of a rank's program. */
uint64_t weft_footprint_all_deferred(const weft_outline *outline, int rank,
                                     const weft_program *program);
/* Shared by all passes of the rank: the stashes of one group of recomputed layers or one module;
 * with pairs twice, for forwards and for backwards. */
uint64_t weft_footprint_recomputed(const weft_outline *outline, int rank);
/* Scratch that a use takes at most. */
uint64_t weft_footprint_scratch(const weft_outline *outline, int rank, weft_scratch_use use);
/* Likewise of one layer, with what lies below it; layer -1: of all layers and, but for pairs, both
 * ways. */
uint64_t weft_footprint_scratch_of(const weft_outline *outline, int rank, weft_scratch_use use,
                                   int layer);
/* Of all uses of backwards, which share it. */
uint64_t weft_footprint_backward_scratch(const weft_outline *outline, int rank);
/* "weights 1.2 MB, gradients ...", without purposes of 0 bytes. */
const char *weft_footprint_text(const weft_footprint *footprint, char *out, size_t capacity);

/* --- by part: the shares of embedding, decoder and head --------------------------------------- */

/* The model's first layer, those between, its last: name, text */
#define WEFT_MODEL_PART_LIST(X)                                                                    \
    X(EMBEDDING, "embedding")                                                                      \
    X(DECODER, "decoder")                                                                          \
    X(HEAD, "head")
typedef enum weft_model_part {
#define WEFT_MODEL_PART_ENUM(name, text) WEFT_MODEL_PART_##name,
    WEFT_MODEL_PART_LIST(WEFT_MODEL_PART_ENUM)
#undef WEFT_MODEL_PART_ENUM
        WEFT_NUM_MODEL_PARTS
} weft_model_part;
const char *weft_model_part_text(int part); /* static */

typedef struct weft_part_bytes {
    uint64_t bytes[WEFT_NUM_MEMORY_PURPOSES]; /* four purposes; others are 0 */
} weft_part_bytes;

/* The parts of a pipeline rank's `footprint`, made by weft_footprint_of with the same program. They
 * sum to it in each of the four purposes. Padding is split by parameters; memory that layers share
 * (rings, the stash of a recomputed group) is the decoder's. */
void weft_footprint_parts(const weft_outline *outline, const weft_mesh *mesh, int rank,
                          const weft_program *program, const weft_footprint *footprint,
                          weft_part_bytes out[WEFT_NUM_MODEL_PARTS]);

#endif
