/* The largest message that is buffered: that travels before its receiver asks for it. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "core/text.h"
#include "launcher/measuring/measure_internal.h"

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

weft_status weft_measure_eager(weft_measure_rig *rig, weft_cost_kind kind, weft_cluster *cluster)
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
