#include "launcher/training/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/grow.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

/* --- adding up ----------------------------------------------------------------------------- */

const char *const weft_ledger_part_texts[WEFT_NUM_LEDGER_PARTS] = {
    "productive_s", "lost_s", "saving_s", "loading_s", "starting_s", "waiting_s"};
static const char *const part_titles[WEFT_NUM_LEDGER_PARTS] = {"productive", "lost",     "saving",
                                                               "loading",    "starting", "waiting"};

static const struct {
    const char *text;
    weft_ledger_part part;
} dids[WEFT_NUM_DID] = {
    [WEFT_DID_BEGIN] = {"begin", WEFT_LEDGER_WAITING},
    [WEFT_DID_START] = {"start", WEFT_LEDGER_STARTING},
    [WEFT_DID_LOAD] = {"load", WEFT_LEDGER_LOADING},
    [WEFT_DID_STEP] = {"step", WEFT_LEDGER_PRODUCTIVE},
    [WEFT_DID_SKIP] = {"skip", WEFT_LEDGER_LOST},
    [WEFT_DID_EVALUATE] = {"evaluate", WEFT_LEDGER_PRODUCTIVE},
    [WEFT_DID_SAVE] = {"save", WEFT_LEDGER_SAVING},
    [WEFT_DID_END] = {"end", WEFT_LEDGER_SAVING},
};

static weft_status push(weft_ledger_account *a, const weft_ledger_entry *e, double seconds)
{
    WEFT_TRY(WEFT_GROW(a->spans, a->capacity, a->num_spans + 1, "steps of a ledger"));
    a->spans[a->num_spans++] = (weft_ledger_span){e->step, seconds, e->tokens};
    return WEFT_OK;
}

/* Marks the steps after `step` as lost: the run is back there. */
static void lose(weft_ledger_account *a, int64_t step)
{
    int64_t last = INT64_MAX; /* an evaluation's line has its step's number */
    while (a->num_spans > 0 && a->spans[a->num_spans - 1].step > step) {
        const weft_ledger_span *span = &a->spans[--a->num_spans];
        a->seconds[WEFT_LEDGER_PRODUCTIVE] =
            fmax(0, a->seconds[WEFT_LEDGER_PRODUCTIVE] - span->seconds);
        a->seconds[WEFT_LEDGER_LOST] += span->seconds;
        a->tokens -= span->tokens;
        a->num_lost += span->step < last;
        last = span->step;
    }
}

weft_status weft_ledger_add(weft_ledger_account *a, const weft_ledger_entry *e)
{
    const bool begins = e->did == WEFT_DID_BEGIN;
    const bool counts = a->num_starts > 0 && !(begins && a->ended);
    const double seconds = counts ? fmax(0, e->time_s - a->last_s) : 0;
    a->seconds[dids[e->did].part] += seconds;
    a->last_s = e->time_s;
    a->ended = e->did == WEFT_DID_END;
    a->num_starts += begins;
    if (begins)
        a->who = e->who;
    if (e->did == WEFT_DID_LOAD)
        lose(a, e->step);
    if (e->did == WEFT_DID_LOAD && e->step == 0)
        a->saved = 0;
    if (e->saved > 0)
        a->saved = e->saved;
    if (e->did == WEFT_DID_SKIP)
        a->num_lost++;
    a->joules += e->joules;
    a->gpu_joules += e->gpu_joules;
    if (dids[e->did].part != WEFT_LEDGER_PRODUCTIVE)
        return WEFT_OK;
    a->tokens += e->tokens;
    return push(a, e, seconds);
}

double weft_ledger_sum(const weft_ledger_account *a)
{
    double sum = 0;
    for (int i = 0; i < WEFT_NUM_LEDGER_PARTS; i++)
        sum += a->seconds[i];
    return sum;
}

double weft_ledger_goodput(const weft_ledger_account *a)
{
    double sum = weft_ledger_sum(a);
    return sum > 0 ? a->seconds[WEFT_LEDGER_PRODUCTIVE] / sum : 0;
}

void weft_ledger_account_release(weft_ledger_account *a)
{
    free(a->spans);
    *a = (weft_ledger_account){0};
}

/* --- reading ------------------------------------------------------------------------------- */

enum { LINE_BYTES = 256 }; /* no written line is longer */

/* A number of the line; 0: missing, or out of range. */
static double amount_of(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) && item->valuedouble < 1e18 ? fmax(0, item->valuedouble) : 0;
}

static void read_text(const cJSON *json, const char *key, char *out, size_t capacity)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, key));
    snprintf(out, capacity, "%s", text ? text : "");
}

static bool parse(const char *line, weft_ledger_entry *out)
{
    cJSON *json = cJSON_Parse(line);
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(json, "time");
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    const char *did = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "did"));
    bool good = cJSON_IsNumber(time) && cJSON_IsNumber(step) && did && step->valuedouble >= 0 &&
                step->valuedouble < 9e15 && time->valuedouble >= 0 && time->valuedouble < 1e12;
    out->did = 0;
    while (good && out->did < WEFT_NUM_DID && strcmp(dids[out->did].text, did) != 0)
        out->did++;
    good = good && out->did < WEFT_NUM_DID;
    if (good) {
        out->time_s = time->valuedouble;
        out->step = (int64_t)step->valuedouble;
        out->joules = amount_of(json, "joules");
        out->gpu_joules = amount_of(json, "gpu_joules");
        out->tokens = amount_of(json, "tokens");
        read_text(json, "weft", out->who.weft, sizeof out->who.weft);
        read_text(json, "mesh", out->who.mesh, sizeof out->who.mesh);
        out->saved = (int64_t)fmin(amount_of(json, "saved"), 9e15);
    }
    cJSON_Delete(json);
    return good;
}

static weft_status read_lines(const char *path, FILE *in, weft_ledger_account *account)
{
    char line[LINE_BYTES];
    bool whole = true; /* the text before `line` was a whole line */
    while (fgets(line, sizeof line, in)) {
        weft_ledger_entry entry;
        bool starts = whole;
        whole = strchr(line, '\n') != NULL;
        if (!starts)
            continue;
        if (parse(line, &entry))
            WEFT_TRY(weft_ledger_add(account, &entry));
        else
            account->num_damaged++;
    }
    if (ferror(in))
        return WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", path, strerror(errno));
    return WEFT_OK;
}

weft_status weft_ledger_read(const char *path, weft_ledger_account *account)
{
    FILE *in;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return WEFT_OK;
    WEFT_TRY(weft_file_stream(path, &in));
    weft_status status = read_lines(path, in, account);
    fclose(in);
    return status;
}

static void report_energy(weft_report *r, const weft_ledger_account *a)
{
    if (a->joules > 0) {
        weft_report_value(r, "joules", a->joules);
        weft_report_cell(r, "energy", "%.4g kJ", a->joules / 1e3);
    }
    if (a->gpu_joules > 0) {
        weft_report_value(r, "gpu_joules", a->gpu_joules);
        weft_report_cell(r, "  of GPUs", "%.4g kJ", a->gpu_joules / 1e3);
    }
    if (a->joules > 0 && a->tokens > 0) {
        weft_report_value(r, "joules_per_token", a->joules / a->tokens);
        weft_report_cell(r, "a token", "%.4g J", a->joules / a->tokens);
    }
}

/* For people. */
static void report_part(weft_report *r, const char *title, double seconds, double share)
{
    weft_report_record(r);
    weft_report_cell(r, "part", "%s", title);
    weft_report_cell(r, "time", "%.1f s", seconds);
    weft_report_row(r, NULL, "share", WEFT_UNIT_SHARE, share);
}

void weft_ledger_report(weft_report *r, const weft_ledger_account *a)
{
    const double sum = weft_ledger_sum(a);
    weft_report_line(r, "time of %s", weft_count_text(a->num_starts, "start").text);
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < WEFT_NUM_LEDGER_PARTS; i++) {
        report_part(r, part_titles[i], a->seconds[i], sum > 0 ? a->seconds[i] / sum : 0);
        if (i == WEFT_LEDGER_LOST && a->num_lost > 0)
            weft_report_cell(r, "", "%s", weft_count_text(a->num_lost, "step").text);
    }
    report_part(r, "all", sum, 1);
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_OBJECT, "ledger");
    weft_report_open(r, WEFT_REPORT_FACTS, NULL);
    weft_report_value(r, "starts", a->num_starts);
    for (int i = 0; i < WEFT_NUM_LEDGER_PARTS; i++)
        weft_report_value(r, weft_ledger_part_texts[i], a->seconds[i]);
    weft_report_value(r, "all_s", sum);
    weft_report_row(r, "goodput", "goodput", WEFT_UNIT_SHARE, weft_ledger_goodput(a));
    weft_report_value(r, "lost_steps", a->num_lost);
    weft_report_value(r, "damaged_lines", a->num_damaged);
    report_energy(r, a);
    weft_report_close(r);
    weft_report_close(r);
    if (a->num_damaged > 0)
        weft_report_line(r, "  %s passed over",
                         weft_count_text(a->num_damaged, "damaged line").text);
}

/* --- writing ------------------------------------------------------------------------------- */

/* Converts a time of weft_now_us to seconds since 1970. */
static double ledger_time(double now_us)
{
    static double at_0; /* one reading, so that a start's times do not jump with the clock */
    if (at_0 == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        at_0 = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - weft_now_us() / 1e6;
    }
    return at_0 + now_us / 1e6;
}

double weft_ledger_began(double own_us)
{
    const char *started = getenv("WEFT_STARTED");
    double before = started ? ledger_time(own_us) - strtod(started, NULL) : 0;
    return before > 0 && before < 86400 ? own_us - before * 1e6 : own_us;
}

/* Ends a line that a crash cut off. */
static void end_line(FILE *file, const char *path)
{
    FILE *in = fopen(path, "r");
    if (in && fseek(in, -1, SEEK_END) == 0 && fgetc(in) != '\n')
        fputc('\n', file);
    if (in)
        fclose(in);
}

static void give_up(weft_ledger *ledger, const char *what)
{
    weft_log(WEFT_LOG_WARN, "%s: cannot %s: %s; the run goes on without", ledger->path, what,
             strerror(errno));
    if (ledger->file)
        fclose(ledger->file);
    ledger->file = NULL;
}

weft_status weft_ledger_open(weft_ledger *ledger, const char *run_dir)
{
    *ledger = (weft_ledger){0};
    snprintf(ledger->path, sizeof ledger->path, "%s/ledger.jsonl", run_dir);
    WEFT_TRY(weft_ledger_read(ledger->path, &ledger->account));
    ledger->file = weft_file_append(ledger->path);
    if (ledger->file)
        end_line(ledger->file, ledger->path);
    else
        give_up(ledger, "write");
    return WEFT_OK;
}

static weft_status write_entry(weft_ledger *ledger, const weft_ledger_entry *e)
{
    FILE *out = ledger->file;
    if (!out)
        return WEFT_OK;
    fprintf(out, "{\"time\": %.6f, \"did\": \"%s\", \"step\": %" PRId64, e->time_s,
            dids[e->did].text, e->step);
    if (e->tokens > 0)
        fprintf(out, ", \"joules\": %.9g, \"tokens\": %.17g", e->joules, e->tokens);
    if (e->gpu_joules > 0)
        fprintf(out, ", \"gpu_joules\": %.9g", e->gpu_joules);
    if (e->saved > 0)
        fprintf(out, ", \"saved\": %" PRId64, e->saved);
    if (e->who.weft[0])
        fprintf(out, ", \"weft\": \"%s\", \"mesh\": \"%s\"", e->who.weft, e->who.mesh);
    fputs("}\n", out);
    if (fflush(out) != 0)
        give_up(ledger, "write");
    return weft_ledger_add(&ledger->account, e);
}

weft_status weft_ledger_begin(weft_ledger *ledger, const weft_mesh *mesh, double now_us)
{
    weft_ledger_entry entry = {
        .did = WEFT_DID_BEGIN, .time_s = ledger_time(now_us), .who = {.weft = WEFT_VERSION}};
    weft_mesh_print(mesh, entry.who.mesh, sizeof entry.who.mesh);
    return write_entry(ledger, &entry);
}

weft_status weft_ledger_write(weft_ledger *ledger, weft_ledger_did did, int64_t step, double now_us)
{
    return weft_ledger_write_step(ledger, did, step, now_us, &(weft_joules){-1, -1}, 0);
}

weft_status weft_ledger_write_step(weft_ledger *ledger, weft_ledger_did did, int64_t step,
                                   double now_us, const weft_joules *joules, double tokens)
{
    const bool is_read = joules->processors >= 0 || joules->gpus >= 0;
    const double gpus = fmax(0, joules->gpus);
    const weft_ledger_entry entry = {.did = (int)did,
                                     .time_s = ledger_time(now_us),
                                     .step = step,
                                     .joules = fmax(0, joules->processors) + gpus,
                                     .gpu_joules = gpus,
                                     .saved =
                                         ledger->saved != ledger->account.saved ? ledger->saved : 0,
                                     .tokens = is_read ? tokens : 0};
    return write_entry(ledger, &entry);
}

void weft_ledger_close(weft_ledger *ledger)
{
    if (ledger->file)
        fclose(ledger->file);
    weft_ledger_account_release(&ledger->account);
    *ledger = (weft_ledger){0};
}
