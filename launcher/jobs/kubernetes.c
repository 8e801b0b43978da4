/* Kubernetes: an MPIJob (kubeflow.org/v2beta1) and the config as a ConfigMap. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "launcher/jobs/internal.h"

#define CONFIG_FOLDER "/etc/weft-job"
/* Pods that share their node's network, or have no root, cannot listen on 22. */
#define PORT "2222"

/* --- the job ------------------------------------------------------------------------------- */

/* A failed container of a pod is started again, whatever its exit code: what the next start would
 * meet again is only told again. The pod's /dev/shm outlives its containers. */
static const char recalling[] =
    "weft_ended=/dev/shm/weft-ended-$HOSTNAME\n"
    "if [ -r \"$weft_ended\" ]; then exit \"$(cat \"$weft_ended\")\"; fi\n",
                  ending[] =
                      "case \"$code\" in 2 | 3 | 7 | 8) echo \"$code\" >\"$weft_ended\" ;; esac\n"
                      "exit \"$code\"\n";

static void print_word(const char *word, FILE *out)
{
    fprintf(out, "            - ");
    weft_yaml_text(word, true, out);
    fputc('\n', out);
}

/* Where the operator puts the keys of a job that is not root's: root's lie in its own folder, with
 * modes that ssh takes there alone. */
#define KEYS_FOLDER "/etc/weft-keys"

/* By a script of the ConfigMap, and with its config. Pods are new at each start: nobody knows their
 * hosts' keys. */
static void print_command(const weft_job *job, FILE *out)
{
    char ranks[16], map[32], ssh[256];
    const char *key = job->kubernetes.user > 0 ? "-i " KEYS_FOLDER "/id_rsa " : "";
    weft_job in_container = *job;
    in_container.config = CONFIG_FOLDER "/config.json";
    snprintf(ranks, sizeof ranks, "%d", job->num_nodes * job->ranks_per_node);
    snprintf(map, sizeof map, "ppr:%d:node", job->ranks_per_node);
    snprintf(ssh, sizeof ssh,
             "-p " PORT " %s-o ConnectionAttempts=10 -o StrictHostKeyChecking=no "
             "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
             key);
    const char *words[] = {"bash",
                           CONFIG_FOLDER "/job.sh",
                           "mpirun",
                           "-n",
                           ranks,
                           "--map-by",
                           map,
                           "--bind-to",
                           "none",
                           "--mca",
                           "plm_rsh_args",
                           ssh};
    fprintf(out, "            command:\n");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        print_word(words[i], out);
    if (job->kubernetes.user <= 0)
        print_word("--allow-run-as-root", out);
    weft_job_words(&in_container, print_word, out);
    fprintf(out, "            workingDir: ");
    weft_yaml_text(job->folder, false, out);
    fputc('\n', out);
}

static void print_launcher_script(const weft_job *job, FILE *out)
{
    fputs(recalling, out);
    weft_job_print_setup(job, job->setup ? CONFIG_FOLDER "/setup.sh" : NULL, out);
    fputs("options=() run=", out);
    weft_shell_word(job->run, out);
    fputc('\n', out);
    weft_job_print_passed(job, out);
    fputs("env \"${environment[@]}\" \"$1\" \"${options[@]}\" \"${@:2}\" </dev/null &\njob=$!\n",
          out);
    fputs(weft_job_waiting, out);
    fputs(ending, out);
}

/* sshd gives those who come none of the container's variables, and mpirun looks for its daemon. */
static void print_worker_script(const weft_job *job, FILE *out)
{
    fprintf(out,
            "key=$(mktemp -d)/key\n"
            "ssh-keygen -q -t ed25519 -N '' -f \"$key\" || exit\n"
            "if [ \"$(id -u)\" -eq 0 ]; then mkdir -p /run/sshd; fi\n"
            "exec /usr/sbin/sshd -De -f /dev/null -p " PORT
            " -h \"$key\" -o PidFile=none -o StrictModes=no -o PasswordAuthentication=no \\\n"
            "    %s-o \"SetEnv=\\\"PATH=$PATH\\\" \\\"LD_LIBRARY_PATH=$LD_LIBRARY_PATH\\\"\"\n",
            job->kubernetes.user > 0 ? "-o AuthorizedKeysFile=" KEYS_FOLDER "/authorized_keys "
                                     : "");
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
            "              name: \"%s\"\n"
            "          - name: shared-memory\n"
            "            emptyDir:\n"
            "              medium: Memory\n"
            "          - name: run\n",
            name);
    if (job->kubernetes.claim)
        fprintf(out, "            persistentVolumeClaim:\n              claimName: \"%s\"\n",
                job->kubernetes.claim);
    else
        print_folder(job->run, out);
    for (size_t i = 0; i < job->mounts.count; i++) {
        fprintf(out, "          - name: input-%zu\n", i);
        print_folder(job->mounts.values[i], out);
    }
}

/* Two workers on a node would halve its network; one node alone still takes a job of two. */
static void print_apart(const char *name, FILE *out)
{
    fprintf(out,
            "          affinity:\n"
            "            podAntiAffinity:\n"
            "              preferredDuringSchedulingIgnoredDuringExecution:\n"
            "              - weight: 100\n"
            "                podAffinityTerm:\n"
            "                  topologyKey: kubernetes.io/hostname\n"
            "                  labelSelector:\n"
            "                    matchLabels:\n"
            "                      training.kubeflow.org/job-name: \"%s\"\n"
            "                      training.kubeflow.org/job-role: worker\n",
            name);
}

/* What is JSON is that, as which YAML reads it too; all else is a text. */
static void print_field(const char *text, FILE *out)
{
    const char *value = strchr(text, '=') + 1;
    cJSON *json = cJSON_ParseWithOpts(value, NULL, true);
    char *line = json ? cJSON_PrintUnformatted(json) : NULL;
    fprintf(out, "          %.*s: ", (int)(value - 1 - text), text);
    if (line)
        fputs(line, out);
    else
        weft_yaml_text(value, false, out);
    fputc('\n', out);
    free(line);
    cJSON_Delete(json);
}

static void print_pod(const weft_job *job, const char *name, bool launches, FILE *out)
{
    fprintf(out, "          terminationGracePeriodSeconds: %d\n", job->stop_s + 30);
    if (job->kubernetes.user == 0)
        fprintf(out, "          securityContext:\n            runAsUser: 0\n");
    if (job->kubernetes.user > 0)
        fprintf(out,
                "          securityContext:\n"
                "            runAsUser: %d\n"
                "            runAsNonRoot: true\n"
                "            fsGroup: %d\n",
                job->kubernetes.user, job->kubernetes.user);
    if (!launches && job->num_nodes > 1 && !weft_job_has_pair(&job->kubernetes.pod, "affinity"))
        print_apart(name, out);
    for (size_t i = 0; i < job->kubernetes.pod.count; i++)
        print_field(job->kubernetes.pod.values[i], out);
}

static void print_limit(const weft_job *job, const char *name, int amount, FILE *out)
{
    if (amount > 0 && !weft_job_has_pair(&job->kubernetes.resources, name))
        fprintf(out, "                %s: %d\n", name, amount);
}

static void print_resources(const weft_job *job, FILE *out)
{
    if (job->gpus_per_node == 0 && job->num_threads == 0 && job->kubernetes.resources.count == 0)
        return;
    fprintf(out, "            resources:\n              limits:\n");
    print_limit(job, "nvidia.com/gpu", job->gpus_per_node, out);
    print_limit(job, "cpu", job->num_threads * job->ranks_per_node, out);
    for (size_t i = 0; i < job->kubernetes.resources.count; i++) {
        const char *text = job->kubernetes.resources.values[i], *amount = strchr(text, '=') + 1;
        fprintf(out, "                %.*s: \"%s\"\n", (int)(amount - 1 - text), text, amount);
    }
}

static void print_replica(const weft_job *job, const char *name, bool launches, FILE *out)
{
    fprintf(out,
            "    %s:\n"
            "      replicas: %d\n"
            "      restartPolicy: OnFailure\n"
            "      template:\n"
            "        spec:\n",
            launches ? "Launcher" : "Worker", launches ? 1 : job->num_nodes);
    print_pod(job, name, launches, out);
    fprintf(out,
            "          containers:\n"
            "          - name: %s\n"
            "            image: \"%s\"\n",
            launches ? "launcher" : "worker", job->kubernetes.image);
    if (launches) {
        print_command(job, out);
    } else {
        fprintf(out, "            command:\n"
                     "            - bash\n"
                     "            - " CONFIG_FOLDER "/worker.sh\n"
                     "            readinessProbe:\n"
                     "              tcpSocket:\n"
                     "                port: " PORT "\n");
        fprintf(out, "            workingDir: ");
        weft_yaml_text(job->folder, false, out);
        fputc('\n', out);
        print_resources(job, out);
    }
    print_mounts(job, out);
    print_volumes(job, name, out);
}

static weft_status print_script(const weft_job *job, void (*print)(const weft_job *job, FILE *out),
                                FILE *out)
{
    char *text = NULL;
    size_t bytes;
    FILE *script = open_memstream(&text, &bytes);
    if (script)
        print(job, script);
    if (!script || fclose(script) != 0) {
        free(text);
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the job's scripts");
    }
    weft_yaml_block(text, 2, out);
    free(text);
    return WEFT_OK;
}

static weft_status print_files(const weft_job *job, FILE *out)
{
    fputs("data:\n  config.json: ", out);
    weft_yaml_block(job->kubernetes.config_text, 2, out);
    if (job->setup) {
        fputs("  setup.sh: ", out);
        weft_yaml_block(job->setup_text, 2, out);
    }
    fputs("  job.sh: ", out);
    WEFT_TRY(print_script(job, print_launcher_script, out));
    fputs("  worker.sh: ", out);
    return print_script(job, print_worker_script, out);
}

static void print_names(const weft_job *job, const char *name, FILE *out)
{
    fprintf(out, "metadata:\n  name: \"%s\"\n", name);
    if (job->kubernetes.name_space)
        fprintf(out, "  namespace: \"%s\"\n", job->kubernetes.name_space);
}

/* The job goes on by itself after a lost pod: its launcher starts again, and resumes. */
weft_status weft_job_print_kubernetes(const weft_job *job, FILE *out)
{
    char name[WEFT_JOB_NAME_BYTES];
    weft_job_name(job->run, name);
    fputs("# Starts the run, or goes on with it: kubectl apply -f job.yaml\n"
          "apiVersion: v1\n"
          "kind: ConfigMap\n",
          out);
    print_names(job, name, out);
    WEFT_TRY(print_files(job, out));
    fputs("---\n"
          "apiVersion: kubeflow.org/v2beta1\n"
          "kind: MPIJob\n",
          out);
    print_names(job, name, out);
    if (job->kubernetes.queue)
        fprintf(out, "  labels:\n    kueue.x-k8s.io/queue-name: \"%s\"\n", job->kubernetes.queue);
    fprintf(out,
            "spec:\n"
            "  slotsPerWorker: %d\n"
            "  mpiImplementation: OpenMPI\n"
            "%s"
            "  launcherCreationPolicy: WaitForWorkersReady\n"
            "  runPolicy:\n"
            "    cleanPodPolicy: Running\n"
            "    ttlSecondsAfterFinished: 600\n"
            "    backoffLimit: 10\n",
            job->ranks_per_node,
            job->kubernetes.user > 0 ? "  sshAuthMountPath: " KEYS_FOLDER "\n" : "");
    if (job->kubernetes.queue) /* of Volcano and of scheduler plugins */
        fprintf(out, "    schedulingPolicy:\n      queue: \"%s\"\n", job->kubernetes.queue);
    fputs("  mpiReplicaSpecs:\n", out);
    print_replica(job, name, true, out);
    print_replica(job, name, false, out);
    return WEFT_OK;
}
