/* What the watchdog knows of its own rank: phases and their limits; and of the ranks beside it. */
#include "comm/watch/state.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

enum { NUM_LATEST = 16, NUM_STOPS = 16, OFTEN = 3 };

static const double stopped_us = 1e6; /* ten turns of the thread without one */

static struct {
    pthread_mutex_t lock;
    bool running;
    weft_watch_options options;
    char *folder;
    int phase;
    int64_t step;
    double since_us;
    struct {
        double us[NUM_LATEST];
        unsigned at;
    } latest[WEFT_WATCH_NUM_LIMITS];
    /* How often it took more than the limit's least; once is a rank or link that stood still. */
    int num_above[WEFT_WATCH_NUM_LIMITS];
    bool told[WEFT_WATCH_NUM_LIMITS];
    /* The thread's: when this process was stopped, and for how long. */
    double turned_us;
    struct {
        double begin_us, end_us;
    } stops[NUM_STOPS];
    unsigned num_stops;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

const char *weft_watch_folder(void)
{
    return watch.folder;
}

bool weft_watch_is_ending(void)
{
    return watch.options.is_ending && watch.options.is_ending();
}

/* --- limits ---------------------------------------------------------------------------------- */

static double longest_us(int limit)
{
    double most = 0;
    for (int i = 0; i < NUM_LATEST; i++)
        most = watch.latest[limit].us[i] > most ? watch.latest[limit].us[i] : most;
    return most;
}

static double limit_s(int limit)
{
    double least = watch.options.limit_s[limit];
    double adapted = watch.options.factor * longest_us(limit) / 1e6;
    return adapted > least ? adapted : least;
}

static void note(int limit, double us, bool usual)
{
    watch.latest[limit].us[watch.latest[limit].at++ % NUM_LATEST] = us;
    if (usual && us / 1e6 > watch.options.limit_s[limit])
        watch.num_above[limit]++;
}

/* A first step is what the next ones are compared with until they are known. */
static void note_phase(double us)
{
    const bool is_first = watch.phase == WEFT_WATCH_FIRST_STEP;
    if (is_first || watch.phase == WEFT_WATCH_STEP) {
        note(WEFT_WATCH_STEP, us, !is_first);
        note(WEFT_WATCH_EXCHANGE, weft_comm_take_longest(), !is_first);
    } else {
        note(watch.phase, us, false);
        weft_comm_take_longest();
    }
}

void weft_watch_enter(weft_watch_phase phase, int64_t step)
{
    const double now_us = weft_now_us();
    weft_comm_set_step(step);
    pthread_mutex_lock(&watch.lock);
    if (watch.running) {
        note_phase(now_us - watch.since_us);
        watch.phase = (int)phase;
        watch.step = step;
        watch.since_us = now_us;
    }
    pthread_mutex_unlock(&watch.lock);
}

void weft_watch_go_on(void)
{
    pthread_mutex_lock(&watch.lock);
    watch.since_us = weft_now_us();
    pthread_mutex_unlock(&watch.lock);
}

bool weft_watch_find_low(char *text, size_t bytes)
{
    bool found = false;
    pthread_mutex_lock(&watch.lock);
    for (int i = 0; i < WEFT_WATCH_NUM_LIMITS && !found; i++) {
        if (watch.num_above[i] < OFTEN || watch.told[i])
            continue;
        found = watch.told[i] = true;
        snprintf(text, bytes,
                 "reliability.%s_limit_s: %g s is below what it takes, %.3g s; the limit is %.3g s",
                 weft_watch_phase_text(i), watch.options.limit_s[i], longest_us(i) / 1e6,
                 limit_s(i));
    }
    pthread_mutex_unlock(&watch.lock);
    return found;
}

/* --- time ------------------------------------------------------------------------------------ */

void weft_watch_tick(void)
{
    const double now_us = weft_now_us(), gap_us = now_us - watch.turned_us;
    if (gap_us > stopped_us) {
        watch.stops[watch.num_stops % NUM_STOPS].begin_us = watch.turned_us;
        watch.stops[watch.num_stops++ % NUM_STOPS].end_us = now_us;
    }
    watch.turned_us = now_us;
}

double weft_watch_age_s(double since_us)
{
    double age_us = weft_now_us() - since_us;
    for (int i = 0; i < NUM_STOPS; i++) {
        double begin_us = watch.stops[i].begin_us;
        begin_us = begin_us > since_us ? begin_us : since_us;
        if (watch.stops[i].end_us > begin_us)
            age_us -= watch.stops[i].end_us - begin_us;
    }
    return age_us > 0 ? age_us / 1e6 : 0;
}

/* --- where this rank is ---------------------------------------------------------------------- */

typedef struct search {
    weft_answer *answer;
    const weft_comm_record *exchange; /* NULL: none */
} search;

static void add_member(weft_answer *a, int rank)
{
    if (a->num_members < WEFT_ANSWER_MEMBERS)
        a->members[a->num_members] = rank;
    a->num_members++;
}

static int world_rank(const weft_comm_place *p, int rank)
{
    return p->world_ranks ? p->world_ranks[rank] : rank;
}

static void visit_place(void *context, const weft_comm_place *p)
{
    search *s = context;
    weft_answer *a = s->answer;
    const weft_comm_record *x = s->exchange;
    if (a->num_groups < WEFT_ANSWER_GROUPS && p->num_begun > 0) {
        weft_answer_group *g = &a->groups[a->num_groups++];
        *g = (weft_answer_group){.first_rank = p->first_rank,
                                 .size = p->size,
                                 .num_begun = p->num_begun,
                                 .num_issued = p->num_collectives};
        memcpy(g->group, p->group, sizeof g->group);
    }
    if (!x || a->num_members > 0 || x->first_rank != p->first_rank || x->size != p->size ||
        strcmp(x->group, p->group) != 0)
        return;
    if (!a->is_message) {
        for (int i = 0; i < p->size; i++)
            if (i != p->rank)
                add_member(a, world_rank(p, i));
        return;
    }
    if (x->peer >= 0)
        add_member(a, world_rank(p, x->peer));
    if (x->from >= 0 && x->from != x->peer)
        add_member(a, world_rank(p, x->from));
}

/* What this rank has issued under the number of the collective that `like` is in. */
static bool find_alike(const weft_answer *like, weft_comm_record *out)
{
    weft_comm_record wanted = {
        .first_rank = like->first_rank, .size = like->size, .sequence = like->sequence};
    memcpy(wanted.group, like->group, sizeof wanted.group);
    return like->is_in_exchange && !like->is_message && weft_comm_record_find(&wanted, out);
}

static bool is_call(const weft_comm_record *r, const char *kind, uint64_t bytes)
{
    return strcmp(r->kind, kind) == 0 && r->bytes == bytes;
}

/* Which of two calls in one task comes first, by an earlier pass through the same task. */
static int find_follows(const weft_answer *like, const weft_comm_record *own)
{
    weft_comm_record at = *own, next = *own;
    for (int i = 0; i < WEFT_COMM_MAX_RECORDS && at.sequence > 0; i++, next = at) {
        at.sequence--;
        if (!weft_comm_record_find(&at, &at))
            return 0;
        const bool is_like = is_call(&at, like->kind, like->bytes);
        const bool is_own = is_call(&at, own->kind, own->bytes);
        if (i > 0 && is_like && is_call(&next, own->kind, own->bytes))
            return 1;
        if (i > 0 && is_own && is_call(&next, like->kind, like->bytes))
            return -1;
    }
    return 0;
}

static void look_at_exchange(weft_answer *a, const weft_answer *like)
{
    weft_comm_record x;
    search s = {.answer = a};
    char doing[WEFT_DOING_TEXT_BYTES] = "";
    const bool is_alike = like && find_alike(like, &x);
    const bool failed = is_alike || weft_comm_record_failed(&x);
    if (is_alike && !is_call(&x, like->kind, like->bytes))
        a->follows = (int8_t)find_follows(like, &x);
    const bool flies = failed || weft_comm_records_in_flight(&x, 1) == 1;
    if (flies) {
        s.exchange = &x;
        a->is_in_exchange = 1;
        a->is_message = x.tag >= 0;
        a->exchange_s = weft_watch_age_s(x.start_us);
        memcpy(a->group, x.group, sizeof a->group);
        snprintf(a->kind, sizeof a->kind, "%s", x.kind);
        snprintf(a->dtype, sizeof a->dtype, "%s", weft_dtype_text(x.dtype));
        a->first_rank = x.first_rank;
        a->size = x.size;
        a->tag = x.tag;
        a->sequence = x.sequence;
        a->bytes = x.bytes;
        a->place = x.place;
        a->num_unsent = weft_comm_records_unsent(&x.place);
        a->failed = failed;
    }
    if (flies || weft_comm_records(&x, 1) == 1)
        weft_doing_text(&x.doing, doing);
    snprintf(a->doing, sizeof a->doing, "%.63s", doing);
    a->now = weft_doing_place_now();
    weft_comm_each_place(visit_place, &s);
}

void weft_watch_look(weft_answer *a)
{
    weft_watch_look_for(NULL, a);
}

void weft_watch_look_for(const weft_answer *like, weft_answer *a)
{
    *a = (weft_answer){0};
    look_at_exchange(a, like);
    pthread_mutex_lock(&watch.lock);
    const double since_us = watch.since_us;
    a->phase = watch.phase;
    a->step = watch.step;
    a->phase_limit_s = limit_s(watch.phase);
    a->exchange_limit_s = limit_s(WEFT_WATCH_EXCHANGE);
    pthread_mutex_unlock(&watch.lock);
    a->phase_s = weft_watch_age_s(since_us);
    a->phase_is_over = a->phase_s > a->phase_limit_s;
    a->exchange_is_over = a->is_in_exchange && !a->failed && a->phase == WEFT_WATCH_STEP &&
                          a->exchange_s > a->exchange_limit_s;
}

double weft_watch_silence_limit_s(void)
{
    pthread_mutex_lock(&watch.lock);
    const double limit = limit_s(WEFT_WATCH_STEP);
    pthread_mutex_unlock(&watch.lock);
    return limit;
}

void weft_watch_end(void)
{
    pthread_mutex_lock(&watch.lock);
    watch.running = false;
    pthread_mutex_unlock(&watch.lock);
}

bool weft_watch_is_running(void)
{
    return watch.running;
}

weft_status weft_watch_begin(const weft_watch_options *options)
{
    char *folder = strdup(options->folder);
    if (!folder)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the watchdog");
    pthread_mutex_lock(&watch.lock);
    free(watch.folder);
    watch.folder = folder;
    watch.options = *options;
    watch.options.folder = watch.folder;
    watch.phase = WEFT_WATCH_SETUP;
    watch.step = 0;
    watch.since_us = watch.turned_us = weft_now_us();
    watch.running = true;
    pthread_mutex_unlock(&watch.lock);
    return WEFT_OK;
}

/* --- the ranks beside it --------------------------------------------------------------------- */

enum { ENVIRONMENT_BYTES = 1 << 16 };

/* -1: it has none. */
static int rank_of(int pid)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "SLURM_PROCID="};
    char path[64];
    int rank = -1;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(ENVIRONMENT_BYTES) : NULL;
    const size_t bytes = text ? fread(text, 1, ENVIRONMENT_BYTES - 1, file) : 0;
    if (text)
        text[bytes] = '\0';
    for (size_t n = 0; n < sizeof names / sizeof *names && rank < 0; n++)
        for (size_t at = 0; at < bytes && rank < 0; at += strlen(text + at) + 1)
            if (strncmp(text + at, names[n], strlen(names[n])) == 0)
                rank = atoi(text + at + strlen(names[n]));
    free(text);
    if (file)
        fclose(file);
    return rank;
}

/* As /proc/PID/stat has it: behind the name, which may have any character in it. */
static char state_of(int pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    const char *end = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    if (file)
        fclose(file);
    return end && end[1] ? end[2] : '\0';
}

static void look_at(int pid, weft_siblings *out)
{
    const int rank = rank_of(pid);
    if (rank < 0)
        return;
    if (state_of(pid) != 'T') {
        out->first = out->first < 0 || rank < out->first ? rank : out->first;
    } else if (out->num_stopped < WEFT_MAX_STOPPED) {
        out->stopped[out->num_stopped++] = rank;
    }
}

void weft_siblings_look(int parent, weft_siblings *out)
{
    char path[96];
    *out = (weft_siblings){.first = -1};
    snprintf(path, sizeof path, "/proc/%d/task", parent);
    DIR *tasks = opendir(path);
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        int pid;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", parent, task->d_name);
        FILE *children = task->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (children && fscanf(children, "%d", &pid) == 1)
            look_at(pid, out);
        if (children)
            fclose(children);
    }
    if (tasks)
        closedir(tasks);
}
