#include "comm/watch/flight.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "core/clock.h"
#include "core/file.h"

enum { PATH_BYTES = 4096 };

/* Texts are names of groups, machines and tasks; a verdict has no quotes. */
static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fputc('\\', out);
        if (c >= ' ')
            fputc(c, out);
    }
    fputc('"', out);
}

typedef struct group_list {
    FILE *out;
    int count;
} group_list;

static void write_group(void *context, const weft_comm_place *p)
{
    group_list *list = context;
    FILE *out = list->out;
    if (p->num_collectives + p->num_messages == 0)
        return;
    fprintf(out, "%s\n  {\"group\": ", list->count++ ? "," : "");
    write_text(out, p->group);
    fprintf(out,
            ", \"first_rank\": %d, \"size\": %d, \"rank\": %d, \"collectives\": %" PRIu64
            ", \"begun\": %" PRIu64 ", \"messages\": %" PRIu64 "}",
            p->first_rank, p->size, p->rank, p->num_collectives, p->num_begun, p->num_messages);
}

static void write_operation(FILE *out, const weft_comm_record *r, double now_us, bool first)
{
    char doing[WEFT_DOING_TEXT_BYTES];
    const bool flies = r->end_us == 0 && !r->failed;
    fprintf(out, "%s\n  {\"group\": ", first ? "" : ",");
    write_text(out, r->group);
    fprintf(out, ", \"first_rank\": %d, \"size\": %d, \"kind\": ", r->first_rank, r->size);
    write_text(out, r->kind);
    fprintf(out, ", \"sequence\": %" PRIu64 ", \"bytes\": %zu, \"dtype\": \"%s\"", r->sequence,
            r->bytes, weft_dtype_text(r->dtype));
    if (r->peer >= 0)
        fprintf(out, ", \"peer\": %d", r->peer);
    if (r->from >= 0)
        fprintf(out, ", \"from\": %d", r->from);
    if (r->tag >= 0)
        fprintf(out, ", \"tag\": %d", r->tag);
    fprintf(out, ", \"step\": %" PRId64 ", \"task\": ", r->step);
    write_text(out, weft_doing_text(&r->doing, doing));
    fprintf(out, ", \"began_s\": %.6f, \"state\": \"%s\"", (r->start_us - now_us) / 1e6,
            flies       ? "in flight"
            : r->failed ? "failed"
                        : "ended");
    if (r->end_us > 0)
        fprintf(out, ", \"took_s\": %.6f", (r->end_us - r->start_us) / 1e6);
    fputc('}', out);
}

static void write_operations(FILE *out)
{
    /* One writer a process, once. */
    static weft_comm_record records[WEFT_COMM_MAX_RECORDS];
    const double now_us = weft_now_us();
    int count = weft_comm_records_in_flight(records, WEFT_COMM_MAX_RECORDS);
    fprintf(out, " \"in_flight\": [");
    for (int i = 0; i < count; i++)
        write_operation(out, &records[i], now_us, i == 0);
    fprintf(out, "],\n \"operations\": [");
    count = weft_comm_records(records, WEFT_FLIGHT_OPERATIONS);
    for (int i = 0; i < count; i++)
        write_operation(out, &records[i], now_us, i == 0);
    fprintf(out, "]");
}

static void write_record(FILE *out, int rank, const char *node, const weft_answer *own)
{
    fprintf(out, "{\"rank\": %d, \"node\": ", rank);
    write_text(out, node);
    fprintf(out,
            ", \"pid\": %d, \"time\": %lld, \"phase\": \"%s\", \"step\": %" PRId64
            ", \"phase_s\": %.3f,\n \"groups\": [",
            (int)getpid(), (long long)time(NULL), weft_watch_phase_text(own->phase), own->step,
            own->phase_s);
    group_list list = {.out = out};
    weft_comm_each_place(write_group, &list);
    fprintf(out, "],\n");
    write_operations(out);
    fprintf(out, "}\n");
}

/* A link of that name goes, and what it leads to stays as it is. */
static void remove_link(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        unlink(path);
}

/* FOLDER/flight/NAME, made where FOLDER is there. */
static bool make_path(const char *folder, const char *name, char path[PATH_BYTES])
{
    int bytes = snprintf(path, PATH_BYTES, "%s/flight", folder);
    if (bytes < 0 || bytes + 64 > PATH_BYTES)
        return false;
    remove_link(path);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return false;
    snprintf(path + bytes, (size_t)(PATH_BYTES - bytes), "/%s", name);
    return true;
}

bool weft_flight_write(const char *folder, int rank, const char *node, const weft_answer *own)
{
    char path[PATH_BYTES], partial[PATH_BYTES + 16], name[48];
    snprintf(name, sizeof name, "rank-%d.json", rank);
    if (!make_path(folder, name, path))
        return false;
    snprintf(partial, sizeof partial, "%s.partial", path);
    FILE *out = weft_file_create(partial);
    if (!out)
        return false;
    write_record(out, rank, node, own);
    bool good = !ferror(out);
    good = fclose(out) == 0 && good;
    good = good && rename(partial, path) == 0;
    if (!good)
        unlink(partial);
    return good;
}

void weft_flight_clear(const char *folder)
{
    char path[PATH_BYTES];
    int bytes = snprintf(path, sizeof path, "%s/flight", folder);
    const bool fits = bytes > 0 && bytes < PATH_BYTES - 300;
    if (fits)
        remove_link(path);
    DIR *all = fits ? opendir(path) : NULL;
    for (const struct dirent *entry; all && (entry = readdir(all));) {
        if (strncmp(entry->d_name, "rank-", 5) != 0 && strcmp(entry->d_name, "verdict.json") != 0)
            continue;
        snprintf(path + bytes, sizeof path - (size_t)bytes, "/%s", entry->d_name);
        unlink(path);
    }
    if (all)
        closedir(all);
}

bool weft_flight_claim(const char *folder, int64_t since, int rank, const weft_verdict *verdict,
                       const char *const *nodes)
{
    char path[PATH_BYTES];
    if (!make_path(folder, "verdict.json", path))
        return true;
    struct stat info;
    if (lstat(path, &info) == 0 && (S_ISLNK(info.st_mode) || (int64_t)info.st_mtime < since))
        unlink(path); /* an earlier job's */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno != EEXIST;
    FILE *out = fdopen(fd, "w");
    if (!out) {
        close(fd);
        return true;
    }
    fprintf(out, "{\"by_rank\": %d, \"missing\": [", rank);
    for (int i = 0; i < verdict->num_missing && i < WEFT_VERDICT_MISSING; i++)
        fprintf(out, "%s%d", i ? ", " : "", verdict->missing[i]);
    fprintf(out, "], \"nodes\": [");
    for (int i = 0; nodes && i < verdict->num_missing && i < WEFT_VERDICT_MISSING; i++) {
        fputs(i ? ", " : "", out);
        write_text(out, nodes[verdict->missing[i]]);
    }
    fprintf(out, "], ");
    if (verdict->place_at > 0) {
        fprintf(out, "\"place\": ");
        write_text(out, verdict->text + verdict->place_at);
        fprintf(out, ", ");
    }
    fprintf(out, "\"text\": ");
    write_text(out, verdict->text);
    fprintf(out, "}\n");
    fclose(out);
    return true;
}

weft_watch_mark weft_watch_mark_verdict(const char *folder)
{
    char path[PATH_BYTES];
    struct stat info;
    const int bytes = snprintf(path, sizeof path, "%s/flight/verdict.json", folder);
    if (bytes < 0 || bytes >= PATH_BYTES || stat(path, &info) != 0)
        return (weft_watch_mark){0};
    return (weft_watch_mark){info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

/* Whether a list of numbers, up to its bracket, has this one. */
static bool has_number(const char *list, int wanted)
{
    char *end;
    for (;; list = end + strspn(end, ", ")) {
        const long number = strtol(list, &end, 10);
        if (end == list)
            return false;
        if (number == wanted)
            return true;
    }
}

bool weft_watch_find_killed(const char *folder, const weft_watch_mark *old, int rank, char *out,
                            size_t bytes)
{
    static const char missing_key[] = "\"missing\": [", place_key[] = "\"place\": \"";
    char path[PATH_BYTES], text[2048];
    const weft_watch_mark now = weft_watch_mark_verdict(folder);
    if (now.file == 0 || (now.file == old->file && now.s == old->s && now.ns == old->ns))
        return false;
    snprintf(path, sizeof path, "%s/flight/verdict.json", folder);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *missing = strstr(text, missing_key), *place = strstr(text, place_key);
    if (!missing || !place || !has_number(missing + strlen(missing_key), rank))
        return false;
    place += strlen(place_key);
    snprintf(out, bytes, "%.*s", (int)strcspn(place, "\"\n"), place);
    return true;
}
