/* Groups of the device `note`: collectives are noted (core/device/note.h), and nobody communicates.
 * They have a rank and a size without a world; operations on the host do nothing. */
#ifndef WEFT_COMM_NOTE_NOTE_H
#define WEFT_COMM_NOTE_NOTE_H

#include <weft/mesh.h>

#include "comm/comm.h"

/* Errors: WEFT_MEMORY. */
weft_status weft_comm_create_note(const char *name, weft_axis axis, int rank, int size,
                                  weft_comm **out) WEFT_CHECKED;

#endif
