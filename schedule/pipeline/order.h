/* The order of a pipeline's compute: what each rank does in which order, and nothing else.
 * schedule/pipeline/pipeline.h derives messages, slots and waits from it. Pure.
 *
 * p ranks have v chunks each, and virtual stage s of p * v is chunk s / p of a rank, in a loop or
 * in a V (core/stage.h).
 *
 * A backward is whole or in two: the gradient of its input, and later the gradients of its weights,
 * for which no other rank waits (Qi et al. 2024, zero bubble).
 *
 *   1f1b, v = 1   (PipeDream-flush; Narayanan et al. 2021, §2.2): rank i runs p - i - 1 forwards
 *                 first, then one forward one backward; at most p - i micro-batches in flight.
 *   1f1b, v > 1   (interleaved; ibid. and Megatron-LM's schedules.py): micro-batches go through the
 *                 chunks in groups of N, all of a group through a chunk before the next one. Rank i
 *                 runs 2 (p - i - 1) + (v - 1) N forwards first. A last group smaller than p would
 *                 wait for itself (Megatron-LM refuses it): the micro-batches then form m / N
 *                 groups of sizes as equal as can be, and N is the size of the first.
 *   with pairs    (DeepSeek-AI, DualPipe, 2025; Megatron-LM's combined_1f1b) 1f1b has rank i run
 *                 2 (p - i - 1) + (v - 1) N + 1 forwards first. Then each forward makes a pair with
 *                 the backward behind it; both wait for other ranks, so that ranks that stand one
 *                 further have to be two ahead. zb_h1 likewise, with the input's half of the
 *                 backward. zbv has dualpipev's order, all backwards in two halves. v_half and
 *                 v_min have no pairs: so far apart, their ranks have as much in flight.
 *   gpipe         (Huang et al. 2019): all forwards, then all backwards, groups as above.
 *   interleaved   1f1b, v > 1, for those who want to be told if v is 1.
 *   zb_h1         (Qi et al. 2024, Zero Bubble, §2.2 and figure 2; v > 1: PyTorch's
 *                 ScheduleInterleavedZeroBubble): rank i runs p - i + (v - 1) N forwards first,
 *                 then one forward one input's gradient; the weights' gradients lag i behind.
 *   zbv           (ibid., §6): v = 2 in a V, forwards until the first gradient is back, then one
 *                 of each; no rank is idle if F = I = W. At most 2p virtual stages in flight.
 *   v_half, v_min (Qi et al. 2024, Pipeline Parallelism with Controllable Memory): v = 2 in a V. Of
 *                 every micro-batch the same block of six computes, one in six times its rank's.
 *                 How much earlier a rank is than its neighbour fixes how long stashes live: about
 *                 p, and 2p / 3, virtual stages in flight.
 *   dualpipev     (DeepSeek-AI, DualPipe, 2025; PyTorch's ScheduleDualPipeV): v = 2 in a V. A
 *                 forward of one chunk and a backward of the other stand as a pair.
 *   auto          made from costs (schedule/pipeline/order_auto.h).
 *
 * A chunk's weights' gradients come in the order of the micro-batches in every schedule, so that
 * their sums have the same bits. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_H

#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"
#include "core/stage.h"

/* name, text, whether its virtual stages lie in a V, whether backwards are in two halves */
#define WEFT_PIPELINE_LIST(X)                                                                      \
    X(1F1B, "1f1b", false, false)                                                                  \
    X(GPIPE, "gpipe", false, false)                                                                \
    X(INTERLEAVED, "interleaved", false, false)                                                    \
    X(ZB_H1, "zb_h1", false, true)                                                                 \
    X(ZBV, "zbv", true, true)                                                                      \
    X(V_HALF, "v_half", true, true)                                                                \
    X(V_MIN, "v_min", true, true)                                                                  \
    X(DUALPIPEV, "dualpipev", true, true)                                                          \
    X(AUTO, "auto", false, true)

typedef enum weft_pipeline_kind {
#define WEFT_PIPELINE_ENUM(name, text, is_v, splits) WEFT_PIPELINE_##name,
    WEFT_PIPELINE_LIST(WEFT_PIPELINE_ENUM)
#undef WEFT_PIPELINE_ENUM
        WEFT_NUM_PIPELINES
} weft_pipeline_kind;

const char *weft_pipeline_kind_text(int kind);
bool weft_pipeline_kind_is_v(int kind);
bool weft_pipeline_kind_splits(int kind);

typedef enum weft_compute_kind {
    WEFT_COMPUTE_FORWARD,
    WEFT_COMPUTE_BACKWARD, /* whole */
    WEFT_COMPUTE_INPUT,    /* the input's gradient */
    WEFT_COMPUTE_WEIGHT,   /* the weights' gradients, behind the input's */
    WEFT_NUM_COMPUTES
} weft_compute_kind;

enum { WEFT_ORDER_MAX_CHUNKS = 32767 };

typedef struct weft_compute {
    int32_t micro_batch;
    int16_t chunk;
    uint8_t kind;      /* weft_compute_kind */
    uint8_t is_paired; /* 1: it and the next one, a forward and a backward, are one pair */
} weft_compute;

typedef struct weft_order {
    weft_compute *computes;
    uint32_t count;
    const int32_t *columns; /* of a text, from 1, one a compute; NULL: it was made */
} weft_order;

typedef struct weft_order_shape {
    int num_ranks, num_chunks, num_micro_batches; /* p, v, m */
    int group_size;                               /* N: p or more; 0: p */
    bool is_v;                                    /* virtual stages lie in a V */
    bool pairs;                                   /* a pair's computes begin and end together */
} weft_order_shape;

/* Whether the compute sends a gradient on: a backward that is whole, or its input's half. */
static inline bool weft_compute_sends_gradient(int kind)
{
    return kind == WEFT_COMPUTE_BACKWARD || kind == WEFT_COMPUTE_INPUT;
}

/* F, B, I or W. */
static inline char weft_compute_letter(int kind)
{
    return "FBIW"[kind];
}

/* The order of each rank, orders [num_ranks]; of every kind but auto. Errors: WEFT_CONFIG for an
 * impossible shape, with the key where v does not fit the kind. */
weft_status weft_order_make(weft_pipeline_kind kind, const weft_order_shape *shape,
                            weft_arena *arena, weft_order *orders) WEFT_CHECKED;

/* Whether weft_order_make makes the kind of such virtual stages; below, whether there is a pipeline
 * of the shape at all. Errors: WEFT_CONFIG. */
bool weft_order_has_layout(weft_pipeline_kind kind, const weft_order_shape *shape);
weft_status weft_order_check_shape(const weft_order_shape *shape) WEFT_CHECKED;
/* Of a chunk the micro-batches' gradients of weights come in the order of those of inputs. Errors:
 * WEFT_CONFIG. */
weft_status weft_order_check_weights(const weft_order_shape *shape,
                                     const weft_order *orders) WEFT_CHECKED;
weft_status weft_order_check_layout(weft_pipeline_kind kind,
                                    const weft_order_shape *shape) WEFT_CHECKED;

/* How long computes take when an order is timed (schedule/pipeline/order_time.h). A backward takes
 * much longer than a forward: a message that is in time then is in time for shorter backwards too.
 */
int32_t weft_compute_time(int kind);

#endif
