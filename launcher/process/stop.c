#include "launcher/process/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { ASKED, SAVED, EVALUATES, PAGE_WORDS };

static const char place_variable[] = "WEFT_STOP_PAGE";

/* Handlers touch lock-free atomics alone. */
static atomic_int own, own_evaluates, signals, interrupts, timeout_seconds;
static atomic_int *volatile asked = &own; /* in a page that ranks map, once that is shared */
static atomic_int *volatile evaluates = &own_evaluates; /* likewise */
static atomic_int *joined;                              /* the starter's page, in a rank */
static atomic_int *shared;                              /* the same, in the starter */
static volatile sig_atomic_t starts_ranks;
static char last_words[128];
enum { SILENT, OF_USR1, OF_ALL };
static atomic_int speaks, last_signal;
static atomic_bool answered, is_ended;

static void say(const char *words)
{
    ssize_t written = write(STDERR_FILENO, words, strlen(words));
    (void)written;
}

#define ASKED_TO_STOP "weft train: asked to stop: "
#define AMID_STEP ASKED_TO_STOP "a step that runs is finished and saved first"
#define AMID_EVALUATION                                                                            \
    ASKED_TO_STOP "an evaluation runs: it is left after its batch, and the last step is saved "    \
                  "first"
#define AGAIN "; Ctrl-C again ends it at once\n"

static void say_what_runs(void)
{
    const bool can_again = atomic_load(&interrupts) > 0;
    if (atomic_load(evaluates))
        say(can_again ? AMID_EVALUATION AGAIN : AMID_EVALUATION "\n");
    else
        say(can_again ? AMID_STEP AGAIN : AMID_STEP "\n");
}

/* Once, and from a signal's handler too. */
static void say_answer(void)
{
    const int of = atomic_load(&speaks);
    if ((of == OF_ALL || (of == OF_USR1 && atomic_load(&last_signal) == SIGUSR1)) &&
        !atomic_exchange(&answered, true))
        say_what_runs();
}

/* What the ranks of a job that is hung, or stopped by SIGSTOP, would never do by themselves. */
static void time_is_over(int number)
{
    (void)number;
    say(last_words);
    _exit(WEFT_STOP_KILLED);
}

static void asked_to_stop(int number, siginfo_t *info, void *unused)
{
    int error = errno;
    (void)unused;
    atomic_store(&last_signal, number);
    atomic_fetch_add(&signals, 1);
    if (number == SIGTERM && info->si_pid == getppid())
        atomic_store(&is_ended, true);
    bool again = number == SIGINT && atomic_fetch_add(&interrupts, 1) > 0;
    if (again && !starts_ranks) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    if (!atomic_exchange(asked, 1) && !starts_ranks)
        alarm((unsigned)atomic_load(&timeout_seconds));
    say_answer();
    errno = error;
}

void weft_stop_catch_wishes(void)
{
    static const int numbers[] = {SIGINT, SIGHUP, SIGTERM, SIGUSR1};
    struct sigaction action = {.sa_sigaction = asked_to_stop, .sa_flags = SA_RESTART | SA_SIGINFO},
                     before;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] != SIGHUP || sigaction(SIGHUP, NULL, &before) != 0 ||
            before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

void weft_stop_catch_signals(void)
{
    struct sigaction end = {.sa_handler = time_is_over}, ignore = {.sa_handler = SIG_IGN};
    weft_stop_catch_wishes();
    sigaction(SIGALRM, &end, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

bool weft_stop_asked(void)
{
    return atomic_load(asked) || (joined && atomic_load(&joined[ASKED]));
}

bool weft_stop_is_ended(void)
{
    return atomic_load(&is_ended);
}

void weft_stop_ask(void)
{
    atomic_store(asked, 1);
}

void weft_stop_speak(bool is_launched)
{
    if (joined)
        return;
    atomic_store(&speaks, is_launched ? OF_USR1 : OF_ALL);
    if (atomic_load(asked))
        say_answer();
}

void weft_stop_be_silent(void)
{
    atomic_store(&speaks, SILENT);
}

void weft_stop_set_timeout(int64_t seconds)
{
    snprintf(last_words, sizeof last_words,
             "weft train: not stopped within %d s (train.stop_timeout_s): killed\n", (int)seconds);
    atomic_store(&timeout_seconds, (int)seconds);
    if (atomic_load(asked))
        alarm((unsigned)seconds);
}

int weft_stop_timeout(void)
{
    return atomic_load(&timeout_seconds);
}

int weft_stop_num_signals(void)
{
    return atomic_load(&signals);
}

int weft_stop_num_interrupts(void)
{
    return atomic_load(&interrupts);
}

weft_status weft_stop_share(void)
{
    char place[64];
    if (shared)
        return WEFT_OK;
    int fd = memfd_create("weft stop", MFD_CLOEXEC);
    void *page = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, PAGE_WORDS * sizeof(atomic_int)) == 0)
        page =
            mmap(NULL, PAGE_WORDS * sizeof(atomic_int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to share with ranks: %s", strerror(errno));
    snprintf(place, sizeof place, "/proc/%d/fd/%d", (int)getpid(), fd);
    setenv(place_variable, place, 1);
    starts_ranks = 1;
    alarm(0);
    shared = page;
    evaluates = &shared[EVALUATES];
    asked = &shared[ASKED]; /* a signal before this line is in `own` */
    if (atomic_load(&own))
        atomic_store(asked, 1);
    return WEFT_OK;
}

weft_status weft_stop_join(void)
{
    const char *place = getenv(place_variable);
    if (!place || joined)
        return WEFT_OK;
    int fd = open(place, O_RDWR | O_CLOEXEC);
    void *page = MAP_FAILED;
    if (fd >= 0)
        page =
            mmap(NULL, PAGE_WORDS * sizeof(atomic_int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    weft_status status = WEFT_OK;
    if (page == MAP_FAILED)
        status = WEFT_ERROR(WEFT_COMM, "the process that started this rank is gone: %s: %s", place,
                            strerror(errno));
    else
        joined = page;
    if (joined)
        atomic_store(&joined[EVALUATES], 0); /* ranks before may have ended amid one */
    if (fd >= 0)
        close(fd);
    return status;
}

void weft_stop_set_evaluating(bool on)
{
    atomic_store(joined ? &joined[EVALUATES] : evaluates, on);
}

void weft_stop_tell_saved(void)
{
    if (joined)
        atomic_store(&joined[SAVED], 1);
}

bool weft_stop_is_saved(void)
{
    return shared && atomic_load(&shared[SAVED]);
}

void weft_stop_with_parent(void)
{
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(weft_status_exit_code(WEFT_COMM));
}
