/* What a rank can do at most, which model FLOPs are compared with.
 *
 * The config says it, or it is measured: products of large matrices on all ranks at once, the
 * slowest rank's time, the best of several goes. Machines are shared, and one measurement may fall
 * into a busy moment. So a CPU's is checked against the processor's own figure, the multiply-adds
 * of its cores (weft_kernels_cpu_core_flops): below half of it the measurement says more about the
 * others than about the processor, and the figure itself counts; and while it is not near, single
 * products between early steps look for a quieter moment, for at most a two-hundredth of the run's
 * time. What a step achieves is a measurement too: above all others it is the peak, so that no
 * share exceeds 1. Every rank has the same numbers. */
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
    double given, measured, processor, achieved; /* 0: not, or not known */
    double cores;                                /* of the processor's figure, a rank */
    /* while it looks for a quieter moment */
    weft_comm *world; /* borrowed */
    weft_lane *lane;  /* borrowed */
    weft_dtype dtype;
    bool looks;
    void *a, *b, *c; /* pinned matrices, while it does */
    int num_goes;
    double run_us, spent_us;
} weft_peak;

const char *weft_peak_source_text(weft_peak_source source);

/* Collective over the world; `lane` is idle. A CUDA device's high-water marks start anew: what
 * measuring took is not the run's. Released in any case. */
weft_status weft_peak_find(weft_peak *peak, const weft_config *config, weft_comm *world,
                           weft_lane *lane) WEFT_CHECKED;
/* After a step that took `step_ms` on the slowest rank and achieved so many FLOP/s a rank: its
 * share of the peak, at most 1. */
double weft_peak_share(weft_peak *peak, double achieved);
/* Between steps: measures again where that is worth its time. Collective; step_ms is the same on
 * all ranks. */
weft_status weft_peak_look(weft_peak *peak, double step_ms) WEFT_CHECKED;
void weft_peak_release(weft_peak *peak);
/* What shares of the peak are, and where the peak comes from, on standard output. */
void weft_peak_print(const weft_peak *peak, double flops_per_token);

/* Takes flops and source from what is given, measured, known and achieved. */
void weft_peak_settle(weft_peak *peak);

#endif
