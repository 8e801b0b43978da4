/* weft prepare: text to a token dataset. */
#include "launcher/verbs/train/prepare.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/file.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/report/report.h"
#include "launcher/verbs/train/train.h"
#include "parallel/topology/topology.h"

enum { MAX_THREADS = 1024 };

/* What the work needs from its first document to its last. */
typedef struct prepare {
    const weft_prepare_options *options;
    weft_tokenizer *tokenizer;
    const char *tokenizer_file; /* the copy beside the dataset; NULL: none */
    weft_prepare_target target;
    weft_prepare_source source;
    weft_prepare_result result;
    bool replaces; /* a dataset that is there */
} prepare;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, weft_prepare_options *o, weft_arena *arena)
{
    const weft_argument rows[] = {
        TEXT("out", "PREFIX", &o->out, "where to write", .required = true),
        TEXT("tokenizer", "NAME", &o->tokenizer.name,
             "bytes: 257 tokens; gpt2: 50,257; or the path of a tokenizer.json"),
        TEXT("vocab-file", "FILE", &o->tokenizer.vocab_file, "gpt2: encoder.json"),
        TEXT("merge-file", "FILE", &o->tokenizer.merge_file, "gpt2: vocab.bpe"),
        TEXT("eod-token", "TEXT", &o->tokenizer.eod,
             "tokenizer.json: the end-of-document token, where it is another"),
        FLAG("no-special-tokens", &o->tokenizer.no_special_tokens,
             "tokenizer.json: nothing around documents"),
        TEXT("jsonl", "KEY", &o->jsonl,
             "files are JSON lines, a document a line: its text is under KEY, or a.b"),
        TEXT("chat", "FORM", &o->chat,
             "lines have messages, written as chatml or llama3; answers alone will bear a loss "
             "(--jsonl messages, unless it says another key)"),
        SMALL("pack", "N", &o->pack, 2, 1 << 24,
              "sequences of N tokens, filled with whole documents: for model.seq_length N"),
        FLAG("append-eod", &o->append_eod,
             "end each document with the end-of-document token; --jsonl and token files always do"),
        FLAG("split-blank-lines", &o->split_blank_lines,
             "a document ends at a blank line; else each file is one", .excludes = "jsonl chat"),
        FLAG("any-bytes", &o->any_bytes, "take files as text whatever they hold",
             .excludes = "jsonl chat"),
        SMALL("threads", "N", &o->num_threads, 0, MAX_THREADS, "that encode; 0: all cores"),
        FLAG("json", &o->json, "one JSON object on standard output"),
    };
    const weft_arguments verb = {
        .verb = "prepare",
        .operands = "TEXT...",
        .given = &o->texts,
        .about = "Turns text into a token dataset: PREFIX.bin and PREFIX.idx (Megatron's indexed "
                 "format) and\nPREFIX.json (the tokenizer, for training and generating). TEXT is "
                 "a file, a pipe or a folder, plain,\ngzip or zstd: text, JSON lines (--jsonl) or "
                 "llm.c's token files.\n",
        ROWS_OF(rows)};
    *o = (weft_prepare_options){.tokenizer = {.name = "bytes"}};
    return weft_arguments_parse(&verb, argc, argv, arena);
}

/* PREFIX.json. */
static weft_status write_description(const prepare *p, const char *path)
{
    weft_tokenizer_info info = *weft_tokenizer_get_info(p->tokenizer);
    weft_prepared prepared = p->result.prepared;
    weft_option_section sections[2];
    weft_new_file file;
    weft_prepared_sections(&info, &prepared, sections);
    WEFT_TRY(weft_new_file_open(path, &file));
    return weft_new_file_close(&file, weft_options_write(sections, 2, file.file));
}

/* --- signals ------------------------------------------------------------------------------- */

static _Atomic(const weft_dataset_writer *) writing; /* NULL: nothing */

static void remove_and_end(int number)
{
    const weft_dataset_writer *writer = atomic_load(&writing);
    if (writer)
        weft_dataset_writer_remove(writer);
    raise(number); /* behind this handler, by the system's own */
}

/* Who is asked to end leaves no half of a dataset. */
static void catch_ends(void)
{
    static const int numbers[] = {SIGHUP, SIGINT, SIGTERM};
    const struct sigaction end = {.sa_handler = remove_and_end, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) /* as of nohup */
            sigaction(numbers[i], &end, NULL);
    }
}

static weft_status folder_of(const char *path, weft_arena *arena, struct stat *out)
{
    const char *folder;
    const int length = (int)(weft_path_name(path) - path);
    WEFT_TRY(weft_arena_printf(arena, &folder, "%.*s.", length, path));
    return stat(folder, out) == 0 ? WEFT_OK
                                  : WEFT_ERROR(WEFT_FILE, "%s: %s", folder, strerror(errno));
}

/* Whether a file's name is that of a part of the dataset `name`, or of one that is being written.
 */
static bool is_written(const char *file, const char *name)
{
    static const char *const ends[] = {".bin", ".idx", ".mask", ".json", ".tokenizer.json"};
    const size_t length = strlen(name), bytes = strlen(file);
    if (strncmp(file, name, length) != 0)
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(file + length, ends[i]) == 0)
            return true;
    return file[length] == '.' && bytes > 10 && strcmp(file + bytes - 10, ".weft-part") == 0;
}

/* What is written must not be read: a folder that is given may hold it. */
static weft_status refuse_own(const prepare *p, weft_arena *arena)
{
    const char *out = p->options->out, *name = weft_path_name(out);
    struct stat written, read;
    if (!*name)
        return WEFT_ERROR(WEFT_CONFIG, "--out %s: a folder; the files' name belongs behind it",
                          out);
    WEFT_TRY(folder_of(out, arena, &written));
    for (size_t i = 0; i < p->source.files.count; i++) {
        const char *path = p->source.files.paths[i];
        if (!is_written(weft_path_name(path), name))
            continue;
        WEFT_TRY(folder_of(path, arena, &read));
        if (read.st_dev == written.st_dev && read.st_ino == written.st_ino)
            return WEFT_ERROR(WEFT_CONFIG,
                              "--out %s is in a folder that is read, and %s would be text; give "
                              "another --out",
                              out, path);
    }
    return WEFT_OK;
}

static weft_status finish_packing(prepare *p)
{
    if (!p->target.packer)
        return WEFT_OK;
    WEFT_TRY(weft_packer_finish(p->target.packer, &p->result.packing));
    p->result.prepared.tokens += (int64_t)p->result.packing.num_pads + 1;
    return WEFT_OK;
}

static weft_status write_all(prepare *p, weft_arena *arena)
{
    const weft_prepare_options *o = p->options;
    const char *description, *index, *tokenizer;
    WEFT_TRY(weft_arena_printf(arena, &description, "%s.json", o->out));
    WEFT_TRY(weft_arena_printf(arena, &index, "%s.idx", o->out));
    for (size_t i = 0; i < o->texts.count; i++)
        WEFT_TRY(weft_input_list_add(&p->source.files, o->texts.values[i], arena));
    WEFT_TRY(refuse_own(p, arena));
    WEFT_TRY(weft_prepare_encode(&p->source, p->tokenizer, &p->target, &p->result));
    if (p->result.prepared.tokens == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: no text in %s given", o->texts.values[0],
                          weft_count_text((long long)o->texts.count, "file").text);
    WEFT_TRY(finish_packing(p));
    p->replaces = access(index, F_OK) == 0;
    /* No dataset without a description, or an older one's, is ever to be seen: the index comes
     * last. */
    WEFT_TRY(weft_dataset_writer_finish(p->target.writer));
    WEFT_TRY(weft_tokenizer_keep(p->tokenizer, o->out, &p->tokenizer_file));
    WEFT_TRY(write_description(p, description));
    WEFT_TRY(weft_dataset_writer_commit(p->target.writer));
    WEFT_TRY(weft_tokenizer_identity(weft_tokenizer_get_info(p->tokenizer), arena, &tokenizer));
    XXH64_update(p->result.hash, tokenizer, strlen(tokenizer));
    p->result.known.xxh64 = XXH64_digest(p->result.hash);
    /* of documents that are packed the first start learns it */
    if (o->pack == 0 && weft_known_keep(o->out, tokenizer, &p->result.known) != WEFT_OK)
        weft_error_clear(); /* then the first start reads the dataset */
    return WEFT_OK;
}

enum { MAX_FILES = 5 };

/* What was written, in one sentence too. */
static weft_status list_files(const prepare *p, weft_arena *arena, const char *files[MAX_FILES],
                              size_t *count, const char **sentence)
{
    const bool has_mask = p->options->chat || p->options->pack > 0;
    const char *const suffixes[] = {"bin", "idx", has_mask ? "mask" : NULL,
                                    p->tokenizer_file ? "tokenizer.json" : NULL, "json"};
    *sentence = p->replaces ? "replaced" : "wrote";
    *count = 0;
    for (int i = 0; i < MAX_FILES; i++) {
        if (!suffixes[i])
            continue;
        WEFT_TRY(weft_arena_printf(arena, &files[*count], "%s.%s", p->options->out, suffixes[i]));
        WEFT_TRY(weft_arena_printf(arena, sentence, "%s%s %s", *sentence,
                                   *count == 0          ? ""
                                   : i + 1 == MAX_FILES ? " and"
                                                        : ",",
                                   files[*count]));
        ++*count;
    }
    return WEFT_OK;
}

static void report_documents(const prepare *p, weft_report *r)
{
    const weft_prepare_result *result = &p->result;
    const weft_packing *packing = &result->packing;
    if (p->source.num_empty > 0)
        weft_report_line(r, "%s empty",
                         weft_count_text((long long)p->source.num_empty, "file").text);
    if (result->num_empty_documents > 0)
        weft_report_line(r, "%s empty",
                         weft_count_text(result->num_empty_documents, "document").text);
    if (result->num_odd_lines > 0)
        weft_report_line(
            r, "%s with half of a surrogate pair, now U+FFFD; the first is %s: line %" PRId64,
            weft_count_text(result->num_odd_lines, "line").text, weft_input_name(result->odd_path),
            result->odd_line);
    weft_report_value(r, "documents", result->prepared.documents);
    weft_report_value(r, "empty_files", p->source.num_empty);
    weft_report_value(r, "empty_documents", result->num_empty_documents);
    weft_report_value(r, "lines_with_half_pairs", result->num_odd_lines);
    if (p->options->pack == 0)
        return;
    weft_report_line(r,
                     "packed into %" PRIu64 " sequences of %d tokens, %.2f %% of them pads; %s cut",
                     packing->num_sequences, p->options->pack,
                     100.0 * (double)packing->num_pads / (double)result->prepared.tokens,
                     weft_count_text((long long)packing->num_cut, "document").text);
    weft_report_value(r, "packed_sequences", (double)packing->num_sequences);
    weft_report_value(r, "pads", (double)packing->num_pads);
    weft_report_value(r, "documents_cut", (double)packing->num_cut);
}

static weft_status print_result(const prepare *p, weft_arena *arena)
{
    const weft_tokenizer_info *info = weft_tokenizer_get_info(p->tokenizer);
    const char *name = weft_tokenizer_kind_name(info->kind), *files[MAX_FILES], *sentence;
    const weft_prepare_result *result = &p->result;
    size_t num_files;
    char each[48] = "";
    weft_report r;
    if (result->num_bytes > 0) /* token files have no text */
        snprintf(each, sizeof each, " (%.2f bytes each)",
                 (double)result->num_bytes / (double)result->prepared.tokens);
    WEFT_TRY(list_files(p, arena, files, &num_files, &sentence));
    weft_report_begin(&r, p->options->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    report_documents(p, &r);
    weft_report_line(&r, "documents %" PRId64 ", tokens %" PRId64 "%s, vocabulary %" PRId64 " (%s)",
                     result->prepared.documents, result->prepared.tokens, each, info->vocab_size,
                     name);
    weft_report_value(&r, "tokens", result->prepared.tokens);
    weft_report_value(&r, "text_bytes", result->num_bytes);
    if (p->options->chat) {
        weft_report_line(&r, "answers have %" PRId64 " of these tokens", result->num_answer_tokens);
        weft_report_value(&r, "answer_tokens", result->num_answer_tokens);
    }
    weft_report_line(&r, "%s", sentence);
    weft_report_text(&r, "tokenizer", NULL, name);
    weft_report_value(&r, "vocab_size", info->vocab_size);
    weft_report_bool(&r, "replaced", p->replaces);
    weft_report_texts(&r, "files", files, num_files);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* Tokens of a form are added tokens of a tokenizer.json. */
static weft_status check_chat(const weft_prepare_options *o)
{
    static const char *const others[] = {"bytes", "gpt2"};
    for (int i = 0; o->chat && i < 2; i++)
        if (strcmp(o->tokenizer.name, others[i]) == 0)
            return WEFT_ERROR(
                WEFT_CONFIG,
                "--chat wants the chat model's tokenizer.json, by --tokenizer; %s has "
                "no tokens for messages",
                others[i]);
    return WEFT_OK;
}

static weft_status prepare_init(prepare *p)
{
    const weft_prepare_options *o = p->options;
    weft_tokenizer_source tokenizer = o->tokenizer;
    if (o->jsonl && !o->jsonl[0])
        return WEFT_ERROR(WEFT_CONFIG, "--jsonl wants the key of the text");
    WEFT_TRY(check_chat(o));
    tokenizer.no_special_tokens = o->tokenizer.no_special_tokens || o->chat;
    WEFT_TRY(weft_tokenizer_create(&tokenizer, &p->tokenizer));
    const weft_tokenizer_info *info = weft_tokenizer_get_info(p->tokenizer);
    p->source = (weft_prepare_source){.options = o, .read = weft_prepare_read, .eod = info->eod};
    if (o->chat)
        WEFT_TRY(weft_chat_open(o->chat, p->tokenizer, &p->source.chat));
    p->result.prepared.append_eod = true; /* until a document has none */
    p->result.hash = XXH64_createState();
    if (!p->result.hash)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a hash");
    XXH64_reset(p->result.hash, 0);
    WEFT_TRY(weft_dataset_writer_create(o->out, info->vocab_size, &p->target.writer));
    atomic_store(&writing, p->target.writer);
    catch_ends();
    if (o->chat || o->pack > 0)
        WEFT_TRY(weft_dataset_writer_mask(p->target.writer));
    p->result.prepared.packed_length = o->pack;
    return o->pack > 0 ? weft_packer_create(p->target.writer, (uint32_t)o->pack, (int32_t)info->eod,
                                            &p->target.packer)
                       : WEFT_OK;
}

static weft_status run(const weft_prepare_options *o)
{
    prepare p = {.options = o};
    weft_arena arena = {0};
    weft_status status = prepare_init(&p);
    if (status == WEFT_OK)
        status = write_all(&p, &arena);
    if (status == WEFT_OK)
        status = print_result(&p, &arena);
    atomic_store(&writing, NULL);
    weft_packer_destroy(p.target.packer);
    weft_dataset_writer_destroy(p.target.writer);
    XXH64_freeState(p.result.hash);
    weft_tokenizer_destroy(p.tokenizer);
    weft_arena_release(&arena);
    return status;
}

int weft_verb_prepare(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    weft_prepare_options options;
    weft_arena arena = {0};
    int code = parse(argc, argv, &options, &arena);
    if (options.num_threads == 0)
        options.num_threads = weft_machine_allowed_cores();
    if (options.chat && !options.jsonl)
        options.jsonl = "messages";
    options.append_eod = options.append_eod || options.jsonl || options.pack > 0;
    if (code < 0)
        code = run(&options) == WEFT_OK ? 0 : weft_verb_fail("prepare");
    weft_arena_release(&arena);
    return code;
}
