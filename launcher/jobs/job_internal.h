/* The texts of jobs, a function a launcher. Private to launcher/jobs/. */
#ifndef WEFT_LAUNCHER_JOBS_JOB_INTERNAL_H
#define WEFT_LAUNCHER_JOBS_JOB_INTERNAL_H

#include "launcher/jobs/job.h"

enum { WEFT_JOB_MAX_FILES = 2 };

/* The program and its arguments, word by word. */
typedef void (*weft_job_word_function)(const char *word, FILE *out);
void weft_job_words(const weft_job *job, weft_job_word_function print, FILE *out);
/* A blank and the word, quoted. */
void weft_job_shell_word(const char *word, FILE *out);

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

void weft_job_print_hosts(const weft_job *job, FILE *out);
void weft_job_print_mpirun(const weft_job *job, FILE *out);
void weft_job_print_slurm(const weft_job *job, FILE *out);
void weft_job_print_kubernetes(const weft_job *job, FILE *out);

#endif
