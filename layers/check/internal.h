/* What the checks of layers share. */
#ifndef WEFT_LAYERS_CHECK_INTERNAL_H
#define WEFT_LAYERS_CHECK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/json_write.h"
#include "layers/check/check.h"
#include "layers/pass/pass.h"

/* --- guards -------------------------------------------------------------------------------- */

typedef struct weft_check_piece {
    const char *what;
    char *base;
    size_t bytes;
} weft_check_piece;

/* Pieces of memory between guard bytes that no layer may write. */
typedef struct weft_check_guards {
    weft_check_piece *pieces;
    int count, fill; /* fill: the byte that new pieces hold */
    size_t capacity;
} weft_check_guards;

/* --- a place ------------------------------------------------------------------------------- */

/* A model on a mesh, with rows for two micro-batches, all in CPU memory. */
typedef struct weft_check_place {
    const char *mesh; /* "tp=2,sp=1" */
    weft_dtype dtype;
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_model *model;
    size_t rows_full, rows, first_row, hidden;
    int32_t *tokens; /* [2][S * B], then as many labels */
    weft_tensor x[2], y[2], dy[2], dx[2];
    weft_check_guards given, stash[2], scratch; /* given: rows and gradients */
    double beyond;        /* the last write beyond (weft_check_beyond_text); 0: none */
    bool late;            /* x and dy arrive on the lane, and are NaN until then */
    void *arriving;       /* their later values */
    atomic_bool returned; /* whether the layer's function has returned */
} weft_check_place;

/* "forward writes beyond y". */
void weft_check_beyond_text(double beyond, char out[96]);

weft_status weft_check_place_create(weft_check_place *place, weft_comm *comm,
                                    const weft_check_setup *setup, const char *mesh,
                                    weft_dtype dtype, weft_model_function build) WEFT_CHECKED;
void weft_check_place_release(weft_check_place *place);

enum { WEFT_CHECK_MAX_PARAMETERS = 64 };

/* --- a layer there ------------------------------------------------------------------------- */

typedef struct weft_check_layer {
    weft_check_place *place;
    weft_layer *layer;
    bool reads_rows, gives_rows; /* false: the model's first layer (reads), last layer (gives) */
    bool in_list;                /* else a child */
    weft_parameter *parameters[WEFT_CHECK_MAX_PARAMETERS]; /* the layer's and its children's */
    bool declared[WEFT_CHECK_MAX_PARAMETERS];              /* false: an earlier layer declared it */
    int num_parameters;
} weft_check_layer;

/* Member `index` of the place's model. WEFT_CONFIG: too many parameters. */
weft_status weft_check_layer_of(weft_check_place *place, int index,
                                weft_check_layer *out) WEFT_CHECKED;

/* What a layer's memory holds before a pass. */
typedef enum weft_check_memory { WEFT_CHECK_ZEROED, WEFT_CHECK_POISONED } weft_check_memory;

/* Poisons y, sets the pass's memory as `memory` says, and runs the forward of micro-batch `batch`
 * in slot `slot`. */
weft_status weft_check_forward(const weft_check_layer *l, int slot, int batch, bool overwrite,
                               weft_check_memory memory) WEFT_CHECKED;
/* Runs the backward of the slot's micro-batch, after poisoning dx, y and scratch: other layers may
 * have changed y and scratch by then. */
weft_status weft_check_backward(const weft_check_layer *l, int slot) WEFT_CHECKED;
/* The loss of the slot's last forward: dy . y plus the layer's own loss. */
double weft_check_loss(const weft_check_layer *l, int slot);
/* Sets every element of the gradients of the layer's parameters to `value`. */
void weft_check_fill_gradients(const weft_check_layer *l, float value);

/* The results of a layer's pass, in fp32: this rank's part. */
typedef struct weft_check_result {
    float *y, *dx;
    float *gradients[WEFT_CHECK_MAX_PARAMETERS];
    const char *names[WEFT_CHECK_MAX_PARAMETERS]; /* of the parameters; borrowed of the place */
    double loss;                                  /* the layer's own loss */
    weft_metric metrics[WEFT_MAX_METRICS];        /* what the pass added to them */
    int num_metrics;                              /* 0: another pass was in flight */
    size_t count;                                 /* elements of y and dx */
    bool is_whole; /* every element was written; x and dy did not change */
} weft_check_result;
/* Copies the last forward's results, then its backward's, then what both added to metrics. */
weft_status weft_check_result_forward(const weft_check_layer *l, int slot,
                                      weft_check_result *out) WEFT_CHECKED;
weft_status weft_check_result_backward(const weft_check_layer *l, int slot,
                                       weft_check_result *out) WEFT_CHECKED;
void weft_check_result_metrics(const weft_check_layer *l, weft_check_result *out);
/* What a step's line would have of a metric: NaN for a mean of nothing. */
double weft_check_metric(const weft_check_layer *l, const weft_check_result *result, int metric);
void weft_check_result_release(weft_check_result *result);
/* An element of an fp32 or bf16 tensor. */
float weft_check_number(const weft_tensor *t, size_t i);

/* A parameter's name within the layer: "w1" of "decoder.layers.0.mlp.w1". */
const char *weft_check_parameter_name(const weft_check_layer *l, const weft_parameter *parameter);

/* --- verdicts ------------------------------------------------------------------------------ */

typedef enum weft_check_verdict {
    WEFT_CHECK_OK,
    WEFT_CHECK_WRONG,
    WEFT_CHECK_LEFT_OUT
} weft_check_verdict;

typedef struct weft_check_report {
    pthread_mutex_t lock;
    FILE *out; /* NULL: this rank says nothing */
    bool json;
    weft_json_out writer;
    int num_layers, num_wrong, num_in_all;
    int wrong_before, checks_before; /* this layer */
    const char *kind;                /* of this layer */
    char notes[4][256];              /* checks that are left out for every layer */
    int num_notes;
} weft_check_report;

void weft_check_report_layer(weft_check_report *report, const weft_check_layer *l, int num_alike);
void weft_check_report_add(weft_check_report *report, weft_check_verdict verdict, const char *check,
                           const char *format, ...) WEFT_PRINTF(4, 5);
void weft_check_report_note(weft_check_report *report, const char *format, ...) WEFT_PRINTF(2, 3);
void weft_check_report_end(weft_check_report *report);
/* Ends a report that an error cuts short: its JSON is one whole object, with the error. Later calls
 * write nothing. Any thread. */
void weft_check_report_fail(weft_check_report *report, const char *error);
/* Checks what the layer writes, keeps, overwrites, adds to and repeats. *out: the first
 * micro-batch's results; the caller releases them. */
weft_status weft_check_alone(const weft_check_layer *l, weft_check_report *report,
                             weft_check_result *out) WEFT_CHECKED;
/* Compares the result's gradients with central differences of the layer's forward, on one rank. */
weft_status weft_check_gradients(const weft_check_layer *l, const weft_check_result *result,
                                 weft_check_report *report) WEFT_CHECKED;
/* Compares the layer's description with what a pass uses. Collective over the place's mesh. */
weft_status weft_check_describe(const weft_check_layer *l, weft_check_report *report) WEFT_CHECKED;
/* Compares the layer's results at its place with `wanted`, its results on one rank in fp32.
 * Collective over the place's mesh. */
weft_status weft_check_elsewhere(const weft_check_layer *l, const weft_check_result *wanted,
                                 weft_check_report *report) WEFT_CHECKED;
/* Whether the model's member is the layer or inside it, and chooses experts. */
bool weft_check_routes(const weft_check_layer *l, int member);
/* Whether the layer is an MoE layer or holds one. */
bool weft_check_has_experts(const weft_check_layer *l);

#endif
