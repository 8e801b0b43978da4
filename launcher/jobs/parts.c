/* What the texts of several launchers are made of. */
#include <stddef.h>

#include "launcher/jobs/job_internal.h"
#include "launcher/jobs/quote.h"

const char *weft_job_file_name(weft_job_kind kind, int file)
{
    static const char *const names[WEFT_NUM_JOBS][WEFT_JOB_MAX_FILES + 1] = {
        [WEFT_JOB_MPIRUN] = {"hostfile", "job.sh"},
        [WEFT_JOB_SLURM] = {"job.sbatch"},
        [WEFT_JOB_KUBERNETES] = {"job.yaml"},
    };
    return names[kind][file];
}

void weft_job_words(const weft_job *job, weft_job_word_function print, FILE *out)
{
    const char *words[] = {job->program, "train", job->config, "--out", job->run, "--resume"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        print(words[i], out);
    for (size_t i = 0; i < job->settings.count; i++)
        print(job->settings.values[i], out);
}

void weft_job_shell_word(const char *word, FILE *out)
{
    fputc(' ', out);
    weft_shell_word(word, out);
}

/* Open MPI gives ranks a second at SIGTERM, in which little is saved, and passes SIGUSR1 on. */
const char weft_job_passing[] =
    "asked= interrupted= job=\n"
    "pass_on() {\n"
    "    interrupted=1 asked=${asked:-$1}\n"
    "    if [ \"$1\" = TERM ]; then asked=TERM; fi\n"
    "    if [ -n \"$job\" ]; then kill -USR1 \"$job\"; fi\n"
    "}\n"
    "for signal in USR1 TERM INT HUP; do trap \"pass_on $signal\" \"$signal\"; done\n";

/* `wait` ends early at a signal, and is then repeated for the job's own code. */
const char weft_job_waiting[] = "job=$!\n"
                                "if [ -n \"$asked\" ]; then kill -USR1 \"$job\"; fi\n"
                                "while :; do\n"
                                "    interrupted=\n"
                                "    wait \"$job\"\n"
                                "    code=$?\n"
                                "    if [ -z \"$interrupted\" ]; then break; fi\n"
                                "done\n";
