/* A footprint by part: the shares of embedding, decoder and head in a rank's weights, gradients,
 * optimizer state and activations. Pure. */
#ifndef WEFT_LAYERS_OUTLINE_PARTS_H
#define WEFT_LAYERS_OUTLINE_PARTS_H

#include "layers/outline/footprint.h"

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
