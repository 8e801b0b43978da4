#include "launcher/text/tokenizer.h"

#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/file.h"
#include "core/key_rows.h"
#include "launcher/text/rules.h"
#include "launcher/text/tokenizer_json.h"

struct weft_tokenizer {
    weft_tokenizer_info info;
    weft_arena arena; /* the info's strings, and the rules' */
    weft_rules rules; /* zero: bytes */
    char *text;       /* of a tokenizer.json */
    char bytes[256];  /* the pieces of bytes */
};

struct weft_encoder {
    const weft_tokenizer *tokenizer;
    weft_rules_worker *worker; /* NULL: bytes */
};

static const char *const kind_names[] = {"bytes", "gpt2", "tokenizer.json"};
enum { NUM_KINDS = sizeof kind_names / sizeof *kind_names, BYTES_EOD = 256 };

#define T weft_tokenizer_info
static const weft_key tokenizer_rows[] = {
    ROW(FREE, "name", kind, CHOICE, "\"bytes\"", 0, 0, NULL, "the tokenizer",
        .choices = "bytes|gpt2|tokenizer.json"),
    RANGE(FREE, vocab_size, "257", 1, INT32_MAX, "tokens", "the number of tokens, unpadded"),
    RANGE(FREE, eod, "256", 0, INT32_MAX, NULL, "the end-of-document token"),
    FLAG(FREE, special_tokens, "false", "documents have those of the file's post_processor"),
    TEXT(FREE, vocab_file, NULL, "path of encoder.json or tokenizer.json"),
    TEXT(FREE, merge_file, NULL, "path of vocab.bpe"),
    TEXT(FREE, vocab_file_xxh64, NULL, "its XXH64 checksum"),
    TEXT(FREE, merge_file_xxh64, NULL, "its XXH64 checksum"),
    TEXT(FREE, vocab_text, NULL, "the first file itself, in checkpoints"),
};
#undef T

#define T weft_prepared
static const weft_key prepared_rows[] = {
    RANGE(FREE, documents, "0", 0, 9.3e18, NULL, "documents written"),
    RANGE(FREE, tokens, "0", 0, 9.3e18, NULL, "tokens written"),
    FLAG(FREE, append_eod, "false", "each document ends with the eod token"),
    RANGE(FREE, packed_length, "0", 0, INT32_MAX, "tokens",
          "of sequences that documents are packed in; 0: they are not"),
};
#undef T

void weft_prepared_sections(weft_tokenizer_info *info, weft_prepared *prepared,
                            weft_option_section out[2])
{
    out[0] = (weft_option_section){"tokenizer", tokenizer_rows,
                                   sizeof tokenizer_rows / sizeof *tokenizer_rows, info,
                                   "what made the tokens"};
    out[1] = (weft_option_section){"dataset", prepared_rows,
                                   sizeof prepared_rows / sizeof *prepared_rows, prepared,
                                   "what was made"};
}

static weft_status refuse_changed(const char *file)
{
    return WEFT_ERROR(WEFT_FILE,
                      "%s: not the file that the dataset was prepared with (its checksum differs)",
                      file);
}

static weft_status print_checksum(const char *text, size_t bytes, weft_arena *arena,
                                  const char **out)
{
    return weft_arena_printf(arena, out, "%016llx", (unsigned long long)XXH64(text, bytes, 0));
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* A file that is not where it was may have moved together with the JSON file at `path`. */
static weft_status find_moved(const char *path, weft_arena *arena, const char **file)
{
    if (!*file || access(*file, R_OK) == 0)
        return WEFT_OK;
    const char *folder, *name, *beside;
    WEFT_TRY(weft_arena_printf(arena, &folder, "%s", path));
    WEFT_TRY(weft_arena_printf(arena, &name, "%s", *file));
    /* Both want text that they may change; the arena's copies are ours. */
    WEFT_TRY(weft_arena_printf(arena, &beside, "%s/%s", dirname((char *)folder),
                               basename((char *)name)));
    if (access(beside, R_OK) == 0)
        *file = beside;
    return WEFT_OK;
}

weft_status weft_prepared_read(const char *path, weft_arena *arena, weft_tokenizer_info *info,
                               weft_prepared *prepared)
{
    weft_option_section sections[2];
    char *text;
    weft_prepared_sections(info, prepared, sections);
    WEFT_TRY(weft_file_read_text(path, arena, &text, NULL));
    WEFT_TRY(weft_options_parse(sections, 2, path, text, NULL, 0, arena));
    WEFT_TRY(find_moved(path, arena, &info->vocab_file));
    WEFT_TRY(find_moved(path, arena, &info->merge_file));
    return WEFT_OK;
}

weft_status weft_prepared_pack(const char *path, weft_arena *arena, const char **out)
{
    weft_tokenizer_info info = {0};
    weft_prepared prepared = {0};
    weft_option_section sections[2];
    char *text;
    const char *checksum;
    size_t bytes;
    WEFT_TRY(weft_file_read_text(path, arena, &text, NULL));
    WEFT_TRY(weft_prepared_read(path, arena, &info, &prepared));
    *out = text;
    if (info.kind != WEFT_TOKENIZER_JSON)
        return WEFT_OK;
    if (!info.vocab_file)
        return WEFT_ERROR(WEFT_FILE, "%s: names no tokenizer.json", path);
    WEFT_TRY(weft_file_read_text(info.vocab_file, arena, &text, &bytes));
    WEFT_TRY(print_checksum(text, bytes, arena, &checksum));
    if (!same_text(checksum, info.vocab_file_xxh64))
        return refuse_changed(info.vocab_file);
    info.vocab_text = text;
    weft_prepared_sections(&info, &prepared, sections);
    weft_new_text packed;
    WEFT_TRY(weft_new_text_open(&packed));
    const weft_status status = weft_options_write(sections, 2, packed.file);
    return weft_new_text_close(&packed, status, arena, out);
}

weft_status weft_prepared_find(const char *prefix, weft_arena *arena, weft_tokenizer_info *info,
                               weft_prepared *prepared)
{
    const char *path;
    *info = (weft_tokenizer_info){0};
    *prepared = (weft_prepared){0};
    WEFT_TRY(weft_arena_printf(arena, &path, "%s.json", prefix));
    if (access(path, R_OK) != 0)
        return WEFT_OK;
    weft_status status = weft_prepared_read(path, arena, info, prepared);
    if (status == WEFT_CONFIG) /* not the user's config: a file that belongs to the dataset */
        status = WEFT_ERROR(WEFT_FILE, "%s", weft_error_get()->text);
    return status;
}

weft_status weft_tokenizer_identity(const weft_tokenizer_info *info, weft_arena *arena,
                                    const char **out)
{
    if (info->vocab_size == 0)
        return weft_arena_strdup(arena, "", out);
    return weft_arena_printf(arena, out, "%s %" PRId64 " %" PRId64 " %s %s",
                             weft_tokenizer_kind_name((weft_tokenizer_kind)info->kind),
                             info->vocab_size, info->eod,
                             info->vocab_file_xxh64 ? info->vocab_file_xxh64 : "",
                             info->merge_file_xxh64 ? info->merge_file_xxh64 : "");
}

const char *weft_tokenizer_kind_name(weft_tokenizer_kind kind)
{
    return kind_names[kind];
}

/* --- making one ---------------------------------------------------------------------------- */

/* Keeps a file's absolute path and its checksum. */
static weft_status note_file(weft_tokenizer *t, const char *path, const char *text, size_t bytes,
                             const char **absolute, const char **checksum)
{
    if (strlen(text) != bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: holds a NUL byte: not a vocabulary's file", path);
    WEFT_TRY(print_checksum(text, bytes, &t->arena, checksum));
    char *real = realpath(path, NULL);
    weft_status status = weft_arena_strdup(&t->arena, real ? real : path, absolute);
    free(real);
    return status;
}

static weft_status init_gpt2(weft_tokenizer *t, const char *vocab_file, const char *merge_file,
                             weft_arena *scratch)
{
    char *vocab, *merges;
    size_t bytes;
    uint32_t eod;
    weft_tokenizer_info *info = &t->info;
    WEFT_TRY(weft_file_read_text(vocab_file, scratch, &vocab, &bytes));
    WEFT_TRY(note_file(t, vocab_file, vocab, bytes, &info->vocab_file, &info->vocab_file_xxh64));
    WEFT_TRY(weft_file_read_text(merge_file, scratch, &merges, &bytes));
    WEFT_TRY(note_file(t, merge_file, merges, bytes, &info->merge_file, &info->merge_file_xxh64));
    WEFT_TRY(weft_gpt2_read(vocab_file, vocab, merge_file, merges, &t->arena, &t->rules, &eod));
    info->eod = eod;
    return WEFT_OK;
}

/* text: the file's, where it is known. */
static weft_status init_json(weft_tokenizer *t, const char *file, const char *text)
{
    size_t bytes;
    if (text) {
        weft_bytes copy;
        bytes = strlen(text);
        WEFT_TRY(weft_bytes_copy((weft_bytes){text, bytes}, &t->arena, &copy));
        t->text = (char *)copy.text; /* the arena's copies are ours */
    } else {
        WEFT_TRY(weft_file_read_text(file, &t->arena, &t->text, &bytes));
    }
    WEFT_TRY(note_file(t, file, t->text, bytes, &t->info.vocab_file, &t->info.vocab_file_xxh64));
    return weft_tokenizer_json_read(file, t->text, &t->arena, &t->rules);
}

static weft_status init(weft_tokenizer *t, const weft_tokenizer_info *from)
{
    t->info = (weft_tokenizer_info){
        .kind = from->kind, .eod = from->eod, .special_tokens = from->special_tokens};
    if (from->kind == WEFT_TOKENIZER_BYTES) {
        for (int b = 0; b < 256; b++)
            t->bytes[b] = (char)(unsigned char)b;
        t->info.vocab_size = BYTES_EOD + 1;
        t->info.eod = BYTES_EOD;
        return WEFT_OK;
    }
    if (!from->vocab_file || (from->kind == WEFT_TOKENIZER_GPT2 && !from->merge_file))
        return WEFT_ERROR(WEFT_CONFIG, "the %s tokenizer wants its %s", kind_names[from->kind],
                          from->vocab_file   ? "merges (vocab.bpe)"
                          : from->merge_file ? "vocabulary (encoder.json)"
                                             : "vocabulary (encoder.json) and merges (vocab.bpe)");
    weft_arena scratch = {0};
    const weft_status status = from->kind == WEFT_TOKENIZER_JSON
                                   ? init_json(t, from->vocab_file, from->vocab_text)
                                   : init_gpt2(t, from->vocab_file, from->merge_file, &scratch);
    weft_arena_release(&scratch);
    t->info.vocab_size = t->rules.tables.num_tokens;
    return status;
}

static weft_status create(const weft_tokenizer_info *from, weft_tokenizer **out)
{
    weft_tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer");
    const weft_status status = init(t, from);
    if (status != WEFT_OK) {
        weft_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

/* Sets *out where there is an eos_token in the tokenizer_config.json beside a tokenizer.json. */
static weft_status read_eos_token(const char *file, weft_arena *arena, const char **out)
{
    const char *folder, *path;
    char *text;
    weft_json_place whole;
    weft_bytes eos;
    WEFT_TRY(weft_arena_strdup(arena, file, &folder));
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/tokenizer_config.json",
                               dirname((char *)folder))); /* the arena's copies are ours */
    if (access(path, R_OK) != 0)
        return WEFT_OK;
    WEFT_TRY(weft_file_read_text(path, arena, &text, NULL));
    WEFT_TRY(weft_json_whole(path, text, &whole));
    weft_json_place token = weft_json_member(&whole, "eos_token"), content;
    if (!weft_json_is_there(&token))
        return WEFT_OK;
    content = weft_json_member(&token, "content"); /* an older way of writing it */
    WEFT_TRY(weft_json_get_text(content.value.start ? &content : &token, arena, &eos));
    *out = eos.text;
    return WEFT_OK;
}

/* The id of an added token or of one in the vocabulary; WEFT_NO_ID: none. */
static uint32_t find_token(const weft_rules *r, const char *text)
{
    const weft_bytes wanted = weft_bytes_of(text);
    const weft_added *lists[] = {&r->added, &r->added_changed};
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < lists[l]->count; i++)
            if (lists[l]->tokens[i].text.bytes == wanted.bytes &&
                weft_bytes_begin(lists[l]->tokens[i].text, wanted))
                return lists[l]->tokens[i].id;
    for (uint32_t id = 0; id < r->tables.num_tokens; id++)
        if (r->tables.tokens[id].text && r->tables.tokens[id].bytes == wanted.bytes &&
            weft_bytes_begin(r->tables.tokens[id], wanted))
            return id;
    return WEFT_NO_ID;
}

int32_t weft_tokenizer_find(const weft_tokenizer *tokenizer, const char *text)
{
    const uint32_t id = tokenizer->info.kind == WEFT_TOKENIZER_JSON
                            ? find_token(&tokenizer->rules, text)
                            : WEFT_NO_ID;
    return id == WEFT_NO_ID ? -1 : (int32_t)id;
}

/* The one special token with a name that such tokens have. */
static weft_status guess_eod(const weft_tokenizer *t, const char *file, uint32_t *out)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                        ("<\xef\xbd\x9c"
                                         "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>")};
    int count = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const uint32_t id = find_token(&t->rules, names[i]);
        if (id == WEFT_NO_ID || t->rules.pieces[id].text) /* none, or an ordinary one */
            continue;
        *out = id;
        count++;
    }
    if (count == 1)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s: %s token is called as one that ends a document is: --eod-token would "
                      "name it",
                      file, count ? "more than one" : "no");
}

static weft_status find_eod(weft_tokenizer *t, const char *file, const char *name)
{
    weft_arena arena = {0};
    const char *eos = name;
    uint32_t id = WEFT_NO_ID;
    weft_status status = name ? WEFT_OK : read_eos_token(file, &arena, &eos);
    if (status == WEFT_OK && eos) {
        id = find_token(&t->rules, eos);
        if (id == WEFT_NO_ID)
            status = WEFT_ERROR(WEFT_CONFIG, "%s: has no token %.64s, which %s names", file, eos,
                                name ? "--eod-token" : "tokenizer_config.json's eos_token");
    } else if (status == WEFT_OK) {
        status = guess_eod(t, file, &id);
    }
    weft_arena_release(&arena);
    t->info.eod = id;
    return status;
}

static weft_status refuse_folder(const char *path)
{
    const int bytes = (int)(strlen(path) - (path[strlen(path) - 1] == '/'));
    char of_run[4096];
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return WEFT_OK;
    snprintf(of_run, sizeof of_run, "%.*s/source/tokenizer.json", bytes, path);
    return WEFT_ERROR(WEFT_CONFIG, "%s: a folder, where a tokenizer.json belongs: %.*s%s", path,
                      bytes, path,
                      access(of_run, F_OK) == 0 ? "/source/tokenizer.json" : "/tokenizer.json");
}

/* Whether it is the config.json of a model, or a config of Weft's. */
static bool is_config(const char *path, const char *text)
{
    static const char *const names[] = {"architectures", "model_type", "train", "parallel"};
    weft_json_place whole;
    bool is = false;
    if (weft_json_whole(path, text, &whole) != WEFT_OK) {
        weft_error_clear();
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const weft_json_place member = weft_json_member(&whole, names[i]);
        is = is || member.value.start;
    }
    const weft_json_place model = weft_json_member(&whole, "model"),
                          layers = weft_json_member(&model, "num_layers");
    return is || layers.value.start;
}

/* `status`, with which a file was refused as a tokenizer.json; of a model's config what it is, and
 * where the tokenizer may be. */
static weft_status refuse_config(const char *path, weft_status status)
{
    weft_arena arena = {0};
    weft_error first;
    const char *copy = NULL, *beside = "";
    char *text;
    weft_error_take(&first);
    weft_status read = weft_file_read_text(path, &arena, &text, NULL);
    const bool is = read == WEFT_OK && is_config(path, text);
    if (is)
        read = weft_arena_strdup(&arena, path, &copy);
    if (is && read == WEFT_OK)
        read = weft_arena_printf(&arena, &beside, "%s/tokenizer.json", dirname((char *)copy));
    weft_error_clear();
    if (is && read == WEFT_OK)
        status =
            WEFT_ERROR(WEFT_CONFIG, "%s: a model's config, where a tokenizer.json belongs: %s%s",
                       path, access(beside, F_OK) == 0 ? "" : "there is no ", beside);
    else
        weft_error_put(&first);
    weft_arena_release(&arena);
    return status;
}

/* eod: --eod-token; NULL: none. */
static weft_status create_json(const weft_tokenizer_info *info, const char *eod,
                               weft_tokenizer **out)
{
    const char *file = info->vocab_file;
    weft_tokenizer *t;
    WEFT_TRY(refuse_folder(file));
    weft_status status = create(info, &t);
    if (status == WEFT_FILE || status == WEFT_CONFIG)
        return refuse_config(file, status);
    WEFT_TRY(status);
    status = find_eod(t, file, eod);
    if (status != WEFT_OK) {
        weft_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

weft_status weft_tokenizer_create(const weft_tokenizer_source *source, weft_tokenizer **out)
{
    const char *name = source->name ? source->name : kind_names[WEFT_TOKENIZER_BYTES];
    weft_tokenizer_info info = {.kind = WEFT_TOKENIZER_JSON,
                                .special_tokens = !source->no_special_tokens,
                                .vocab_file = name};
    for (int i = 0; i < WEFT_TOKENIZER_JSON; i++)
        if (strcmp(name, kind_names[i]) == 0)
            info = (weft_tokenizer_info){
                .kind = i, .vocab_file = source->vocab_file, .merge_file = source->merge_file};
    if (info.kind == WEFT_TOKENIZER_JSON && !strpbrk(name, "./") && access(name, F_OK) != 0) {
        const char *near = weft_nearest_name(name, kind_names, NUM_KINDS);
        return WEFT_ERROR(WEFT_CONFIG,
                          "unknown tokenizer \"%.64s\"; expected bytes, gpt2 or the path of a "
                          "tokenizer.json%s%s%s",
                          name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (info.kind != WEFT_TOKENIZER_GPT2 && (source->vocab_file || source->merge_file))
        return WEFT_ERROR(WEFT_CONFIG, "the %s tokenizer has no vocabulary or merge file",
                          kind_names[info.kind]);
    if (info.kind != WEFT_TOKENIZER_JSON && (source->eod || source->no_special_tokens))
        return WEFT_ERROR(WEFT_CONFIG, "%s is for a tokenizer.json alone",
                          source->eod ? "--eod-token" : "--no-special-tokens");
    return info.kind == WEFT_TOKENIZER_JSON ? create_json(&info, source->eod, out)
                                            : create(&info, out);
}

bool weft_tokenizer_is_unknown(weft_status status)
{
    return status == WEFT_CONFIG || (status == WEFT_FILE && weft_error_get()->is_unknown);
}

weft_status weft_tokenizer_open(const weft_tokenizer_info *info, weft_tokenizer **out)
{
    weft_tokenizer *t;
    WEFT_TRY(create(info, &t));
    const char *changed = NULL;
    if (!same_text(info->vocab_file_xxh64, t->info.vocab_file_xxh64))
        changed = info->vocab_file;
    else if (!same_text(info->merge_file_xxh64, t->info.merge_file_xxh64))
        changed = info->merge_file;
    if (changed) {
        weft_tokenizer_destroy(t);
        return refuse_changed(changed);
    }
    *out = t;
    return WEFT_OK;
}

weft_status weft_tokenizer_keep(weft_tokenizer *t, const char *prefix, const char **out_file)
{
    const char *path;
    weft_new_file file;
    *out_file = NULL;
    if (t->info.kind != WEFT_TOKENIZER_JSON)
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(&t->arena, &path, "%s.tokenizer.json", prefix));
    WEFT_TRY(weft_new_file_open(path, &file));
    fputs(t->text, file.file);
    WEFT_TRY(weft_new_file_close(&file, WEFT_OK));
    *out_file = path;
    return note_file(t, path, t->text, strlen(t->text), &t->info.vocab_file,
                     &t->info.vocab_file_xxh64);
}

void weft_tokenizer_destroy(weft_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    weft_rules_release(&tokenizer->rules);
    weft_arena_release(&tokenizer->arena);
    free(tokenizer);
}

const weft_tokenizer_info *weft_tokenizer_get_info(const weft_tokenizer *tokenizer)
{
    return &tokenizer->info;
}

weft_status weft_encoder_create(const weft_tokenizer *tokenizer, weft_encoder **out)
{
    weft_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer's cache");
    e->tokenizer = tokenizer;
    const weft_status status =
        tokenizer->rules.bpe ? weft_rules_worker_create(&e->worker) : WEFT_OK;
    if (status != WEFT_OK) {
        weft_encoder_destroy(e);
        return status;
    }
    *out = e;
    return WEFT_OK;
}

void weft_encoder_destroy(weft_encoder *encoder)
{
    if (!encoder)
        return;
    weft_rules_worker_destroy(encoder->worker);
    free(encoder);
}

static weft_status add_tokens(const weft_tokens *more, weft_tokens *out)
{
    WEFT_TRY(weft_tokens_reserve(out, more->count));
    for (size_t i = 0; i < more->count; i++)
        out->ids[out->count++] = more->ids[i];
    return WEFT_OK;
}

weft_status weft_encoder_prompt(weft_encoder *encoder, const char *text, size_t bytes,
                                weft_tokens *out)
{
    const weft_tokenizer *t = encoder->tokenizer;
    if (encoder->worker) {
        if (t->info.special_tokens)
            WEFT_TRY(add_tokens(&t->rules.front, out));
        return weft_rules_encode(&t->rules, encoder->worker, (weft_bytes){text, bytes}, out);
    }
    WEFT_TRY(weft_tokens_reserve(out, bytes));
    for (size_t i = 0; i < bytes; i++)
        out->ids[out->count++] = (unsigned char)text[i];
    return WEFT_OK;
}

weft_status weft_encoder_encode(weft_encoder *encoder, const char *text, size_t bytes,
                                weft_tokens *out)
{
    const weft_tokenizer *t = encoder->tokenizer;
    WEFT_TRY(weft_encoder_prompt(encoder, text, bytes, out));
    return t->info.special_tokens ? add_tokens(&t->rules.back, out) : WEFT_OK;
}

const char *weft_tokenizer_piece(const weft_tokenizer *tokenizer, int32_t id, size_t *bytes)
{
    const weft_rules *r = &tokenizer->rules;
    *bytes = 0;
    if (id < 0 || id >= tokenizer->info.vocab_size)
        return "";
    if (r->bpe) {
        *bytes = r->pieces[id].bytes;
        return *bytes ? r->pieces[id].text : "";
    }
    *bytes = id < BYTES_EOD;
    return *bytes ? tokenizer->bytes + id : "";
}

/* Cuts what a decoder cuts off a whole text. */
static void strip(const weft_strip *s, const char **text, size_t *bytes)
{
    weft_bytes left = {*text, *bytes};
    const weft_bytes c = s->character;
    if (!c.text)
        return;
    for (int64_t i = 0; i < s->start && weft_bytes_begin(left, c); i++)
        left = (weft_bytes){left.text + c.bytes, left.bytes - c.bytes};
    for (int64_t i = 0; i < s->stop && left.bytes >= c.bytes; i++) {
        if (memcmp(left.text + left.bytes - c.bytes, c.text, c.bytes) != 0)
            break;
        left.bytes -= c.bytes;
    }
    *text = left.text;
    *bytes = left.bytes;
}

weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                  weft_arena *arena, char **out, size_t *out_bytes)
{
    size_t total = 0, bytes;
    for (size_t i = 0; i < count; i++) {
        weft_tokenizer_piece(tokenizer, ids[i], &bytes);
        total += bytes;
    }
    char *text;
    WEFT_TRY(WEFT_ARRAY(arena, total + 1, &text));
    char *at = text;
    for (size_t i = 0; i < count; i++) {
        const char *piece = weft_tokenizer_piece(tokenizer, ids[i], &bytes);
        memcpy(at, piece, bytes);
        at += bytes;
    }
    const char *stripped = text;
    strip(&tokenizer->rules.strip, &stripped, &total);
    memmove(text, stripped, total);
    text[total] = '\0';
    *out = text;
    if (out_bytes)
        *out_bytes = total;
    return WEFT_OK;
}
