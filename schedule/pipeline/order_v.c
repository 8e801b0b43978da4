#include "schedule/pipeline/order_v.h"

enum { NUM_CHUNKS = 2, BLOCK = 6 }; /* BLOCK: computes of a micro-batch on a rank */

/* A rank's order while it is written: the next micro-batch of each chunk. zbv and dualpipev fill a
 * pipeline of 2p micro-batches; with fewer, those that do not exist are left out. */
typedef struct writer {
    int p, rank, m;                                /* m: 2p or more */
    int forward[NUM_CHUNKS], gradient[NUM_CHUNKS]; /* how many so far */
    uint32_t deferred; /* where to look for the oldest input's gradient without weights' */
    int num_micro_batches;
    bool splits; /* all backwards are in two halves */
    weft_order *order;
} writer;

/* Whether the micro-batch exists. */
static bool put(writer *w, int kind, int chunk, int micro_batch)
{
    const bool exists = micro_batch < w->num_micro_batches;
    if (exists)
        w->order->computes[w->order->count++] =
            (weft_compute){micro_batch, (int16_t)chunk, (uint8_t)kind, 0};
    return exists;
}

static bool put_forward(writer *w, int chunk)
{
    return put(w, WEFT_COMPUTE_FORWARD, chunk, w->forward[chunk]++);
}

/* A whole backward or its input's half. */
static bool put_gradient(writer *w, int kind, int chunk)
{
    return put(w, kind, chunk, w->gradient[chunk]++);
}

/* The weights' gradients that wait longest, if any wait. */
static void put_weights(writer *w)
{
    const weft_compute *c = w->order->computes;
    while (w->deferred < w->order->count && c[w->deferred].kind != WEFT_COMPUTE_INPUT)
        w->deferred++;
    if (w->deferred == w->order->count)
        return;
    put(w, WEFT_COMPUTE_WEIGHT, c[w->deferred].chunk, c[w->deferred].micro_batch);
    w->deferred++;
}

static void put_halves(writer *w, int chunk)
{
    put_gradient(w, WEFT_COMPUTE_INPUT, chunk);
    put_weights(w);
}

/* A backward that is whole unless all are in two halves. */
static void put_backward(writer *w, int chunk)
{
    if (w->splits)
        put_halves(w, chunk);
    else
        put_gradient(w, WEFT_COMPUTE_BACKWARD, chunk);
}

/* A forward of the chunk beside a backward of the other one, or its input's half. */
static void put_pair(writer *w, int chunk)
{
    weft_compute *first = &w->order->computes[w->order->count];
    const bool forward = put_forward(w, chunk);
    const bool backward =
        put_gradient(w, w->splits ? WEFT_COMPUTE_INPUT : WEFT_COMPUTE_BACKWARD, 1 - chunk);
    if (forward && backward)
        first->is_paired = 1;
    if (w->splits)
        put_weights(w);
}

/* Qi et al. 2024, Zero Bubble, §6. */
static void make_zbv(writer *w)
{
    const int down = w->rank, up = w->p - w->rank;
    for (int i = 0; i < 2 * up - 1; i++)
        put_forward(w, 0);
    for (int i = 0; i < down; i++) {
        put_forward(w, 1);
        put_forward(w, 0);
    }
    for (int i = 0; i < up; i++) {
        put_forward(w, 1);
        put_halves(w, 1);
    }
    while (w->forward[1] < w->m) {
        if (w->forward[0] < w->m)
            put_forward(w, 0);
        put_halves(w, 0);
        put_forward(w, 1);
        put_halves(w, 1);
    }
    for (int i = 0; i < down; i++) {
        put_gradient(w, WEFT_COMPUTE_INPUT, 0);
        put_gradient(w, WEFT_COMPUTE_INPUT, 1);
    }
    for (int i = 0; i < up; i++)
        put_halves(w, 0);
    for (int i = 0; i < 2 * down; i++)
        put_weights(w);
}

/* DualPipe's README and PyTorch's ScheduleDualPipeV. In the second half of the last backwards the
 * weights' gradients wait, so that the first rank's input gradients come sooner. */
static void make_dualpipev(writer *w)
{
    const int down = w->rank + 1, up = w->p - w->rank - 1;
    for (int i = 0; i < 2 * up; i++)
        put_forward(w, 0);
    for (int i = 0; i < down; i++) {
        put_forward(w, 0);
        put_forward(w, 1);
    }
    for (int i = 0; i < up; i++) {
        put_halves(w, 1);
        put_forward(w, 1);
    }
    for (int i = 0; i < w->m - 2 * w->p + down; i++) {
        if (i == 0 && up == 0) { /* nothing is gained by a pair before the first gradient */
            put_forward(w, 0);
            put_backward(w, 1);
        } else {
            put_pair(w, 0);
        }
        put_pair(w, 1);
    }
    for (int i = 0; i < up; i++) {
        put_backward(w, 1);
        put_pair(w, 1);
    }
    for (int i = 0; i < 2 * down + up; i++) {
        const bool whole = i < down;
        const int chunk = i < 2 * down && i % 2 == 0;
        if (i >= 2 * down)
            put_weights(w);
        if (whole)
            put_backward(w, chunk);
        else
            put_gradient(w, WEFT_COMPUTE_INPUT, chunk);
    }
    for (int i = 0; i < down; i++)
        put_weights(w);
}

/* Qi et al. 2024, Controllable Memory, §3: when a rank has the first micro-batch's computes; each
 * later one's are BLOCK later. `lag`: how much later forwards of chunk 0 and input gradients of
 * chunk 1 are on the next rank, 2 for v_half and 1 for v_min; the others are 1 earlier there. No
 * two computes of a rank fall on the same time modulo BLOCK, and the weights' gradients take the
 * two that are left. */
static void make_block(writer *w, int lag)
{
    const int p = w->p, rank = w->rank;
    const int turn = (lag + 1) * (p - 1) + 1; /* on rank 0: the first forward of chunk 1 */
    int back = turn + 1;                      /* and the first input's gradient of chunk 1 */
    while (lag == 2 ? back % BLOCK != 3 : back % BLOCK == 0 || back % 2 != 0)
        back++;
    const weft_compute block[BLOCK] = {
        {0, 0, WEFT_COMPUTE_FORWARD, 0}, {0, 1, WEFT_COMPUTE_FORWARD, 0},
        {0, 1, WEFT_COMPUTE_INPUT, 0},   {0, 0, WEFT_COMPUTE_INPUT, 0},
        {0, 1, WEFT_COMPUTE_WEIGHT, 0},  {0, 0, WEFT_COMPUTE_WEIGHT, 0},
    };
    int at[BLOCK] = {lag * rank, turn - rank, back + lag * rank, turn + back - rank};
    bool is_taken[BLOCK] = {false};
    for (int i = 0; i < BLOCK; i++) {
        if (block[i].kind == WEFT_COMPUTE_WEIGHT)
            for (at[i] = at[i == 4 ? 2 : 3] + 1; is_taken[at[i] % BLOCK]; at[i]++)
                ;
        is_taken[at[i] % BLOCK] = true;
    }
    int done[BLOCK] = {0};
    for (int i = 0; i < BLOCK * w->num_micro_batches; i++) {
        int next = -1;
        for (int j = 0; j < BLOCK; j++)
            if (done[j] < w->num_micro_batches &&
                (next < 0 || at[j] + BLOCK * done[j] < at[next] + BLOCK * done[next]))
                next = j;
        put(w, block[next].kind, block[next].chunk, done[next]++);
    }
}

void weft_order_make_v(weft_pipeline_kind kind, const weft_order_shape *shape, int rank,
                       weft_order *order)
{
    const int p = shape->num_ranks, m = shape->num_micro_batches;
    writer w = {
        .p = p, .rank = rank, .m = m > 2 * p ? m : 2 * p, .num_micro_batches = m, .order = order};
    w.splits = kind == WEFT_PIPELINE_ZBV;
    if (w.splits && !shape->pairs)
        make_zbv(&w);
    else if (w.splits || kind == WEFT_PIPELINE_DUALPIPEV)
        make_dualpipev(&w);
    else
        make_block(&w, kind == WEFT_PIPELINE_V_HALF ? 2 : 1);
}
