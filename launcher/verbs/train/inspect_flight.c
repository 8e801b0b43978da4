#include "launcher/verbs/train/train.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/json.h"
#include "launcher/report/report.h"

enum { MAX_RANKS = 1 << 20, GROUP_BYTES = 16 };

typedef struct flight {
    int rank;
    cJSON *json;
} flight;

/* A group by what its ranks tell alike. */
typedef struct group {
    char name[GROUP_BYTES];
    int first_rank, size;
} group;

typedef struct flights {
    const char *run;
    weft_arena arena;
    flight *at;
    int count;
    size_t capacity, group_capacity;
    bool is_before;      /* all are of the fault before the run's last start */
    const char *verdict; /* NULL: none */
    cJSON *verdict_json; /* NULL: none */
    group *groups;
    int num_groups;
    int num_damaged; /* files; `damage`: of the first */
    weft_error damage;
} flights;

/* --- reading --------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

/* -1: it is not there, or no number that a record has. */
static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < 1e15
               ? item->valuedouble
               : -1;
}

static weft_status parse(flights *f, const char *path, cJSON **out)
{
    char *text;
    weft_json_span root;
    weft_json_fault fault;
    WEFT_TRY(weft_file_read_text(path, &f->arena, &text, NULL));
    if (!weft_json_check(text, &root, &fault))
        return WEFT_ERROR(WEFT_FILE, "%s: damaged: %s", path, fault.reason);
    *out = cJSON_Parse(text);
    if (!cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        return WEFT_ERROR(WEFT_FILE, "%s: damaged: no object", path);
    }
    return WEFT_OK;
}

static weft_status add_record(flights *f, const char *path)
{
    cJSON *json;
    WEFT_TRY(parse(f, path, &json));
    const double rank = number_of(json, "rank");
    const bool good = rank >= 0 && rank < MAX_RANKS &&
                      cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(json, "groups")) &&
                      cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(json, "operations")) &&
                      cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(json, "in_flight"));
    const weft_status status =
        good ? WEFT_ARENA_GROW(&f->arena, f->at, f->capacity, (size_t)f->count + 1)
             : WEFT_ERROR(WEFT_FILE, "%s: damaged: no flight record", path);
    if (status != WEFT_OK)
        cJSON_Delete(json);
    else
        f->at[f->count++] = (flight){(int)rank, json};
    return status;
}

static weft_status add_verdict(flights *f, const char *path)
{
    cJSON *json;
    WEFT_TRY(parse(f, path, &json));
    f->verdict_json = json;
    return weft_arena_strdup(&f->arena, text_of(f->verdict_json, "text"), &f->verdict);
}

/* A damaged file hides no other. */
static weft_status note_damage(flights *f, weft_status status)
{
    if (status != WEFT_FILE)
        return status;
    if (f->num_damaged++ == 0)
        weft_error_take(&f->damage);
    weft_error_clear();
    return WEFT_OK;
}

static int compare_ranks(const void *a, const void *b)
{
    const flight *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static weft_status no_records(const char *folder)
{
    return WEFT_ERROR(WEFT_FILE,
                      "%s: no flight records there; ranks write them when a fault, or the limit "
                      "of what hangs, ends their job",
                      folder);
}

static weft_status read_entries(flights *f, const char *folder, DIR *all)
{
    const char *path;
    for (const struct dirent *entry; (entry = readdir(all));) {
        const size_t bytes = strlen(entry->d_name);
        const bool record = strncmp(entry->d_name, "rank-", 5) == 0 && bytes > 10 &&
                            strcmp(entry->d_name + bytes - 5, ".json") == 0;
        WEFT_TRY(weft_arena_printf(&f->arena, &path, "%s/%s", folder, entry->d_name));
        if (record)
            WEFT_TRY(note_damage(f, add_record(f, path)));
        else if (strcmp(entry->d_name, "verdict.json") == 0)
            WEFT_TRY(note_damage(f, add_verdict(f, path)));
    }
    return WEFT_OK;
}

/* A run without the folder has no records. */
static weft_status read_folder(flights *f, const char *folder)
{
    DIR *all = opendir(folder);
    if (!all)
        return errno == ENOENT && access(f->run, F_OK) == 0
                   ? WEFT_OK
                   : WEFT_ERROR(WEFT_FILE, "%s: %s", folder, strerror(errno));
    const weft_status status = read_entries(f, folder, all);
    closedir(all);
    return status;
}

/* Where the run's last start left none, those that it set aside. */
static weft_status read_run(flights *f)
{
    const char *folder, *last;
    WEFT_TRY(weft_arena_printf(&f->arena, &folder, "%s/flight", f->run));
    WEFT_TRY(weft_arena_printf(&f->arena, &last, "%s/last", folder));
    WEFT_TRY(read_folder(f, folder));
    f->is_before = f->count == 0 && f->num_damaged == 0 && !f->verdict_json;
    if (f->is_before)
        WEFT_TRY(read_folder(f, last));
    if (f->count == 0 && f->num_damaged > 0)
        return weft_error_put(&f->damage);
    if (f->count == 0)
        return no_records(folder);
    qsort(f->at, (size_t)f->count, sizeof *f->at, compare_ranks);
    return WEFT_OK;
}

/* --- groups ---------------------------------------------------------------------------------- */

/* -1: none that a rank may have. */
static int rank_of(const cJSON *item, const char *key)
{
    const double number = number_of(item, key);
    return number <= INT_MAX ? (int)number : -1;
}

static group group_of(const cJSON *item)
{
    group g = {.first_rank = rank_of(item, "first_rank"), .size = rank_of(item, "size")};
    snprintf(g.name, sizeof g.name, "%s", text_of(item, "group"));
    return g;
}

static bool is_group(const cJSON *item, const group *g)
{
    const group other = group_of(item);
    return other.first_rank == g->first_rank && other.size == g->size &&
           strcmp(other.name, g->name) == 0;
}

static const cJSON *find_group(const flight *at, const group *g)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(at->json, "groups"))
    {
        if (is_group(item, g))
            return item;
    }
    return NULL;
}

static weft_status list_groups(flights *f)
{
    for (int i = 0; i < f->count; i++) {
        const cJSON *item;
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(f->at[i].json, "groups"))
        {
            const group g = group_of(item);
            int j = 0;
            while (j < f->num_groups && !is_group(item, &f->groups[j]))
                j++;
            if (j < f->num_groups)
                continue;
            WEFT_TRY(WEFT_ARENA_GROW(&f->arena, f->groups, f->group_capacity,
                                     (size_t)f->num_groups + 1));
            f->groups[f->num_groups++] = g;
        }
    }
    return WEFT_OK;
}

/* The collective of that number, in a rank's latest operations; NULL: it is not there. */
static const cJSON *find_collective(const flight *at, const group *g, double sequence)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(at->json, "operations"))
    {
        if (number_of(item, "sequence") == sequence && is_group(item, g) &&
            !cJSON_HasObjectItem(item, "tag"))
            return item;
    }
    return NULL;
}

static bool is_alike(const cJSON *a, const cJSON *b)
{
    const bool rows = strncmp(text_of(a, "kind"), "all_to_all", 10) == 0;
    return strcmp(text_of(a, "kind"), text_of(b, "kind")) == 0 &&
           strcmp(text_of(a, "dtype"), text_of(b, "dtype")) == 0 &&
           (rows || number_of(a, "bytes") == number_of(b, "bytes"));
}

/* The first collective of a group that two ranks issued otherwise; false: none is known. */
static bool find_difference(const flights *f, const group *g, const cJSON *out[2], int out_rank[2])
{
    for (int i = 0; i < f->count; i++) {
        const cJSON *item;
        if (!find_group(&f->at[i], g))
            continue;
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(f->at[i].json, "operations"))
        {
            if (!is_group(item, g) || cJSON_HasObjectItem(item, "tag"))
                continue;
            for (int j = i + 1; j < f->count; j++) {
                const cJSON *other = find_collective(&f->at[j], g, number_of(item, "sequence"));
                if (!other || is_alike(item, other))
                    continue;
                out[0] = item;
                out[1] = other;
                out_rank[0] = f->at[i].rank;
                out_rank[1] = f->at[j].rank;
                return true;
            }
        }
        return false; /* the first member has been compared with all others */
    }
    return false;
}

/* --- printing -------------------------------------------------------------------------------- */

/* A rank that did not answer may still write its record, when the end of the job wakes it. */
static bool is_named(const flights *f, int rank)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(f->verdict_json, "missing"))
    {
        if (cJSON_IsNumber(item) && item->valuedouble == rank)
            return true;
    }
    return false;
}

static void print_rank(const flights *f, const flight *at, FILE *out)
{
    const cJSON *flies =
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(at->json, "in_flight"), 0);
    fprintf(out, "%6d  %-12.12s %-10.10s %6.0f %7.1f s  ", at->rank, text_of(at->json, "node"),
            text_of(at->json, "phase"), number_of(at->json, "step"),
            number_of(at->json, "phase_s"));
    if (flies)
        fprintf(out, "%s %.0f of %s%s%s", text_of(flies, "kind"), number_of(flies, "sequence"),
                text_of(flies, "group"), text_of(flies, "task")[0] ? ", " : "",
                text_of(flies, "task"));
    else
        fprintf(out, "-");
    fprintf(out, "%s\n", is_named(f, at->rank) ? "; the verdict names it" : "");
}

static void print_collective(const cJSON *item, int rank, FILE *out)
{
    fprintf(out, "rank %d %s of %.0f bytes %s", rank, text_of(item, "kind"),
            number_of(item, "bytes"), text_of(item, "dtype"));
}

static void print_group(const flights *f, const group *g, FILE *out)
{
    const cJSON *differ[2];
    int ranks[2], num_behind = 0;
    double most = -1;
    fprintf(out, "%-12s %5d  ", g->name, g->size);
    for (int i = 0; i < f->count; i++) {
        const cJSON *item = find_group(&f->at[i], g);
        const double begun = item ? number_of(item, "begun") : -1;
        if (item)
            fprintf(out, "%s%d:%.0f", most < 0 ? "" : " ", f->at[i].rank, begun);
        most = item && begun > most ? begun : most;
    }
    fprintf(out, "; behind:");
    for (int i = 0; i < f->count; i++) {
        const cJSON *item = find_group(&f->at[i], g);
        if (item && number_of(item, "begun") < most)
            fprintf(out, "%s %d", num_behind++ ? "," : "", f->at[i].rank);
    }
    fprintf(out, "%s", num_behind ? "" : " none");
    if (find_difference(f, g, differ, ranks)) {
        fprintf(out, "; %.0f differs: ", number_of(differ[0], "sequence"));
        print_collective(differ[0], ranks[0], out);
        fprintf(out, ", ");
        print_collective(differ[1], ranks[1], out);
    }
    fprintf(out, "\n");
}

/* Of the job's ranks, which the world's group tells. */
static void print_missing(const flights *f, FILE *out)
{
    int world = 0, num_missing = 0;
    for (int i = 0; i < f->num_groups; i++)
        if (strcmp(f->groups[i].name, "world") == 0 && f->groups[i].size <= MAX_RANKS)
            world = f->groups[i].size;
    for (int rank = 0, i = 0; rank < world; rank++) {
        while (i < f->count && f->at[i].rank < rank)
            i++;
        if (i < f->count && f->at[i].rank == rank)
            continue;
        fprintf(out, "%s %d", num_missing++ ? "," : "no whole record of rank", rank);
    }
    fprintf(out, "%s", num_missing ? "\n" : "");
}

static void print_table(const flights *f, FILE *out)
{
    if (f->is_before)
        fprintf(out, "of the fault before the last start (%s/flight/last):\n", f->run);
    if (f->verdict)
        fprintf(out, "%s\n\n", f->verdict);
    fprintf(out, "%6s  %-12s %-10s %6s %9s  %s\n", "rank", "node", "phase", "step", "for",
            "waits in");
    for (int i = 0; i < f->count; i++)
        print_rank(f, &f->at[i], out);
    print_missing(f, out);
    fprintf(out, "\n%-12s %5s  collectives that each rank has begun\n", "group", "ranks");
    for (int i = 0; i < f->num_groups; i++)
        print_group(f, &f->groups[i], out);
}

static weft_status print_json(const flights *f, FILE *out)
{
    weft_report r;
    weft_report_begin(&r, WEFT_REPORT_JSON);
    weft_report_text(&r, "verdict", NULL, f->verdict ? f->verdict : "");
    weft_report_bool(&r, "before_last_start", f->is_before);
    weft_report_open(&r, WEFT_REPORT_GROUP, "ranks");
    for (int i = 0; i < f->count; i++) {
        weft_report_record(&r);
        weft_report_members(&r, f->at[i].json);
    }
    weft_report_close(&r);
    return weft_report_end(&r, WEFT_OK, out);
}

weft_status weft_inspect_flight(const char *run, bool json, FILE *out)
{
    flights f = {.run = run};
    weft_status status = read_run(&f);
    if (status == WEFT_OK)
        status = list_groups(&f);
    if (status == WEFT_OK && json)
        status = print_json(&f, out);
    else if (status == WEFT_OK)
        print_table(&f, out);
    if (status == WEFT_OK && f.num_damaged > 0)
        status = weft_error_put(&f.damage);
    if (f.num_damaged > 1)
        status = weft_error_context(status, "the first of %d damaged files", f.num_damaged);
    for (int i = 0; i < f.count; i++)
        cJSON_Delete(f.at[i].json);
    cJSON_Delete(f.verdict_json);
    weft_arena_release(&f.arena);
    return status;
}
