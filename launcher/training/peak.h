/* The peak of a rank, with which model FLOPs are compared.
 *
 * The config gives it, or all ranks measure at once: the slowest rank's time of products of large
 * matrices, the best of several tries. A shared machine may be busy then. So a CPU's measurement is
 * compared with the processor's figure, the multiply-adds of its cores
 * (weft_kernels_cpu_core_flops), which replaces a measurement below half of it. While the
 * measurement is not near the figure, single products between early steps try again, for at most
 * 1/200 of the run's time. A step that achieves more than all these sets the peak, so no share
 * exceeds 1. Every rank has the same numbers. */
#ifndef WEFT_LAUNCHER_TRAINING_PEAK_H
#define WEFT_LAUNCHER_TRAINING_PEAK_H

#include "comm/comm.h"
#include "launcher/planning/config.h"

typedef enum weft_peak_source {
    WEFT_PEAK_GIVEN,     /* device.peak_flops */
    WEFT_PEAK_MEASURED,  /* products of large matrices */
    WEFT_PEAK_PROCESSOR, /* multiply-adds of the cores */
    WEFT_PEAK_ACHIEVED,  /* the best step so far */
} weft_peak_source;

/* FLOP/s a rank, means over the ranks. */
typedef struct weft_peak {
    double flops;
    weft_peak_source source;
    double given, measured, processor, achieved; /* 0: none */
    double cores;                                /* cores a rank of the processor's figure */
    /* while it still measures */
    weft_comm *world; /* borrowed */
    weft_lane *lane;  /* borrowed */
    weft_dtype dtype;
    bool looks;
    void *a, *b, *c; /* pinned matrices, while it still measures */
    int num_goes;
    double run_us, spent_us;
} weft_peak;

const char *weft_peak_source_text(weft_peak_source source);

/* Collective over the world; `lane` is idle. Resets a CUDA device's high-water marks, so that a
 * run's marks exclude measuring. Release it also after an error. */
weft_status weft_peak_find(weft_peak *peak, const weft_config *config, weft_comm *world,
                           weft_lane *lane) WEFT_CHECKED;
/* The share of the peak, at most 1, of a step that achieved so many FLOP/s a rank. */
double weft_peak_share(weft_peak *peak, double achieved);
/* Between steps: measures again if worth the time. Collective; step_ms is the same on all ranks. */
weft_status weft_peak_look(weft_peak *peak, double step_ms) WEFT_CHECKED;
void weft_peak_release(weft_peak *peak);
/* Prints the peak and its source. */
void weft_peak_print(const weft_peak *peak, double flops_per_token);

/* Sets flops and source from the given, measured, known and achieved values. */
void weft_peak_settle(weft_peak *peak);

#endif
