/* States that lie in the memory of other nodes, here folders: whichever nodes are lost, the newest
 * step whose states are all left, and whose hashes are right, becomes a checkpoint with the bits of
 * that step, for any mesh; else none does. Runs on 4 ranks, each a node. */
#include <signal.h>
#include <unistd.h>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/writer_internal.h"
#include "state_model.h"

enum { RANKS = 4, NUM_WRITERS = 5 };

static weft_checkpoint_writer *writers[NUM_WRITERS];
static weft_comm *world;
static int rank;
static char root[] = "test_copies_XXXXXX";

/* --- a state known by its step -------------------------------------------------------------- */

static size_t visit_state(const state_model *m, int64_t step, bool set)
{
    size_t unlike = 0;
    uint64_t index;
    for (int i = 0; i < weft_optimizer_num_pieces(m->optimizer); i++) {
        weft_state_piece piece = weft_optimizer_piece(m->optimizer, i);
        uint64_t stream = weft_rng_stream_of(piece.placed->parameter.name);
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++)
            for (size_t e = 0; e < piece.count; e++) {
                if (!state_global_index(&piece.placed->box, piece.first + e, &index))
                    continue;
                const float value = weft_rng_normal(
                    (uint64_t)step, weft_rng_stream_mix(stream, (uint64_t)kind), index);
                if (set)
                    piece.data[kind][e] = value;
                unlike += piece.data[kind][e] != value;
            }
    }
    return unlike;
}

/* By rank 0, while the others wait. */
static void shell(const char *command)
{
    EXPECT_OK(weft_comm_barrier(world));
    if (rank == 0)
        EXPECT(system(command) == 0, "%s", command);
    EXPECT_OK(weft_comm_barrier(world));
}

static weft_copies_place place_of(int node)
{
    static char dir[64], path[64], name[16];
    snprintf(dir, sizeof dir, "%s/run", root);
    snprintf(path, sizeof path, "%s/memory", root);
    snprintf(name, sizeof name, "node%d", node);
    return (weft_copies_place){dir, path, name, 1};
}

static weft_checkpoint_info info_of(int64_t step)
{
    return (weft_checkpoint_info){.step = step, .consumed_tokens = 10 * step, .seed = 77};
}

/* --- taking copies ------------------------------------------------------------------------- */

static bool create(state_model *m, weft_comm *among, const char *mesh)
{
    const weft_optimizer_options options = {.sharding = WEFT_SHARD_OPTIM};
    return state_model_create(m, among, mesh, WEFT_F32, &options);
}

static void copy_step(weft_checkpoint_writer *w, state_model *m, int64_t step)
{
    const weft_checkpoint_info info = info_of(step);
    bool published = true;
    visit_state(m, step, true);
    EXPECT_OK(weft_copies_begin(w, &info, m->parameters, m->optimizer, "{\"a\": 1}",
                                "{\"kind\": \"bytes\"}"));
    visit_state(m, step + 50, true); /* training goes on */
    EXPECT_OK(weft_checkpoint_finish(w, &published));
    EXPECT(!published && !weft_checkpoint_writer_is_busy(w), "published");
    EXPECT(weft_checkpoint_writer_report(w).copies, "no copies");
}

/* Steps 1 and 2 lie in memory when the job dies. */
static void copy_steps(weft_checkpoint_writer *w, int num_copies)
{
    const weft_copies_place place = place_of(rank);
    state_model m;
    shell("rm -rf $D/*; mkdir $D/memory");
    if (create(&m, world, "tp=2,pp=2")) {
        EXPECT_OK(weft_checkpoint_writer_reserve(w, m.parameters, m.optimizer, 0));
        EXPECT_OK(weft_copies_reserve(w, &place, num_copies, 100, m.parameters, m.optimizer));
        EXPECT(weft_copies_bytes(w) > (size_t)(1 + num_copies) * 2 * 10000, "%zu bytes",
               weft_copies_bytes(w));
        EXPECT(weft_copies_are_named(place.dir), "no name");
        copy_step(w, &m, 1);
        copy_step(w, &m, 2);
    }
    state_model_release(&m);
    shell("mkdir $D/kept; cp -a $D/run $D/memory $D/kept");
}

/* --- what is left -------------------------------------------------------------------------- */

typedef struct loss {
    const char *what; /* a command in the folder of nodes */
    int64_t step;     /* that is made a checkpoint; -1: none */
    int64_t newest;   /* of those that are not whole */
    int missing;      /* a rank of that */
} loss;

static void expect_checkpoint(weft_comm *among, const char *mesh, int64_t step, const char *what)
{
    state_model m;
    weft_checkpoint_info info = {0};
    const char *folder = "", *text = "";
    if (create(&m, among, mesh)) {
        EXPECT_OK(weft_checkpoint_resolve(place_of(0).dir, &m.arena, &folder));
        EXPECT_OK(weft_checkpoint_read_info(folder, &info));
        EXPECT(info.step == step && info.consumed_tokens == 10 * step && info.seed == 77, "%s: %s",
               what, folder);
        EXPECT_OK(weft_checkpoint_read_config(folder, &m.arena, &text));
        EXPECT(strcmp(text, "{\"a\": 1}") == 0, "%s: %s", what, text);
        EXPECT_OK(weft_checkpoint_read_tokenizer(folder, &m.arena, &text));
        EXPECT(text && strcmp(text, "{\"kind\": \"bytes\"}") == 0, "%s: %s", what, text);
        EXPECT_OK(weft_checkpoint_load(folder, m.parameters, m.optimizer, m.compute));
        EXPECT(visit_state(&m, step, false) == 0, "%s: not what was copied", what);
    }
    state_model_release(&m);
}

/* The job starts again on ranks of `among`, each on the node of its number times `stride`. */
static void restore(weft_comm *among, int stride, const char *mesh, int64_t newer_than,
                    const loss *l)
{
    char command[256];
    shell("cd $D && rm -rf run memory && cp -a kept/run kept/memory .");
    snprintf(command, sizeof command, "cd $D/memory/weft-* && %s", l->what);
    shell(command);
    if (among) {
        const weft_copies_place place = place_of(stride * weft_comm_rank(among));
        weft_copies_found found = {.step = -7};
        EXPECT_OK(weft_copies_restore(among, &place, newer_than, &found));
        EXPECT(found.step == l->step, "%s: step %lld", l->what, (long long)found.step);
        if (l->step >= 0)
            EXPECT(found.num_ranks == RANKS && found.bytes > 40000, "%s: %llu bytes", l->what,
                   (unsigned long long)found.bytes);
        else
            EXPECT(found.newest == l->newest && (l->newest < 0 || found.missing == l->missing),
                   "%s: newest %lld, rank %d", l->what, (long long)found.newest, found.missing);
        EXPECT(rank > 0 || !weft_copies_are_named(place.dir), "%s: a name is left", l->what);
        if (l->step >= 0)
            expect_checkpoint(among, mesh, l->step, l->what);
        else
            EXPECT(system("! ls -d $D/run/step-* 2>/dev/null") == 0, "%s: a checkpoint", l->what);
    }
    EXPECT_OK(weft_comm_barrier(world));
    if (stride == 1)
        shell("test -z \"$(ls $D/memory)\"");
}

/* Flips bits of an element, or of what lies before it. */
#define FLIP(file, at) "printf x | dd of=" file " bs=1 seek=" at " conv=notrunc status=none"

static void check_losses(void)
{
    static const loss losses[] = {
        {"true", 2, -1, 0},
        {"rm -r node1", 2, -1, 0},
        {"rm -r node0", 2, -1, 0},
        {"rm -r node1 node3", 2, -1, 0},
        {"rm -r node1 node2", -1, 2, 1},
        {"rm -r node3 node0", -1, 2, 3},
        {"rm -r node*", -1, -1, 0},
        {"rm node1/rank-1.1", 2, -1, 0},
        {"rm */rank-1.1", 1, -1, 0},
        {FLIP("node1/rank-1.1", "9001"), 2, -1, 0},
        {FLIP("node0/rank-0.1", "4120"), 2, -1, 0},
        {"for f in */rank-1.1; do " FLIP("$f", "9001") "; done", 1, -1, 0},
        {"for f in */rank-0.1; do " FLIP("$f", "4150") "; done", 1, -1, 0},
        {"for f in */rank-2.?; do " FLIP("$f", "9001") "; done", -1, 2, 2},
        {"for f in */rank-3.?; do " FLIP("$f", "20") "; done", -1, 2, 3},
        {"truncate -s 9000 */rank-0.1", 1, -1, 0},
        {"truncate -s 100 */rank-0.1; : >node0/rank-9; mkfifo node1/rank-8", 1, -1, 0},
    };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        restore(world, 1, "dp=4", 0, &losses[i]);
    restore(world, 1, "dp=4", 1, &(loss){"rm */rank-1.1", -1, 2, 1});
    restore(world, 1, "dp=4", 2, &(loss){"true", -1, -1, 0});
}

/* On every other node, with half the ranks and another mesh. */
static void check_fewer(void)
{
    weft_comm *half = NULL;
    EXPECT_OK(weft_comm_split(world, rank < RANKS / 2 ? 0 : -1, rank, "half", WEFT_PURPOSE_CONTROL,
                              &half));
    restore(half, 2, "tp=2", 0, &(loss){"rm -r node1 node3", 2, -1, 0});
    weft_comm_destroy(half);
}

/* --- what is refused, forgotten, given back -------------------------------------------------- */

static void check_rest(weft_checkpoint_writer *w)
{
    weft_copies_place place = place_of(rank), nowhere = place;
    state_model m;
    nowhere.path = "/nowhere";
    shell("rm -rf $D/*; mkdir $D/memory");
    if (create(&m, world, "tp=2,pp=2")) {
        EXPECT_OK(weft_checkpoint_writer_reserve(w, m.parameters, m.optimizer, 0));
        EXPECT_ERROR(weft_copies_reserve(w, &place, 4, 100, m.parameters, m.optimizer), WEFT_CONFIG,
                     "checkpoint.peer_copies: 4: the ranks are on 4 nodes");
        EXPECT_ERROR(weft_copies_reserve(w, &nowhere, 1, 100, m.parameters, m.optimizer), WEFT_FILE,
                     "cannot make the folder (checkpoint.peer_path)");
        EXPECT(weft_copies_bytes(w) == 0, "bytes are taken");
        EXPECT_OK(weft_copies_reserve(w, &place, 3, 100, m.parameters, m.optimizer));
        copy_step(w, &m, 1);
        EXPECT_OK(weft_copies_clear(w));
        shell("mkdir $D/kept; cp -a $D/run $D/memory $D/kept");
        restore(world, 1, "dp=4", 0, &(loss){"true", -1, -1, 0});
        shell("cd $D && rm -rf run memory && cp -a kept/run kept/memory .");
        weft_copies_release(w);
        shell("test -z \"$(ls $D/memory $D/run | grep -v :)\"");
    }
    state_model_release(&m);
}

/* A rank's writer dies before the memory is taken, or before a state: training goes on without. */
static void check_lost(weft_checkpoint_writer *w, bool at_once)
{
    const weft_copies_place place = place_of(rank);
    const weft_checkpoint_info info = info_of(1);
    bool published = true;
    state_model m;
    shell("rm -rf $D/*; mkdir $D/memory");
    if (rank == 1 && at_once)
        kill(w->pid, SIGKILL);
    if (create(&m, world, "tp=2,pp=2")) {
        EXPECT_OK(weft_checkpoint_writer_reserve(w, m.parameters, m.optimizer, 0));
        EXPECT_OK(weft_copies_reserve(w, &place, 1, 100, m.parameters, m.optimizer));
        if (rank == 1 && !at_once)
            kill(w->pid, SIGKILL);
        EXPECT_OK(weft_comm_barrier(world));
        for (int i = 0; i < 3 && !weft_checkpoint_writer_is_off(w);
             i++) { /* its peer may be first */
            weft_status status = weft_copies_begin(w, &info, m.parameters, m.optimizer, "{}", NULL);
            if (status == WEFT_OK)
                status = weft_checkpoint_finish(w, &published);
            EXPECT(status == WEFT_FILE, "%s", weft_error_get()->text);
            status = weft_checkpoint_finish(w, &published);
            EXPECT(status == WEFT_OK || status == WEFT_FILE, "%s", weft_error_get()->text);
            weft_error_clear();
        }
        EXPECT(weft_checkpoint_writer_is_off(w), "a writer that is gone");
        EXPECT(!published, "published");
        weft_copies_release(w);
        shell("test -z \"$(ls $D/memory)\"");
    }
    state_model_release(&m);
}

/* No copy on the rank's own node, and each on another. */
static void check_places(void)
{
    static const int node_of[] = {0, 0, 1, 0, 2, 2, 2, 3};
    enum { WORLD = sizeof node_of / sizeof *node_of };
    weft_arena arena = {0};
    weft_copies_nodes nodes;
    EXPECT_OK(weft_copies_find_nodes(node_of, WORLD, &arena, &nodes));
    EXPECT(nodes.num_nodes == 4, "%d nodes", nodes.num_nodes);
    for (int i = 0; i < WORLD; i++)
        for (int k = 1; k < 4; k++) {
            const int peer = weft_copies_peer(&nodes, i, k);
            EXPECT(peer >= 0 && peer < WORLD && node_of[peer] == (node_of[i] + k) % 4,
                   "copy %d of rank %d on %d", k, i, peer);
        }
    EXPECT(weft_copies_peer(&nodes, 5, 2) == 1 && weft_copies_peer(&nodes, 6, 2) == 3 &&
               weft_copies_peer(&nodes, 3, 1) == 2 && weft_copies_peer(&nodes, 7, 3) == 4,
           "other places");
    weft_arena_release(&arena);
}

int main(void)
{
    for (int i = 0; i < NUM_WRITERS; i++) /* before MPI */
        EXPECT_OK(weft_checkpoint_writer_create(&writers[i]));
    if (weft_comm_create_world(&world) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error_get()->text);
        return 1;
    }
    rank = weft_comm_rank(world);
    if (rank == 0)
        EXPECT(mkdtemp(root), "no folder");
    EXPECT_OK(weft_comm_broadcast_host(world, root, sizeof root, 0));
    setenv("D", root, 1);
    check_places();
    copy_steps(writers[0], 1);
    check_losses();
    check_fewer();
    copy_steps(writers[1], 2);
    restore(world, 1, "pp=2,dp=2", 0, &(loss){"rm -r node1 node2", 2, -1, 0});
    restore(world, 1, "pp=2,dp=2", 0, &(loss){"rm -r node1 node2 node3", -1, 2, 1});
    check_rest(writers[2]);
    check_lost(writers[3], true);
    check_lost(writers[4], false);
    shell("rm -rf $D");
    for (int i = NUM_WRITERS; i-- > 0;) /* a later one has the earlier ones' sockets */
        weft_checkpoint_writer_destroy(writers[i]);
    weft_comm_destroy(world);
    return expect_finish();
}
