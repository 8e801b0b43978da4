#include "comm/watch/flight.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/json_write.h"

enum { PATH_BYTES = 4096 };

static void write_group(void *context, const weft_comm_place *p)
{
    weft_json_out *out = context;
    if (p->num_collectives + p->num_messages == 0)
        return;
    weft_json_open_flat(out, NULL, '{');
    weft_json_text(out, "group", p->group);
    weft_json_number(out, "first_rank", p->first_rank);
    weft_json_number(out, "size", p->size);
    weft_json_number(out, "rank", p->rank);
    weft_json_number(out, "collectives", (double)p->num_collectives);
    weft_json_number(out, "begun", (double)p->num_begun);
    weft_json_number(out, "messages", (double)p->num_messages);
    weft_json_close(out);
}

static void write_operation(weft_json_out *out, const weft_comm_record *r, double now_us)
{
    char doing[WEFT_DOING_TEXT_BYTES];
    const bool flies = r->end_us == 0 && !r->failed;
    weft_json_open_flat(out, NULL, '{');
    weft_json_text(out, "group", r->group);
    weft_json_number(out, "first_rank", r->first_rank);
    weft_json_number(out, "size", r->size);
    weft_json_text(out, "kind", r->kind);
    weft_json_number(out, "sequence", (double)r->sequence);
    weft_json_number(out, "bytes", (double)r->bytes);
    weft_json_text(out, "dtype", weft_dtype_text(r->dtype));
    if (r->peer >= 0)
        weft_json_number(out, "peer", r->peer);
    if (r->from >= 0)
        weft_json_number(out, "from", r->from);
    if (r->tag >= 0)
        weft_json_number(out, "tag", r->tag);
    weft_json_number(out, "step", (double)r->step);
    weft_json_text(out, "task", weft_doing_text(&r->doing, doing));
    weft_json_number(out, "began_s", (r->start_us - now_us) / 1e6);
    weft_json_text(out, "state", flies ? "in flight" : r->failed ? "failed" : "ended");
    if (r->end_us > 0)
        weft_json_number(out, "took_s", (r->end_us - r->start_us) / 1e6);
    weft_json_close(out);
}

static void write_operations(weft_json_out *out, const char *key, const weft_comm_record *records,
                             int count, double now_us)
{
    weft_json_open(out, key, '[');
    for (int i = 0; i < count; i++)
        write_operation(out, &records[i], now_us);
    weft_json_close(out);
}

static void write_record(FILE *file, int rank, const char *node, const weft_answer *own)
{
    /* One writer a process, once. */
    static weft_comm_record records[WEFT_COMM_MAX_RECORDS];
    const double now_us = weft_now_us();
    weft_json_out json = {.file = file}, *out = &json;
    weft_json_open(out, NULL, '{');
    weft_json_number(out, "rank", rank);
    weft_json_text(out, "node", node);
    weft_json_number(out, "pid", getpid());
    weft_json_number(out, "time", (double)time(NULL));
    weft_json_text(out, "phase", weft_watch_phase_text(own->phase));
    weft_json_number(out, "step", (double)own->step);
    weft_json_number(out, "phase_s", own->phase_s);
    weft_json_open(out, "groups", '[');
    weft_comm_each_place(write_group, out);
    weft_json_close(out);
    int count = weft_comm_records_in_flight(records, WEFT_COMM_MAX_RECORDS);
    write_operations(out, "in_flight", records, count, now_us);
    count = weft_comm_records(records, WEFT_FLIGHT_OPERATIONS);
    write_operations(out, "operations", records, count, now_us);
    weft_json_close(out);
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

static bool is_record(const char *name)
{
    return strncmp(name, "rank-", 5) == 0 || strcmp(name, "verdict.json") == 0;
}

/* Makes FOLDER/flight/last, or empties it. */
static void clear_last(const char *last)
{
    remove_link(last);
    DIR *all = mkdir(last, 0777) != 0 ? opendir(last) : NULL;
    for (const struct dirent *entry; all && (entry = readdir(all));)
        if (is_record(entry->d_name))
            unlinkat(dirfd(all), entry->d_name, 0);
    if (all)
        closedir(all);
}

void weft_flight_set_aside(const char *folder)
{
    char path[PATH_BYTES], to[PATH_BYTES + 8];
    int bytes = snprintf(path, sizeof path, "%s/flight", folder);
    const bool fits = bytes > 0 && bytes < PATH_BYTES - 300;
    bool found = false;
    if (fits)
        remove_link(path);
    DIR *all = fits ? opendir(path) : NULL;
    for (const struct dirent *entry; all && (entry = readdir(all));) {
        if (!is_record(entry->d_name))
            continue;
        snprintf(to, sizeof to, "%.*s/last", bytes, path);
        if (!found)
            clear_last(to);
        found = true;
        snprintf(path + bytes, sizeof path - (size_t)bytes, "/%s", entry->d_name);
        snprintf(to + bytes, sizeof to - (size_t)bytes, "/last/%s", entry->d_name);
        if (rename(path, to) != 0)
            unlink(path);
    }
    if (all)
        closedir(all);
}

/* One line, which job scripts read too. */
static void write_verdict(FILE *file, int rank, const weft_verdict *verdict,
                          const char *const *nodes)
{
    const int count =
        verdict->num_missing < WEFT_VERDICT_MISSING ? verdict->num_missing : WEFT_VERDICT_MISSING;
    weft_json_out json = {.file = file}, *out = &json;
    weft_json_open_flat(out, NULL, '{');
    weft_json_number(out, "by_rank", rank);
    weft_json_open_flat(out, "missing", '[');
    for (int i = 0; i < count; i++)
        weft_json_number(out, NULL, verdict->missing[i]);
    weft_json_close(out);
    weft_json_open_flat(out, "nodes", '[');
    for (int i = 0; nodes && i < count; i++)
        weft_json_text(out, NULL, nodes[verdict->missing[i]]);
    weft_json_close(out);
    if (verdict->place_at > 0)
        weft_json_text(out, "place", verdict->text + verdict->place_at);
    weft_json_text(out, "text", verdict->text);
    weft_json_close(out);
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
    write_verdict(out, rank, verdict, nodes);
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
