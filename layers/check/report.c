/* The verdicts, a line a check, or one JSON object. */
#include <stdarg.h>

#include "layers/check/internal.h"

static void end_layer(weft_check_report *r)
{
    int checks = r->num_in_all - r->checks_before, wrong = r->num_wrong - r->wrong_before;
    if (!r->out || r->num_layers == 0)
        return;
    if (r->json) {
        weft_json_close(&r->writer);
        weft_json_number(&r->writer, "wrong", wrong);
        weft_json_close(&r->writer);
    } else if (wrong) {
        fprintf(r->out, "  %s is WRONG: %d of %d checks\n", r->kind, wrong, checks);
    } else {
        fprintf(r->out, "  %s is right: %d checks\n", r->kind, checks);
    }
}

/* Begins the object once. */
static void begin_json(weft_check_report *r)
{
    if (r->writer.file)
        return;
    r->writer = (weft_json_out){.file = r->out};
    weft_json_open(&r->writer, NULL, '{');
    weft_json_open(&r->writer, "layers", '[');
}

void weft_check_report_layer(weft_check_report *r, const weft_check_layer *l, int num_alike)
{
    pthread_mutex_lock(&r->lock);
    end_layer(r);
    r->num_layers++;
    r->checks_before = r->num_in_all;
    r->wrong_before = r->num_wrong;
    r->kind = l->layer->ops->kind;
    if (r->out && r->json) {
        begin_json(r);
        weft_json_open(&r->writer, NULL, '{');
        weft_json_text(&r->writer, "layer", weft_layer_name(l->layer));
        weft_json_text(&r->writer, "kind", l->layer->ops->kind);
        weft_json_number(&r->writer, "alike", num_alike);
        weft_json_open(&r->writer, "checks", '[');
    } else if (r->out) {
        fprintf(r->out, "%s (%s)", weft_layer_name(l->layer), l->layer->ops->kind);
        if (num_alike > 1)
            fprintf(r->out, ", and %d more like it", num_alike - 1);
        fputc('\n', r->out);
        fflush(r->out); /* if a layer crashes, these lines are out */
    }
    pthread_mutex_unlock(&r->lock);
}

void weft_check_report_add(weft_check_report *r, weft_check_verdict verdict, const char *check,
                           const char *format, ...)
{
    static const char *const names[] = {"ok", "WRONG", "--"};
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&r->lock);
    r->num_in_all += verdict != WEFT_CHECK_LEFT_OUT;
    r->num_wrong += verdict == WEFT_CHECK_WRONG;
    if (r->out && r->json) {
        weft_json_open_flat(&r->writer, NULL, '{');
        weft_json_text(&r->writer, "check", check);
        weft_json_text(&r->writer, "verdict",
                       verdict == WEFT_CHECK_LEFT_OUT ? "left out" : names[verdict]);
        weft_json_text(&r->writer, "text", text);
        weft_json_close(&r->writer);
    } else if (r->out) {
        fprintf(r->out, "  %-5s  %s: %s\n", names[verdict], check, text);
        fflush(r->out);
    }
    pthread_mutex_unlock(&r->lock);
}

void weft_check_report_note(weft_check_report *r, const char *format, ...)
{
    va_list args;
    if (r->num_notes == (int)(sizeof r->notes / sizeof *r->notes))
        return;
    va_start(args, format);
    vsnprintf(r->notes[r->num_notes++], sizeof r->notes[0], format, args);
    va_end(args);
}

/* `error`: what cut the report short; NULL: nothing. */
static void end_json(weft_check_report *r, const char *error)
{
    begin_json(r);
    weft_json_close(&r->writer);
    weft_json_open(&r->writer, "left_out", '[');
    for (int i = 0; i < r->num_notes; i++)
        weft_json_text(&r->writer, NULL, r->notes[i]);
    weft_json_close(&r->writer);
    weft_json_number(&r->writer, "checks", r->num_in_all);
    weft_json_number(&r->writer, "wrong", r->num_wrong);
    if (error)
        weft_json_text(&r->writer, "error", error);
    weft_json_close(&r->writer);
}

void weft_check_report_end(weft_check_report *r)
{
    if (!r->out)
        return;
    end_layer(r);
    if (r->json) {
        end_json(r, NULL);
    } else {
        for (int i = 0; i < r->num_notes; i++)
            fprintf(r->out, "left out: %s\n", r->notes[i]);
        fprintf(r->out, "%d checks, %d wrong\n", r->num_in_all, r->num_wrong);
    }
    fflush(r->out);
}

void weft_check_report_fail(weft_check_report *r, const char *error)
{
    pthread_mutex_lock(&r->lock);
    if (r->out && r->json) {
        end_layer(r);
        end_json(r, error);
        fflush(r->out);
    }
    r->out = NULL;
    pthread_mutex_unlock(&r->lock);
}

void weft_check_could_not_begin(FILE *out)
{
    weft_check_report report = {.lock = PTHREAD_MUTEX_INITIALIZER, .out = out, .json = true};
    weft_check_report_fail(&report, weft_error_get()->text);
}
