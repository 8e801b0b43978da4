/* Kubernetes: an MPIJob (kubeflow.org/v2beta1) and the config as a ConfigMap. */
#include <cjson/cJSON.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "core/options/options.h"
#include "launcher/jobs/internal.h"

/* --- grammars ------------------------------------------------------------------------------
 *
 * What Kubernetes takes: names, amounts and fields by the grammars of its API, which would refuse
 * them when the job starts, or in its pods, where nobody looks. */

/* Of DNS (RFC 1123), in small letters. */
#define LABEL "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#define SUBDOMAIN LABEL "(\\." LABEL ")*"
/* Of container registries: HOST:PORT/FOLDER/NAME:TAG@DIGEST, of which NAME alone has to be there.
 */
#define HOST "[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?"
#define HOSTS HOST "(\\." HOST ")*(:[0-9]+)?/"
#define FOLDER "[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
#define TAG ":[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}"
#define DIGEST "@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
#define IMAGE "(" HOSTS ")?" FOLDER "(/" FOLDER ")*(" TAG ")?(" DIGEST ")?"
/* Of amounts: a number and a suffix. */
#define NUMBER "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)"
#define AMOUNT NUMBER "([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?"
/* Of labels and taints: a name, with a domain before it or none, and a value. */
#define LABEL_NAME "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
#define LABEL_KEY "(" SUBDOMAIN "/)?" LABEL_NAME
#define LABEL_VALUE "(" LABEL_NAME ")?"
/* What nodes have by themselves, and what plugins add. */
#define NATIVE "cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i"
#define PLUGIN SUBDOMAIN "/" LABEL_NAME

/* The whole text, of at most `most` bytes. */
static bool matches(const char *text, const char *pattern, size_t most)
{
    char whole[1024];
    regex_t regex;
    if (!text || strlen(text) > most)
        return false;
    snprintf(whole, sizeof whole, "^(%s)$", pattern);
    if (regcomp(&regex, whole, REG_EXTENDED | REG_NOSUB) != 0)
        return false; /* no memory */
    const bool does = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return does;
}

/* --- pairs --------------------------------------------------------------------------------- */

static bool names(const char *text, const char *name)
{
    const size_t length = strlen(name);
    return strncmp(text, name, length) == 0 && text[length] == '=';
}

/* Whether one of NAME=VALUE has this name. */
static bool job_has_pair(const weft_string_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (names(list->values[i], name))
            return true;
    return false;
}

/* Cuts NAME=VALUE, of which neither is empty. */
enum { NAME_BYTES = 320 };
static weft_status cut(const char *option, const char *text, const char *example,
                       char name[NAME_BYTES], const char **value)
{
    const size_t length = strcspn(text, "=");
    if (length == 0 || length >= NAME_BYTES || !text[length] || !text[length + 1])
        return WEFT_ERROR(WEFT_CONFIG, "--%s %.60s: expected such as --%s %s", option, text, option,
                          example);
    snprintf(name, NAME_BYTES, "%.*s", (int)length, text);
    *value = text + length + 1;
    return WEFT_OK;
}

static weft_status check_twice(const char *option, const weft_string_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        for (size_t k = 0; k < i; k++)
            if (strcspn(list->values[i], "=") == strcspn(list->values[k], "=") &&
                strncmp(list->values[i], list->values[k], strcspn(list->values[i], "=")) == 0)
                return WEFT_ERROR(WEFT_CONFIG, "--%s %.60s: given twice", option, list->values[i]);
    return WEFT_OK;
}

/* --- resources ----------------------------------------------------------------------------- */

/* Of an amount by the grammar. */
static double value_of(const char *amount)
{
    static const char suffixes[] = "numkKMGTPE";
    static const double tens[] = {1e-9, 1e-6, 1e-3, 1e3, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18};
    char *end;
    double value = strtod(amount, &end);
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;
    if (!suffix)
        return value;
    if (end[1] != 'i')
        return value * tens[suffix - suffixes];
    for (const char *s = strchr(suffixes, 'K'); s <= suffix; s++)
        value *= 1024;
    return value;
}

/* Fewer bytes hold no process: the suffix is missing, or is m, which means a thousandth. */
enum { LEAST_MEMORY_BYTES = 1 << 20 };

static weft_status check_resource(const char *text)
{
    char name[NAME_BYTES];
    const char *amount;
    WEFT_TRY(cut("resource", text, "memory=512Gi", name, &amount));
    const bool is_native = matches(name, NATIVE, 63);
    if (!is_native && !matches(name, PLUGIN, 253 + 64))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--resource %.60s: no resource is named so; cpu, memory, "
                          "ephemeral-storage and hugepages-2Mi are, and a plugin's such as "
                          "rdma/hca",
                          text);
    if (!is_native && !matches(amount, "[0-9]+", 18))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--resource %.60s: a plugin's resources are counted: "
                          "expected a whole number",
                          text);
    if (!matches(amount, AMOUNT, 32))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--resource %.60s: no amount; expected a number such as 64, 500m, 512G "
                          "(10^9) or 512Gi (2^30)",
                          text);
    if (strcmp(name, "memory") == 0 && value_of(amount) < LEAST_MEMORY_BYTES)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--resource %.60s: %.3g bytes are no memory; expected such as 512Gi",
                          text, value_of(amount));
    return WEFT_OK;
}

/* --- fields of pods ------------------------------------------------------------------------ */

/* PodSpec's, as the MPIJob's schema has them, but the job's own. */
static const struct {
    const char *name;
    char kind; /* object, array, text, whole number, bool: by the first letter */
} fields[] = {
    {"activeDeadlineSeconds", 'w'},
    {"affinity", 'o'},
    {"automountServiceAccountToken", 'b'},
    {"dnsConfig", 'o'},
    {"dnsPolicy", 't'},
    {"enableServiceLinks", 'b'},
    {"ephemeralContainers", 'a'},
    {"hostAliases", 'a'},
    {"hostIPC", 'b'},
    {"hostNetwork", 'b'},
    {"hostPID", 'b'},
    {"hostUsers", 'b'},
    {"hostname", 't'},
    {"hostnameOverride", 't'},
    {"imagePullSecrets", 'a'},
    {"initContainers", 'a'},
    {"nodeName", 't'},
    {"nodeSelector", 'o'},
    {"os", 'o'},
    {"overhead", 'o'},
    {"preemptionPolicy", 't'},
    {"priority", 'w'},
    {"priorityClassName", 't'},
    {"readinessGates", 'a'},
    {"resourceClaims", 'a'},
    {"resources", 'o'},
    {"runtimeClassName", 't'},
    {"schedulerName", 't'},
    {"schedulingGates", 'a'},
    {"securityContext", 'o'},
    {"serviceAccount", 't'},
    {"serviceAccountName", 't'},
    {"setHostnameAsFQDN", 'b'},
    {"shareProcessNamespace", 'b'},
    {"subdomain", 't'},
    {"tolerations", 'a'},
    {"topologySpreadConstraints", 'a'},
    {"workloadRef", 'o'},
};
enum { NUM_FIELDS = sizeof fields / sizeof *fields };

static weft_status find_field(const char *name, char *out_kind)
{
    const char *all[NUM_FIELDS];
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        all[i] = fields[i].name;
        *out_kind = fields[i].kind;
        if (strcmp(fields[i].name, name) == 0)
            return WEFT_OK;
    }
    const char *nearest = weft_nearest_name(name, all, NUM_FIELDS);
    return WEFT_ERROR(WEFT_CONFIG, "--pod %.60s: pods have no such field%s%s%s", name,
                      nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

/* The kind's first letter, and where no value of the kind stands, what to write. */
static bool is_kind(const cJSON *json, char kind, const char **out_expected)
{
    switch (kind) {
    case 'o':
        *out_expected = "a JSON object, such as {\"gpu\": \"h100\"}";
        return cJSON_IsObject(json);
    case 'a':
        *out_expected = "a JSON array, such as [{\"name\": \"registry\"}]";
        return cJSON_IsArray(json);
    case 'b':
        *out_expected = "true or false";
        return cJSON_IsBool(json);
    case 'w':
        *out_expected = "a whole number";
        return cJSON_IsNumber(json) && json->valuedouble == (double)json->valueint;
    default: /* what is no JSON is a text too */
        *out_expected = "a text; in JSON's quotes where it looks like something else";
        return !json || cJSON_IsString(json);
    }
}

/* What stands inside of fields, by its path: a text by a grammar, of at most so many bytes, or
 * where there is none, an object. The first row counts. */
#define ITEM "\\[[0-9]+\\]"
#define BELOW "(\\..*)?\\."
#define NEVER "x^" /* no text */
static const char name_text[] = "a name of a-z, 0-9, - and .",
                  label_text[] = "1 to 63 of a-z, 0-9 and -",
                  key_text[] = "a text such as gpu or example.com/gpu",
                  value_text[] =
                      "a text in JSON's quotes of at most 63 letters, digits, -, _ and .";
static const struct {
    const char *path, *grammar, *expected;
    size_t most;
} values[] = {
    {"nodeSelector\\." LABEL_KEY, LABEL_VALUE, value_text, 63},
    {"nodeSelector\\..*", NEVER, "a key such as gpu or example.com/gpu", 63},
    {"(priorityClass|runtimeClass|serviceAccount|node)Name|serviceAccount|imagePullSecrets" ITEM
     "\\.name",
     SUBDOMAIN, name_text, 253},
    {"hostname|subdomain", LABEL, label_text, 63},
    {"dnsPolicy", "ClusterFirst(WithHostNet)?|Default|None",
     "ClusterFirst, ClusterFirstWithHostNet, Default or None", 63},
    {"preemptionPolicy", "PreemptLowerPriority|Never", "PreemptLowerPriority or Never", 63},
    {"(tolerations|imagePullSecrets)" ITEM, NULL, "an object", 0},
    {"tolerations" ITEM "\\.operator", "(Exists|Equal)?", "Exists or Equal", 63},
    {"tolerations" ITEM "\\.effect", "(NoSchedule|PreferNoSchedule|NoExecute)?",
     "NoSchedule, PreferNoSchedule or NoExecute", 63},
    {"tolerations" ITEM "\\.key", "(" LABEL_KEY ")?", key_text, 253 + 64},
    {"tolerations" ITEM "\\.value", LABEL_VALUE, value_text, 63},
    {"affinity\\.nodeAffinity" BELOW "operator", "In|NotIn|Exists|DoesNotExist|Gt|Lt",
     "In, NotIn, Exists, DoesNotExist, Gt or Lt", 63},
    {"(affinity|topologySpreadConstraints" ITEM ")" BELOW "operator",
     "In|NotIn|Exists|DoesNotExist", "In, NotIn, Exists or DoesNotExist", 63},
    {"(affinity|topologySpreadConstraints" ITEM ")" BELOW "(key|topologyKey)", LABEL_KEY, key_text,
     253 + 64},
    {"(affinity|topologySpreadConstraints" ITEM ")" BELOW "(values" ITEM "|matchLabels\\..*)",
     LABEL_VALUE, value_text, 63},
};

static weft_status check_value(const cJSON *value, const char *path)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (!matches(path, values[i].path, 1024))
            continue;
        if (values[i].grammar
                ? matches(cJSON_GetStringValue(value), values[i].grammar, values[i].most)
                : cJSON_IsObject(value))
            break;
        char *is = cJSON_PrintUnformatted(value);
        const weft_status status = WEFT_ERROR(WEFT_CONFIG, "--pod %.200s: %.60s; expected %s", path,
                                              is ? is : "that", values[i].expected);
        free(is);
        return status;
    }
    int index = 0;
    for (const cJSON *v = value->child; v; v = v->next, index++) {
        char inner[1024];
        if (v->string)
            snprintf(inner, sizeof inner, "%s.%s", path, v->string);
        else
            snprintf(inner, sizeof inner, "%s[%d]", path, index);
        WEFT_TRY(check_value(v, inner));
    }
    return WEFT_OK;
}

static weft_status check_field(const weft_job *job, const char *text)
{
    static const char *const own[] = {"containers", "volumes", "restartPolicy",
                                      "terminationGracePeriodSeconds"};
    char name[NAME_BYTES], kind;
    const char *value, *end = NULL, *expected;
    WEFT_TRY(cut("pod", text, "priorityClassName=high", name, &value));
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        if (strcmp(name, own[k]) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "--pod %s: the job has it", own[k]);
    if (job->kubernetes.user >= 0 && strcmp(name, "securityContext") == 0)
        return WEFT_ERROR(WEFT_CONFIG, "--pod securityContext: --user says it");
    WEFT_TRY(find_field(name, &kind));
    cJSON *json = cJSON_ParseWithOpts(value, &end, true);
    const bool is_damaged = !json && strchr("{[\"", *value);
    const bool fits = !is_damaged && is_kind(json, kind, &expected);
    if (fits && !json)
        json = cJSON_CreateString(value); /* as which it is written */
    const weft_status status = fits && json ? check_value(json, name) : WEFT_OK;
    cJSON_Delete(json);
    if (status != WEFT_OK)
        return status;
    if (is_damaged)
        return WEFT_ERROR(WEFT_CONFIG, "--pod %s: damaged JSON at its character %d: \"%.30s\"",
                          name, (int)(end - value) + 1, end);
    return fits ? WEFT_OK : WEFT_ERROR(WEFT_CONFIG, "--pod %.60s: expected %s", text, expected);
}

/* --- the job ------------------------------------------------------------------------------- */

static weft_status check_names(const weft_job_kubernetes *kubernetes)
{
    const struct {
        const char *name, *value, *grammar, *expected;
        size_t most;
    } rows[] = {
        {"image", kubernetes->image, IMAGE, "such as registry.example:5000/team/weft:1", 511},
        {"namespace", kubernetes->name_space, LABEL, "1 to 63 of a-z, 0-9 and -", 63},
        {"queue", kubernetes->queue, SUBDOMAIN, "1 to 63 of a-z, 0-9, - and .", 63},
        {"claim", kubernetes->claim, SUBDOMAIN, "1 to 253 of a-z, 0-9, - and .", 253},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value && !matches(rows[i].value, rows[i].grammar, rows[i].most))
            return WEFT_ERROR(WEFT_CONFIG, "--%s %.60s: no name that Kubernetes takes; expected %s",
                              rows[i].name, rows[i].value, rows[i].expected);
    return WEFT_OK;
}

static weft_status check_utf8(const char *name, const char *text)
{
    return !text || weft_is_utf8(text)
               ? WEFT_OK
               : WEFT_ERROR(WEFT_CONFIG, "%.300s: not UTF-8, which YAML is", name);
}

/* A path that a volume is mounted at. */
static weft_status check_mount(const char *path)
{
    const size_t bytes = strlen(path);
    if (strchr(path, ':'))
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: Kubernetes mounts no path with a colon", path);
    if (strstr(path, "/../") || (bytes >= 3 && strcmp(path + bytes - 3, "/..") == 0))
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: Kubernetes mounts no path with ..", path);
    return check_utf8(path, path);
}

static weft_status check_texts(const weft_job *job)
{
    WEFT_TRY(check_utf8(job->program, job->program));
    WEFT_TRY(check_utf8(job->folder, job->folder));
    WEFT_TRY(check_utf8(job->config, job->kubernetes.config_text));
    WEFT_TRY(check_utf8(job->setup, job->setup_text));
    const weft_string_list *const lists[] = {&job->environment, &job->settings,
                                             &job->kubernetes.pod};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        for (size_t i = 0; i < lists[k]->count; i++)
            WEFT_TRY(check_utf8(lists[k]->values[i], lists[k]->values[i]));
    return WEFT_OK;
}

/* The API server takes no larger ConfigMap. */
enum { MOST_CONFIG_BYTES = 1000000 };

weft_status weft_job_check_kubernetes(const weft_job *job)
{
    if (!job->kubernetes.image)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--image IMAGE is missing: the image of a container that has %s, "
                          "mpirun and sshd",
                          job->program);
    WEFT_TRY(check_names(&job->kubernetes));
    if (strlen(job->kubernetes.config_text) > MOST_CONFIG_BYTES)
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: larger than the %d bytes of a ConfigMap",
                          job->config, MOST_CONFIG_BYTES);
    WEFT_TRY(check_texts(job));
    for (size_t i = 0; i < job->kubernetes.resources.count; i++)
        WEFT_TRY(check_resource(job->kubernetes.resources.values[i]));
    for (size_t i = 0; i < job->kubernetes.pod.count; i++)
        WEFT_TRY(check_field(job, job->kubernetes.pod.values[i]));
    WEFT_TRY(check_twice("resource", &job->kubernetes.resources));
    WEFT_TRY(check_twice("pod", &job->kubernetes.pod));
    WEFT_TRY(check_mount(job->run));
    for (size_t i = 0; i < job->mounts.count; i++)
        WEFT_TRY(check_mount(job->mounts.values[i]));
    return WEFT_OK;
}

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
    if (!launches && job->num_nodes > 1 && !job_has_pair(&job->kubernetes.pod, "affinity"))
        print_apart(name, out);
    for (size_t i = 0; i < job->kubernetes.pod.count; i++)
        print_field(job->kubernetes.pod.values[i], out);
}

static void print_limit(const weft_job *job, const char *name, int amount, FILE *out)
{
    if (amount > 0 && !job_has_pair(&job->kubernetes.resources, name))
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
