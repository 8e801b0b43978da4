#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_write.h"
#include "launcher/models/safetensors.h"

enum { LENGTH_BYTES = 8 };

void weft_safetensors_split(weft_safetensor *const *tensors, size_t count, uint64_t most,
                            int *num_files)
{
    uint64_t bytes = 0;
    int file = 0;
    for (size_t i = 0; i < count; i++) {
        if (bytes > 0 && bytes + tensors[i]->bytes > most) {
            file++;
            bytes = 0;
        }
        tensors[i]->file = file;
        bytes += tensors[i]->bytes;
    }
    *num_files = file + 1;
}

weft_status weft_safetensors_name(int file, int num_files, weft_arena *arena, const char **out)
{
    if (num_files == 1)
        return weft_arena_strdup(arena, WEFT_SAFETENSORS_FILE, out);
    return weft_arena_printf(arena, out, "model-%05d-of-%05d.safetensors", file + 1, num_files);
}

static int compare(const void *a, const void *b)
{
    const weft_safetensor *x = *(weft_safetensor *const *)a, *y = *(weft_safetensor *const *)b;
    const size_t of_x = weft_dtype_bytes(x->dtype), of_y = weft_dtype_bytes(y->dtype);
    if (of_x != of_y)
        return of_x > of_y ? -1 : 1;
    const int by_dtype = strcmp(x->dtype_text, y->dtype_text); /* BF16 goes before F16 */
    return by_dtype ? by_dtype : strcmp(x->name, y->name);
}

static void write_header(weft_safetensor *const *tensors, size_t count, FILE *out)
{
    uint64_t at = 0;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
    for (size_t i = 0; i < count; i++) {
        const weft_safetensor *t = tensors[i];
        fputc(',', out);
        weft_json_write_string(out, t->name, strlen(t->name), true);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype_text);
        for (int d = 0; d < t->num_dims; d++)
            fprintf(out, "%s%zu", d ? "," : "", t->dims[d]);
        fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t->bytes);
        at += t->bytes;
    }
    fputc('}', out);
}

/* The header is filled up with spaces, so that elements lie at multiples of eight. */
static weft_status finish_header(const char *text, size_t bytes, weft_arena *arena,
                                 const char **out_head, size_t *out_bytes)
{
    const size_t padded = (bytes + LENGTH_BYTES - 1) / LENGTH_BYTES * LENGTH_BYTES;
    void *memory;
    WEFT_TRY(weft_arena_alloc(arena, LENGTH_BYTES + padded, &memory));
    unsigned char *head = memory;
    for (int i = 0; i < LENGTH_BYTES; i++)
        head[i] = (unsigned char)(padded >> 8 * i);
    memcpy(head + LENGTH_BYTES, text, bytes);
    memset(head + LENGTH_BYTES + bytes, ' ', padded - bytes);
    *out_head = memory;
    *out_bytes = LENGTH_BYTES + padded;
    return WEFT_OK;
}

weft_status weft_safetensors_lay_out(weft_safetensor **tensors, size_t count, weft_arena *arena,
                                     const char **out_head, size_t *out_bytes)
{
    char *text = NULL;
    size_t bytes = 0;
    qsort(tensors, count, sizeof *tensors, compare);
    FILE *memory = open_memstream(&text, &bytes);
    if (memory)
        write_header(tensors, count, memory);
    if (!memory || fclose(memory) != 0) {
        free(text);
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a header of %zu tensors", count);
    }
    weft_status status = finish_header(text, bytes, arena, out_head, out_bytes);
    free(text);
    WEFT_TRY(status);
    uint64_t at = *out_bytes;
    for (size_t i = 0; i < count; i++) {
        tensors[i]->offset = at;
        at += tensors[i]->bytes;
    }
    return WEFT_OK;
}

weft_status weft_safetensors_write_index(const weft_safetensor *tensors, size_t count,
                                         const char *const *names, FILE *out)
{
    uint64_t bytes = 0, parameters = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += tensors[i].bytes;
        parameters += weft_safetensor_elements(&tensors[i]);
    }
    fprintf(out,
            "{\n  \"metadata\": {\n    \"total_parameters\": %" PRIu64
            ",\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {",
            parameters, bytes);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s\n    ", i ? "," : "");
        weft_json_write_string(out, tensors[i].name, strlen(tensors[i].name), true);
        fprintf(out, ": \"%s\"", names[tensors[i].file]);
    }
    fputs("\n  }\n}\n", out);
    return ferror(out) ? WEFT_ERROR(WEFT_FILE, WEFT_SAFETENSORS_INDEX ": cannot write") : WEFT_OK;
}
