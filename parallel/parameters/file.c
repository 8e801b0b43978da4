/* Experts in a file: a record a bucket. */
#include <inttypes.h>
#include <stddef.h>

#include "parallel/parameters/internal.h"

void weft_parameters_use_file(weft_parameters *p, const weft_experts_file *file)
{
    p->file = *file;
}

weft_records *weft_parameters_records(const weft_parameters *p, weft_section_kind kind)
{
    return kind == WEFT_SECTION_EXPERT ? p->records : NULL;
}

weft_status weft_parameters_take(const weft_parameters *p, weft_section_kind kind, int bucket,
                                 unsigned reads, unsigned changes, weft_lane *lane)
{
    weft_records *records = weft_parameters_records(p, kind);
    return records ? weft_records_take(records, bucket, reads, changes, lane) : WEFT_OK;
}

weft_status weft_parameters_give(const weft_parameters *p, weft_section_kind kind, int bucket,
                                 weft_lane *lane)
{
    weft_records *records = weft_parameters_records(p, kind);
    return records ? weft_records_give(records, bucket, lane) : WEFT_OK;
}

size_t weft_parameters_in_expert(const weft_parameters *p, const weft_parameter *parameter)
{
    const weft_placed *placed = /* the parameter is in one */
        (const void *)((const char *)parameter - offsetof(weft_placed, parameter));
    return placed->offset - p->sections[placed->section].buckets[placed->bucket].offset;
}

/* "layer 3, expert 17": which of the model's. */
static weft_status make_labels(weft_parameters *p, const char ***out)
{
    const weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    const char **labels;
    WEFT_TRY(WEFT_ARRAY(&p->arena, (size_t)section->num_buckets, &labels));
    for (int i = 0; i < p->count; i++) {
        const weft_placed *placed = p->placed[i];
        if (placed->section != WEFT_SECTION_EXPERT)
            continue;
        for (size_t e = 0; e < weft_placed_parts(placed); e++)
            WEFT_TRY(weft_arena_printf(&p->arena, &labels[(size_t)placed->bucket + e],
                                       "layer %d, expert %zu", placed->layer,
                                       placed->box.start[0] + e));
    }
    *out = labels;
    return WEFT_OK;
}

static weft_records_sizes sizes_of(const weft_parameters *p, bool with_grads)
{
    const weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    const size_t share = p->residency.sharding == WEFT_NO_SHARD ? 1 : (size_t)section->group_size;
    size_t most = 0;
    for (int b = 0; b < section->num_buckets; b++)
        most = section->buckets[b].count > most ? section->buckets[b].count : most;
    return weft_experts_file_sizes(&p->file, p->dtype, most, most / share, section->num_buckets,
                                   with_grads);
}

weft_records_sizes weft_experts_file_sizes(const weft_experts_file *file, weft_dtype dtype,
                                           size_t elements, size_t owned, int num_experts,
                                           bool with_grads)
{
    weft_records_sizes sizes = {.num_records = num_experts};
    sizes.part_bytes[WEFT_RECORD_WEIGHTS] = elements * weft_dtype_bytes(dtype);
    if (with_grads) {
        sizes.part_bytes[WEFT_RECORD_GRADIENT] = elements * sizeof(float);
        sizes.part_bytes[WEFT_RECORD_STATE] = owned * file->state_bytes;
    }
    weft_records_choose(&sizes, file->cached);
    return sizes;
}

static weft_status check_limit(const weft_parameters *p, const weft_records_sizes *sizes)
{
    const uint64_t bytes = weft_records_file_bytes(sizes);
    if (p->file.file_limit == 0 || bytes <= p->file.file_limit)
        return WEFT_OK;
    return WEFT_KEY_ERROR("offload.file_limit",
                          "%" PRIu64 " bytes, and a rank's %d experts take %" PRIu64,
                          p->file.file_limit, (int)sizes->num_records, bytes);
}

weft_status weft_parameters_make_records(weft_parameters *p, bool with_grads)
{
    weft_records_options options = {.sizes = sizes_of(p, with_grads),
                                    .folder = p->file.folder,
                                    .io = p->file.io,
                                    .eviction = p->file.eviction};
    const char **labels = NULL;
    WEFT_TRY(check_limit(p, &options.sizes));
    WEFT_TRY(make_labels(p, &labels));
    options.labels = labels;
    const weft_status status = weft_records_create(p->device, &options, &p->records);
    return status == WEFT_FILE ? weft_error_key(status, "offload.path") : status;
}
