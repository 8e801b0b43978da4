#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/log.h"
#include "launcher/models/half.h"
#include "launcher/models/work.h"
#include "launcher/text/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"

typedef struct importing {
    const weft_import *asked;
    weft_arena *arena;
    weft_config_json json;
    weft_config config;
    weft_names_model model;
    weft_safetensors files;
    weft_names names;
    void *raw;   /* WEFT_PIECE_ELEMENTS as a file has them, */
    float *wide; /* and as numbers */
} importing;

/* config.json says of layers for multi-token prediction also where the files leave them out, as
 * transformers writes them. */
static bool has_next_layers(const importing *m)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%lld.eh_proj.weight",
             (long long)m->config.model.num_layers);
    for (size_t i = 0; i < m->files.num_tensors; i++)
        if (strcmp(m->files.tensors[i].name, name) == 0)
            return true;
    return false;
}

/* Training does without the tokenizer, so one that Weft has not is no reason to stop. */
static weft_status check_tokenizer(importing *m)
{
    weft_tokenizer_source source = {0};
    weft_tokenizer *tokenizer;
    WEFT_TRY(weft_arena_printf(m->arena, &source.name, "%s/tokenizer.json", m->asked->folder));
    if (access(source.name, F_OK) != 0)
        return WEFT_OK;
    const weft_status status = weft_tokenizer_create(&source, &tokenizer);
    if (status == WEFT_OK)
        weft_tokenizer_destroy(tokenizer);
    if (!weft_tokenizer_is_unknown(status))
        return status;
    weft_log(WEFT_LOG_WARN, "%s; weft generate cannot use this tokenizer", weft_error_get()->text);
    return WEFT_OK;
}

static weft_status open_all(importing *m)
{
    const char *folder = m->asked->folder, *path;
    WEFT_TRY(weft_arena_printf(m->arena, &path, "%s/config.json", folder));
    WEFT_TRY(weft_config_json_read(path, m->asked->application, m->arena, &m->json));
    WEFT_TRY(weft_config_json_load(&m->json, m->arena, &m->config));
    WEFT_TRY(weft_safetensors_open(folder, m->arena, &m->files));
    WEFT_TRY(check_tokenizer(m));
    if (m->json.next_layers > 0 && !has_next_layers(m)) {
        m->json.lacks_next_layers = true;
        WEFT_TRY(weft_config_json_take(&m->json, m->arena));
        WEFT_TRY(weft_config_json_load(&m->json, m->arena, &m->config));
    }
    WEFT_TRY(weft_names_model_of(m->json.family, &m->config, m->arena, &m->model));
    m->model.next_layers = m->config.model.mtp_num_layers > 0 ? 0 : m->json.next_layers;
    WEFT_TRY(weft_names_match(&m->model, m->files.tensors, m->files.num_tensors, folder, m->arena,
                              &m->names));
    WEFT_TRY(WEFT_ARRAY(m->arena, WEFT_PIECE_ELEMENTS, &m->wide));
    return weft_arena_alloc(m->arena, WEFT_PIECE_ELEMENTS * sizeof(float), &m->raw);
}

/* --- reading ------------------------------------------------------------------------------- */

/* raw: where elements are that the file does not have as fp32. */
static weft_status read_piece(importing *m, const weft_safetensor *t, size_t first, size_t count,
                              float *out)
{
    WEFT_TRY(weft_safetensor_read(&m->files, t, first, count, m->raw, out));
    const bool is_good = weft_are_finite(out, count);
    for (size_t i = 0; !is_good && i < count; i++)
        if (!isfinite(out[i]))
            return WEFT_ERROR(WEFT_DIVERGED, "%s: %s: element %zu is %g", m->asked->folder, t->name,
                              first + i, (double)out[i]);
    return WEFT_OK;
}

/* Of its bytes in the file; of one with scales those that an export has. */
static weft_status hash_pieces(importing *m, const weft_safetensor *t, XXH64_state_t *state)
{
    const size_t elements = weft_safetensor_elements(t);
    const weft_dtype dtype = t->scales ? WEFT_BF16 : t->dtype;
    for (size_t at = 0; at < elements; at += WEFT_PIECE_ELEMENTS) {
        const size_t left = elements - at;
        const size_t count = left < WEFT_PIECE_ELEMENTS ? left : WEFT_PIECE_ELEMENTS;
        WEFT_TRY(read_piece(m, t, at, count, m->wide));
        if (t->scales)
            weft_half_round(m->wide, count, dtype, m->raw);
        XXH64_update(state, dtype == WEFT_F32 ? m->wide : m->raw, count * weft_dtype_bytes(dtype));
    }
    return WEFT_OK;
}

static weft_status hash_tensor(importing *m, const weft_safetensor *t, uint64_t *out)
{
    XXH64_state_t *state = XXH64_createState();
    if (!state)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for a hash", t->name);
    XXH64_reset(state, 0);
    const weft_status status = hash_pieces(m, t, state);
    *out = XXH64_digest(state);
    XXH64_freeState(state);
    return status;
}

/* What fills a parameter from its beginning. */
static size_t first_of(const weft_names *names, size_t parameter)
{
    size_t i = 0;
    while (i < names->num_uses && names->uses[i].parameter != parameter)
        i++;
    return names->uses[i].tensor;
}

/* A head that the config ties may be in the files, where it says the same. */
static weft_status check_copies(importing *m)
{
    for (size_t i = 0; i < m->names.num_copies; i++) {
        const weft_name_use *copy = &m->names.copies[i];
        const size_t of = first_of(&m->names, copy->parameter);
        uint64_t hashes[2];
        WEFT_TRY(hash_tensor(m, &m->files.tensors[copy->tensor], &hashes[0]));
        WEFT_TRY(hash_tensor(m, &m->files.tensors[of], &hashes[1]));
        if (hashes[0] != hashes[1])
            return WEFT_ERROR(WEFT_FILE,
                              "%s: %s differs from %s, though config.json ties them "
                              "(tie_word_embeddings)",
                              m->asked->folder, m->files.tensors[copy->tensor].name,
                              m->files.tensors[of].name);
    }
    return WEFT_OK;
}

/* --- the checkpoint ------------------------------------------------------------------------ */

/* The checkpoint's writer refuses what is not finite. */
static weft_status read_tensor(void *context, size_t index, size_t first, size_t count, float *out)
{
    importing *m = context;
    return weft_safetensor_read(&m->files, &m->files.tensors[index], first, count, m->raw, out);
}

/* A parameter that is being written: its part of the uses. */
typedef struct parameter {
    importing *m;
    weft_gather gather;
    const weft_name_use *uses;
    size_t num_uses;
} parameter;

static weft_status fill(void *context, size_t first, size_t count, float *out)
{
    parameter *p = context;
    for (size_t i = 0; i < p->num_uses; i++) {
        const weft_name_use *use = &p->uses[i];
        const weft_safetensor *t = &p->m->files.tensors[use->tensor];
        WEFT_TRY(weft_gather_map(&p->gather, &use->map, use->tensor, weft_safetensor_elements(t),
                                 first, count, out));
    }
    return WEFT_OK;
}

/* What the writer has refused, by the tensor's own name and element. */
static weft_status name_infinite(const parameter *p, weft_status status)
{
    for (size_t i = 0; i < p->num_uses; i++) {
        const weft_safetensor *t = &p->m->files.tensors[p->uses[i].tensor];
        const size_t elements = weft_safetensor_elements(t);
        for (size_t at = 0; at < elements; at += WEFT_PIECE_ELEMENTS) {
            const size_t left = elements - at;
            WEFT_TRY(read_piece(
                p->m, t, at, left < WEFT_PIECE_ELEMENTS ? left : WEFT_PIECE_ELEMENTS, p->m->wide));
        }
    }
    return status;
}

static weft_status write_weights(importing *m, weft_weights_writer *writer)
{
    const weft_names *names = &m->names;
    weft_status status = WEFT_OK;
    for (size_t at = 0, end; status == WEFT_OK && at < names->num_uses; at = end) {
        const size_t index = names->uses[at].parameter;
        for (end = at; end < names->num_uses && names->uses[end].parameter == index;)
            end++;
        parameter p = {.m = m,
                       .gather = {.side = WEFT_MAP_PARAMETER, .read = read_tensor, .context = m},
                       .uses = &names->uses[at],
                       .num_uses = end - at};
        status = weft_weights_write(writer, m->model.listed[index].name, fill, &p);
        if (status == WEFT_DIVERGED)
            status = name_infinite(&p, status);
        weft_gather_release(&p.gather);
    }
    return status;
}

static weft_status write_checkpoint(importing *m, const char *run)
{
    const size_t count = m->model.num_listed;
    const char *dir, *text;
    weft_weights_writer *writer;
    weft_weight *weights;
    WEFT_TRY(WEFT_ARRAY(m->arena, count + 1, &weights));
    for (size_t i = 0; i < count; i++) {
        const weft_listed_parameter *listed = &m->model.listed[i];
        memcpy(weights[i].name, listed->name, sizeof weights[i].name);
        weights[i].num_dims = listed->num_dims;
        memcpy(weights[i].dims, listed->dims, sizeof weights[i].dims);
    }
    WEFT_TRY(weft_arena_printf(m->arena, &dir, "%s/checkpoints", run));
    WEFT_TRY(weft_config_text(&m->config, m->arena, &text));
    WEFT_TRY(weft_weights_create(dir, weights, count, &writer));
    weft_status status = write_weights(m, writer);
    if (status == WEFT_OK)
        status = weft_weights_publish(writer, text);
    weft_weights_abandon(writer);
    return status;
}

/* --- the folder ---------------------------------------------------------------------------- */

/* As a member of a larger object. */
static weft_status indent(const char *json, weft_arena *arena, const char **out)
{
    size_t used = 0;
    char *text;
    WEFT_TRY(weft_arena_alloc(arena, 3 * strlen(json) + 1, &text));
    for (const char *at = json; *at && !(at[0] == '\n' && !at[1]); at++) {
        text[used++] = *at;
        if (*at == '\n')
            text[used++] = ' ', text[used++] = ' ';
    }
    text[used] = '\0';
    *out = text;
    return WEFT_OK;
}

static weft_status write_config(importing *m, const weft_new_folder *run)
{
    const char *text, *model = NULL;
    WEFT_TRY(indent(m->json.model, m->arena, &model));
    WEFT_TRY(weft_arena_printf(
        m->arena, &text, "{\n  \"model\": %s,\n  \"checkpoint\": {\"load\": \".\"}\n}\n", model));
    return weft_folder_write(run->partial, "config.json", text);
}

static weft_status write_source(importing *m, const weft_new_folder *run)
{
    const char *source, *config;
    WEFT_TRY(weft_arena_printf(m->arena, &source, "%s/" WEFT_SOURCE_FOLDER, run->partial));
    if (mkdir(source, 0777) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", source, strerror(errno));
    WEFT_TRY(weft_folder_copy_texts(m->asked->folder, source));
    WEFT_TRY(weft_config_json_without_scales(&m->json, m->arena, &config));
    WEFT_TRY(weft_folder_write(source, "config.json", config));
    return weft_origin_write(source, &m->files);
}

static weft_status write_run(importing *m)
{
    weft_new_folder run;
    WEFT_TRY(weft_new_folder_open(m->asked->out, m->arena, &run));
    weft_status status = write_checkpoint(m, run.partial);
    if (status == WEFT_OK)
        status = write_source(m, &run);
    if (status == WEFT_OK)
        status = write_config(m, &run);
    return weft_new_folder_close(&run, status);
}

/* --- the card ------------------------------------------------------------------------------ */

static weft_status hash_tensors(importing *m, weft_card *card)
{
    uint64_t *hashes;
    WEFT_TRY(WEFT_ARRAY(m->arena, card->num_tensors + 1, &hashes));
    for (size_t i = 0; i < card->num_tensors; i++)
        WEFT_TRY(hash_tensor(m, &card->tensors[i], &hashes[i]));
    card->hashes = hashes;
    return WEFT_OK;
}

/* The tensors that are parameters: ignored ones and copies are lists of their own. */
static weft_status list_tensors(importing *m, weft_card *card)
{
    const weft_names *names = &m->names;
    bool *is_used;
    WEFT_TRY(WEFT_ARRAY(m->arena, m->files.num_tensors + 1, &is_used));
    for (size_t i = 0; i < names->num_uses; i++)
        is_used[names->uses[i].tensor] = true;
    weft_safetensor *tensors;
    WEFT_TRY(WEFT_ARRAY(m->arena, names->num_uses + 1, &tensors));
    card->tensors = tensors;
    for (size_t i = 0; i < m->files.num_tensors; i++)
        if (is_used[i]) {
            tensors[card->num_tensors++] = m->files.tensors[i];
            card->bytes += m->files.tensors[i].bytes;
            card->num_scaled += m->files.tensors[i].scales != NULL;
        }
    const char **copies;
    WEFT_TRY(WEFT_ARRAY(m->arena, names->num_copies + 1, &copies));
    for (size_t i = 0; i < names->num_copies; i++)
        copies[i] = m->files.tensors[names->copies[i].tensor].name;
    card->copies = (weft_string_list){.values = copies, .count = names->num_copies};
    return WEFT_OK;
}

static weft_status fill_card(importing *m, weft_card *card)
{
    *card = (weft_card){.from = m->asked->folder,
                        .to = m->asked->out,
                        .family = m->json.family->name,
                        .num_parameters = m->model.num_listed,
                        .num_files = m->files.num_files,
                        .ignored_tensors = m->names.ignored,
                        .ignored_keys = m->json.ignored};
    for (size_t i = 0; i < m->model.num_listed; i++)
        card->num_elements += weft_listed_elements(&m->model.listed[i]);
    WEFT_TRY(list_tensors(m, card));
    return m->asked->out ? WEFT_OK : hash_tensors(m, card);
}

weft_status weft_import_model(const weft_import *import, weft_arena *arena, weft_card *card)
{
    importing m = {.asked = import, .arena = arena};
    weft_status status = open_all(&m);
    if (status == WEFT_OK)
        status = check_copies(&m);
    if (status == WEFT_OK && import->out)
        status = write_run(&m);
    if (status == WEFT_OK)
        status = fill_card(&m, card);
    weft_safetensors_release(&m.files);
    return status;
}
