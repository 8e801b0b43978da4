/* Offloading: parts of a stash lie in pinned host memory between forward and backward. Pure.
 *
 * A layer offloads the named modules' parts of its stash. With `block` a layer between the first
 * and the last offloads its whole stash, and its input if that comes from a layer of the same
 * virtual stage. While forward or backward works on these parts they lie in rings of slots that all
 * passes of a rank share (schedule/pass.h); each pass in flight has its own copy on the host. The
 * rings' bytes count as activations of module "offloaded". */
#ifndef WEFT_LAYERS_PASS_OFFLOAD_H
#define WEFT_LAYERS_PASS_OFFLOAD_H

#include "layers/pass/recompute.h"
#include "schedule/pass.h"

/* Bits of weft_shape.offload: recomputation's modules, and this one. */
#define WEFT_OFFLOAD_BLOCK (1u << WEFT_NUM_RECOMPUTE_MODULES)

/* One layer's part goes out while the next computes. Its input is written by the layer before. */
enum { WEFT_OFFLOAD_SLOTS = WEFT_PASS_OFFLOAD_SLOTS, WEFT_OFFLOAD_INPUTS = 3 };

typedef struct weft_offload_options { /* of section "train" */
    bool on;
    weft_string_list modules;
} weft_offload_options;

/* The modules as bits; 0 unless on. WEFT_CONFIG with the key: no module, an unknown or recomputed
 * one, or full recomputation. */
weft_status weft_offload_modules(const weft_offload_options *options,
                                 const weft_recompute_options *recompute,
                                 unsigned *out) WEFT_CHECKED;

/* The rings of a rank: 0 slots where nothing is offloaded. */
typedef struct weft_offload_sizes {
    int num_slots, num_inputs;
    uint64_t slot_bytes[WEFT_OFFLOAD_SLOTS]; /* of each slot: its largest part */
    uint64_t input_bytes;                    /* of an input slot */
} weft_offload_sizes;

struct weft_outline;
/* Fills the layers' fields of offloading from shape, layout and descriptions. */
void weft_outline_offload(struct weft_outline *outline);
weft_offload_sizes weft_outline_offload_sizes(const struct weft_outline *outline, int rank);
/* Bytes of the layer's part and input in host memory, per pass. */
uint64_t weft_outline_offloaded(const struct weft_outline *outline, int layer);

#endif
