/* Device memory that an optimizer took. */
#ifndef WEFT_TESTS_LAYERS_STATE_BYTES_H
#define WEFT_TESTS_LAYERS_STATE_BYTES_H

#include "parallel/optimizer.h"

size_t state_bytes(const weft_optimizer *optimizer); /* masters and moments */
size_t norm_bytes(const weft_optimizer *optimizer);

#endif
