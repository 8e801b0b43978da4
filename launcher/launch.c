#include "launcher/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/text.h"
#include "launcher/job_folder.h"

enum { MAX_ARGS = 256, MAX_BLOCK_BYTES = 4096, NOT_STARTED = 127 };

static volatile sig_atomic_t mpirun_pid;
static const char *verb; /* that starts the ranks, for messages */

static void pass_on(int number)
{
    (void)number;
    if (mpirun_pid > 0)
        kill((pid_t)mpirun_pid, SIGUSR1);
}

/* --- what mpirun says ---------------------------------------------------------------------- */

/* Open MPI's own words come as blocks between two lines of dashes. */
typedef struct listener {
    bool in_block;
    char block[MAX_BLOCK_BYTES];
    bool explained; /* a line says why the job ended */
} listener;

static bool is_ruler(const char *line)
{
    size_t dashes = strspn(line, "-");
    return dashes >= 60 && (line[dashes] == '\n' || line[dashes] == '\0');
}

/* Text as one line: breaks become spaces. */
static void print_flat(const char *text)
{
    fprintf(stderr, "weft %s: mpirun: ", verb);
    bool space = true;
    for (; *text; text++) {
        bool blank = *text == '\n' || *text == ' ';
        if (!(blank && space))
            fputc(blank ? ' ' : *text, stderr);
        space = blank;
    }
    fputc('\n', stderr);
}

static void end_block(listener *l)
{
    int rank, number;
    char node[256];
    const char *noticed = strstr(l->block, "process rank ");
    if (noticed && sscanf(noticed, "process rank %d with PID %*d on node %255s exited on signal %d",
                          &rank, node, &number) == 3) {
        fprintf(stderr, "weft %s: rank %d on %s was killed by signal %d (%s)\n", verb, rank, node,
                number, strsignal(number));
        l->explained = true;
    } else if (!strstr(l->block, "Primary job  terminated normally") &&
               !strstr(l->block, "exited with non-zero status") &&
               !strstr(l->block, "MPI_ABORT was invoked")) {
        print_flat(l->block);
        l->explained = true;
    }
    l->block[0] = '\0';
}

/* Lines of mpirun about its own words. */
static bool is_chatter(const char *line)
{
    static const char *const parts[] = {"sent help message help-mpi", "orte_base_help_aggregate",
                                        "/show_help.c at line"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (line[0] == '[' && strstr(line, parts[i]))
            return true;
    return strncmp(line, "mpirun: Forwarding signal", 25) == 0;
}

static void take_line(listener *l, const char *line)
{
    if (is_ruler(line)) {
        if (l->in_block)
            end_block(l);
        l->in_block = !l->in_block;
    } else if (l->in_block) {
        strncat(l->block, line, sizeof l->block - strlen(l->block) - 1);
    } else if (!is_chatter(line)) {
        fputs(line, stderr);
        l->explained = true;
    }
}

/* Until mpirun and its children have closed their end. */
static void listen_to(int fd, listener *l)
{
    FILE *in = fdopen(fd, "r");
    char *line = NULL;
    size_t capacity = 0;
    if (!in) {
        close(fd);
        return;
    }
    while (getline(&line, &capacity, in) > 0 || (ferror(in) && errno == EINTR)) {
        if (ferror(in))
            clearerr(in);
        else
            take_line(l, line);
    }
    if (l->block[0])
        end_block(l);
    free(line);
    fclose(in);
}

/* --- running it ---------------------------------------------------------------------------- */

static weft_status make_arguments(int world, int argc, char **argv, char *args[MAX_ARGS])
{
    static char ranks[16], self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return WEFT_ERROR(WEFT_COMM, "cannot find this program's own path");
    self[length] = '\0';
    snprintf(ranks, sizeof ranks, "%d", world);
    /* More ranks than cores are fine here: waiting ranks yield. Without CMA, in containers, Open
     * MPI's single-copy path fails loudly; copying twice always works. */
    const char *fixed[] = {"mpirun",
                           "-n",
                           ranks,
                           "--oversubscribe",
                           "--bind-to",
                           "none",
                           "--mca",
                           "mpi_yield_when_idle",
                           "1",
                           "--mca",
                           "btl_vader_single_copy_mechanism",
                           "none",
                           self};
    int count = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        args[count++] = (char *)(uintptr_t)fixed[i];
        if (i == 0 && geteuid() == 0)
            args[count++] = (char *)(uintptr_t) "--allow-run-as-root";
    }
    if (argc + count > MAX_ARGS)
        return WEFT_ERROR(WEFT_CONFIG, "too many arguments: %d", argc);
    for (int i = 1; i < argc; i++)
        args[count++] = argv[i];
    args[count] = NULL;
    return WEFT_OK;
}

/* In the child. mpirun ends with this process, even where that is killed. */
static void become_mpirun(char **args, int to)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    char tty[32] = "";
    if (isatty(STDOUT_FILENO)) /* under a name that holds where /dev/pts is another */
        snprintf(tty, sizeof tty, "/proc/%d/fd/%d", (int)getpid(), STDOUT_FILENO);
    setenv("WEFT_TTY", tty, 1);
    dup2(to, STDERR_FILENO);
    close(to);
    execvp(args[0], args);
    _exit(NOT_STARTED);
}

static int wait_for(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return weft_status_exit_code(WEFT_COMM);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

weft_status weft_launch_mpirun(int world, int argc, char **argv, int *exit_code)
{
    struct sigaction forward = {.sa_handler = pass_on}, ignore = {.sa_handler = SIG_IGN};
    char *args[MAX_ARGS];
    int ends[2];
    listener l = {0};
    verb = argv[1];
    WEFT_TRY(make_arguments(world, argc, argv, args));
    weft_job_folder_open();
    if (pipe(ends) != 0)
        return WEFT_ERROR(WEFT_COMM, "cannot start mpirun: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        become_mpirun(args, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return WEFT_ERROR(WEFT_COMM, "cannot start mpirun: %s", strerror(errno));
    }
    mpirun_pid = pid;
    sigaction(SIGTERM, &forward, NULL);
    sigaction(SIGUSR1, &forward, NULL);
    sigaction(SIGINT, &ignore, NULL); /* the terminal sends it to mpirun too */
    listen_to(ends[0], &l);
    *exit_code = wait_for(pid);
    weft_job_folder_close();
    if (*exit_code == NOT_STARTED)
        return WEFT_ERROR(WEFT_COMM, "cannot start mpirun for %s: is it on PATH?",
                          weft_count_text(world, "rank").text);
    if (*exit_code != 0 && *exit_code != WEFT_EXIT_STOPPED && !l.explained)
        fprintf(stderr, "weft %s: mpirun ended with exit code %d\n", verb, *exit_code);
    return WEFT_OK;
}
