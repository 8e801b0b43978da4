#include "layers/pass/note.h"

#include "layers/pass/pass.h"

static const struct {
    const char *text;
    int track;
} kinds[WEFT_NUM_NOTES] = {
#define ROW(name, text, track) {text, WEFT_TRACK_##track},
    WEFT_NOTE_LIST(ROW)
#undef ROW
};

weft_status weft_note_begin(weft_pass *pass, weft_lane *lane, weft_note_kind kind, size_t *out_id)
{
    const weft_model_run *run = &pass->model->run;
    weft_slice slice = {.rank = run->trace_rank,
                        .lane = kinds[kind].track,
                        .micro_batch = (int)pass->micro_batch.first_sample,
                        .stage = -1};
    snprintf(slice.name, sizeof slice.name, "%s", kinds[kind].text);
    snprintf(slice.category, sizeof slice.category, "%s%s", kinds[kind].text,
             pass->backward ? " back" : "");
    return weft_trace_begin(run->trace, lane, &slice, out_id);
}

weft_status weft_note_end(weft_pass *pass, weft_lane *lane, size_t id)
{
    return weft_trace_end(pass->model->run.trace, lane, id);
}

static weft_slice_context context_of(const weft_pass *pass)
{
    return (weft_slice_context){.rank = pass->model->run.trace_rank,
                                .micro_batch = (int)pass->micro_batch.first_sample,
                                .backward = pass->backward};
}

weft_status weft_note_task_begin(weft_pass *pass, weft_lane *lane, const weft_task *task, int track,
                                 size_t *out_id)
{
    const weft_slice_context context = context_of(pass);
    weft_slice slice;
    *out_id = 0;
    if (!pass->model->run.trace || track == WEFT_NO_TRACK)
        return WEFT_OK;
    weft_slice_within(&context, task, &slice);
    slice.lane = track;
    return weft_trace_begin(pass->model->run.trace, lane, &slice, out_id);
}

weft_status weft_note_task_end(weft_pass *pass, weft_lane *lane, int track, size_t id)
{
    return track == WEFT_NO_TRACK ? WEFT_OK : weft_trace_end(pass->model->run.trace, lane, id);
}

void weft_note_tasks(const weft_pass *pass, const int tracks[WEFT_NUM_LANES],
                     weft_executor *executor)
{
    executor->trace = pass->model->run.trace;
    executor->within = context_of(pass);
    executor->within.tracks = tracks;
}

void weft_model_set_trace(weft_model *model, weft_trace *trace, int rank)
{
    model->run.trace = trace;
    model->run.trace_rank = rank;
}

const char *const *weft_model_track_names(int *out_count)
{
    static const char *names[WEFT_NUM_TRACKS];
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        names[i] = weft_lane_kind_text(i);
    names[WEFT_TRACK_LAYERS] = "layers";
    names[WEFT_TRACK_MOE] = "moe";
    names[WEFT_TRACK_PARTS] = "parts";
    names[WEFT_TRACK_EXCHANGE] = "exchange";
    names[WEFT_TRACK_TENSOR] = "tensor";
    names[WEFT_TRACK_CONTEXT] = "context";
    names[WEFT_TRACK_KEYS] = "keys";
    names[WEFT_TRACK_KEYS_GRADIENTS] = "keys' gradients";
    names[WEFT_TRACK_EXPERTS] = "experts";
    names[WEFT_TRACK_UPLOADS] = "uploads";
    names[WEFT_TRACK_DOWNLOADS] = "downloads";
    names[WEFT_TRACK_ACCUMULATIONS] = "accumulations";
    *out_count = WEFT_NUM_TRACKS;
    return names;
}
