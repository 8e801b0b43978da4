/* Containers of mpirun and Slurm jobs: pyxis, a plugin of srun, and apptainer, a program before the
 * program. A path means the same inside and outside. */
#include <string.h>

#include "launcher/jobs/internal.h"

bool weft_job_is_contained(const weft_job *job)
{
    return job->kind == WEFT_JOB_KUBERNETES || job->container.image || job->container.apptainer;
}

/* Both separate paths by these. */
static weft_status check_path(const char *path)
{
    if (strpbrk(path, ":,"))
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: a container mounts no path with a colon or a comma",
                          path);
    return WEFT_OK;
}

weft_status weft_job_check_container(const weft_job *job)
{
    const weft_job_container *c = &job->container;
    if (c->apptainer && job->kind == WEFT_JOB_KUBERNETES)
        return WEFT_ERROR(WEFT_CONFIG, "--apptainer: of mpirun and slurm jobs; --image names this "
                                       "one's image");
    if (c->apptainer && (!*c->apptainer || *c->apptainer == '-'))
        return WEFT_ERROR(WEFT_CONFIG, "--apptainer \"%.100s\": no image", c->apptainer);
    if (c->image && !*c->image)
        return WEFT_ERROR(WEFT_CONFIG, "--container-image: its name is missing");
    if (c->mounts && (!c->image || !*c->mounts))
        return WEFT_ERROR(WEFT_CONFIG, "--container-mounts: what to mount in --container-image");
    if (!c->apptainer && !c->image)
        return WEFT_OK;
    WEFT_TRY(check_path(job->run));
    for (size_t i = 0; i < job->mounts.count; i++)
        WEFT_TRY(check_path(job->mounts.values[i]));
    return WEFT_OK;
}

/* Of an image in a user's own namespaces each rank has its own, across which none may read
 * another's memory: Open MPI would end with "Read -1, expected ...". */
const char weft_job_container_setting[] = "export OMPI_MCA_btl_vader_single_copy_mechanism="
                                          "${OMPI_MCA_btl_vader_single_copy_mechanism:-none}\n";

static void print_container(const weft_job *job, weft_job_word_function print, FILE *out)
{
    if (!job->container.apptainer)
        return;
    print("apptainer", out);
    print("exec", out);
    if (job->gpus_per_node > 0)
        print("--nv", out);
    print("--bind", out);
    print(job->run, out);
    for (size_t i = 0; i < job->mounts.count; i++) {
        print("--bind", out);
        print(job->mounts.values[i], out);
    }
    print("--pwd", out);
    print(job->folder, out);
    print(job->container.apptainer, out);
}

void weft_job_words(const weft_job *job, weft_job_word_function print, FILE *out)
{
    const char *words[] = {job->program, "train", job->config, "--out", job->run, "--resume"};
    print_container(job, print, out);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        print(words[i], out);
    for (size_t i = 0; i < job->settings.count; i++)
        print(job->settings.values[i], out);
}

/* Pieces of one word, each quoted. */
static void print_mount(const char *path, FILE *out)
{
    weft_shell_word(path, out);
    fputc(':', out);
    weft_shell_word(path, out);
}

void weft_job_print_container(const weft_job *job, FILE *out)
{
    if (!job->container.image)
        return;
    fputs(" \\\n    --container-image=", out);
    weft_shell_word(job->container.image, out);
    fputs(" --container-workdir=", out);
    weft_shell_word(job->folder, out);
    fputs(" --container-mounts=", out);
    print_mount(job->run, out);
    for (size_t i = 0; i < job->mounts.count; i++) {
        fputc(',', out);
        print_mount(job->mounts.values[i], out);
    }
    if (job->container.mounts) {
        fputc(',', out);
        weft_shell_word(job->container.mounts, out);
    }
}
