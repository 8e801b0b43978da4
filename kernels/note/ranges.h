/* What kernels read and write, as ranges of memory: from the arguments of a call alone. Private to
 * kernels/note. */
#ifndef WEFT_KERNELS_NOTE_RANGES_H
#define WEFT_KERNELS_NOTE_RANGES_H

#include <weft/kernels.h>

/* Note the ranges of a call on a lane whose device keeps ranges; else they do nothing. WEFT_MEMORY.
 */
#define WEFT_KERNEL_RANGES(name)                                                                   \
    weft_status weft_kernel_note_##name(weft_lane *lane, const weft_##name##_args *args)           \
        WEFT_CHECKED;
WEFT_KERNEL_LIST(WEFT_KERNEL_RANGES)
#undef WEFT_KERNEL_RANGES

#endif
