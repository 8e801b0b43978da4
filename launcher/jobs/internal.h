/* The texts of jobs, a function a launcher. Private to launcher/jobs/. */
#ifndef WEFT_LAUNCHER_JOBS_INTERNAL_H
#define WEFT_LAUNCHER_JOBS_INTERNAL_H

#include <stdbool.h>
#include <stdio.h>

#include "launcher/jobs/jobs.h"

enum { WEFT_JOB_MAX_FILES = 2 };

/* The program and its arguments, word by word, in its container (container.c). */
typedef void (*weft_job_word_function)(const char *word, FILE *out);
void weft_job_words(const weft_job *job, weft_job_word_function print, FILE *out);
/* A blank and the word, quoted. */
void weft_job_shell_word(const char *word, FILE *out);

/* A container's part of a job (container.c): what weft_job_check says of it; srun's options. */
weft_status weft_job_check_container(const weft_job *job) WEFT_CHECKED;
void weft_job_print_container(const weft_job *job, FILE *out);
/* What a script sets for ranks in containers. */
extern const char weft_job_container_setting[];

/* Parts of a script that passes on, as SIGUSR1, the signals that ask a job to stop: what stands
 * before the command that starts it in the background, and what waits for it, which $job names, and
 * sets $code. $asked is the signal: TERM, if that was one of them. */
extern const char weft_job_passing[], weft_job_waiting[];
/* How a script whose folder is $run reads what ranks and the watchdog leave there: `prepare` before
 * a start; then `judged`, whether the watchdog has ended it, and `named nodes` or `missing`. */
extern const char weft_job_judging[];

/* The function `again` of a script with weft_job_judging: whether a fault ended the job, with
 * $code; it then waits, and the caller starts once more. A start that a signal ends before its
 * first step is tried again whatever max_restarts says. */
void weft_job_print_again(const weft_job *job, FILE *out);

/* One or more ASCII letters, digits and `marks`, without a hyphen first. */
bool weft_job_is_word(const char *text, const char *marks);
bool weft_job_has_control(const char *text);
weft_status weft_job_check_site(const weft_job *job) WEFT_CHECKED;
weft_status weft_job_check_slurm(const weft_job *job) WEFT_CHECKED;
weft_status weft_job_check_kubernetes(const weft_job *job) WEFT_CHECKED;
/* At a script's head, where no variable but weft_* is set yet: reads the lines of the file `setup`,
 * unless NULL, which change nothing but what ranks get, umask and limits. $environment is then what
 * `env` starts ranks' launcher with; weft_job_passing stands behind it. */
void weft_job_print_setup(const weft_job *job, const char *setup, FILE *out);
/* Behind it, where $run is the run's folder: adds to the array `options` what mpirun passes on. */
void weft_job_print_passed(const weft_job *job, FILE *out);

void weft_job_print_hosts(const weft_job *job, FILE *out);
void weft_job_print_mpirun(const weft_job *job, FILE *out);
void weft_job_print_slurm(const weft_job *job, FILE *out);
weft_status weft_job_print_kubernetes(const weft_job *job, FILE *out) WEFT_CHECKED;
/* A scalar in double quotes; `text` is UTF-8. expands: of a container's command, where Kubernetes
 * replaces $(NAME), which is written so that it stays. */
void weft_yaml_text(const char *text, bool expands, FILE *out);
/* A text of lines as a block below a key that stands `indent` columns in; its lines stand two
 * further. What a block cannot hold is written as a scalar. Ends its line. */
void weft_yaml_block(const char *text, int indent, FILE *out);
bool weft_is_utf8(const char *text);

enum { WEFT_JOB_NAME_BYTES = 41 };
/* The last part of a path as a name: a DNS label (a-z, 0-9 and -), "weft" where nothing is left. */
void weft_job_name(const char *path, char out[WEFT_JOB_NAME_BYTES]);

#endif
