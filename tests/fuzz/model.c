/* A model's folder: config.json, the index ("": none) and one file of tensors behind NULs. What
 * weft import --check takes, export gives back. */
#include "launcher/models/models.h"
#include "tests/fuzz/fuzz.h"

static void write_folder(const fuzz_parts *parts)
{
    const bool has_index = parts->bytes[1] > 0;
    fuzz_empty(fuzz_folder());
    fuzz_write(fuzz_path("config.json"), parts->at[0], parts->bytes[0]);
    if (has_index)
        fuzz_write(fuzz_path(WEFT_SAFETENSORS_INDEX), parts->at[1], parts->bytes[1]);
    fuzz_write(fuzz_path(has_index ? "a.safetensors" : WEFT_SAFETENSORS_FILE), parts->at[2],
               parts->bytes[2]);
}

/* Headers by themselves: a config says little of them. */
static void open_tensors(size_t size)
{
    weft_arena arena = {0};
    weft_safetensors files;
    const weft_status status = weft_safetensors_open(fuzz_folder(), &arena, &files);
    if (status != WEFT_OK)
        fuzz_refused(status);
    for (size_t i = 0; status == WEFT_OK && i < files.num_tensors; i++) {
        const weft_safetensor *t = &files.tensors[i];
        FUZZ_CHECK(t->bytes <= size && t->offset <= size && t->offset + t->bytes <= size, "%s",
                   t->name);
        FUZZ_CHECK(weft_safetensors_find(&files, t->name) == t, "%s", t->name);
    }
    weft_safetensors_release(&files);
    weft_arena_release(&arena);
}

static void import_model(void)
{
    weft_arena arena = {0};
    weft_card card;
    const weft_status status =
        weft_import_model(&(weft_import){.folder = fuzz_folder()}, &arena, &card);
    if (status != WEFT_OK)
        fuzz_refused(status);
    else
        FUZZ_CHECK(card.num_elements > 0 && card.bytes > 0, "an empty model");
    weft_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    fuzz_cut(data, size, 3, &parts);
    write_folder(&parts);
    open_tensors(parts.bytes[2]);
    import_model();
    fuzz_release(&parts);
    return 0;
}
