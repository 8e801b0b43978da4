/* What a run writes on a terminal, and where there is none. A progress line never wraps, however
 * narrow the terminal is, follows its width, and rewrites itself on the user's own terminal alone:
 * one that a launcher makes for its ranks does not count. */
#include <pty.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_BYTES = 1 << 20 };

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 2, \"train_iters\": 2000},\n"
    "\"checkpoint\": {\"no_save\": true}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e12, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static char weft[1024];

static void set_width(int terminal, int columns)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    ioctl(terminal, TIOCSWINSZ, &size);
}

/* All that the command wrote on a terminal that is `first` columns wide, and `later` ones as soon
 * as a progress line was seen. */
static void run_on_terminal(const char *const *args, int first, int later, char *out)
{
    int terminal, status = 0;
    size_t used = 0;
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)first};
    pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    if (pid == 0) {
        execv(weft, (char **)(uintptr_t)args);
        _exit(127);
    }
    EXPECT(pid > 0, "no terminal");
    while (pid > 0 && used < MAX_BYTES - 1) {
        ssize_t got = read(terminal, out + used, MAX_BYTES - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
        out[used] = '\0';
        if (strstr(out, "\033[K"))
            set_width(terminal, later);
    }
    out[used] = '\0';
    close(terminal);
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "exit %d: %s", status, out);
}

/* The widths of the first and of the last progress line. */
static int measure(const char *text, int *first, int *last)
{
    int count = 0;
    *first = *last = 0;
    for (const char *at = text; (at = strstr(at, "\r\033[K")) != NULL; count++) {
        at += strlen("\r\033[K");
        int width = (int)strcspn(at, "\r\n");
        *first = count == 0 ? width : *first;
        *last = width;
    }
    return count;
}

/* Rewritten in place, and as long as its parts fit; the whole line has more than 50 characters. */
static void check_width(const char *mesh, int first, int later, char *text)
{
    int before, after;
    run_on_terminal(WORDS("weft", "train", "c.json", "--out", "run", "--mesh", mesh), first, later,
                    text);
    int count = measure(text, &before, &after);
    EXPECT(count == 2000, "%s: %d progress lines:\n%.2000s", mesh, count, text);
    EXPECT(before < first && after < later, "%s: %d of %d columns, then %d of %d", mesh, before,
           first, after, later);
    EXPECT((before > 50) == (first > 80) && (after > 50) == (later > 80),
           "%s: %d characters in %d columns, then %d in %d", mesh, before, first, after, later);
    EXPECT(strstr(text, "step 2000/2000"), "%s: no last step", mesh);
}

/* Under a launcher of the user's own, whose ranks write on a terminal of its making. */
static void check_launcher(void)
{
    expect_shell(
        "mpirun -n 2 --oversubscribe --allow-run-as-root --bind-to none %s train c.json --out "
        "run --mesh dp=2 > log 2>&1",
        weft);
    char *log = child_read("log");
    EXPECT(log != NULL, "no log");
    if (log) {
        EXPECT(!strchr(log, '\033') && !strchr(log, '\r'), "terminal codes:\n%.2000s", log);
        EXPECT(strstr(log, "\nstep 10/2000  loss ") && strstr(log, "\nstep 20/2000  loss ") &&
                   !strstr(log, "\nstep 11/2000"),
               "not a line each 10 steps:\n%.2000s", log);
    }
}

int main(void)
{
    char *text = malloc(MAX_BYTES);
    const char *built = getenv("WEFT_BINARY_DIR");
    snprintf(weft, sizeof weft, "%s/weft", built ? built : ".");
    child_begin();
    EXPECT(text, "no memory");
    EXPECT(child_write("c.json", config), "c.json");
    check_width("dp=1", 20, 100, text);
    check_width("dp=2", 30, 30, text); /* mpirun's buffers hold many lines */
    check_launcher();
    free(text);
    return child_finish();
}
