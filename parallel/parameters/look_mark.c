/* Apart from look.c, which uses parameters: those of units are marked by these themselves. */
#include "kernels/host.h"
#include "kernels/note/note.h"
#include "parallel/parameters/look.h"

typedef struct host_look {
    weft_find_not_finite_args args;
    int num_threads;
} host_look;

static weft_status look_on_host(const void *raw)
{
    const host_look *h = raw;
    return weft_host_find_not_finite(&h->args, h->num_threads);
}

weft_status weft_look_at(const weft_look *look, weft_section_kind kind, int bucket, const float *x,
                         size_t count, weft_lane *lane)
{
    const int first = look->first_part[kind][bucket], end = look->first_part[kind][bucket + 1];
    const bool on_host = look->on_host[kind];
    const host_look h = {WEFT_ARGS(weft_find_not_finite_args, .count = count, .x = x,
                                   .num_parts = (size_t)(end - first),
                                   .ends = (on_host ? look->ends : look->device_ends) + first,
                                   .found = (on_host ? look->host_found : look->found) + first),
                         look->host_threads};
    if (first == end)
        return WEFT_OK;
    if (!on_host)
        return weft_find_not_finite(lane, &h.args);
    WEFT_TRY(weft_note_host_find_not_finite(lane, &h.args));
    return weft_lane_submit(lane, "a look at gradients", look_on_host, &h, sizeof h);
}
