/* The output of nccl-tests: out-of-place times of collectives over sizes, of one run or several.
 *
 * A run's ranks stand above its table with their hosts, and with split communicators their groups.
 * A group on one host measures what is inside a node; groups with one rank a host what is between
 * nodes. Of a group over several hosts with several ranks each only the all-to-all counts, by what
 * leaves a node: the rest mixes both links. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "launcher/measuring/import_internal.h"
#include "launcher/measuring/measure.h"

enum { MAX_RANKS = 16384, MAX_ROWS = 1024, MAX_COLUMNS = 24 };

typedef enum test_kind {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    SEND_RECEIVE,
    OTHER,
    NUM_TESTS,
    UNKNOWN = NUM_TESTS
} test_kind;

/* Longer names before those that they contain. */
static const struct {
    const char *name;
    test_kind test;
} tests[] = {{"all_reduce_perf", ALL_REDUCE},
             {"all_gather_perf", ALL_GATHER},
             {"reduce_scatter_perf", REDUCE_SCATTER},
             {"alltoall_perf", ALL_TO_ALL},
             {"sendrecv_perf", SEND_RECEIVE},
             {"reduce_perf", OTHER},
             {"broadcast_perf", OTHER},
             {"gather_perf", OTHER},
             {"scatter_perf", OTHER},
             {"hypercube_perf", OTHER}};

static const struct {
    const char *text;
    weft_cost_kind inside, between;
} costs[OTHER] = {
    [ALL_REDUCE] = {"all-reduce", WEFT_COST_ALL_REDUCE, WEFT_COST_ALL_REDUCE_BETWEEN},
    [ALL_GATHER] = {"all-gather", WEFT_COST_ALL_GATHER, WEFT_COST_ALL_GATHER_BETWEEN},
    [REDUCE_SCATTER] = {"reduce-scatter", WEFT_COST_REDUCE_SCATTER,
                        WEFT_COST_REDUCE_SCATTER_BETWEEN},
    [ALL_TO_ALL] = {"all-to-all", WEFT_COST_ALL_TO_ALL_INSIDE, WEFT_COST_ALL_TO_ALL},
    [SEND_RECEIVE] = {"messages", WEFT_COST_MESSAGE_INSIDE, WEFT_COST_MESSAGE},
};

typedef struct a_rank {
    int group, host;
} a_rank;

typedef struct table_row {
    double bytes, us, algbw, busbw;
    int line;
} table_row;

typedef struct reader {
    weft_import *import;
    const char *file;
    int line;
    weft_arena *arena;
    test_kind test; /* by its name, of the table to come */
    a_rank *ranks;
    int num_ranks, num_hosts;
    char (*hosts)[64];
    char device[64];
    /* The table: columns from 0; -1: none. */
    bool in_table;
    int size, redop, root, time, algbw, busbw, wrong_in_place, columns;
    bool is_old; /* before tests said which of their forms they do not check */
    bool reduces, has_root, in_place_unchecked, out_of_place_unchecked;
    table_row *rows;
    int num_rows, num_tables;
    int num_alone;                 /* tables of one rank */
    int most_hosts, most_per_host; /* of all runs */
} reader;

/* --- lines --------------------------------------------------------------------------------- */

/* "#  Rank  0 Group  0 Pid  1234 on  node01 device  0 [0x07] NVIDIA A100-SXM4-80GB" */
static weft_status read_rank(reader *r, const weft_import_lines *lines)
{
    char word[WEFT_IMPORT_WORD_BYTES], before[WEFT_IMPORT_WORD_BYTES] = "";
    size_t at = 0;
    int rank = -1, group = 0, host = -1;
    while (weft_import_next_word(lines, &at, word)) {
        if (strcmp(before, "Rank") == 0 && !weft_import_count(word, MAX_RANKS - 1, &rank))
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: Rank \"%.40s\": not from 0 to %d", r->file,
                              r->line, word, MAX_RANKS - 1);
        if (strcmp(before, "Group") == 0 && !weft_import_count(word, MAX_RANKS - 1, &group))
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: Group \"%.40s\": not from 0 to %d", r->file,
                              r->line, word, MAX_RANKS - 1);
        if (strcmp(before, "on") == 0 && host < 0) {
            for (host = 0; host < r->num_hosts && strncmp(r->hosts[host], word, 63) != 0; host++)
                ;
            if (host == r->num_hosts)
                snprintf(r->hosts[r->num_hosts++], sizeof *r->hosts, "%.63s", word);
        }
        if (*before == '[' && host >= 0 && !r->device[0]) { /* the card's name, to its end */
            const size_t start = at - strlen(word);
            size_t bytes = lines->bytes - start;
            bytes = bytes < sizeof r->device ? bytes : sizeof r->device - 1;
            while (bytes > 0 && isspace((unsigned char)lines->line[start + bytes - 1]))
                bytes--;
            snprintf(r->device, sizeof r->device, "%.*s", (int)bytes, lines->line + start);
        }
        snprintf(before, sizeof before, "%s", word);
    }
    if (rank != r->num_ranks || host < 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: not the line of rank %d with its host", r->file,
                          r->line, r->num_ranks);
    r->ranks[r->num_ranks++] = (a_rank){group, host};
    return WEFT_OK;
}

static weft_status read_header(reader *r, const weft_import_lines *lines)
{
    char word[WEFT_IMPORT_WORD_BYTES];
    size_t at = 0;
    int column = 0, wrongs = 0;
    r->size = r->redop = r->root = r->time = r->algbw = r->busbw = r->wrong_in_place = -1;
    if (strcmp(weft_import_next_word(lines, &at, word) ? word : "", "#") != 0)
        at = 0; /* some logs have lost it */
    for (; weft_import_next_word(lines, &at, word); column++) {
        if (strcmp(word, "size") == 0)
            r->size = column;
        else if (strcmp(word, "redop") == 0)
            r->redop = column;
        else if (strcmp(word, "root") == 0)
            r->root = column;
        else if (strcmp(word, "time") == 0 && r->time < 0)
            r->time = column;
        else if (strcmp(word, "algbw") == 0 && r->algbw < 0)
            r->algbw = column;
        else if (strcmp(word, "busbw") == 0 && r->busbw < 0)
            r->busbw = column;
        else if ((strcmp(word, "#wrong") == 0 || strcmp(word, "error") == 0) && ++wrongs == 2)
            r->wrong_in_place = column;
    }
    if (r->size < 0 || r->time < 0 || r->algbw < 0 || r->busbw < 0 || column > MAX_COLUMNS)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: a table without size, time, algbw and busbw",
                          r->file, r->line);
    r->columns = column;
    r->is_old = !weft_import_line_has(lines, "#wrong");
    r->in_table = true;
    r->num_rows = 0;
    r->num_tables++;
    r->reduces = r->has_root = r->in_place_unchecked = r->out_of_place_unchecked = false;
    return WEFT_OK;
}

static weft_status bad_cell(const reader *r, const char *name, const char *word)
{
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %s \"%.40s\" is no number above 0", r->file, r->line,
                      name, word);
}

/* What a test found wrong stands behind each busbw: a count, in old tests an error up to 1e-5. Its
 * times are of what did not do its work. */
static weft_status check_wrong(const reader *r, const char *word)
{
    double wrong;
    if (!weft_import_number(word, &wrong) || wrong <= (r->is_old ? 1e-2 : 0))
        return WEFT_OK; /* N/A, too */
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: #wrong is %.40s: the test calls its own results wrong",
                      r->file, r->line, word);
}

static weft_status read_row(reader *r, const weft_import_lines *lines)
{
    char words[MAX_COLUMNS][WEFT_IMPORT_WORD_BYTES];
    size_t at = 0;
    int count = 0;
    table_row *row = &r->rows[r->num_rows];
    while (count < r->columns && weft_import_next_word(lines, &at, words[count]))
        count++;
    /* Old tests that add nothing up leave the column empty. */
    const int empty = count + 1 == r->columns && r->redop >= 0 && r->redop < r->time;
    if (count + empty != r->columns)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %s, the table has %d", r->file, r->line,
                          weft_count_text(count, "column").text, r->columns);
    if (empty) {
        memmove(words + r->redop + 1, words + r->redop, sizeof *words * (size_t)(count - r->redop));
        snprintf(words[r->redop], sizeof *words, "none");
        count++;
    }
    if (!weft_import_number(words[r->size], &row->bytes) || row->bytes < 0)
        return bad_cell(r, "size", words[r->size]);
    if (row->bytes == 0)
        return WEFT_OK;
    if (!weft_import_number(words[r->time], &row->us) || row->us <= 0)
        return bad_cell(r, "time", words[r->time]);
    if (!weft_import_number(words[r->algbw], &row->algbw))
        return bad_cell(r, "algbw", words[r->algbw]);
    if (!weft_import_number(words[r->busbw], &row->busbw))
        return bad_cell(r, "busbw", words[r->busbw]);
    if (r->busbw + 1 < count)
        WEFT_TRY(check_wrong(r, words[r->busbw + 1]));
    if (r->wrong_in_place >= 0 && r->wrong_in_place < count)
        WEFT_TRY(check_wrong(r, words[r->wrong_in_place]));
    if (r->redop >= 0)
        r->reduces = strcmp(words[r->redop], "none") != 0;
    if (r->root >= 0)
        r->has_root = words[r->root][0] != '-';
    r->out_of_place_unchecked = r->busbw + 1 < count && strcmp(words[r->busbw + 1], "N/A") == 0;
    r->in_place_unchecked = r->wrong_in_place >= 0 && r->wrong_in_place < count &&
                            strcmp(words[r->wrong_in_place], "N/A") == 0;
    row->line = r->line;
    if (r->num_rows + 1 == MAX_ROWS)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d sizes", r->file, r->line, MAX_ROWS);
    r->num_rows++;
    return WEFT_OK;
}

/* --- which test it is ---------------------------------------------------------------------- */

static test_kind named_in(const weft_import_lines *lines)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (weft_import_line_has(lines, tests[i].name))
            return tests[i].test;
    return UNKNOWN;
}

/* Without a name: by what it adds up, and by the factor between its two bandwidths. Tests that
 * have no in-place form do not check it. */
static test_kind guess(const reader *r, int ranks)
{
    const table_row *largest = NULL;
    for (int i = 0; i < r->num_rows; i++)
        if (!largest || r->rows[i].algbw > largest->algbw)
            largest = &r->rows[i];
    if (!largest || !(largest->algbw >= 1) || ranks < 2 || r->has_root)
        return UNKNOWN;
    const double factor = largest->busbw / largest->algbw, part = (ranks - 1.0) / ranks;
    const bool whole = fabs(factor - 1) < 0.02, shared = fabs(factor - part) < 0.02,
               twice = fabs(factor - 2 * part) < 0.02;
    if (r->reduces)
        return twice ? ALL_REDUCE : shared ? REDUCE_SCATTER : UNKNOWN;
    if (r->out_of_place_unchecked)
        return UNKNOWN;
    if (r->in_place_unchecked)
        return shared ? ALL_TO_ALL : whole ? SEND_RECEIVE : UNKNOWN;
    return shared && !r->is_old ? ALL_GATHER : UNKNOWN;
}

static weft_status find_test(const reader *r, int ranks, test_kind *out)
{
    const char *slash = strrchr(r->file, '/'), *name = slash ? slash + 1 : r->file;
    const weft_import_lines path = {.line = name, .bytes = strlen(name)};
    *out = r->test;
    if (*out == UNKNOWN)
        *out = guess(r, ranks);
    if (*out == UNKNOWN)
        *out = named_in(&path);
    if (*out != UNKNOWN)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s:%d: which test this is, it does not tell: name the file after it, such "
                      "as all_gather_perf.txt",
                      r->file, r->rows[0].line);
}

/* --- what it measured ---------------------------------------------------------------------- */

/* How the groups lie on hosts; all are alike. */
typedef struct shape {
    int ranks;    /* of a group */
    int near;     /* of a group on one host */
    int per_host; /* of all groups together */
} shape;

static int by_group(const void *a, const void *b)
{
    const a_rank *x = a, *y = b;
    return x->group != y->group ? (x->group > y->group) - (x->group < y->group)
                                : (x->host > y->host) - (x->host < y->host);
}

/* False: groups differ from each other. */
static bool find_shape(reader *r, shape *out)
{
    *out = (shape){0};
    if (r->num_ranks % r->num_hosts != 0)
        return false;
    out->per_host = r->num_ranks / r->num_hosts;
    if (r->num_ranks > 0)
        qsort(r->ranks, (size_t)r->num_ranks, sizeof *r->ranks, by_group);
    for (int i = 0; i < r->num_ranks;) {
        int group = i, host = i;
        for (; i < r->num_ranks && r->ranks[i].group == r->ranks[group].group; i++)
            if (r->ranks[i].host != r->ranks[host].host) {
                if (out->near > 0 && i - host != out->near)
                    return false;
                out->near = i - host;
                host = i;
            }
        if ((out->near > 0 && i - host != out->near) || (out->ranks > 0 && i - group != out->ranks))
            return false;
        out->near = i - host;
        out->ranks = i - group;
    }
    return true;
}

typedef struct point {
    double volume, us;
    int line;
} point;

static int by_volume(const void *a, const void *b)
{
    const point *x = a, *y = b;
    return (x->volume > y->volume) - (x->volume < y->volume);
}

/* Rising volumes, repeated ones by their mean, and as many as a curve has. */
static void make_curve(point *points, int count, weft_curve *out)
{
    int unique = 0;
    qsort(points, (size_t)count, sizeof *points, by_volume);
    for (int i = 0; i < count;) {
        const int first = i;
        double sum = 0;
        for (; i < count && points[i].volume == points[first].volume; i++)
            sum += points[i].us;
        points[unique] = points[first];
        points[unique++].us = sum / (i - first);
    }
    const int most = unique < WEFT_CURVE_MAX_POINTS ? unique : WEFT_CURVE_MAX_POINTS;
    out->num_points = most;
    for (int i = 0; i < most; i++) {
        const point *p = &points[most > 1 ? (int)((int64_t)i * (unique - 1) / (most - 1)) : 0];
        out->volume[i] = p->volume;
        out->time_us[i] = p->us;
    }
    weft_measure_make_rise(out);
}

static weft_status add_curve(reader *r, weft_cost_kind kind, double share, const shape *s)
{
    weft_import *import = r->import;
    weft_cost cost = {0};
    double least, most;
    char key[72];
    weft_cost_bounds(kind, &least, &most);
    point *points;
    WEFT_TRY(WEFT_ARRAY(r->arena, (size_t)r->num_rows, &points));
    for (int i = 0; i < r->num_rows; i++) {
        const table_row *row = &r->rows[i];
        points[i] = (point){row->bytes * share, row->us, row->line};
        const double rate = points[i].volume / (row->us * 1e-6);
        if (rate > most)
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %g bytes in %g us: no link is so fast", r->file,
                              row->line, row->bytes, row->us);
        cost.peak = rate > cost.peak ? rate : cost.peak;
    }
    if (cost.peak < least)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: at most %g bytes/s: no link is so slow", r->file,
                          r->rows[r->num_rows - 1].line, cost.peak);
    make_curve(points, r->num_rows, &cost.curve);
    import->cluster.costs[kind] = cost;
    import->curve_ranks[kind] = s->per_host;
    import->curve_files[kind] = r->file;
    snprintf(key, sizeof key, "costs.%s", weft_cost_text(kind));
    return weft_import_source(import, key, WEFT_SOURCE_MEASURED, r->file);
}

static weft_status place_table(reader *r, test_kind test, const shape *s)
{
    const bool inside = s->near == s->ranks, mixed = !inside && s->near > 1;
    if (test == OTHER) {
        weft_import_note(r->import,
                         "%s:%d: a test of which a cluster's file has no curve: left out", r->file,
                         r->rows[0].line);
        return WEFT_OK;
    }
    if (s->ranks < 2 || (mixed && test != ALL_TO_ALL)) {
        weft_import_note(r->import, "%s: %s of groups of %d, %d a node%s: left out", r->file,
                         costs[test].text, s->ranks, s->near,
                         mixed ? ", mix links inside and between nodes" : "");
        return WEFT_OK;
    }
    /* Of an all-to-all what goes to others counts, or beyond the node. */
    const double share =
        test == ALL_TO_ALL ? (double)(s->ranks - (inside ? 1 : s->near)) / s->ranks : 1;
    return add_curve(r, inside ? costs[test].inside : costs[test].between, share, s);
}

static weft_status end_table(reader *r)
{
    shape s;
    test_kind test;
    if (!r->in_table)
        return WEFT_OK;
    r->in_table = false;
    if (r->num_rows == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: a table without sizes above 0", r->file, r->line);
    if (r->num_ranks == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: no lines with the ranks and their hosts above it",
                          r->file, r->rows[0].line);
    if (!find_shape(r, &s)) {
        weft_import_note(r->import,
                         "%s:%d: groups of ranks that lie differently on nodes: left out", r->file,
                         r->rows[0].line);
        return WEFT_OK;
    }
    if (r->num_ranks == 1) { /* whatever it tested, no link */
        r->num_alone++;
        r->test = UNKNOWN;
        weft_import_note(r->import, "%s:%d: one rank alone: left out", r->file, r->rows[0].line);
        return WEFT_OK;
    }
    r->most_hosts = r->num_hosts > r->most_hosts ? r->num_hosts : r->most_hosts;
    r->most_per_host = s.per_host > r->most_per_host ? s.per_host : r->most_per_host;
    WEFT_TRY(find_test(r, s.ranks, &test));
    r->test = UNKNOWN;
    return place_table(r, test, &s);
}

/* --- the file ------------------------------------------------------------------------------ */

/* What launchers put before a line: "[1,0]<stdout>:" (mpirun --tag-output), "0: " (srun -l). */
static size_t label_bytes(const weft_import_lines *lines)
{
    const char *at = lines->line, *end = at + lines->bytes;
    const bool tagged = at < end && *at == '[';
    at += tagged;
    const char *digits = at;
    while (at < end && (isdigit((unsigned char)*at) || (tagged && *at == ',')))
        at++;
    if (at == digits || at == end)
        return 0;
    if (!tagged)
        return *at == ':' && at + 1 < end && at[1] == ' ' ? (size_t)(at + 2 - lines->line) : 0;
    while (at < end && *at != ':' && !isspace((unsigned char)*at))
        at++;
    return at < end && *at == ':' && at[-1] == '>' ? (size_t)(at + 1 - lines->line) : 0;
}

static weft_status read_line(reader *r, const weft_import_lines *whole)
{
    weft_import_lines rest = *whole, *lines = &rest;
    const size_t label = label_bytes(whole);
    rest.line += label;
    rest.bytes -= label;
    char first[WEFT_IMPORT_WORD_BYTES], second[WEFT_IMPORT_WORD_BYTES] = "";
    size_t at = 0;
    const test_kind named = named_in(lines);
    if (!weft_import_next_word(lines, &at, first))
        return WEFT_OK;
    (void)weft_import_next_word(lines, &at, second);
    if (*first != '#' && isdigit((unsigned char)*first) && r->in_table)
        return read_row(r, lines);
    if (weft_import_line_has(lines, "Out of bounds values") &&
        weft_import_line_has(lines, "FAILED"))
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: the test says that it FAILED", r->file, r->line);
    const bool comment = strcmp(first, "#") == 0;
    const bool is_rank = strcmp(comment ? second : first, "Rank") == 0;
    const bool is_header =
        weft_import_line_has(lines, " algbw ") && weft_import_line_has(lines, "size ");
    if (named != UNKNOWN || is_rank || is_header)
        WEFT_TRY(end_table(r));
    if (named != UNKNOWN)
        r->test = named;
    if (is_header)
        return read_header(r, lines);
    if (!is_rank)
        return WEFT_OK;
    if (r->num_tables > 0) { /* of the next run */
        r->num_tables = 0;
        r->num_ranks = r->num_hosts = 0;
    }
    if (r->num_ranks == MAX_RANKS)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d ranks", r->file, r->line, MAX_RANKS);
    return read_rank(r, lines);
}

/* What a test ran on is not what a cluster has, where a cluster's file tells that. */
static void tell_counts(const reader *r)
{
    const weft_cluster *cluster = &r->import->cluster;
    if (r->most_hosts > 1 && (cluster->num_nodes == 0 || r->import->has_nodes))
        weft_import_nodes(r->import, r->file, r->most_hosts);
    if (r->most_per_host > 1 && (cluster->ranks_per_node == 0 || r->import->has_ranks))
        weft_import_ranks(r->import, r->file, r->most_per_host);
}

static weft_status read_all(reader *r, const char *text)
{
    weft_import_lines lines = {.file = r->file, .next = text};
    int num_tables = 0;
    while (weft_import_next_line(&lines)) {
        r->line = lines.number;
        const int before = r->num_tables;
        WEFT_TRY(read_line(r, &lines));
        num_tables += r->num_tables > before;
    }
    WEFT_TRY(end_table(r));
    if (num_tables == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: no table of sizes", r->file, r->line);
    if (num_tables > 1 && r->num_alone == num_tables)
        return WEFT_ERROR(
            WEFT_CONFIG, "%s:%d: %d tables, each of one rank alone: the test was built without MPI",
            r->file, r->line, num_tables);
    tell_counts(r);
    return WEFT_OK;
}

weft_status weft_import_nccl(weft_import *import, const char *file, const char *text,
                             weft_arena *arena)
{
    reader r = {.import = import, .file = file, .arena = arena, .test = UNKNOWN};
    WEFT_TRY(WEFT_ARRAY(arena, MAX_RANKS, &r.ranks));
    WEFT_TRY(WEFT_ARRAY(arena, MAX_RANKS, &r.hosts));
    WEFT_TRY(WEFT_ARRAY(arena, MAX_ROWS, &r.rows));
    WEFT_TRY(read_all(&r, text));
    if (r.device[0] && !import->cluster.hardware.device_name[0]) {
        snprintf(import->cluster.hardware.device_name, sizeof import->cluster.hardware.device_name,
                 "%s", r.device);
        WEFT_TRY(weft_import_source(import, "device.name", WEFT_SOURCE_MEASURED, file));
    }
    return WEFT_OK;
}
