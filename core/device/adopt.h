/* Host memory that no device allocated: what processes of a node share. */
#ifndef WEFT_CORE_DEVICE_ADOPT_H
#define WEFT_CORE_DEVICE_ADOPT_H

#include <weft/device.h>

/* From here on the memory is as of WEFT_SPACE_PINNED: copies run beside other work, links are
 * paced. counts: as this process' own; what another process has counted is not counted again.
 * `memory` begins at a page, stays the caller's, and outlives what the device does with it. Errors:
 * WEFT_MEMORY. */
weft_status weft_device_adopt(weft_device *device, weft_memory_purpose purpose, void *memory,
                              size_t bytes, bool counts, const char *name) WEFT_CHECKED;
/* Waits first for the device's lanes. NULL is legal. */
void weft_device_disown(weft_device *device, void *memory, size_t bytes);

#endif
