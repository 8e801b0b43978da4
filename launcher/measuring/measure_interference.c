/* How much slower an operation runs beside others (MPMoE §II-C). */
#include <math.h>
#include <pthread.h>

#include "core/log.h"
#include "launcher/measuring/measure_internal.h"

/* In less than a few of a scheduler's slices, who waits for his turn stands still. */
static const double least_span_us = 10e3;
enum { MAX_REPEATS = 3, MAX_ATTEMPTS = 2, NUM_COMBINATIONS = 1 << WEFT_NUM_WORK_CLASSES };

/* What a lane runs over and over to stand for its class. */
typedef struct work {
    bool there;
    weft_cost_kind kind;
    double volume;
    int num; /* operations in a span */
} work;

/* Holds the lanes back until all that they shall do is queued. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    bool is_open;
} gate;

typedef struct gate_args {
    gate *gate;
} gate_args;

static weft_status wait_at_gate(const void *args)
{
    gate *g = ((const gate_args *)args)->gate;
    pthread_mutex_lock(&g->mutex);
    while (!g->is_open)
        pthread_cond_wait(&g->opened, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return WEFT_OK;
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->mutex);
    g->is_open = true;
    pthread_cond_signal(&g->opened);
    pthread_mutex_unlock(&g->mutex);
}

/* Large enough to take a share of the span that still leaves many of them in it. *fills: they last
 * for long enough. */
static weft_status choose_volume(weft_measure_rig *rig, double span_us, work *w, bool *fills)
{
    double volumes[WEFT_CURVE_MAX_POINTS], us = 0;
    int count = weft_measure_volumes(rig, w->kind, volumes), i = 0;
    for (; i < count; i++) {
        WEFT_TRY(weft_measure_train(rig, w->kind, volumes[i], 1, 2, &us));
        if (us * 20 > span_us)
            break;
    }
    w->volume = volumes[i < count ? i : count - 1];
    double num = ceil(span_us / fmax(us, 0.1));
    w->num = num > WEFT_MEASURE_MAX_OPERATIONS ? WEFT_MEASURE_MAX_OPERATIONS : (int)num;
    *fills = *fills && w->num * us >= least_span_us;
    return WEFT_OK;
}

static weft_status queue_work(weft_measure_rig *rig, int class_, const work *w, double *start_us)
{
    weft_lane *lane = rig->lanes[class_];
    WEFT_TRY(weft_lane_wait(lane, rig->gate_passed));
    WEFT_TRY(weft_measure_stamp(lane, start_us));
    for (int i = 0; i < w->num; i++) {
        /* Copies go both ways in turn. */
        bool back = class_ == WEFT_WORK_MEM && i % 2;
        WEFT_TRY(weft_measure_submit(rig, back ? WEFT_COST_TO_DEVICE : w->kind, lane, w->volume));
        WEFT_TRY(weft_measure_stamp(lane, &rig->ends_us[class_][i]));
    }
    return WEFT_OK;
}

/* Runs the classes of the set side by side, from one start. */
static weft_status run_span(weft_measure_rig *rig, const work *works, unsigned set,
                            double start_us[WEFT_NUM_WORK_CLASSES])
{
    gate g = {.mutex = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    WEFT_TRY(weft_lane_submit(rig->gate_lane, "gate", wait_at_gate, &(gate_args){&g},
                              sizeof(gate_args)));
    weft_status status = weft_lane_record(rig->gate_lane, rig->gate_passed);
    for (int c = 0; c < WEFT_NUM_WORK_CLASSES && status == WEFT_OK; c++)
        if (set >> c & 1)
            status = queue_work(rig, c, &works[c], &start_us[c]);
    if (status == WEFT_OK)
        status = weft_comm_barrier(rig->world);
    open_gate(&g);
    weft_status passed = weft_lane_sync(rig->gate_lane); /* done with the gate, whatever failed */
    WEFT_TRY(status);
    WEFT_TRY(passed);
    for (int c = 0; c < WEFT_NUM_WORK_CLASSES; c++)
        if (set >> c & 1)
            WEFT_TRY(weft_lane_sync(rig->lanes[c]));
    return WEFT_OK;
}

/* Operations a microsecond of each class of the set while all of them ran. */
static weft_status measure_speeds(weft_measure_rig *rig, const work *works, unsigned set,
                                  double speeds[WEFT_NUM_WORK_CLASSES])
{
    double start_us[WEFT_NUM_WORK_CLASSES] = {0};
    double from_us = 0, to_us = INFINITY;
    WEFT_TRY(run_span(rig, works, set, start_us));
    for (int c = 0; c < WEFT_NUM_WORK_CLASSES; c++) {
        if (set >> c & 1) {
            from_us = fmax(from_us, start_us[c]);
            to_us = fmin(to_us, rig->ends_us[c][works[c].num - 1]);
        }
    }
    for (int c = 0; c < WEFT_NUM_WORK_CLASSES; c++) {
        if (set >> c & 1) {
            const double *ends_us = rig->ends_us[c];
            int num = works[c].num;
            double done = weft_measure_done_at(start_us[c], ends_us, num, to_us) -
                          weft_measure_done_at(start_us[c], ends_us, num, from_us);
            speeds[c] = done / fmax(to_us - from_us, 0.1);
        }
    }
    return WEFT_OK;
}

/* alpha of one repeat on this rank. */
static weft_status measure_once(weft_measure_rig *rig, const work *works, weft_interference *out)
{
    double speeds[NUM_COMBINATIONS][WEFT_NUM_WORK_CLASSES] = {{0}};
    unsigned all = 0;
    for (int c = 0; c < WEFT_NUM_WORK_CLASSES; c++)
        all |= (unsigned)works[c].there << c;
    for (unsigned set = 1; set < NUM_COMBINATIONS; set++)
        if ((set & all) == set)
            WEFT_TRY(measure_speeds(rig, works, set, speeds[set]));
    *out = weft_interference_none();
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++) {
        if (!works[y].there)
            continue;
        double alone = speeds[1u << y][y];
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            unsigned set = x == WEFT_WORK_ALL ? all : 1u << y | 1u << x;
            if (x != y && (set & all) == set && alone > 0)
                out->alpha[y][x] = speeds[set][y] / alone;
        }
    }
    return WEFT_OK;
}

/* In spans of `times` the usual length. *fills: false where operations are too short for any. */
static weft_status measure_all(weft_measure_rig *rig, int times, bool *fills,
                               weft_interference *out)
{
    bool between = rig->num_nodes > 1;
    double span_us = times * fmax(fmin(rig->options.seconds * 1e6 / 8, 1e6), 2 * least_span_us);
    work works[WEFT_NUM_WORK_CLASSES] = {
        [WEFT_WORK_COMP] = {.there = true, .kind = WEFT_COST_GEMM_FP32},
        [WEFT_WORK_COMM] = {.there = between || rig->ranks_per_node > 1,
                            .kind = between ? WEFT_COST_ALL_TO_ALL : WEFT_COST_ALL_TO_ALL_INSIDE},
        [WEFT_WORK_MEM] = {.there = true, .kind = WEFT_COST_TO_HOST},
    };
    weft_interference each[MAX_REPEATS], mean = weft_interference_none();
    for (int c = 0; c < WEFT_NUM_WORK_CLASSES; c++)
        if (works[c].there)
            WEFT_TRY(choose_volume(rig, span_us, &works[c], fills));
    if (!*fills)
        return WEFT_OK;
    for (int i = 0; i < MAX_REPEATS; i++)
        WEFT_TRY(measure_once(rig, works, &each[i]));
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++) {
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double values[MAX_REPEATS];
            for (int i = 0; i < MAX_REPEATS; i++)
                values[i] = each[i].alpha[y][x];
            mean.alpha[y][x] = weft_measure_typical_us(values, MAX_REPEATS);
        }
    }
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, mean.alpha, sizeof mean.alpha / sizeof(double),
                                       WEFT_F64, WEFT_REDUCE_SUM));
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double alpha = mean.alpha[y][x] / weft_comm_size(rig->world);
            out->alpha[y][x] = fmin(round(alpha * 1000) / 1000, 1); /* more is noise */
        }
    return WEFT_OK;
}

weft_status weft_measure_interference(weft_measure_rig *rig, weft_interference *out)
{
    const bool speaks = rig->options.report_progress && weft_comm_rank(rig->world) == 0;
    int y = 0, x = 0;
    bool fills = true;
    /* All ranks have the same numbers. */
    for (int attempt = 0; fills && attempt < MAX_ATTEMPTS; attempt++) {
        WEFT_TRY(measure_all(rig, 1 + attempt, &fills, out));
        if (fills && !weft_interference_fault(out, &y, &x))
            return WEFT_OK;
        if (speaks && fills && attempt + 1 < MAX_ATTEMPTS)
            weft_log(WEFT_LOG_INFO, "attempt %d of %d was disturbed: once more, for longer",
                     attempt + 1, MAX_ATTEMPTS);
    }
    if (speaks && !fills)
        weft_log(WEFT_LOG_INFO, "interference is left out: operations this small are too short to "
                                "run beside each other; a larger --max-bytes, without --quick, "
                                "measures it");
    else if (speaks)
        weft_log(
            WEFT_LOG_WARN,
            "interference is left out, as if there were none: %s kept %.2g of its speed beside "
            "%s, where sharing leaves %.2g or more; measure again on idle cores",
            weft_work_class_text(y), out->alpha[y][x], weft_work_class_text(x),
            weft_interference_least(x));
    *out = weft_interference_none();
    return WEFT_OK;
}
