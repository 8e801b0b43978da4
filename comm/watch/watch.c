/* The watchdog's thread: beats, alarms, and the end of the job. */
#include "comm/watch/watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/address.h"
#include "comm/comm.h"
#include "comm/watch/flight.h"
#include "comm/watch/judge.h"
#include "comm/watch/state.h"
#include "core/clock.h"
#include "core/log.h"

/* --- datagrams between the ranks' watchdogs -------------------------------------------------- */

/* A datagram may be lost. */

typedef enum watch_word {
    WEFT_WORD_BEAT, /* I live; the receiver replies */
    WEFT_WORD_REPLY,
    WEFT_WORD_ALARM,   /* a limit of mine has passed */
    WEFT_WORD_QUERY,   /* where are you? */
    WEFT_WORD_COMPARE, /* where are you, and what have you issued under the number of mine? */
    WEFT_WORD_ANSWER,
    WEFT_WORD_END, /* write your record and leave */
    WEFT_WORD_WRITTEN,
    WEFT_WORD_GO,     /* all have written */
    WEFT_WORD_RECORD, /* write your record */
    WEFT_WORD_BYE,    /* my watchdog ends: silence is no sign from here on */
} watch_word;

enum { NODE_BYTES = 48, TOKEN_BYTES = 16 };
/* A socket of each: ranks of a machine meet on its loopback, which no cut of a network takes,
 * others on the address of the job's own network. Neither listens anywhere else. */
enum { NEAR, FAR, NUM_WAYS };

/* What a rank tells all others. */
typedef struct place {
    char node[NODE_BYTES];
    uint64_t network;        /* its network namespace: the loopback it has */
    uint32_t address;        /* IPv4, network order; 0: none */
    uint16_t port[NUM_WAYS]; /* network order; 0: no socket */
} place;

typedef struct datagram {
    unsigned char token[TOKEN_BYTES]; /* of this job */
    int32_t from, word;
    weft_answer answer; /* of an ANSWER or a COMPARE alone */
} datagram;

typedef struct watch_net {
    int fd[NUM_WAYS]; /* -1: none */
    int rank, size;
    unsigned char token[TOKEN_BYTES];
    place *places;
    const char **nodes;
    struct sockaddr_in *to;
    char *way; /* to each rank: NEAR or FAR */
} watch_net;

static place find_place(void)
{
    place own = {.address = weft_comm_own_address()};
    struct stat info;
    if (gethostname(own.node, sizeof own.node - 1) != 0)
        snprintf(own.node, sizeof own.node, "?");
    if (stat("/proc/self/ns/net", &info) == 0)
        own.network = (uint64_t)info.st_ino;
    return own;
}

static bool is_near(const place *a, const place *b)
{
    return a->network == b->network && strcmp(a->node, b->node) == 0;
}

/* --- opening --------------------------------------------------------------------------------- */

static weft_status open_socket(watch_net *net, int way, uint32_t address)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = address};
    socklen_t bytes = sizeof own;
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    net->fd[way] = fd;
    if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &bytes) != 0)
        return WEFT_ERROR(WEFT_COMM, "the watchdog has no socket: %s", strerror(errno));
    net->places[net->rank].port[way] = own.sin_port;
    return WEFT_OK;
}

static weft_status open_sockets(watch_net *net, bool only_near)
{
    const uint32_t address = net->places[net->rank].address;
    WEFT_TRY(open_socket(net, NEAR, htonl(INADDR_LOOPBACK)));
    return only_near || !address ? WEFT_OK : open_socket(net, FAR, address);
}

static weft_status exchange(watch_net *net, weft_comm *world)
{
    place own = find_place();
    WEFT_TRY(weft_comm_all_gather_host(world, &own, net->places, sizeof own));
    bool only_near = true;
    for (int i = 0; i < net->size; i++)
        only_near = only_near && is_near(&own, &net->places[i]);
    WEFT_TRY(weft_comm_agree(world, open_sockets(net, only_near)));
    own = net->places[net->rank];
    WEFT_TRY(weft_comm_all_gather_host(world, &own, net->places, sizeof own));
    if (net->rank == 0 && getrandom(net->token, sizeof net->token, 0) != sizeof net->token)
        memset(net->token, 0x5a, sizeof net->token);
    WEFT_TRY(weft_comm_broadcast_host(world, net->token, sizeof net->token, 0));
    for (int i = 0; i < net->size; i++) {
        const place *other = &net->places[i];
        const int way = is_near(&own, other) ? NEAR : FAR;
        net->nodes[i] = other->node;
        net->way[i] = (char)way;
        net->to[i] = (struct sockaddr_in){.sin_family = AF_INET,
                                          .sin_port = other->port[way],
                                          .sin_addr.s_addr = way == NEAR ? htonl(INADDR_LOOPBACK)
                                                                         : other->address};
    }
    return WEFT_OK;
}

static void watch_net_close(watch_net *net)
{
    if (!net)
        return;
    for (int way = 0; way < NUM_WAYS; way++)
        if (net->fd[way] >= 0)
            close(net->fd[way]);
    free(net->way);
    free(net->places);
    free(net->nodes);
    free(net->to);
    free(net);
}

/* Opens a socket and learns those of all ranks. Collective over the world. Errors: WEFT_COMM,
 * WEFT_MEMORY, alike on all ranks. */
static weft_status watch_net_open(weft_comm *world, watch_net **out)
{
    watch_net *net = calloc(1, sizeof *net);
    size_t size = (size_t)weft_comm_size(world);
    weft_status status = WEFT_OK;
    if (net) {
        net->fd[NEAR] = net->fd[FAR] = -1;
        net->rank = weft_comm_rank(world);
        net->size = (int)size;
        net->places = calloc(size, sizeof *net->places);
        net->nodes = calloc(size, sizeof *net->nodes);
        net->to = calloc(size, sizeof *net->to);
        net->way = calloc(size, sizeof *net->way);
    }
    if (!net || !net->places || !net->nodes || !net->to || !net->way)
        status = WEFT_ERROR(WEFT_MEMORY, "no memory for the watchdog of %zu ranks", size);
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = exchange(net, world);
    if (status != WEFT_OK) {
        watch_net_close(net);
        return status;
    }
    *out = net;
    return WEFT_OK;
}

/* The machines' names, [size]. */
static const char *const *watch_net_nodes(const watch_net *net)
{
    return net->nodes;
}

/* --- talking --------------------------------------------------------------------------------- */

/* answer NULL: none. */
static void watch_net_send(watch_net *net, int to, watch_word word, const weft_answer *answer)
{
    datagram d = {.from = net->rank, .word = (int32_t)word};
    memcpy(d.token, net->token, sizeof d.token);
    if (answer)
        d.answer = *answer;
    size_t bytes = answer ? sizeof d : offsetof(datagram, answer);
    /* One that is not sent is one that is lost. */
    ssize_t sent = sendto(net->fd[(int)net->way[to]], &d, bytes, MSG_DONTWAIT,
                          (const struct sockaddr *)&net->to[to], sizeof net->to[to]);
    (void)sent;
}

static bool take_from(const watch_net *net, int fd, int *from, watch_word *word,
                      weft_answer *answer)
{
    datagram d;
    while (fd >= 0) {
        ssize_t got = recv(fd, &d, sizeof d, MSG_DONTWAIT);
        if (got < 0 && errno == ECONNREFUSED)
            continue; /* of an earlier send: that rank has gone */
        if (got < 0)
            return false;
        bool whole = (size_t)got == sizeof d;
        if (((size_t)got != offsetof(datagram, answer) && !whole) ||
            memcmp(d.token, net->token, sizeof d.token) != 0 || d.from < 0 || d.from >= net->size ||
            ((d.word == WEFT_WORD_ANSWER || d.word == WEFT_WORD_COMPARE) && !whole))
            continue;
        *from = d.from;
        *word = (watch_word)d.word;
        if (whole)
            *answer = d.answer;
        return true;
    }
    return false;
}

static bool take(const watch_net *net, int *from, watch_word *word, weft_answer *answer)
{
    return take_from(net, net->fd[NEAR], from, word, answer) ||
           take_from(net, net->fd[FAR], from, word, answer);
}

/* Takes the next datagram of this job, where one is there within the time or `wake_fd` is not
 * readable by then. *answer is filled by an ANSWER and a COMPARE. False: there is none. */
static bool watch_net_receive(watch_net *net, double seconds, int wake_fd, int *from,
                              watch_word *word, weft_answer *answer)
{
    if (take(net, from, word, answer))
        return true;
    struct pollfd fds[] = {{.fd = net->fd[NEAR], .events = POLLIN},
                           {.fd = net->fd[FAR], .events = POLLIN}, /* -1 is passed over */
                           {.fd = wake_fd, .events = POLLIN}};
    if (poll(fds, 3, seconds > 0 ? (int)(1e3 * seconds) + 1 : 0) <= 0)
        return false;
    return take(net, from, word, answer);
}

static const double turn_s = 0.1, beat_s = 0.5, silent_s = 1.6; /* three beats without a reply */
static const double ask_s = 1.0, ask_dead_s = 0.4, dead_s = 2, again_s = 0.15; /* for answers */
static const double ask_living_s = 0.6; /* of a job that ends in a second or two */
static const double heed_s = 1.3;       /* an alarm that no head heeds is this rank's own */
static const double write_s = 0.8, deputy_s = 0.3, rest_s = 1.0;
/* What a part of the job that hears fewer than half of the ranks lets the other part speak in. */
static const double minority_s = 4;

enum { ASKED = 1, DONE };

static struct {
    pthread_t thread;
    bool started;
    atomic_bool stopping;
    atomic_int records;       /* 0, ASKED, DONE */
    weft_verdict explanation; /* once that is done */
    int wake_fd, rank, size;
    int64_t since;            /* when it started, seconds of the epoch */
    _Atomic(watch_net *) net; /* NULL: not connected */
    /* The thread's alone: */
    int head;         /* the lowest rank that may answer; this rank: none lower does */
    double beaten_us; /* the last beat */
    double heard_us;  /* the head's last word, or when it became the head */
    double alarm_us;  /* this rank's alarm that nobody has heeded yet; 0: none */
    double quiet_us;  /* no alarm until then */
    double whole_us;  /* what waits for a link that was cut arrives until then */
    bool has_sought;  /* the dead */
    bool has_told;    /* that a rank is silent */
    weft_answer *answers;
    const weft_answer **at;
    double
        *last_us; /* each rank's last word, or when this rank became the head; left_us: its BYE */
} t = {.wake_fd = -1};

static const double left_us = 1e300; /* never silent */

static double later_us(double seconds)
{
    return weft_now_us() + 1e6 * seconds;
}

static void pause_s(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))},
              NULL);
}

/* --- the end --------------------------------------------------------------------------------- */

/* A file system that hangs too shall hold nobody up: each file is written by a thread of its own,
 * which is waited for a while. False: it is not done. */
static bool do_for_a_while(void *(*function)(void *), void *argument, const atomic_bool *done)
{
    pthread_t writer;
    if (pthread_create(&writer, NULL, function, argument) != 0)
        return false;
    pthread_detach(writer);
    for (double end_us = later_us(write_s); !atomic_load(done) && weft_now_us() < end_us;)
        pause_s(0.005);
    return atomic_load(done);
}

typedef struct writing {
    weft_answer own;
    const char *node;
    atomic_bool done;
} writing;

static void *write_record(void *argument)
{
    writing *w = argument;
    if (access(weft_watch_folder(), F_OK) == 0)
        weft_flight_write(weft_watch_folder(), t.rank, w->node, &w->own);
    atomic_store(&w->done, true);
    return NULL;
}

static void write_own_record(const char *node)
{
    static writing w;
    static bool written;
    if (written) /* once: what follows tells of the end alone */
        return;
    written = true;
    weft_watch_look(&w.own);
    w.node = node;
    do_for_a_while(write_record, &w, &w.done);
}

static void record_as_told(watch_net *net, int by)
{
    write_own_record(watch_net_nodes(net)[t.rank]);
    watch_net_send(net, by, WEFT_WORD_WRITTEN, NULL);
}

static _Noreturn void leave(void)
{
    _exit(weft_status_exit_code(WEFT_HUNG));
}

/* Another rank has spoken. */
static _Noreturn void end_as_told(watch_net *net, int by)
{
    int from;
    watch_word word;
    static weft_answer unused;
    record_as_told(net, by);
    for (double end_us = later_us(write_s); weft_now_us() < end_us;)
        if (watch_net_receive(net, turn_s, -1, &from, &word, &unused) && word == WEFT_WORD_GO)
            break;
    leave();
}

typedef struct claim {
    weft_verdict verdict;
    const char *const *nodes;
    bool is_ours;
    atomic_bool done;
} claim;

static void *claim_verdict(void *argument)
{
    claim *c = argument;
    c->is_ours = weft_flight_claim(weft_watch_folder(), t.since, t.rank, &c->verdict, c->nodes);
    atomic_store(&c->done, true);
    return NULL;
}

/* Rank 0 speaks before its deputies do, who may not know that it lives, and a majority before the
 * rest, which may be what was cut off. Where RUN does not answer, nobody else can have spoken
 * there. */
static void speak(const weft_verdict *verdict, const char *const *nodes)
{
    static claim c;
    pause_s(verdict->is_minority ? minority_s : t.rank > 0 ? deputy_s : 0);
    c.verdict = *verdict;
    c.nodes = nodes;
    const bool answers = do_for_a_while(claim_verdict, &c, &c.done);
    if (!answers)
        weft_log(WEFT_LOG_ERROR, "%s; %s hangs, too; the job ends", verdict->text,
                 weft_watch_folder());
    else if (c.is_ours)
        weft_log(WEFT_LOG_ERROR, "%s; the job ends (weft inspect --flight %s)", verdict->text,
                 weft_watch_folder());
}

static _Noreturn void end_all(watch_net *net, const weft_verdict *verdict)
{
    int from, num_written = 0, num_others = t.size - 1 - verdict->num_missing;
    watch_word word;
    static weft_answer unused;
    speak(verdict, watch_net_nodes(net));
    for (int turn = 0; turn < 2; turn++)
        for (int rank = 0; rank < t.size; rank++)
            if (rank != t.rank)
                watch_net_send(net, rank, WEFT_WORD_END, NULL);
    write_own_record(watch_net_nodes(net)[t.rank]);
    for (double end_us = later_us(write_s); num_written < num_others && weft_now_us() < end_us;)
        if (watch_net_receive(net, 0.02, -1, &from, &word, &unused))
            num_written += word == WEFT_WORD_WRITTEN;
    for (int rank = 0; rank < t.size; rank++)
        if (rank != t.rank)
            watch_net_send(net, rank, WEFT_WORD_GO, NULL);
    leave();
}

/* The ranks on this machine that are stopped. */
static void name_stopped(const weft_siblings *s, const char *node, weft_verdict *v)
{
    for (int i = 0; i < s->num_stopped && i < WEFT_VERDICT_MISSING; i++)
        v->missing[v->num_missing++] = s->stopped[i];
    int used = snprintf(v->text, sizeof v->text, "%s", s->num_stopped == 1 ? "rank" : "ranks");
    for (int i = 0; i < v->num_missing && used < (int)sizeof v->text / 2; i++)
        used += snprintf(v->text + used, sizeof v->text - (size_t)used, "%s %d (%.64s)",
                         i ? "," : "", v->missing[i], node);
    snprintf(v->text + used, sizeof v->text - (size_t)used, " %s missing: stopped (SIGSTOP); ",
             s->num_stopped == 1 ? "is" : "are");
}

/* Before the ranks know of each other. Whoever leaves takes the others down: who sees that a rank
 * is stopped speaks first, then rank 0, and where that has not come rank 1. */
static void end_alone(const weft_answer *own)
{
    static weft_verdict verdict;
    char node[65] = "";
    weft_siblings s;
    weft_siblings_look((int)getppid(), &s);
    const bool sees = s.num_stopped > 0;
    const char **nodes = calloc((size_t)t.size, sizeof *nodes);
    gethostname(node, sizeof node - 1);
    for (int i = 0; nodes && i < t.size; i++)
        nodes[i] = node;
    if (sees)
        name_stopped(&s, node, &verdict);
    const size_t used = strlen(verdict.text);
    snprintf(verdict.text + used, sizeof verdict.text - used,
             "rank %d has been in setup for %.1f s, limit %.3g s (reliability.setup_limit_s): not "
             "all ranks have come to the start",
             t.rank, own->phase_s, own->phase_limit_s);
    pause_s(sees && t.rank == s.first ? 0 : t.rank == 0 ? 0.5 : t.rank == 1 ? 1 : 2);
    if (sees ? t.rank == s.first : t.rank <= 1)
        speak(&verdict, nodes);
    write_own_record("");
    leave();
}

/* --- asking ---------------------------------------------------------------------------------- */

static void answer(watch_net *net, int to, const weft_answer *like)
{
    weft_answer own;
    weft_watch_look_for(like, &own);
    watch_net_send(net, to, WEFT_WORD_ANSWER, &own);
    t.alarm_us = 0;
    t.quiet_us = later_us(rest_s + ask_s);
}

static void ask(watch_net *net, const weft_answer *like)
{
    for (int rank = 0; rank < t.size; rank++)
        if (!t.at[rank])
            watch_net_send(net, rank, like ? WEFT_WORD_COMPARE : WEFT_WORD_QUERY, like);
}

/* The shortest time that a rank without an answer has been silent. */
static double silence_s(void)
{
    double least_s = -1;
    for (int rank = 0; rank < t.size; rank++) {
        const double age_s = t.at[rank] ? -1 : weft_watch_age_s(t.last_us[rank]);
        if (!t.at[rank] && (least_s < 0 || age_s < least_s))
            least_s = age_s;
    }
    return least_s;
}

/* Enough: all have answered, or none of the others has shown that it lives, or time is over. */
static bool has_asked_enough(double start_us, double most_s)
{
    const double seconds = (weft_now_us() - start_us) / 1e6;
    return seconds > most_s || (seconds > ask_dead_s && silence_s() > dead_s);
}

/* Twice a second a rank hears from all ranks above it where it is the head, else from the head and
 * from rank 0. After a longer silence, what MPI sent meanwhile arrives later still. */
static void hear_from(int from, watch_word word)
{
    const double silence = weft_watch_age_s(t.last_us[from]);
    const bool usual = from == 0 || from == t.head || (t.head == t.rank && from > t.rank);
    t.last_us[from] = word == WEFT_WORD_BYE ? left_us : weft_now_us();
    if (usual && silence > silent_s && later_us(weft_watch_recovery_s(silence)) > t.whole_us)
        t.whole_us = later_us(weft_watch_recovery_s(silence));
}

/* Asks all ranks where they are, for `most_s` at most; like: and what they have issued under the
 * number of that exchange (NULL: not that). False: a lower rank asks too, and goes on. */
static bool collect(watch_net *net, double most_s, const weft_answer *like)
{
    static weft_answer got;
    int from, num = 1;
    watch_word word;
    double start_us = weft_now_us(), asked_us = 0;
    memset(t.at, 0, (size_t)t.size * sizeof *t.at);
    weft_watch_look_for(like, &t.answers[t.rank]);
    t.at[t.rank] = &t.answers[t.rank];
    while (num < t.size && !has_asked_enough(start_us, most_s)) {
        if (weft_now_us() - asked_us > 1e6 * again_s) {
            ask(net, like);
            asked_us = weft_now_us();
        }
        if (!watch_net_receive(net, 0.05, t.wake_fd, &from, &word, &got))
            continue;
        hear_from(from, word);
        if (word == WEFT_WORD_END)
            end_as_told(net, from);
        if (word == WEFT_WORD_RECORD) /* rank 0 has asked before this rank did */
            record_as_told(net, from);
        if (word == WEFT_WORD_QUERY || word == WEFT_WORD_COMPARE)
            answer(net, from, word == WEFT_WORD_COMPARE ? &got : NULL);
        if (word == WEFT_WORD_QUERY && from < t.rank)
            return false; /* not where ranks compare: each says what it has met */
        if (word == WEFT_WORD_BEAT)
            watch_net_send(net, from, WEFT_WORD_REPLY, NULL);
        if (word != WEFT_WORD_ANSWER || t.at[from])
            continue;
        t.answers[from] = got;
        t.at[from] = &t.answers[from];
        num++;
    }
    return true;
}

static bool is_over(const weft_answer *a)
{
    return a->phase_is_over || a->exchange_is_over;
}

/* Whose watchdog has been silent the longest, where this rank is the head that hears all. */
static int most_silent(void)
{
    int most = t.rank == 0;
    for (int rank = most + 1; rank < t.size; rank++)
        if (rank != t.rank && t.last_us[rank] < t.last_us[most])
            most = rank;
    return most;
}

/* Which rank's calls differ, as far as answers about the exchange that `rank` is in tell. */
static void explain(watch_net *net, int rank, const weft_answer *exchange, weft_verdict *out)
{
    static weft_answer like;
    like = *exchange;
    if (collect(net, ask_living_s, &like) && t.at[rank])
        weft_watch_judge_difference(
            &(weft_answers){.size = t.size, .at = t.at, .nodes = watch_net_nodes(net)}, rank, out);
}

/* Asks, and ends the job where the answers say so. `silence_limit_s` above 0: no rank's limit has
 * passed, but one has been silent for longer than that. */
static void conduct(watch_net *net, int alarmed, double silence_limit_s)
{
    static weft_verdict verdict, difference;
    t.alarm_us = 0;
    if (!collect(net, ask_s, NULL))
        return;
    if (!t.at[alarmed] || !is_over(t.at[alarmed])) /* it has gone on, or fallen silent */
        alarmed = t.rank;
    t.quiet_us = later_us(rest_s);
    if (is_over(t.at[alarmed]))
        silence_limit_s = 0;
    else if (silence_limit_s <= 0 || silence_s() < silence_limit_s)
        return;
    weft_watch_judge(&(weft_answers){.size = t.size,
                                     .at = t.at,
                                     .nodes = watch_net_nodes(net),
                                     .silent_s = silence_s(),
                                     .silence_limit_s = silence_limit_s,
                                     .recovers_s = (t.whole_us - weft_now_us()) / 1e6},
                     alarmed, &verdict);
    if (verdict.is_none || atomic_load(&t.stopping))
        return;
    if (verdict.in_other >= 0)
        explain(net, verdict.in_other, t.at[verdict.in_other], &difference);
    weft_watch_judge_again(&difference, &verdict);
    end_all(net, &verdict);
}

/* --- a turn ---------------------------------------------------------------------------------- */

static void hear(watch_net *net, int from, watch_word word, const weft_answer *got)
{
    hear_from(from, word);
    if (from <= t.head) {
        t.head = from;
        t.heard_us = weft_now_us();
    }
    switch (word) {
    case WEFT_WORD_BEAT:
        watch_net_send(net, from, WEFT_WORD_REPLY, NULL);
        break;
    case WEFT_WORD_QUERY:
    case WEFT_WORD_COMPARE:
        answer(net, from, word == WEFT_WORD_COMPARE ? got : NULL);
        break;
    case WEFT_WORD_ALARM:
        if (weft_now_us() > t.quiet_us)
            conduct(net, from, 0);
        break;
    case WEFT_WORD_END:
        end_as_told(net, from);
    case WEFT_WORD_RECORD:
        record_as_told(net, from);
        break;
    default:
        break;
    }
}

static void beat(watch_net *net)
{
    const double now_us = weft_now_us();
    if (t.head < t.rank && weft_watch_age_s(t.heard_us) > silent_s) {
        t.head++;
        t.heard_us = now_us;
        for (int rank = t.head; rank < (t.head == t.rank ? t.size : t.head + 1); rank++)
            if (t.last_us[rank] < left_us)
                t.last_us[rank] = now_us;
    }
    if (t.rank == 0 || now_us - t.beaten_us < 1e6 * beat_s)
        return;
    t.beaten_us = now_us;
    watch_net_send(net, 0, WEFT_WORD_BEAT, NULL); /* it may be back */
    if (t.head > 0 && t.head < t.rank)
        watch_net_send(net, t.head, WEFT_WORD_BEAT, NULL);
}

/* Outside steps, whose exchanges have a limit of their own, a rank that is silent is told long
 * before its silence ends the job. Once, until all are heard again. */
static void tell_silent(watch_net *net, const weft_answer *own, double limit_s)
{
    const int rank = most_silent();
    const double silence = weft_watch_age_s(t.last_us[rank]);
    if (silence <= own->exchange_limit_s) {
        t.has_told = false;
    } else if (own->phase != WEFT_WATCH_STEP && !t.has_told) {
        t.has_told = true;
        weft_log(WEFT_LOG_WARN,
                 "rank %d (%s) is silent for %.1f s; rank %d is in %s (step %lld); after %.3g s "
                 "(reliability.step_limit_s) the job ends",
                 rank, watch_net_nodes(net)[rank], silence, t.rank,
                 weft_watch_phase_text(own->phase), (long long)own->step, limit_s);
    }
}

static void look(watch_net *net)
{
    weft_answer own;
    const double now_us = weft_now_us();
    weft_watch_look(&own);
    const double limit_s = weft_watch_silence_limit_s();
    const bool hears_all = net && t.head == t.rank;
    if (!is_over(&own)) {
        t.alarm_us = 0;
        if (hears_all)
            tell_silent(net, &own, limit_s);
        if (hears_all && now_us > t.quiet_us &&
            weft_watch_age_s(t.last_us[most_silent()]) > limit_s)
            conduct(net, t.rank, limit_s);
    } else if (!net) {
        end_alone(&own);
    } else if (now_us > t.quiet_us) {
        if (t.alarm_us == 0)
            t.alarm_us = now_us;
        if (t.head == t.rank || weft_watch_age_s(t.alarm_us) > heed_s)
            conduct(net, t.rank, 0);
        else
            watch_net_send(net, t.head, WEFT_WORD_ALARM, NULL);
    }
}

/* As another thread asks. */
static void record_all(watch_net *net)
{
    int from, num_written = 0;
    watch_word word;
    static weft_answer got;
    for (int rank = 0; rank < t.size; rank++)
        if (rank != t.rank)
            watch_net_send(net, rank, WEFT_WORD_RECORD, NULL);
    write_own_record(watch_net_nodes(net)[t.rank]);
    for (double end_us = later_us(write_s); num_written < t.size - 1 && weft_now_us() < end_us;) {
        if (!watch_net_receive(net, 0.02, -1, &from, &word, &got))
            continue;
        num_written += word == WEFT_WORD_WRITTEN;
        if (word == WEFT_WORD_COMPARE)
            answer(net, from, &got);
    }
}

/* The starter takes the ranks down: has it lost one? Rank 0 asks, or rank 1 where rank 0 does not
 * answer. The job has a second or two yet. */
static void seek_dead(watch_net *net)
{
    static claim c;
    t.has_sought = true;
    if (t.rank > 1 || !collect(net, ask_living_s, NULL) || (t.rank == 1 && t.at[0]))
        return;
    for (int rank = 0; rank < t.size; rank++)
        if (t.last_us[rank] >= left_us)
            return; /* it has ended by itself */
    weft_watch_judge_dead(
        &(weft_answers){.size = t.size, .at = t.at, .nodes = watch_net_nodes(net)}, t.rank,
        &c.verdict);
    if (c.verdict.num_missing == 0)
        return;
    c.nodes = watch_net_nodes(net);
    do_for_a_while(claim_verdict, &c, &c.done);
    record_all(net);
}

void weft_watch_record_all(char *out, size_t bytes)
{
    const uint64_t one = 1;
    out[0] = '\0';
    if (!t.started || !atomic_load(&t.net))
        return;
    atomic_store(&t.records, ASKED);
    ssize_t written = write(t.wake_fd, &one, sizeof one);
    (void)written;
    for (double end_us = later_us(ask_living_s + 2 * write_s);
         atomic_load(&t.records) != DONE && weft_now_us() < end_us;)
        pause_s(0.005);
    if (atomic_load(&t.records) == DONE)
        snprintf(out, bytes, "%s", t.explanation.text);
}

static void *run(void *unused)
{
    static weft_answer got;
    int from;
    watch_word word;
    (void)unused;
    while (!atomic_load(&t.stopping)) {
        watch_net *net = atomic_load(&t.net);
        const double end_us = later_us(turn_s);
        if (net) {
            double left_s = turn_s;
            while (left_s > 0 && watch_net_receive(net, left_s, t.wake_fd, &from, &word, &got) &&
                   !atomic_load(&t.stopping)) {
                weft_watch_tick();
                hear(net, from, word, &got);
                left_s = (end_us - weft_now_us()) / 1e6;
            }
        } else {
            struct pollfd wake = {.fd = t.wake_fd, .events = POLLIN};
            poll(&wake, 1, (int)(1e3 * turn_s));
        }
        weft_watch_tick();
        if (net)
            beat(net);
        if (net && atomic_load(&t.records) == ASKED) {
            weft_answer own;
            weft_watch_look(&own);
            explain(net, t.rank, &own, &t.explanation);
            record_all(net);
            atomic_store(&t.records, DONE);
        }
        if (net && !t.has_sought && weft_watch_is_ending())
            seek_dead(net);
        look(net);
    }
    return NULL;
}

/* --- starting and ending --------------------------------------------------------------------- */

static weft_status start_thread(int rank, int size)
{
    t.rank = rank;
    t.size = size;
    t.since = (int64_t)time(NULL);
    t.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_store(&t.stopping, false);
    if (t.wake_fd < 0)
        return WEFT_ERROR(WEFT_MEMORY, "no watchdog: %s", strerror(errno));
    int error = pthread_create(&t.thread, NULL, run, NULL);
    if (error)
        return WEFT_ERROR(WEFT_MEMORY, "no thread for the watchdog: %s", strerror(error));
    t.started = true;
    return WEFT_OK;
}

weft_status weft_watch_start(const weft_watch_options *options, int rank, int size)
{
    WEFT_TRY(weft_watch_begin(options));
    weft_status status = start_thread(rank, size);
    if (status != WEFT_OK)
        weft_watch_stop();
    return status;
}

weft_status weft_watch_connect(weft_comm *world)
{
    watch_net *net;
    if (!weft_watch_is_running())
        return WEFT_OK;
    size_t size = (size_t)weft_comm_size(world);
    t.answers = calloc(size, sizeof *t.answers);
    t.at = calloc(size, sizeof *t.at);
    t.last_us = calloc(size, sizeof *t.last_us);
    for (size_t i = 0; t.last_us && i < size; i++)
        t.last_us[i] = weft_now_us();
    weft_status status = WEFT_OK;
    if ((int)size != t.size || weft_comm_rank(world) != t.rank)
        status = WEFT_ERROR(WEFT_COMM, "rank %d of %zu is rank %d of %d by its launcher",
                            weft_comm_rank(world), size, t.rank, t.size);
    else if (!t.answers || !t.at || !t.last_us)
        status = WEFT_ERROR(WEFT_MEMORY, "no memory for the watchdog of %zu ranks", size);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(watch_net_open(world, &net));
    t.head = 0;
    t.heard_us = weft_now_us();
    atomic_store(&t.net, net);
    return WEFT_OK;
}

/* To who may be the head, several times: a datagram may be lost. */
static void say_bye(void)
{
    watch_net *net = atomic_load(&t.net);
    for (int i = 0; net && i < 3; i++) {
        watch_net_send(net, 0, WEFT_WORD_BYE, NULL);
        watch_net_send(net, t.head, WEFT_WORD_BYE, NULL);
    }
}

void weft_watch_stop(void)
{
    if (!weft_watch_is_running())
        return;
    if (t.started) {
        atomic_store(&t.stopping, true);
        uint64_t one = 1;
        ssize_t written = write(t.wake_fd, &one, sizeof one);
        (void)written;
        pthread_join(t.thread, NULL);
        say_bye();
    }
    t.started = false;
    if (t.wake_fd >= 0)
        close(t.wake_fd);
    t.wake_fd = -1;
    watch_net_close(atomic_exchange(&t.net, NULL));
    free(t.answers);
    free(t.at);
    free(t.last_us);
    t.last_us = NULL;
    t.answers = NULL;
    t.at = NULL;
    weft_watch_end();
}

void weft_watch_set_aside(const char *folder)
{
    weft_flight_set_aside(folder);
}
