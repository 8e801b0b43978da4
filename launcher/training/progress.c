#include "launcher/training/progress.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/json_write.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/process/output.h"
#include "layers/outline/outline.h"

/* --- a run's numbers for other tools --------------------------------------------------------- */

/* Rank 0 alone uses them. What cannot be written amid a run is told once, and ends the export, not
 * the run. */

/* --- TensorBoard -----------------------------------------------------------------------------
 *
 * A file of records: length (8 bytes), its checksum (4), data, the data's checksum. The data is an
 * Event of protocol buffers: wall_time 1 (double), step 2 (varint), file_version 3 (text), summary
 * 5, session_log 7. A summary has values 1 of a tag 1 (text) and a simple_value 2 (float).
 * (tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto, 2015) */

enum { EVENT_BYTES = 1 << 14, VALUE_BYTES = 256 };

typedef struct message {
    unsigned char bytes[EVENT_BYTES];
    size_t count;
} message;

/* CRC-32C (Castagnoli), bit by bit: events are a few hundred bytes a step. */
static uint32_t checksum(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u; /* masked: checksums of checksums are weak */
}

static void put_bytes(message *m, const void *data, size_t bytes)
{
    if (bytes > sizeof m->bytes - m->count)
        return;
    memcpy(m->bytes + m->count, data, bytes);
    m->count += bytes;
}

static void put_fixed(message *m, uint64_t value, int bytes)
{
    unsigned char text[8];
    for (int i = 0; i < bytes; i++)
        text[i] = (unsigned char)(value >> 8 * i);
    put_bytes(m, text, (size_t)bytes);
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        put_fixed(m, value % 128 + 128, 1);
    put_fixed(m, value, 1);
}

enum { VARINT = 0, FIXED64 = 1, TEXT = 2, FIXED32 = 5 }; /* kinds of fields */

static void put_field(message *m, int field, int kind)
{
    put_varint(m, (uint64_t)field << 3 | (uint64_t)kind);
}

static void put_text(message *m, int field, const void *text, size_t bytes)
{
    put_field(m, field, TEXT);
    put_varint(m, bytes);
    put_bytes(m, text, bytes);
}

static void begin_event(message *m, int64_t step)
{
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    memcpy(&bits, &seconds, sizeof bits);
    m->count = 0;
    put_field(m, 1, FIXED64);
    put_fixed(m, bits, 8);
    put_field(m, 2, VARINT);
    put_varint(m, (uint64_t)step);
}

static void put_scalar(message *summary, const char *tag, double value)
{
    message *m = &(message){.count = 0};
    const float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    put_text(m, 1, tag, strnlen(tag, VALUE_BYTES));
    put_field(m, 2, FIXED32);
    put_fixed(m, bits, 4);
    put_text(summary, 1, m->bytes, m->count);
}

static void drop_events(weft_exports *e)
{
    weft_log(WEFT_LOG_WARN, "%s: cannot write: %s; training goes on without it", e->events_path,
             strerror(errno));
    fclose(e->events);
    e->events = NULL;
}

static bool write_event(weft_exports *e, const message *event)
{
    message *record = &(message){.count = 0};
    put_fixed(record, event->count, 8);
    put_fixed(record, checksum(record->bytes, 8), 4);
    fwrite(record->bytes, 1, record->count, e->events);
    fwrite(event->bytes, 1, event->count, e->events);
    record->count = 0;
    put_fixed(record, checksum(event->bytes, event->count), 4);
    fwrite(record->bytes, 1, record->count, e->events);
    return fflush(e->events) == 0 && !ferror(e->events);
}

static void write_summary(weft_exports *e, int64_t step, const message *summary)
{
    message *event = &(message){.count = 0};
    begin_event(event, step);
    put_text(event, 5, summary->bytes, summary->count);
    if (!write_event(e, event))
        drop_events(e);
}

/* Which format it is; and, behind other starts, from which step on theirs count no more. */
static bool write_start(weft_exports *e, int64_t step)
{
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {1 << 3 | VARINT, 1}; /* session_log.status: START */
    message *event = &(message){.count = 0};
    begin_event(event, 0);
    put_text(event, 3, version, sizeof version - 1);
    bool good = write_event(e, event);
    if (!good || step == 0)
        return good;
    begin_event(event, step + 1);
    put_text(event, 7, start, sizeof start);
    return write_event(e, event);
}

static weft_status open_events(weft_exports *e, const char *dir, int64_t step)
{
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    WEFT_TRY(weft_output_try_folder(dir));
    mkdir(dir, 0777); /* what is wrong with it shows below */
    for (int number = 0; !e->events && number < 1000; number++) {
        const int bytes =
            snprintf(e->events_path, sizeof e->events_path, "%s/events.out.tfevents.%lld.%s.%d.%d",
                     dir, (long long)time(NULL), host, (int)getpid(), number);
        if (bytes >= (int)sizeof e->events_path)
            return WEFT_ERROR(WEFT_FILE, "log.tensorboard_dir: the path is too long");
        e->events = fopen(e->events_path, "wxe");
        if (!e->events && errno != EEXIST)
            break;
    }
    if (e->events && write_start(e, step))
        return WEFT_OK;
    return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", e->events_path, strerror(errno));
}

/* A step, with Megatron-LM's tags. */
static void exports_step(weft_exports *e, const weft_step_result *r)
{
    message *summary = &(message){.count = 0};
    if (!e->events)
        return;
    put_scalar(summary, "lm loss", r->loss);
    put_scalar(summary, "learning-rate", r->lr);
    put_scalar(summary, "grad-norm", r->grad_norm);
    put_scalar(summary, "batch-size", r->tokens / (double)e->seq_length);
    put_scalar(summary, "iteration-time", r->step_ms / 1e3);
    put_scalar(summary, "throughput", r->peak.share * r->peak.flops / 1e12);
    put_scalar(summary, "tokens-per-second", r->tokens_per_s);
    if (r->scale.value > 0)
        put_scalar(summary, "loss-scale", r->scale.value);
    if (r->expert_load > 0)
        put_scalar(summary, "load_balancing_loss", r->aux_loss);
    for (int i = 0; i < r->own.list->count; i++)
        put_scalar(summary, r->own.list->rows[i].name, r->own.values[i]);
    write_summary(e, r->step, summary);
}

static void exports_evaluation(weft_exports *e, int64_t step, const weft_evaluation *evaluation)
{
    message *summary = &(message){.count = 0};
    char tag[VALUE_BYTES];
    if (!e->events)
        return;
    put_scalar(summary, "lm loss validation", evaluation->loss);
    put_scalar(summary, "lm loss validation ppl", exp(evaluation->loss));
    for (size_t i = 0; i < evaluation->num_sets && evaluation->num_sets > 1; i++) {
        snprintf(tag, sizeof tag, "lm loss validation %s", evaluation->sets[i].name);
        put_scalar(summary, tag, evaluation->sets[i].loss);
    }
    write_summary(e, step, summary);
}

/* --- Prometheus ------------------------------------------------------------------------------ */

/* A label's value. */
static void write_label(const char *name, const char *value, FILE *out)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++)
        if (*value == '\n')
            fputs("\\n", out);
        else
            fprintf(out, "%s%c", *value == '"' || *value == '\\' ? "\\" : "", *value);
    fputc('"', out);
}

static void write_sample(const weft_exports *e, const char *key, const cJSON *part, double value,
                         FILE *out)
{
    fprintf(out, "weft_%s{", key);
    write_label("run", e->run, out);
    if (part) {
        fputc(',', out);
        write_label("dataset", part->string, out);
    }
    fprintf(out, "} %.17g\n", value);
}

/* Numbers, and objects of them by dataset; texts and lists by rank are no metrics. */
static void write_metric(const weft_exports *e, const cJSON *field, FILE *out)
{
    const cJSON *part;
    const bool is_object = cJSON_IsObject(field);
    if (!is_object && !cJSON_IsNumber(field))
        return;
    fprintf(out, "# TYPE weft_%s gauge\n", field->string);
    if (!is_object)
        write_sample(e, field->string, NULL, field->valuedouble, out);
    else
        cJSON_ArrayForEach(part, field) if (cJSON_IsNumber(part))
            write_sample(e, field->string, part, part->valuedouble, out);
}

static weft_status write_text(const weft_exports *e, const char *line)
{
    weft_new_file file;
    const cJSON *field;
    WEFT_TRY(weft_new_file_open(e->text, &file));
    cJSON *json = cJSON_Parse(line);
    cJSON_ArrayForEach(field, json) write_metric(e, field, file.file);
    cJSON_Delete(json);
    return weft_new_file_close(&file, WEFT_OK);
}

/* Puts the numbers of a line of metrics in place of the Prometheus file, where `text` is set. */
static void exports_line(weft_exports *e, const char *line)
{
    if (!e->text || write_text(e, line) == WEFT_OK)
        return;
    weft_log(WEFT_LOG_WARN, "%s; training goes on without it", weft_error_get()->text);
    weft_error_clear();
    e->text = NULL;
}

/* --- both ------------------------------------------------------------------------------------ */

/* Opens what section `log` asks for, for steps behind `step`: TensorBoard drops what earlier starts
 * wrote of them. Errors: WEFT_FILE. */
static weft_status exports_open(weft_exports *e, const weft_config *config, const char *run,
                                int64_t step)
{
    const weft_log_options *options = &config->log;
    *e = (weft_exports){
        .text = options->prometheus_file, .run = run, .seq_length = config->model.seq_length};
    if (options->tensorboard_dir)
        WEFT_TRY(open_events(e, options->tensorboard_dir, step));
    return e->text ? weft_output_try(e->text) : WEFT_OK;
}

static void exports_close(weft_exports *e)
{
    if (e->events)
        fclose(e->events);
    *e = (weft_exports){0};
}

enum { LINE_BYTES = 1 << 20 }; /* no written line is longer */

/* *out_ends: whether the last line is that of `step` itself. */
static void keep_line(const char *line, int64_t step, FILE *out, bool *out_ends)
{
    cJSON *json = cJSON_Parse(line);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, "step");
    if (cJSON_IsNumber(value) && value->valuedouble <= (double)step) {
        fputs(line, out);
        if (line[strlen(line) - 1] != '\n') /* the last line lacks only its newline */
            fputc('\n', out);
        *out_ends =
            value->valuedouble == (double)step && !cJSON_HasObjectItem(json, "validation_loss");
    }
    cJSON_Delete(json);
}

/* Keeps the lines of steps up to `step`; drops a line that does not parse (cut off by a crash). */
static weft_status keep_lines(const char *path, FILE *in, int64_t step, char *line, bool *out_ends)
{
    weft_new_file out;
    bool whole = true; /* the text before `line` was a whole line */
    WEFT_TRY(weft_new_file_open(path, &out));
    while (fgets(line, LINE_BYTES, in)) {
        bool starts = whole;
        whole = strlen(line) < LINE_BYTES - 1 || line[LINE_BYTES - 2] == '\n';
        if (starts && whole)
            keep_line(line, step, out.file, out_ends);
    }
    weft_status status = WEFT_OK;
    if (ferror(in)) /* after a read error the rest would be lost */
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", path, strerror(errno));
    return weft_new_file_close(&out, status);
}

static weft_status keep_until(const char *path, int64_t step, bool *out_ends)
{
    FILE *in;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return WEFT_OK;
    WEFT_TRY(weft_file_stream(path, &in));
    char *line = malloc(LINE_BYTES);
    weft_status status = line ? keep_lines(path, in, step, line, out_ends)
                              : WEFT_ERROR(WEFT_MEMORY, "%s: no memory to read it", path);
    free(line);
    fclose(in);
    return status;
}

static int find_terminal(void)
{
    const char *tty = getenv("WEFT_TTY");
    int rank, size, local_rank, local_size;
    if (tty)
        return tty[0] == '/' ? open(tty, O_RDONLY | O_NOCTTY | O_CLOEXEC) : -1;
    if (weft_comm_launched(&rank, &size, &local_rank, &local_size) || !isatty(STDOUT_FILENO))
        return -1;
    return dup(STDOUT_FILENO);
}

weft_status weft_progress_open(weft_progress *p, const char *run_dir, int64_t step,
                               const weft_config *config, bool json)
{
    memset(p, 0, sizeof *p);
    p->json = json;
    p->terminal = json ? -1 : find_terminal();
    p->live = p->terminal >= 0;
    p->first_step = step;
    p->last_step = config->train.train_iters;
    p->interval = config->log.log_interval;
    p->start_us = weft_now_us();
    snprintf(p->path, sizeof p->path, "%s/metrics.jsonl", run_dir);
    WEFT_TRY(keep_until(p->path, step, &p->ends_with_step));
    p->metrics = weft_file_append(p->path);
    if (!p->metrics)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", p->path, strerror(errno));
    return exports_open(&p->exports, config, run_dir, step);
}

/* The keys of lines of metrics.jsonl. */
static const char *const keys[] = {"step",
                                   "loss",
                                   "aux_loss",
                                   "grad_norm",
                                   "lr",
                                   "tokens",
                                   "consumed_tokens",
                                   "tokens_per_s",
                                   "step_ms",
                                   "model_flops_utilization",
                                   "device_bytes_peak",
                                   "expert_load_max_over_mean",
                                   "rank_load_max_over_mean",
                                   "dropped_tokens",
                                   "expert_tokens",
                                   "loss_tokens",
                                   "loss_scale",
                                   "skipped_steps",
                                   "bad_steps",
                                   "moe_num_partitions",
                                   "moe_memory_reuse",
                                   "moe_all_to_all",
                                   "moe_choice",
                                   "uploaded_bytes",
                                   "downloaded_bytes",
                                   "read_bytes",
                                   "written_bytes",
                                   "experts_away",
                                   "expert_wait_ms",
                                   "host_step_ms",
                                   "optimizer_hidden_share",
                                   "validation_loss",
                                   "validation_tokens",
                                   "validation_losses",
                                   "data_shares",
                                   "data_losses",
                                   "model_flops_per_token",
                                   "peak_flops",
                                   "peak_flops_from",
                                   "energy_j",
                                   "gpu_energy_j",
                                   "compute_ms_median",
                                   "compute_ms_max",
                                   "slowest_rank",
                                   "compute_ms",
                                   "link_ms_median",
                                   "link_ms_max",
                                   "slowest_link",
                                   "link_ms",
                                   "productive_s",
                                   "lost_s",
                                   "saving_s",
                                   "loading_s",
                                   "starting_s",
                                   "waiting_s",
                                   "goodput"};

weft_status weft_progress_check_metrics(const weft_metric_list *own)
{
    for (int i = 0; i < own->count; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (strcmp(own->rows[i].name, keys[k]) == 0)
                return WEFT_ERROR(WEFT_CONFIG,
                                  "metric %s: Weft writes that key itself; name it otherwise",
                                  keys[k]);
    return WEFT_OK;
}

/* A dataset's, as a key. */
static void write_name(const char *name, FILE *out)
{
    weft_json_write_string(out, name, strlen(name), false);
    fputs(": ", out);
}

/* JSON has no numbers that are not finite. */
static void number_text(double x, char out[32])
{
    if (isfinite(x))
        snprintf(out, 32, "%.17g", x);
    else
        strcpy(out, "null");
}

enum { MOST_TIMES = 64 }; /* times of each rank or node are listed up to this number */

static void write_times(const weft_stragglers *s, FILE *out)
{
    fprintf(out, ", \"compute_ms_median\": %.17g, \"compute_ms_max\": %.17g, \"slowest_rank\": %d",
            s->sorted[s->num_ranks / 2], s->sorted[s->num_ranks - 1], s->slowest);
    for (int i = 0; i < s->num_ranks && s->num_ranks <= MOST_TIMES; i++)
        fprintf(out, "%s%.6g%s", i ? ", " : ", \"compute_ms\": [", s->ms[i],
                i + 1 < s->num_ranks ? "" : "]");
}

static void write_links(const weft_links *l, FILE *out)
{
    int slowest = 0;
    for (int i = 0; i < l->num_nodes; i++)
        slowest = l->ms[i] > l->ms[slowest] ? i : slowest;
    fprintf(out, ", \"link_ms_median\": %.6g, \"link_ms_max\": %.6g, \"slowest_link\": \"%s\"",
            l->sorted[l->num_nodes / 2], l->ms[slowest], l->nodes[slowest].node);
    for (int i = 0; i < l->num_nodes && l->num_nodes <= MOST_TIMES; i++)
        fprintf(out, "%s%.6g%s", i ? ", " : ", \"link_ms\": [", l->ms[i],
                i + 1 < l->num_nodes ? "" : "]");
}

/* Writes the account of the run, this step included. */
static void write_account(const weft_ledger_account *a, FILE *out)
{
    for (weft_ledger_part i = 0; i < WEFT_NUM_LEDGER_PARTS; i++)
        fprintf(out, ", \"%s\": %.17g", weft_ledger_part_texts[i], a->seconds[i]);
    fprintf(out, ", \"goodput\": %.17g", weft_ledger_goodput(a));
}

/* The share of each dataset in the run's samples so far, and its loss in this step. */
static void write_parts(const weft_step_result *r, FILE *out)
{
    const weft_data *blend = r->blend;
    double all = 0;
    for (size_t i = 0; i < blend->num_parts; i++)
        all += (double)r->part_samples[i];
    for (int k = 0; k < 2; k++) {
        fputs(k ? ", \"data_losses\": {" : ", \"data_shares\": {", out);
        for (size_t i = 0; i < blend->num_parts; i++) {
            char number[32];
            number_text(k ? r->part_losses[i] : (double)r->part_samples[i] / all, number);
            fputs(i ? ", " : "", out);
            write_name(blend->parts[i].name, out);
            fputs(number, out);
        }
        fputc('}', out);
    }
}

/* Of each MoE layer: all its experts' tokens. */
static void write_choices(const weft_model *model, FILE *out)
{
    size_t count;
    const int num_layers = weft_model_num_layers(model);
    const double *choices = weft_model_expert_choices((weft_model *)model, &count);
    const size_t experts = count / (size_t)num_layers;
    const char *before = ", \"expert_tokens\": {";
    for (int l = 0; l < num_layers; l++, choices += experts) {
        double total = 0, most = 0;
        char name[WEFT_MAX_NAME_BYTES];
        for (size_t e = 0; e < experts; e++) {
            total += choices[e];
            most = fmax(most, choices[e]);
        }
        if (total == 0)
            continue;
        fputs(before, out);
        before = ", ";
        weft_model_layer_prefix(model, l, name, sizeof name);
        name[strlen(name) - 1] = '\0'; /* the dot */
        write_name(name, out);
        fprintf(out, "{\"max_over_mean\": %.17g, \"tokens\": [", most * (double)experts / total);
        for (size_t e = 0; e < experts; e++)
            fprintf(out, "%s%.17g", e ? ", " : "", choices[e]);
        fputs("]}", out);
    }
    if (before[2] == '\0')
        fputc('}', out);
}

static void write_line(const weft_progress *p, FILE *out, const weft_step_result *r)
{
    char grad_norm[32], loss[32], aux_loss[32]; /* a skipped step's may not be finite */
    number_text(r->grad_norm, grad_norm);
    number_text(r->loss, loss);
    number_text(r->aux_loss, aux_loss);
    fprintf(out,
            "{\"step\": %" PRId64 ", \"loss\": %s, \"aux_loss\": %s, \"grad_norm\": %s, "
            "\"lr\": %.17g, \"tokens\": %.17g, \"consumed_tokens\": %" PRId64
            ", \"tokens_per_s\": %.17g, \"step_ms\": %.17g, "
            "\"model_flops_utilization\": %.17g, \"device_bytes_peak\": %.17g, "
            "\"expert_load_max_over_mean\": %.17g, \"rank_load_max_over_mean\": %.17g, "
            "\"dropped_tokens\": %.17g",
            r->step, loss, aux_loss, grad_norm, r->lr, r->tokens, r->consumed_tokens,
            r->tokens_per_s, r->step_ms, r->peak.share, r->device_bytes_peak, r->expert_load,
            r->rank_load, r->dropped_tokens);
    if (r->choices_of)
        write_choices(r->choices_of, out);
    if (r->peak.from)
        fprintf(out,
                ", \"peak_flops\": %.17g, \"peak_flops_from\": \"%s\", "
                "\"model_flops_per_token\": %.17g",
                r->peak.flops, r->peak.from, r->peak.flops_per_token);
    if (r->masks)
        fprintf(out, ", \"loss_tokens\": %.17g", r->loss_tokens);
    if (r->scale.value > 0)
        fprintf(out, ", \"loss_scale\": %.17g, \"skipped_steps\": %" PRId64, r->scale.value,
                r->scale.skipped_steps);
    if (r->bad.steps > 0)
        fprintf(out, ", \"bad_steps\": %" PRId64, r->bad.steps);
    if (r->moe.pipeline.num_partitions > 0)
        fprintf(out,
                ", \"moe_num_partitions\": %d, \"moe_memory_reuse\": \"%s\", "
                "\"moe_all_to_all\": \"%s\"",
                r->moe.pipeline.num_partitions, weft_reuse_text((int)r->moe.pipeline.reuse),
                weft_exchange_text((int)r->moe.form));
    if (r->moe.choice)
        fprintf(out, ", \"moe_choice\": \"%s\"", r->moe.choice);
    if (r->tier.on)
        fprintf(out, ", \"uploaded_bytes\": %.17g, \"downloaded_bytes\": %.17g",
                r->tier.uploaded_bytes, r->tier.downloaded_bytes);
    if (r->tier.reads)
        fprintf(out, ", \"read_bytes\": %.17g, \"written_bytes\": %.17g", r->tier.read_bytes,
                r->tier.written_bytes);
    if (r->tier.places)
        fprintf(out, ", \"experts_away\": %.17g", r->tier.experts_away);
    if (r->tier.on && isfinite(r->tier.wait_ms))
        fprintf(out, ", \"expert_wait_ms\": %.17g", r->tier.wait_ms);
    if (isfinite(r->tier.host_step_ms))
        fprintf(out, ", \"host_step_ms\": %.17g", r->tier.host_step_ms);
    if (isfinite(r->tier.optimizer_hidden))
        fprintf(out, ", \"optimizer_hidden_share\": %.17g", r->tier.optimizer_hidden);
    if (r->joules.processors >= 0)
        fprintf(out, ", \"energy_j\": %.9g", r->joules.processors);
    if (r->joules.gpus >= 0)
        fprintf(out, ", \"gpu_energy_j\": %.9g", r->joules.gpus);
    if (r->blend)
        write_parts(r, out);
    if (r->slow.ranks)
        write_times(r->slow.ranks, out);
    if (r->slow.links)
        write_links(r->slow.links, out);
    for (int i = 0; i < r->own.list->count; i++)
        if (isfinite(r->own.values[i]))
            fprintf(out, ", \"%s\": %.17g", r->own.list->rows[i].name, r->own.values[i]);
        else
            fprintf(out, ", \"%s\": null", r->own.list->rows[i].name);
    if (p->account)
        write_account(p->account, out);
    fputs("}\n", out);
}

static void time_text(double seconds, char *out, size_t capacity)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s < 60)
        snprintf(out, capacity, "%" PRId64 " s", s);
    else if (s < 3600)
        snprintf(out, capacity, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else
        snprintf(out, capacity, "%" PRId64 " h %02" PRId64 " min", s / 3600, s / 60 % 60);
}

#define REWRITE "\r\033[K" /* rewrites the cursor's line */

/* The most characters that do not wrap, read each time since terminals change. */
static size_t room(const weft_progress *p)
{
    struct winsize size = {0};
    if (!p->live)
        return SIZE_MAX;
    bool known = ioctl(p->terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return (known ? size.ws_col : 80u) - 1;
}

enum { NUM_PARTS = 7 };

/* Joins the parts that fit; the first is cut if it does not. */
static void progress_line(const weft_progress *p, const weft_step_result *r, char line[256])
{
    char parts[NUM_PARTS][40] = {"", "", "", "", "", "", ""}, left[32];
    double each = (weft_now_us() - p->start_us) / 1e6 / (double)(r->step - p->first_step);
    time_text(each * (double)(p->last_step - r->step), left, sizeof left);
    snprintf(parts[0], sizeof *parts, "step %" PRId64 "/%" PRId64, r->step, p->last_step);
    snprintf(parts[1], sizeof *parts, "  loss %.4f", r->loss);
    snprintf(parts[2], sizeof *parts, "  %.0f tokens/s", r->tokens_per_s);
    snprintf(parts[3], sizeof *parts, "  %.0f %% of peak", 100 * r->peak.share);
    snprintf(parts[4], sizeof *parts, "  %s left", left);
    snprintf(parts[5], sizeof *parts, "%s",
             r->scale.skipped     ? "  (skipped: gradients overflow)"
             : r->bad.skips_batch ? "  (skipped: a bad step)"
                                  : "");
    if (r->tier.reads && r->tier.written_per_day > 0)
        snprintf(parts[6], sizeof *parts, "  %.3g TB a day written",
                 r->tier.written_per_day / 1e12);
    size_t most = room(p), used = 0;
    for (int i = 0; i < NUM_PARTS; i++) {
        size_t bytes = strlen(parts[i]);
        if (i > 0 && bytes > most - used)
            break;
        bytes = bytes < most ? bytes : most;
        memcpy(line + used, parts[i], bytes);
        used += bytes;
    }
    line[used] = '\0';
}

static off_t size_of(FILE *file)
{
    struct stat info;
    return fstat(fileno(file), &info) == 0 ? info.st_size : -1;
}

/* Truncates the file to `size` bytes after a line could not be written whole. */
static void end_line(weft_progress *p, int64_t step, off_t size)
{
    if (fflush(p->metrics) == 0 && !ferror(p->metrics))
        return;
    const int reason = errno;
    __fpurge(p->metrics);
    clearerr(p->metrics);
    const bool cut = size >= 0 && ftruncate(fileno(p->metrics), size) == 0;
    if (p->num_unwritten++ == 0)
        weft_log(WEFT_LOG_WARN,
                 "step %" PRId64 ": %s: cannot write: %s%s; training goes on, and "
                 "the next line is tried again",
                 step, p->path, strerror(reason), cut ? "" : ", half a line stays");
}

void weft_progress_tell_unwritten(const weft_progress *p)
{
    if (p->num_unwritten > 0)
        weft_log(WEFT_LOG_WARN, "%s: %s could not be written", p->path,
                 weft_count_text(p->num_unwritten, "line").text);
}

static void export_line(weft_progress *p, const weft_step_result *r)
{
    char *line = NULL;
    size_t bytes;
    FILE *stream = p->exports.text ? open_memstream(&line, &bytes) : NULL;
    if (!stream)
        return;
    write_line(p, stream, r);
    if (fclose(stream) == 0)
        exports_line(&p->exports, line);
    free(line);
}

void weft_progress_step(weft_progress *p, const weft_step_result *r)
{
    const off_t size = size_of(p->metrics);
    write_line(p, p->metrics, r);
    end_line(p, r->step, size);
    exports_step(&p->exports, r);
    bool due = r->step % p->interval == 0 || r->step == p->last_step ||
               r->step == p->first_step + 1 || r->stop;
    if (due)
        export_line(p, r);
    if (p->json) {
        write_line(p, stdout, r);
        weft_output_flush();
        return;
    }
    if (!p->live && !due)
        return;
    char line[256];
    progress_line(p, r, line);
    printf("%s%s%s", p->live ? REWRITE : "", line, !p->live || r->step == p->last_step ? "\n" : "");
    weft_output_flush();
}

static void write_evaluation(FILE *out, int64_t step, const weft_evaluation *e)
{
    fprintf(out, "{\"step\": %" PRId64 ", \"validation_loss\": %.17g, \"validation_tokens\": %.17g",
            step, e->loss, e->tokens);
    for (size_t i = 0; i < e->num_sets; i++) {
        fputs(i ? ", " : ", \"validation_losses\": {", out);
        write_name(e->sets[i].name, out);
        fprintf(out, "%.17g%s", e->sets[i].loss, i + 1 < e->num_sets ? "" : "}");
    }
    fputs("}\n", out);
}

void weft_progress_evaluation(weft_progress *p, int64_t step, const weft_evaluation *e)
{
    const off_t size = size_of(p->metrics);
    write_evaluation(p->metrics, step, e);
    end_line(p, step, size);
    exports_evaluation(&p->exports, step, e);
    if (p->json) {
        write_evaluation(stdout, step, e);
        fflush(stdout);
    }
    weft_progress_note(p, "step %" PRId64 "  validation loss %.4f", step, e->loss);
    for (size_t i = 0; i < e->num_sets && e->num_sets > 1; i++)
        weft_progress_note(p, "  %s %.4f", e->sets[i].name, e->sets[i].loss);
}

void weft_progress_note(weft_progress *p, const char *format, ...)
{
    if (p->json)
        return;
    va_list args;
    if (p->live)
        fputs(REWRITE, stdout);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    weft_output_flush();
}

void weft_progress_close(weft_progress *p)
{
    exports_close(&p->exports);
    if (p->metrics)
        fclose(p->metrics);
    if (p->live)
        close(p->terminal);
    memset(p, 0, sizeof *p);
}
