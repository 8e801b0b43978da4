/* Whether this Weft can use the machine's GPUs: a lane of each sends a number through a function.
 */
#include <weft/device.h>

#include "launcher/verbs/measure/doctor.h"

enum { NUMBER = 20 };

static weft_status add_one(const void *args)
{
    int *number = *(int *const *)args;
    *number += 1;
    return WEFT_OK;
}

/* number: pinned; beside: on the device. */
static weft_status use(weft_lane *lane, int *number, int *beside)
{
    *number = NUMBER;
    WEFT_TRY(weft_lane_zero(lane, beside, sizeof *beside));
    WEFT_TRY(weft_lane_copy(lane, beside, number, sizeof *number));
    WEFT_TRY(weft_lane_submit(lane, "add one", add_one, &number, sizeof number));
    WEFT_TRY(weft_lane_copy(lane, number + 1, beside, sizeof *beside));
    WEFT_TRY(weft_lane_sync(lane));
    if (number[0] != NUMBER + 1 || number[1] != NUMBER)
        return WEFT_ERROR(WEFT_DEVICE, "a lane made %d and %d of %d", number[0], number[1], NUMBER);
    return WEFT_OK;
}

static weft_status try_lane(weft_device *device)
{
    enum { BYTES = 2 * sizeof(int) };
    weft_lane *lane = NULL;
    void *number = NULL, *beside = NULL;
    weft_status status = weft_lane_create(device, 0, "doctor", &lane);
    if (status == WEFT_OK)
        status = weft_device_alloc(device, WEFT_SPACE_PINNED, BYTES, "doctor", &number);
    if (status == WEFT_OK)
        status = weft_device_alloc(device, WEFT_SPACE_DEVICE, BYTES, "doctor", &beside);
    if (status == WEFT_OK)
        status = use(lane, number, beside);
    weft_lane_destroy(lane);
    weft_device_free(device, WEFT_SPACE_PINNED, number, BYTES);
    weft_device_free(device, WEFT_SPACE_DEVICE, beside, BYTES);
    return status;
}

void weft_doctor_gpu(weft_probe *out)
{
    const char *why = "";
    int count = weft_device_num_cuda(&why);
    if (count == 0) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "%s", why);
        return;
    }
    for (int i = 0; i < count; i++) {
        weft_device *device = NULL;
        weft_status status = weft_device_create_cuda(i, 0, &device);
        if (status == WEFT_OK)
            status = try_lane(device);
        weft_device_destroy(device);
        if (status != WEFT_OK) {
            weft_probe_say_error(out, "");
            return;
        }
    }
    weft_probe_say(out, WEFT_PROBE_WORKS, "", "device.kind: cuda finds %d", count);
}
