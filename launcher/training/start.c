#include "launcher/training/start.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/arguments/arguments.h"
#include "launcher/process/launch.h"
#include "launcher/process/stop.h"
#include "launcher/training/setup.h"

/* RUN/.alive: how whoever started the ranks knows that they live, on whatever machines they run.
 *
 * Rank 0 has the file locked (flock) for as long as it lives, and adds one to a number in it every
 * two seconds, from a thread that nothing else waits for: a file system that hangs holds up this
 * thread alone. Behind the number stands how far the start has come: "start", "steps" once the
 * first step begins, "end" where the rank ends by itself. Only a number that stands still in a file
 * that nobody has locked says that the rank is dead. */

enum { BEAT_MS = 2000 };

/* How far the start has come. */
enum { START, STEPS, END };
static const char *const words[] = {[START] = "start", [STEPS] = "steps", [END] = "end  "};

static struct {
    int file, wake; /* -1: none */
    atomic_int state;
    bool runs;
    pthread_t thread;
} alive = {.file = -1, .wake = -1};

static bool make_path(const char *run, char *out, size_t bytes)
{
    const int length = snprintf(out, bytes, "%s/.alive", run);
    return length > 0 && (size_t)length < bytes;
}

/* Lines have one length: the file is never cut, and a reader finds a whole line. */
static void *beat(void *unused)
{
    bool locked = false;
    int state = START;
    struct pollfd woken = {.fd = alive.wake, .events = POLLIN};
    (void)unused;
    for (unsigned number = 1; state != END; number++) {
        char line[32];
        uint64_t count;
        state = atomic_load(&alive.state);
        const int bytes = snprintf(line, sizeof line, "%010u %s\n", number, words[state]);
        locked = locked || flock(alive.file, LOCK_EX | LOCK_NB) == 0;
        ssize_t done = pwrite(alive.file, line, (size_t)bytes, 0); /* a full disk may get room */
        if (state != END && poll(&woken, 1, BEAT_MS) > 0)
            done = read(alive.wake, &count, sizeof count);
        (void)done;
    }
    return NULL;
}

/* In rank 0, when nothing more is forked that would keep the lock. Where the folder `run` is not
 * there yet or the file cannot be opened, nobody is told. */
static void alive_start(const char *run)
{
    char path[4096];
    if (alive.file >= 0 || !make_path(run, path, sizeof path))
        return;
    alive.file =
        open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    alive.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    alive.runs =
        alive.file >= 0 && alive.wake >= 0 && pthread_create(&alive.thread, NULL, beat, NULL) == 0;
}

static void enter(int state)
{
    const uint64_t one = 1;
    atomic_store(&alive.state, state);
    ssize_t written = alive.runs ? write(alive.wake, &one, sizeof one) : 0;
    (void)written;
}

void weft_alive_enter_steps(const char *run)
{
    alive_start(run);
    enter(STEPS);
}

void weft_alive_end(void)
{
    enter(END);
    if (alive.runs)
        pthread_join(alive.thread, NULL);
    alive.runs = false;
}

/* Before ranks are started: nothing is left of an earlier start. */
static void alive_clear(const char *run)
{
    char path[4096];
    if (make_path(run, path, sizeof path))
        unlink(path);
}

/* Whether the last start of the run came to its first step. */
static bool alive_came_to_steps(const char *run)
{
    char path[4096], line[32] = "";
    if (!make_path(run, path, sizeof path))
        return false;
    FILE *from = fopen(path, "re");
    const bool read = from && fgets(line, sizeof line, from);
    if (from)
        fclose(from);
    return read && strstr(line, " steps\n");
}

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

/* Whether the start that ended so found its folder moved or removed: what was saved since is in a
 * new one, or there is none. Nobody goes on with that unasked. */
static bool was_moved(const char *run, int exit_code)
{
    char ledger[4096], saved[4096];
    snprintf(ledger, sizeof ledger, "%s/ledger.jsonl", run);
    snprintf(saved, sizeof saved, "%s/checkpoints", run);
    return exit_code == weft_status_exit_code(WEFT_FILE) && access(ledger, F_OK) != 0 &&
           (access(saved, F_OK) == 0 || access(run, F_OK) != 0);
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
        .exit_code = exit_code, .step = last_step(run), .in_step = alive_came_to_steps(run)};
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

/* weft_launch_mpirun with argv (argv[1] the verb), and again after each fault, at most
 * options->max_restarts times, unless the job was asked to stop: one line on standard error each
 * time. It waits restart_delay_s before, twice as long after each start that came no further than
 * the starts before it, 10 minutes at most. Four starts in a row that end alike end it: in the
 * same step, with the same exit code, and without the same ranks. *exit_code: the last start's;
 * of a stop while it waits WEFT_EXIT_STOPPED where there is a checkpoint. */
static weft_status restarts_run(const weft_reliability_options *options,
                                const weft_run_folder *folder, int world, int argc, char **argv,
                                int *exit_code)
{
    const mark first = mark_latest(folder->path);
    history h = {0};
    char **line = malloc(((size_t)argc + 2) * sizeof *line);
    if (!line)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the command line");
    alive_clear(folder->path);
    weft_status status = weft_launch_mpirun(world, argc, argv, folder->path, exit_code);
    while (status == WEFT_OK && weft_restarts_is_fault(*exit_code) && !weft_stop_asked() &&
           !was_moved(folder->path, *exit_code) && goes_on(options, &h, folder->path, *exit_code)) {
        if (!wait_for(h.delay_s)) {
            const mark latest = mark_latest(folder->path);
            fprintf(stderr, "weft train: asked to stop: it is not started again\n");
            if (latest.file != 0)
                *exit_code = WEFT_EXIT_STOPPED;
            break;
        }
        const int count = make_words(folder, &first, argc, argv, line);
        alive_clear(folder->path);
        status = weft_launch_mpirun(world, count, line, folder->path, exit_code);
    }
    free(line);
    return status;
}

weft_start weft_start_find(void)
{
    weft_start start = {.size = 1};
    int local_rank, local_size;
    start.launched = weft_comm_launched(&start.rank, &start.size, &local_rank, &local_size);
    weft_log_set_rank(start.rank);
    return start;
}

weft_status weft_start_world(weft_start *start)
{
    return start->launched ? weft_comm_create_world(&start->world)
                           : weft_comm_create_self(&start->world);
}

int weft_start_end(const weft_start *start, weft_status status, const char *verb)
{
    return status == WEFT_OK  ? start->exit_code
           : start->rank == 0 ? weft_verb_fail(verb)
                              : weft_status_exit_code(status);
}

/* Of several ranks that a launcher started and that train. */
static weft_status start_watch(const weft_reliability_options *r, const weft_start *start,
                               const weft_run_folder *folder)
{
    weft_watch_options options = {
        .factor = r->limit_factor, .folder = folder->path, .is_ending = weft_stop_is_ended};
    const int64_t limits[WEFT_WATCH_NUM_LIMITS] = {
        [WEFT_WATCH_SETUP] = r->setup_limit_s,           [WEFT_WATCH_LOAD] = r->load_limit_s,
        [WEFT_WATCH_FIRST_STEP] = r->first_step_limit_s, [WEFT_WATCH_STEP] = r->step_limit_s,
        [WEFT_WATCH_OUTPUT] = r->save_limit_s,           [WEFT_WATCH_SAVE] = r->save_limit_s,
        [WEFT_WATCH_EXCHANGE] = r->exchange_limit_s};
    for (int i = 0; i < WEFT_WATCH_NUM_LIMITS; i++)
        options.limit_s[i] = (double)limits[i];
    return weft_watch_start(&options, start->rank, start->size);
}

weft_status weft_start_ranks(weft_start *start, const weft_config *config,
                             const weft_config_source *source, const weft_run_folder *folder,
                             int argc, char **argv)
{
    weft_mesh mesh;
    const bool restarts = folder && config->reliability.max_restarts > 0;
    WEFT_TRY(weft_config_mesh(config, source, start->launched ? start->size : 0, &mesh));
    if (!start->launched && (mesh.world > 1 || restarts)) {
        if (folder)
            WEFT_TRY(weft_run_check_free(folder));
        WEFT_TRY(weft_setup_check_device(config, source));
        if (!source->no_data) {
            WEFT_TRY(weft_setup_check_data(config, source));
            WEFT_TRY(weft_setup_check_model(config, source, &mesh));
        }
        if (restarts)
            return restarts_run(&config->reliability, folder, mesh.world, argc + 1, argv - 1,
                                &start->exit_code);
        return weft_launch_mpirun(mesh.world, argc + 1, argv - 1, folder ? folder->path : NULL,
                                  &start->exit_code);
    }
    if (folder && config->checkpoint.async_save && !config->checkpoint.no_save)
        WEFT_TRY(weft_checkpoint_writer_create(&start->writer));
    if (folder && start->launched && start->rank == 0)
        alive_start(folder->path);
    if (folder && start->launched && start->size > 1 && config->reliability.watchdog)
        WEFT_TRY(start_watch(&config->reliability, start, folder));
    weft_setup_driver(config);
    return weft_start_world(start);
}
