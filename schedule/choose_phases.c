#include "schedule/choose.h"

#include <assert.h>

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

/* What a phase holds of each stream, in microseconds alone. T_M has one slot: the computation that
 * overwrites it and the copy of it (`middle`) take turns. */
typedef struct phase {
    double comm, comp, input, middle;
} phase;

/* alpha(y, x) for a stream of class y beside the others that have work in this phase. */
static double speed(const weft_interference *alpha, const bool busy[WEFT_NUM_WORK_CLASSES],
                    weft_work_class y)
{
    int num_beside = 0, beside = 0;
    for (int x = 0; x < WEFT_NUM_WORK_CLASSES; x++)
        if (busy[x] && x != (int)y) {
            num_beside++;
            beside = x;
        }
    return num_beside == 0 ? 1 : alpha->alpha[y][num_beside == 1 ? beside : (int)WEFT_WORK_ALL];
}

static double phase_us(const weft_interference *alpha, phase p)
{
    const bool busy[WEFT_NUM_WORK_CLASSES] = {[WEFT_WORK_COMP] = p.comp > 0,
                                              [WEFT_WORK_COMM] = p.comm > 0,
                                              [WEFT_WORK_MEM] = p.input + p.middle > 0};
    const double mem = speed(alpha, busy, WEFT_WORK_MEM);
    const double middle = p.middle / mem;
    return max(p.comm / speed(alpha, busy, WEFT_WORK_COMM),
               middle + max(p.comp / speed(alpha, busy, WEFT_WORK_COMP), p.input / mem));
}

/* What one partition asks of each stream in one direction. */
typedef struct stages {
    double permute, dispatch, expert, combine; /* S, C, R */
    double input, middle;                      /* M */
} stages;

static stages stages_of(const weft_moe_costs *costs, weft_reuse reuse, bool backward)
{
    const bool reuses = reuse != WEFT_REUSE_NONE;
    const bool offloads_input = reuses && weft_reuse_offloads_input(reuse);
    const bool offloads_middle = reuses && weft_reuse_offloads_middle(reuse);
    stages s = {
        .permute = costs->permute_us, .dispatch = costs->dispatch_us, .combine = costs->combine_us};
    if (!backward) {
        s.expert = costs->expert_us;
        s.input = offloads_input ? costs->input_to_host_us : 0;
        s.middle = offloads_middle ? costs->middle_to_host_us : 0;
        return s;
    }
    s.expert = costs->expert_backward_us;
    if (reuses && !offloads_middle)
        s.expert += costs->recompute_us;
    if (reuses && !offloads_input)
        s.dispatch += costs->dispatch_us;
    s.input = offloads_input ? costs->input_to_device_us : 0;
    s.middle = offloads_middle ? costs->middle_to_device_us : 0;
    return s;
}

/* The start of each phase waits for the end of the one before. For n = 3 (P: permute):
 *
 *   forward    P0      P1       P2           P3           P4
 *   comm       S1      S2       R1 S3        R2           R3
 *   comp    P1    P2   C1 P3    C2           C3
 *   mem                I1       M1 I2        M2 I3        M3
 *
 *   backward   P0      P1       P2           P3           P4
 *   comm    P1 S1      S2       R1 S3        R2           R3
 *   comp               C1 P3    C2           C3
 *   mem        I1 M1   I2       M2 I3        M3
 *
 * I and M are T_DI's and T_M's copies. C2 of forward overwrites the T_M that M1 reads, and C2 of
 * backward needs M2, which overwrites the T_M that C1 reads. */
weft_moe_phases weft_moe_phases_of(const weft_moe_costs *costs, const weft_interference *alpha,
                                   const weft_moe_pipeline *pipeline, bool backward)
{
    const int n = pipeline->num_partitions;
    assert(n >= 1);
    const stages s = stages_of(costs, pipeline->reuse, backward);
    const double comp = s.permute + s.expert;
    /* Nothing to restore is due in forward's first phase, nothing to keep in backward's last. */
    const phase first = {
        .comm = s.dispatch, .input = backward ? s.input : 0, .middle = backward ? s.middle : 0};
    const phase last = {.comm = s.combine, .middle = backward ? 0 : s.middle};
    weft_moe_phases out = {.p_us = {0}};
    out.p_us[0] = s.permute + phase_us(alpha, first);
    if (n == 1) {
        out.p_us[3] = phase_us(alpha, (phase){.comp = s.expert, .input = backward ? 0 : s.input});
    } else {
        out.p_us[1] = phase_us(alpha, (phase){.comm = s.dispatch, .comp = comp, .input = s.input});
        out.p_us[2] = (n - 2) * phase_us(alpha, (phase){.comm = s.combine + s.dispatch,
                                                        .comp = comp,
                                                        .input = s.input,
                                                        .middle = s.middle});
        out.p_us[3] = phase_us(alpha, (phase){.comm = s.combine,
                                              .comp = s.expert,
                                              .input = backward ? 0 : s.input,
                                              .middle = s.middle});
    }
    out.p_us[4] = phase_us(alpha, last);
    for (int i = 0; i < 5; i++)
        out.total_us += out.p_us[i];
    return out;
}
