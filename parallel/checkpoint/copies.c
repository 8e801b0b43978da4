#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/address.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/keeper.h"
#include "parallel/checkpoint/writer_internal.h"

#define NAME_FILE "copies"

/* This rank among those of its node. */
typedef struct local_place {
    int node; /* the node's first rank */
    int rank, size;
} local_place;

/* --- places -------------------------------------------------------------------------------- */

/* Collective over world. */
static weft_status find_local(weft_comm *world, const weft_copies_place *place, local_place *out)
{
    const int rank = weft_comm_rank(world), size = weft_comm_size(world);
    weft_comm *node = NULL;
    if (place->ranks_per_node > 0) {
        const int first = rank - rank % place->ranks_per_node, left = size - first;
        *out = (local_place){first, rank - first,
                             left < place->ranks_per_node ? left : place->ranks_per_node};
        return WEFT_OK;
    }
    WEFT_TRY(weft_comm_split_node(world, &node));
    *out = (local_place){weft_comm_world_rank(node, 0), weft_comm_rank(node), weft_comm_size(node)};
    weft_comm_destroy(node);
    return WEFT_OK;
}

/* PATH/weft-<name>, and this node's folder there. */
static weft_status copies_folder(const weft_copies_place *place, uint64_t name, char *all,
                                 char *own, size_t capacity)
{
    char host[128] = "";
    if (!place->node && gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "node");
    const int length = snprintf(all, capacity, "%s/weft-%016" PRIx64, place->path, name);
    if (length < 0 || (size_t)length >= capacity ||
        snprintf(own, capacity, "%s/%s", all, place->node ? place->node : host) >= (int)capacity)
        return WEFT_KEY_ERROR("checkpoint.peer_path", "%.100s...: the path is too long",
                              place->path);
    return WEFT_OK;
}

weft_status weft_copies_find_nodes(const int *node_of, int world, weft_arena *arena,
                                   weft_copies_nodes *out)
{
    weft_copies_nodes n = {0};
    WEFT_TRY(WEFT_ARRAY(arena, 4 * (size_t)world + 2, &n.node_of));
    n.position_of = n.node_of + world;
    n.ranks = n.position_of + world;
    n.first = n.ranks + world;
    memcpy(n.node_of, node_of, (size_t)world * sizeof *node_of);
    for (int rank = 0; rank < world; rank++) {
        n.num_nodes = node_of[rank] >= n.num_nodes ? node_of[rank] + 1 : n.num_nodes;
        n.position_of[rank] = n.first[node_of[rank] + 1]++;
    }
    for (int node = 0; node < n.num_nodes; node++)
        n.first[node + 1] += n.first[node];
    for (int rank = 0; rank < world; rank++)
        n.ranks[n.first[node_of[rank]] + n.position_of[rank]] = rank;
    *out = n;
    return WEFT_OK;
}

int weft_copies_peer(const weft_copies_nodes *n, int rank, int k)
{
    const int node = (n->node_of[rank] + k) % n->num_nodes;
    const int size = n->first[node + 1] - n->first[node];
    return n->ranks[n->first[node] + n->position_of[rank] % size];
}

/* --- reserving ----------------------------------------------------------------------------- */

/* What each rank tells all others. */
typedef struct address {
    int32_t node; /* its first rank */
    uint32_t address;
    uint16_t port;
    uint64_t slot_bytes;
} address;

typedef struct reserving {
    weft_checkpoint_writer *writer;
    const weft_copies_place *place;
    int num_copies, rank, world;
    weft_arena arena;
    address own, *all;
    weft_copies_nodes nodes;
    weft_copy_plan *plan; /* and its ends */
    size_t plan_bytes;
    uint64_t name;
    char folder[WEFT_COPY_FOLDER_BYTES], above[WEFT_COPY_FOLDER_BYTES];
} reserving;

static weft_status find_addresses(reserving *r, weft_comm *world)
{
    int *node_of, num_nodes = 0;
    local_place local;
    WEFT_TRY(find_local(world, r->place, &local));
    r->own.node = local.node;
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)r->world, &r->all));
    WEFT_TRY(weft_comm_all_gather_host(world, &r->own, r->all, sizeof r->own));
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)r->world, &node_of));
    for (int i = 0; i < r->world; i++) /* a node's first rank comes first */
        node_of[i] = r->all[i].node == i ? num_nodes++ : node_of[r->all[i].node];
    if (r->num_copies >= num_nodes)
        return WEFT_KEY_ERROR("checkpoint.peer_copies", "%d: the ranks are on %s", r->num_copies,
                              weft_count_text(num_nodes, "node").text);
    return weft_copies_find_nodes(node_of, r->world, &r->arena, &r->nodes);
}

/* Who copies to this rank, and to whom it does. */
static weft_status make_plan(reserving *r, const unsigned char *token)
{
    weft_copy_plan *plan;
    weft_copy_end *ends;
    size_t num = (size_t)r->num_copies;
    for (int rank = 0; rank < r->world; rank++)
        for (int k = 1; k <= r->num_copies; k++)
            num += weft_copies_peer(&r->nodes, rank, k) == r->rank;
    r->plan_bytes = sizeof *plan + num * sizeof *ends;
    WEFT_TRY(weft_arena_alloc(&r->arena, r->plan_bytes, &plan));
    ends = (void *)(plan + 1);
    plan->rank = r->rank;
    plan->world = r->world;
    memcpy(plan->token, token, sizeof plan->token);
    memcpy(plan->folder, r->folder, sizeof plan->folder);
    for (int k = 1; k <= r->num_copies; k++) {
        const int peer = weft_copies_peer(&r->nodes, r->rank, k);
        ends[plan->num_peers++] = (weft_copy_end){peer, r->all[peer].address, r->all[peer].port};
    }
    for (int rank = 0; rank < r->world; rank++)
        for (int k = 1; k <= r->num_copies; k++)
            if (weft_copies_peer(&r->nodes, rank, k) == r->rank)
                ends[plan->num_peers + plan->num_held++].rank = rank;
    r->plan = plan;
    return WEFT_OK;
}

static weft_status check_memory(const reserving *r, size_t bytes)
{
    const uint64_t left = weft_writer_memory_left();
    if (bytes > left)
        return WEFT_KEY_ERROR("checkpoint.peer_copies",
                              "%d: two states of %s take %zu bytes of host memory, of which there "
                              "are %" PRIu64 " a rank: give fewer",
                              r->num_copies, weft_count_text(1 + r->plan->num_held, "rank").text,
                              bytes, left);
    return WEFT_OK;
}

static weft_status make_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder (checkpoint.peer_path): %s", path,
                          strerror(errno));
    return WEFT_OK;
}

static weft_status make_slots(reserving *r)
{
    weft_copies *c = &r->writer->copies;
    const weft_copy_end *ends = (const void *)(r->plan + 1);
    char path[WEFT_COPY_FOLDER_BYTES + 64];
    const int count = 1 + r->plan->num_held;
    size_t bytes = 0;
    WEFT_TRY(WEFT_ARRAY(&c->arena, (size_t)count, &c->held));
    c->held[0] = r->rank;
    for (int i = 1; i < count; i++)
        c->held[i] = ends[r->plan->num_peers + i - 1].rank;
    for (int i = 0; i < count; i++)
        bytes += WEFT_COPY_SLOTS * (WEFT_SLOT_FRONT_BYTES + (size_t)r->all[c->held[i]].slot_bytes);
    WEFT_TRY(check_memory(r, bytes));
    WEFT_TRY(weft_arena_strdup(&c->arena, r->folder, &c->folder));
    WEFT_TRY(weft_arena_strdup(&c->arena, r->place->dir, &c->dir));
    WEFT_TRY(make_folder(r->above));
    WEFT_TRY(make_folder(r->folder));
    c->num_held = count;
    for (int i = 0; i < count * WEFT_COPY_SLOTS; i++) {
        const int rank = c->held[i / WEFT_COPY_SLOTS];
        WEFT_TRY(weft_copy_path(r->folder, rank, i % WEFT_COPY_SLOTS, path, sizeof path));
        WEFT_TRY(weft_slot_create(path, (size_t)r->all[rank].slot_bytes));
    }
    c->bytes = bytes;
    return WEFT_OK;
}

static weft_status listen_on(reserving *r, const weft_parameters *parameters,
                             const weft_optimizer *optimizer, size_t text_bytes)
{
    enum { PAGE = 4096, ENTRIES = 1 << 16 /* the heads and ends of lists and texts */ };
    weft_checkpoint_writer *w = r->writer;
    weft_copies *c = &w->copies;
    size_t slabs, largest, texts = 0;
    WEFT_TRY(weft_stored_collect(parameters, WEFT_NUM_STATES, &c->arena, &c->datasets));
    WEFT_TRY(weft_writer_find_bytes(optimizer, &slabs, &largest));
    if (r->rank == 0)
        texts = text_bytes + (size_t)c->datasets.count * sizeof *c->datasets.items;
    texts += texts / 256 + ENTRIES;
    r->own.slot_bytes = (slabs + texts + PAGE - 1) / PAGE * PAGE;
    r->own.address = weft_comm_own_address();
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_LISTEN, &r->own.address, sizeof r->own.address));
    WEFT_TRY(weft_writer_wait(w));
    r->own.port = (uint16_t)w->count;
    return WEFT_OK;
}

static weft_status tell_writer(reserving *r)
{
    weft_checkpoint_writer *w = r->writer;
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_COPIES, r->plan, r->plan_bytes));
    return weft_writer_wait(w);
}

/* Rank 0's: who comes next finds by it what it left. */
static weft_status write_name(const reserving *r)
{
    char text[32];
    WEFT_TRY(weft_folder_make(r->place->dir));
    snprintf(text, sizeof text, "%016" PRIx64, r->name);
    return weft_folder_point(r->place->dir, NAME_FILE, text);
}

static weft_status reserve(reserving *r, size_t text_bytes, const weft_parameters *parameters,
                           const weft_optimizer *optimizer)
{
    weft_comm *world = r->writer->world;
    struct {
        unsigned char token[WEFT_COPY_TOKEN_BYTES];
        uint64_t name;
    } drawn = {.name = 0};
    weft_status status = listen_on(r, parameters, optimizer, text_bytes);
    if (status == WEFT_OK && r->rank == 0 && getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
        status = WEFT_ERROR(WEFT_INTERNAL, "no random numbers: %s", strerror(errno));
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(weft_comm_broadcast_host(world, &drawn, sizeof drawn, 0));
    r->name = drawn.name;
    WEFT_TRY(weft_comm_agree(world, find_addresses(r, world)));
    status = copies_folder(r->place, r->name, r->above, r->folder, sizeof r->folder);
    if (status == WEFT_OK)
        status = make_plan(r, drawn.token);
    if (status == WEFT_OK && r->rank == 0)
        status = write_name(r);
    WEFT_TRY(weft_comm_agree(world, status));
    r->writer->copies.on = true;
    WEFT_TRY(weft_comm_agree(world, make_slots(r)));
    return weft_comm_agree(world, tell_writer(r));
}

weft_status weft_copies_reserve(weft_checkpoint_writer *w, const weft_copies_place *place,
                                int num_copies, size_t text_bytes,
                                const weft_parameters *parameters, const weft_optimizer *optimizer)
{
    reserving r = {.writer = w,
                   .place = place,
                   .num_copies = num_copies,
                   .rank = weft_comm_rank(w->world),
                   .world = weft_comm_size(w->world)};
    weft_error error;
    weft_status status = reserve(&r, text_bytes, parameters, optimizer);
    weft_arena_release(&r.arena);
    if (status != WEFT_OK) {
        weft_error_take(&error);
        weft_copies_release(w);
        w->copies.bytes = 0;
        weft_error_put(&error);
    }
    return status;
}

size_t weft_copies_bytes(const weft_checkpoint_writer *w)
{
    return w->copies.bytes;
}

/* Of the i-th of this rank's slots, and those it holds. */
static weft_status path_of(const weft_copies *c, int i, char *out, size_t capacity)
{
    return weft_copy_path(c->folder, c->held[i / WEFT_COPY_SLOTS], i % WEFT_COPY_SLOTS, out,
                          capacity);
}

weft_status weft_copies_clear(weft_checkpoint_writer *w)
{
    const weft_copies *c = &w->copies;
    char path[WEFT_COPY_FOLDER_BYTES + 64];
    weft_slot slot;
    for (int i = 0; c->on && i < c->num_held * WEFT_COPY_SLOTS; i++) {
        WEFT_TRY(path_of(c, i, path, sizeof path));
        if (access(path, F_OK) != 0)
            continue;
        WEFT_TRY(weft_slot_open(path, true, &slot));
        weft_slot_clear(&slot);
        weft_slot_release(&slot);
    }
    return WEFT_OK;
}

void weft_copies_release(weft_checkpoint_writer *w)
{
    weft_copies *c = &w->copies;
    char path[WEFT_COPY_FOLDER_BYTES + 64];
    if (!c->on)
        return;
    for (int i = 0; i < c->num_held * WEFT_COPY_SLOTS; i++)
        if (path_of(c, i, path, sizeof path) == WEFT_OK)
            unlink(path);
    if (c->folder && rmdir(c->folder) == 0) { /* by the last of the node's ranks */
        *strrchr(strcpy(path, c->folder), '/') = '\0';
        rmdir(path);
    }
    if (c->dir && weft_comm_rank(w->world) == 0 &&
        snprintf(path, sizeof path, "%s/%s", c->dir, NAME_FILE) < (int)sizeof path)
        unlink(path);
    c->on = false;
}

/* --- a state ------------------------------------------------------------------------------- */

static weft_status put_all(weft_checkpoint_writer *w, const char *config_text,
                           const char *tokenizer_text)
{
    const weft_stored_list *datasets = &w->copies.datasets;
    const weft_writer_open open = {.info = w->save.info,
                                   .leads = weft_comm_rank(w->world) == 0,
                                   .copies = true,
                                   .turn = w->copies.turn};
    WEFT_TRY(weft_lane_create(weft_parameters_device(w->save.parameters), 0, "checkpoint",
                              &w->save.lane));
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_OPEN, &open, sizeof open));
    WEFT_TRY(weft_writer_put_list(w, WEFT_WRITER_DATASETS, datasets->items, (size_t)datasets->count,
                                  sizeof *datasets->items));
    if (open.leads) {
        WEFT_TRY(weft_writer_put_text(w, WEFT_WRITER_CONFIG, config_text));
        WEFT_TRY(weft_writer_put_text(w, WEFT_WRITER_TOKENIZER, tokenizer_text));
    }
    WEFT_TRY(weft_writer_put_state(w));
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_FLUSH, NULL, 0));
    return weft_writer_show(w);
}

weft_status weft_copies_begin(weft_checkpoint_writer *w, const weft_checkpoint_info *info,
                              const weft_parameters *parameters, const weft_optimizer *optimizer,
                              const char *config_text, const char *tokenizer_text)
{
    const double start = weft_now_us();
    w->save = (weft_save){.info = *info,
                          .parameters = parameters,
                          .optimizer = optimizer,
                          .world = w->world,
                          .datasets = w->copies.datasets};
    w->report = (weft_writer_report){.step = info->step, .copies = true};
    const weft_status status = weft_comm_agree(w->world, put_all(w, config_text, tokenizer_text));
    w->report.stalled_us = weft_now_us() - start;
    if (status != WEFT_OK)
        return weft_writer_drop(w, status);
    weft_writer_enter(w, WEFT_WRITER_COPYING, true);
    return WEFT_OK;
}

/* --- a checkpoint made of the states that nodes hold in memory -------------------------------- */

/* A state that lies on this node, in this rank's part of its files. */
typedef struct state {
    weft_slot slot;
    weft_slot_head head;
} state;

/* What it tells rank 0. world 0: no more. */
typedef struct offer {
    int64_t step, rank, world;
} offer;

typedef struct restoring {
    weft_comm *world;
    const weft_copies_place *place;
    int64_t newer_than;
    int rank, size;
    uint64_t name;
    local_place local;
    char above[WEFT_COPY_FOLDER_BYTES], folder[WEFT_COPY_FOLDER_BYTES];
    weft_arena arena;
    state *states;
    size_t num_states, num_offers; /* room for, on the rank that has most */
    /* What rank 0 chooses. */
    weft_copies_found found;
    int64_t num_holders;
    int32_t *holders; /* by rank of the old world: who has its state */
    weft_save save;
    const char *config_text, *tokenizer_text;
} restoring;

/* --- what is there ------------------------------------------------------------------------- */

static uint64_t read_name(const char *dir)
{
    char path[4096];
    uint64_t name = 0;
    FILE *file = snprintf(path, sizeof path, "%s/%s", dir, NAME_FILE) < (int)sizeof path
                     ? fopen(path, "r")
                     : NULL;
    if (!file)
        return 0;
    if (fscanf(file, "%16" SCNx64, &name) != 1)
        name = 0;
    fclose(file);
    return name;
}

bool weft_copies_are_named(const char *dir)
{
    return read_name(dir) != 0;
}

/* Maps a file that holds a state which is newer and whole. */
static void look_at(restoring *r, const char *file)
{
    char path[WEFT_COPY_FOLDER_BYTES + 256];
    state *s = &r->states[r->num_states];
    snprintf(path, sizeof path, "%s/%.200s", r->folder, file);
    if (weft_slot_open(path, false, &s->slot) != WEFT_OK) {
        weft_error_clear();
        return;
    }
    if (weft_slot_read_head(&s->slot, &s->head) && s->head.info.step > r->newer_than) {
        if (weft_slot_is_whole(&s->slot, &s->head)) {
            r->num_states++;
            return;
        }
        weft_log(WEFT_LOG_WARN,
                 "%s: the copy of rank %" PRId64 "'s state of step %" PRId64
                 " is damaged: the hash differs",
                 path, s->head.rank, s->head.info.step);
    }
    weft_slot_release(&s->slot);
}

static int compare_entries(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_state(const struct dirent *entry)
{
    return strncmp(entry->d_name, "rank-", 5) == 0;
}

/* Every size-th file of the node, from this rank's place on. */
static weft_status look(restoring *r)
{
    struct dirent **files = NULL;
    void *memory;
    const int count = scandir(r->folder, &files, is_state, compare_entries);
    weft_status status = weft_arena_alloc_array(&r->arena, count > 0 ? (size_t)count : 1,
                                                sizeof *r->states, &memory);
    if (status == WEFT_OK)
        r->states = memory;
    for (int i = 0; i < count; i++) {
        if (status == WEFT_OK && i % r->local.size == r->local.rank)
            look_at(r, files[i]->d_name);
        free(files[i]);
    }
    free(files);
    return status;
}

/* --- what is whole ------------------------------------------------------------------------- */

/* Rank 0: who has the states of `step`; the first rank whose state nobody has, or -1. */
static int64_t find_holders(restoring *r, const offer *all, int64_t step)
{
    for (int64_t i = 0; i < r->num_holders; i++)
        r->holders[i] = -1;
    for (size_t i = 0; i < (size_t)r->size * r->num_offers; i++)
        if (all[i].world == r->num_holders && all[i].step == step)
            r->holders[all[i].rank] = (int32_t)(i / r->num_offers);
    for (int64_t i = 0; i < r->num_holders; i++)
        if (r->holders[i] < 0)
            return i;
    return -1;
}

/* Rank 0: the newest step whose states are all there. */
static weft_status choose(restoring *r, const offer *all)
{
    const size_t count = (size_t)r->size * r->num_offers;
    int64_t below = INT64_MAX;
    for (size_t i = 0; i < count; i++)
        r->num_holders = all[i].world > r->num_holders ? all[i].world : r->num_holders;
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)r->num_holders, &r->holders));
    for (;;) {
        int64_t step = -1;
        for (size_t i = 0; i < count; i++)
            if (all[i].world > 0 && all[i].step < below && all[i].step > step)
                step = all[i].step;
        if (step < 0)
            return WEFT_OK;
        const int64_t missing = find_holders(r, all, step);
        if (missing < 0) {
            r->found.step = step;
            r->found.num_ranks = (int)r->num_holders;
            return WEFT_OK;
        }
        if (r->found.newest < 0) {
            r->found.newest = step;
            r->found.missing = (int)missing;
        }
        below = step;
    }
}

static weft_status gather(restoring *r, offer **out)
{
    int64_t most = (int64_t)r->num_states;
    void *own, *all;
    WEFT_TRY(weft_comm_all_reduce_host(r->world, &most, 1, WEFT_I64, WEFT_REDUCE_MAX));
    r->num_offers = (size_t)most;
    weft_status status = weft_arena_alloc_array(&r->arena, r->num_offers + 1, sizeof(offer), &own);
    if (status == WEFT_OK)
        status = weft_arena_alloc_array(&r->arena, (size_t)r->size * r->num_offers + 1,
                                        sizeof(offer), &all);
    WEFT_TRY(weft_comm_agree(r->world, status));
    offer *offers = own;
    for (size_t i = 0; i < r->num_states; i++) {
        const weft_slot_head *head = &r->states[i].head;
        offers[i] = (offer){head->info.step, head->rank, head->world};
    }
    if (most > 0)
        WEFT_TRY(weft_comm_gather_host(r->world, own, all, r->num_offers * sizeof(offer)));
    *out = all;
    return WEFT_OK;
}

/* All ranks learn the step, and who brings which state. */
static weft_status agree_on_step(restoring *r)
{
    offer *all = NULL;
    void *memory;
    r->found = (weft_copies_found){.step = -1, .newest = -1};
    WEFT_TRY(gather(r, &all));
    WEFT_TRY(weft_comm_agree(r->world, r->rank == 0 ? choose(r, all) : WEFT_OK));
    WEFT_TRY(weft_comm_broadcast_host(r->world, &r->found, sizeof r->found, 0));
    if (r->found.step < 0)
        return WEFT_OK;
    WEFT_TRY(weft_comm_broadcast_host(r->world, &r->num_holders, sizeof r->num_holders, 0));
    weft_status status = WEFT_OK;
    if (r->rank > 0) {
        status =
            weft_arena_alloc_array(&r->arena, (size_t)r->num_holders, sizeof *r->holders, &memory);
        r->holders = status == WEFT_OK ? memory : NULL;
    }
    WEFT_TRY(weft_comm_agree(r->world, status));
    return weft_comm_broadcast_host(r->world, r->holders,
                                    (size_t)r->num_holders * sizeof *r->holders, 0);
}

/* --- the checkpoint ------------------------------------------------------------------------ */

static bool is_mine(const restoring *r, const state *s)
{
    return s->head.info.step == r->found.step && r->holders[s->head.rank] == r->rank;
}

/* What rank 0's state has beside its slabs. */
typedef struct texts {
    weft_checkpoint_info info;
    uint64_t bytes[WEFT_WRITER_TOKENIZER + 1]; /* by kind of entry */
} texts;

static void measure(const state *s, texts *out)
{
    uint64_t at = 0;
    out->info = s->head.info;
    for (const weft_staging_entry *e; (e = weft_slot_next(&s->slot, &s->head, &at));)
        if (e->kind <= WEFT_WRITER_TOKENIZER)
            out->bytes[e->kind] += e->bytes;
}

/* The entries of a kind, one behind the other. */
static void join(const state *s, weft_writer_entry kind, char *out)
{
    uint64_t at = 0;
    for (const weft_staging_entry *e; (e = weft_slot_next(&s->slot, &s->head, &at));)
        if (e->kind == kind) {
            memcpy(out, e + 1, (size_t)e->bytes);
            out += e->bytes;
        }
}

/* Whoever brings rank 0's state gives all others what it has of a kind. NULL: nothing. */
static weft_status share(restoring *r, const state *from, const texts *t, weft_writer_entry kind,
                         void **out)
{
    const size_t bytes = (size_t)t->bytes[kind];
    WEFT_TRY(weft_comm_agree(r->world, weft_arena_alloc(&r->arena, bytes + 1, out)));
    if (from)
        join(from, kind, *out);
    if (bytes == 0)
        *out = NULL;
    return bytes > 0 ? weft_comm_broadcast_host(r->world, *out, bytes, r->holders[0]) : WEFT_OK;
}

static weft_status share_texts(restoring *r)
{
    texts t = {.bytes = {0}};
    const state *from = NULL;
    void *datasets, *config, *tokenizer;
    for (size_t i = 0; i < r->num_states; i++)
        if (r->states[i].head.rank == 0 && is_mine(r, &r->states[i]))
            from = &r->states[i];
    if (from)
        measure(from, &t);
    WEFT_TRY(weft_comm_broadcast_host(r->world, &t, sizeof t, r->holders[0]));
    WEFT_TRY(share(r, from, &t, WEFT_WRITER_DATASETS, &datasets));
    WEFT_TRY(share(r, from, &t, WEFT_WRITER_CONFIG, &config));
    WEFT_TRY(share(r, from, &t, WEFT_WRITER_TOKENIZER, &tokenizer));
    if (!datasets || !config)
        return WEFT_ERROR(WEFT_INTERNAL, "the state of rank 0 has no datasets or no config");
    r->save = (weft_save){
        .info = t.info,
        .world = r->world,
        .dir = r->place->dir,
        .datasets = {datasets, (int)(t.bytes[WEFT_WRITER_DATASETS] / sizeof(weft_stored))}};
    r->config_text = config;
    r->tokenizer_text = tokenizer;
    return WEFT_OK;
}

static weft_status check_slab(const restoring *r, const weft_staging_entry *entry)
{
    const weft_stored_list *datasets = &r->save.datasets;
    const weft_stored_shard *shard = (const void *)(entry + 1);
    bool good = shard->dataset >= 0 && shard->dataset < datasets->count;
    if (good) {
        const weft_stored *dataset = &datasets->items[shard->dataset];
        for (int d = 0; d < dataset->num_dims; d++)
            good = good && shard->start[d] <= dataset->dims[d] &&
                   shard->count[d] <= dataset->dims[d] - shard->start[d];
        good = good && weft_shard_elements(shard, dataset->num_dims) * sizeof(float) ==
                           entry->bytes - sizeof *shard;
    }
    return good ? WEFT_OK : WEFT_ERROR(WEFT_INTERNAL, "a copy has a slab of no dataset");
}

static weft_status write_state(restoring *r, weft_raw_file *file, const state *s)
{
    weft_save *save = &r->save;
    uint64_t at = 0;
    for (const weft_staging_entry *e; (e = weft_slot_next(&s->slot, &s->head, &at));) {
        const weft_stored_shard *shard = (const void *)(e + 1);
        if (e->kind != WEFT_WRITER_SLAB)
            continue;
        WEFT_TRY(check_slab(r, e));
        WEFT_TRY(weft_raw_write(file, &save->datasets.items[shard->dataset], shard,
                                (const void *)(shard + 1)));
        WEFT_TRY(weft_shard_append(&save->shards, &save->arena, shard));
        r->found.bytes += e->bytes - sizeof *shard;
    }
    return WEFT_OK;
}

static weft_status write_states(restoring *r)
{
    weft_raw_file file = {.fd = -1};
    weft_status status = weft_raw_open(r->save.model, &file);
    for (size_t i = 0; status == WEFT_OK && i < r->num_states; i++)
        if (is_mine(r, &r->states[i]))
            status = write_state(r, &file, &r->states[i]);
    if (status == WEFT_OK)
        return weft_raw_close(&file, true);
    if (file.fd >= 0)
        close(file.fd);
    return status;
}

static weft_status save_phases(restoring *r)
{
    weft_save *s = &r->save;
    weft_status status = WEFT_OK;
    const bool leads = r->rank == 0;
    WEFT_TRY(weft_save_open(s, WEFT_OK));
    WEFT_TRY(weft_comm_agree(r->world, write_states(r)));
    WEFT_TRY(weft_comm_agree(r->world, weft_save_gather(s)));
    if (leads)
        status = weft_shards_check_cover(s->model, &s->datasets, &s->shards);
    if (status == WEFT_OK)
        status = weft_save_verify(s->model, &s->datasets, &s->dealt);
    WEFT_TRY(weft_comm_agree(r->world, status));
    if (leads)
        status = weft_save_publish(s, r->config_text, r->tokenizer_text);
    WEFT_TRY(weft_comm_agree(r->world, status));
    int64_t bytes = (int64_t)r->found.bytes;
    WEFT_TRY(weft_comm_all_reduce_host(r->world, &bytes, 1, WEFT_I64, WEFT_REDUCE_SUM));
    r->found.bytes = (uint64_t)bytes;
    return WEFT_OK;
}

static weft_status make_checkpoint(restoring *r)
{
    WEFT_TRY(weft_comm_agree(r->world, share_texts(r)));
    weft_status status = save_phases(r);
    weft_save_release(&r->save, status != WEFT_OK);
    return status;
}

/* --- all of it ----------------------------------------------------------------------------- */

/* What the start before took. Its ranks are gone. */
static void give_back(const restoring *r)
{
    char path[4096];
    weft_folder_remove(r->folder);
    rmdir(r->above);
    if (r->rank == 0 &&
        snprintf(path, sizeof path, "%s/%s", r->place->dir, NAME_FILE) < (int)sizeof path)
        unlink(path);
}

static weft_status restore(restoring *r)
{
    int64_t told[2] = {r->newer_than, 0};
    if (r->rank == 0) {
        r->name = read_name(r->place->dir);
        memcpy(&told[1], &r->name, sizeof r->name);
    }
    WEFT_TRY(weft_comm_broadcast_host(r->world, told, sizeof told, 0));
    r->newer_than = told[0];
    memcpy(&r->name, &told[1], sizeof r->name);
    if (r->name == 0)
        return WEFT_OK;
    WEFT_TRY(find_local(r->world, r->place, &r->local));
    weft_status status = copies_folder(r->place, r->name, r->above, r->folder, sizeof r->folder);
    if (status == WEFT_OK)
        status = look(r);
    WEFT_TRY(weft_comm_agree(r->world, status));
    WEFT_TRY(agree_on_step(r));
    if (r->found.step >= 0)
        WEFT_TRY(make_checkpoint(r));
    WEFT_TRY(weft_comm_barrier(r->world));
    give_back(r);
    return WEFT_OK;
}

weft_status weft_copies_restore(weft_comm *world, const weft_copies_place *place,
                                int64_t newer_than, weft_copies_found *out)
{
    restoring r = {.world = world,
                   .place = place,
                   .newer_than = newer_than,
                   .rank = weft_comm_rank(world),
                   .size = weft_comm_size(world),
                   .found = {.step = -1, .newest = -1}};
    weft_status status = restore(&r);
    for (size_t i = 0; i < r.num_states; i++)
        weft_slot_release(&r.states[i].slot);
    weft_arena_release(&r.arena);
    if (status == WEFT_OK)
        *out = r.found;
    return status;
}
