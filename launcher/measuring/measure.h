/* Measuring what operations cost here: a weft_cluster from this machine and its links.
 *
 * Every operation runs as layers run it: on a lane, on all ranks at once, through comm/comm.h and
 * the kernels. A point of a curve is the median over several *trains*: operations back to back, so
 * that latencies add up and a shaped or buffered link shows its own rate and not its burst. The
 * time of a train is that of its slowest rank, of collectives the mean over ranks; trains that a
 * TCP retransmission held up (200 ms and more) are left out. All ranks get the same numbers. */
#ifndef WEFT_LAUNCHER_MEASURING_MEASURE_H
#define WEFT_LAUNCHER_MEASURING_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/comm.h"
#include "core/cluster/cluster.h"

/* Zero means the default of each. */
typedef struct weft_measure_options {
    size_t max_bytes;     /* largest volume of communication and copies; 64 MiB */
    double seconds;       /* a curve stops at the volume that would exceed this; 4 */
    int ranks_per_node;   /* consecutive ranks taken for a node; those that share memory */
    bool quick;           /* few and small volumes, short trains */
    bool no_interference; /* leave its factors at 1 */
    unsigned kinds;       /* bits 1 << weft_cost_kind of the curves to measure; all */
    int host_threads;     /* of AdamW on host memory; a rank's share of the cores */
    const char *name;     /* of the cluster; the host's */
    const char *storage; /* folder of the file that every rank writes and reads; none: unmeasured */
    bool report_progress; /* a log line a curve */
} weft_measure_options;

/* Measures every cost that these ranks can (between nodes: with two nodes; inside: with two ranks
 * a node), up to what size messages travel before their receivers ask (not on GPUs), and how
 * computation, communication and copies to the host slow each other down. Its communication is the
 * all-to-all between nodes, or inside with one node; with one rank its factors stay 1. A cost that
 * cannot be measured stays unknown. Each rank's memory: three times max_bytes, and three times
 * more on the host for AdamW on it. Collective over world, same options everywhere. Errors:
 * WEFT_CONFIG (nodes of different sizes), WEFT_MEMORY, WEFT_COMM; the same on all ranks where the
 * cause is not a failed operation. */
weft_status weft_measure_cluster(weft_comm *world, weft_device *device,
                                 const weft_measure_options *options,
                                 weft_cluster *out) WEFT_CHECKED;

/* The arithmetic, pure. */

/* Median of the trains' times, those left out that took over a tenth and 100 ms longer than the
 * fastest: a retransmission. num >= 1. Sorts `us`. */
double weft_measure_typical_us(double *us, int num);
/* How far the same trains lie apart: between their quartiles, as a share of the median. */
double weft_measure_scatter(double *us, int num);
/* Says of a number that it was measured, and its spread (0: not known), to two digits. */
void weft_measure_say_source(weft_cluster *cluster, const char *key, double spread);
/* Whether a point was disturbed: it took more than twice as long as the next larger one, or, the
 * last, three times what the rate of the one before says. */
bool weft_measure_is_disturbed(const weft_curve *curve, int point);
/* Makes the times of a curve, all above 0, rise with the volume: a point above three times a larger
 * one's time takes that time, which no other point has to pay for; runs that fall less are replaced
 * by their means (isotonic regression), and a run at the end, which would extend with slope 0, by a
 * line through its mean at the curve's best rate. */
void weft_measure_make_rise(weft_curve *curve);
/* How many operations a lane had done at `us`, the one in progress counted by its share of time:
 * the first starts at start_us, number i ends at end_us[i]. */
double weft_measure_done_at(double start_us, const double *end_us, int num, double us);

#endif
