#include "launcher/measuring/nodes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/kernels.h>

#include "core/clock.h"
#include "core/sorted.h"

static const char purpose[] = "comparing nodes";

/* A node, as all ranks know it. */
typedef struct nodes_place {
    int first_rank, num_ranks; /* of the node; its ranks need not follow each other */
    int node;                  /* which node, by first ranks */
    int place;                 /* in the node */
    char name[WEFT_NODES_NAME_BYTES];
} nodes_place;

/* What measuring runs on. */
typedef struct nodes_rig {
    weft_comm *world;
    weft_device *device;
    weft_lane *lane;
    weft_nodes_options options;
    weft_arena *arena;     /* the result's */
    nodes_place *places;   /* [ranks] */
    int num_nodes, fewest; /* the fewest ranks that a node has */
    size_t width;          /* of a product: M = N = K */
    void *a, *b, *c;       /* width * width floats each */
    size_t bytes;          /* of a copy, and the most of a message */
    char *from, *to;
} nodes_rig;

/* --- links between nodes, by pairs of ranks -------------------------------------------------- */

/* Of a pair the lower rank leads: it says what is exchanged next, by a small message, and takes the
 * times. */
enum {
    TAG = 7,
    MAX_PINGS = 200,
    MIN_TRAINS = 3,
    MAX_TRAINS = 63,
    SMALLEST = 64 << 10,
    MAX_COUNT = 64 /* messages of a train */
};

static const double TRAIN_US = 20e3; /* a train lasts so long at least, where messages can */

/* What the pair does next; all 0: it is done. */
typedef struct order {
    int64_t bytes, count; /* messages both ways at once; bytes 0, count 1: an answer to this one */
} order;

static weft_status exchange(nodes_rig *rig, int peer, const order *o)
{
    for (int64_t i = 0; i < o->count; i++)
        WEFT_TRY(weft_send_recv(rig->world, rig->lane, peer, rig->from, (size_t)o->bytes, peer,
                                rig->to, (size_t)o->bytes, TAG));
    return weft_lane_sync(rig->lane);
}

static weft_status follow(nodes_rig *rig, int peer, weft_nodes_link *out)
{
    order o = {.count = 1};
    while (o.count > 0) {
        WEFT_TRY(weft_comm_recv_host(rig->world, peer, TAG, &o, sizeof o));
        if (o.bytes > 0)
            WEFT_TRY(exchange(rig, peer, &o));
        else if (o.count > 0)
            WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, &o, sizeof o));
    }
    return weft_comm_recv_host(rig->world, peer, TAG, out, sizeof *out);
}

/* The shortest way there and back, halved: what waits for a core is no part of a link. */
static weft_status find_latency(nodes_rig *rig, int peer, double seconds, double *out_us)
{
    const double start = weft_now_us();
    *out_us = INFINITY;
    for (int i = 0; i < MAX_PINGS && (i < MIN_TRAINS || weft_now_us() - start < seconds * 1e6);
         i++) {
        order o = {.count = 1};
        const double before = weft_now_us();
        WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, &o, sizeof o));
        WEFT_TRY(weft_comm_recv_host(rig->world, peer, TAG, &o, sizeof o));
        *out_us = fmin(*out_us, (weft_now_us() - before) / 2);
    }
    return WEFT_OK;
}

static weft_status time_train(nodes_rig *rig, int peer, const order *o, double *out_us)
{
    const double start = weft_now_us();
    WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, o, sizeof *o));
    WEFT_TRY(exchange(rig, peer, o));
    *out_us = weft_now_us() - start;
    return WEFT_OK;
}

/* Larger messages until one takes long enough, then the same again and again: the median, since a
 * packet that is lost costs 200 ms. */
static weft_status find_link_rate(nodes_rig *rig, int peer, double seconds, double *out)
{
    const double start = weft_now_us();
    double us[MAX_TRAINS];
    int num = 0;
    order o = {.bytes = SMALLEST, .count = 1};
    WEFT_TRY(time_train(rig, peer, &o, &us[0])); /* connects */
    WEFT_TRY(time_train(rig, peer, &o, &us[0]));
    while (us[0] < TRAIN_US && o.count < MAX_COUNT) {
        if ((size_t)o.bytes < rig->bytes)
            o.bytes = 4 * (size_t)o.bytes < rig->bytes ? 4 * o.bytes : (int64_t)rig->bytes;
        else
            o.count *= 2;
        WEFT_TRY(time_train(rig, peer, &o, &us[0]));
    }
    do {
        WEFT_TRY(time_train(rig, peer, &o, &us[num]));
    } while (++num < MAX_TRAINS && (num < MIN_TRAINS || weft_now_us() - start < seconds * 1e6));
    weft_sort(us, num);
    *out = (double)o.bytes * (double)o.count / (us[num / 2] * 1e-6);
    return WEFT_OK;
}

static weft_status lead(nodes_rig *rig, int peer, double seconds, weft_nodes_link *out)
{
    const order end = {0};
    out->peer = peer;
    WEFT_TRY(find_latency(rig, peer, seconds / 4, &out->latency_us));
    WEFT_TRY(find_link_rate(rig, peer, seconds * 3 / 4, &out->bytes_per_s));
    WEFT_TRY(weft_comm_send_host(rig->world, peer, TAG, &end, sizeof end));
    return weft_comm_send_host(rig->world, peer, TAG, out, sizeof *out);
}

/* The rank at a place of a node; -1: none. */
static int rank_at(const nodes_rig *rig, int node, int place)
{
    for (int rank = 0; node >= 0 && rank < weft_comm_size(rig->world); rank++)
        if (rig->places[rank].node == node && rig->places[rank].place == place)
            return rank;
    return -1;
}

static void keep_better(weft_nodes_link *best, const weft_nodes_link *now)
{
    if (best->bytes_per_s == 0)
        *best = *now;
    best->bytes_per_s = fmax(best->bytes_per_s, now->bytes_per_s);
    best->latency_us = fmin(best->latency_us, now->latency_us);
}

/* For so many seconds each; collective. A link's numbers go to `own` where they are better. */
static weft_status nodes_measure_links(nodes_rig *rig, double seconds, weft_nodes_rank *own)
{
    const int rank = weft_comm_rank(rig->world),
              num_rounds = rig->num_nodes - 1 + rig->num_nodes % 2;
    const nodes_place *here = &rig->places[rank];
    for (int round = 0; round < WEFT_NODES_MAX_ROUNDS && round < num_rounds; round++) {
        const int place = round % rig->fewest;
        const int peer =
            here->place == place
                ? rank_at(rig, weft_nodes_peer(here->node, rig->num_nodes, round), place)
                : -1;
        weft_nodes_link found = {.peer = -1};
        char what[128];
        if (peer >= 0) {
            snprintf(what, sizeof what, "an exchange with rank %d (%s)", peer,
                     rig->places[peer].name);
            if (rig->options.entering)
                rig->options.entering(what);
            WEFT_TRY(rank < peer ? lead(rig, peer, seconds, &found) : follow(rig, peer, &found));
            found.peer = peer;
            keep_better(&own->links[round], &found);
        }
        if (rig->options.entering)
            rig->options.entering("links of other ranks");
        WEFT_TRY(weft_comm_barrier(rig->world));
    }
    return WEFT_OK;
}

/* --- a node's disk: pieces that are written and synced for a while, then read from the disk -- */

enum { PIECE = 4 << 20, MAX_PIECES = 256 };

static void fail_disk(weft_nodes_rank *own, const char *folder, const char *what)
{
    snprintf(own->fault, sizeof own->fault, "%.160s: cannot %s: %s", folder, what, strerror(errno));
}

/* A file without a name: it ends with this process. */
static int open_file(const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/.weft-doctor-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int file = mkostemp(path, O_CLOEXEC);
    if (file >= 0)
        unlink(path);
    return file;
}

static bool transfer(int file, char *piece, off_t at, bool writes)
{
    for (size_t done = 0; done < PIECE;) {
        const ssize_t now = writes ? pwrite(file, piece + done, PIECE - done, at + (off_t)done)
                                   : pread(file, piece + done, PIECE - done, at + (off_t)done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now == 0)
            errno = EIO;
        if (now <= 0)
            return false;
        done += (size_t)now;
    }
    return !writes || fdatasync(file) == 0;
}

/* Pieces from the file's begin, `most` of them or as many as the time allows; how many; -1: failed.
 */
static int write_or_read(int file, char *piece, bool writes, int most, double seconds, double *rate)
{
    const double start = weft_now_us();
    int num = 0;
    do {
        if (!transfer(file, piece, (off_t)num * PIECE, writes))
            return -1;
    } while (++num < most && weft_now_us() - start < seconds * 1e6);
    *rate = fmax(*rate, (double)num * PIECE / ((weft_now_us() - start) * 1e-6));
    return num;
}

/* Local: what cannot be written or read is own->fault. */
static void nodes_measure_disk(const char *folder, double seconds, weft_nodes_rank *own)
{
    const int file = open_file(folder);
    char *piece = malloc(PIECE);
    uint64_t x = 88172645463325252; /* xorshift: nothing that a file system could compress */
    own->fault[0] = '\0';
    for (size_t i = 0; piece && i < PIECE; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        piece[i] = (char)x;
    }
    int num = -1;
    if (file >= 0 && piece)
        num = write_or_read(file, piece, true, MAX_PIECES, seconds / 2,
                            &own->value[WEFT_NODES_WRITE]);
    if (num < 0) {
        fail_disk(own, folder, "write");
    } else {
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        if (write_or_read(file, piece, false, num, seconds / 2, &own->value[WEFT_NODES_READ]) < 0)
            fail_disk(own, folder, "read");
    }
    free(piece);
    if (file >= 0)
        close(file);
}

/* --- whether the folder is one of all nodes ------------------------------------------------ */

/* Each node's first rank leaves a file in a folder there, whose name rank 0 drew. */
typedef struct marks {
    char folder[4096];
    char own[4128];
} marks;

enum { LOOKS = 20, LOOK_US = 100000 }; /* for file systems that tell late */

static bool leave_mark(const marks *m)
{
    if (mkdir(m->folder, 0777) && errno != EEXIST)
        return false;
    const int file = open(m->own, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    const bool is_there = file >= 0 && write(file, "weft\n", 5) == 5 && fsync(file) == 0;
    return file >= 0 && close(file) == 0 && is_there;
}

/* How many marks are seen; *lowest: the lowest rank's. */
static int count_marks(const char *path, int64_t *lowest)
{
    int count = 0;
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char *end;
        const int64_t rank = strtoll(entry->d_name, &end, 10);
        if (end == entry->d_name || *end)
            continue;
        *lowest = count++ == 0 || rank < *lowest ? rank : *lowest;
    }
    if (folder)
        closedir(folder);
    return count;
}

/* Collective. *lowest: of the ranks whose marks this one sees; -1: it has left none. */
static weft_status see_marks(nodes_rig *rig, weft_nodes_rank *own, const marks *m, int64_t *lowest)
{
    const bool takes_part =
        own->first_rank == weft_comm_rank(rig->world) && !*own->fault && leave_mark(m);
    int64_t num = takes_part;
    *lowest = -1;
    if (own->first_rank == weft_comm_rank(rig->world) && !*own->fault && !takes_part)
        fail_disk(own, rig->options.folder, "write");
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, &num, 1, WEFT_I64, WEFT_REDUCE_SUM));
    for (int i = 0; takes_part && i < LOOKS && count_marks(m->folder, lowest) < num; i++)
        usleep(LOOK_US);
    WEFT_TRY(weft_comm_barrier(rig->world)); /* all have looked */
    if (own->first_rank == weft_comm_rank(rig->world))
        unlink(m->own);
    WEFT_TRY(weft_comm_barrier(rig->world));
    if (own->first_rank == weft_comm_rank(rig->world))
        rmdir(m->folder); /* another may have */
    return WEFT_OK;
}

/* Nodes see one folder where they see the same lowest mark: the largest such group has the folder
 * that is meant, of equals that of the lowest rank. */
static int64_t largest_group(const int64_t *lowest, int num_ranks, int *out_size)
{
    int64_t largest = -1;
    *out_size = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        int size = 0;
        for (int other = 0; lowest[rank] == rank && other < num_ranks; other++)
            size += lowest[other] == rank;
        if (size > *out_size)
            *out_size = size, largest = rank;
    }
    return largest;
}

/* A node with a file system of its own, whose disk compares with nobody's. */
static void set_apart(const nodes_rig *rig, const nodes_place *group, int size,
                      weft_nodes_rank *own)
{
    char others[32] = "";
    if (size > 1)
        snprintf(others, sizeof others, " and %d other%s", size - 1, size > 2 ? "s" : "");
    snprintf(own->apart, sizeof own->apart,
             "%.60s is another folder than on node %s%s: neither sees what the other writes "
             "(--local: a disk of each node)",
             rig->options.folder, group->name, others);
    own->value[WEFT_NODES_WRITE] = own->value[WEFT_NODES_READ] = 0;
}

static weft_status check_shared(nodes_rig *rig, weft_nodes_rank *own)
{
    const int num_ranks = weft_comm_size(rig->world);
    marks m;
    int64_t drawn[2] = {getpid(), (int64_t)weft_now_us()}, lowest, *all = NULL;
    int size;
    WEFT_TRY(weft_comm_broadcast_host(rig->world, drawn, sizeof drawn, 0));
    snprintf(m.folder, sizeof m.folder, "%.4000s/.weft-doctor-%llx-%llx", rig->options.folder,
             (unsigned long long)drawn[0], (unsigned long long)drawn[1]);
    snprintf(m.own, sizeof m.own, "%s/%d", m.folder, weft_comm_rank(rig->world));
    WEFT_TRY(see_marks(rig, own, &m, &lowest));
    WEFT_TRY(weft_comm_agree(rig->world, WEFT_ARRAY(rig->arena, (size_t)num_ranks, &all)));
    WEFT_TRY(weft_comm_all_gather_host(rig->world, &lowest, all, sizeof lowest));
    const int64_t group = largest_group(all, num_ranks, &size);
    if (lowest >= 0 && lowest != group)
        set_apart(rig, &rig->places[group], size, own);
    return WEFT_OK;
}

/* Of the time in all: one share for each part, so many rounds of links, and what is over to measure
 * again what stands out. */
static const double PART = 1. / 20, AGAIN_UNTIL = 0.75;
enum { MAX_PASSES = 3 };

/* --- where ranks are ----------------------------------------------------------------------- */

/* Numbers nodes by their first ranks. */
static void number_nodes(nodes_rig *rig)
{
    const int num = weft_comm_size(rig->world);
    rig->fewest = num;
    for (int rank = 0; rank < num; rank++) {
        nodes_place *p = &rig->places[rank];
        if (p->first_rank == rank) {
            p->node = rig->num_nodes++;
            rig->fewest = p->num_ranks < rig->fewest ? p->num_ranks : rig->fewest;
        } else {
            p->node = rig->places[p->first_rank].node;
        }
    }
}

static weft_status find_places(nodes_rig *rig)
{
    nodes_place own = {0};
    weft_comm *node = NULL;
    WEFT_TRY(weft_comm_split_node(rig->world, &node));
    own.first_rank = weft_comm_world_rank(node, 0);
    own.num_ranks = weft_comm_size(node);
    own.place = weft_comm_rank(node);
    weft_comm_destroy(node);
    if (gethostname(own.name, sizeof own.name - 1))
        snprintf(own.name, sizeof own.name, "?");
    WEFT_TRY(weft_comm_agree(
        rig->world, WEFT_ARRAY(rig->arena, (size_t)weft_comm_size(rig->world), &rig->places)));
    WEFT_TRY(weft_comm_all_gather_host(rig->world, &own, rig->places, sizeof own));
    number_nodes(rig);
    return WEFT_OK;
}

/* --- what a rank computes and copies ------------------------------------------------------- */

static weft_status allocate(nodes_rig *rig)
{
    const bool on_gpu = strcmp(weft_device_name(rig->device), "cuda") == 0;
    void **const matrices[] = {&rig->a, &rig->b, &rig->c};
    void *memory;
    rig->width = on_gpu ? 4096 : 1024;
    rig->bytes = (size_t)(on_gpu ? 256 : 32) << 20;
    WEFT_TRY(weft_lane_create(rig->device, 0, purpose, &rig->lane));
    for (int i = 0; i < 3; i++) {
        const size_t bytes = rig->width * rig->width * sizeof(float);
        WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, bytes, purpose, matrices[i]));
        WEFT_TRY(weft_random_normal(rig->lane,
                                    &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                               .global_dims = {bytes / sizeof(float)},
                                               .local_dims = {bytes / sizeof(float)}, .seed = 1,
                                               .std = 1, .dtype = WEFT_F32, .x = *matrices[i])));
    }
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, rig->bytes, purpose, &memory));
    rig->from = memory;
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, rig->bytes, purpose, &memory));
    rig->to = memory;
    WEFT_TRY(weft_lane_zero(rig->lane, rig->from, rig->bytes));
    WEFT_TRY(weft_lane_zero(rig->lane, rig->to, rig->bytes));
    WEFT_TRY(weft_comm_reserve(rig->world, rig->lane, 2 * rig->bytes));
    return weft_lane_sync(rig->lane);
}

static void release(nodes_rig *rig)
{
    void *const matrices[] = {rig->a, rig->b, rig->c};
    weft_lane_destroy(rig->lane);
    for (int i = 0; i < 3; i++)
        weft_device_free(rig->device, WEFT_SPACE_DEVICE, matrices[i],
                         rig->width * rig->width * sizeof(float));
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->from, rig->bytes);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->to, rig->bytes);
}

static weft_status submit(nodes_rig *rig, weft_nodes_kind kind)
{
    const size_t n = rig->width;
    if (kind == WEFT_NODES_MEMORY)
        return weft_lane_copy(rig->lane, rig->to, rig->from, rig->bytes);
    return weft_gemm(rig->lane,
                     &WEFT_ARGS(weft_gemm_args, .m = n, .n = n, .k = n, .transpose_b = true,
                                .dtype = WEFT_F32, .c_dtype = WEFT_F32, .a = rig->a, .b = rig->b,
                                .c = rig->c, .alpha = 1));
}

static weft_status run_batch(nodes_rig *rig, weft_nodes_kind kind, int num, double *out_us)
{
    const double start = weft_now_us();
    for (int i = 0; i < num; i++)
        WEFT_TRY(submit(rig, kind));
    WEFT_TRY(weft_lane_sync(rig->lane));
    *out_us = weft_now_us() - start;
    return WEFT_OK;
}

/* All that is done over all the time that it takes, in batches: who is held up again and again is
 * slow, too, and the way from this thread to the lane's and back counts little. */
static weft_status find_part_rate(nodes_rig *rig, weft_nodes_kind kind, int batch, double seconds,
                                  double *best)
{
    const double n = (double)rig->width;
    const double work = kind == WEFT_NODES_MEMORY ? (double)rig->bytes : 2 * n * n * n;
    double num = 0, us = 0, batch_us;
    do {
        WEFT_TRY(run_batch(rig, kind, batch, &batch_us));
        num += batch;
        us += batch_us;
    } while (us < seconds * 1e6);
    *best = fmax(*best, work * num / (us * 1e-6));
    return WEFT_OK;
}

/* The best of three parts: other programs come and go. */
static weft_status find_rate(nodes_rig *rig, weft_nodes_kind kind, double seconds, double *best)
{
    enum { NUM_PARTS = 3, MAX_BATCH = 256 };
    const double part_us = seconds / NUM_PARTS * 1e6;
    double us;
    WEFT_TRY(run_batch(rig, kind, 1, &us)); /* makes what the first use makes; brings memory in */
    WEFT_TRY(run_batch(rig, kind, 1, &us));
    const int batch = (int)fmax(1, fmin(part_us / 4 / us, MAX_BATCH));
    WEFT_TRY(weft_comm_barrier(rig->world));
    for (int i = 0; i < NUM_PARTS; i++)
        WEFT_TRY(find_part_rate(rig, kind, batch, part_us * 1e-6, best));
    return weft_comm_barrier(rig->world);
}

/* --- all of it ----------------------------------------------------------------------------- */

static void enter(const nodes_rig *rig, const char *what)
{
    if (rig->options.entering)
        rig->options.entering(what);
}

static weft_status measure(nodes_rig *rig, unsigned kinds, weft_nodes_rank *own)
{
    static const char *const whats[] = {"compute of all ranks", "copies of all ranks"};
    const unsigned links = 1u << WEFT_NODES_LINK | 1u << WEFT_NODES_LATENCY;
    const unsigned disk = 1u << WEFT_NODES_WRITE | 1u << WEFT_NODES_READ;
    const double seconds = rig->options.seconds * PART;
    for (int kind = WEFT_NODES_COMPUTE; kind <= WEFT_NODES_MEMORY; kind++) {
        if (!(kinds & 1u << kind))
            continue;
        enter(rig, whats[kind]);
        WEFT_TRY(find_rate(rig, (weft_nodes_kind)kind, seconds, &own->value[kind]));
    }
    if (kinds & links)
        WEFT_TRY(nodes_measure_links(rig, seconds, own));
    if (!(kinds & disk))
        return WEFT_OK;
    enter(rig, "disks of all nodes");
    WEFT_TRY(weft_comm_barrier(rig->world));
    if (own->first_rank == weft_comm_rank(rig->world) && !*own->apart)
        nodes_measure_disk(rig->options.folder, 2 * seconds, own);
    return weft_comm_barrier(rig->world);
}

/* Rank 0 judges; *again: the kinds by which something stands out. */
static weft_status judge(nodes_rig *rig, const weft_nodes_rank *own, weft_nodes *nodes,
                         unsigned *again)
{
    const bool speaks = weft_comm_rank(rig->world) == 0;
    int64_t said[2] = {0};
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_comm_gather_host(rig->world, own, nodes->ranks, sizeof *own));
    if (speaks) {
        nodes->num_odd =
            weft_nodes_judge(nodes->ranks, nodes->num_ranks, rig->options.factor, NULL, 0);
        status = nodes->num_odd < 0
                     ? WEFT_ERROR(WEFT_MEMORY, "no memory to %s", purpose)
                     : WEFT_ARRAY(rig->arena, (size_t)nodes->num_odd + 1, &nodes->odd);
        if (status == WEFT_OK)
            nodes->num_odd = weft_nodes_judge(nodes->ranks, nodes->num_ranks, rig->options.factor,
                                              nodes->odd, nodes->num_odd);
        said[0] = nodes->num_odd;
        for (int i = 0; status == WEFT_OK && i < nodes->num_odd; i++)
            said[1] |= nodes->odd[i].value > 0 ? INT64_C(1) << nodes->odd[i].kind : 0;
    }
    WEFT_TRY(weft_comm_agree(rig->world, status));
    WEFT_TRY(weft_comm_broadcast_host(rig->world, said, sizeof said, 0));
    nodes->num_odd = (int)said[0];
    *again = (unsigned)said[1];
    return WEFT_OK;
}

/* A folder that no node can write to is a mistake in the command. */
static weft_status check_folder(nodes_rig *rig, const weft_nodes_rank *own)
{
    int64_t failed = *own->fault != '\0';
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, &failed, 1, WEFT_I64, WEFT_REDUCE_SUM));
    if (failed < rig->num_nodes)
        return WEFT_OK;
    return weft_comm_agree(
        rig->world, *own->fault ? WEFT_ERROR(WEFT_CONFIG, "--path %s", own->fault) : WEFT_OK);
}

static weft_status has_time(const nodes_rig *rig, double start_us, bool *out)
{
    int64_t late = (weft_now_us() - start_us) * 1e-6 > rig->options.seconds * AGAIN_UNTIL;
    WEFT_TRY(weft_comm_broadcast_host(rig->world, &late, sizeof late, 0));
    *out = !late;
    return WEFT_OK;
}

static weft_status run(nodes_rig *rig, weft_nodes_rank *own, weft_nodes *nodes)
{
    const double start_us = weft_now_us();
    unsigned kinds = (1u << WEFT_NUM_NODES_KINDS) - 1;
    bool goes_on = true;
    for (int pass = 0; pass < MAX_PASSES && kinds && goes_on; pass++) {
        WEFT_TRY(measure(rig, kinds, own));
        if (pass == 0)
            WEFT_TRY(check_folder(rig, own));
        if (pass == 0 && rig->options.is_shared)
            WEFT_TRY(check_shared(rig, own));
        WEFT_TRY(judge(rig, own, nodes, &kinds));
        WEFT_TRY(has_time(rig, start_us, &goes_on));
    }
    return WEFT_OK;
}

static weft_status prepare(nodes_rig *rig, weft_nodes_rank *own, weft_nodes *nodes)
{
    const int rank = weft_comm_rank(rig->world);
    WEFT_TRY(find_places(rig));
    const nodes_place *place = &rig->places[rank];
    nodes->num_ranks = weft_comm_size(rig->world);
    nodes->num_nodes = rig->num_nodes;
    own->first_rank = place->first_rank;
    memcpy(own->node, place->name, sizeof own->node);
    for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++)
        own->links[i].peer = -1;
    weft_status status = WEFT_OK;
    if (rank == 0)
        status = WEFT_ARRAY(rig->arena, (size_t)nodes->num_ranks, &nodes->ranks);
    return weft_comm_agree(rig->world, status == WEFT_OK ? allocate(rig) : status);
}

weft_status weft_nodes_measure(weft_comm *world, weft_device *device,
                               const weft_nodes_options *options, weft_nodes *out)
{
    nodes_rig rig = {.world = world, .device = device, .options = *options, .arena = &out->arena};
    weft_nodes_rank own = {.first_rank = 0};
    *out = (weft_nodes){0};
    weft_status status = prepare(&rig, &own, out);
    if (status == WEFT_OK)
        status = run(&rig, &own, out);
    release(&rig);
    if (status != WEFT_OK)
        weft_nodes_release(out);
    return status;
}

void weft_nodes_release(weft_nodes *nodes)
{
    weft_arena_release(&nodes->arena);
    *nodes = (weft_nodes){0};
}
