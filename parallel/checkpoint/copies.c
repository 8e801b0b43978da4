#include "parallel/checkpoint/checkpoint.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/address.h"
#include "core/clock.h"
#include "core/text.h"
#include "parallel/checkpoint/copies_internal.h"
#include "parallel/checkpoint/writer_internal.h"

/* --- places -------------------------------------------------------------------------------- */

weft_status weft_copies_find_local(weft_comm *world, const weft_copies_place *place,
                                   weft_copies_local *out)
{
    const int rank = weft_comm_rank(world), size = weft_comm_size(world);
    weft_comm *node = NULL;
    if (place->ranks_per_node > 0) {
        const int first = rank - rank % place->ranks_per_node, left = size - first;
        *out = (weft_copies_local){first, rank - first,
                                   left < place->ranks_per_node ? left : place->ranks_per_node};
        return WEFT_OK;
    }
    WEFT_TRY(weft_comm_split_node(world, &node));
    *out = (weft_copies_local){weft_comm_world_rank(node, 0), weft_comm_rank(node),
                               weft_comm_size(node)};
    weft_comm_destroy(node);
    return WEFT_OK;
}

weft_status weft_copies_folder(const weft_copies_place *place, uint64_t name, char *all, char *own,
                               size_t capacity)
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
    weft_copies_local local;
    WEFT_TRY(weft_copies_find_local(world, r->place, &local));
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
    return weft_folder_point(r->place->dir, WEFT_COPIES_NAME, text);
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
    status = weft_copies_folder(r->place, r->name, r->above, r->folder, sizeof r->folder);
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
        snprintf(path, sizeof path, "%s/%s", c->dir, WEFT_COPIES_NAME) < (int)sizeof path)
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
