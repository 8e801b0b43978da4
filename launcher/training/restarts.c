#include "launcher/training/restarts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/text.h"
#include "launcher/process/launch.h"
#include "launcher/process/stop.h"

enum { MAX_DELAY_S = 600, TAIL_BYTES = 1 << 16 };

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

typedef struct history {
    int64_t num, last, farthest; /* restarts; steps */
    double delay_s;
} history;

/* Says whether there will be another start, and what it follows. */
static bool goes_on(const weft_reliability_options *o, history *h, const char *run, int exit_code)
{
    const int64_t step = last_step(run);
    char what[96];
    snprintf(what, sizeof what, "the job ended with exit code %d after step %" PRId64, exit_code,
             step);
    if (h->num > 0 && step == h->last) {
        fprintf(stderr, "weft train: %s, twice: it is not started again\n", what);
        return false;
    }
    if (h->num >= o->max_restarts) {
        fprintf(stderr, "weft train: %s, and was started again %s (reliability.max_restarts)\n",
                what, weft_count_text(h->num, "time").text);
        return false;
    }
    h->delay_s = h->num == 0 || step > h->farthest ? o->restart_delay_s : 2 * h->delay_s;
    if (h->delay_s > MAX_DELAY_S)
        h->delay_s = MAX_DELAY_S;
    h->farthest = step > h->farthest ? step : h->farthest;
    h->last = step;
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
    weft_status status = weft_launch_mpirun(world, argc, argv, exit_code);
    while (status == WEFT_OK && weft_restarts_is_fault(*exit_code) && !weft_stop_asked() &&
           goes_on(options, &h, folder->path, *exit_code)) {
        if (!wait_for(h.delay_s)) {
            fprintf(stderr, "weft train: asked to stop: it is not started again\n");
            break;
        }
        const int count = make_words(folder, &first, argc, argv, words);
        status = weft_launch_mpirun(world, count, words, exit_code);
    }
    free(words);
    return status;
}
