/* Memory of a process that other processes of its machine map too. It has no name and is gone with
 * the last of them: memfd_create, which the others open through /proc. */
#ifndef WEFT_PARALLEL_PARAMETERS_SHARED_MEMORY_H
#define WEFT_PARALLEL_PARAMETERS_SHARED_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

/* Zero is released. */
typedef struct weft_shared_memory {
    void *memory; /* begins at a page; cleared when it was made */
    size_t bytes;
    void *mapping;
    int fd; /* + 1; 0: closed */
} weft_shared_memory;

/* With which others find it. */
typedef struct weft_shared_key {
    uint64_t bytes, mark;
    int64_t pid;
    int32_t fd;
} weft_shared_key;

/* Errors: WEFT_MEMORY, with the system's words. */
weft_status weft_shared_memory_create(size_t bytes, weft_shared_memory *out,
                                      weft_shared_key *out_key) WEFT_CHECKED;
/* While its maker has it open. Errors: WEFT_MEMORY (processes that do not see each other: other
 * users', or containers'). */
weft_status weft_shared_memory_map(const weft_shared_key *key,
                                   weft_shared_memory *out) WEFT_CHECKED;
/* Nobody maps it from here on. */
void weft_shared_memory_close(weft_shared_memory *memory);
/* Others keep it. */
void weft_shared_memory_release(weft_shared_memory *memory);

#endif
