#include <string.h>

#include "parallel/checkpoint/internal.h"

weft_status weft_checkpoint_inspect(const char *folder, weft_arena *arena,
                                    weft_checkpoint_contents *out)
{
    const char *model;
    weft_manifest manifest;
    weft_shard_list shards;
    weft_tensor_file *file;
    WEFT_TRY(weft_manifest_read(folder, arena, &manifest));
    WEFT_TRY(weft_parts_check(folder, &manifest, arena));
    const weft_stored_list *datasets = &manifest.datasets;
    WEFT_TRY(weft_shards_read(folder, datasets, arena, &shards));
    WEFT_TRY(weft_arena_printf(arena, &model, "%s/%s", folder, weft_part_names[WEFT_PART_MODEL]));
    WEFT_TRY(weft_tensor_file_open(model, datasets, &file));
    weft_status status = weft_shards_verify(file, model, datasets, &shards);
    weft_status closed = weft_tensor_file_close(file);
    *out = (weft_checkpoint_contents){
        .info = manifest.info, .datasets = *datasets, .num_shards = shards.count};
    for (int i = 0; i < datasets->count; i++) {
        const weft_stored *stored = &datasets->items[i];
        if (strncmp(stored->name, WEFT_STORED_WEIGHT, strlen(WEFT_STORED_WEIGHT)) == 0)
            out->num_parameters += weft_stored_elements(stored);
        else
            out->has_optimizer = true;
    }
    for (int part = 0; part < WEFT_NUM_PARTS; part++)
        out->bytes += manifest.parts[part].bytes;
    return status == WEFT_OK ? closed : status;
}

weft_status weft_checkpoint_verify(const char *folder)
{
    weft_arena arena = {0};
    weft_checkpoint_contents contents;
    weft_status status = weft_checkpoint_inspect(folder, &arena, &contents);
    weft_arena_release(&arena);
    return status;
}
