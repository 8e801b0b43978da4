#include "comm/watch/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/address.h"

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

struct weft_watch_net {
    int fd[NUM_WAYS]; /* -1: none */
    int rank, size;
    unsigned char token[TOKEN_BYTES];
    place *places;
    const char **nodes;
    struct sockaddr_in *to;
    char *way; /* to each rank: NEAR or FAR */
};

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

static weft_status open_socket(weft_watch_net *net, int way, uint32_t address)
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

static weft_status open_sockets(weft_watch_net *net, bool only_near)
{
    const uint32_t address = net->places[net->rank].address;
    WEFT_TRY(open_socket(net, NEAR, htonl(INADDR_LOOPBACK)));
    return only_near || !address ? WEFT_OK : open_socket(net, FAR, address);
}

static weft_status exchange(weft_watch_net *net, weft_comm *world)
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

weft_status weft_watch_net_open(weft_comm *world, weft_watch_net **out)
{
    weft_watch_net *net = calloc(1, sizeof *net);
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
        weft_watch_net_close(net);
        return status;
    }
    *out = net;
    return WEFT_OK;
}

void weft_watch_net_close(weft_watch_net *net)
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

const char *const *weft_watch_net_nodes(const weft_watch_net *net)
{
    return net->nodes;
}

/* --- talking --------------------------------------------------------------------------------- */

void weft_watch_net_send(weft_watch_net *net, int to, weft_watch_word word,
                         const weft_answer *answer)
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

static bool take_from(const weft_watch_net *net, int fd, int *from, weft_watch_word *word,
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
        *word = (weft_watch_word)d.word;
        if (whole)
            *answer = d.answer;
        return true;
    }
    return false;
}

static bool take(const weft_watch_net *net, int *from, weft_watch_word *word, weft_answer *answer)
{
    return take_from(net, net->fd[NEAR], from, word, answer) ||
           take_from(net, net->fd[FAR], from, word, answer);
}

bool weft_watch_net_receive(weft_watch_net *net, double seconds, int wake_fd, int *from,
                            weft_watch_word *word, weft_answer *answer)
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
