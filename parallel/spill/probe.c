#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/probe.h"
#include "parallel/spill/spill.h"

enum { BYTES = 2 * WEFT_SPILL_ALIGN };

/* Writes a part and reads it back. */
static weft_status try_io(weft_spill *spill, unsigned char *memory)
{
    const weft_spill_transfer write = {.memory = memory, .is_write = true};
    const weft_spill_transfer read = {.memory = memory};
    for (int i = 0; i < BYTES; i++)
        memory[i] = (unsigned char)(i * 7);
    WEFT_TRY(weft_spill_run(spill, &write, 1));
    memset(memory, 0, BYTES);
    WEFT_TRY(weft_spill_run(spill, &read, 1)); /* compares hashes */
    return memory[BYTES - 1] == (unsigned char)((BYTES - 1) * 7)
               ? WEFT_OK
               : WEFT_ERROR(WEFT_FILE, "other bytes were read than written");
}

static weft_status try_file(const char *folder, weft_spill_io io, bool *out_direct)
{
    const weft_spill_options options = {
        .folder = folder,
        .num_records = 1,
        .num_parts = 1,
        .parts = {{"probe", BYTES}},
        .io = io,
    };
    weft_spill *spill = NULL;
    unsigned char *memory = aligned_alloc(WEFT_SPILL_ALIGN, BYTES);
    weft_status status = memory ? weft_spill_create(&options, &spill)
                                : WEFT_ERROR(WEFT_MEMORY, "out of host memory: a probe");
    if (status == WEFT_OK)
        status = try_io(spill, memory);
    if (status == WEFT_OK)
        *out_direct = weft_spill_is_direct(spill);
    weft_spill_destroy(spill);
    free(memory);
    return status;
}

void weft_probe_file_io(const char *folder, weft_probe *out)
{
    bool direct = false;
    char why[200] = "";
    if (try_file(folder, WEFT_SPILL_THREADS, &direct) != WEFT_OK) {
        weft_probe_say_error(out, "");
        return;
    }
    const bool by_ring = try_file(folder, WEFT_SPILL_URING, &direct) == WEFT_OK;
    if (!by_ring) {
        snprintf(why, sizeof why, "%.199s", weft_error_get()->text);
        weft_error_clear();
    }
    weft_probe_say(out, WEFT_PROBE_WORKS, by_ring ? "io_uring" : "threads", "%s%s%s",
                   direct ? "past the page cache (O_DIRECT)"
                          : "no O_DIRECT there: through the page cache",
                   by_ring ? ", by threads too" : "; ", why);
}
