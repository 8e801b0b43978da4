#include "launcher/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

/* Keeps the lines of steps up to `step`; a line that does not parse (cut off by a crash) goes. */
static weft_status keep_until(const char *path, int64_t step)
{
    FILE *in = fopen(path, "r");
    if (!in)
        return WEFT_OK;
    char temporary[1100], *line = NULL;
    size_t capacity = 0;
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    FILE *out = fopen(temporary, "w");
    if (!out) {
        fclose(in);
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", temporary, strerror(errno));
    }
    while (getline(&line, &capacity, in) > 0) {
        cJSON *json = cJSON_Parse(line);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, "step");
        if (cJSON_IsNumber(value) && value->valuedouble <= (double)step)
            fputs(line, out);
        cJSON_Delete(json);
    }
    free(line);
    fclose(in);
    if (fclose(out) != 0 || rename(temporary, path) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return WEFT_OK;
}

weft_status weft_progress_open(weft_progress *p, const char *run_dir, int64_t step,
                               int64_t train_iters, int64_t interval, bool json)
{
    char path[1024];
    const char *tty = getenv("WEFT_TTY");
    memset(p, 0, sizeof *p);
    p->json = json;
    p->live = !json && (tty ? tty[0] == '1' : isatty(STDOUT_FILENO) != 0);
    p->first_step = step;
    p->last_step = train_iters;
    p->interval = interval;
    p->start_us = weft_now_us();
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    WEFT_TRY(keep_until(path, step));
    p->metrics = fopen(path, "a");
    if (!p->metrics)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return WEFT_OK;
}

static void write_line(FILE *out, const weft_step_result *r)
{
    char grad_norm[32] = "null"; /* of a skipped step: infinite, which JSON does not know */
    if (!r->skipped)
        snprintf(grad_norm, sizeof grad_norm, "%.17g", r->grad_norm);
    fprintf(out,
            "{\"step\": %" PRId64 ", \"loss\": %.17g, \"aux_loss\": %.17g, \"grad_norm\": %s, "
            "\"lr\": %.17g, \"tokens\": %.17g, \"tokens_per_s\": %.17g, \"step_ms\": %.17g, "
            "\"model_flops_utilization\": %.17g, \"device_bytes_peak\": %.17g, "
            "\"expert_load_max_over_mean\": %.17g, \"dropped_tokens\": %.17g",
            r->step, r->loss, r->aux_loss, grad_norm, r->lr, r->tokens, r->tokens_per_s, r->step_ms,
            r->mfu, r->device_bytes_peak, r->expert_load, r->dropped_tokens);
    if (r->loss_scale > 0)
        fprintf(out, ", \"loss_scale\": %.17g, \"skipped_steps\": %" PRId64, r->loss_scale,
                r->skipped_steps);
    if (r->moe.pipeline.num_partitions > 0)
        fprintf(out,
                ", \"moe_num_partitions\": %d, \"moe_memory_reuse\": \"%s\", "
                "\"moe_all_to_all\": \"%s\"",
                r->moe.pipeline.num_partitions, weft_reuse_text((int)r->moe.pipeline.reuse),
                weft_exchange_text((int)r->moe.form));
    if (r->moe_choice)
        fprintf(out, ", \"moe_choice\": \"%s\"", r->moe_choice);
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

weft_status weft_progress_step(weft_progress *p, const weft_step_result *r)
{
    write_line(p->metrics, r);
    if (fflush(p->metrics) != 0)
        return WEFT_ERROR(WEFT_FILE, "metrics.jsonl: cannot write: %s", strerror(errno));
    bool due = r->step % p->interval == 0 || r->step == p->last_step ||
               r->step == p->first_step + 1 || r->stop;
    if (p->json) {
        write_line(stdout, r);
        fflush(stdout);
        return WEFT_OK;
    }
    if (!p->live && !due)
        return WEFT_OK;
    char left[32];
    double each = (weft_now_us() - p->start_us) / 1e6 / (double)(r->step - p->first_step);
    time_text(each * (double)(p->last_step - r->step), left, sizeof left);
    printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f  %.0f tokens/s  %.0f %% of peak  %s left%s%s",
           p->live ? "\r\033[K" : "", r->step, p->last_step, r->loss, r->tokens_per_s, 100 * r->mfu,
           left, r->skipped ? "  (skipped: gradients overflow)" : "", p->live ? "" : "\n");
    if (p->live && r->step == p->last_step)
        putchar('\n');
    fflush(stdout);
    return WEFT_OK;
}

void weft_progress_note(weft_progress *p, const char *format, ...)
{
    if (p->json)
        return;
    va_list args;
    if (p->live)
        fputs("\r\033[K", stdout);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

void weft_progress_close(weft_progress *p)
{
    if (p->metrics)
        fclose(p->metrics);
    p->metrics = NULL;
}
