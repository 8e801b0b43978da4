/* The lanes beside the compute lane, on which MoE layers' programs run. */
#include "layers/moe_runtime.h"

static const struct {
    int kind;
    int priority; /* as in device.h: communication's threads run before those that copy */
    const char *name;
} lane_rows[] = {
    {WEFT_LANE_EXPERT, 0, "expert"},     {WEFT_LANE_GATHER, 0, "gather"},
    {WEFT_LANE_PLACE, 1, "place"},       {WEFT_LANE_OFFLOAD, 1, "offload"},
    {WEFT_LANE_PREFETCH, 1, "prefetch"},
};
enum { NUM_LANE_ROWS = sizeof lane_rows / sizeof *lane_rows };

weft_status weft_moe_create_lanes(weft_moe_runtime *r)
{
    WEFT_TRY(weft_event_create(r->device, &r->begin));
    for (int i = 0; i < 2; i++)
        WEFT_TRY(weft_event_create(r->device, &r->exchanged[i]));
    for (int i = 0; i < NUM_LANE_ROWS; i++) {
        int kind = lane_rows[i].kind;
        WEFT_TRY(
            weft_lane_create(r->device, lane_rows[i].priority, lane_rows[i].name, &r->lanes[kind]));
        WEFT_TRY(weft_event_create(r->device, &r->ends[kind]));
    }
    return WEFT_OK;
}

static weft_status begin_lanes(weft_moe_runtime *r, weft_lane *compute)
{
    WEFT_TRY(weft_lane_record(compute, r->begin));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (r->lanes[i])
            WEFT_TRY(weft_lane_wait(r->lanes[i], r->begin));
    return WEFT_OK;
}

static weft_status end_lanes(weft_moe_runtime *r, weft_lane *compute)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (r->lanes[i]) {
            WEFT_TRY(weft_lane_record(r->lanes[i], r->ends[i]));
            WEFT_TRY(weft_lane_wait(compute, r->ends[i]));
        }
    return WEFT_OK;
}

weft_status weft_moe_runtime_enqueue(weft_moe_runtime *r, const weft_moe_plan *plan, bool backward,
                                     weft_lane *compute, bool synchronous, void *context)
{
    weft_executor *ex = &r->executor;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        ex->lanes[i] = synchronous ? compute : r->lanes[i];
    ex->lanes[WEFT_LANE_COMPUTE] = compute;
    ex->context = context;
    if (!synchronous || r->exchange_program.num_tasks > 0)
        WEFT_TRY(begin_lanes(r, compute));
    WEFT_TRY(weft_program_enqueue(&plan->programs[backward], ex));
    if (!synchronous || r->exchange_program.num_tasks > 0)
        WEFT_TRY(end_lanes(r, compute));
    return WEFT_OK;
}
