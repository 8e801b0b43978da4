#include "comm/mpi/gate.h"

typedef struct weft_gate_lane gate_lane;

bool weft_gate_is_background(weft_comm_purpose purpose)
{
    return purpose > WEFT_PURPOSE_EXPERT;
}

void weft_gate_enter(weft_gate_pass *pass, weft_gate *gate, const weft_gate_limits *limits,
                     weft_comm_purpose purpose)
{
    *pass = (weft_gate_pass){.gate = gate, .limits = limits, .purpose = purpose};
}

static weft_gate_traffic *traffic_of(weft_gate_pass *pass, weft_gate_link link)
{
    return &pass->gate->traffic[link][pass->purpose];
}

static bool is_small(const weft_gate_pass *pass, size_t bytes)
{
    return bytes <= pass->limits->small_bytes;
}

static void begin(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns)
{
    if (is_small(pass, bytes))
        return;
    weft_gate_traffic *traffic = traffic_of(pass, link);
    atomic_fetch_add(&traffic->num_pending, 1);
    atomic_store(&traffic->moved_ns, now_ns);
    pass->lanes[link].num_pending++;
}

static void end(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns)
{
    if (is_small(pass, bytes))
        return;
    weft_gate_traffic *traffic = traffic_of(pass, link);
    atomic_fetch_sub(&traffic->num_pending, 1);
    atomic_store(&traffic->moved_ns, now_ns);
    pass->lanes[link].num_pending--;
}

uint64_t weft_gate_queue(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns)
{
    begin(pass, link, bytes, now_ns);
    return pass->lanes[link].num_queued++;
}

/* What stands still, since its peers are late, needs no room. */
static bool more_urgent_moves(const weft_gate_pass *pass, weft_gate_link link, int64_t now_ns)
{
    for (int purpose = 0; purpose < (int)pass->purpose; purpose++) {
        weft_gate_traffic *traffic = &pass->gate->traffic[link][purpose];
        if (atomic_load(&traffic->num_pending) > 0 &&
            now_ns - atomic_load(&traffic->moved_ns) < pass->limits->quiet_ns)
            return true;
    }
    return false;
}

/* Whether the lane has waited that long for this one reason. */
static bool waited(gate_lane *lane, weft_gate_wait wait, int64_t bound_ns, int64_t now_ns)
{
    if (lane->wait != wait) {
        lane->wait = wait;
        lane->since_ns = now_ns;
    }
    if (now_ns - lane->since_ns < bound_ns)
        return false;
    lane->wait = WEFT_GATE_FREE;
    return true;
}

/* Each operation may have a message in flight; more where there is room. */
static bool window_is_full(const weft_gate_pass *pass, weft_gate_link link, size_t bytes)
{
    const size_t own = pass->lanes[link].bytes_in_flight;
    const size_t all = link == WEFT_GATE_BETWEEN ? atomic_load(&pass->gate->bytes_between) : own;
    return own > 0 && all + bytes > pass->limits->window_bytes[link];
}

static void count_in_flight(weft_gate_pass *pass, weft_gate_link link, size_t bytes, bool begins)
{
    size_t *own = &pass->lanes[link].bytes_in_flight;
    *own = begins ? *own + bytes : *own - bytes;
    if (link != WEFT_GATE_BETWEEN || !weft_gate_is_background(pass->purpose))
        return;
    if (begins)
        atomic_fetch_add(&pass->gate->bytes_between, bytes);
    else
        atomic_fetch_sub(&pass->gate->bytes_between, bytes);
}

static bool background_may_pass(weft_gate_pass *pass, weft_gate_link link, size_t bytes,
                                int64_t now_ns)
{
    gate_lane *lane = &pass->lanes[link];
    if (window_is_full(pass, link, bytes))
        return waited(lane, WEFT_GATE_FULL, pass->limits->stall_ns, now_ns);
    if (!more_urgent_moves(pass, link, now_ns)) {
        lane->wait = WEFT_GATE_FREE;
        lane->allowance = 0;
        return true;
    }
    if (lane->allowance == 0) {
        if (!waited(lane, WEFT_GATE_HELD, pass->limits->hold_ns, now_ns))
            return false;
        lane->allowance = pass->limits->window_bytes[link];
    }
    lane->allowance -= bytes < lane->allowance ? bytes : lane->allowance;
    return true;
}

bool weft_gate_admit(weft_gate_pass *pass, weft_gate_link link, uint64_t number, size_t bytes,
                     int64_t now_ns)
{
    gate_lane *lane = &pass->lanes[link];
    if (number != lane->num_sent)
        return false;
    if (!is_small(pass, bytes)) {
        if (weft_gate_is_background(pass->purpose) &&
            !background_may_pass(pass, link, bytes, now_ns))
            return false;
        count_in_flight(pass, link, bytes, true);
        atomic_store(&traffic_of(pass, link)->moved_ns, now_ns);
    }
    lane->num_sent++;
    return true;
}

void weft_gate_end(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns)
{
    gate_lane *lane = &pass->lanes[link];
    end(pass, link, bytes, now_ns);
    if (is_small(pass, bytes))
        return;
    count_in_flight(pass, link, bytes, false);
    if (lane->wait == WEFT_GATE_FULL)
        lane->wait = WEFT_GATE_FREE;
}

void weft_gate_only_receives(weft_gate_pass *pass)
{
    pass->only_receives = true;
}

void weft_gate_await(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns)
{
    if (!pass->only_receives)
        begin(pass, link, bytes, now_ns);
}

void weft_gate_arrive(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns)
{
    if (!pass->only_receives)
        end(pass, link, bytes, now_ns);
}

void weft_gate_leave(weft_gate_pass *pass)
{
    for (int link = 0; link < WEFT_GATE_LINKS; link++) {
        gate_lane *lane = &pass->lanes[link];
        atomic_fetch_sub(&traffic_of(pass, (weft_gate_link)link)->num_pending, lane->num_pending);
        count_in_flight(pass, (weft_gate_link)link, lane->bytes_in_flight, false);
        *lane = (gate_lane){0};
    }
}
