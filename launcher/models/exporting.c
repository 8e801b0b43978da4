#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/file.h"
#include "core/log.h"
#include "launcher/models/half.h"
#include "launcher/models/work.h"
#include "launcher/planning/run_changes.h"
#include "launcher/text/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"

/* Pieces are small enough that a processor's own cache has one from its reading to its hash, and so
 * many that on a busy machine the threads rarely wait for each other. */
enum { NUM_PIECES = 8, PIECE_ELEMENTS = 256 << 10, BEGIN_BYTES = 8 << 20 };

/* As transformers splits. */
static const uint64_t USUAL_SHARD_BYTES = 5000000000;

typedef struct exporting {
    const weft_export *asked;
    weft_arena *arena;
    const char *folder; /* of the checkpoint */
    weft_config config;
    const char *source;    /* the folder of what was imported; NULL: none */
    weft_config_json json; /* of it */
    const weft_family *family;
    weft_names_model model;
    weft_weights_reader *reader;
    weft_safetensor *tensors; /* that are written */
    size_t num_tensors;
    bool sets_dtype;    /* the tensors have not each the dtype of what was imported */
    const char **names; /* of files */
    int num_files;
    weft_names matched;
    const weft_name_use **uses; /* by tensor */
    uint64_t *hashes;           /* by tensor */
    /* By turns: one is read and verified while those before it are rounded, hashed and written. */
    float *pieces[NUM_PIECES];
    weft_event *written[NUM_PIECES];
    size_t num_read;
    weft_device *host;
    weft_lane *writer;
    /* The lane's: */
    uint16_t *halves;     /* a piece, rounded */
    size_t waiting_bytes; /* written since the disk was last told to begin */
    XXH64_state_t *state; /* of the tensor that is written */
} exporting;

/* --- dtypes -------------------------------------------------------------------------------- */

typedef struct dtype_name {
    const char *weft, *file, *config;
    weft_dtype dtype;
} dtype_name;

static const dtype_name dtype_names[] = {{"fp32", "F32", "float32", WEFT_F32},
                                         {"bf16", "BF16", "bfloat16", WEFT_BF16},
                                         {"fp16", "F16", "float16", WEFT_F16}};
enum { NUM_DTYPES = sizeof dtype_names / sizeof *dtype_names };

/* That of --dtype, else the run's own. */
static const dtype_name *asked_dtype(const exporting *x)
{
    const char *name =
        x->asked->dtype ? x->asked->dtype : weft_dtype_text(weft_config_dtype(&x->config));
    for (int i = 0; i < NUM_DTYPES; i++)
        if (strcmp(dtype_names[i].weft, name) == 0)
            return &dtype_names[i];
    return &dtype_names[0];
}

static void set_dtype(weft_safetensor *t, const dtype_name *dtype)
{
    t->dtype_text = dtype->file;
    t->dtype = dtype->dtype;
    t->can_read = true;
    t->bytes = weft_safetensor_elements(t) * weft_dtype_bytes(dtype->dtype);
}

/* --- what it was imported from ------------------------------------------------------------- */

/* RUN/source of RUN/checkpoints/step-N, where it is. */
static weft_status find_source_of(const char *checkpoint, weft_arena *arena, const char **out)
{
    const char *source, *config;
    WEFT_TRY(weft_checkpoint_run(checkpoint, arena, &source));
    WEFT_TRY(weft_arena_printf(arena, &source, "%s/" WEFT_SOURCE_FOLDER, source));
    WEFT_TRY(weft_arena_printf(arena, &config, "%s/config.json", source));
    *out = access(config, F_OK) == 0 ? source : NULL;
    return WEFT_OK;
}

/* Beside the checkpoint, or beside the one that its run started from. */
static weft_status find_source(exporting *x)
{
    const char *load = x->config.checkpoint.load, *from;
    x->source = x->asked->like;
    if (x->source)
        return WEFT_OK;
    WEFT_TRY(find_source_of(x->folder, x->arena, &x->source));
    if (x->source || !load)
        return WEFT_OK;
    if (access(load, F_OK) != 0) {
        weft_log(
            WEFT_LOG_WARN,
            "%s: its run began from %s, which is not there: if that was an import, nobody knows "
            "its names, dtypes and config.json, and the family's are written; --like would say",
            x->folder, load);
        return WEFT_OK;
    }
    WEFT_TRY(weft_checkpoint_resolve(load, x->arena, &from));
    return find_source_of(from, x->arena, &x->source);
}

typedef struct comparing {
    const char *source;
} comparing;

/* Training's own keys may differ; the rest is the function that the weights are of. */
static weft_status refuse_difference(void *context, const char *section, const weft_key *row,
                                     const char *is, const char *wanted)
{
    const comparing *c = context;
    if (!weft_family_has_function(section, row))
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG,
                      "the checkpoint has model.%s %s, and %s/config.json says %s: give --like a "
                      "folder whose config.json is the model's",
                      row->key, is, c->source, wanted);
}

static weft_status read_source(exporting *x)
{
    const char *path;
    weft_config wanted;
    comparing c = {.source = x->source};
    WEFT_TRY(weft_arena_printf(x->arena, &path, "%s/config.json", x->source));
    WEFT_TRY(weft_config_json_read(path, x->asked->application, x->arena, &x->json));
    WEFT_TRY(weft_config_json_load(&x->json, x->arena, &wanted));
    x->family = x->json.family;
    if (x->config.model.mtp_num_layers == 0) /* the files had none, whatever config.json says */
        wanted.model.mtp_num_layers = 0;
    return weft_run_compare(&x->config, &wanted, refuse_difference, &c);
}

/* --- which tensors ------------------------------------------------------------------------- */

/* Those of the source that are parameters or copies of one, as they are there. */
static weft_status take_source_tensors(exporting *x, const weft_origin *source)
{
    weft_names names;
    for (size_t i = 0; i < source->num_tensors; i++)
        for (int d = 0; d < NUM_DTYPES; d++)
            if (strcmp(source->tensors[i].dtype_text, dtype_names[d].file) == 0)
                set_dtype(&source->tensors[i], &dtype_names[d]);
    WEFT_TRY(weft_names_match(&x->model, source->tensors, source->num_tensors, x->source, x->arena,
                              &names));
    bool *is_used;
    WEFT_TRY(WEFT_ARRAY(x->arena, source->num_tensors + 1, &is_used));
    for (size_t i = 0; i < names.num_uses; i++)
        is_used[names.uses[i].tensor] = true;
    for (size_t i = 0; i < names.num_copies; i++)
        is_used[names.copies[i].tensor] = true;
    x->tensors = source->tensors;
    for (size_t i = 0; i < source->num_tensors; i++)
        if (is_used[i])
            x->tensors[x->num_tensors++] = source->tensors[i];
    return WEFT_OK;
}

static weft_status split_into_files(exporting *x)
{
    weft_safetensor **order;
    WEFT_TRY(WEFT_ARRAY(x->arena, x->num_tensors + 1, &order));
    for (size_t i = 0; i < x->num_tensors; i++)
        order[i] = &x->tensors[i];
    const uint64_t most = x->asked->max_shard_bytes;
    weft_safetensors_split(order, x->num_tensors, most ? most : USUAL_SHARD_BYTES, &x->num_files);
    WEFT_TRY(WEFT_ARRAY(x->arena, (size_t)x->num_files, &x->names));
    for (int f = 0; f < x->num_files; f++)
        WEFT_TRY(weft_safetensors_name(f, x->num_files, x->arena, &x->names[f]));
    return WEFT_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const weft_safetensor *)a)->name, ((const weft_safetensor *)b)->name);
}

static weft_status list_tensors(exporting *x)
{
    const char *tensors = NULL;
    weft_origin source;
    if (x->source)
        WEFT_TRY(weft_arena_printf(x->arena, &tensors, "%s/" WEFT_SOURCE_TENSORS, x->source));
    const bool as_source = tensors && access(tensors, F_OK) == 0;
    if (as_source) {
        WEFT_TRY(weft_origin_read(x->source, x->arena, &source));
        WEFT_TRY(take_source_tensors(x, &source));
    } else {
        WEFT_TRY(weft_names_list(&x->model, x->arena, &x->tensors, &x->num_tensors));
    }
    x->sets_dtype = !as_source || x->asked->dtype;
    for (size_t i = 0; i < x->num_tensors && x->sets_dtype; i++)
        set_dtype(&x->tensors[i], asked_dtype(x));
    if (!x->sets_dtype && x->asked->max_shard_bytes == 0) {
        x->names = source.names;
        x->num_files = source.num_files;
    } else {
        WEFT_TRY(split_into_files(x));
    }
    qsort(x->tensors, x->num_tensors, sizeof *x->tensors, compare_tensors);
    return WEFT_OK;
}

/* The checkpoint holds what its config says. */
static weft_status check_weights(const exporting *x)
{
    size_t count;
    const weft_weight *weights = weft_weights_list(x->reader, &count);
    for (size_t i = 0; i < count || i < x->model.num_listed; i++) {
        const weft_listed_parameter *listed = &x->model.listed[i];
        if (i < count && i < x->model.num_listed && strcmp(weights[i].name, listed->name) == 0 &&
            weights[i].num_dims == listed->num_dims &&
            memcmp(weights[i].dims, listed->dims,
                   (size_t)listed->num_dims * sizeof listed->dims[0]) == 0)
            continue;
        return WEFT_ERROR(WEFT_FILE, "%s: %s is not as its config.json says", x->folder,
                          i < count ? weights[i].name : listed->name);
    }
    return WEFT_OK;
}

static weft_status match(exporting *x)
{
    WEFT_TRY(
        weft_names_match(&x->model, x->tensors, x->num_tensors, x->folder, x->arena, &x->matched));
    WEFT_TRY(WEFT_ARRAY(x->arena, x->num_tensors + 1, &x->uses));
    WEFT_TRY(WEFT_ARRAY(x->arena, x->num_tensors + 1, &x->hashes));
    for (size_t i = 0; i < x->matched.num_uses; i++)
        x->uses[x->matched.uses[i].tensor] = &x->matched.uses[i];
    for (size_t i = 0; i < x->matched.num_copies; i++)
        x->uses[x->matched.copies[i].tensor] = &x->matched.copies[i];
    return WEFT_OK;
}

static weft_status open_writer(exporting *x)
{
    WEFT_TRY(WEFT_ARRAY(x->arena, PIECE_ELEMENTS, &x->halves));
    for (int i = 0; i < NUM_PIECES; i++)
        WEFT_TRY(WEFT_ARRAY(x->arena, PIECE_ELEMENTS, &x->pieces[i]));
    x->state = XXH64_createState();
    if (!x->state)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory to read it", x->folder);
    WEFT_TRY(weft_device_create_cpu(1, 0, &x->host));
    WEFT_TRY(weft_lane_create(x->host, 0, "write", &x->writer));
    for (int i = 0; i < NUM_PIECES; i++)
        WEFT_TRY(weft_event_create(x->host, &x->written[i]));
    return WEFT_OK;
}

static void close_writer(exporting *x)
{
    for (int i = 0; i < NUM_PIECES; i++)
        weft_event_destroy(x->written[i]);
    weft_lane_destroy(x->writer);
    weft_device_destroy(x->host);
    if (x->state)
        XXH64_freeState(x->state);
}

/* What the files cannot say. */
static void warn_of_dropping(const exporting *x)
{
    const weft_model_options *o = &x->config.model;
    if (o->num_experts > 0 && o->moe_expert_capacity_factor > 0)
        weft_log(WEFT_LOG_WARN,
                 "%s: model.moe_expert_capacity_factor %g drops tokens in training and evaluation, "
                 "and transformers drops none: its losses differ",
                 x->folder, o->moe_expert_capacity_factor);
}

static weft_status open_all(exporting *x)
{
    weft_config_source source = {.no_data = true, .application = x->asked->application};
    WEFT_TRY(weft_checkpoint_resolve(x->asked->checkpoint, x->arena, &x->folder));
    WEFT_TRY(weft_arena_printf(x->arena, &source.file, "%s/config.json", x->folder));
    WEFT_TRY(weft_checkpoint_read_config(x->folder, x->arena, &source.text));
    if (!source.text)
        return WEFT_ERROR(WEFT_FILE, "%s: holds no config", x->folder);
    WEFT_TRY(weft_config_load(&source, x->arena, &x->config));
    warn_of_dropping(x);
    WEFT_TRY(find_source(x));
    WEFT_TRY(x->source ? read_source(x)
                       : weft_family_find(&x->config, x->folder, x->arena, &x->family));
    WEFT_TRY(weft_names_model_of(x->family, &x->config, x->arena, &x->model));
    x->model.next_layers = x->config.model.mtp_num_layers > 0 ? 0 : x->json.next_layers;
    WEFT_TRY(list_tensors(x));
    WEFT_TRY(match(x));
    WEFT_TRY(weft_weights_open(x->folder, &x->reader));
    WEFT_TRY(open_writer(x));
    return check_weights(x);
}

/* --- tensors ------------------------------------------------------------------------------- */

static weft_status read_parameter(void *context, size_t index, size_t first, size_t count,
                                  float *out)
{
    return weft_weights_read(((exporting *)context)->reader, index, first, count, out);
}

/* What a dtype cannot hold would be infinite in it. */
static weft_status check_range(const weft_safetensor *t, const float *piece, size_t count)
{
    for (size_t i = 0; t->dtype == WEFT_F16 && i < count; i++)
        if (fabsf(piece[i]) >= 65520.0f)
            return WEFT_ERROR(WEFT_CONFIG, "%s: holds %g, beyond fp16's range: give --dtype bf16",
                              t->name, (double)piece[i]);
    return WEFT_OK;
}

/* A piece of a tensor on its way to the file. */
typedef struct writing {
    exporting *x;
    size_t tensor;
    const float *numbers;
    size_t first, count; /* elements */
    FILE *file;          /* NULL: for the hash alone */
    const char *name;    /* of the file */
} writing;

static weft_status write_bytes(const writing *w, const void *bytes, size_t num_bytes)
{
    size_t *waiting = &w->x->waiting_bytes;
    if (fwrite(bytes, 1, num_bytes, w->file) != num_bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->name, strerror(errno));
    *waiting += num_bytes;
    if (*waiting < BEGIN_BYTES)
        return WEFT_OK;
    *waiting = 0; /* the disk begins while the rest is made; a hint */
    (void)sync_file_range(fileno(w->file), 0, 0, SYNC_FILE_RANGE_WRITE);
    return WEFT_OK;
}

/* The lane's part: the piece as the tensor's file has it. */
static weft_status write_piece(const void *args)
{
    const writing *w = args;
    exporting *x = w->x;
    const weft_safetensor *t = &x->tensors[w->tensor];
    const size_t num_bytes = w->count * weft_dtype_bytes(t->dtype);
    const void *bytes = w->numbers;
    if (t->dtype != WEFT_F32) {
        weft_half_round(w->numbers, w->count, t->dtype, x->halves);
        bytes = x->halves;
    }
    if (w->first == 0)
        XXH64_reset(x->state, 0);
    XXH64_update(x->state, bytes, num_bytes);
    x->hashes[w->tensor] = XXH64_digest(x->state); /* the last piece's stays */
    return w->file ? write_bytes(w, bytes, num_bytes) : WEFT_OK;
}

static weft_status read_piece(exporting *x, weft_gather *gather, const writing *w, float *numbers)
{
    const weft_safetensor *t = &x->tensors[w->tensor];
    const weft_name_use *use = x->uses[w->tensor];
    const size_t of_parameter = weft_listed_elements(&x->model.listed[use->parameter]);
    WEFT_TRY(weft_gather_map(gather, &use->map, use->parameter, of_parameter, w->first, w->count,
                             numbers));
    return check_range(t, numbers, w->count);
}

static weft_status write_pieces(exporting *x, size_t index, weft_gather *gather, FILE *file,
                                const char *name)
{
    const size_t elements = weft_safetensor_elements(&x->tensors[index]);
    x->hashes[index] = XXH64("", 0, 0); /* a tensor without elements has no piece */
    for (size_t at = 0; at < elements; at += PIECE_ELEMENTS) {
        const size_t left = elements - at, turn = x->num_read++ % NUM_PIECES;
        const writing w = {.x = x,
                           .tensor = index,
                           .numbers = x->pieces[turn],
                           .first = at,
                           .count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS,
                           .file = file,
                           .name = name};
        WEFT_TRY(weft_event_wait_host(x->written[turn]));
        WEFT_TRY(read_piece(x, gather, &w, x->pieces[turn]));
        WEFT_TRY(weft_lane_submit(x->writer, "write", write_piece, &w, sizeof w));
        WEFT_TRY(weft_lane_record(x->writer, x->written[turn]));
    }
    return WEFT_OK;
}

static weft_status write_tensor(exporting *x, size_t index, FILE *file, const char *name)
{
    weft_gather gather = {.side = WEFT_MAP_FILE, .read = read_parameter, .context = x};
    const weft_status status = write_pieces(x, index, &gather, file, name);
    weft_gather_release(&gather);
    return status;
}

/* --- files --------------------------------------------------------------------------------- */

/* Before anything is written, where the file system can say so. */
static weft_status reserve(const weft_new_file *to, size_t head_bytes,
                           weft_safetensor *const *tensors, size_t count)
{
    uint64_t bytes = head_bytes;
    for (size_t i = 0; i < count; i++)
        bytes += tensors[i]->bytes;
    return weft_file_reserve(fileno(to->file), to->path, "a file", bytes);
}

/* The lane has done all: files are closed, and hashes read, next. */
static weft_status end_lane(exporting *x, weft_status status)
{
    if (status == WEFT_OK)
        return weft_lane_sync(x->writer);
    weft_device_wait(x->host);
    return status;
}

static weft_status write_tensors(exporting *x, weft_safetensor *const *tensors, size_t count,
                                 const char *head, size_t head_bytes, const weft_new_file *to)
{
    WEFT_TRY(reserve(to, head_bytes, tensors, count));
    if (fwrite(head, 1, head_bytes, to->file) != head_bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", to->path, strerror(errno));
    weft_status status = WEFT_OK;
    for (size_t i = 0; status == WEFT_OK && i < count; i++)
        status = write_tensor(x, (size_t)(tensors[i] - x->tensors), to->file, to->path);
    return end_lane(x, status);
}

static weft_status write_file(exporting *x, const char *folder, int file)
{
    const char *path, *head;
    size_t head_bytes, count = 0;
    weft_new_file to;
    weft_safetensor **tensors;
    WEFT_TRY(WEFT_ARRAY(x->arena, x->num_tensors + 1, &tensors));
    for (size_t i = 0; i < x->num_tensors; i++)
        if (x->tensors[i].file == file)
            tensors[count++] = &x->tensors[i];
    WEFT_TRY(weft_safetensors_lay_out(tensors, count, x->arena, &head, &head_bytes));
    WEFT_TRY(weft_arena_printf(x->arena, &path, "%s/%s", folder, x->names[file]));
    WEFT_TRY(weft_new_file_open(path, &to));
    return weft_new_file_close(&to, write_tensors(x, tensors, count, head, head_bytes, &to));
}

static weft_status write_index(exporting *x, const char *folder)
{
    const char *path;
    weft_new_file to;
    if (x->num_files == 1 && strcmp(x->names[0], WEFT_SAFETENSORS_FILE) == 0)
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(x->arena, &path, "%s/" WEFT_SAFETENSORS_INDEX, folder));
    WEFT_TRY(weft_new_file_open(path, &to));
    return weft_new_file_close(
        &to, weft_safetensors_write_index(x->tensors, x->num_tensors, x->names, to.file));
}

/* The tokenizer of what the model was trained on, where the checkpoint has one: its file, and the
 * token that ends a document; -1: nobody knows. */
static weft_status write_tokenizer(exporting *x, const char *folder, int64_t *out_eod)
{
    const char *text;
    weft_tokenizer_info info = {0};
    weft_prepared prepared = {0};
    weft_option_section sections[2];
    *out_eod = -1;
    WEFT_TRY(weft_checkpoint_read_tokenizer(x->folder, x->arena, &text));
    if (!text)
        return WEFT_OK;
    weft_prepared_sections(&info, &prepared, sections);
    WEFT_TRY(weft_options_parse(sections, 2, x->folder, text, NULL, 0, x->arena));
    *out_eod = info.eod;
    if (info.kind != WEFT_TOKENIZER_JSON || !info.vocab_text)
        return WEFT_OK;
    WEFT_TRY(weft_folder_write(folder, "tokenizer.json", info.vocab_text));
    /* Else transformers makes the family's own tokenizer from the vocabulary. */
    return weft_folder_write(folder, "tokenizer_config.json",
                             "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n");
}

static weft_status write_own_config(exporting *x, const char *folder, const char **out_text)
{
    int64_t eod;
    WEFT_TRY(write_tokenizer(x, folder, &eod));
    return weft_config_json_make(x->family, &x->config, eod, asked_dtype(x)->config, x->arena,
                                 out_text);
}

static weft_status write_config(exporting *x, const char *folder)
{
    const char *text;
    if (!x->source)
        WEFT_TRY(write_own_config(x, folder, &text));
    else if (x->sets_dtype)
        WEFT_TRY(weft_config_json_set_dtype(&x->json, asked_dtype(x)->config, x->arena, &text));
    else
        text = x->json.text;
    return weft_folder_write(folder, "config.json", text);
}

static weft_status write_folder(exporting *x, const char *folder)
{
    for (int f = 0; f < x->num_files; f++)
        WEFT_TRY(write_file(x, folder, f));
    WEFT_TRY(weft_weights_finish(x->reader));
    WEFT_TRY(write_index(x, folder));
    WEFT_TRY(write_config(x, folder));
    return x->source ? weft_folder_copy_texts(x->source, folder) : WEFT_OK;
}

static weft_status hash_alone(exporting *x)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; status == WEFT_OK && i < x->num_tensors; i++)
        status = write_tensor(x, i, NULL, "");
    WEFT_TRY(end_lane(x, status));
    return weft_weights_finish(x->reader);
}

static weft_status write_all(exporting *x)
{
    weft_new_folder to;
    if (!x->asked->out)
        return hash_alone(x);
    WEFT_TRY(weft_new_folder_open(x->asked->out, x->arena, &to));
    return weft_new_folder_close(&to, write_folder(x, to.partial));
}

static void fill_card(const exporting *x, weft_card *card)
{
    *card = (weft_card){.from = x->folder,
                        .to = x->asked->out,
                        .family = x->family->name,
                        .tensors = x->tensors,
                        .hashes = x->hashes,
                        .num_tensors = x->num_tensors,
                        .num_parameters = x->model.num_listed,
                        .num_files = x->num_files};
    for (size_t i = 0; i < x->num_tensors; i++)
        card->bytes += x->tensors[i].bytes;
    for (size_t i = 0; i < x->model.num_listed; i++)
        card->num_elements += weft_listed_elements(&x->model.listed[i]);
}

weft_status weft_export_model(const weft_export *export, weft_arena *arena, weft_card *card)
{
    exporting x = {.asked = export, .arena = arena};
    weft_status status = open_all(&x);
    if (status == WEFT_OK)
        status = write_all(&x);
    if (status == WEFT_OK)
        fill_card(&x, card);
    close_writer(&x);
    weft_weights_close(x.reader);
    return status;
}
