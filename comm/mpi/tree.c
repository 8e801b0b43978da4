#include "comm/mpi/tree.h"

#include <stdlib.h>
#include <string.h>

#include "comm/fold.h"

int weft_mpi_leader_children(int index, int count, int *out_parent,
                             int out_children[WEFT_MPI_MAX_LEADER_CHILDREN])
{
    int num = 0;
    *out_parent = index > 0 ? index & (index - 1) : -1;
    for (int bit = 1; bit < count - index && !(index & bit); bit *= 2)
        out_children[num++] = index + bit;
    return num;
}

/* --- making a tree ------------------------------------------------------------------------- */

/* What a leader learns from the others: ranks of the group, and how many stand below them. */
typedef struct leader {
    int parent, num_children;
    weft_mpi_branch children[WEFT_MPI_MAX_LEADER_CHILDREN];
} leader;

static weft_status translate(MPI_Comm leaders, MPI_Comm handle, int count, const int *ranks,
                             int *out)
{
    MPI_Group from, to;
    WEFT_TRY(WEFT_MPI(MPI_Comm_group(leaders, &from)));
    weft_status status = WEFT_MPI(MPI_Comm_group(handle, &to));
    if (status == WEFT_OK) {
        status = WEFT_MPI(MPI_Group_translate_ranks(from, count, ranks, to, out));
        MPI_Group_free(&to);
    }
    MPI_Group_free(&from);
    return status;
}

/* Counts ranks from the leaves on: a leader hears from its children, then tells its parent. */
static weft_status count_ranks(MPI_Comm leaders, const int *places, int parent, int num_near,
                               leader *own)
{
    const int tag = 0;
    uint64_t sum = (uint64_t)num_near;
    for (int i = 0; i < own->num_children; i++) {
        uint64_t below;
        WEFT_TRY(WEFT_MPI(
            MPI_Recv(&below, 1, MPI_UINT64_T, places[i], tag, leaders, MPI_STATUS_IGNORE)));
        own->children[i].num_ranks = (size_t)below;
        sum += below;
    }
    if (parent < 0)
        return WEFT_OK;
    return WEFT_MPI(MPI_Send(&sum, 1, MPI_UINT64_T, parent, tag, leaders));
}

static weft_status join_leaders(MPI_Comm leaders, MPI_Comm handle, int num_near, leader *own)
{
    int index, count, parent, places[WEFT_MPI_MAX_LEADER_CHILDREN + 1];
    int ranks[WEFT_MPI_MAX_LEADER_CHILDREN + 1];
    WEFT_TRY(WEFT_MPI(MPI_Comm_rank(leaders, &index)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(leaders, &count)));
    own->num_children = weft_mpi_leader_children(index, count, &parent, places);
    places[own->num_children] = parent < 0 ? 0 : parent;
    WEFT_TRY(translate(leaders, handle, own->num_children + 1, places, ranks));
    own->parent = parent < 0 ? -1 : ranks[own->num_children];
    for (int i = 0; i < own->num_children; i++)
        own->children[i].rank = ranks[i];
    return count_ranks(leaders, places, parent, num_near, own);
}

/* A leader's children are the other ranks of its node and the leaders below it. */
static weft_status build(const leader *own, bool leads, const int *near, int num_near,
                         weft_mpi_tree **out)
{
    int num_others = leads ? num_near - 1 : 0, num_below = leads ? own->num_children : 0;
    size_t num = (size_t)(num_others + num_below);
    weft_mpi_tree *tree = calloc(1, sizeof *tree + num * sizeof tree->children[0]);
    if (!tree)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tree of a group");
    tree->parent = leads ? own->parent : near[0];
    tree->num_children = (int)num;
    for (int i = 0; i < num_others; i++)
        tree->children[i] = (weft_mpi_branch){near[i + 1], 1};
    for (int i = 0; i < num_below; i++)
        tree->children[num_others + i] = own->children[i];
    tree->num_ranks = 1;
    for (size_t i = 0; i < num; i++)
        tree->num_ranks += tree->children[i].num_ranks;
    *out = tree;
    return WEFT_OK;
}

static weft_status create(MPI_Comm handle, int rank, const int *near, int num_near,
                          weft_mpi_tree **out)
{
    MPI_Comm leaders;
    leader own = {0};
    bool leads = near[0] == rank;
    WEFT_TRY(WEFT_MPI(MPI_Comm_split(handle, leads ? 0 : MPI_UNDEFINED, rank, &leaders)));
    if (leads) {
        weft_status status = join_leaders(leaders, handle, num_near, &own);
        MPI_Comm_free(&leaders);
        WEFT_TRY(status);
    }
    return build(&own, leads, near, num_near, out);
}

weft_status weft_mpi_tree_create(MPI_Comm handle, weft_mpi_tree **out)
{
    int rank, size, num_near, *near;
    *out = NULL;
    WEFT_TRY(WEFT_MPI(MPI_Comm_rank(handle, &rank)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(handle, &size)));
    WEFT_TRY(weft_mpi_near_ranks(handle, &near, &num_near));
    weft_status status = WEFT_OK;
    if (num_near < size) /* so it is for all of them */
        status = create(handle, rank, near, num_near, out);
    free(near);
    return status;
}

/* --- running an operation ------------------------------------------------------------------ */

/* Rank 0 holds what all ranks bring in a round: a few small pieces a rank. */
enum { MAX_BLOCK_BYTES = 4 << 20, HEADER_BYTES = sizeof(int64_t) };

bool weft_mpi_tree_serves(const weft_comm_op *op)
{
    bool kind = op->kind == WEFT_COMM_ALL_REDUCE || op->kind == WEFT_COMM_ALL_GATHER ||
                op->kind == WEFT_COMM_GATHER;
    return kind && ((const weft_mpi_comm *)op->comm)->tree;
}

/* What one rank brings. */
static size_t share_bytes(const weft_comm_op *op)
{
    return op->kind == WEFT_COMM_ALL_REDUCE ? op->bytes : op->bytes / (size_t)op->comm->size;
}

/* A round serves `bytes` of every share from `start`. An entry is a rank's number and its part;
 * a block is the entries of a rank and all below it. */
typedef struct part {
    size_t start, bytes, entry;
} part;

static part part_of(const weft_mpi_run *run, const weft_mpi_slot *slot)
{
    size_t share = share_bytes(run->op), start = (size_t)slot->round * run->piece;
    size_t bytes = share - start < run->piece ? share - start : run->piece;
    return (part){start, bytes, HEADER_BYTES + (bytes + 7) / 8 * 8};
}

static bool is_gathered(const weft_comm_op *op)
{
    return op->kind == WEFT_COMM_ALL_GATHER;
}

/* Where all ranks' entries stand: on rank 0 in the block that it collects, elsewhere behind it. */
static char *gathered(const weft_mpi_run *run, weft_mpi_slot *slot, const part *p)
{
    const weft_mpi_tree *tree = run->comm->tree;
    return (char *)slot->scratch + (tree->parent < 0 ? 0 : tree->num_ranks * p->entry);
}

static weft_status begin(weft_mpi_run *run, weft_mpi_slot *slot, const part *p)
{
    const weft_mpi_tree *tree = run->comm->tree;
    const weft_comm_op *op = run->op;
    size_t num = tree->num_ranks;
    if (is_gathered(op) && tree->parent >= 0)
        num += (size_t)op->comm->size;
    WEFT_TRY(weft_mpi_slot_reserve(slot, num * p->entry));
    int64_t rank = op->comm->rank;
    memcpy(slot->scratch, &rank, sizeof rank);
    if (p->bytes > 0)
        memcpy((char *)slot->scratch + HEADER_BYTES, (const char *)op->send + p->start, p->bytes);
    return WEFT_OK;
}

static int tag_up(const weft_mpi_run *run, const weft_mpi_slot *slot)
{
    return weft_mpi_tag(run, slot) - slot->phase;
}

static int tag_down(const weft_mpi_run *run, const weft_mpi_slot *slot)
{
    return tag_up(run, slot) + 1;
}

static weft_status receive_blocks(weft_mpi_run *run, weft_mpi_slot *slot, const part *p)
{
    const weft_mpi_tree *tree = run->comm->tree;
    char *to = (char *)slot->scratch + p->entry;
    for (int i = 0; i < tree->num_children; i++) {
        size_t bytes = tree->children[i].num_ranks * p->entry;
        WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, tree->children[i].rank,
                                    tag_up(run, slot), to, bytes));
        to += bytes;
    }
    return WEFT_OK;
}

/* The result of a round: where it stands, and its size; nothing for those who get none. */
static void *result_of(weft_mpi_run *run, weft_mpi_slot *slot, const part *p, size_t *out_bytes)
{
    const weft_comm_op *op = run->op;
    if (is_gathered(op)) {
        *out_bytes = (size_t)op->comm->size * p->entry;
        return gathered(run, slot, p);
    }
    *out_bytes = p->bytes;
    return (char *)op->recv + p->start;
}

static weft_status send_up(weft_mpi_run *run, weft_mpi_slot *slot, const part *p)
{
    const weft_mpi_tree *tree = run->comm->tree;
    size_t bytes;
    WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, tree->parent, tag_up(run, slot),
                                slot->scratch, tree->num_ranks * p->entry));
    if (run->op->kind == WEFT_COMM_GATHER)
        return WEFT_OK;
    void *result = result_of(run, slot, p, &bytes);
    return weft_mpi_post_recv(run->comm, &slot->batch, tree->parent, tag_down(run, slot), result,
                              bytes);
}

static weft_status send_down(weft_mpi_run *run, weft_mpi_slot *slot, const part *p)
{
    const weft_mpi_tree *tree = run->comm->tree;
    size_t bytes;
    void *result = result_of(run, slot, p, &bytes);
    for (int i = 0; i < tree->num_children; i++)
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, tree->children[i].rank,
                                    tag_down(run, slot), result, bytes));
    return WEFT_OK;
}

/* Rank 0 folds in rank order. */
static void fold(weft_mpi_run *run, const char *entries, const part *p)
{
    const weft_comm_op *op = run->op;
    const void **inputs = run->work->inputs;
    for (int i = 0; i < op->comm->size; i++) {
        int64_t rank;
        memcpy(&rank, entries + (size_t)i * p->entry, sizeof rank);
        inputs[rank] = entries + (size_t)i * p->entry + HEADER_BYTES;
    }
    weft_fold(op->dtype, op->reduce, inputs, op->comm->size, (char *)op->recv + p->start,
              p->bytes / weft_dtype_bytes(op->dtype));
}

/* Puts every entry at its rank's place. */
static void unpack(const weft_comm_op *op, const char *entries, const part *p)
{
    size_t share = share_bytes(op);
    for (int i = 0; p->bytes > 0 && i < op->comm->size; i++) {
        int64_t rank;
        memcpy(&rank, entries + (size_t)i * p->entry, sizeof rank);
        memcpy((char *)op->recv + (size_t)rank * share + p->start,
               entries + (size_t)i * p->entry + HEADER_BYTES, p->bytes);
    }
}

/* Rank 0 once it has all entries, others once they have the result. */
static void take(weft_mpi_run *run, weft_mpi_slot *slot, const part *p)
{
    const weft_comm_op *op = run->op;
    bool root = run->comm->tree->parent < 0;
    if (root && op->kind == WEFT_COMM_ALL_REDUCE)
        fold(run, slot->scratch, p);
    else if (is_gathered(op) || (root && op->kind == WEFT_COMM_GATHER))
        unpack(op, gathered(run, slot, p), p);
}

/* Up, then down. A leaf has nothing to wait for before it sends; rank 0 sends nothing up. */
static weft_status step_tree(weft_mpi_run *run, weft_mpi_slot *slot)
{
    enum { COLLECT, SEND_UP, SEND_DOWN };
    const weft_mpi_tree *tree = run->comm->tree;
    bool leaf = tree->num_children == 0, root = tree->parent < 0;
    int phase = slot->phase + leaf + (root && slot->phase > 0);
    part p = part_of(run, slot);
    if (slot->phase == 0)
        WEFT_TRY(begin(run, slot, &p));
    if (phase == COLLECT)
        return receive_blocks(run, slot, &p);
    if (phase == SEND_UP)
        return send_up(run, slot, &p);
    if (phase > SEND_DOWN)
        return WEFT_OK;
    take(run, slot, &p);
    return run->op->kind == WEFT_COMM_GATHER ? WEFT_OK : send_down(run, slot, &p);
}

void weft_mpi_tree_prepare(weft_mpi_run *run)
{
    const weft_comm_op *op = run->op;
    size_t share = share_bytes(op), element = weft_dtype_bytes(op->dtype);
    size_t piece = MAX_BLOCK_BYTES / (size_t)op->comm->size / element * element;
    run->piece = piece > element ? piece : element;
    run->step = step_tree;
    run->num_rounds = share > 0 ? (share + run->piece - 1) / run->piece : 1;
}
