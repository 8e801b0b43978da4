#include "launcher/models/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "core/json_write.h"
#include "launcher/models/half.h"

/* --- writing -------------------------------------------------------------------------------- */

/* The header's length has eight bytes; a longer header than this the format's own reader refuses.
 */
enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 };

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
    char *head;
    WEFT_TRY(WEFT_ARRAY(arena, LENGTH_BYTES + padded, &head));
    for (int i = 0; i < LENGTH_BYTES; i++)
        head[i] = (char)(padded >> 8 * i);
    memcpy(head + LENGTH_BYTES, text, bytes);
    memset(head + LENGTH_BYTES + bytes, ' ', padded - bytes);
    *out_head = head;
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
        if (!strstr(tensors[i].name, ".e_score_correction_bias")) /* a buffer to transformers */
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

/* What the format knows. Weft reads those with a dtype. */
typedef struct known_dtype {
    const char *text;
    int bits;
    weft_dtype dtype;
    bool can_read;
} known_dtype;

static const known_dtype known_dtypes[] = {
    {"F32", 32, WEFT_F32, true},    {"BF16", 16, WEFT_BF16, true},  {"F16", 16, WEFT_F16, true},
    {"F64", 64, WEFT_F64, false},   {"I64", 64, WEFT_I64, false},   {"U64", 64, WEFT_I64, false},
    {"I32", 32, WEFT_I32, false},   {"U32", 32, WEFT_I32, false},   {"I16", 16, WEFT_I32, false},
    {"U16", 16, WEFT_I32, false},   {"I8", 8, WEFT_U8, false},      {"U8", 8, WEFT_U8, false},
    {"BOOL", 8, WEFT_U8, false},    {"F8_E4M3", 8, WEFT_U8, false}, {"F8_E5M2", 8, WEFT_U8, false},
    {"F8_E8M0", 8, WEFT_U8, false}, {"F4", 4, WEFT_U8, false},      {"F6_E2M3", 6, WEFT_U8, false},
    {"F6_E3M2", 6, WEFT_U8, false}, {"C64", 64, WEFT_F32, false},
};
enum { NUM_DTYPES = sizeof known_dtypes / sizeof *known_dtypes };

/* --- one header ---------------------------------------------------------------------------- */

typedef struct header {
    weft_safetensors *into;
    int file;
    weft_arena *arena;
    uint64_t data_first; /* the first byte behind the header */
    weft_safetensor *tensors;
    size_t count;
} header;

static const char *path_of(const header *h)
{
    return h->into->files[h->file].path;
}

static bool is_key(weft_json_span key, const char *name)
{
    return key.bytes == strlen(name) + 2 && memcmp(key.start + 1, name, key.bytes - 2) == 0;
}

static int shown(weft_json_span span)
{
    return span.bytes < 120 ? (int)span.bytes : 120;
}

static weft_status take_string(weft_json_span span, weft_arena *arena, const char **out)
{
    if (memchr(span.start, '\\', span.bytes))
        return weft_json_string(span, arena, out);
    return weft_arena_printf(arena, out, "%.*s", (int)span.bytes - 2, span.start + 1);
}

/* Digits alone, below 2^63. */
static bool take_whole(weft_json_span span, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < span.bytes; i++) {
        const unsigned digit = (unsigned)(span.start[i] - '0');
        if (digit > 9 || value > ((uint64_t)INT64_MAX - digit) / 10)
            return false;
        value = 10 * value + digit;
    }
    *out = value;
    return true;
}

/* A list of at most `most` whole numbers; -1: it is none. */
static int take_wholes(weft_json_span list, uint64_t *out, int most)
{
    const char *cursor = NULL;
    weft_json_span value;
    int count = 0;
    if (weft_json_kind_of(list) != WEFT_JSON_ARRAY)
        return -1;
    while (weft_json_next(list, &cursor, NULL, &value))
        if (count == most || !take_whole(value, &out[count++]))
            return -1;
    return count;
}

static const known_dtype *find_dtype(weft_json_span text)
{
    for (int i = 0; i < NUM_DTYPES; i++)
        if (is_key(text, known_dtypes[i].text))
            return &known_dtypes[i];
    return NULL;
}

/* The bits that a shape takes; false: more than a file can have. */
static bool count_bits(const weft_safetensor *t, int bits, uint64_t *out)
{
    uint64_t all = (uint64_t)bits;
    for (int d = 0; d < t->num_dims; d++)
        if (__builtin_mul_overflow(all, (uint64_t)t->dims[d], &all) || all >> 62)
            return false;
    *out = all;
    return true;
}

static weft_status take_place(const header *h, weft_safetensor *t, const known_dtype *dtype,
                              const uint64_t offsets[2])
{
    uint64_t bits;
    const uint64_t data_bytes = h->into->files[h->file].bytes - h->data_first;
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: %s: its bytes, %" PRIu64 " to %" PRIu64
                          ", do not lie in the file's %" PRIu64,
                          path_of(h), t->name, offsets[0], offsets[1], data_bytes);
    t->offset = h->data_first + offsets[0];
    t->bytes = offsets[1] - offsets[0];
    if (!count_bits(t, dtype->bits, &bits) || bits % 8 != 0 || bits / 8 != t->bytes)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: %s: its shape and dtype %s do not make its %" PRIu64 " bytes",
                          path_of(h), t->name, dtype->text, t->bytes);
    return WEFT_OK;
}

static weft_status take_tensor(header *h, weft_json_span name, weft_json_span value)
{
    weft_safetensor *t = &h->tensors[h->count];
    const char *cursor = NULL;
    weft_json_span key, member;
    uint64_t dims[WEFT_SAFETENSORS_MAX_DIMS], offsets[2];
    const known_dtype *dtype = NULL;
    int num_dims = -1, num_offsets = -1, members = 0;
    *t = (weft_safetensor){.file = h->file};
    WEFT_TRY(take_string(name, h->arena, &t->name));
    if (weft_json_kind_of(value) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_FILE, "%s: %s: %s, not an object", path_of(h), t->name,
                          weft_json_kind_text(value));
    for (; weft_json_next(value, &cursor, &key, &member); members++) {
        if (is_key(key, "dtype"))
            dtype = find_dtype(member);
        else if (is_key(key, "shape"))
            num_dims = take_wholes(member, dims, WEFT_SAFETENSORS_MAX_DIMS);
        else if (is_key(key, "data_offsets"))
            num_offsets = take_wholes(member, offsets, 2);
        if (is_key(key, "dtype") && !dtype)
            return WEFT_ERROR(WEFT_FILE, "%s: %s: dtype %.*s, which the format has not", path_of(h),
                              t->name, shown(member), member.start);
    }
    if (members != 3 || !dtype || num_dims < 0 || num_offsets != 2)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: %s: should have dtype, a shape of at most %d whole numbers, and two "
                          "data_offsets",
                          path_of(h), t->name, WEFT_SAFETENSORS_MAX_DIMS);
    t->num_dims = num_dims;
    for (int d = 0; d < num_dims; d++)
        t->dims[d] = (size_t)dims[d];
    t->dtype_text = dtype->text;
    t->dtype = dtype->dtype;
    t->can_read = dtype->can_read;
    h->count++;
    return take_place(h, t, dtype, offsets);
}

static int compare_offsets(const void *a, const void *b)
{
    const weft_safetensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* an empty one goes first */
}

/* The tensors lie behind each other and fill the file. */
static weft_status check_holes(header *h)
{
    uint64_t at = h->data_first;
    qsort(h->tensors, h->count, sizeof *h->tensors, compare_offsets);
    for (size_t i = 0; i < h->count; i++) {
        const weft_safetensor *t = &h->tensors[i];
        if (t->offset != at)
            return WEFT_ERROR(WEFT_FILE, "%s: %s: %s", path_of(h), t->name,
                              t->offset < at ? "its bytes overlap another tensor's"
                                             : "a hole is before its bytes");
        at += t->bytes;
    }
    if (at != h->into->files[h->file].bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: ends with %" PRIu64 " bytes that no tensor has",
                          path_of(h), h->into->files[h->file].bytes - at);
    return WEFT_OK;
}

static weft_status take_members(header *h, const char *text)
{
    weft_json_fault fault;
    weft_json_span root, key, value;
    const char *cursor = NULL;
    size_t members = 0;
    if (!weft_json_check(text, &root, &fault) || *text != '{')
        return WEFT_ERROR(WEFT_FILE, "%s: the header is no JSON object (byte %td: %s)", path_of(h),
                          fault.reason ? fault.at - text : 0,
                          fault.reason ? fault.reason : "should be '{'");
    while (weft_json_next(root, &cursor, &key, &value))
        members++;
    WEFT_TRY(WEFT_ARRAY(h->arena, members + 1, &h->tensors));
    cursor = NULL;
    while (weft_json_next(root, &cursor, &key, &value))
        if (!is_key(key, "__metadata__"))
            WEFT_TRY(take_tensor(h, key, value));
    return check_holes(h);
}

static weft_status read_length(const weft_file *file, uint64_t *out)
{
    unsigned char bytes[LENGTH_BYTES];
    if (file->bytes < LENGTH_BYTES)
        return WEFT_ERROR(WEFT_FILE, "%s: %" PRIu64 " bytes: no safetensors file", file->path,
                          file->bytes);
    WEFT_TRY(weft_file_read(file, 0, bytes, sizeof bytes));
    *out = 0;
    for (int i = LENGTH_BYTES; i-- > 0;)
        *out = *out << 8 | bytes[i];
    if (*out > MAX_HEADER_BYTES || *out > file->bytes - LENGTH_BYTES)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: says that its header has %" PRIu64 " bytes; the file has %" PRIu64
                          ", and a header at most %d",
                          file->path, *out, file->bytes, MAX_HEADER_BYTES);
    return WEFT_OK;
}

static weft_status read_header(header *h)
{
    const weft_file *file = &h->into->files[h->file];
    uint64_t bytes = 0;
    WEFT_TRY(read_length(file, &bytes));
    h->data_first = LENGTH_BYTES + bytes;
    char *text = malloc((size_t)bytes + 1);
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for its header", file->path);
    weft_status status = weft_file_read(file, LENGTH_BYTES, text, (size_t)bytes);
    text[bytes] = '\0';
    if (status == WEFT_OK && strlen(text) != bytes)
        status = WEFT_ERROR(WEFT_FILE, "%s: a NUL byte in the header", file->path);
    if (status == WEFT_OK)
        status = take_members(h, text);
    free(text);
    return status;
}

/* --- a folder ------------------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b)
{
    const weft_safetensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static weft_status check_twice(const weft_safetensors *s)
{
    for (size_t i = 1; i < s->num_tensors; i++) {
        const weft_safetensor *a = &s->tensors[i - 1], *b = &s->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return WEFT_ERROR(WEFT_FILE, "%s: %s stands there twice, in %s and %s", s->folder,
                              a->name, s->names[a->file], s->names[b->file]);
    }
    return WEFT_OK;
}

static weft_status read_files(weft_safetensors *s, weft_arena *arena)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)s->num_files, &s->files));
    for (int f = 0; f < s->num_files; f++) {
        const char *path;
        header h = {.into = s, .file = f, .arena = arena};
        WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", s->folder, s->names[f]));
        WEFT_TRY(weft_file_open(path, &s->files[f]));
        WEFT_TRY(read_header(&h));
        weft_safetensor *all;
        WEFT_TRY(WEFT_ARRAY(arena, s->num_tensors + h.count + 1, &all));
        if (s->num_tensors > 0)
            memcpy(all, s->tensors, s->num_tensors * sizeof *all);
        memcpy(all + s->num_tensors, h.tensors, h.count * sizeof *all);
        s->tensors = all;
        s->num_tensors += h.count;
    }
    for (size_t i = 0; i < s->num_tensors; i++)
        s->bytes += s->tensors[i].bytes;
    qsort(s->tensors, s->num_tensors, sizeof *s->tensors, compare_names);
    return check_twice(s);
}

/* A name in the index, and the file that it says. */
typedef struct mapped {
    const char *name, *file;
} mapped;

typedef struct index_file {
    const char *path;
    mapped *items; /* sorted by name */
    size_t count;
    bool has_total;
    uint64_t total;
} index_file;

static int compare_mapped(const void *a, const void *b)
{
    return strcmp(((const mapped *)a)->name, ((const mapped *)b)->name);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static weft_status take_map(index_file *index, weft_json_span map, weft_arena *arena)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    size_t count = 0;
    while (weft_json_next(map, &cursor, &key, &value))
        count++;
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &index->items));
    cursor = NULL;
    while (weft_json_next(map, &cursor, &key, &value)) {
        mapped *item = &index->items[index->count++];
        WEFT_TRY(take_string(key, arena, &item->name));
        if (weft_json_kind_of(value) != WEFT_JSON_STRING)
            return WEFT_ERROR(WEFT_FILE, "%s: %s: %s, not a file's name", index->path, item->name,
                              weft_json_kind_text(value));
        WEFT_TRY(take_string(value, arena, &item->file));
        if (!*item->file || *item->file == '.' || strchr(item->file, '/'))
            return WEFT_ERROR(WEFT_FILE, "%s: %s: \"%s\" is no file of this folder", index->path,
                              item->name, item->file);
    }
    qsort(index->items, index->count, sizeof *index->items, compare_mapped);
    for (size_t i = 1; i < index->count; i++)
        if (strcmp(index->items[i - 1].name, index->items[i].name) == 0)
            return WEFT_ERROR(WEFT_FILE, "%s: %s stands there twice", index->path,
                              index->items[i].name);
    return WEFT_OK;
}

static weft_status take_total(index_file *index, weft_json_span metadata)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    while (weft_json_kind_of(metadata) == WEFT_JSON_OBJECT &&
           weft_json_next(metadata, &cursor, &key, &value)) {
        if (!is_key(key, "total_size"))
            continue;
        const double total = strtod(value.start, NULL); /* some writers give a number with ".0" */
        if (weft_json_kind_of(value) != WEFT_JSON_NUMBER || !(total >= 0 && total < 0x1p63))
            return WEFT_ERROR(WEFT_FILE, "%s: total_size is %.*s, not a number of bytes",
                              index->path, shown(value), value.start);
        index->has_total = true;
        index->total = (uint64_t)total;
    }
    return WEFT_OK;
}

static weft_status read_index(index_file *index, weft_arena *arena)
{
    char *text;
    weft_json_fault fault;
    weft_json_span root, key, value, map = {0};
    const char *cursor = NULL;
    WEFT_TRY(weft_file_read_text(index->path, arena, &text, NULL));
    if (!weft_json_check(text, &root, &fault)) {
        int line, column;
        weft_json_position(text, fault.at, &line, &column);
        return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: %s", index->path, line, column, fault.reason);
    }
    while (weft_json_kind_of(root) == WEFT_JSON_OBJECT &&
           weft_json_next(root, &cursor, &key, &value)) {
        if (is_key(key, "weight_map"))
            map = value;
        else if (is_key(key, "metadata"))
            WEFT_TRY(take_total(index, value));
    }
    if (!map.start || weft_json_kind_of(map) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_FILE, "%s: has no weight_map", index->path);
    return take_map(index, map, arena);
}

/* The files that the index names, each once. */
static weft_status list_files(const index_file *index, weft_arena *arena, weft_safetensors *s)
{
    WEFT_TRY(WEFT_ARRAY(arena, index->count + 1, &s->names));
    for (size_t i = 0; i < index->count; i++)
        s->names[i] = index->items[i].file;
    qsort(s->names, index->count, sizeof *s->names, compare_texts);
    for (size_t i = 0; i < index->count; i++)
        if (i == 0 || strcmp(s->names[s->num_files - 1], s->names[i]) != 0)
            s->names[s->num_files++] = s->names[i];
    if (s->num_files == 0)
        return WEFT_ERROR(WEFT_FILE, "%s: names no tensor", index->path);
    return WEFT_OK;
}

/* Index and headers say the same. Both are sorted. */
static weft_status check_index(const index_file *index, const weft_safetensors *s)
{
    size_t i = 0, t = 0;
    while (i < index->count || t < s->num_tensors) {
        const mapped *item = &index->items[i];
        const weft_safetensor *tensor = &s->tensors[t];
        const int order = i == index->count     ? 1
                          : t == s->num_tensors ? -1
                                                : strcmp(item->name, tensor->name);
        if (order < 0)
            return WEFT_ERROR(WEFT_FILE, "%s: %s: %s does not hold it", index->path, item->name,
                              item->file);
        if (order > 0)
            return WEFT_ERROR(WEFT_FILE, "%s: does not name %s, which %s holds", index->path,
                              tensor->name, s->names[tensor->file]);
        if (strcmp(item->file, s->names[tensor->file]) != 0)
            return WEFT_ERROR(WEFT_FILE, "%s: %s is in %s, not in %s", index->path, item->name,
                              s->names[tensor->file], item->file);
        i++, t++;
    }
    if (index->has_total && index->total != s->bytes)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: total_size is %" PRIu64 ", and the tensors have %" PRIu64 " bytes",
                          index->path, index->total, s->bytes);
    return WEFT_OK;
}

static size_t blocks_of(size_t count)
{
    return (count + WEFT_SCALED_BLOCK - 1) / WEFT_SCALED_BLOCK;
}

/* The tensor whose name has another end and whose dtype is that; NULL: none. */
static weft_status find_scaled(weft_safetensors *s, const char *scales, const char *end,
                               const char *other, const char *dtype, weft_arena *arena,
                               weft_safetensor **out)
{
    const size_t length = strlen(scales), of_end = strlen(end);
    const char *name;
    *out = NULL;
    if (length <= of_end || strcmp(scales + length - of_end, end) != 0)
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(arena, &name, "%.*s%s", (int)(length - of_end), scales, other));
    const weft_safetensor *found = weft_safetensors_find(s, name);
    if (found && strcmp(found->dtype_text, dtype) == 0)
        *out = &s->tensors[found - s->tensors];
    return WEFT_OK;
}

/* Tensors of fp8 that others scale. */
static weft_status pair_fp8(weft_safetensors *s, weft_arena *arena)
{
    for (size_t i = 0; i < s->num_tensors; i++) {
        weft_safetensor *scales = &s->tensors[i], *t;
        WEFT_TRY(find_scaled(s, scales->name, "_scale_inv", "", "F8_E4M3", arena, &t));
        if (!t)
            continue;
        if (t->num_dims != 2 || scales->num_dims != 2 || strcmp(scales->dtype_text, "F32") != 0 ||
            scales->dims[0] != blocks_of(t->dims[0]) || scales->dims[1] != blocks_of(t->dims[1]))
            return WEFT_ERROR(WEFT_FILE, "%s: %s: should have an F32 for each block of %d x %d",
                              s->folder, scales->name, WEFT_SCALED_BLOCK, WEFT_SCALED_BLOCK);
        t->scales = scales;
        t->can_read = scales->is_scales = true;
    }
    return WEFT_OK;
}

/* And of MXFP4: from then on its shape is its numbers'. */
static weft_status pair_fp4(weft_safetensors *s, weft_arena *arena)
{
    for (size_t i = 0; i < s->num_tensors; i++) {
        weft_safetensor *scales = &s->tensors[i], *t;
        WEFT_TRY(find_scaled(s, scales->name, "_scales", "_blocks", "U8", arena, &t));
        if (!t)
            continue;
        const int num_dims = t->num_dims - 1;
        if (num_dims < 2 || t->dims[num_dims] != WEFT_FP4_BLOCK / 2 ||
            strcmp(scales->dtype_text, "U8") != 0 || scales->num_dims != num_dims ||
            memcmp(scales->dims, t->dims, (size_t)num_dims * sizeof *t->dims) != 0)
            return WEFT_ERROR(WEFT_FILE,
                              "%s: %s: should have a U8 for each %d bytes of %s, which are a block "
                              "of MXFP4",
                              s->folder, scales->name, WEFT_FP4_BLOCK / 2, t->name);
        t->num_dims = num_dims;
        t->dims[num_dims - 1] *= WEFT_FP4_BLOCK;
        t->scales = scales;
        t->is_fp4 = t->can_read = scales->is_scales = true;
    }
    return WEFT_OK;
}

static weft_status open_files(const char *folder, weft_arena *arena, weft_safetensors *out)
{
    static const char *one[] = {WEFT_SAFETENSORS_FILE};
    index_file index = {0};
    const char *path;
    *out = (weft_safetensors){.folder = folder, .names = one, .num_files = 1};
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/" WEFT_SAFETENSORS_FILE, folder));
    WEFT_TRY(weft_arena_printf(arena, &index.path, "%s/" WEFT_SAFETENSORS_INDEX, folder));
    const bool has_one = access(path, F_OK) == 0;
    out->has_index = access(index.path, F_OK) == 0;
    if (has_one && out->has_index)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: has both " WEFT_SAFETENSORS_FILE " and " WEFT_SAFETENSORS_INDEX
                          ": remove the one that is not meant",
                          folder);
    if (!has_one && !out->has_index)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: has neither " WEFT_SAFETENSORS_FILE " nor " WEFT_SAFETENSORS_INDEX,
                          folder);
    if (!out->has_index)
        return read_files(out, arena);
    out->num_files = 0;
    WEFT_TRY(read_index(&index, arena));
    WEFT_TRY(list_files(&index, arena, out));
    WEFT_TRY(read_files(out, arena));
    return check_index(&index, out);
}

weft_status weft_safetensors_open(const char *folder, weft_arena *arena, weft_safetensors *out)
{
    WEFT_TRY(open_files(folder, arena, out));
    WEFT_TRY(pair_fp8(out, arena));
    return pair_fp4(out, arena);
}

void weft_safetensors_release(weft_safetensors *s)
{
    for (int f = 0; s->files && f < s->num_files; f++)
        weft_file_close(&s->files[f]);
    *s = (weft_safetensors){.folder = NULL};
}

const weft_safetensor *weft_safetensors_find(const weft_safetensors *s, const char *name)
{
    const weft_safetensor key = {.name = name};
    return bsearch(&key, s->tensors, s->num_tensors, sizeof key, compare_names);
}

size_t weft_safetensor_elements(const weft_safetensor *t)
{
    size_t elements = 1;
    for (int d = 0; d < t->num_dims; d++)
        elements *= t->dims[d];
    return elements;
}

/* Sign, four bits of exponent, three of mantissa; no infinities. */
static float from_fp8(int x)
{
    const int exponent = x >> 3 & 15, mantissa = x & 7;
    const float size = (x & 127) == 127 ? NAN
                       : exponent == 0  ? ldexpf((float)mantissa, -9)
                                        : ldexpf((float)(8 + mantissa), exponent - 10);
    return x & 128 ? -size : size;
}

/* A byte is two numbers, the first in its low half: sign, two bits of exponent, one of mantissa.
 * raw: room for a float an element. */
static weft_status read_fp4(const weft_safetensors *s, const weft_safetensor *t, size_t first,
                            size_t count, void *raw, float *out)
{
    static const float values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const weft_safetensor *scales = t->scales;
    const size_t end = first + count, byte = first / 2, block = first / WEFT_FP4_BLOCK,
                 num_bytes = (end + 1) / 2 - byte,
                 num_blocks = (end + WEFT_FP4_BLOCK - 1) / WEFT_FP4_BLOCK - block;
    uint8_t *pairs = raw, *powers = pairs + num_bytes;
    WEFT_TRY(weft_file_read(&s->files[t->file], t->offset + byte, pairs, num_bytes));
    WEFT_TRY(weft_file_read(&s->files[scales->file], scales->offset + block, powers, num_blocks));
    for (size_t at = first; at < end;) {
        const size_t of = at / WEFT_FP4_BLOCK, next = (of + 1) * WEFT_FP4_BLOCK,
                     to = next < end ? next : end;
        const float scale = powers[of - block] == 255 ? NAN : ldexpf(1, powers[of - block] - 127);
        for (; at < to; at++)
            out[at - first] = values[pairs[at / 2 - byte] >> at % 2 * 4 & 15] * scale;
    }
    return WEFT_OK;
}

/* A row's part after the other. raw: room for a float an element. */
static weft_status read_fp8(const weft_safetensors *s, const weft_safetensor *t, size_t first,
                            size_t count, void *raw, float *out)
{
    const size_t cols = t->dims[1], blocks = t->scales->dims[1];
    const weft_safetensor *scales = t->scales;
    float values[256];
    for (int x = 0; x < 256; x++)
        values[x] = from_fp8(x);
    for (size_t at = first, end = first + count; at < end;) {
        const size_t row = at / cols, col = at % cols, left = end - at,
                     num = left < cols - col ? left : cols - col;
        const size_t from = col / WEFT_SCALED_BLOCK,
                     wanted = (col + num - 1) / WEFT_SCALED_BLOCK + 1 - from;
        float *scale = raw;
        uint8_t *numbers = (uint8_t *)(out + (at - first)) + 3 * num; /* before what is written */
        WEFT_TRY(weft_file_read(&s->files[scales->file],
                                scales->offset +
                                    (row / WEFT_SCALED_BLOCK * blocks + from) * sizeof *scale,
                                scale, wanted * sizeof *scale));
        WEFT_TRY(weft_file_read(&s->files[t->file], t->offset + at, numbers, num));
        for (size_t i = 0; i < num; i++)
            out[at - first + i] = values[numbers[i]] * scale[(col + i) / WEFT_SCALED_BLOCK - from];
        at += num;
    }
    return WEFT_OK;
}

weft_status weft_safetensor_read(const weft_safetensors *s, const weft_safetensor *t, size_t first,
                                 size_t count, void *raw, float *out)
{
    const size_t each = weft_dtype_bytes(t->dtype);
    void *to = t->dtype == WEFT_F32 ? out : raw;
    if (t->scales)
        return (t->is_fp4 ? read_fp4 : read_fp8)(s, t, first, count, raw, out);
    WEFT_TRY(weft_file_read(&s->files[t->file], t->offset + first * each, to, count * each));
    if (to == raw)
        weft_half_widen(raw, t->dtype, count, out);
    return WEFT_OK;
}
