#include "launcher/training/restarts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/text.h"
#include "launcher/process/alive.h"
#include "launcher/process/launch.h"
#include "launcher/process/stop.h"

enum { MAX_DELAY_S = 600, TAIL_BYTES = 1 << 16, MAX_ALIKE = 4 };

bool weft_restarts_is_fault(int exit_code)
{
    enum { SIGNALLED = 128, HANGUP = SIGNALLED + 1, INTERRUPTED, TERMINATED = SIGNALLED + 15 };
    return exit_code == weft_status_exit_code(WEFT_DEVICE) ||
           exit_code == weft_status_exit_code(WEFT_COMM) ||
           exit_code == weft_status_exit_code(WEFT_FILE) ||
           exit_code == weft_status_exit_code(WEFT_HUNG) ||
           exit_code == weft_status_exit_code(WEFT_FAULTY) ||
           (exit_code > SIGNALLED && exit_code != HANGUP && exit_code != INTERRUPTED &&
            exit_code != TERMINATED);
}

/* The last step that metrics.jsonl has; 0: none. Its last line may be cut. */
static int64_t last_step(const char *run)
{
    char path[4096], text[TAIL_BYTES + 1];
    int64_t step, last = 0;
    const int length = snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    FILE *file = length < (int)sizeof path ? fopen(path, "r") : NULL;
    if (!file)
        return 0;
    if (fseek(file, -TAIL_BYTES, SEEK_END) != 0)
        rewind(file);
    text[fread(text, 1, TAIL_BYTES, file)] = '\0';
    fclose(file);
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        if (sscanf(line, "{\"step\": %" SCNd64, &step) == 1)
            last = step;
    return last;
}

/* What tells one writing of checkpoints/latest from another. */
typedef struct mark {
    ino_t file;
    struct timespec time;
} mark;

static mark mark_latest(const char *run)
{
    char path[4096];
    struct stat info;
    snprintf(path, sizeof path, "%s/checkpoints/latest", run);
    return stat(path, &info) == 0 ? (mark){info.st_ino, info.st_mtim} : (mark){0};
}

static bool is_same(const mark *a, const mark *b)
{
    return a->file == b->file && a->time.tv_sec == b->time.tv_sec &&
           a->time.tv_nsec == b->time.tv_nsec;
}

/* The words of a start that goes on. One by --resume-from keeps its words until it has saved: newer
 * checkpoints are of what it has left. */
static int make_words(const weft_run_folder *folder, const mark *first, int argc, char **argv,
                      char **out)
{
    static char resume[] = "--resume", from[] = "--resume-from";
    const mark now = mark_latest(folder->path);
    const bool keeps = folder->from && is_same(first, &now);
    int count = 0;
    for (int i = 0; i < argc; i++) {
        const bool is_from = i > 1 && strncmp(argv[i], from, strlen(from)) == 0 && !keeps;
        if (is_from && argv[i][strlen(from)] == '\0')
            i++; /* and its value */
        else if (!is_from && (keeps || i < 2 || strcmp(argv[i], resume) != 0))
            out[count++] = argv[i];
        if (i == 1 && !keeps)
            out[count++] = resume;
    }
    out[count] = NULL;
    return count;
}

/* False: asked to stop meanwhile. */
static bool wait_for(double seconds)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    weft_stop_be_silent();
    for (double waited = 0; waited < seconds && !weft_stop_asked(); waited += 0.05)
        nanosleep(&pause, NULL);
    if (weft_stop_asked())
        return false;
    weft_stop_speak(false);
    return true;
}

/* How a start ended: two that are alike may have one cause. */
typedef struct ending {
    int exit_code;
    int64_t step; /* the last one that was done */
    bool in_step; /* it had come to its first step: no step is to blame for what ends a start */
    char missing[256]; /* the ranks that were killed, or that the watchdog names; "": nobody says */
} ending;

/* The ranks that the watchdog's verdict names, as they stand there. */
static void read_missing(const char *run, char *out, size_t bytes)
{
    char path[4096], text[1024];
    snprintf(path, sizeof path, "%s/flight/verdict.json", run);
    FILE *file = fopen(path, "r");
    const char *from = NULL;
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        from = strstr(text, "\"missing\": [");
    }
    if (from)
        snprintf(out, bytes, "%.*s", (int)strcspn(from, "]"), from);
}

static ending find_ending(const char *run, int exit_code)
{
    ending e = {
        .exit_code = exit_code, .step = last_step(run), .in_step = weft_alive_came_to_steps(run)};
    if (exit_code == weft_status_exit_code(WEFT_HUNG))
        read_missing(run, e.missing, sizeof e.missing);
    else if (weft_launch_killed_rank() >= 0)
        snprintf(e.missing, sizeof e.missing, "%d", weft_launch_killed_rank());
    return e;
}

typedef struct history {
    int64_t num, farthest; /* restarts; a step */
    ending last;
    int num_alike; /* endings like the last, one after the other */
    double delay_s;
} history;

static void count_alike(history *h, const ending *now)
{
    const bool alike = h->last.in_step && now->in_step && now->exit_code == h->last.exit_code &&
                       now->step == h->last.step && strcmp(now->missing, h->last.missing) == 0;
    h->num_alike = alike ? h->num_alike + 1 : 1;
    h->last = *now;
}

/* Says whether there will be another start, and what it follows. */
static bool goes_on(const weft_reliability_options *o, history *h, const char *run, int exit_code)
{
    const ending now = find_ending(run, exit_code);
    char what[96];
    snprintf(what, sizeof what, "the job ended with exit code %d after step %" PRId64, exit_code,
             now.step);
    count_alike(h, &now);
    if (h->num_alike >= MAX_ALIKE) {
        fprintf(stderr, "weft train: %s, %d times in a row and alike: it is not started again\n",
                what, h->num_alike);
        return false;
    }
    if (h->num >= o->max_restarts) {
        fprintf(stderr, "weft train: %s, and was started again %s (reliability.max_restarts)\n",
                what, weft_count_text(h->num, "time").text);
        return false;
    }
    h->delay_s = h->num == 0 || now.step > h->farthest ? o->restart_delay_s : 2 * h->delay_s;
    if (h->delay_s > MAX_DELAY_S)
        h->delay_s = MAX_DELAY_S;
    h->farthest = now.step > h->farthest ? now.step : h->farthest;
    h->num++;
    fprintf(stderr,
            "weft train: %s: it is started again in %g s (%" PRId64 " of %" PRId64
            ", reliability.max_restarts)\n",
            what, h->delay_s, h->num, o->max_restarts);
    return true;
}

weft_status weft_restarts_run(const weft_reliability_options *options,
                              const weft_run_folder *folder, int world, int argc, char **argv,
                              int *exit_code)
{
    const mark first = mark_latest(folder->path);
    history h = {0};
    char **words = malloc(((size_t)argc + 2) * sizeof *words);
    if (!words)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the command line");
    weft_alive_clear(folder->path);
    weft_status status = weft_launch_mpirun(world, argc, argv, folder->path, exit_code);
    while (status == WEFT_OK && weft_restarts_is_fault(*exit_code) && !weft_stop_asked() &&
           goes_on(options, &h, folder->path, *exit_code)) {
        if (!wait_for(h.delay_s)) {
            const mark latest = mark_latest(folder->path);
            fprintf(stderr, "weft train: asked to stop: it is not started again\n");
            if (latest.file != 0)
                *exit_code = WEFT_EXIT_STOPPED;
            break;
        }
        const int count = make_words(folder, &first, argc, argv, words);
        weft_alive_clear(folder->path);
        status = weft_launch_mpirun(world, count, words, folder->path, exit_code);
    }
    free(words);
    return status;
}
