#include "tests/layers/state_bytes.h"

#include "parallel/optimizer_internal.h"

size_t state_bytes(const weft_optimizer *optimizer)
{
    size_t bytes = 0;
    for (int kind = 0; kind < WEFT_NUM_STATES; kind++)
        bytes += optimizer->state[kind] ? optimizer->state_count * sizeof(float) : 0;
    return bytes;
}

size_t norm_bytes(const weft_optimizer *optimizer)
{
    return optimizer->device_norm.bytes;
}
