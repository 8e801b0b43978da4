/* The peak of a rank, with which model FLOPs are compared.
 *
 * The config says it, or it is measured: products of large matrices on all ranks at once, the
 * slowest rank's time, the best of several goes. Machines are shared, and a measurement may fall
 * into a busy moment. So a CPU's is compared with the processor's figure, the multiply-adds of its
 * cores (weft_kernels_cpu_core_flops): below half of that, the figure counts instead. While the
 * measurement is not near the figure, single products between early steps look for a quieter
 * moment, for at most a two-hundredth of the run's time. What a step achieves counts if it is above
 * all others, so no share exceeds 1. Every rank has the same numbers. */
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

/* Collective over the world; `lane` is idle. A CUDA device's high-water marks start anew, so that
 * the run's leave out what measuring took. Release it also after an error. */
weft_status weft_peak_find(weft_peak *peak, const weft_config *config, weft_comm *world,
                           weft_lane *lane) WEFT_CHECKED;
/* After a step that achieved so many FLOP/s a rank: its share of the peak, at most 1. */
double weft_peak_share(weft_peak *peak, double achieved);
/* Between steps: measures again where that is worth its time. Collective; step_ms is the same on
 * all ranks. */
weft_status weft_peak_look(weft_peak *peak, double step_ms) WEFT_CHECKED;
void weft_peak_release(weft_peak *peak);
/* Prints what shares of the peak are and where the peak comes from. */
void weft_peak_print(const weft_peak *peak, double flops_per_token);

/* Takes flops and source from what is given, measured, known and achieved. */
void weft_peak_settle(weft_peak *peak);

#endif
