#include "parallel/parameters/look.h"

#include <stdlib.h>
#include <string.h>

#include "parallel/parameters/parameters.h"

static int compare_parts(const void *a, const void *b)
{
    const weft_look_part *x = a, *y = b;
    if (x->section != y->section)
        return x->section < y->section ? -1 : 1;
    if (x->bucket != y->bucket)
        return x->bucket < y->bucket ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static void list_parts(const weft_parameters *p, weft_look *look)
{
    for (int i = 0; i < weft_parameters_count(p); i++) {
        const weft_placed *placed = weft_parameters_at(p, i);
        const weft_bucket *buckets = weft_parameters_section(p, placed->section)->buckets;
        int bucket = placed->bucket;
        for (size_t e = 0; e < weft_placed_parts(placed); e++) {
            const size_t at = placed->offset + e * placed->parameter.expert_stride;
            while (buckets[bucket].offset + buckets[bucket].count <= at)
                bucket++;
            look->parts[look->num_parts++] =
                (weft_look_part){.parameter = i,
                                 .expert = placed->experts > 0 ? (int)e : -1,
                                 .section = (int)placed->section,
                                 .bucket = bucket,
                                 .end = at - buckets[bucket].offset + weft_placed_part(placed)};
        }
    }
    qsort(look->parts, (size_t)look->num_parts, sizeof *look->parts, compare_parts);
}

static weft_status find_first_parts(const weft_parameters *p, weft_arena *arena, weft_look *look)
{
    int part = 0;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        look->on_host[kind] = weft_parameters_on_host(p, (weft_section_kind)kind);
        const int num = weft_parameters_section(p, (weft_section_kind)kind)->num_buckets;
        WEFT_TRY(WEFT_ARRAY(arena, (size_t)num + 1, &look->first_part[kind]));
        for (int b = 0; b <= num; b++) {
            while (part < look->num_parts && look->parts[part].section == kind &&
                   look->parts[part].bucket < b)
                part++;
            look->first_part[kind][b] = part;
        }
    }
    return WEFT_OK;
}

weft_status weft_look_make(const weft_parameters *p, int host_threads, weft_arena *arena,
                           weft_look *out)
{
    size_t parts = 0;
    *out = (weft_look){.host_threads = host_threads};
    for (int i = 0; i < weft_parameters_count(p); i++)
        parts += weft_placed_parts(weft_parameters_at(p, i));
    WEFT_TRY(WEFT_ARRAY(arena, parts + 1, &out->parts));
    list_parts(p, out);
    WEFT_TRY(WEFT_ARRAY(arena, parts + 1, &out->ends));
    for (size_t i = 0; i < parts; i++)
        out->ends[i] = out->parts[i].end;
    WEFT_TRY(WEFT_ARRAY(arena, parts + 1, &out->host_found));
    memset(out->host_found, 0, (parts + 1) * sizeof *out->host_found);
    return find_first_parts(p, arena, out);
}

weft_status weft_look_start(const weft_look *look, weft_lane *lane)
{
    const size_t count = (size_t)look->num_parts;
    if (count == 0)
        return WEFT_OK;
    WEFT_TRY(weft_lane_copy(lane, look->device_ends, look->ends, count * sizeof *look->ends));
    return weft_lane_zero(lane, look->found, count * sizeof *look->found);
}

/* Of the whole model. */
static int expert_of(const weft_placed *placed, int expert)
{
    return expert < 0 ? -1 : (int)placed->box.start[0] + expert;
}

void weft_look_take(const weft_look *look, const weft_parameters *p, const int32_t *found,
                    weft_look_result *out)
{
    *out = (weft_look_result){.first_expert = -1};
    for (int i = 0; i < look->num_parts; i++) {
        const weft_look_part *part = &look->parts[i];
        const weft_placed *placed = weft_parameters_at(p, part->parameter);
        const bool is_bad = found[i] != 0 || look->host_found[i] != 0;
        look->host_found[i] = 0;
        if (!is_bad || placed->parameter.frozen)
            continue;
        out->is_beside_experts = out->is_beside_experts || !placed->parameter.spec->is_expert;
        if (out->count == 0 || part->parameter < out->first) {
            out->first = part->parameter;
            out->first_expert = expert_of(placed, part->expert);
        }
        if (out->count == 0 || part->parameter > out->last)
            out->last = part->parameter;
        out->count++;
    }
}
