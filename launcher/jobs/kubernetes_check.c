/* What Kubernetes takes: names, amounts and fields by the grammars of its API, which would refuse
 * them when the job starts, or in its pods, where nobody looks. */
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/options/options.h"
#include "launcher/jobs/internal.h"

/* --- grammars ------------------------------------------------------------------------------ */

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
/* What nodes have by themselves, and what plugins add. */
#define NATIVE "cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i"
#define PLUGIN SUBDOMAIN "/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

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

bool weft_job_has_pair(const weft_string_list *list, const char *name)
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
#define LABEL_VALUE "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
static const char name_text[] = "a name of a-z, 0-9, - and .",
                  label_text[] = "1 to 63 of a-z, 0-9 and -",
                  any_text[] = "a text in JSON's quotes";
static const struct {
    const char *path, *grammar, *expected;
    size_t most;
} values[] = {
    {"nodeSelector\\..*", LABEL_VALUE,
     "a text in JSON's quotes of at most 63 letters, digits, -, _ and .", 63},
    {"(priorityClass|runtimeClass|serviceAccount)Name|serviceAccount|imagePullSecrets" ITEM
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
    {"tolerations" ITEM "\\.(key|value)", ".*", any_text, 253 + 64},
    {"affinity\\.nodeAffinity" BELOW "operator", "In|NotIn|Exists|DoesNotExist|Gt|Lt",
     "In, NotIn, Exists, DoesNotExist, Gt or Lt", 63},
    {"(affinity|topologySpreadConstraints)" BELOW "operator", "In|NotIn|Exists|DoesNotExist",
     "In, NotIn, Exists or DoesNotExist", 63},
    {"(affinity|topologySpreadConstraints)" BELOW "values" ITEM, ".*", any_text, 253 + 64},
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
