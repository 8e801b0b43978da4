/* A model's folder: config.json, the index ("": none) and a file of tensors behind NULs. A file
 * that begins with '{' is its header alone: the length before it and the tensors behind it are made
 * here, so that a change of the header does not end at its length; behind such a one the index may
 * have a second file. */
#include "launcher/models/models.h"
#include "tests/fuzz/fuzz.h"

enum { LENGTH_BYTES = 8, MOST_DATA = 1 << 18 };

/* As far as an offset of the header says, which may be one that no tensor has. */
static size_t data_bytes(const char *header)
{
    static const char key[] = "\"data_offsets\":[";
    size_t most = 0;
    for (const char *at = header; (at = strstr(at, key)) != NULL;) {
        char *end;
        at += sizeof key - 1;
        (void)strtoull(at, &end, 10);
        const unsigned long long last = *end == ',' ? strtoull(end + 1, &end, 10) : 0;
        if (last <= MOST_DATA && last > most)
            most = (size_t)last;
    }
    return most;
}

/* Returns the file's bytes. */
static size_t write_tensors(const char *path, const char *data, size_t bytes)
{
    if (data[0] != '{') {
        fuzz_write(path, data, bytes);
        return bytes;
    }
    const size_t behind = data_bytes(data), all = LENGTH_BYTES + bytes + behind;
    char *file = calloc(1, all);
    FUZZ_CHECK(file, "no memory");
    for (int i = 0; i < LENGTH_BYTES; i++)
        file[i] = (char)(unsigned char)(bytes >> 8 * i);
    memcpy(file + LENGTH_BYTES, data, bytes);
    fuzz_write(path, file, all);
    free(file);
    return all;
}

/* Returns the bytes of the larger file of tensors. */
static size_t write_folder(const fuzz_parts *parts)
{
    const bool has_index = parts->bytes[1] > 0;
    fuzz_empty(fuzz_folder());
    fuzz_write(fuzz_path("config.json"), parts->at[0], parts->bytes[0]);
    if (has_index)
        fuzz_write(fuzz_path(WEFT_SAFETENSORS_INDEX), parts->at[1], parts->bytes[1]);
    const char *tensors = parts->at[2];
    const size_t bytes = parts->bytes[2], first = *tensors == '{' ? strlen(tensors) : bytes;
    const char *path = fuzz_path(has_index ? "a.safetensors" : WEFT_SAFETENSORS_FILE);
    const size_t a = write_tensors(path, tensors, first);
    if (!has_index || first + 1 >= bytes)
        return a;
    const size_t b =
        write_tensors(fuzz_path("b.safetensors"), tensors + first + 1, bytes - first - 1);
    return a > b ? a : b;
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
    open_tensors(write_folder(&parts));
    import_model();
    fuzz_release(&parts);
    return 0;
}
