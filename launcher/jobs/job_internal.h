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
 * before the command that starts it with & at its end, and what waits for it and sets $code. $asked
 * is the signal: TERM, if that was one of them. */
extern const char weft_job_passing[], weft_job_waiting[];

/* The function `again` of a script: whether a fault ended the job, with $code, which then waits and
 * starts once more. */
void weft_job_print_again(const weft_job *job, FILE *out);

void weft_job_print_hosts(const weft_job *job, FILE *out);
void weft_job_print_mpirun(const weft_job *job, FILE *out);
void weft_job_print_slurm(const weft_job *job, FILE *out);
void weft_job_print_kubernetes(const weft_job *job, FILE *out);

#endif
