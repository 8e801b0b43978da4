#include "schedule/moe/choose.h"

#include <assert.h>
#include <math.h>

static double max(double a, double b)
{
    return a > b ? a : b;
}

weft_paradigm weft_moe_paradigm(weft_reuse reuse, bool backward)
{
    if (reuse == WEFT_REUSE_NONE || reuse == WEFT_REUSE_S4)
        return WEFT_PARADIGM_1;
    return backward ? WEFT_PARADIGM_3 : WEFT_PARADIGM_2;
}

/* The work of each stream in a phase, in microseconds when it runs alone, and how much
 * communication and copying the phase's computation waits for. */
typedef struct phase {
    double comm, comp, copy;
    double comm_before, copy_before;
} phase;

/* alpha(y, x) for a stream of class y beside the others that run. */
static double speed(const weft_interference *alpha, const bool runs[WEFT_NUM_WORK_CLASSES], int y)
{
    int num_beside = 0, beside = 0;
    for (int x = 0; x < WEFT_NUM_WORK_CLASSES; x++)
        if (runs[x] && x != y) {
            num_beside++;
            beside = x;
        }
    return num_beside == 0 ? 1 : alpha->alpha[y][num_beside == 1 ? beside : (int)WEFT_WORK_ALL];
}

/* The slowest stream's time. Streams start together and slow each other while they run; each
 * stretch ends when a part of one is done. */
static double phase_us(const weft_interference *alpha, phase p)
{
    double left[WEFT_NUM_WORK_CLASSES][2] = {
        /* what computation waits for; the rest */
        [WEFT_WORK_COMP] = {0, p.comp},
        [WEFT_WORK_COMM] = {p.comm_before, p.comm - p.comm_before},
        [WEFT_WORK_MEM] = {p.copy_before, p.copy - p.copy_before}};
    for (double us = 0;;) {
        const bool waits = left[WEFT_WORK_COMM][0] > 0 || left[WEFT_WORK_MEM][0] > 0;
        bool runs[WEFT_NUM_WORK_CLASSES];
        for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
            runs[y] = (left[y][0] > 0 || left[y][1] > 0) && !(y == WEFT_WORK_COMP && waits);

        double stretch_us = INFINITY;
        double *done = NULL;
        for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++) {
            double *part = &left[y][left[y][0] > 0 ? 0 : 1];
            if (runs[y] && (!done || *part / speed(alpha, runs, y) < stretch_us)) {
                stretch_us = *part / speed(alpha, runs, y);
                done = part;
            }
        }
        if (!done)
            return us;
        us += stretch_us;
        for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
            if (runs[y])
                left[y][left[y][0] > 0 ? 0 : 1] -= stretch_us * speed(alpha, runs, y);
        *done = 0;
    }
}

/* One partition's work on each stream, in one direction. */
typedef struct stages {
    double permute, again; /* permute gathers rows; again sends rows a second time (backward) */
    double dispatch, expert, combine; /* S, C, R */
    double recompute, input, middle;  /* M: input, middle */
} stages;

static stages stages_of(const weft_moe_costs *costs, weft_reuse reuse, bool backward)
{
    const bool input = weft_reuse_offloads_input(reuse), middle = weft_reuse_offloads_middle(reuse);
    stages s = {.dispatch = costs->dispatch_us, .combine = costs->combine_us};
    if (!backward) {
        s.permute = costs->permute_us;
        s.expert = costs->expert_us;
        s.input = input ? costs->input_to_host_us : 0;
        s.middle = middle ? costs->middle_to_host_us : 0;
        return s;
    }
    s.expert = costs->expert_backward_us;
    s.input = input ? costs->input_to_device_us : 0;
    s.middle = middle ? costs->middle_to_device_us : 0;
    if (reuse == WEFT_REUSE_NONE)
        return s;
    s.recompute = middle ? 0 : costs->recompute_us;
    if (!input) {
        s.permute = costs->permute_us;
        s.again = costs->dispatch_us;
    }
    return s;
}

/* The phase with one more copy of T_M. */
static phase and_middle(phase p, double middle_us)
{
    p.copy += middle_us;
    p.copy_before += middle_us;
    return p;
}

/* The start of each phase waits for the end of the one before. For n = 3:
 *
 *   P0: P1, then S1 | P2          P0: P1, then A1 S1 | X1 P2 | I1 M1
 *   P1: S2    | C1    | I1        P1: A2 S2    | C1 X2    | I2
 *   P2: R1 S3 | P3 C2 | M1 I2     P2: R1 A3 S3 | P3 C2 X3 | M2 I3
 *   P3: R2    | C3    | M2 I3     P3: R2       | C3       | M3
 *   P4: R3            | M3        P4: R3
 *
 * Left forward, right backward; streams communication | computation | copies. P: permute, A: rows
 * sent again, X: recomputation, I and M: copies of T_DI and T_M; a strategy has some of them. In
 * backward, X2 and P3 come before the C of the next partition whose T_M and rows they make. C2
 * of forward overwrites the T_M that M1 reads, and C2 of backward reads what M2 brings. */
weft_moe_phases weft_moe_phases_of(const weft_moe_costs *costs, const weft_interference *alpha,
                                   const weft_moe_pipeline *pipeline, bool backward)
{
    const int n = pipeline->num_partitions;
    assert(n >= 1);
    const stages s = stages_of(costs, pipeline->reuse, backward);
    /* T_M has one slot, so that computation and the copy of T_M take turns. */
    const phase saturated = {.comm = s.combine + s.again + s.dispatch,
                             .comp = s.permute + s.expert + s.recompute,
                             .copy = s.input + s.middle,
                             .copy_before = s.middle};
    /* The other phases lack the work that has not begun yet or is already done. */
    phase p0 = {.comm = s.again + s.dispatch, .comp = s.recompute + (n > 1 ? s.permute : 0)};
    phase p1 = {.comm = p0.comm, .comp = s.expert + s.recompute, .copy = s.input};
    phase p3 = {.comp = s.expert};
    phase p4 = {.comm = s.combine};
    if (n > 1)
        p3.comm = s.combine;
    if (backward) {
        p0.copy = s.input + s.middle;
        if (s.recompute > 0) { /* recomputes from the first rows as soon as these arrive */
            p0.comm_before = s.again;
            p0.copy_before = s.input;
        }
    } else {
        /* The last rows' copy runs on beside R where P3 is too short for it. */
        const double room = max(s.expert, p3.comm);
        p3.copy = s.input < room ? s.input : room;
        p4.copy = s.middle + max(s.input - room, 0);
    }

    weft_moe_phases out = {.p_us = {0}};
    out.p_us[0] = s.permute + phase_us(alpha, p0);
    out.p_us[3] = phase_us(alpha, p3);
    if (n > 1) {
        out.p_us[1] = phase_us(alpha, p1);
        out.p_us[2] = (n - 2) * phase_us(alpha, saturated);
        /* n - 1 copies of T_M lie between two computations: n - 2 in P2, one in the phase that it
         * delays least. */
        const double late = phase_us(alpha, and_middle(p3, s.middle));
        const double early = phase_us(alpha, and_middle(p1, s.middle));
        if (out.p_us[1] + late <= early + out.p_us[3])
            out.p_us[3] = late;
        else
            out.p_us[1] = early;
    }
    out.p_us[4] = phase_us(alpha, p4);
    for (int i = 0; i < 5; i++)
        out.total_us += out.p_us[i];
    return out;
}
