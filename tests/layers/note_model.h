/* A whole model on the device that runs nothing: what a rank of any mesh enqueues, with ranges. */
#ifndef WEFT_TESTS_LAYERS_NOTE_MODEL_H
#define WEFT_TESTS_LAYERS_NOTE_MODEL_H

#include "core/device/device.h"
#include "layers/pass/pass.h"

typedef struct note_case {
    const char *name, *model; /* members of section "model" */
    const char *mesh;         /* "tp=2,ep=2" */
    const char *parallel;     /* of section "parallel"; NULL: none */
    int world, rank;
    weft_dtype dtype;
    weft_moe_options moe;
    weft_recompute_options recompute;
    const char *modules; /* of recompute, or of offload; NULL: none */
    bool offloads;
    bool halves; /* backwards are in two halves */
    bool pairs;  /* a forward and the backward of the micro-batch before are one pair */
} note_case;

enum { NOTE_PASSES = 2 };
typedef struct note_model {
    weft_arena arena;
    weft_model_options options;
    weft_parallel_options parallel;
    weft_comm *world;
    weft_groups groups;
    weft_device *device;
    weft_lane *compute, *reduce;
    weft_model *model;
    bool halves, pairs;
    weft_sequence_cut cut;
    int32_t *runs;
    void *rows[2 * NOTE_PASSES]; /* between stages: what comes and goes, and tokens */
} note_model;

weft_status note_model_create(note_model *m, const note_case *c) WEFT_CHECKED;
void note_model_release(note_model *m);
/* A step: forward, forward, backward, backward, ... of that many micro-batches. */
weft_status note_model_step(note_model *m, int micro_batches) WEFT_CHECKED;

#endif
