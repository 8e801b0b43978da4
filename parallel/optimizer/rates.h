/* What a step is scaled by: fp16's loss scale, and the learning rate. Pure.
 *
 * Dynamic loss scaling for fp16 (Micikevicius et al. 2018, §3.2), with Megatron-LM's rules.
 *
 * The loss's gradient is multiplied by the scale, so that small gradients survive fp16; the
 * optimizer divides the gradients by it. A step whose gradients overflow is skipped. From
 * the `hysteresis`-th of these on each halves the scale, until `window` good steps in a row double
 * it again: the same on every rank whose steps overflow alike. */
#ifndef WEFT_PARALLEL_OPTIMIZER_RATES_H
#define WEFT_PARALLEL_OPTIMIZER_RATES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_loss_scale_options {
    double initial, min;
    int64_t window;     /* good steps until the scale is doubled */
    int64_t hysteresis; /* overflows until it is halved */
} weft_loss_scale_options;

/* All zero: no scaling (its factor is 1, and overflows are errors). */
typedef struct weft_loss_scale {
    double scale;
    int64_t good_steps;     /* since the last overflow or doubling */
    int64_t overflows_left; /* that are forgiven before the scale is halved */
    int64_t skipped_steps;  /* in all */
} weft_loss_scale;

weft_loss_scale weft_loss_scale_start(const weft_loss_scale_options *options);
static inline bool weft_loss_scale_is_on(const weft_loss_scale *s)
{
    return s->scale > 0;
}
/* The factor of the loss. */
static inline double weft_loss_scale_factor(const weft_loss_scale *s)
{
    return weft_loss_scale_is_on(s) ? s->scale : 1.0;
}
/* Counts a step. False if it overflowed and the scale cannot be lowered any more. */
bool weft_loss_scale_update(weft_loss_scale *s, const weft_loss_scale_options *options,
                            bool overflowed);

/* Learning-rate schedules: pure functions of the step. Names as Megatron's. */

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

/* The rate of step `step`, counted from 1; and of one that leads from `done` steps to `step`, where
 * some steps are parts of one. */
double weft_lr_at(const weft_lr_schedule *schedule, int64_t step);
double weft_lr_between(const weft_lr_schedule *schedule, double done, double step);

#endif
