#include "tests/launcher/child.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"

enum { MAX_DESCENDANTS = 64 };

const char *child_program;

/* What lives until the program ends, where leak checkers find it. */
static void *keep(void *memory)
{
    static struct kept {
        struct kept *next;
        void *memory;
    } * all;
    struct kept *one = malloc(sizeof *one);
    if (one) {
        *one = (struct kept){all, memory};
        all = one;
    }
    return memory;
}

char *child_peek(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    size_t used = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (text) {
        size_t got = fread(text + used, 1, capacity - used - 1, file);
        if (got == 0)
            break;
        used += got;
        if (used + 1 == capacity) {
            char *larger = realloc(text, capacity *= 2);
            if (!larger)
                break;
            text = larger;
        }
    }
    if (text)
        text[used] = '\0';
    fclose(file);
    return text;
}

char *child_read(const char *path)
{
    return keep(child_peek(path));
}

char *child_read_in(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return child_read(path);
}

cJSON *child_parse(const char *text)
{
    return text ? keep(cJSON_Parse(text)) : NULL;
}

cJSON *child_read_json(const char *path)
{
    char *text = child_read(path);
    cJSON *json = child_parse(text);
    EXPECT(json, "%s: no JSON: %.100s", path, text);
    return json;
}

cJSON *child_read_metrics(const char *run)
{
    char *text = child_read_in(run, "metrics.jsonl");
    cJSON *lines = keep(cJSON_CreateArray());
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        cJSON *json = cJSON_ParseWithLength(line, (size_t)(end - line));
        EXPECT(json, "%s: %.*s", run, (int)(end - line), line);
        cJSON_AddItemToArray(lines, json);
    }
    return lines;
}

bool child_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool good = fputs(text, file) >= 0;
    return (fclose(file) == 0) & good;
}

void child_add_sets(const char **args, const char *const *sets, int most)
{
    while (*args)
        args++;
    for (int i = 0; i < most && sets[i]; i++) {
        *args++ = "--set";
        *args++ = sets[i];
    }
}

bool child_folder_enter(char folder[32])
{
    strcpy(folder, "/tmp/weft-test-XXXXXX");
    return mkdtemp(folder) && chdir(folder) == 0;
}

void child_drop_folder(char *text)
{
    char folder[256];
    if (!text || !getcwd(folder, sizeof folder - 1))
        return;
    strcat(folder, "/");
    const size_t bytes = strlen(folder);
    for (char *at = text; (at = strstr(at, folder));)
        memmove(at, at + bytes, strlen(at + bytes) + 1);
}

void child_folder_leave(const char *folder)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (chdir("/") != 0 || system(command) != 0)
        perror(folder);
}

static char whole_folder[32];

void child_begin(void)
{
    if (child_folder_enter(whole_folder))
        return;
    perror(whole_folder);
    exit(1);
}

int child_finish(void)
{
    if (!expect_failures)
        child_folder_leave(whole_folder);
    return expect_finish();
}

void child_pause(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
}

bool child_wait_for_text(child *c, const char *path, const char *text)
{
    for (int i = 0; i < 100 * CHILD_PATIENCE_S; i++) {
        const bool is_last = c && child_wait(c, 0);
        char *got = child_peek(path);
        const bool found = got && strstr(got, text);
        free(got);
        if (found || is_last)
            return found;
        child_pause(0.01);
    }
    return false;
}

/* In the child. */
static void redirect(const char *path, int to)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(fd, to) < 0)
        _exit(126);
    close(fd);
}

bool child_start(child *c, const char *const *args, const char *const *environment)
{
    static int number;
    static char binary[1024];
    const char *argv[CHILD_MAX_ARGS + 2] = {binary};
    memset(c, 0, sizeof *c);
    const char *built = getenv("WEFT_BINARY_DIR");
    snprintf(binary, sizeof binary, "%s/weft", built ? built : ".");
    if (child_program)
        snprintf(binary, sizeof binary, "%s", child_program);
    for (int i = 0; args[i]; i++) {
        if (i == CHILD_MAX_ARGS)
            return false;
        argv[i + 1] = args[i];
    }
    snprintf(c->out_path, sizeof c->out_path, "/tmp/weft-child-%d-%d.out", (int)getpid(), number);
    snprintf(c->err_path, sizeof c->err_path, "/tmp/weft-child-%d-%d.err", (int)getpid(), number);
    number++;
    c->pid = fork();
    if (c->pid != 0)
        return c->pid > 0;
    signal(SIGINT, SIG_DFL); /* which a shell's job in the background ignores */
    redirect("/dev/null", STDIN_FILENO);
    redirect(c->out_path, STDOUT_FILENO);
    redirect(c->err_path, STDERR_FILENO);
    for (int i = 0; environment && environment[i]; i++)
        putenv((char *)(uintptr_t)environment[i]);
    execv(binary, (char **)(uintptr_t)argv);
    _exit(127);
}

static void ended(child *c, int status)
{
    c->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    c->pid = 0;
    c->out = child_read(c->out_path);
    c->err = child_read(c->err_path);
    unlink(c->out_path);
    unlink(c->err_path);
}

bool child_wait(child *c, double seconds)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        int status;
        if (c->pid == 0)
            return true;
        if (waitpid(c->pid, &status, WNOHANG) == c->pid) {
            ended(c, status);
            return true;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) >
            seconds)
            return false;
        child_pause(0.002);
    }
}

/* Appends the descendants of `pid`, parents first. */
static int descendants(pid_t pid, pid_t *out, int count, int capacity)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    char *text = child_peek(path);
    int first = count;
    for (char *at = text, *end; at && count < capacity; at = end) {
        long number = strtol(at, &end, 10);
        if (end == at)
            break;
        out[count++] = (pid_t)number;
    }
    free(text);
    int last = count;
    for (int i = first; i < last; i++)
        count = descendants(out[i], out, count, capacity);
    return count;
}

/* The file that a process runs; empty: gone, or not ours to see. */
static void program_of(pid_t pid, char out[1024])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t length = readlink(path, out, 1023);
    out[length > 0 ? length : 0] = '\0';
}

int child_descendants(const child *c, pid_t *out, int capacity)
{
    return descendants(c->pid, out, 0, capacity);
}

int child_ranks(const child *c, pid_t *out, int capacity)
{
    pid_t all[MAX_DESCENDANTS];
    char own[1024], other[1024];
    int count = descendants(c->pid, all, 0, MAX_DESCENDANTS), found = 0;
    program_of(c->pid, own);
    for (int i = 0; i < count && found < capacity; i++) {
        program_of(all[i], other);
        if (own[0] && strcmp(own, other) == 0)
            out[found++] = all[i];
    }
    return found;
}

bool child_is_line(const char *text)
{
    const char *end = text ? strchr(text, '\n') : NULL;
    return end && end != text && end[1] == '\0';
}

bool child_catches(pid_t pid, int number)
{
    char path[64];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    char *text = child_peek(path), *line = text ? strstr(text, "\nSigCgt:") : NULL;
    if (line)
        mask = strtoull(line + 8, NULL, 16);
    free(text);
    return mask >> (number - 1) & 1;
}

bool child_is_gone(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    char *text = child_peek(path), *after = text ? strrchr(text, ')') : NULL;
    bool gone = !after || after[1] == '\0' || after[2] == 'Z' || after[2] == 'X';
    free(text);
    return gone;
}

void child_kill(child *c)
{
    pid_t all[MAX_DESCENDANTS];
    int count = 0, before = -1;
    if (c->pid == 0)
        return;
    kill(c->pid, SIGSTOP);
    while (count != before) { /* what is stopped starts no more */
        before = count;
        count = descendants(c->pid, all, 0, MAX_DESCENDANTS);
        for (int i = 0; i < count; i++)
            kill(all[i], SIGSTOP);
    }
    for (int i = 0; i < count; i++)
        kill(all[i], SIGKILL);
    kill(c->pid, SIGKILL);
    child_wait(c, CHILD_PATIENCE_S);
    for (int i = 0; i < count; i++)
        for (int tries = 0; tries < 500 * CHILD_PATIENCE_S && !child_is_gone(all[i]); tries++)
            child_pause(0.002);
}

void child_release(child *c)
{
    child_kill(c);
    memset(c, 0, sizeof *c);
}

/* The lines that a search writes each ten seconds, which none takes on a fast machine. */
static void leave_out_progress(char *text)
{
    char *to = text;
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : line + strlen(line);
        const char *info = strstr(line, " info "), *on = strstr(line, " candidates have bounds\n"),
                   *priced = strstr(line, " may be faster\n");
        if (!(info && info < next && ((on && on < next) || (priced && priced < next)))) {
            memmove(to, line, (size_t)(next - line));
            to += next - line;
        }
        line = next;
    }
    if (to)
        *to = '\0';
}

void child_run(child *c, const char *const *args, const char *const *environment)
{
    if (!child_start(c, args, environment))
        return;
    if (!child_wait(c, CHILD_PATIENCE_S))
        child_kill(c);
    leave_out_progress(c->err);
}

void child_side_by_side(void (*part)(int i), int num_parts, int at_once)
{
    static char buffer[1 << 16];
    fflush(NULL);
    for (int started = 0, ended = 0, status; ended < num_parts;) {
        if (started < num_parts && started - ended < at_once) {
            const pid_t pid = fork();
            if (pid == 0) {
                setvbuf(stderr, buffer, _IOFBF, sizeof buffer);
                expect_failures = 0;
                part(started);
                fflush(NULL);
                _exit(expect_failures > 0);
            }
            EXPECT(pid > 0, "part %d: no process", started);
            started++;
            ended += pid < 0;
        } else {
            EXPECT(wait(&status) > 0 && WIFEXITED(status), "a part died of a signal");
            expect_failures += WIFEXITED(status) && WEXITSTATUS(status) != 0;
            ended++;
        }
    }
}

void child_good(const char *const *args)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == 0, "weft %s %s: exit %d: %s", args[0], args[1], c.exit_code, c.err);
}

void child_run_other(const char *program, child *c, const char *const *args,
                     const char *const *environment)
{
    const char *before = child_program;
    child_program = program;
    child_run(c, args, environment);
    child_program = before;
}

void child_refused(const char *const *args, int exit_code, const char *part)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == exit_code && child_is_line(c.err) && strstr(c.err, part),
           "weft %s %s: exit %d, \"%s\", for %d and \"%s\"", args[0], args[1], c.exit_code, c.err,
           exit_code, part);
}

static void expect_parts(const char *const *args, const char *text, const char *const *parts)
{
    for (int i = 0; parts && parts[i]; i++) {
        const bool is_absent = parts[i][0] == '!';
        EXPECT(text && !strstr(text, parts[i] + is_absent) == is_absent,
               "weft %s %s: \"%s\" is %sthere: %s", args[0], args[1], parts[i] + is_absent,
               is_absent ? "" : "not ", text);
    }
}

void child_says(const char *const *args, int exit_code, const char *const *out,
                const char *const *err)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == exit_code && (exit_code == 0 || child_is_line(c.err)),
           "weft %s %s: exit %d: %s%s", args[0], args[1], c.exit_code, c.out, c.err);
    expect_parts(args, c.out, out);
    expect_parts(args, c.err, err);
}

void child_expect_latest(const char *run, const char *wanted)
{
    char *text = child_read_in(run, "checkpoints/latest");
    EXPECT(text && strcmp(text, wanted) == 0, "%s: latest is %s", run, text);
}

char *child_losses(const char *run)
{
    char *text = child_read_in(run, "metrics.jsonl");
    size_t used = 0;
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        char *end = strstr(line, ", \"tokens\"");
        size_t bytes = end ? (size_t)(end - line) : 0;
        memmove(text + used, line, bytes);
        used += bytes;
    }
    if (text)
        text[used] = '\0';
    return text;
}

void child_expect_losses(const char *run, const char *wanted)
{
    char *got = child_losses(run), *of_wanted = child_losses(wanted);
    EXPECT(got && of_wanted && *got && strcmp(got, of_wanted) == 0, "%s:\n%s\nnot %s:\n%s", run,
           got, wanted, of_wanted);
}

void child_make_corpus(const char *dataset, int bytes)
{
    FILE *file = fopen("text.txt", "w");
    for (int i = 0; file && i < bytes; i++)
        fputc("the quick brown fox jumps over the lazy dog\n"[i % 44], file);
    EXPECT(file && fclose(file) == 0, "no text.txt");
    CHILD_GOOD("prepare", "text.txt", "--out", dataset);
}

const char *child_cluster(const char *name, const char *to)
{
    static char text[1 << 16];
    char path[1024];
    snprintf(path, sizeof path, "%s/examples/clusters/%s.json", getenv("WEFT_SOURCE_DIR"), name);
    char *sheet = child_read(path);
    EXPECT(sheet && strlen(sheet) < sizeof text && child_write(to, sheet), "no cluster from %s",
           path);
    snprintf(text, sizeof text, "%s", sheet ? sheet : "");
    return text;
}

cJSON *child_json(const char *const *args)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == 0 || c.exit_code == 3, "weft %s %s: exit %d: %s", args[0], args[1],
           c.exit_code, c.err);
    cJSON *json = child_parse(c.out);
    EXPECT(json, "weft %s %s: no JSON: %s", args[0], args[1], c.out);
    return json;
}
