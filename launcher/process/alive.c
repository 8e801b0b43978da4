#include "launcher/process/alive.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <unistd.h>

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

void weft_alive_start(const char *run)
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
    weft_alive_start(run);
    enter(STEPS);
}

void weft_alive_end(void)
{
    enter(END);
    if (alive.runs)
        pthread_join(alive.thread, NULL);
    alive.runs = false;
}

void weft_alive_clear(const char *run)
{
    char path[4096];
    if (make_path(run, path, sizeof path))
        unlink(path);
}

bool weft_alive_came_to_steps(const char *run)
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
