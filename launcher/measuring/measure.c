#include "launcher/measuring/measure.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weft/kernels.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/measuring/measure_internal.h"
#include "parallel/topology/topology.h"

/* --- eager messages -------------------------------------------------------------------------- */

enum { SMALLEST = 4 << 10, LARGEST = 8 << 20, REPEATS = 3, PASSES = 12 };

/* What does not come in a transfer this long is not hidden by what receiving takes beside it. */
#define CLEAR_US 1e3

static void wait_us(double us)
{
    struct timespec left = {.tv_sec = (time_t)(us * 1e-6), .tv_nsec = (long)(fmod(us, 1e6) * 1e3)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* Microseconds of a message's round trip, its answer the smallest. */
static weft_status round_trip(weft_measure_rig *rig, weft_cost_kind kind, size_t bytes,
                              double *out_us)
{
    double us[REPEATS];
    for (int i = 0; i < REPEATS; i++)
        WEFT_TRY(weft_measure_train(rig, kind, (double)bytes, 0, 1, &us[i]));
    *out_us = weft_measure_typical_us(us, REPEATS);
    return WEFT_OK;
}

/* What receiving takes that begins so long after the message was sent, of the slowest pair. */
static weft_status ask_late(weft_measure_rig *rig, weft_comm *comm, size_t bytes, double late_us,
                            double *out_us)
{
    weft_lane *lane = rig->lanes[WEFT_WORK_COMM];
    const int me = weft_comm_rank(comm), peer = me ^ 1;
    const bool has_peer = peer < weft_comm_size(comm); /* else an odd one out */
    double start_us = 0, end_us = 0;
    WEFT_TRY(weft_comm_barrier(rig->world));
    if (has_peer && me < peer) {
        WEFT_TRY(weft_send(comm, lane, peer, 0, rig->send, bytes));
    } else if (has_peer) {
        wait_us(late_us);
        WEFT_TRY(weft_measure_stamp(lane, &start_us));
        WEFT_TRY(weft_recv(comm, lane, peer, 0, rig->receive, bytes));
        WEFT_TRY(weft_measure_stamp(lane, &end_us));
    }
    WEFT_TRY(weft_lane_sync(lane));
    *out_us = end_us - start_us;
    return weft_comm_all_reduce_host(rig->world, out_us, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

/* All ranks decide alike: from times that they agreed on. */
static weft_status find_largest(weft_measure_rig *rig, weft_cost_kind kind, weft_comm *comm,
                                double *out_bytes)
{
    double smallest_us, trip_us, late_us[REPEATS];
    *out_bytes = 0;
    WEFT_TRY(round_trip(rig, kind, WEFT_MEASURE_SMALLEST, &smallest_us));
    for (size_t bytes = SMALLEST; bytes <= LARGEST && bytes <= rig->options.max_bytes; bytes *= 2) {
        WEFT_TRY(round_trip(rig, kind, bytes, &trip_us));
        for (int i = 0; i < REPEATS; i++)
            WEFT_TRY(ask_late(rig, comm, bytes, 2 * trip_us, &late_us[i]));
        const double transfer_us = trip_us - smallest_us / 2;
        if (weft_measure_typical_us(late_us, REPEATS) < transfer_us / 3)
            *out_bytes = (double)bytes;
        else if (transfer_us > CLEAR_US)
            break;
        if (2 * PASSES * trip_us > rig->options.seconds * 1e6)
            break;
    }
    return WEFT_OK;
}

/* The largest message of a kind, MESSAGE or MESSAGE_INSIDE, that has come when its receiver asks
 * late: into the cluster's figures, with its source. Nothing on a GPU. Collective over the world.
 */
static weft_status measure_eager(weft_measure_rig *rig, weft_cost_kind kind, weft_cluster *cluster)
{
    const bool inside = kind == WEFT_COST_MESSAGE_INSIDE;
    const weft_figure figure = inside ? WEFT_FIGURE_INSIDE_EAGER : WEFT_FIGURE_BETWEEN_EAGER;
    double *bytes = &cluster->hardware.figures[figure];
    if (strcmp(weft_device_name(rig->device), "cuda") == 0) /* its messages are not MPI's */
        return WEFT_OK;
    WEFT_TRY(find_largest(rig, kind, inside ? rig->inside : rig->between, bytes));
    cluster->hardware.given |= 1u << figure;
    weft_measure_say_source(cluster, weft_figure_path(figure), 0);
    if (rig->options.report_progress)
        weft_log(WEFT_LOG_INFO, "%s: up to %s before the receiver asks", weft_cost_help(kind),
                 weft_bytes_text(*bytes).text);
    return WEFT_OK;
}

/* --- curves -------------------------------------------------------------------------------- */

enum { MAX_SWEEPS = 9, MIN_SWEEPS = 3, MAX_TRAIN_OPERATIONS = 256, MIN_TRAIN_OPERATIONS = 4 };

static int clamp(double value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

static bool is_link(weft_cost_kind kind)
{
    return weft_cost_part_of(kind) == WEFT_PART_BETWEEN;
}

/* Operations in a train where one takes about us: for so long that a link's burst and the clock's
 * grain do not matter; of slow ones a few, at the least one, which follows an untimed one. */
static int train_length(const weft_measure_rig *rig, weft_cost_kind kind, double us)
{
    double long_us = rig->options.quick ? 1e3 : is_link(kind) ? 40e3 : 20e3;
    double share_us = rig->options.seconds * 1e6 * 0.04;
    int num = clamp(ceil(long_us / us), 1, MAX_TRAIN_OPERATIONS);
    bool affords = us * MIN_TRAIN_OPERATIONS * 2 * MIN_SWEEPS < share_us;
    return num < MIN_TRAIN_OPERATIONS && affords ? MIN_TRAIN_OPERATIONS : num;
}

/* Untimed operations before it: on a link as many again, which use up what it lets pass at once. */
static int num_before(weft_cost_kind kind, int length)
{
    return is_link(kind) ? length : (length + 3) / 4;
}

double weft_measure_rounded(double us)
{
    char text[32];
    snprintf(text, sizeof text, "%.5g", us);
    return strtod(text, NULL);
}

static double best_rate(const weft_curve *curve)
{
    double best = 0;
    for (int i = 0; i < curve->num_points; i++)
        best = fmax(best, curve->volume[i] / (curve->time_us[i] * 1e-6));
    return best;
}

/* What was measured of a message holds the smallest one that answers it as well. The answers go
 * the other way, against no traffic: what is taken off must not make a message beat the link. */
static void take_answers_off(weft_cost *cost)
{
    weft_curve *curve = &cost->curve;
    double smallest_us = curve->time_us[0] / 2;
    for (int i = 0; i < curve->num_points; i++) {
        double least_us = fmax(smallest_us, curve->volume[i] / cost->peak * 1e6);
        curve->time_us[i] = weft_measure_rounded(fmax(curve->time_us[i] - smallest_us, least_us));
    }
}

typedef struct sweeps {
    int num_asked; /* volumes; there is time for num_volumes of them */
    int num_volumes, length[WEFT_CURVE_MAX_POINTS];
    double volume[WEFT_CURVE_MAX_POINTS];
    double train_us[WEFT_CURVE_MAX_POINTS][MAX_SWEEPS];
} sweeps;

/* One train. */
static weft_status sweep_volume(weft_measure_rig *rig, weft_cost_kind kind, sweeps *s, int volume,
                                int sweep)
{
    int length = s->length[volume];
    double *us = &s->train_us[volume][sweep];
    WEFT_TRY(
        weft_measure_train(rig, kind, s->volume[volume], num_before(kind, length), length, us));
    *us *= length;
    return WEFT_OK;
}

/* The first sweep finds the largest volume that there is time for, and what a sweep takes. All
 * ranks decide alike: from times that they agreed on. */
static weft_status first_sweep(weft_measure_rig *rig, weft_cost_kind kind, sweeps *s,
                               double *out_us)
{
    double us = 0, sweep_us = 0, all_us = rig->options.seconds * 1e6;
    const int num = s->num_asked = weft_measure_volumes(rig, kind, s->volume);
    WEFT_TRY(weft_measure_train(rig, kind, s->volume[0], 1, 1, &us));
    for (int i = 0; i < num; i++) {
        us = fmax(us * (i < 2 ? 1 : s->volume[i] / s->volume[i - 1]), 0.1);
        if (i >= 2 && MIN_SWEEPS * (sweep_us + 2 * us) > all_us)
            break;
        s->length[i] = train_length(rig, kind, us);
        WEFT_TRY(sweep_volume(rig, kind, s, i, 0));
        us = s->train_us[i][0] / s->length[i];
        sweep_us += us * (s->length[i] + num_before(kind, s->length[i]));
        s->num_volumes = i + 1;
    }
    *out_us = sweep_us;
    return WEFT_OK;
}

/* A point's time of one operation, of `count` trains. */
static void take_point(sweeps *s, int i, int count, weft_curve *curve, double *scatter)
{
    curve->volume[i] = s->volume[i];
    curve->time_us[i] = fmax(weft_measure_typical_us(s->train_us[i], count) / s->length[i], 1e-3);
    *scatter = weft_measure_scatter(s->train_us[i], count);
}

/* Once; of both the shorter time counts. */
static weft_status measure_disturbed_again(weft_measure_rig *rig, weft_cost_kind kind, sweeps *s,
                                           int count, weft_curve *curve, double *scatter)
{
    bool again[WEFT_CURVE_MAX_POINTS];
    for (int i = 0; i < s->num_volumes; i++)
        again[i] = weft_measure_is_disturbed(curve, i);
    for (int i = 0; i < s->num_volumes; i++) {
        const double us = curve->time_us[i], before = scatter[i];
        if (!again[i])
            continue;
        for (int sweep = 0; sweep < count; sweep++)
            WEFT_TRY(sweep_volume(rig, kind, s, i, sweep));
        take_point(s, i, count, curve, &scatter[i]);
        if (curve->time_us[i] > us) {
            curve->time_us[i] = us;
            scatter[i] = before;
        }
    }
    return WEFT_OK;
}

static void tell_few_points(const weft_measure_rig *rig, weft_cost_kind kind, const sweeps *s)
{
    if (rig->options.report_progress && s->num_volumes == 2 && s->num_asked > 2 &&
        weft_comm_rank(rig->world) == 0)
        weft_log(WEFT_LOG_WARN,
                 "costs.%s: %g s were enough for 2 of %d volumes, and its curve is a line",
                 weft_cost_text(kind), rig->options.seconds, s->num_asked);
}

/* All volumes in turn, again and again: what disturbs the machine for a while then meets one train
 * of many points and not all trains of one. */
static weft_status try_curve(weft_measure_rig *rig, weft_cost_kind kind, weft_cost *out,
                             double *out_spread)
{
    sweeps s = {0};
    double sweep_us = 0, scatter[WEFT_CURVE_MAX_POINTS] = {0};
    WEFT_TRY(first_sweep(rig, kind, &s, &sweep_us));
    int count = clamp(rig->options.seconds * 1e6 / fmax(sweep_us, 1), MIN_SWEEPS,
                      rig->options.quick ? MIN_SWEEPS : MAX_SWEEPS);
    for (int sweep = 1; sweep < count; sweep++)
        for (int i = 0; i < s.num_volumes; i++)
            WEFT_TRY(sweep_volume(rig, kind, &s, i, sweep));
    weft_curve curve = {.num_points = s.num_volumes};
    for (int i = 0; i < s.num_volumes; i++)
        take_point(&s, i, count, &curve, &scatter[i]);
    WEFT_TRY(measure_disturbed_again(rig, kind, &s, count, &curve, scatter));
    *out_spread = 0;
    for (int i = 0; i < s.num_volumes; i++)
        *out_spread += scatter[i] / s.num_volumes;
    tell_few_points(rig, kind, &s);
    weft_measure_make_rise(&curve);
    for (int i = 0; i < curve.num_points; i++)
        curve.time_us[i] = weft_measure_rounded(curve.time_us[i]);
    const bool is_gemm = kind == WEFT_COST_GEMM_FP32 || kind == WEFT_COST_GEMM_BF16;
    *out = (weft_cost){curve, ceil(best_rate(&curve)), is_gemm ? (int)rig->gemm_width : 0};
    if (kind == WEFT_COST_MESSAGE || kind == WEFT_COST_MESSAGE_INSIDE)
        take_answers_off(out);
    return WEFT_OK;
}

static double last_rate(const weft_curve *curve)
{
    const int last = curve->num_points - 1;
    return last < 0 ? 0 : curve->volume[last] / (curve->time_us[last] * 1e-6);
}

/* Where the largest volume's rate is one that no hardware has, other work keeps the machine busy:
 * it is measured again. */
static weft_status measure_curve(weft_measure_rig *rig, weft_cost_kind kind, weft_cluster *cluster)
{
    enum { MAX_TRIES = 3 };
    weft_cost *cost = &cluster->costs[kind];
    double least, most, spread = 0;
    char key[48];
    weft_cost_bounds(kind, &least, &most);
    for (int i = 0; i < MAX_TRIES && last_rate(&cost->curve) < least; i++)
        WEFT_TRY(try_curve(rig, kind, cost, &spread));
    snprintf(key, sizeof key, "costs.%s", weft_cost_text(kind));
    weft_measure_say_source(cluster, key, spread);
    const double rate = last_rate(&cost->curve);
    return rate >= least
               ? WEFT_OK
               : WEFT_ERROR(
                     WEFT_CONFIG,
                     "costs.%s: %.3g %s/s in %d tries, where hardware does %.0e: other "
                     "work keeps this machine busy; measure when it rests, or leave this cost out "
                     "by --only",
                     weft_cost_text(kind), rate, weft_cost_unit(kind), MAX_TRIES, least);
}

/* How much is measured, and when it began. */
typedef struct course {
    int num, done; /* curves, and interference as one more */
    double start_us;
} course;

static course begin(const weft_measure_rig *rig)
{
    course c = {.num = !rig->options.no_interference, .start_us = weft_now_us()};
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        c.num += (rig->options.kinds & 1u << i) && weft_measure_can(rig, (weft_cost_kind)i);
    if (rig->options.report_progress)
        weft_log(WEFT_LOG_INFO, "%s, of about %.3g s each: about %s",
                 weft_count_text(c.num, "measurement").text, rig->options.seconds,
                 weft_seconds_text(c.num * rig->options.seconds).text);
    return c;
}

static void report(const weft_measure_rig *rig, weft_cost_kind kind, const weft_cost *cost,
                   const course *c)
{
    if (!rig->options.report_progress)
        return;
    if (cost->curve.num_points == 0)
        weft_log(WEFT_LOG_INFO, "%s: cannot be measured with %s of %s", weft_cost_help(kind),
                 weft_count_text(rig->num_nodes, "node").text,
                 weft_count_text(rig->ranks_per_node, "rank").text);
    else
        weft_log(WEFT_LOG_INFO,
                 "%s: %.4g us and up, at best %.4g G%s/s; %d of %d, about %.0f s left",
                 weft_cost_help(kind), cost->curve.time_us[0], cost->peak * 1e-9,
                 *weft_cost_unit(kind) == 'F' ? "FLOP" : "B", c->done, c->num,
                 (weft_now_us() - c->start_us) / 1e6 / c->done * (c->num - c->done));
}

/* --- the rig ------------------------------------------------------------------------------- */

static void resolve(const weft_measure_options *given, weft_measure_options *out)
{
    *out = *given;
    if (!out->max_bytes)
        out->max_bytes = out->quick ? (size_t)64 << 10 : (size_t)64 << 20;
    if (out->max_bytes < WEFT_MEASURE_SMALLEST)
        out->max_bytes = WEFT_MEASURE_SMALLEST;
    if (!(out->seconds > 0))
        out->seconds = out->quick ? 0.2 : 4;
    if (!out->kinds)
        out->kinds = (1u << WEFT_NUM_COSTS) - 1;
}

/* A number that this rank's node alone has, and whether all nodes have the same number of ranks. */
static weft_status find_nodes(weft_measure_rig *rig, int *node)
{
    int size = weft_comm_size(rig->world), rank = weft_comm_rank(rig->world);
    rig->ranks_per_node = rig->options.ranks_per_node;
    if (rig->ranks_per_node > 0) {
        if (size % rig->ranks_per_node)
            return WEFT_ERROR(WEFT_CONFIG, "%s cannot be divided into nodes of %d",
                              weft_count_text(size, "rank").text, rig->ranks_per_node);
        rig->num_nodes = size / rig->ranks_per_node;
        *node = rank / rig->ranks_per_node;
        return WEFT_OK;
    }
    weft_comm *shared = NULL;
    WEFT_TRY(weft_comm_split_node(rig->world, &shared));
    int64_t most[2] = {weft_comm_size(shared), -weft_comm_size(shared)};
    int64_t leads = weft_comm_rank(shared) == 0;
    *node = weft_comm_world_rank(shared, 0);
    weft_comm_destroy(shared);
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, most, 2, WEFT_I64, WEFT_REDUCE_MAX));
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, &leads, 1, WEFT_I64, WEFT_REDUCE_SUM));
    rig->num_nodes = (int)leads;
    rig->ranks_per_node = (int)most[0];
    if (most[0] != -most[1])
        return WEFT_ERROR(WEFT_CONFIG,
                          "nodes of %d and of %d ranks: the same number on each is needed",
                          (int)-most[1], (int)most[0]);
    return WEFT_OK;
}

/* The ranks of this node, and those of other nodes that come at the same place in theirs. */
static weft_status make_groups(weft_measure_rig *rig)
{
    int rank = weft_comm_rank(rig->world), node = 0, place;
    WEFT_TRY(find_nodes(rig, &node));
    weft_comm *inside = NULL;
    WEFT_TRY(weft_comm_split(rig->world, node, rank, "inside", WEFT_PURPOSE_TENSOR, &inside));
    place = weft_comm_rank(inside);
    if (rig->ranks_per_node > 1)
        rig->inside = inside;
    else
        weft_comm_destroy(inside);
    if (rig->num_nodes > 1)
        WEFT_TRY(weft_comm_split(rig->world, place, node, "between", WEFT_PURPOSE_EXPERT,
                                 &rig->between));
    return WEFT_OK;
}

static weft_status fill_random(weft_lane *lane, void *x, size_t count)
{
    return weft_random_normal(lane, &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                               .global_dims = {count}, .local_dims = {count},
                                               .seed = 1, .std = 1, .dtype = WEFT_F32, .x = x));
}

/* Wide enough that a GPU's rate does not end with the launch. */
static size_t gemm_width(const weft_measure_rig *rig)
{
    bool on_gpu = strcmp(weft_device_name(rig->device), "cuda") == 0;
    return rig->options.quick ? 128 : on_gpu ? 4096 : 1024;
}

/* AdamW on the host walks through four arrays, and together they are far more than caches hold: a
 * processor's last level may have a hundred MiB. */
static size_t host_bytes(const weft_measure_options *options)
{
    const bool steps = options->kinds & 1u << WEFT_COST_ADAMW_HOST;
    return (steps && !options->quick ? 4 : 1) * options->max_bytes;
}

static weft_status allocate(weft_measure_rig *rig)
{
    static const char what[] = "calibration";
    size_t bytes = rig->options.max_bytes, width = rig->gemm_width = gemm_width(rig);
    size_t ranks = (size_t)weft_comm_size(rig->world);
    size_t rows = rig->gemm_rows = rig->options.quick ? 256 : WEFT_MEASURE_MAX_GEMM_ROWS;
    weft_lane *lane;
    void *memory;
    for (int i = 0; i < WEFT_NUM_WORK_CLASSES; i++) {
        WEFT_TRY(weft_lane_create(rig->device, i == WEFT_WORK_COMM ? WEFT_PURPOSE_EXPERT : 0,
                                  weft_work_class_text(i), &rig->lanes[i]));
        WEFT_TRY(WEFT_ARRAY(&rig->arena, WEFT_MEASURE_MAX_OPERATIONS, &rig->ends_us[i]));
    }
    WEFT_TRY(weft_lane_create(rig->device, 0, "gate", &rig->gate_lane));
    WEFT_TRY(weft_event_create(rig->device, &rig->gate_passed));
    lane = rig->lanes[WEFT_WORK_COMM];
    if (rig->inside)
        WEFT_TRY(weft_comm_reserve(rig->inside, lane, 2 * bytes));
    if (rig->between)
        WEFT_TRY(weft_comm_reserve(rig->between, lane, 2 * bytes));
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, bytes, what, &memory));
    rig->send = memory;
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, bytes, what, &memory));
    rig->receive = memory;
    rig->host_bytes = host_bytes(&rig->options);
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_PINNED, rig->host_bytes, what, &memory));
    rig->host = memory;
    WEFT_TRY(
        weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, rows * width * 4, what, &rig->gemm_a));
    WEFT_TRY(
        weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, width * width * 4, what, &rig->gemm_b));
    WEFT_TRY(
        weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, rows * width * 4, what, &rig->gemm_c));
    WEFT_TRY(WEFT_ARRAY(&rig->arena, ranks, &rig->send_bytes));
    WEFT_TRY(WEFT_ARRAY(&rig->arena, ranks, &rig->receive_bytes));
    /* Zeros add up to zeros however often they are reduced. */
    WEFT_TRY(weft_lane_zero(lane, rig->send, bytes));
    WEFT_TRY(weft_lane_zero(lane, rig->receive, bytes));
    WEFT_TRY(weft_lane_zero(lane, rig->host, rig->host_bytes));
    WEFT_TRY(fill_random(lane, rig->gemm_a, rows * width));
    WEFT_TRY(fill_random(lane, rig->gemm_b, width * width));
    WEFT_TRY(weft_lane_zero(lane, rig->gemm_c, rows * width * 4));
    WEFT_TRY(weft_measure_storage_open(rig));
    return weft_lane_sync(lane);
}

static void release(weft_measure_rig *rig)
{
    size_t bytes = rig->options.max_bytes, width = rig->gemm_width, rows = rig->gemm_rows;
    for (int i = 0; i < WEFT_NUM_WORK_CLASSES; i++)
        weft_lane_destroy(rig->lanes[i]);
    weft_lane_destroy(rig->gate_lane);
    weft_event_destroy(rig->gate_passed);
    weft_arena_release(&rig->arena);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->send, bytes);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->receive, bytes);
    weft_device_free(rig->device, WEFT_SPACE_PINNED, rig->host, rig->host_bytes);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->gemm_a, rows * width * 4);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->gemm_b, width * width * 4);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->gemm_c, rows * width * 4);
    weft_measure_storage_close(rig);
    weft_comm_destroy(rig->inside);
    weft_comm_destroy(rig->between);
}

static int host_share(int ranks)
{
    const int share = ranks > 0 ? weft_machine_allowed_cores() / ranks : 1;
    return share < 1 ? 1 : share;
}

static weft_status name_cluster(const weft_measure_rig *rig, weft_cluster *cluster)
{
    if (rig->options.name)
        snprintf(cluster->name, sizeof cluster->name, "%s", rig->options.name);
    else if (gethostname(cluster->name, sizeof cluster->name - 1))
        cluster->name[0] = '\0';
    return weft_comm_broadcast_host(rig->world, cluster->name, sizeof cluster->name, 0);
}

static weft_status measure(weft_measure_rig *rig, weft_cluster *cluster)
{
    WEFT_TRY(name_cluster(rig, cluster));
    WEFT_TRY(weft_measure_storage_agree(rig));
    course c = begin(rig);
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        weft_cost_kind kind = (weft_cost_kind)i;
        if (!(rig->options.kinds & 1u << i))
            continue;
        if (weft_measure_can(rig, kind)) {
            WEFT_TRY(measure_curve(rig, kind, cluster));
            c.done++;
        }
        report(rig, kind, &cluster->costs[i], &c);
        if (weft_measure_can(rig, kind) &&
            (kind == WEFT_COST_MESSAGE || kind == WEFT_COST_MESSAGE_INSIDE))
            WEFT_TRY(measure_eager(rig, kind, cluster));
    }
    if (rig->options.no_interference)
        return WEFT_OK;
    if (rig->options.report_progress)
        weft_log(WEFT_LOG_INFO, "computation, communication and copies beside each other");
    return weft_measure_interference(rig, &cluster->interference);
}

weft_status weft_measure_cluster(weft_comm *world, weft_device *device,
                                 const weft_measure_options *options, weft_cluster *out)
{
    weft_measure_rig rig = {.world = world, .device = device, .storage = -1};
    weft_cluster cluster = {.interference = weft_interference_none()};
    resolve(options, &rig.options);
    weft_status status = make_groups(&rig);
    if (rig.options.host_threads < 1)
        rig.options.host_threads = host_share(rig.ranks_per_node);
    if (status == WEFT_OK)
        status = weft_comm_agree(world, allocate(&rig));
    cluster.num_nodes = rig.num_nodes;
    cluster.ranks_per_node = rig.ranks_per_node;
    if (status == WEFT_OK)
        status = measure(&rig, &cluster);
    release(&rig);
    if (status == WEFT_OK)
        *out = cluster;
    return status;
}
