#include <stdlib.h>

#include <xxhash.h>

#include "core/file.h"
#include "parallel/checkpoint/internal.h"

const char *const weft_part_names[WEFT_NUM_PARTS] = {"model.h5", "shards.json", "config.json",
                                                     "tokenizer.json"};

static int compare_offsets(const void *a, const void *b)
{
    const weft_stored *x = *(const weft_stored *const *)a, *y = *(const weft_stored *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Takes bytes [from, to) of the file into the hash. */
static weft_status hash_range(const weft_file *file, uint64_t from, uint64_t to,
                              XXH64_state_t *state)
{
    char block[1 << 14];
    while (from < to) {
        size_t bytes = to - from < sizeof block ? (size_t)(to - from) : sizeof block;
        WEFT_TRY(weft_file_read(file, from, block, bytes));
        XXH64_update(state, block, bytes);
        from += bytes;
    }
    return WEFT_OK;
}

/* What lies outside the datasets. */
static weft_status hash_between(const weft_file *file, const weft_stored **by_offset, int count,
                                XXH64_state_t *state)
{
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        uint64_t offset = by_offset[i]->offset;
        uint64_t bytes = weft_stored_elements(by_offset[i]) * sizeof(float);
        if (offset < at || offset > file->bytes || bytes > file->bytes - offset)
            return WEFT_ERROR(WEFT_FILE, "%s: %s lies outside the file or over another dataset",
                              file->path, by_offset[i]->name);
        WEFT_TRY(hash_range(file, at, offset, state));
        at = offset + bytes;
    }
    return hash_range(file, at, file->bytes, state);
}

static weft_status hash_model(const weft_file *file, const weft_stored_list *datasets,
                              XXH64_state_t *state)
{
    const weft_stored **by_offset = calloc((size_t)datasets->count + 1, sizeof *by_offset);
    if (!by_offset)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for a hash", file->path);
    for (int i = 0; i < datasets->count; i++)
        by_offset[i] = &datasets->items[i];
    qsort(by_offset, (size_t)datasets->count, sizeof(const weft_stored *), compare_offsets);
    weft_status status = hash_between(file, by_offset, datasets->count, state);
    free(by_offset);
    return status;
}

weft_status weft_part_hash(const char *path, const weft_manifest *manifest, int part,
                           uint64_t *out_bytes, uint64_t *out_hash)
{
    weft_file file;
    WEFT_TRY(weft_file_open(path, &file));
    XXH64_state_t *state = XXH64_createState();
    weft_status status =
        state ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "%s: no memory for a hash", path);
    if (status == WEFT_OK) {
        XXH64_reset(state, 0);
        status = part == WEFT_PART_MODEL ? hash_model(&file, &manifest->datasets, state)
                                         : hash_range(&file, 0, file.bytes, state);
    }
    if (status == WEFT_OK) {
        *out_bytes = file.bytes;
        *out_hash = XXH64_digest(state);
    }
    XXH64_freeState(state);
    weft_file_close(&file);
    return status;
}

static weft_status measure_part(const char *folder, weft_manifest *manifest, int part,
                                weft_arena *arena)
{
    const char *path;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", folder, weft_part_names[part]));
    return weft_part_hash(path, manifest, part, &manifest->parts[part].bytes,
                          &manifest->parts[part].hash);
}

weft_status weft_manifest_measure(const char *folder, weft_manifest *manifest)
{
    weft_arena arena = {0};
    weft_status status = WEFT_OK;
    for (int part = 0; status == WEFT_OK && part < WEFT_NUM_PARTS; part++) {
        if (manifest->parts[part].present)
            status = measure_part(folder, manifest, part, &arena);
    }
    weft_arena_release(&arena);
    return status;
}

/* Names need no escapes: weft_parameters_declare admits no other. */
static void write_sizes(FILE *file, const char *key, const size_t *sizes, int count)
{
    fprintf(file, "\"%s\": [", key);
    for (int d = 0; d < count; d++)
        fprintf(file, "%s%zu", d ? ", " : "", sizes[d]);
    fprintf(file, "]");
}

static void write_parts(FILE *file, const weft_manifest *manifest)
{
    const char *separator = "";
    fprintf(file, "  \"files\": [");
    for (int part = 0; part < WEFT_NUM_PARTS; part++) {
        if (!manifest->parts[part].present)
            continue;
        fprintf(file,
                "%s\n    {\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"%s\": \"%016" PRIx64 "\"}",
                separator, weft_part_names[part], manifest->parts[part].bytes,
                part == WEFT_PART_MODEL ? "xxh64_outside_datasets" : "xxh64",
                manifest->parts[part].hash);
        separator = ",";
    }
    fprintf(file, "\n  ],\n");
}

static void write_manifest(FILE *file, const weft_manifest *manifest)
{
    /* The seed has 64 bits, more than most readers' numbers: a string. */
    fprintf(file,
            "{\n  \"format\": \"" WEFT_CHECKPOINT_FORMAT
            "\",\n  \"version\": %d,\n  \"step\": %" PRId64 ",\n  \"consumed_tokens\": %" PRId64
            ",\n  \"seed\": \"%" PRIu64 "\",\n",
            WEFT_CHECKPOINT_VERSION, manifest->info.step, manifest->info.consumed_tokens,
            manifest->info.seed);
    const weft_loss_scale *scale = &manifest->info.loss_scale;
    if (weft_loss_scale_is_on(scale))
        fprintf(file,
                "  \"loss_scale\": {\"scale\": %.17g, \"good_steps\": %" PRId64
                ", \"overflows_left\": %" PRId64 ", \"skipped_steps\": %" PRId64 "},\n",
                scale->scale, scale->good_steps, scale->overflows_left, scale->skipped_steps);
    const weft_checkpoint_info *info = &manifest->info;
    if (info->bad_steps > 0 || info->loss_mean.count > 0)
        fprintf(file,
                "  \"faults\": {\"bad_steps\": %" PRId64 ", \"skipped_batches\": %" PRId64
                ", \"loss_mean\": %.17g, \"loss_mean_steps\": %" PRId64 "},\n",
                info->bad_steps, info->skipped_batches, info->loss_mean.mean,
                info->loss_mean.count);
    write_parts(file, manifest);
    fprintf(file, "  \"datasets\": [");
    for (int i = 0; i < manifest->datasets.count; i++) {
        const weft_stored *stored = &manifest->datasets.items[i];
        fprintf(file, "%s\n    {\"name\": \"%s\", \"offset\": %" PRIu64 ", ", i ? "," : "",
                stored->name, stored->offset);
        write_sizes(file, "shape", stored->dims, stored->num_dims);
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]");
}

void weft_manifest_print_end(const char *text, size_t bytes, char out[WEFT_MANIFEST_END_BYTES])
{
    snprintf(out, WEFT_MANIFEST_END_BYTES, ",\n  \"xxh64\": \"%016" PRIx64 "\"\n}\n",
             (uint64_t)XXH64(text, bytes, 0));
}

weft_status weft_manifest_write(const char *folder, const weft_manifest *manifest)
{
    char *text = NULL, end[WEFT_MANIFEST_END_BYTES];
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes), *file;
    if (memory)
        write_manifest(memory, manifest);
    if (!memory || fclose(memory) != 0) {
        free(text);
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for the manifest", folder);
    }
    weft_manifest_print_end(text, bytes, end);
    weft_status status = weft_folder_create_file(folder, WEFT_MANIFEST_NAME, &file);
    if (status == WEFT_OK) {
        fprintf(file, "%s%s", text, end);
        status = weft_folder_finish_file(folder, WEFT_MANIFEST_NAME, file);
    }
    free(text);
    return status;
}

weft_status weft_shards_write(const char *folder, const weft_stored_list *datasets,
                              const weft_shard_list *shards)
{
    FILE *file;
    const char *name = weft_part_names[WEFT_PART_SHARDS];
    WEFT_TRY(weft_folder_create_file(folder, name, &file));
    fprintf(file, "[");
    for (size_t i = 0; i < shards->count; i++) {
        const weft_stored_shard *shard = &shards->items[i];
        const weft_stored *stored = &datasets->items[shard->dataset];
        fprintf(file, "%s\n  {\"dataset\": \"%s\", ", i ? "," : "", stored->name);
        write_sizes(file, "start", shard->start, stored->num_dims);
        fprintf(file, ", ");
        write_sizes(file, "count", shard->count, stored->num_dims);
        fprintf(file, ", \"xxh64\": \"%016" PRIx64 "\"}", shard->hash);
    }
    fprintf(file, "\n]\n");
    return weft_folder_finish_file(folder, name, file);
}
