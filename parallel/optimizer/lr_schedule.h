/* Learning-rate schedules: pure functions of the step. Names as Megatron's. */
#ifndef WEFT_PARALLEL_OPTIMIZER_LR_SCHEDULE_H
#define WEFT_PARALLEL_OPTIMIZER_LR_SCHEDULE_H

#include <stdint.h>

typedef enum weft_lr_decay_style {
    WEFT_LR_CONSTANT,
    WEFT_LR_LINEAR,
    WEFT_LR_COSINE,
    WEFT_LR_WSD, /* warm-up, stable, decay: linear over the last lr_wsd_decay_iters */
} weft_lr_decay_style;

typedef struct weft_lr_schedule {
    weft_lr_decay_style style;
    double lr, min_lr;
    int64_t warmup_iters; /* linear from 0: step s (from 1) has lr * s / warmup_iters */
    int64_t decay_iters;  /* steps, warm-up too, after which it is min_lr */
    int64_t wsd_decay_iters;
} weft_lr_schedule;

/* The rate of step `step`, counted from 1. */
double weft_lr_at(const weft_lr_schedule *schedule, int64_t step);

#endif
