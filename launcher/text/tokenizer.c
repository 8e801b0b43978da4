#include "launcher/text/tokenizer.h"

#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/file.h"
#include "core/key_rows.h"
#include "launcher/text/bpe.h"

struct weft_tokenizer {
    weft_tokenizer_info info;
    weft_arena arena; /* the info's strings */
    weft_bpe *bpe;    /* NULL: bytes */
    char bytes[256];  /* the pieces of bytes */
};

struct weft_encoder {
    const weft_tokenizer *tokenizer;
    weft_bpe_cache *cache; /* NULL: bytes */
};

static const char *const kind_names[] = {"bytes", "gpt2"};
enum { NUM_KINDS = sizeof kind_names / sizeof *kind_names, BYTES_EOD = 256 };

#define T weft_tokenizer_info
static const weft_key tokenizer_rows[] = {
    ROW(FREE, "name", kind, CHOICE, "\"bytes\"", 0, 0, NULL, "the tokenizer",
        .choices = "bytes|gpt2"),
    RANGE(FREE, vocab_size, "257", 1, INT32_MAX, "tokens", "the number of tokens, unpadded"),
    RANGE(FREE, eod, "256", 0, INT32_MAX, NULL, "the end-of-document token"),
    TEXT(FREE, vocab_file, NULL, "path of encoder.json"),
    TEXT(FREE, merge_file, NULL, "path of vocab.bpe"),
    TEXT(FREE, vocab_file_xxh64, NULL, "its XXH64 checksum"),
    TEXT(FREE, merge_file_xxh64, NULL, "its XXH64 checksum"),
};
#undef T

#define T weft_prepared
static const weft_key prepared_rows[] = {
    RANGE(FREE, documents, "0", 0, 9.3e18, NULL, "documents written"),
    RANGE(FREE, tokens, "0", 0, 9.3e18, NULL, "tokens written"),
    FLAG(FREE, append_eod, "false", "each document ends with the eod token"),
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

weft_status weft_tokenizer_kind_parse(const char *name, weft_tokenizer_kind *out)
{
    for (int i = 0; i < NUM_KINDS; i++) {
        if (strcmp(name, kind_names[i]) == 0) {
            *out = (weft_tokenizer_kind)i;
            return WEFT_OK;
        }
    }
    const char *near = weft_nearest_name(name, kind_names, NUM_KINDS);
    return WEFT_ERROR(WEFT_CONFIG, "unknown tokenizer \"%.64s\"; expected bytes or gpt2%s%s%s",
                      name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

const char *weft_tokenizer_kind_name(weft_tokenizer_kind kind)
{
    return kind_names[kind];
}

/* Reads one of the vocabulary's files; keeps its absolute path and its checksum. */
static weft_status load_file(weft_tokenizer *t, weft_arena *scratch, const char *path,
                             const char **absolute, const char **checksum, char **text)
{
    size_t bytes;
    WEFT_TRY(weft_file_read_text(path, scratch, text, &bytes));
    if (strlen(*text) != bytes)
        return WEFT_ERROR(WEFT_FILE, "%s: holds a NUL byte: not a vocabulary's file", path);
    WEFT_TRY(weft_arena_printf(&t->arena, checksum, "%016llx",
                               (unsigned long long)XXH64(*text, bytes, 0)));
    char *real = realpath(path, NULL);
    weft_status status = weft_arena_strdup(&t->arena, real ? real : path, absolute);
    free(real);
    return status;
}

static weft_status init_gpt2(weft_tokenizer *t, const char *vocab_file, const char *merge_file,
                             weft_arena *scratch)
{
    char *vocab, *merges;
    weft_tokenizer_info *info = &t->info;
    WEFT_TRY(load_file(t, scratch, vocab_file, &info->vocab_file, &info->vocab_file_xxh64, &vocab));
    WEFT_TRY(
        load_file(t, scratch, merge_file, &info->merge_file, &info->merge_file_xxh64, &merges));
    WEFT_TRY(weft_bpe_create(vocab_file, vocab, merge_file, merges, &t->bpe));
    info->vocab_size = weft_bpe_vocab_size(t->bpe);
    info->eod = weft_bpe_eod(t->bpe);
    return WEFT_OK;
}

weft_status weft_tokenizer_create(weft_tokenizer_kind kind, const char *vocab_file,
                                  const char *merge_file, weft_tokenizer **out)
{
    bool wants_files = kind == WEFT_TOKENIZER_GPT2;
    if (wants_files && (!vocab_file || !merge_file))
        return WEFT_ERROR(WEFT_CONFIG, "the gpt2 tokenizer wants its %s",
                          vocab_file   ? "merges (vocab.bpe)"
                          : merge_file ? "vocabulary (encoder.json)"
                                       : "vocabulary (encoder.json) and merges (vocab.bpe)");
    if (!wants_files && (vocab_file || merge_file))
        return WEFT_ERROR(WEFT_CONFIG, "the bytes tokenizer has no vocabulary or merge file");
    weft_tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer");
    for (int b = 0; b < 256; b++)
        t->bytes[b] = (char)(unsigned char)b;
    t->info = (weft_tokenizer_info){.kind = kind, .vocab_size = BYTES_EOD + 1, .eod = BYTES_EOD};
    weft_arena scratch = {0};
    weft_status status = WEFT_OK;
    if (wants_files)
        status = init_gpt2(t, vocab_file, merge_file, &scratch);
    weft_arena_release(&scratch);
    if (status != WEFT_OK) {
        weft_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

weft_status weft_tokenizer_open(const weft_tokenizer_info *info, weft_tokenizer **out)
{
    weft_tokenizer *t;
    WEFT_TRY(weft_tokenizer_create((weft_tokenizer_kind)info->kind, info->vocab_file,
                                   info->merge_file, &t));
    const char *changed = NULL;
    if (!same_text(info->vocab_file_xxh64, t->info.vocab_file_xxh64))
        changed = info->vocab_file;
    else if (!same_text(info->merge_file_xxh64, t->info.merge_file_xxh64))
        changed = info->merge_file;
    if (changed) {
        weft_status status = WEFT_ERROR(
            WEFT_FILE, "%s: not the file that the dataset was prepared with (its checksum differs)",
            changed);
        weft_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

void weft_tokenizer_destroy(weft_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    weft_bpe_destroy(tokenizer->bpe);
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
    weft_status status = tokenizer->bpe ? weft_bpe_cache_create(&e->cache) : WEFT_OK;
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
    weft_bpe_cache_destroy(encoder->cache);
    free(encoder);
}

weft_status weft_encoder_encode(weft_encoder *encoder, const char *text, size_t bytes,
                                weft_tokens *out)
{
    if (encoder->cache)
        return weft_bpe_encode(encoder->tokenizer->bpe, encoder->cache, text, bytes, out);
    WEFT_TRY(weft_tokens_reserve(out, bytes));
    for (size_t i = 0; i < bytes; i++)
        out->ids[out->count++] = (unsigned char)text[i];
    return WEFT_OK;
}

const char *weft_tokenizer_piece(const weft_tokenizer *tokenizer, int32_t id, size_t *bytes)
{
    if (tokenizer->bpe)
        return weft_bpe_piece(tokenizer->bpe, id, bytes);
    *bytes = id >= 0 && id < BYTES_EOD;
    return *bytes ? tokenizer->bytes + id : "";
}

weft_status weft_tokenizer_decode(const weft_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                  weft_arena *arena, char **out, size_t *out_bytes)
{
    size_t total = 0, bytes;
    for (size_t i = 0; i < count; i++) {
        weft_tokenizer_piece(tokenizer, ids[i], &bytes);
        total += bytes;
    }
    void *memory;
    WEFT_TRY(weft_arena_alloc(arena, total + 1, &memory));
    char *at = memory;
    for (size_t i = 0; i < count; i++) {
        const char *piece = weft_tokenizer_piece(tokenizer, ids[i], &bytes);
        memcpy(at, piece, bytes);
        at += bytes;
    }
    *at = '\0';
    *out = memory;
    if (out_bytes)
        *out_bytes = total;
    return WEFT_OK;
}
