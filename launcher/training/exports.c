#include "launcher/training/exports.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/log.h"
#include "launcher/process/output.h"

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

void weft_exports_step(weft_exports *e, const weft_step_result *r)
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

void weft_exports_evaluation(weft_exports *e, int64_t step, const weft_evaluation *evaluation)
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

void weft_exports_line(weft_exports *e, const char *line)
{
    if (!e->text || write_text(e, line) == WEFT_OK)
        return;
    weft_log(WEFT_LOG_WARN, "%s; training goes on without it", weft_error_get()->text);
    weft_error_clear();
    e->text = NULL;
}

/* --- both ------------------------------------------------------------------------------------ */

weft_status weft_exports_open(weft_exports *e, const weft_config *config, const char *run,
                              int64_t step)
{
    const weft_log_options *options = &config->log;
    *e = (weft_exports){
        .text = options->prometheus_file, .run = run, .seq_length = config->model.seq_length};
    if (options->tensorboard_dir)
        WEFT_TRY(open_events(e, options->tensorboard_dir, step));
    return e->text ? weft_output_try(e->text) : WEFT_OK;
}

void weft_exports_close(weft_exports *e)
{
    if (e->events)
        fclose(e->events);
    *e = (weft_exports){0};
}
