#include "layers/span.h"

#include <stdlib.h>
#include <string.h>

#include "layers/pass.h"

enum { MAX_SPANS = 1 << 16 };

typedef struct span {
    double start_us, end_us;
    weft_span_kind kind;
    int micro_batch, part;
    bool backward;
} span;

struct weft_span_log {
    int count;
    span spans[MAX_SPANS];
};

static const struct {
    const char *text;
    int track;
} kinds[WEFT_NUM_SPANS] = {
#define ROW(name, text, track) {text, WEFT_TRACK_##track},
    WEFT_SPAN_LIST(ROW)
#undef ROW
};

static weft_status stamp(const void *args)
{
    double *const *at = args;
    **at = weft_now_us();
    return WEFT_OK;
}

static weft_status note(weft_lane *lane, double *at)
{
    return weft_lane_submit(lane, "time stamp", stamp, &at, sizeof at);
}

weft_status weft_span_begin(weft_pass *pass, weft_lane *lane, weft_span_kind kind, int part,
                            int *out_id)
{
    weft_span_log *log = pass->model->spans;
    *out_id = -1;
    if (!log || log->count == MAX_SPANS)
        return WEFT_OK;
    *out_id = log->count++;
    span *s = &log->spans[*out_id];
    *s = (span){.kind = kind,
                .micro_batch = (int)pass->micro_batch.first_sample,
                .part = part,
                .backward = pass->backward};
    return note(lane, &s->start_us);
}

weft_status weft_span_end(weft_pass *pass, weft_lane *lane, int id)
{
    return id < 0 ? WEFT_OK : note(lane, &pass->model->spans->spans[id].end_us);
}

weft_status weft_model_keep_spans(weft_model *model, bool keep)
{
    if (!keep) {
        free(model->spans);
        model->spans = NULL;
        return WEFT_OK;
    }
    if (!model->spans)
        model->spans = malloc(sizeof *model->spans);
    if (!model->spans)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a timeline");
    model->spans->count = 0;
    return WEFT_OK;
}

weft_status weft_model_add_spans(const weft_model *model, weft_trace *trace, double origin_us,
                                 int rank)
{
    int count = model->spans ? model->spans->count : 0;
    for (int i = 0; i < count; i++) {
        const span *s = &model->spans->spans[i];
        weft_slice slice = {.rank = rank,
                            .lane = kinds[s->kind].track,
                            .start_us = s->start_us - origin_us,
                            .end_us = s->end_us - origin_us,
                            .micro_batch = s->micro_batch,
                            .stage = -1};
        snprintf(slice.category, sizeof slice.category, "%s%s", kinds[s->kind].text,
                 s->backward ? " back" : "");
        if (s->part >= 0)
            snprintf(slice.name, sizeof slice.name, "%s %d", kinds[s->kind].text, s->part);
        else
            snprintf(slice.name, sizeof slice.name, "%s", kinds[s->kind].text);
        WEFT_TRY(weft_trace_add(trace, &slice));
    }
    return WEFT_OK;
}

const char *const *weft_model_track_names(int *out_count)
{
    static const char *names[WEFT_NUM_TRACKS];
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        names[i] = weft_lane_kind_text(i);
    names[WEFT_TRACK_LAYERS] = "layers";
    names[WEFT_TRACK_PARTS] = "parts";
    names[WEFT_TRACK_EXCHANGE] = "exchange";
    names[WEFT_TRACK_TENSOR] = "tensor";
    *out_count = WEFT_NUM_TRACKS;
    return names;
}
