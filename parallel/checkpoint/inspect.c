#include <string.h>

#include "core/json.h"
#include "parallel/checkpoint/internal.h"

/* What the two forms of the report share. */
typedef struct summary {
    const char *folder;
    weft_manifest manifest;
    weft_shard_list shards;
    uint64_t num_parameters, bytes;
    bool has_optimizer;
} summary;

static bool is_weight(const weft_stored *stored)
{
    return strncmp(stored->name, "model/", 6) == 0;
}

static weft_status examine(const char *folder, weft_arena *arena, summary *out)
{
    const char *model;
    weft_tensor_file *file;
    out->folder = folder;
    WEFT_TRY(weft_manifest_read(folder, arena, &out->manifest));
    WEFT_TRY(weft_parts_check(folder, &out->manifest, arena));
    const weft_stored_list *datasets = &out->manifest.datasets;
    WEFT_TRY(weft_shards_read(folder, datasets, arena, &out->shards));
    WEFT_TRY(weft_arena_printf(arena, &model, "%s/%s", folder, weft_part_names[WEFT_PART_MODEL]));
    WEFT_TRY(weft_tensor_file_open(model, datasets, &file));
    weft_status status = weft_shards_verify(file, model, datasets, &out->shards);
    weft_status closed = weft_tensor_file_close(file);
    for (int i = 0; i < datasets->count; i++) {
        bool weight = is_weight(&datasets->items[i]);
        out->num_parameters += weight ? weft_stored_elements(&datasets->items[i]) : 0;
        out->has_optimizer = out->has_optimizer || !weight;
    }
    for (int part = 0; part < WEFT_NUM_PARTS; part++)
        out->bytes += out->manifest.parts[part].bytes;
    return status == WEFT_OK ? closed : status;
}

static void print_shape(const weft_stored *stored, FILE *out)
{
    for (int d = 0; d < stored->num_dims; d++)
        fprintf(out, "%s%zu", d ? ", " : "[", stored->dims[d]);
    fprintf(out, "]");
}

/* Names of datasets need no escapes; a path may hold any character. */
static weft_status print_json(const summary *s, weft_arena *arena, FILE *out)
{
    const weft_checkpoint_info *info = &s->manifest.info;
    const char *folder;
    WEFT_TRY(weft_json_quote_utf8(s->folder, arena, &folder));
    fprintf(out,
            "{\n  \"folder\": %s,\n  \"step\": %" PRId64 ",\n  \"consumed_tokens\": %" PRId64
            ",\n  \"seed\": \"%" PRIu64 "\",\n  \"num_parameters\": %" PRIu64
            ",\n  \"bytes\": %" PRIu64 ",\n  \"optimizer_state\": %s,\n"
            "  \"verified_shards\": %zu,\n  \"datasets\": [",
            folder, info->step, info->consumed_tokens, info->seed, s->num_parameters, s->bytes,
            s->has_optimizer ? "true" : "false", s->shards.count);
    for (int i = 0; i < s->manifest.datasets.count; i++) {
        const weft_stored *stored = &s->manifest.datasets.items[i];
        fprintf(out, "%s\n    {\"name\": \"%s\", \"shape\": ", i ? "," : "", stored->name);
        print_shape(stored, out);
        fprintf(out, "}");
    }
    fprintf(out, "\n  ]\n}\n");
    return WEFT_OK;
}

static void print_text(const summary *s, FILE *out)
{
    const weft_checkpoint_info *info = &s->manifest.info;
    fprintf(out, "checkpoint %s\n", s->folder);
    fprintf(out, "step %" PRId64 ", %" PRId64 " tokens consumed, seed %" PRIu64 "\n", info->step,
            info->consumed_tokens, info->seed);
    fprintf(out, "%" PRIu64 " parameters%s, %.1f MiB on disk\n", s->num_parameters,
            s->has_optimizer ? " with optimizer state" : "", (double)s->bytes / 1048576.0);
    fprintf(out, "every hash is right (%zu shards)\n\n", s->shards.count);
    for (int i = 0; i < s->manifest.datasets.count; i++) {
        const weft_stored *stored = &s->manifest.datasets.items[i];
        if (!is_weight(stored))
            continue;
        fprintf(out, "  %-64s ", stored->name + strlen("model/"));
        print_shape(stored, out);
        fprintf(out, "\n");
    }
}

weft_status weft_checkpoint_verify(const char *folder)
{
    weft_arena arena = {0};
    summary s = {.folder = NULL};
    weft_status status = examine(folder, &arena, &s);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_checkpoint_inspect(const char *folder, bool json, FILE *out)
{
    weft_arena arena = {0};
    summary s = {.folder = NULL};
    weft_status status = examine(folder, &arena, &s);
    if (status == WEFT_OK && json)
        status = print_json(&s, &arena, out);
    else if (status == WEFT_OK)
        print_text(&s, out);
    weft_arena_release(&arena);
    return status;
}
