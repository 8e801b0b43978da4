#include "launcher/models/work.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/json_write.h"
#include "launcher/planning/step.h"

weft_status weft_names_model_of(const weft_family *family, const weft_config *config,
                                weft_arena *arena, weft_names_model *out)
{
    const weft_moe_options moe = {.pipeline = {.num_partitions = 1}};
    const weft_model_setup setup = weft_step_setup(config, &moe);
    weft_listed_parameter *listed;
    size_t count;
    WEFT_TRY(weft_model_list_parameters(&setup, weft_config_build(config), arena, &listed, &count));
    *out = (weft_names_model){
        .family = family, .options = &config->model, .listed = listed, .num_listed = count};
    return WEFT_OK;
}

/* --- gathering ----------------------------------------------------------------------------- */

typedef struct gathering {
    weft_gather *gather;
    size_t other, first;
    float *out;
} gathering;

static weft_status gather_run(void *context, size_t here, size_t there, size_t count, size_t stride)
{
    const gathering *g = context;
    float *out = g->out + (here - g->first);
    if (stride == 1)
        return g->gather->read(g->gather->context, g->other, there, count, out);
    for (size_t i = 0; i < count; i++)
        out[i] = g->gather->whole[there + i * stride];
    return WEFT_OK;
}

static weft_status load_whole(weft_gather *g, size_t other, size_t elements)
{
    if (g->whole && g->whole_of == other)
        return WEFT_OK;
    free(g->whole);
    g->whole = malloc(elements * sizeof *g->whole);
    g->whole_of = other;
    if (!g->whole)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to transpose %zu elements", elements);
    for (size_t at = 0; at < elements; at += WEFT_PIECE_ELEMENTS) {
        const size_t left = elements - at;
        WEFT_TRY(g->read(g->context, other, at,
                         left < WEFT_PIECE_ELEMENTS ? left : WEFT_PIECE_ELEMENTS, g->whole + at));
    }
    return WEFT_OK;
}

weft_status weft_gather_map(weft_gather *g, const weft_map *map, size_t other,
                            size_t other_elements, size_t first, size_t count, float *out)
{
    gathering now = {.gather = g, .other = other, .first = first, .out = out};
    if (!weft_map_is_straight(map))
        WEFT_TRY(load_whole(g, other, other_elements));
    for (int p = 0; p < map->num_pieces; p++)
        WEFT_TRY(weft_map_visit(&map->pieces[p], g->side, first, count, gather_run, &now));
    return WEFT_OK;
}

void weft_gather_release(weft_gather *g)
{
    free(g->whole);
    g->whole = NULL;
}

/* --- folders ------------------------------------------------------------------------------- */

enum { PATH_BYTES = 4096 };
#define PART ".weft-part"

static weft_status join(const char *folder, const char *name, char out[PATH_BYTES])
{
    return weft_path_print(out, PATH_BYTES, "%s/%s", folder, name);
}

/* All that is in it. Ignores failures. */
static void remove_folder(const char *path)
{
    char below[PATH_BYTES];
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            join(path, entry->d_name, below) != WEFT_OK)
            continue;
        if (unlink(below) != 0)
            remove_folder(below);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

/* Removes what a command of this name left that was killed. */
static weft_status make_way(const weft_new_folder *folder, const char *mark)
{
    if (rmdir(folder->partial) == 0 || errno == ENOENT)
        return WEFT_OK;
    const int fd = open(mark, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: is there, and Weft has not made it; give another --out",
                          folder->partial);
    const bool is_written = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_written)
        remove_folder(folder->partial);
    close(fd);
    return is_written
               ? WEFT_ERROR(WEFT_CONFIG, "%s: another process makes this folder", folder->path)
               : WEFT_OK;
}

weft_status weft_new_folder_open(const char *path, weft_arena *arena, weft_new_folder *out)
{
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    WEFT_TRY(weft_arena_printf(arena, &out->path, "%.*s", (int)bytes, path));
    const char *slash = strrchr(out->path, '/'), *name = slash ? slash + 1 : out->path, *mark;
    WEFT_TRY(weft_arena_printf(arena, &out->partial, "%.*s.%s" PART, (int)(name - out->path),
                               out->path, name));
    WEFT_TRY(weft_arena_printf(arena, &mark, "%s/" PART, out->partial));
    if (rmdir(out->path) != 0 && errno != ENOENT) { /* an empty one makes way */
        const char *why = strerror(errno);
        if (access(out->path, F_OK) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "%s: is there already; give another --out", path);
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", path, why);
    }
    WEFT_TRY(make_way(out, mark));
    out->lock = mkdir(out->partial, 0777) == 0
                    ? open(mark, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)0666)
                    : -1;
    if (out->lock < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", out->partial,
                          strerror(errno));
    (void)flock(out->lock, LOCK_EX | LOCK_NB); /* a file system without locks cannot tell */
    return WEFT_OK;
}

weft_status weft_new_folder_close(const weft_new_folder *folder, weft_status status)
{
    if (status == WEFT_OK && rename(folder->partial, folder->path) != 0)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot rename %s to it: %s", folder->path,
                            folder->partial, strerror(errno));
    char mark[PATH_BYTES];
    if (status != WEFT_OK)
        remove_folder(folder->partial);
    else if (join(folder->path, PART, mark) == WEFT_OK)
        unlink(mark);
    close(folder->lock);
    return status;
}

static weft_status write_bytes(const char *path, const void *bytes, size_t num_bytes)
{
    weft_new_file file;
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_status status = WEFT_OK;
    if (fwrite(bytes, 1, num_bytes, file.file) != num_bytes)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return weft_new_file_close(&file, status);
}

weft_status weft_folder_write(const char *folder, const char *name, const char *text)
{
    char path[PATH_BYTES];
    WEFT_TRY(join(folder, name, path));
    return write_bytes(path, text, strlen(text));
}

static bool ends_with(const char *name, const char *end)
{
    const size_t bytes = strlen(name), of_end = strlen(end);
    return bytes > of_end && strcmp(name + bytes - of_end, end) == 0;
}

static bool is_text(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".txt", ".model", ".tiktoken"};
    if (strcmp(name, "config.json") == 0 || strcmp(name, WEFT_SOURCE_TENSORS) == 0 ||
        ends_with(name, ".index.json"))
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static weft_status copy_file(const char *from, const char *to)
{
    weft_arena arena = {0};
    char *bytes;
    size_t count;
    weft_status status = weft_file_read_text(from, &arena, &bytes, &count);
    if (status == WEFT_OK)
        status = write_bytes(to, bytes, count);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_folder_copy_texts(const char *from, const char *to)
{
    char source[PATH_BYTES], target[PATH_BYTES];
    weft_status status = WEFT_OK;
    DIR *folder = opendir(from);
    if (!folder)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", from, strerror(errno));
    for (const struct dirent *entry; status == WEFT_OK && (entry = readdir(folder));) {
        if (!is_text(entry->d_name))
            continue;
        status = join(from, entry->d_name, source);
        if (status == WEFT_OK)
            status = join(to, entry->d_name, target);
        if (status == WEFT_OK)
            status = copy_file(source, target);
    }
    closedir(folder);
    return status;
}

/* --- the source's tensors ------------------------------------------------------------------ */

static void write_tensor(const weft_safetensors *files, const weft_safetensor *t,
                         weft_json_out *out)
{
    char name[PATH_BYTES];
    const int last = t->num_dims - 1;
    const size_t cut = t->is_fp4 ? strlen("_blocks") : 0;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(t->name) - cut), t->name);
    weft_json_open_flat(out, NULL, '{');
    weft_json_text(out, "name", name);
    weft_json_text(out, "dtype", t->scales ? "BF16" : t->dtype_text);
    weft_json_open_flat(out, "shape", '[');
    for (int d = 0; d <= last; d++) { /* NAME_blocks have rows before columns, NAME behind them */
        const int of = t->is_fp4 && d >= last - 1 ? 2 * last - 1 - d : d;
        weft_json_number(out, NULL, (double)t->dims[of]);
    }
    weft_json_close(out);
    weft_json_text(out, "file", files->names[t->file]);
    weft_json_close(out);
}

weft_status weft_origin_write(const char *folder, const weft_safetensors *files)
{
    char path[PATH_BYTES];
    weft_new_file file;
    WEFT_TRY(join(folder, WEFT_SOURCE_TENSORS, path));
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_json_out out = {.file = file.file};
    weft_json_open(&out, NULL, '[');
    for (size_t i = 0; i < files->num_tensors; i++)
        if (!files->tensors[i].is_scales)
            write_tensor(files, &files->tensors[i], &out);
    weft_json_close(&out);
    return weft_new_file_close(&file, WEFT_OK);
}

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

/* Sizes of tensors' own are not there: the model says them. */
static weft_status take_tensor(const cJSON *row, const char *path, weft_arena *arena,
                               weft_origin *out)
{
    weft_safetensor *t = &out->tensors[out->num_tensors++];
    const char *name = text_of(row, "name"), *file = text_of(row, "file");
    const cJSON *dim;
    *t = (weft_safetensor){.num_dims = 0};
    if (!*name || !*file || *file == '.' || strchr(file, '/'))
        return WEFT_ERROR(WEFT_FILE, "%s: tensor %zu has no name, or no file", path,
                          out->num_tensors);
    WEFT_TRY(weft_arena_strdup(arena, name, &t->name));
    WEFT_TRY(weft_arena_strdup(arena, text_of(row, "dtype"), &t->dtype_text));
    cJSON_ArrayForEach(dim, cJSON_GetObjectItemCaseSensitive(row, "shape"))
    {
        if (t->num_dims == WEFT_SAFETENSORS_MAX_DIMS || !(dim->valuedouble >= 0) ||
            dim->valuedouble > 1e15)
            return WEFT_ERROR(WEFT_FILE, "%s: %s: has no shape", path, name);
        t->dims[t->num_dims++] = (size_t)dim->valuedouble;
    }
    for (t->file = 0; t->file < out->num_files; t->file++)
        if (strcmp(out->names[t->file], file) == 0)
            return WEFT_OK;
    return weft_arena_strdup(arena, file, &out->names[out->num_files++]);
}

static weft_status take_tensors(const cJSON *list, const char *path, weft_arena *arena,
                                weft_origin *out)
{
    const size_t count = (size_t)cJSON_GetArraySize(list);
    const cJSON *row;
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &out->tensors));
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &out->names));
    cJSON_ArrayForEach(row, list) WEFT_TRY(take_tensor(row, path, arena, out));
    return WEFT_OK;
}

weft_status weft_origin_read(const char *folder, weft_arena *arena, weft_origin *out)
{
    const char *path;
    char *text;
    *out = (weft_origin){.num_files = 0};
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/" WEFT_SOURCE_TENSORS, folder));
    WEFT_TRY(weft_file_read_text(path, arena, &text, NULL));
    cJSON *list = cJSON_Parse(text);
    weft_status status = cJSON_IsArray(list)
                             ? take_tensors(list, path, arena, out)
                             : WEFT_ERROR(WEFT_FILE, "%s: holds no list of tensors", path);
    cJSON_Delete(list);
    return status;
}
