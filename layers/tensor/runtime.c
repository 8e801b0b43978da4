#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "layers/tensor/tensor.h"

struct weft_tensor_runtime {
    weft_arena arena;
    int chunks[2];
    weft_program programs[2][WEFT_NUM_CUTS]; /* by number of chunks, of which there are several */
    weft_lane *beside;                       /* what travels */
};

static weft_tensor_plan plan_at(int cut, int chunks)
{
    static const weft_tensor_plan plans[WEFT_NUM_CUTS] = {
#define ROW(name, ...) {__VA_ARGS__},
        WEFT_CUT_LIST(ROW)
#undef ROW
    };
    weft_tensor_plan plan = plans[cut];
    plan.chunks = chunks;
    return plan;
}

bool weft_tensor_plan_of(const weft_tensor_runtime *r, const weft_program *program,
                         weft_tensor_plan *out)
{
    for (int i = 0; i < 2; i++)
        for (int cut = 0; cut < WEFT_NUM_CUTS; cut++)
            if (program == &r->programs[i][cut]) {
                *out = plan_at(cut, r->chunks[i]);
                return true;
            }
    return false;
}

static weft_status make_programs(weft_tensor_runtime *r, const weft_device *device, int chunks,
                                 weft_program programs[WEFT_NUM_CUTS])
{
    for (int i = 0; i < WEFT_NUM_CUTS; i++) {
        const weft_tensor_plan plan = plan_at(i, chunks);
        WEFT_TRY(weft_program_tensor(&plan, &r->arena, &programs[i]));
        if (!weft_device_is_note(device))
            WEFT_TRY(weft_program_tensor_check(&plan, &programs[i]));
    }
    return WEFT_OK;
}

static weft_status init(weft_tensor_runtime *r, weft_device *device)
{
    for (int i = 0; i < 2; i++)
        if (r->chunks[i] > 1 && (i == 0 || r->chunks[1] != r->chunks[0]))
            WEFT_TRY(make_programs(r, device, r->chunks[i], r->programs[i]));
    return weft_lane_create(device, WEFT_PURPOSE_TENSOR, "tensor-parallel", &r->beside);
}

weft_status weft_tensor_runtime_create(weft_device *device, const int chunks[2],
                                       weft_tensor_runtime **out)
{
    weft_tensor_runtime *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for tensor-parallel products");
    memcpy(r->chunks, chunks, sizeof r->chunks);
    const weft_status status = init(r, device);
    if (status != WEFT_OK) {
        weft_tensor_runtime_destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

void weft_tensor_runtime_destroy(weft_tensor_runtime *r)
{
    if (!r)
        return;
    weft_lane_destroy(r->beside);
    weft_arena_release(&r->arena);
    free(r);
}

weft_lane *weft_tensor_runtime_lane(const weft_tensor_runtime *r)
{
    return r->beside;
}

/* In a body the lane `reduce` is that of parameters' gradients. */
weft_inside weft_tensor_inside(const weft_tensor_runtime *r, weft_cut product,
                               const weft_chunks *chunks, int place)
{
    static const uint8_t lanes[WEFT_NUM_LANES] = {[WEFT_LANE_REDUCE] = WEFT_LANE_TENSOR};
    return (weft_inside){.program = &r->programs[chunks->count != r->chunks[0]][product],
                         .lanes = lanes,
                         .place = place};
}
