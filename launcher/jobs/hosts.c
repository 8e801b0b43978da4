/* The names of nodes: lists with ranges, and the host files of other launchers. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/file.h"
#include "launcher/jobs/internal.h"

enum { MOST_HOSTS = 100000, MOST_NAME_BYTES = 255 };

/* Where names gather, with a comma between, and who is asked about a mistake. */
typedef struct host_names {
    const char *where; /* "--hosts", or a file and its line */
    FILE *out;
    weft_job_hosts *hosts; /* but for its names */
} host_names;

static weft_status no_name(const host_names *names, const char *text, int length)
{
    const bool is_ipv6 = memchr(text, ':', (size_t)length) != NULL;
    return WEFT_ERROR(
        WEFT_CONFIG, "%s: \"%.*s\" is no name of a host%s", names->where, length > 80 ? 80 : length,
        text, is_ipv6 ? ": Open MPI takes no IPv6 address as one; name it in /etc/hosts" : "");
}

static weft_status add_name(host_names *names, const char *name)
{
    const int length = (int)strlen(name);
    if (length > MOST_NAME_BYTES || !weft_job_is_word(name, "._-"))
        return no_name(names, name, length);
    if (names->hosts->count == MOST_HOSTS)
        return WEFT_ERROR(WEFT_CONFIG, "%s: more than %d hosts", names->where, MOST_HOSTS);
    fprintf(names->out, "%s%s", names->hosts->count++ ? "," : "", name);
    return WEFT_OK;
}

/* "01-16" or "20", up to `end`; its digits are the least that a number gets. */
static bool read_range(const char **text, const char *end, long *low, long *high, int *digits)
{
    char *after;
    *digits = (int)strspn(*text, "0123456789");
    if (*digits == 0 || *digits > 9)
        return false;
    *low = *high = strtol(*text, &after, 10);
    if (*after == '-') {
        const size_t more = strspn(after + 1, "0123456789");
        if (more == 0 || more > 9 || (after[1] == '0' && more != (size_t)*digits))
            return false;
        *high = strtol(after + 1, &after, 10);
    }
    *text = after;
    return *high >= *low && after <= end && (*after == ',' || after == end);
}

static weft_status add_item(host_names *names, const char *item);

/* A range's numbers in place of the first brackets of an item. */
static weft_status add_numbers(host_names *names, const char *item, const char *open,
                               const char *close)
{
    for (const char *at = open + 1;; at++) {
        long low, high;
        int digits;
        if (!read_range(&at, close, &low, &high, &digits))
            return WEFT_ERROR(WEFT_CONFIG, "%s: %.80s: expected numbers as in node[01-16,20]",
                              names->where, item);
        for (long i = low; i <= high; i++) {
            char name[MOST_NAME_BYTES + 2];
            const int length = snprintf(name, sizeof name, "%.*s%0*ld%s", (int)(open - item), item,
                                        digits, i, close + 1);
            if (length >= (int)sizeof name)
                return no_name(names, item, (int)strlen(item));
            WEFT_TRY(add_item(names, name));
        }
        if (at == close)
            return WEFT_OK;
    }
}

static weft_status add_item(host_names *names, const char *item)
{
    const char *open = strchr(item, '['), *close = open ? strchr(open, ']') : NULL;
    if (!close || *item == '[')
        return add_name(names, item);
    return add_numbers(names, item, open, close);
}

/* Up to the comma that no brackets hold. */
static size_t item_length(const char *text)
{
    size_t length = 0;
    for (bool inside = false; text[length] && (inside || text[length] != ','); length++)
        inside = text[length] == '[' || (inside && text[length] != ']');
    return length;
}

static weft_status add_list(host_names *names, const char *text)
{
    for (;;) {
        const size_t length = item_length(text);
        char item[1024];
        if (length >= sizeof item)
            return no_name(names, text, (int)length);
        snprintf(item, sizeof item, "%.*s", (int)length, text);
        WEFT_TRY(add_item(names, item));
        if (!text[length])
            return WEFT_OK;
        text += length + 1;
    }
}

/* Of 1 to 65536; 0: no such number. */
static int read_slots(const char *text)
{
    char *end;
    const long value = strtol(text, &end, 10);
    return end != text && (*end == '\0' || isspace((unsigned char)*end)) && value > 0 &&
                   value <= 65536
               ? (int)value
               : 0;
}

/* "slots=8", or what else a word behind a name may be. */
static bool read_word(const char *word, int *slots)
{
    static const char *const keys[] = {"slots=", "max_slots=", "max-slots=", "binding="};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strncmp(word, keys[i], strlen(keys[i])) == 0) {
            if (i > 0)
                return true;
            if (*slots > 0)
                return false; /* said twice */
            *slots = read_slots(word + strlen(keys[i]));
            return *slots > 0;
        }
    return false;
}

/* A line of Open MPI's and DeepSpeed's files (NAME slots=N), of MPICH's (NAME:N), or a name. */
static weft_status add_line(host_names *names, char *line)
{
    weft_job_hosts *hosts = names->hosts;
    char *rest = NULL;
    int slots = 0;
    line[strcspn(line, "#")] = '\0';
    char *name = strtok_r(line, " \t\r", &rest);
    if (!name)
        return WEFT_OK;
    char *colon = strchr(name, ':');
    if (colon && !strchr(colon + 1, ':') && strspn(colon + 1, "0123456789") > 0) {
        slots = read_slots(colon + 1);
        if (slots == 0)
            return WEFT_ERROR(WEFT_CONFIG, "%s: \"%.60s\": expected NAME:N, N of 1 to 65536",
                              names->where, name);
        *colon = '\0';
    }
    for (char *word; (word = strtok_r(NULL, " \t\r", &rest));)
        if (!read_word(word, &slots))
            return WEFT_ERROR(
                WEFT_CONFIG,
                "%s: \"%.60s\": expected NAME, NAME slots=N or NAME:N, N of 1 to 65536, once",
                names->where, word);
    if (hosts->count == 0 || slots < hosts->least_slots)
        hosts->least_slots = slots;
    if (slots > hosts->most_slots)
        hosts->most_slots = slots;
    return add_item(names, name);
}

static weft_status add_file(host_names *names, const char *file, weft_arena *arena)
{
    char *text, *rest, where[400];
    WEFT_TRY(weft_file_read_text(file, arena, &text, NULL));
    names->where = where;
    int number = 1;
    for (char *line = text; line; line = rest, number++) {
        rest = strchr(line, '\n');
        if (rest)
            *rest++ = '\0';
        snprintf(where, sizeof where, "%.300s:%d", file, number);
        WEFT_TRY(add_line(names, line));
    }
    names->where = file;
    return names->hosts->count > 0 ? WEFT_OK : WEFT_ERROR(WEFT_CONFIG, "%s: names no host", file);
}

static int compare_names(const void *a, const void *b)
{
    return strcasecmp(*(const char *const *)a, *(const char *const *)b);
}

/* A node twice would get the ranks of two. */
static weft_status check_twice(const host_names *names, const char *list, weft_arena *arena)
{
    const char *copy;
    char **sorted, *rest = NULL;
    int n = 0;
    WEFT_TRY(weft_arena_strdup(arena, list, &copy));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)names->hosts->count, &sorted));
    for (char *name = strtok_r((char *)copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        sorted[n++] = name;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_names);
    for (int i = 1; i < n; i++)
        if (compare_names(&sorted[i - 1], &sorted[i]) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "%s: %s is there twice", names->where, sorted[i]);
    return WEFT_OK;
}

weft_status weft_job_read_hosts(const char *list, const char *file, weft_arena *arena,
                                weft_job_hosts *out)
{
    weft_new_text text;
    weft_job_hosts hosts = {.option = file ? "hostfile" : "hosts"};
    WEFT_TRY(weft_new_text_open(&text));
    host_names names = {"--hosts", text.file, &hosts};
    const weft_status status = file ? add_file(&names, file, arena) : add_list(&names, list);
    WEFT_TRY(weft_new_text_close(&text, status, arena, &hosts.names));
    WEFT_TRY(check_twice(&names, hosts.names, arena));
    *out = hosts;
    return WEFT_OK;
}
