/* Kubernetes: an MPIJob (kubeflow.org/v2beta1) and the config as a ConfigMap. */
#include <string.h>

#include "launcher/jobs/internal.h"

#define CONFIG_FOLDER "/etc/weft-job"

/* A failed container of a pod is started again, whatever its exit code: what the next start would
 * meet again is only told again. The pod's /dev/shm outlives its containers. */
static const char recalling[] = "ended=/dev/shm/weft-ended-$HOSTNAME\n"
                                "if [ -r \"$ended\" ]; then exit \"$(cat \"$ended\")\"; fi\n",
                  ending[] = "case \"$code\" in 2 | 3 | 7 | 8) echo \"$code\" >\"$ended\" ;; esac\n"
                             "exit \"$code\"\n";

static void print_word(const char *word, FILE *out)
{
    fprintf(out, "            - ");
    weft_yaml_text(word, true, out);
    fputc('\n', out);
}

/* By a script of the ConfigMap, and with its config. */
static void print_command(const weft_job *job, FILE *out)
{
    char ranks[16], map[32];
    weft_job in_container = *job;
    in_container.config = CONFIG_FOLDER "/config.json";
    snprintf(ranks, sizeof ranks, "%d", job->num_nodes * job->ranks_per_node);
    snprintf(map, sizeof map, "ppr:%d:node", job->ranks_per_node);
    const char *words[] = {"bash",      CONFIG_FOLDER "/job.sh",
                           "mpirun",    "--allow-run-as-root",
                           "-n",        ranks,
                           "--map-by",  map,
                           "-x",        "PATH",
                           "--bind-to", "none"};
    fprintf(out, "            command:\n");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        print_word(words[i], out);
    if (job->gpus_per_node > 0) { /* NVIDIA's images set it, and sshd does not pass it on */
        print_word("-x", out);
        print_word("LD_LIBRARY_PATH", out);
    }
    weft_job_words(&in_container, print_word, out);
    fprintf(out, "            workingDir: ");
    weft_yaml_text(job->folder, false, out);
    fputc('\n', out);
}

static void print_indented(const char *text, FILE *out)
{
    while (*text) {
        const int length = (int)strcspn(text, "\n");
        fprintf(out, "    %.*s\n", length, text);
        text += length + 1;
    }
}

static void print_mounts(const weft_job *job, FILE *out)
{
    fprintf(out, "            volumeMounts:\n"
                 "            - name: config\n"
                 "              mountPath: " CONFIG_FOLDER "\n"
                 "            - name: shared-memory\n"
                 "              mountPath: /dev/shm\n"
                 "            - name: run\n"
                 "              mountPath: ");
    weft_yaml_text(job->run, false, out);
    fputc('\n', out);
    for (size_t i = 0; i < job->mounts.count; i++) {
        fprintf(out, "            - name: input-%zu\n              mountPath: ", i);
        weft_yaml_text(job->mounts.values[i], false, out);
        fprintf(out, "\n              readOnly: true\n");
    }
}

static void print_folder(const char *path, FILE *out)
{
    fprintf(out, "            hostPath:\n              path: ");
    weft_yaml_text(path, false, out);
    fprintf(out, "\n              type: Directory\n");
}

/* Ranks of a node talk through shared memory, of which containers have 64 MiB. */
static void print_volumes(const weft_job *job, const char *name, FILE *out)
{
    fprintf(out,
            "          volumes:\n"
            "          - name: config\n"
            "            configMap:\n"
            "              name: %s\n"
            "          - name: shared-memory\n"
            "            emptyDir:\n"
            "              medium: Memory\n"
            "          - name: run\n",
            name);
    if (job->claim)
        fprintf(out, "            persistentVolumeClaim:\n              claimName: \"%s\"\n",
                job->claim);
    else
        print_folder(job->run, out);
    for (size_t i = 0; i < job->mounts.count; i++) {
        fprintf(out, "          - name: input-%zu\n", i);
        print_folder(job->mounts.values[i], out);
    }
}

static void print_replica(const weft_job *job, const char *name, bool launches, FILE *out)
{
    fprintf(out,
            "    %s:\n"
            "      replicas: %d\n"
            "      restartPolicy: OnFailure\n"
            "      template:\n"
            "        spec:\n"
            "          terminationGracePeriodSeconds: %d\n"
            "          containers:\n"
            "          - name: %s\n"
            "            image: \"%s\"\n",
            launches ? "Launcher" : "Worker", launches ? 1 : job->num_nodes, job->stop_s + 30,
            launches ? "launcher" : "worker", job->image);
    if (launches) {
        print_command(job, out);
    } else {
        fprintf(out, "            command:\n"
                     "            - /usr/sbin/sshd\n"
                     "            args:\n"
                     "            - -De\n"
                     "            readinessProbe:\n"
                     "              tcpSocket:\n"
                     "                port: 22\n");
        fprintf(out, "            workingDir: ");
        weft_yaml_text(job->folder, false, out);
        fputc('\n', out);
        if (job->gpus_per_node > 0 || job->num_threads > 0)
            fprintf(out, "            resources:\n              limits:\n");
        if (job->gpus_per_node > 0)
            fprintf(out, "                nvidia.com/gpu: %d\n", job->gpus_per_node);
        if (job->num_threads > 0)
            fprintf(out, "                cpu: %d\n", job->num_threads * job->ranks_per_node);
    }
    print_mounts(job, out);
    print_volumes(job, name, out);
}

/* The job goes on by itself after a lost pod: its launcher starts again, and resumes. */
void weft_job_print_kubernetes(const weft_job *job, FILE *out)
{
    char name[WEFT_JOB_NAME_BYTES];
    weft_job_name(job->run, name);
    fprintf(out,
            "# Starts the run, or goes on with it: kubectl apply -f job.yaml\n"
            "apiVersion: v1\n"
            "kind: ConfigMap\n"
            "metadata:\n"
            "  name: %s\n"
            "data:\n"
            "  config.json: ",
            name);
    weft_yaml_block(job->config_text, 2, out);
    fprintf(out, "  job.sh: |\n");
    print_indented(recalling, out);
    print_indented(weft_job_passing, out);
    print_indented("\"$@\" </dev/null &\njob=$!\n", out);
    print_indented(weft_job_waiting, out);
    print_indented(ending, out);
    fprintf(out,
            "---\n"
            "apiVersion: kubeflow.org/v2beta1\n"
            "kind: MPIJob\n"
            "metadata:\n"
            "  name: %s\n"
            "spec:\n"
            "  slotsPerWorker: %d\n"
            "  mpiImplementation: OpenMPI\n"
            "  launcherCreationPolicy: WaitForWorkersReady\n"
            "  runPolicy:\n"
            "    cleanPodPolicy: Running\n"
            "    ttlSecondsAfterFinished: 600\n"
            "    backoffLimit: 10\n"
            "  mpiReplicaSpecs:\n",
            name, job->ranks_per_node);
    print_replica(job, name, true, out);
    print_replica(job, name, false, out);
}
