#include "core/trace/trace.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/json_write.h"
struct weft_trace {
    pthread_mutex_t mutex; /* over slices, count and capacity */
    weft_slice *slices;
    size_t count, capacity;
    double origin_us;
    const char *const *lane_names, *const *rank_names; /* borrowed */
    int num_lane_names, num_rank_names;
    const weft_trace_letters *letters; /* borrowed */
    int num_letters;
    const weft_trace_fact *facts; /* borrowed */
    int num_facts;
};

weft_status weft_trace_create(weft_trace **out)
{
    weft_trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: trace");
    pthread_mutex_init(&trace->mutex, NULL);
    *out = trace;
    return WEFT_OK;
}

void weft_trace_destroy(weft_trace *trace)
{
    if (!trace)
        return;
    pthread_mutex_destroy(&trace->mutex);
    free(trace->slices);
    free(trace);
}

static weft_status add(weft_trace *trace, const weft_slice *slice, size_t *out_index)
{
    pthread_mutex_lock(&trace->mutex);
    const weft_status status =
        WEFT_GROW(trace->slices, trace->capacity, trace->count + 1, "slices of a trace");
    *out_index = trace->count;
    if (status == WEFT_OK)
        trace->slices[trace->count++] = *slice;
    pthread_mutex_unlock(&trace->mutex);
    return status;
}

weft_status weft_trace_add(weft_trace *trace, const weft_slice *slice)
{
    size_t index;
    return add(trace, slice, &index);
}

/* By index: the slices move when the trace grows. */
typedef struct stamp {
    weft_trace *trace;
    size_t index;
    bool is_end;
} stamp;

static weft_status run_stamp(const void *args)
{
    const stamp *s = args;
    double now_us = weft_now_us();
    pthread_mutex_lock(&s->trace->mutex);
    weft_slice *slice = &s->trace->slices[s->index];
    *(s->is_end ? &slice->end_us : &slice->start_us) = now_us - s->trace->origin_us;
    pthread_mutex_unlock(&s->trace->mutex);
    return WEFT_OK;
}

weft_status weft_trace_begin(weft_trace *trace, weft_lane *lane, const weft_slice *slice,
                             size_t *out_index)
{
    *out_index = 0;
    if (!trace)
        return WEFT_OK;
    WEFT_TRY(add(trace, slice, out_index));
    stamp s = {.trace = trace, .index = *out_index};
    return weft_lane_submit(lane, "time stamp", run_stamp, &s, sizeof s);
}

weft_status weft_trace_end(weft_trace *trace, weft_lane *lane, size_t index)
{
    stamp s = {.trace = trace, .index = index, .is_end = true};
    return trace ? weft_lane_submit(lane, "time stamp", run_stamp, &s, sizeof s) : WEFT_OK;
}

void weft_trace_set_origin(weft_trace *trace, double origin_us)
{
    trace->origin_us = origin_us;
}

void weft_trace_clear(weft_trace *trace)
{
    pthread_mutex_lock(&trace->mutex);
    trace->count = 0;
    pthread_mutex_unlock(&trace->mutex);
}

size_t weft_trace_count(const weft_trace *trace)
{
    return trace->count;
}

const weft_slice *weft_trace_slices(const weft_trace *trace)
{
    return trace->slices;
}

void weft_trace_name_lanes(weft_trace *trace, const char *const *names, int count)
{
    trace->lane_names = names;
    trace->num_lane_names = count;
}

void weft_trace_tell(weft_trace *trace, const weft_trace_fact *facts, int count)
{
    trace->facts = facts;
    trace->num_facts = count;
}

void weft_trace_explain(weft_trace *trace, const weft_trace_letters *rows, int count)
{
    trace->letters = rows;
    trace->num_letters = count;
}

const char *weft_trace_letters_text(const weft_trace *trace, const char *letters)
{
    for (int i = 0; i < trace->num_letters; i++)
        if (strcmp(trace->letters[i].letters, letters) == 0)
            return trace->letters[i].text;
    return NULL;
}

const char *weft_trace_lane_name(const weft_trace *trace, int lane)
{
    return lane >= 0 && lane < trace->num_lane_names ? trace->lane_names[lane] : NULL;
}

void weft_trace_name_ranks(weft_trace *trace, const char *const *names, int count)
{
    trace->rank_names = names;
    trace->num_rank_names = count;
}

const char *weft_trace_rank_name(const weft_trace *trace, int rank)
{
    return rank >= 0 && rank < trace->num_rank_names ? trace->rank_names[rank] : NULL;
}

static void write_json_text(const char *text, FILE *out)
{
    weft_json_write_string(out, text, strlen(text), false);
}

static int compare_tracks(const void *a, const void *b)
{
    const weft_track *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->lane < y->lane ? -1 : x->lane > y->lane;
}

weft_status weft_trace_tracks(const weft_trace *trace, weft_track **out, size_t *out_count)
{
    weft_track *tracks = trace->count ? malloc(trace->count * sizeof *tracks) : NULL;
    if (trace->count && !tracks)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: tracks of a trace");
    for (size_t i = 0; i < trace->count; i++)
        tracks[i] = (weft_track){.rank = trace->slices[i].rank, .lane = trace->slices[i].lane};
    size_t count = 0;
    if (tracks)
        qsort(tracks, trace->count, sizeof *tracks, compare_tracks);
    for (size_t i = 0; i < trace->count; i++)
        if (i == 0 || compare_tracks(&tracks[count - 1], &tracks[i]) != 0)
            tracks[count++] = tracks[i];
    *out = tracks;
    *out_count = count;
    return WEFT_OK;
}

size_t weft_track_find(const weft_track *tracks, size_t count, const weft_slice *slice)
{
    weft_track key = {.rank = slice->rank, .lane = slice->lane};
    const weft_track *track = bsearch(&key, tracks, count, sizeof key, compare_tracks);
    assert(track);
    return (size_t)(track - tracks);
}

/* A viewer's name for a process (rank) or a thread (lane). */
static void write_json_name(const char *kind, const weft_track *track, const char *name, FILE *out)
{
    fprintf(out, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", kind,
            track->rank, track->lane);
    write_json_text(name, out);
    fprintf(out, "}},\n");
}

static void write_json_facts(const weft_trace *trace, FILE *out)
{
    for (int i = 0; i < trace->num_facts; i++) {
        fputs(i ? "," : "\"otherData\":{", out);
        write_json_text(trace->facts[i].name, out);
        fputc(':', out);
        write_json_text(trace->facts[i].text, out);
    }
    if (trace->num_facts > 0)
        fputs("},", out);
}

weft_status weft_trace_write_json(const weft_trace *trace, FILE *out)
{
    weft_track *tracks;
    size_t num_tracks;
    WEFT_TRY(weft_trace_tracks(trace, &tracks, &num_tracks));
    fputs("{\"displayTimeUnit\":\"ms\",", out);
    write_json_facts(trace, out);
    fputs("\"traceEvents\":[\n", out);
    for (size_t i = 0; i < num_tracks; i++) {
        const char *lane = weft_trace_lane_name(trace, tracks[i].lane);
        const char *rank = weft_trace_rank_name(trace, tracks[i].rank);
        char text[32];
        snprintf(text, sizeof text, "rank %d", tracks[i].rank);
        if (i == 0 || tracks[i - 1].rank != tracks[i].rank)
            write_json_name("process_name", &tracks[i], rank ? rank : text, out);
        snprintf(text, sizeof text, "lane %d", tracks[i].lane);
        write_json_name("thread_name", &tracks[i], lane ? lane : text, out);
    }
    free(tracks);
    for (size_t i = 0; i < trace->count; i++) {
        const weft_slice *slice = &trace->slices[i];
        fprintf(out, "%s{\"ph\":\"X\",\"name\":", i ? ",\n" : "");
        write_json_text(slice->name, out);
        fprintf(out, ",\"cat\":");
        write_json_text(slice->category, out);
        fprintf(out, ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", slice->rank,
                slice->lane, slice->start_us, slice->end_us - slice->start_us);
        if (slice->micro_batch >= 0)
            fprintf(out, "\"micro_batch\":%d", slice->micro_batch);
        if (slice->stage >= 0)
            fprintf(out, "%s\"stage\":%d", slice->micro_batch >= 0 ? "," : "", slice->stage);
        fprintf(out, "}}");
    }
    fprintf(out, "\n]}\n");
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write: %s", strerror(errno));
    return WEFT_OK;
}
