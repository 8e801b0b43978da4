/* Running the weft command as a child process. */
#ifndef WEFT_TESTS_LAUNCHER_CHILD_H
#define WEFT_TESTS_LAUNCHER_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct child {
    pid_t pid;       /* 0: not running */
    int exit_code;   /* 128 + signal when a signal ended it */
    char *out, *err; /* what it wrote; set when it has ended; there until the program ends */
    char out_path[64], err_path[64];
} child;

enum { CHILD_MAX_ARGS = 32 };

/* A list of words, NULL at its end. */
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* What `weft train` says at once to the signal that asks it to stop; to SIGINT also the second. */
#define CHILD_ASKED "weft train: asked to stop: a step that runs is finished and saved first"
#define CHILD_ASKED_AMID_EVALUATION                                                                \
    "weft train: asked to stop: an evaluation runs: it is left after its batch, and the last "     \
    "step "                                                                                        \
    "is saved first"
#define CHILD_AGAIN "; Ctrl-C again ends it at once"

/* What child_start runs instead of WEFT_BINARY_DIR/weft; NULL: that. */
extern const char *child_program;

/* Puts --set and a text behind the words of a list, for each of the texts, up to the first NULL or
 * so many. The list has room for them, and NULLs. */
void child_add_sets(const char **args, const char *const *sets, int most);

/* Starts WEFT_BINARY_DIR/weft with these arguments (argv[0] left out, NULL at the end) in the
 * current folder; `environment`: "NAME=value" strings set over this process' own, NULL at the end,
 * or NULL. Returns false when it cannot. */
bool child_start(child *c, const char *const *args, const char *const *environment);
/* Seconds for what always comes, also on a machine with much other work. */
enum { CHILD_PATIENCE_S = 300 };

/* True when it ended within the time; else it still runs. */
bool child_wait(child *c, double seconds);
/* SIGKILL to it and to all of its descendants, such as mpirun's ranks; waits for it. */
void child_kill(child *c);
/* The pids of its descendants that run the same program, rank 0's first; their number. */
int child_ranks(const child *c, pid_t *out, int capacity);
/* All of its descendants, parents first; their number. */
int child_descendants(const child *c, pid_t *out, int capacity);
/* It has a handler for a signal. */
bool child_catches(pid_t pid, int number);
/* Gone, or a zombie that its new parent has yet to reap. */
bool child_is_gone(pid_t pid);
/* Kills it, if it still runs. */
void child_release(child *c);

/* start, wait (killed after CHILD_PATIENCE_S) in one; without the lines of progress that a search
 * writes on a slow machine. */
void child_run(child *c, const char *const *args, const char *const *environment);

/* The same of another program than weft; NULL: weft. */
void child_run_other(const char *program, child *c, const char *const *args,
                     const char *const *environment);

/* child_run with these words. */
#define CHILD_RUN(c, ...) child_run((c), WORDS(__VA_ARGS__), NULL)

/* Runs it and expects success. */
void child_good(const char *const *args);
#define CHILD_GOOD(...) child_good(WORDS(__VA_ARGS__))
/* Runs it and expects this exit code, and one line on standard error, which has `part`. */
void child_refused(const char *const *args, int exit_code, const char *part);
#define CHILD_REFUSED(exit_code, part, ...) child_refused(WORDS(__VA_ARGS__), exit_code, part)

/* Runs it and expects this exit code, and each of these parts on standard output, and on standard
 * error, which has one line where the code is not 0. NULL: none. What is behind a '!' must not be
 * there. */
void child_says(const char *const *args, int exit_code, const char *const *out,
                const char *const *err);

/* Runs it and gives the JSON that it prints; expects success, or a plan that does not fit. JSON
 * that these functions give is there until the program ends. */
struct cJSON *child_json(const char *const *args);
/* NULL: it is none. */
struct cJSON *child_parse(const char *text);

/* The text is one line, newline at its end. */
bool child_is_line(const char *text);

/* Runs part(0) to part(num_parts - 1) of a test, none of which needs another, each in a process of
 * its own in the same folder, `at_once` at a time, started in this order. What fails in them counts
 * here; what one writes comes out in one piece when it ends. */
void child_side_by_side(void (*part)(int i), int num_parts, int at_once);
/* Sleeps. */
void child_pause(double seconds);
/* Waits for up to CHILD_PATIENCE_S until the file has this text; "": until it is there; false: it
 * has not, or `c`, unless NULL, has ended. */
bool child_wait_for_text(child *c, const char *path, const char *text);

/* Makes a folder under /tmp and goes there; removes it. */
bool child_folder_enter(char folder[32]);
void child_folder_leave(const char *folder);
/* The begin of main: the same for the whole program, which ends where there can be none. */
void child_begin(void);
/* The end of main: removes that folder, unless a check has failed. Returns the exit code. */
int child_finish(void);
/* Takes the current folder's name and its slash out of a text, wherever they are. */
void child_drop_folder(char *text);
/* Writes a file; false on failure. */
bool child_write(const char *path, const char *text);
/* The file's text, there until the program ends; NULL: cannot be read. */
char *child_read(const char *path);
/* The same, the caller's to free, of what is read again and again. */
char *child_peek(const char *path);
/* As child_read of folder/name. */
char *child_read_in(const char *folder, const char *name);
/* What a JSON file holds; without any the check fails, and it is NULL. */
struct cJSON *child_read_json(const char *path);
/* The lines of the folder's metrics.jsonl that have their newline, as an array. */
struct cJSON *child_read_metrics(const char *run);
/* Writes text.txt, so many bytes of one line again and again, and prepares the dataset of it. */
void child_make_corpus(const char *dataset, int bytes);
/* Writes examples/clusters/NAME.json as the file `to`, and gives its text until the next call. */
const char *child_cluster(const char *name, const char *to);
/* What `latest` says among a run's checkpoints. */
void child_expect_latest(const char *run, const char *wanted);
/* What the lines of metrics.jsonl in the folder have before times: steps and losses. */
char *child_losses(const char *run);
/* They are the same in two of them, and some. */
void child_expect_losses(const char *run, const char *wanted);

#endif
