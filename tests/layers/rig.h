/* One layer on a mesh, between a source that gives it rows and a sink that gives it their gradient:
 * the model and the pass are the real ones. Values are whole here: every rank knows the
 * micro-batch's [S * B, H] and compares its own rows. */
#ifndef WEFT_TESTS_LAYERS_RIG_H
#define WEFT_TESTS_LAYERS_RIG_H

#include "layers/pass/pass.h"
#include "tests/layers/harness.h"

typedef weft_layer *(*rig_create_function)(const weft_model_options *options);

typedef struct rig {
    harness h;
    size_t rows_full, rows, first_row, hidden; /* whole, held here and where they start */
    const float *x, *dy;                       /* of the running pass: whole, borrowed */
    float *y, *dx;                             /* of the last pass: [rows, hidden] */
} rig;

/* The layer under test is the model's second of three; its parameters are named
 * "decoder.layers.0.". */
weft_status rig_create(rig *r, weft_comm *world, const weft_model_options *options,
                       const char *mesh, size_t batch, weft_dtype dtype, rig_create_function layer);
void rig_release(rig *r);
const weft_layer *rig_layer(const rig *r);
void *rig_state(const rig *r);
weft_parameter *rig_parameter(const rig *r, const char *name);

/* Forward and backward of one micro-batch; fills y and dx. */
weft_status rig_pass(rig *r, const float *x, const float *dy, bool overwrite);

/* The global gradient of a parameter, summed over the mesh, and whether ranks that hold the same
 * part agree to 1e-5. Caller frees. Collective over the rig's world (pp = 1). */
double *rig_gradient(const rig *r, int index, size_t *out_count, double *out_disagreement);

/* Deterministic numbers of about normal distribution. */
void rig_random(float *out, size_t count, double std, uint64_t seed);
/* |a - b| / |b| in the 2-norm; |a| where b is zero. */
double rig_error(const float *a, const float *b, size_t count);
double rig_error_of_doubles(const double *a, const double *b, size_t count);

#endif
