/* weft inspect: says what a checkpoint or a dataset holds, and checks it. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/application.h>
#include <weft/status.h>

#include <cjson/cJSON.h>

#include "core/dataset/dataset.h"
#include "core/json.h"
#include "core/log.h"
#include "launcher/arguments/rows.h"
#include "launcher/planning/ramp.h"
#include "launcher/report/report.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/ledger.h"
#include "launcher/training/metrics.h"
#include "launcher/training/setup.h"
#include "launcher/verbs/train/train.h"
#include "parallel/checkpoint/checkpoint.h"

typedef struct inspect_sample {
    const char *run;
    int64_t step;
    bool full, json; /* whole texts, which JSON always has */
    const weft_application *application;
} inspect_sample;

/* What metrics.jsonl has of the step and of the one before it. */
typedef struct step_line {
    int64_t step;
    bool found, updated;
    double loss, tokens, end; /* `end`: consumed_tokens */
    double end_before;
    int64_t first, last; /* that it has at all; 0: none */
} step_line;

typedef struct reader {
    const inspect_sample *asked;
    step_line line;
    weft_arena arena;
    weft_config config;
    weft_data data;
    weft_tokenizer *tokenizer; /* NULL: none that decodes */
    uint64_t **documents;      /* of each dataset, where they begin; NULL: the program's own data */
    uint64_t first_token;
    int32_t *tokens; /* [S] tokens and [S] labels */
    weft_report *report;
} reader;

static weft_status find_step(void *context, const cJSON *json)
{
    step_line *line = context;
    const int64_t step = (int64_t)weft_metrics_number(json, "step");
    if (weft_metrics_is_evaluation(json))
        return WEFT_OK;
    line->first = line->first ? line->first : step;
    line->last = step;
    if (step == line->step - 1)
        line->end_before = weft_metrics_number(json, "consumed_tokens");
    if (step != line->step)
        return WEFT_OK;
    line->found = true;
    line->loss = weft_metrics_number(json, "loss");
    line->tokens = weft_metrics_number(json, "tokens");
    line->end = weft_metrics_number(json, "consumed_tokens");
    line->updated = isfinite(weft_metrics_number(json, "grad_norm"));
    return WEFT_OK;
}

static weft_status read_step(reader *r)
{
    step_line *line = &r->line;
    const char *run = r->asked->run;
    line->step = r->asked->step;
    line->end_before = NAN;
    WEFT_TRY(weft_metrics_read(run, find_step, line));
    if (line->last == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: has no step yet", run);
    if (!line->found)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: has no step %" PRId64 ": its metrics are of steps %" PRId64
                          " to %" PRId64,
                          run, line->step, line->first, line->last);
    if (!(line->tokens > 0 && line->end >= line->tokens && line->end < 9e15))
        return WEFT_ERROR(WEFT_FILE,
                          "%s/metrics.jsonl: does not say what step %" PRId64
                          " read: an earlier Weft wrote it",
                          run, line->step);
    r->first_token = (uint64_t)(line->end - line->tokens);
    return WEFT_OK;
}

/* The config that the step ran with: of the first checkpoint from it on, else the last start's. A
 * start that went on with another config began at a checkpoint, and did all behind it again. */
static weft_status load_config(reader *r, weft_config_source *source)
{
    const char *dir, *folder;
    int64_t *steps;
    size_t count, at = 0;
    WEFT_TRY(weft_arena_printf(&r->arena, &dir, "%s/checkpoints", r->asked->run));
    WEFT_TRY(weft_checkpoint_list(dir, &r->arena, &steps, &count));
    while (at < count && steps[at] < r->line.step)
        at++;
    if (at < count) {
        WEFT_TRY(weft_arena_printf(&r->arena, &folder, "%s/step-%" PRId64, dir, steps[at]));
        WEFT_TRY(weft_checkpoint_resolve(folder, &r->arena, &folder));
        WEFT_TRY(weft_arena_printf(&r->arena, &source->file, "%s/config.json", folder));
        WEFT_TRY(weft_checkpoint_read_config(folder, &r->arena, &source->text));
    } else {
        WEFT_TRY(weft_arena_printf(&r->arena, &source->file, "%s/config.json", r->asked->run));
    }
    return weft_config_load(source, &r->arena, &r->config);
}

/* Samples of the step. */
static int64_t batch_of(const reader *r)
{
    return weft_ramp_batch(&r->config.train,
                           (int64_t)(r->line.end - r->line.tokens) / r->config.model.seq_length);
}

static weft_status check_config(const reader *r, const weft_config_source *source)
{
    const weft_config *c = &r->config;
    if (!weft_config_reads_file(c) && !weft_config_has_own_data(c))
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: step %" PRId64 " read mock data: random tokens, no text",
                          r->asked->run, r->line.step);
    const double tokens = (double)batch_of(r) * (double)c->model.seq_length;
    if (tokens != r->line.tokens)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: step %" PRId64 " read %.0f tokens, a step of %s reads %.0f: the "
                          "config that the step ran with is no longer there",
                          r->asked->run, r->line.step, r->line.tokens, source->file, tokens);
    return WEFT_OK;
}

/* The dataset as training opens it, and the same one as then. */
static weft_status open_data(reader *r, const weft_config_source *source)
{
    const char *was = r->config.data.data_xxh64;
    WEFT_TRY(weft_setup_data(&r->config, source, true, &r->arena, &r->data));
    const char *is = r->config.data.data_xxh64;
    if (was && is && strcmp(was, is) != 0)
        return WEFT_ERROR(
            WEFT_FILE,
            "%s: has changed since step %" PRId64
            ": its data_xxh64 is %s, the run's %s (other tokens, weights or another tokenizer)",
            weft_dataset_name(r->data.parts[0].dataset), r->line.step, is, was);
    return WEFT_OK;
}

/* Leaves it NULL where there is none, or none that can be opened. */
static weft_status open_tokenizer(reader *r)
{
    weft_tokenizer_info info;
    weft_prepared prepared;
    if (!weft_config_reads_file(&r->config))
        return WEFT_OK;
    WEFT_TRY(weft_prepared_find(weft_dataset_name(r->data.parts[0].dataset), &r->arena, &info,
                                &prepared));
    if (info.vocab_size == 0)
        return WEFT_OK;
    weft_status status = weft_tokenizer_open(&info, &r->tokenizer);
    if (status != WEFT_FILE)
        return status;
    weft_log(WEFT_LOG_WARN, "%s; token ids are shown", weft_error_get()->text);
    weft_error_clear();
    return WEFT_OK;
}

static weft_status read_documents(reader *r)
{
    WEFT_TRY(WEFT_ARRAY(&r->arena, r->data.num_parts, &r->documents));
    for (size_t i = 0; i < r->data.num_parts; i++)
        WEFT_TRY(
            weft_dataset_read_documents(r->data.parts[i].dataset, &r->arena, &r->documents[i]));
    return WEFT_OK;
}

static weft_status open_all(reader *r)
{
    weft_config_source source = {.application = r->asked->application, .run_path = r->asked->run};
    WEFT_TRY(read_step(r));
    WEFT_TRY(load_config(r, &source));
    WEFT_TRY(check_config(r, &source));
    WEFT_TRY(open_data(r, &source));
    WEFT_TRY(open_tokenizer(r));
    if (weft_config_reads_file(&r->config))
        WEFT_TRY(read_documents(r));
    return WEFT_ARRAY(&r->arena, 2 * (size_t)r->config.model.seq_length, &r->tokens);
}

/* --- printing ------------------------------------------------------------------------------ */

enum { SHOWN_BYTES = 160, SHOWN_TOKENS = 24 };

/* How much of a text is shown: whole characters. */
static size_t shorten(const char *text, size_t bytes)
{
    size_t shown = SHOWN_BYTES;
    if (bytes <= SHOWN_BYTES)
        return bytes;
    while (shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80)
        shown--;
    return shown;
}

static weft_status report_text(reader *r, const int32_t *ids, size_t count, weft_arena *arena)
{
    FILE *out = weft_report_stream(r->report, WEFT_REPORT_TEXT);
    char *text;
    const char *quoted;
    size_t bytes;
    WEFT_TRY(weft_tokenizer_decode(r->tokenizer, ids, count, arena, &text, &bytes));
    const size_t shown = r->asked->full || !out ? bytes : shorten(text, bytes);
    WEFT_TRY(weft_json_quote_bytes(text, shown, arena, &quoted));
    weft_report_raw(r->report, "text", quoted);
    if (out)
        fputs(quoted, out);
    if (out && shown < bytes)
        fprintf(out, " and %zu bytes more", bytes - shown);
    return WEFT_OK;
}

static void print_ids(const reader *r, const int32_t *ids, size_t count, FILE *out)
{
    const size_t shown = r->asked->full || count < SHOWN_TOKENS ? count : SHOWN_TOKENS;
    for (size_t i = 0; i < shown; i++)
        fprintf(out, "%s%d", i ? ", " : "", (int)ids[i]);
    if (shown < count)
        fprintf(out, " and %zu more", count - shown);
}

static void report_ids(const reader *r, const int32_t *ids, size_t count)
{
    weft_json_out *json = &r->report->json;
    weft_json_open_flat(json, "tokens", '[');
    for (size_t i = 0; i < count; i++)
        weft_json_number(json, NULL, ids[i]);
    weft_json_close(json);
}

/* Tokens of one document of `length` tokens, from its token `position` on. documents NULL: nobody
 * knows of any. */
static weft_status report_piece(reader *r, uint64_t document, uint64_t position, uint64_t length,
                                const int32_t *ids, size_t count, weft_arena *arena)
{
    FILE *out = weft_report_stream(r->report, WEFT_REPORT_TEXT);
    weft_report_record(r->report);
    if (r->documents) {
        weft_report_value(r->report, "document", document);
        weft_report_value(r->report, "position", position);
    }
    if (out && r->documents)
        fprintf(out, "    document %" PRIu64 ", tokens %" PRIu64 " to %" PRIu64 " of %" PRIu64 ": ",
                document, position, position + count - 1, length);
    else if (out)
        fputs("    tokens: ", out);
    if (r->tokenizer)
        WEFT_TRY(report_text(r, ids, count, arena));
    else if (out)
        print_ids(r, ids, count, out);
    if (out)
        fputc('\n', out);
    else
        report_ids(r, ids, count);
    return WEFT_OK;
}

/* The last document that begins at or before this token, which is the one that holds it. */
static uint64_t find_document(const reader *r, size_t part, uint64_t token)
{
    uint64_t low = 0, high = weft_dataset_num_documents(r->data.parts[part].dataset);
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (r->documents[part][middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static weft_status report_pieces(reader *r, weft_split_place place, weft_arena *arena)
{
    const size_t seq = (size_t)r->config.model.seq_length;
    if (!r->documents)
        return report_piece(r, 0, 0, 0, r->tokens, seq, arena);
    for (size_t at = 0, count; at < seq; at += count) {
        const uint64_t token = place.first_token + at;
        const uint64_t document = find_document(r, place.part, token);
        const uint64_t *begins = r->documents[place.part] + document;
        const uint64_t left = begins[1] - token;
        count = left < seq - at ? (size_t)left : seq - at;
        WEFT_TRY(report_piece(r, document, token - begins[0], begins[1] - begins[0], r->tokens + at,
                              count, arena));
    }
    return WEFT_OK;
}

static weft_status report_sample(reader *r, uint64_t micro_batch, uint64_t number,
                                 weft_arena *arena)
{
    const weft_split *split = &r->data.splits[WEFT_SPLIT_TRAIN];
    const size_t seq = (size_t)r->config.model.seq_length;
    const bool blends = r->data.num_parts > 1;
    const uint64_t seed = (uint64_t)r->config.train.seed;
    weft_split_place place = {0};
    char where[256] = "";
    WEFT_TRY(weft_split_read(split, seed, true, number, r->tokens, r->tokens + seq));
    if (r->documents) {
        place = weft_split_find(split, seed, true, number);
        snprintf(where, sizeof where, ": tokens %" PRIu64 " to %" PRIu64 " of %.128s",
                 place.first_token, place.first_token + seq - 1,
                 blends ? r->data.parts[place.part].name : "the dataset");
    }
    weft_report_line(r->report, "  sample %" PRIu64 "%s", number, where);
    weft_report_record(r->report);
    weft_report_value(r->report, "micro_batch", micro_batch);
    weft_report_value(r->report, "sample", number);
    if (r->documents)
        weft_report_value(r->report, "first_token", place.first_token);
    if (blends)
        weft_report_text(r->report, "dataset", NULL, r->data.parts[place.part].name);
    weft_report_open(r->report, WEFT_REPORT_GROUP, "documents");
    WEFT_TRY(report_pieces(r, place, arena));
    weft_report_close(r->report);
    return WEFT_OK;
}

static weft_status report_samples(reader *r)
{
    const weft_train_options *t = &r->config.train;
    const uint64_t each = (uint64_t)t->micro_batch_size;
    weft_report_open(r->report, WEFT_REPORT_GROUP, "samples");
    for (uint64_t m = 0; m < (uint64_t)batch_of(r) / each; m++) {
        const uint64_t first = weft_batches_first_sample(&r->config, r->first_token, m);
        weft_report_line(r->report, "micro-batch %" PRIu64, m);
        for (uint64_t b = 0; b < each; b++) {
            weft_arena arena = {0};
            weft_status status = report_sample(r, m, first + b, &arena);
            weft_arena_release(&arena);
            WEFT_TRY(status);
        }
    }
    weft_report_close(r->report);
    return WEFT_OK;
}

/* Of the data's order, that were read between the step before and this one. */
static double passed_over(const reader *r)
{
    const double passed = r->line.end - r->line.tokens - r->line.end_before;
    return passed > 0 ? passed : 0;
}

static void report_head(const reader *r, const char *data)
{
    const weft_config *c = &r->config;
    const step_line *line = &r->line;
    weft_report *out = r->report;
    weft_report_line(
        out, "step %" PRId64 ": loss %.4f%s; %" PRId64 " samples of %" PRId64 " tokens of %s%s",
        line->step, line->loss, line->updated ? "" : " (updated nothing: its batch was skipped)",
        batch_of(r), c->model.seq_length, data,
        r->tokenizer   ? ""
        : r->documents ? ", which has no tokenizer that decodes: token ids"
                       : ": token ids");
    if (passed_over(r) > 0)
        weft_report_line(out,
                         "%.0f tokens of the data's order before it were passed over: a batch "
                         "that the run went back from",
                         passed_over(r));
    weft_report_text(out, "run", NULL, r->asked->run);
    weft_report_value(out, "step", line->step);
    weft_report_value(out, "loss", line->loss);
    weft_report_bool(out, "updated", line->updated);
    weft_report_value(out, "first_token_of_order", r->first_token);
    weft_report_value(out, "passed_over_tokens", passed_over(r));
    weft_report_value(out, "seq_length", c->model.seq_length);
    weft_report_value(out, "micro_batch_size", c->train.micro_batch_size);
    weft_report_text(out, "dataset", NULL, data);
    weft_report_text(out, "data_xxh64", NULL, c->data.data_xxh64);
}

/* Prints the samples of the step's global batch, in the order of its micro-batches, by the code
 * that training reads them with. WEFT_CONFIG: no such step, or no data that can be read again;
 * WEFT_FILE: the data have changed since. */
static weft_status inspect_sample_print(const inspect_sample *asked, FILE *out)
{
    weft_report report;
    reader r = {.asked = asked, .report = &report};
    weft_report_begin(&report, asked->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_status status = open_all(&r);
    if (status == WEFT_OK) {
        report_head(&r, r.data.num_parts > 1 ? "data.blend"
                                             : weft_dataset_name(r.data.parts[0].dataset));
        status = report_samples(&r);
    }
    status = weft_report_end(&report, status, out);
    weft_tokenizer_destroy(r.tokenizer);
    weft_data_close(&r.data);
    weft_arena_release(&r.arena);
    return status;
}

static weft_status print_dataset(const char *prefix, const weft_dataset *dataset,
                                 const weft_known *known, bool json)
{
    const double tokens = (double)weft_dataset_num_tokens(dataset);
    char hash[32];
    weft_report r;
    snprintf(hash, sizeof hash, "%016" PRIx64, known->xxh64);
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_line(&r, "dataset %s", prefix);
    weft_report_open(&r, WEFT_REPORT_FACTS, NULL);
    weft_report_text(&r, "dataset", NULL, prefix);
    weft_report_row(&r, "tokens", "tokens", WEFT_UNIT_INDEX, tokens);
    weft_report_row(&r, "sequences", "sequences", WEFT_UNIT_INDEX,
                    weft_dataset_num_sequences(dataset));
    weft_report_row(&r, "documents", "documents", WEFT_UNIT_INDEX,
                    weft_dataset_num_documents(dataset));
    weft_report_row(&r, "token_bytes", "token size", WEFT_UNIT_BYTES,
                    weft_dataset_token_bytes(dataset));
    weft_report_row(&r, "max_token", "max token", WEFT_UNIT_INDEX, known->max_token);
    weft_report_text(&r, "data_xxh64", "data_xxh64", hash);
    weft_report_close(&r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* Reads every token, and compares with what is kept of these files, which starts believe. */
static weft_status check_dataset(const char *prefix, const weft_dataset *dataset, weft_arena *arena,
                                 weft_known *out)
{
    weft_tokenizer_info info;
    weft_prepared prepared;
    weft_known kept;
    const char *tokenizer;
    bool is_kept = false;
    WEFT_TRY(weft_prepared_find(prefix, arena, &info, &prepared));
    WEFT_TRY(weft_tokenizer_identity(&info, arena, &tokenizer));
    const bool has_kept = weft_known_recall(dataset, NULL, tokenizer, &kept);
    WEFT_TRY(has_kept ? weft_known_read(dataset, tokenizer, out)
                      : weft_known_look(dataset, NULL, tokenizer, out, &is_kept));
    if (has_kept && (kept.xxh64 != out->xxh64 || kept.max_token != out->max_token))
        return WEFT_ERROR(WEFT_FILE,
                          "%s.bin: damaged: its tokens are not those that %s" WEFT_KNOWN_SUFFIX
                          " is of, and nobody has written it since; if they are right, remove "
                          "that file",
                          prefix, prefix);
    return weft_known_check(prefix, info.vocab_size, out);
}

static weft_status inspect_dataset(const char *prefix, bool json)
{
    weft_dataset *dataset;
    weft_known known;
    weft_arena arena = {0};
    WEFT_TRY(weft_dataset_open(prefix, &dataset));
    weft_status status = check_dataset(prefix, dataset, &arena, &known);
    if (status == WEFT_OK)
        status = print_dataset(prefix, dataset, &known, json);
    weft_dataset_close(dataset);
    weft_arena_release(&arena);
    return status;
}

/* People see the weights alone, under the names of their parameters. */
static void report_dataset(weft_report *r, const weft_stored *stored)
{
    const size_t prefix = strlen(WEFT_STORED_WEIGHT);
    double dims[WEFT_MAX_DIMS];
    char shape[128] = "[";
    for (int d = 0; d < stored->num_dims; d++) {
        const size_t used = strlen(shape);
        dims[d] = (double)stored->dims[d];
        snprintf(shape + used, sizeof shape - used, "%s%zu", d ? ", " : "", stored->dims[d]);
    }
    if (strncmp(stored->name, WEFT_STORED_WEIGHT, prefix) == 0)
        weft_report_line(r, "  %-64s %s]", stored->name + prefix, shape);
    weft_report_record(r);
    weft_report_text(r, "name", NULL, stored->name);
    weft_report_numbers(r, "shape", dims, (size_t)stored->num_dims);
}

static weft_status report_checkpoint(weft_report *r, const char *folder, weft_arena *arena)
{
    weft_checkpoint_contents c;
    char seed[24]; /* of more bits than most readers' numbers have */
    WEFT_TRY(weft_checkpoint_inspect(folder, arena, &c));
    snprintf(seed, sizeof seed, "%" PRIu64, c.info.seed);
    weft_report_line(r, "checkpoint %s", folder);
    weft_report_line(r, "step %" PRId64 ", %" PRId64 " tokens consumed, seed %s", c.info.step,
                     c.info.consumed_tokens, seed);
    weft_report_line(r, "%" PRIu64 " parameters%s, %.1f MiB on disk", c.num_parameters,
                     c.has_optimizer ? " with optimizer state" : "", (double)c.bytes / 1048576.0);
    weft_report_line(r, "every hash is right (%zu shards)\n", c.num_shards);
    weft_report_text(r, "folder", NULL, folder);
    weft_report_value(r, "step", c.info.step);
    weft_report_value(r, "consumed_tokens", c.info.consumed_tokens);
    weft_report_text(r, "seed", NULL, seed);
    weft_report_value(r, "num_parameters", c.num_parameters);
    weft_report_value(r, "bytes", c.bytes);
    weft_report_bool(r, "optimizer_state", c.has_optimizer);
    weft_report_value(r, "verified_shards", c.num_shards);
    weft_report_open(r, WEFT_REPORT_GROUP, "datasets");
    for (int i = 0; i < c.datasets.count; i++)
        report_dataset(r, &c.datasets.items[i]);
    weft_report_close(r);
    return WEFT_OK;
}

/* Of a run: where its time went, which a damaged checkpoint does not hide from people. */
static weft_status print_run(const char *run, const weft_ledger_account *account, bool saved,
                             bool json, weft_arena *arena)
{
    const char *folder;
    weft_report r;
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_ledger_report(&r, account);
    weft_status status = saved ? weft_checkpoint_resolve(run, arena, &folder) : WEFT_OK;
    if (status == WEFT_OK && saved) {
        weft_report_line(&r, "%s", "");
        status = report_checkpoint(&r, folder, arena);
    }
    const weft_status printed = weft_report_end(&r, json ? status : WEFT_OK, stdout);
    return status == WEFT_OK ? printed : status;
}

/* Its checkpoint need not be there yet. */
static weft_status inspect_run(const char *run, const char *ledger, bool json, weft_arena *arena)
{
    weft_ledger_account account = {0};
    const char *latest;
    WEFT_TRY(weft_arena_printf(arena, &latest, "%s/checkpoints/latest", run));
    const bool saved = access(latest, F_OK) == 0;
    WEFT_TRY(weft_ledger_read(ledger, &account));
    weft_status status = print_run(run, &account, saved, json, arena);
    if (!saved && account.saved > 0)
        status = WEFT_ERROR(
            WEFT_FILE, "%s/checkpoints: has no checkpoint, but the run has saved step %" PRId64,
            run, account.saved);
    weft_ledger_account_release(&account);
    return status;
}

static weft_status inspect_folder(const char *path, bool json, weft_arena *arena)
{
    const char *ledger, *folder;
    weft_report r;
    WEFT_TRY(weft_arena_printf(arena, &ledger, "%s/ledger.jsonl", path));
    if (access(ledger, F_OK) == 0)
        return inspect_run(path, ledger, json, arena);
    WEFT_TRY(weft_checkpoint_resolve(path, arena, &folder));
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    return weft_report_end(&r, report_checkpoint(&r, folder, arena), stdout);
}

/* A dataset's prefix may be a file's name too. */
static weft_status inspect_prefix(const char *path, bool is_file, bool json)
{
    weft_arena arena = {0};
    const char *index, *data;
    weft_status status = weft_arena_printf(&arena, &index, "%s.idx", path);
    if (status == WEFT_OK)
        status = weft_arena_printf(&arena, &data, "%s.bin", path);
    if (status == WEFT_OK && access(index, F_OK) != 0 && (is_file || access(data, F_OK) != 0))
        status = WEFT_ERROR(WEFT_FILE,
                            "%s: %s: a run or checkpoint is a folder, and a dataset the name of "
                            ".bin and .idx without that",
                            path, is_file ? "a file" : "not there, nor its .idx");
    weft_arena_release(&arena);
    return status == WEFT_OK ? inspect_dataset(path, json) : status;
}

static weft_status inspect(const char *path, bool json)
{
    struct stat info;
    const bool is_there = stat(path, &info) == 0;
    if (!is_there || !S_ISDIR(info.st_mode))
        return inspect_prefix(path, is_there, json);
    if (access(path, X_OK) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_arena arena = {0};
    weft_status status = inspect_folder(path, json, &arena);
    weft_arena_release(&arena);
    return status;
}

static weft_status run(const inspect_sample *asked, bool flight)
{
    if (asked->step > 0)
        return inspect_sample_print(asked, stdout);
    return flight ? weft_inspect_flight(asked->run, asked->json, stdout)
                  : inspect(asked->run, asked->json);
}

int weft_verb_inspect(int argc, char **argv, const weft_verb_given *given)
{
    inspect_sample asked = {.application = given->application};
    bool flight = false;
    weft_arena arena = {0};
    const weft_argument rows[] = {
        FLAG("flight", &flight, "of a run's folder: the ranks' flight records beside each other",
             .excludes = "sample"),
        WHOLE("sample", "N", &asked.step, 1, 1e15, "of a run's folder: the text that step N read"),
        FLAG("full", &asked.full, "with --sample: whole texts, which else are shortened",
             .needs = "sample"),
        FLAG("json", &asked.json, "one JSON object on standard output"),
    };
    const weft_arguments verb = {
        .verb = "inspect",
        .operands = "CHECKPOINT|DATASET",
        .operand = &asked.run,
        .about =
            "CHECKPOINT: a run's folder, its checkpoints folder, or one step-N folder: lists "
            "its tensors\nand verifies every hash; of a run's folder also where its time went.\n"
            "DATASET: a prefix of .bin and .idx: reads, counts and checks its tokens.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0)
        code = run(&asked, flight) == WEFT_OK ? 0 : weft_verb_fail("inspect");
    weft_arena_release(&arena);
    return code;
}
