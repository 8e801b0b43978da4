/* Scripts of `weft launch` in a folder of their own, and launchers that only note what they get. */
#ifndef WEFT_TESTS_LAUNCHER_JOBS_H
#define WEFT_TESTS_LAUNCHER_JOBS_H

#include <cjson/cJSON.h>

#include "tests/launcher/child.h"

/* tiny.json: two ranks, three steps. */
extern const char job_config[];
/* A run that quoting has to get right. */
extern const char job_odd[];
/* The folder, and "PATH=" with the fakes in it first. */
extern char job_folder[32], job_path[128];

/* What a fake begins with, to know its run's folder, $run. */
#define JOB_FIND_RUN                                                                               \
    "args=(\"$@\")\n"                                                                              \
    "while [ $# -gt 0 ]; do\n"                                                                     \
    "  if [ \"$1\" = --out ]; then run=$2; break; fi\n  shift\ndone\nset -- \"${args[@]}\"\n"

/* Goes to a new folder with tiny.json and the fakes: mpirun, sbatch, kubectl, scontrol and srun,
 * which end well, srun with FAKE_CODE. */
void job_enter(void);
void job_leave(void);

/* The weft command; its exit code. A failure must be one line. The caller releases c. */
int job_run(child *c, const char *const *args, const char *const *environment);
/* It must end with this code, and say `part`, unless NULL. */
void job_expect_code(const char *const *args, int code, const char *part);
/* launch KIND tiny.json --out OUT and further words, likewise. */
void job_launch(const char *kind, const char *out, const char *const *words, int code,
                const char *part);
/* Another program; its exit code. */
int job_run_other(child *c, const char *program, const char *const *args,
                  const char *const *environment);
/* Starts a script. */
void job_start(child *c, const char *script, const char *const *environment);

/* The file has this text, or has not; bash can read it. */
void job_expect_text(const char *path, const char *part);
void job_expect_no_text(const char *path, const char *part);
void job_expect_bash(const char *path);
/* The documents of a YAML file, as an array; the caller's. NULL: no parser is here (python3-yaml).
 */
cJSON *job_read_yaml(const char *path);
int job_count_lines(const char *path);

/* A program that notes its name and arguments, a line each, and does what the script says. */
void job_make_fake(const char *name, const char *script);
/* What the fakes noted since the last time. */
const char *job_said(void);
/* Whether the fakes got this word, as it is. */
bool job_has_word(const char *text, const char *word);
/* The words of a rank of the run `job_odd`, with train.lr=1e-3. */
void job_expect_words(const char *text, const char *name);

#endif
