/* Links between nodes, by pairs of ranks. Of a pair the lower rank leads: it says what is exchanged
 * next, by a small message, and takes the times. */
#include <math.h>

#include "core/clock.h"
#include "core/sorted.h"
#include "launcher/measuring/nodes_internal.h"

enum {
    TAG = 7,
    MAX_PINGS = 200,
    MIN_TRAINS = 3,
    MAX_TRAINS = 63,
    SMALLEST = 64 << 10,
    MAX_COUNT = 64 /* messages of a train */
};

static const double TRAIN_US = 20e3; /* a train lasts so long at least, where messages can */

/* What the pair does next; all 0: it is done. */
typedef struct order {
    int64_t bytes, count; /* messages both ways at once; bytes 0, count 1: an answer to this one */
} order;

static weft_status exchange(weft_nodes_rig *rig, int peer, const order *o)
{
    for (int64_t i = 0; i < o->count; i++)
        WEFT_TRY(weft_send_recv(rig->world, rig->lane, peer, rig->from, (size_t)o->bytes, peer,
                                rig->to, (size_t)o->bytes, TAG));
    return weft_lane_sync(rig->lane);
}

static weft_status follow(weft_nodes_rig *rig, int peer, weft_nodes_link *out)
{
    order o = {.count = 1};
    while (o.count > 0) {
        WEFT_TRY(weft_comm_recv_host(rig->world, peer, TAG, &o, sizeof o));
        if (o.bytes > 0)
            WEFT_TRY(exchange(rig, peer, &o));
        else if (o.count > 0)
            WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, &o, sizeof o));
    }
    return weft_comm_recv_host(rig->world, peer, TAG, out, sizeof *out);
}

/* The shortest way there and back, halved: what waits for a core is no part of a link. */
static weft_status find_latency(weft_nodes_rig *rig, int peer, double seconds, double *out_us)
{
    const double start = weft_now_us();
    *out_us = INFINITY;
    for (int i = 0; i < MAX_PINGS && (i < MIN_TRAINS || weft_now_us() - start < seconds * 1e6);
         i++) {
        order o = {.count = 1};
        const double before = weft_now_us();
        WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, &o, sizeof o));
        WEFT_TRY(weft_comm_recv_host(rig->world, peer, TAG, &o, sizeof o));
        *out_us = fmin(*out_us, (weft_now_us() - before) / 2);
    }
    return WEFT_OK;
}

static weft_status time_train(weft_nodes_rig *rig, int peer, const order *o, double *out_us)
{
    const double start = weft_now_us();
    WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, o, sizeof *o));
    WEFT_TRY(exchange(rig, peer, o));
    *out_us = weft_now_us() - start;
    return WEFT_OK;
}

/* Larger messages until one takes long enough, then the same again and again: the median, since a
 * packet that is lost costs 200 ms. */
static weft_status find_rate(weft_nodes_rig *rig, int peer, double seconds, double *out)
{
    const double start = weft_now_us();
    double us[MAX_TRAINS];
    int num = 0;
    order o = {.bytes = SMALLEST, .count = 1};
    WEFT_TRY(time_train(rig, peer, &o, &us[0])); /* connects */
    WEFT_TRY(time_train(rig, peer, &o, &us[0]));
    while (us[0] < TRAIN_US && o.count < MAX_COUNT) {
        if ((size_t)o.bytes < rig->bytes)
            o.bytes = 4 * (size_t)o.bytes < rig->bytes ? 4 * o.bytes : (int64_t)rig->bytes;
        else
            o.count *= 2;
        WEFT_TRY(time_train(rig, peer, &o, &us[0]));
    }
    do {
        WEFT_TRY(time_train(rig, peer, &o, &us[num]));
    } while (++num < MAX_TRAINS && (num < MIN_TRAINS || weft_now_us() - start < seconds * 1e6));
    weft_sort(us, num);
    *out = (double)o.bytes * (double)o.count / (us[num / 2] * 1e-6);
    return WEFT_OK;
}

static weft_status lead(weft_nodes_rig *rig, int peer, double seconds, weft_nodes_link *out)
{
    const order end = {0};
    out->peer = peer;
    WEFT_TRY(find_latency(rig, peer, seconds / 4, &out->latency_us));
    WEFT_TRY(find_rate(rig, peer, seconds * 3 / 4, &out->bytes_per_s));
    WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, &end, sizeof end));
    return weft_comm_send_host(rig->world, peer, TAG, out, sizeof *out);
}

/* The rank at a place of a node; -1: none. */
static int rank_at(const weft_nodes_rig *rig, int node, int place)
{
    for (int rank = 0; node >= 0 && rank < weft_comm_size(rig->world); rank++)
        if (rig->places[rank].node == node && rig->places[rank].place == place)
            return rank;
    return -1;
}

static void keep_better(weft_nodes_link *best, const weft_nodes_link *now)
{
    if (best->bytes_per_s == 0)
        *best = *now;
    best->bytes_per_s = fmax(best->bytes_per_s, now->bytes_per_s);
    best->latency_us = fmin(best->latency_us, now->latency_us);
}

weft_status weft_nodes_measure_links(weft_nodes_rig *rig, double seconds, weft_nodes_rank *own)
{
    const int rank = weft_comm_rank(rig->world),
              num_rounds = rig->num_nodes - 1 + rig->num_nodes % 2;
    const weft_nodes_place *here = &rig->places[rank];
    for (int round = 0; round < WEFT_NODES_MAX_ROUNDS && round < num_rounds; round++) {
        const int place = round % rig->fewest;
        const int peer =
            here->place == place
                ? rank_at(rig, weft_nodes_peer(here->node, rig->num_nodes, round), place)
                : -1;
        weft_nodes_link found = {.peer = -1};
        char what[128];
        if (peer >= 0) {
            snprintf(what, sizeof what, "an exchange with rank %d (%s)", peer,
                     rig->places[peer].name);
            if (rig->options.entering)
                rig->options.entering(what);
            WEFT_TRY(rank < peer ? lead(rig, peer, seconds, &found) : follow(rig, peer, &found));
            found.peer = peer;
            keep_better(&own->links[round], &found);
        }
        if (rig->options.entering)
            rig->options.entering("links of other ranks");
        WEFT_TRY(weft_comm_barrier(rig->world));
    }
    return WEFT_OK;
}
