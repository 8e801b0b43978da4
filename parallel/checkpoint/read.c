#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "parallel/checkpoint/internal.h"

/* A value being read and the file's path, for errors. */
typedef struct reader {
    const char *path;
    const char *text;
    weft_arena *arena;
} reader;

static weft_status wrong(const reader *r, const char *at, const char *what)
{
    int line, column;
    weft_json_position(r->text, at, &line, &column);
    return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: %s", r->path, line, column, what);
}

static weft_status load_text(reader *r, weft_json_span *root)
{
    char *text;
    size_t bytes;
    weft_json_fault fault;
    WEFT_TRY(weft_file_read_text(r->path, r->arena, &text, &bytes));
    r->text = text;
    if (strlen(text) != bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: not a text file", r->path);
    if (!weft_json_check(text, root, &fault))
        return wrong(r, fault.at, fault.reason);
    return WEFT_OK;
}

static weft_status want_kind(const reader *r, weft_json_span value, weft_json_kind kind)
{
    static const char *const texts[] = {"expected null",     "expected true or false",
                                        "expected a number", "expected a string",
                                        "expected an array", "expected an object"};
    if (weft_json_kind_of(value) != kind)
        return wrong(r, value.start, texts[kind]);
    return WEFT_OK;
}

static bool find_member(weft_json_span object, const char *name, weft_json_span *out)
{
    const char *cursor = NULL;
    weft_json_span key;
    size_t length = strlen(name);
    while (weft_json_next(object, &cursor, &key, out)) {
        if (key.bytes == length + 2 && memcmp(key.start + 1, name, length) == 0)
            return true;
    }
    return false;
}

static weft_status member(const reader *r, weft_json_span object, const char *name,
                          weft_json_kind kind, weft_json_span *out)
{
    WEFT_TRY(want_kind(r, object, WEFT_JSON_OBJECT));
    if (find_member(object, name, out))
        return want_kind(r, *out, kind);
    int line, column;
    weft_json_position(r->text, object.start, &line, &column);
    return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: \"%s\" is missing", r->path, line, column, name);
}

/* Whole numbers from 0 to `most`; quotes stand for nothing here. */
static weft_status whole_number(const reader *r, weft_json_span value, uint64_t most, uint64_t *out)
{
    size_t quotes = value.start[0] == '"';
    uint64_t number = 0;
    for (size_t i = quotes; i < value.bytes - quotes; i++) {
        uint64_t digit = (uint64_t)(value.start[i] - '0');
        if (digit > 9 || number > (most - digit) / 10)
            return wrong(r, value.start, "not a whole number that is possible here");
        number = number * 10 + digit;
    }
    if (value.bytes == 2 * quotes)
        return wrong(r, value.start, "expected digits");
    *out = number;
    return WEFT_OK;
}

static weft_status number_member(const reader *r, weft_json_span object, const char *name,
                                 uint64_t most, uint64_t *out)
{
    weft_json_span value;
    WEFT_TRY(member(r, object, name, WEFT_JSON_NUMBER, &value));
    return whole_number(r, value, most, out);
}

static weft_status string_member(const reader *r, weft_json_span object, const char *name,
                                 const char **out)
{
    weft_json_span value;
    WEFT_TRY(member(r, object, name, WEFT_JSON_STRING, &value));
    if (memchr(value.start, '\\', value.bytes))
        return wrong(r, value.start, "an escape where none can be");
    return weft_arena_printf(r->arena, out, "%.*s", (int)value.bytes - 2, value.start + 1);
}

static weft_status hash_member(const reader *r, weft_json_span object, const char *name,
                               uint64_t *out)
{
    weft_json_span value;
    WEFT_TRY(member(r, object, name, WEFT_JSON_STRING, &value));
    if (value.bytes != 18 || strspn(value.start + 1, "0123456789abcdef") != 16)
        return wrong(r, value.start, "expected 16 hexadecimal digits");
    *out = strtoull(value.start + 1, NULL, 16);
    return WEFT_OK;
}

static weft_status sizes_member(const reader *r, weft_json_span object, const char *name,
                                size_t sizes[WEFT_MAX_DIMS], int *out_count)
{
    const char *cursor = NULL;
    weft_json_span list, value;
    int count = 0;
    WEFT_TRY(member(r, object, name, WEFT_JSON_ARRAY, &list));
    while (weft_json_next(list, &cursor, NULL, &value)) {
        uint64_t size;
        WEFT_TRY(want_kind(r, value, WEFT_JSON_NUMBER));
        WEFT_TRY(whole_number(r, value, SIZE_MAX / 16, &size));
        if (count == WEFT_MAX_DIMS)
            return wrong(r, value.start, "too many dimensions");
        sizes[count++] = (size_t)size;
    }
    *out_count = count;
    return WEFT_OK;
}

static size_t count_elements(weft_json_span list)
{
    const char *cursor = NULL;
    weft_json_span value;
    size_t count = 0;
    while (weft_json_next(list, &cursor, NULL, &value))
        count++;
    return count;
}

static weft_status read_dataset(const reader *r, weft_json_span object, weft_stored *out)
{
    const char *name;
    size_t elements = 1;
    WEFT_TRY(string_member(r, object, "name", &name));
    if (strlen(name) >= sizeof out->name)
        return wrong(r, object.start, "the dataset's name is too long");
    strcpy(out->name, name);
    WEFT_TRY(sizes_member(r, object, "shape", out->dims, &out->num_dims));
    for (int d = 0; d < out->num_dims; d++) {
        if (out->dims[d] == 0 || out->dims[d] > SIZE_MAX / 16 / elements)
            return wrong(r, object.start, "an impossible shape");
        elements *= out->dims[d];
    }
    if (out->num_dims == 0)
        return wrong(r, object.start, "an impossible shape");
    return number_member(r, object, "offset", INT64_MAX, &out->offset);
}

static weft_status read_datasets(const reader *r, weft_json_span root, weft_stored_list *out)
{
    const char *cursor = NULL;
    weft_json_span list, value;
    void *items;
    WEFT_TRY(member(r, root, "datasets", WEFT_JSON_ARRAY, &list));
    size_t count = count_elements(list);
    if (count > INT32_MAX)
        return wrong(r, list.start, "too many datasets");
    WEFT_TRY(weft_arena_alloc_array(r->arena, count + 1, sizeof(weft_stored), &items));
    *out = (weft_stored_list){items, 0};
    while (weft_json_next(list, &cursor, NULL, &value)) {
        weft_stored *stored = &out->items[out->count];
        WEFT_TRY(read_dataset(r, value, stored));
        if (out->count && strcmp(stored[-1].name, stored->name) >= 0)
            return wrong(r, value.start, "the datasets are not in the order of their names");
        out->count++;
    }
    return WEFT_OK;
}

static weft_status read_parts(const reader *r, weft_json_span root, weft_manifest *manifest)
{
    const char *cursor = NULL;
    weft_json_span list, value;
    WEFT_TRY(member(r, root, "files", WEFT_JSON_ARRAY, &list));
    while (weft_json_next(list, &cursor, NULL, &value)) {
        const char *name;
        int part = 0;
        WEFT_TRY(string_member(r, value, "name", &name));
        while (part < WEFT_NUM_PARTS && strcmp(name, weft_part_names[part]) != 0)
            part++;
        if (part == WEFT_NUM_PARTS)
            return wrong(r, value.start, "a file that this version does not know");
        manifest->parts[part].present = true;
        WEFT_TRY(number_member(r, value, "bytes", INT64_MAX, &manifest->parts[part].bytes));
        WEFT_TRY(hash_member(r, value, part == WEFT_PART_MODEL ? "xxh64_outside_datasets" : "xxh64",
                             &manifest->parts[part].hash));
    }
    for (int part = 0; part < WEFT_NUM_PARTS; part++) {
        if (!manifest->parts[part].present && part != WEFT_PART_TOKENIZER)
            return WEFT_ERROR(WEFT_FILE, "%s: names no %s", r->path, weft_part_names[part]);
    }
    return WEFT_OK;
}

/* No run counts so far; what is below leaves room to count on. */
#define MOST_STEPS UINT64_C(1000000000000000)
#define MOST_TOKENS (UINT64_C(1) << 62)

/* Runs without a loss scale have none. */
static weft_status read_loss_scale(const reader *r, weft_json_span root, weft_loss_scale *out)
{
    weft_json_span object, scale;
    uint64_t good, left, skipped;
    *out = (weft_loss_scale){0};
    if (!find_member(root, "loss_scale", &object))
        return WEFT_OK;
    WEFT_TRY(member(r, object, "scale", WEFT_JSON_NUMBER, &scale));
    WEFT_TRY(number_member(r, object, "good_steps", MOST_STEPS, &good));
    WEFT_TRY(number_member(r, object, "overflows_left", MOST_STEPS, &left));
    WEFT_TRY(number_member(r, object, "skipped_steps", MOST_STEPS, &skipped));
    double value = strtod(scale.start, NULL);
    if (!(value > 0 && value <= DBL_MAX))
        return wrong(r, scale.start, "not a loss scale");
    *out = (weft_loss_scale){value, (int64_t)good, (int64_t)left, (int64_t)skipped};
    return WEFT_OK;
}

/* Runs without any have none. */
static weft_status read_faults(const reader *r, weft_json_span root, weft_checkpoint_info *out)
{
    weft_json_span object, mean;
    uint64_t bad, skipped, count;
    if (!find_member(root, "faults", &object))
        return WEFT_OK;
    WEFT_TRY(number_member(r, object, "bad_steps", MOST_STEPS, &bad));
    WEFT_TRY(number_member(r, object, "skipped_batches", MOST_STEPS, &skipped));
    WEFT_TRY(member(r, object, "loss_mean", WEFT_JSON_NUMBER, &mean));
    WEFT_TRY(number_member(r, object, "loss_mean_steps", MOST_STEPS, &count));
    out->loss_mean = (weft_loss_mean){strtod(mean.start, NULL), (int64_t)count};
    if (!(out->loss_mean.mean >= -DBL_MAX && out->loss_mean.mean <= DBL_MAX))
        return wrong(r, mean.start, "not a mean");
    out->bad_steps = (int64_t)bad;
    out->skipped_batches = (int64_t)skipped;
    return WEFT_OK;
}

/* Version 1 counts samples, as long as its config says. */
static weft_status read_position(const reader *r, weft_json_span root, const char *folder,
                                 uint64_t version, int64_t *out)
{
    reader config = {.arena = r->arena};
    weft_json_span whole, model;
    uint64_t count, each = 1;
    WEFT_TRY(number_member(
        r, root, version == WEFT_CHECKPOINT_OF_SAMPLES ? "consumed_samples" : "consumed_tokens",
        MOST_TOKENS, &count));
    if (version == WEFT_CHECKPOINT_OF_SAMPLES) {
        WEFT_TRY(weft_arena_printf(r->arena, &config.path, "%s/%s", folder,
                                   weft_part_names[WEFT_PART_CONFIG]));
        WEFT_TRY(load_text(&config, &whole));
        WEFT_TRY(member(&config, whole, "model", WEFT_JSON_OBJECT, &model));
        WEFT_TRY(number_member(&config, model, "seq_length", INT64_MAX, &each));
        if (each == 0 || count > MOST_TOKENS / each)
            return wrong(&config, model.start, "a seq_length that cannot be");
    }
    *out = (int64_t)(count * each);
    return WEFT_OK;
}

static weft_status read_head(const reader *r, weft_json_span root, const char *folder,
                             weft_checkpoint_info *out)
{
    const char *format;
    uint64_t version, step;
    weft_json_span seed;
    WEFT_TRY(string_member(r, root, "format", &format));
    if (strcmp(format, WEFT_CHECKPOINT_FORMAT) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: its format is not \"" WEFT_CHECKPOINT_FORMAT "\"",
                          r->path);
    WEFT_TRY(number_member(r, root, "version", UINT64_MAX, &version));
    if (version > WEFT_CHECKPOINT_VERSION) /* whatever follows: no damage, and nothing to replace */
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: format version %" PRIu64
                          ": a newer Weft wrote it; this one reads versions up to %d",
                          r->path, version, WEFT_CHECKPOINT_VERSION);
    if (version < WEFT_CHECKPOINT_OF_SAMPLES)
        return WEFT_ERROR(WEFT_FILE, "%s: format version %" PRIu64 " never was", r->path, version);
    WEFT_TRY(number_member(r, root, "step", MOST_STEPS, &step));
    WEFT_TRY(read_position(r, root, folder, version, &out->consumed_tokens));
    WEFT_TRY(member(r, root, "seed", WEFT_JSON_STRING, &seed));
    WEFT_TRY(whole_number(r, seed, UINT64_MAX, &out->seed));
    out->step = (int64_t)step;
    WEFT_TRY(read_faults(r, root, out));
    WEFT_TRY(read_loss_scale(r, root, &out->loss_scale));
    if (out->skipped_batches + out->loss_scale.skipped_steps > out->step)
        return wrong(r, root.start, "more steps were skipped than done");
    return WEFT_OK;
}

/* A folder that is called step-N is of step N: a run believes the name where it chooses. */
static weft_status check_name(const reader *r, const char *folder, int64_t step)
{
    const char *end = strrchr(folder, '/'), *name = end ? end + 1 : folder;
    int64_t named;
    int used = 0;
    if (sscanf(name, "step-%" SCNd64 "%n", &named, &used) != 1 ||
        (name[used] && strcmp(name + used, WEFT_ASIDE) != 0) || named == step)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_FILE, "%s: is of step %" PRId64 ", and its folder of step %" PRId64,
                      r->path, step, named);
}

weft_status weft_part_check(const char *folder, const weft_manifest *manifest, int part,
                            weft_arena *arena)
{
    const char *path;
    uint64_t bytes, hash;
    weft_file file;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", folder, weft_part_names[part]));
    WEFT_TRY(weft_file_open(path, &file));
    bytes = file.bytes;
    weft_file_close(&file);
    if (bytes != manifest->parts[part].bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: %" PRIu64 " bytes long, %" PRIu64 " were saved", path,
                          bytes, manifest->parts[part].bytes);
    WEFT_TRY(weft_part_hash(path, manifest, part, &bytes, &hash));
    if (hash != manifest->parts[part].hash)
        return WEFT_ERROR(WEFT_FILE, "%s: damaged: the hash %sdiffers", path,
                          part == WEFT_PART_MODEL ? "of its structure " : "");
    return WEFT_OK;
}

/* The manifest ends with a hash of all its text before it. */
static weft_status check_end(const reader *r)
{
    char end[WEFT_MANIFEST_END_BYTES];
    size_t bytes = strlen(r->text), end_bytes = sizeof end - 1;
    if (bytes > end_bytes) {
        weft_manifest_print_end(r->text, bytes - end_bytes, end);
        if (strcmp(r->text + bytes - end_bytes, end) == 0)
            return WEFT_OK;
    }
    return WEFT_ERROR(WEFT_FILE, "%s: damaged: its own hash differs", r->path);
}

weft_status weft_manifest_read(const char *folder, weft_arena *arena, weft_manifest *out)
{
    reader r = {.arena = arena};
    weft_json_span root;
    *out = (weft_manifest){.info = {.step = 0}};
    WEFT_TRY(weft_arena_printf(arena, &r.path, "%s/" WEFT_MANIFEST_NAME, folder));
    WEFT_TRY(load_text(&r, &root));
    WEFT_TRY(read_head(&r, root, folder, &out->info));
    WEFT_TRY(check_end(&r));
    WEFT_TRY(check_name(&r, folder, out->info.step));
    WEFT_TRY(read_parts(&r, root, out));
    return read_datasets(&r, root, &out->datasets);
}

weft_status weft_checkpoint_check_format(const char *folder)
{
    weft_arena arena = {0};
    reader r = {.arena = &arena};
    weft_json_span root;
    weft_checkpoint_info info;
    weft_status status = weft_arena_printf(&arena, &r.path, "%s/" WEFT_MANIFEST_NAME, folder);
    if (status == WEFT_OK)
        status = load_text(&r, &root);
    if (status == WEFT_OK)
        status = read_head(&r, root, folder, &info);
    weft_arena_release(&arena);
    if (status == WEFT_CONFIG)
        return status;
    weft_error_clear();
    return WEFT_OK;
}

weft_status weft_parts_check(const char *folder, const weft_manifest *manifest, weft_arena *arena)
{
    for (int part = 0; part < WEFT_NUM_PARTS; part++)
        if (manifest->parts[part].present)
            WEFT_TRY(weft_part_check(folder, manifest, part, arena));
    return WEFT_OK;
}

static weft_status read_shard(const reader *r, weft_json_span object,
                              const weft_stored_list *datasets, weft_stored_shard *out)
{
    const char *name;
    int num_starts, num_counts;
    size_t elements = 1;
    WEFT_TRY(string_member(r, object, "dataset", &name));
    out->dataset = weft_stored_find(datasets, name);
    if (out->dataset < 0)
        return wrong(r, object.start, "a shard of a dataset that the manifest does not have");
    const weft_stored *stored = &datasets->items[out->dataset];
    WEFT_TRY(sizes_member(r, object, "start", out->start, &num_starts));
    WEFT_TRY(sizes_member(r, object, "count", out->count, &num_counts));
    bool fits = num_starts == stored->num_dims && num_counts == stored->num_dims;
    for (int d = 0; fits && d < stored->num_dims; d++) {
        fits = out->count[d] > 0 && out->start[d] < stored->dims[d] &&
               out->count[d] <= stored->dims[d] - out->start[d] &&
               out->count[d] <= WEFT_SHARD_MAX_ELEMENTS / elements;
        elements *= fits ? out->count[d] : 1;
    }
    if (!fits)
        return wrong(r, object.start, "the shard does not fit its dataset");
    return hash_member(r, object, "xxh64", &out->hash);
}

weft_status weft_shards_read(const char *folder, const weft_stored_list *datasets,
                             weft_arena *arena, weft_shard_list *out)
{
    reader r = {.arena = arena};
    weft_json_span root, value;
    const char *cursor = NULL;
    *out = (weft_shard_list){0};
    WEFT_TRY(weft_arena_printf(arena, &r.path, "%s/%s", folder, weft_part_names[WEFT_PART_SHARDS]));
    WEFT_TRY(load_text(&r, &root));
    WEFT_TRY(want_kind(&r, root, WEFT_JSON_ARRAY));
    while (weft_json_next(root, &cursor, NULL, &value)) {
        weft_stored_shard shard = {0};
        WEFT_TRY(read_shard(&r, value, datasets, &shard));
        WEFT_TRY(weft_shard_append(out, arena, &shard));
    }
    return weft_shards_check_cover(r.path, datasets, out);
}
