/* weft launch: what its job files say, that launchers get every path and argument as it is, and
 * what it refuses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/launcher/jobs.h"

/* What it says starts the job, as a shell reads it. */
static void check_start_line(const char *const *args)
{
    const char *const env[] = {job_path, NULL};
    child c, shell;
    EXPECT(job_run(&c, args, NULL) == 0, "%s", c.err);
    const char *line = strstr(c.out, "\nstart: ");
    EXPECT(line, "no start in %s", c.out);
    if (line) {
        char *command = strndup(line + 8, strcspn(line + 8, "\n"));
        EXPECT(job_run_other(&shell, "/bin/bash", WORDS("-c", command), env) == 0, "%s: %s",
               command, shell.err);
        free(command);
    }
}

static void check_mpirun(void)
{
    const char *const env[] = {job_path, NULL};
    child c;
    char script[256], hosts[256];
    snprintf(script, sizeof script, "%s/job.sh", job_odd);
    snprintf(hosts, sizeof hosts, "%s/hostfile", job_odd);
    job_launch("mpirun", job_odd, WORDS("--set", "train.lr=1e-3"), 0, NULL);
    job_expect_bash(script);
    job_expect_text(hosts, "localhost slots=2\n");
    EXPECT(job_run_other(&c, "/bin/bash", WORDS(script), env) == 0, "%s", c.err);
    const char *text = job_said();
    child_release(&c);
    job_expect_words(text, "mpirun");
    EXPECT(job_has_word(text, "ppr:2:node") && job_has_word(text, "-n") && job_has_word(text, "2"),
           "%s", text);
    /* The same once more is this very job; another is not. */
    job_launch("mpirun", job_odd, WORDS("--set", "train.lr=1e-3"), 0, NULL);
    check_start_line(
        WORDS("launch", "mpirun", "tiny.json", "--out", job_odd, "--set", "train.lr=1e-3"));
    text = job_said();
    job_expect_words(text, "mpirun");
    job_launch("mpirun", job_odd, WORDS(NULL), 2, "--force");
    job_expect_text(script, "train.lr=1e-3");
    job_launch("mpirun", job_odd, WORDS("--force"), 0, NULL);
    job_expect_no_text(script, "train.lr=1e-3");
    /* Two nodes, by names or not. */
    job_launch("mpirun", "two", WORDS("--nodes", "2", "--hosts", "n-1.x,n2"), 0, NULL);
    job_expect_text("two/hostfile", "n-1.x slots=1\nn2 slots=1\n");
    job_expect_text("two/job.sh", "ppr:1:node");
    job_launch("mpirun", "two-b", WORDS("--nodes", "2", "--run"), 2, "--hosts");
    job_launch("mpirun", "two-c", WORDS("--nodes", "2", "--hosts", "a"), 2, "names 1");
    job_launch("mpirun", "two-c", WORDS("--nodes", "2", "--hosts", "n1,n11"), 0, NULL);
    /* What leaves dp open has one rank; with dp it goes. */
    job_expect_code(
        WORDS("launch", "mpirun", "tiny.json", "--out", "two-d", "--nodes", "2", "--mesh", "tp=1"),
        2, "1 rank, which does not fill 2 nodes equally; --cluster FILE says");
    job_launch("mpirun", "two-d", WORDS("--nodes", "2", "--mesh", "dp=2", "--hosts", "n1,n2"), 0,
               NULL);
}

/* Nodes to spare. */
static void check_spares(void)
{
    job_launch("mpirun", "few",
               WORDS("--nodes", "2", "--hosts", "a,b", "--spares", "1", "--set",
                     "reliability.max_restarts=1"),
               2, "names 2, where the job has 2 nodes and 1 to spare: 3 names");
    job_launch("mpirun", "few", WORDS("--nodes", "2", "--hosts", "a,b,c", "--spares", "1"), 2,
               "reliability.max_restarts");
    job_launch("mpirun", "few", WORDS("--spares", "1"), 2, "--hosts has to name them");
    job_launch("slurm", "few", WORDS("--spares", "1"), 2, "--spares: of mpirun jobs");
}

/* What leaves no time to train would be queued for ever. */
static void check_times(void)
{
    static const struct {
        const char *time, *says; /* NULL: it is taken */
    } rows[] = {{"8 h", "expected MM"},
                {"00:00:00", "too short"},
                {"00:06:00", "too short"},
                {"00:06:01", NULL},
                {"99:59:59", NULL},
                {"1-00:00:00", NULL},
                {"0-00:02:00", "too short"},
                {"1-24:00:00", "expected MM"},
                {"25:61:00", "expected MM"},
                {"08:00:60", "expected MM"},
                {"08:00:00:00", "expected MM"},
                {"1-2-00:00:00", "expected MM"},
                {"-1:00:00", "expected MM"},
                {"08:00", "00:08:00 for those"},
                {"30", NULL},
                {"6", "too short"},
                {"1-2", NULL},
                {"1-2:30", NULL},
                {"7:30:00", NULL},
                {"1-24", "expected MM"},
                {"1-", "expected MM"},
                {"30\n#SBATCH --hold", "expected MM"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        job_launch("slurm", "times", WORDS("--force", "--time", rows[i].time), rows[i].says ? 2 : 0,
                   rows[i].says);
    job_launch("slurm", "times",
               WORDS("--force", "--time", "00:10:00", "--set", "train.stop_timeout_s=600"), 2,
               "600 s before its end");
}

static void check_slurm_text(void)
{
    char script[256];
    snprintf(script, sizeof script, "%s/job.sbatch", job_odd);
    job_launch("slurm", job_odd,
               WORDS("--nodes", "2", "--set", "train.lr=1e-3", "--set", "train.stop_timeout_s=90",
                     "--set", "device.num_threads=3", "--time", "08:00:00"),
               0, NULL);
    job_expect_bash(script);
    static const char *const lines[] = {
        "\n#SBATCH --nodes=2\n",
        "\n#SBATCH --ntasks-per-node=1\n",
        "\n#SBATCH --cpus-per-task=3\n",
        "\n#SBATCH --time=08:00:00\n",
        "\n#SBATCH --signal=B:USR1@90\n",
        "\n#SBATCH --requeue\n",
        "\n#SBATCH --open-mode=append\n",
        "scancel --batch --signal=INT",
        "\nexport SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}\n",
        "srun --mpi=pmix ",
        "\n#SBATCH --job-name=a-run-s-touch-oops-touch-oops-home\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        job_expect_text(script, lines[i]);
    job_expect_no_text(script, "gpus-per-node");
    job_launch("slurm", "s", WORDS("--image", "x"), 2, "kubernetes");
}

/* Containers get the paths that a run reads, as they are outside, and what the image is called. */
static void check_pyxis(void)
{
    char script[256], mounts[1024];
    child c;
    snprintf(script, sizeof script, "%s/job.sbatch", job_odd);
    job_launch("slurm", job_odd,
               WORDS("--force", "--container-image", "registry#weft:1 b", "--container-mounts",
                     "/x:/y", "--set", "data.mock_data=false", "--set", "data.data_path=some/data"),
               0, NULL);
    job_expect_bash(script);
    job_said();
    EXPECT(job_run_other(&c, "/bin/bash", WORDS(script), WORDS(job_path)) == 0, "%s", c.err);
    const char *text = job_said();
    snprintf(mounts, sizeof mounts, "--container-mounts=%s/%s:%s/%s,%s/some:%s/some,%s:%s,/x:/y",
             job_folder, job_odd, job_folder, job_odd, job_folder, job_folder, job_folder,
             job_folder);
    EXPECT(job_has_word(text, "--container-image=registry#weft:1 b") &&
               job_has_word(text, mounts) && job_has_word(text, "weft"),
           "no %s: %s", mounts, text);
}

static void check_apptainer(const char *kind, const char *file)
{
    char script[256], words[1024];
    child c;
    snprintf(script, sizeof script, "%s/%s", job_odd, file);
    job_launch(kind, job_odd,
               WORDS("--force", "--apptainer", "weft 1.sif", "--set", "device.kind=cuda"), 0, NULL);
    job_expect_bash(script);
    job_expect_text(script, "\nexport OMPI_MCA_btl_vader_single_copy_mechanism=");
    job_said();
    EXPECT(job_run_other(&c, "/bin/bash", WORDS(script), WORDS(job_path)) == 0, "%s", c.err);
    const char *text = job_said();
    snprintf(words, sizeof words,
             "\napptainer\nexec\n--nv\n--bind\n%s/%s\n--bind\n%s\n--pwd\n%s\nweft 1.sif\n"
             "weft\ntrain\n%s/tiny.json\n--out\n%s/%s\n",
             job_folder, job_odd, job_folder, job_folder, job_folder, job_folder, job_odd);
    EXPECT(strstr(text, words), "no %s: %s", words, text);
}

static void check_containers(void)
{
    static const struct {
        const char *args[6], *says;
    } rows[] = {
        {{"mpirun", "--container-image", "i"}, "--container-image: of slurm jobs"},
        {{"mpirun", "--container-mounts", "/a:/a"}, "--container-mounts: of slurm jobs"},
        {{"slurm", "--container-mounts", "/a:/a"}, "--container-image"},
        {{"slurm", "--container-image", ""}, "name is missing"},
        {{"slurm", "--container-image", "i", "--apptainer", "i"}, "one of them"},
        {{"slurm", "--apptainer", "-x"}, "no image"},
        {{"kubernetes", "--apptainer", "i", "--image", "i"}, "--apptainer: of mpirun and slurm"},
    };
    check_pyxis();
    check_apptainer("mpirun", "job.sh");
    check_apptainer("slurm", "job.sbatch");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        job_expect_code(WORDS("launch", rows[i].args[0], "tiny.json", "--out", "refused",
                              rows[i].args[1], rows[i].args[2], rows[i].args[3], rows[i].args[4]),
                        2, rows[i].says);
    job_launch("slurm", "a,b", WORDS("--apptainer", "i"), 2, "a,b: a container mounts no path");
    EXPECT(access("refused", F_OK) != 0 && access("a,b", F_OK) != 0, "a refused job's folder");
}

/* A field of a parsed document: "spec.slotsPerWorker", numbers are places in arrays. */
static const cJSON *field(const cJSON *json, const char *path)
{
    while (json && *path) {
        char key[128];
        const size_t bytes = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)bytes, path);
        json = cJSON_IsArray(json) ? cJSON_GetArrayItem(json, atoi(key))
                                   : cJSON_GetObjectItemCaseSensitive(json, key);
        path += bytes + (path[bytes] == '/');
    }
    return json;
}

static void expect_field(const cJSON *json, const char *path, const char *text, double number)
{
    const cJSON *f = field(json, path);
    if (text)
        EXPECT(f && cJSON_IsString(f) && strcmp(f->valuestring, text) == 0,
               "%s: \"%s\", not \"%s\"", path, f && f->valuestring ? f->valuestring : "?", text);
    else
        EXPECT(f && cJSON_IsNumber(f) && f->valuedouble == number, "%s: not %g", path, number);
}

static bool has_item(const cJSON *array, const char *text)
{
    for (const cJSON *i = array ? array->child : NULL; i; i = i->next)
        if (i->valuestring && strcmp(i->valuestring, text) == 0)
            return true;
    return false;
}

static void expect_bash_text(const cJSON *text)
{
    EXPECT(text && cJSON_IsString(text) && child_write("script", text->valuestring), "no script");
    job_expect_bash("script");
}

/* The launcher's container is started again after any failure: what it would meet again it does not
 * try. */
static void check_pod(const cJSON *script)
{
    static const struct {
        const char *code;
        int starts;
    } rows[] = {{"2", 1}, {"8", 1}, {"5", 2}};
    EXPECT(script && child_write("pod.sh", script->valuestring), "no script");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64], ended[64], command[64];
        int starts = 0;
        snprintf(name, sizeof name, "HOSTNAME=test%d-%s", (int)getpid(), rows[i].code);
        snprintf(ended, sizeof ended, "/dev/shm/weft-ended-%s", strchr(name, '=') + 1);
        snprintf(command, sizeof command, "echo x >>pod-%s; exit %s", rows[i].code, rows[i].code);
        job_make_fake("started", command);
        for (int k = 0; k < 2; k++) {
            child c;
            const int code =
                job_run_other(&c, "/bin/bash", WORDS("pod.sh", "fakes/started"), WORDS(name));
            EXPECT(code == atoi(rows[i].code), "code %s: exit %d: %s", rows[i].code, code, c.err);
        }
        snprintf(command, sizeof command, "pod-%s", rows[i].code);
        starts = job_count_lines(command);
        EXPECT(starts == rows[i].starts, "code %s: %d starts", rows[i].code, starts);
        unlink(ended);
    }
    job_said();
}

static void check_yaml(const char *path)
{
    cJSON *json = job_read_yaml(path);
    if (!json)
        return;
    expect_field(json, "0/kind", "ConfigMap", 0);
    expect_field(json, "0/data/config.json", job_config, 0);
    expect_bash_text(field(json, "0/data/job.sh"));
    check_pod(field(json, "0/data/job.sh"));
    expect_field(json, "1/spec/launcherCreationPolicy", "WaitForWorkersReady", 0);
    expect_field(json, "1/spec/runPolicy/ttlSecondsAfterFinished", NULL, 600);
    expect_field(json, "1/apiVersion", "kubeflow.org/v2beta1", 0);
    expect_field(json, "1/kind", "MPIJob", 0);
    expect_field(json, "1/spec/slotsPerWorker", NULL, 1);
    expect_field(json, "1/spec/mpiReplicaSpecs/Launcher/replicas", NULL, 1);
    expect_field(json, "1/spec/mpiReplicaSpecs/Worker/replicas", NULL, 2);
    char run_path[256], escaped[512];
    snprintf(run_path, sizeof run_path, "%s/%s", job_folder, job_odd);
    size_t used = 0;
    for (const char *p = run_path; *p; p++) {
        escaped[used++] = *p;
        if (*p == '$')
            escaped[used++] = '$';
    }
    escaped[used] = '\0';
    const cJSON *launcher =
        field(json, "1/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0");
    const cJSON *command = field(launcher, "command");
    EXPECT(has_item(command, escaped), "no %s in the command", escaped);
    EXPECT(has_item(command, "weft") && has_item(command, "--resume") && has_item(command, "2"),
           "the launcher's command");
    expect_field(launcher, "volumeMounts/2/mountPath", run_path, 0);
    expect_field(json, "1/spec/mpiReplicaSpecs/Worker/template/spec/containers/0/image",
                 "registry.example/weft:1", 0);
    expect_field(json, "1/spec/mpiReplicaSpecs/Worker/template/spec/volumes/2/hostPath/path",
                 run_path, 0);
    cJSON_Delete(json);
}

static void check_kubernetes(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/job.yaml", job_odd);
    job_launch("kubernetes", job_odd, WORDS(NULL), 2, "--image");
    job_launch("kubernetes", job_odd, WORDS("--image", "registry.example/weft:1", "--nodes", "2"),
               0, NULL);
    static const char *const lines[] = {
        "\napiVersion: kubeflow.org/v2beta1\nkind: MPIJob\n",
        "\n  slotsPerWorker: 1\n",
        "\n    Launcher:\n      replicas: 1\n      restartPolicy: OnFailure\n",
        "\n    Worker:\n      replicas: 2\n",
        "            image: \"registry.example/weft:1\"\n",
        "\n  config.json: |2+\n    // blanks",
        "            - \"--resume\"\n",
        "              mountPath: /dev/shm\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        job_expect_text(path, lines[i]);
    job_expect_no_text(path, "nvidia.com/gpu");
    check_yaml(path);
    job_launch("kubernetes", "k",
               WORDS("--image", "i", "--claim", "runs", "--set", "device.kind=cuda", "--set",
                     "data.mock_data=false", "--set", "data.data_path=some/data"),
               0, NULL);
    job_expect_text("k/job.yaml", "                nvidia.com/gpu: 2\n");
    job_expect_text("k/job.yaml", "claimName: \"runs\"\n");
    job_expect_text("k/job.yaml", "/some\"\n              readOnly: true\n");
    EXPECT(mkdir("a:b", 0755) == 0, "a:b");
    job_launch("kubernetes", "a:b", WORDS("--image", "i"), 2, "colon");
    job_launch("kubernetes", "k2", WORDS("--image", "i j"), 2,
               "--image i j: no name that Kubernetes takes");
}

/* What the launcher refused is as if it had not been written; another job's file stays. */
static void check_refused_job(const char *const *with)
{
    child c;
    job_make_fake("sbatch", "exit 3");
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            job_make_fake("sbatch", "exit 0");
        const char *const *args = WORDS("launch", "slurm", "tiny.json", "--out", "wrong", "--run",
                                        "--account", i == 0 ? "wrong" : "right");
        EXPECT(job_run(&c, args, with) == (i < 2 ? 3 : 0) &&
                   (i == 2 || strstr(c.err, "weft launch: sbatch refused the job (exit code 3): "
                                            "what was written is removed again\n")) &&
                   (access("wrong", F_OK) == 0) == (i == 2) &&
                   (access("wrong/job.sbatch", F_OK) == 0) == (i == 2),
               "exit %d: %s", c.exit_code, c.err);
    }
    job_make_fake("sbatch", "exit 3");
    EXPECT(job_run(&c,
                   WORDS("launch", "slurm", "tiny.json", "--out", "wrong", "--run", "--account",
                         "right"),
                   with) == 3 &&
               strcmp(c.err, "weft launch: sbatch refused the job (exit code 3)\n") == 0 &&
               access("wrong/job.sbatch", F_OK) == 0,
           "exit %d: %s", c.exit_code, c.err);
    job_make_fake("sbatch", "exit 0");
    job_said();
}

/* A job of mpirun that has begun is started again by its file, however it ended. */
static void check_ended_job(const char *const *with)
{
    child c;
    job_make_fake("mpirun", "echo stopped >&2; exit 75");
    EXPECT(job_run(&c, WORDS("launch", "mpirun", "tiny.json", "--out", "ended", "--run"), with) ==
               75,
           "exit %d: %s", c.exit_code, c.err);
    EXPECT(access("ended/hostfile", F_OK) == 0, "no hostfile");
    job_make_fake("mpirun", "exit 0");
    EXPECT(job_run_other(&c, "/bin/bash", WORDS("ended/job.sh"), with) == 0, "exit %d: %s",
           c.exit_code, c.err);
    job_said();
}

static void check_start(void)
{
    static const struct {
        const char *kind, *words;
    } kinds[] = {{"slurm", "sbatch\n"}, {"kubernetes", "kubectl\napply\n-f\n"}};
    const char *const with[] = {job_path, NULL}, *const without[] = {"PATH=/nowhere", NULL};
    child c;
    for (size_t i = 0; i < 2; i++) {
        const char *args[] = {"launch", kinds[i].kind,        "tiny.json", "--out", "started",
                              "--run",  i ? "--image" : NULL, "img",       NULL};
        EXPECT(job_run(&c, args, without) == 2 && strstr(c.err, "--run: ") &&
                   strstr(c.err, " is not on PATH; without --run the job is written alone") &&
                   !*c.out && (i > 0 || access("started", F_OK) != 0),
               "%s%s", c.out, c.err);
        EXPECT(job_run(&c, args, with) == 0, "%s", c.err);
        const char *text = job_said();
        EXPECT(strncmp(text, kinds[i].words, strlen(kinds[i].words)) == 0 &&
                   strstr(text, "/started/job."),
               "%s", text);
    }
    check_refused_job(with);
    const char *args[] = {"launch", "mpirun", "tiny.json", "--out", "started", "--run", NULL};
    EXPECT(job_run(&c, args, without) == 2 && strstr(c.err, "not on PATH"), "%s", c.err);
    EXPECT(job_run(&c, args, with) == 0, "%s", c.err);
    const char *text = job_said();
    EXPECT(strncmp(text, "mpirun\n", 7) == 0 && job_has_word(text, "--resume"), "%s", text);
    check_ended_job(with);
}

static void check_cluster(void)
{
    char cluster[1200], program[1200];
    snprintf(cluster, sizeof cluster, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    snprintf(program, sizeof program, "%s/weft-plan", getenv("WEFT_BINARY_DIR"));
    job_launch("slurm", "c",
               WORDS("--cluster", cluster, "--nodes", "2", "--set", "train.global_batch_size=16"),
               0, NULL);
    job_expect_text("c/job.sbatch", "\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
                                    "#SBATCH --gpus-per-node=8\n#SBATCH --exclusive\n");
    job_expect_text("c/job.sbatch", "device.kind=cuda");
    /* The cluster that an earlier job of the config got, by another path. */
    char same[256];
    child c;
    child_cluster("h100", "near.json");
    snprintf(same, sizeof same, "parallel.cluster=%s/near.json", job_folder);
    EXPECT(job_run(&c,
                   WORDS("launch", "slurm", "tiny.json", "--out", "c", "--dry-run", "--cluster",
                         "near.json", "--nodes", "2", "--set", "train.global_batch_size=16",
                         "--set", same),
                   NULL) == 0 &&
               !*c.err,
           "%s", c.err);
    /* As many nodes as the mesh needs; a mesh that fills none of them evenly. */
    job_launch(
        "slurm", "c2",
        WORDS("--cluster", cluster, "--mesh", "tp=2,dp=12", "--set", "train.global_batch_size=24"),
        0, NULL);
    job_expect_text("c2/job.sbatch", "\n#SBATCH --nodes=3\n");
    job_launch(
        "slurm", "c3",
        WORDS("--cluster", cluster, "--mesh", "tp=2,dp=6", "--set", "train.global_batch_size=24"),
        2, "do not fill");
    job_launch(
        "slurm", "c4",
        WORDS("--cluster", cluster, "--mesh", "tp=2,dp=10", "--set", "train.global_batch_size=20"),
        2, "do not fill");
    /* What does not fit is not written. */
    job_launch("slurm", "big",
               WORDS("--cluster", cluster, "--set", "model.hidden_size=65536", "--set",
                     "model.num_attention_heads=512", "--set", "model.num_layers=96"),
               3, NULL);
    EXPECT(access("big", F_OK) != 0, "a folder of a job that does not fit");
    /* The program that runs nothing writes the same job, of another program. */
    child_program = program;
    job_launch("slurm", "p",
               WORDS("--cluster", cluster, "--nodes", "2", "--set", "train.global_batch_size=16",
                     "--json"),
               0, NULL);
    child_program = NULL;
    job_expect_text("p/job.sbatch", "    weft train ");
}

static void check_mistakes(void)
{
    job_launch("slrum", "m", WORDS(NULL), 2, "did you mean slurm");
    job_expect_code(WORDS("launch", "slurm", "--out", "m"), 2, "CONFIG");
    job_expect_code(WORDS("launch", "slurm", "none.json", "--out", "m"), 2, "none.json");
    job_launch("slurm", "tiny.json", WORDS(NULL), 6, "not a folder");
    job_launch("slurm", "m", WORDS("--nodes", "3"), 2, "do not fill");
    job_launch("slurm", "m", WORDS("--set", "train.lrr=1"), 2, "train.lr");
    EXPECT(access("m", F_OK) != 0, "a folder of a job that was refused");
}

/* A path's newline begins no line of the script, where Slurm might read it as an order. */
static void check_newline(void)
{
    static const char run[] = "line\n#SBATCH --evil";
    child c;
    char path[64];
    CHILD_GOOD("launch", "slurm", "tiny.json", "--out", run);
    snprintf(path, sizeof path, "%s/job.sbatch", run);
    job_expect_no_text(path, "\n#SBATCH --evil");
    job_expect_bash(path);
    job_said();
    const int code = job_run_other(&c, "/bin/bash", WORDS(path), WORDS(job_path));
    const char *got = job_said();
    EXPECT(code == 0 && strstr(got, "line\n#SBATCH --evil\n--resume\n"), "exit %d: %s: %s", code,
           got, c.err);
}

int main(void)
{
    job_enter();
    check_mistakes();
    check_mpirun();
    check_spares();
    check_times();
    check_slurm_text();
    check_newline();
    check_containers();
    check_kubernetes();
    check_start();
    check_cluster();
    job_leave();
    return expect_finish();
}
