/* A checkpoint saved on one mesh is loaded bit for bit on another, also of another size; damage
 * and impossible folders are the same error on every rank. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/internal.h"
#include "state_model.h"

typedef struct layout {
    int world;
    const char *mesh;
    weft_dtype dtype;
    bool distributed, split;
} layout;

/* Each is saved, and loaded as the next one. */
static const layout layouts[] = {
    {1, "tp=1", WEFT_F32, true, false},
    {8, "tp=2,pp=2,dp=2,binding=tp", WEFT_BF16, true, true},
    {4, "tp=2,dp=2,ep=2,etp=2", WEFT_BF16, false, true},
    {2, "pp=2", WEFT_F32, true, false},
    {8, "tp=2,dp=4,ep=8", WEFT_F32, true, false},
    {8, "dp=8,ep=4", WEFT_BF16, true, true},
    {4, "pp=4", WEFT_BF16, true, false},
    {4, "dp=4", WEFT_F32, false, false},
    {2, "tp=2,binding=tp", WEFT_BF16, true, true},
    {8, "tp=4,pp=2", WEFT_F32, true, false},
};
enum { NUM_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static float value_of(const char *name, int kind, uint64_t index, int64_t step)
{
    uint64_t stream = weft_rng_stream_mix(weft_rng_stream_of(name), (uint64_t)kind);
    return weft_rng_normal((uint64_t)step, stream, index);
}

static void fill_state(const state_model *m, int64_t step)
{
    for (int i = 0; i < weft_optimizer_num_pieces(m->optimizer); i++) {
        weft_state_piece piece = weft_optimizer_piece(m->optimizer, i);
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
            for (size_t e = 0; e < piece.count; e++) {
                uint64_t index;
                if (state_global_index(&piece.placed->box, piece.first + e, &index))
                    piece.data[kind][e] = value_of(piece.placed->parameter.name, kind, index, step);
            }
        }
    }
    EXPECT_OK(weft_optimizer_reload(m->optimizer, m->compute));
    EXPECT_OK(weft_lane_sync(m->compute));
}

static size_t count_unlike(const state_model *m, int64_t step)
{
    size_t unlike = 0;
    uint64_t index;
    EXPECT_OK(weft_optimizer_join(m->optimizer, m->compute));
    EXPECT_OK(weft_lane_sync(m->compute));
    for (int i = 0; i < weft_optimizer_num_pieces(m->optimizer); i++) {
        weft_state_piece piece = weft_optimizer_piece(m->optimizer, i);
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
            for (size_t e = 0; e < piece.count; e++) {
                bool valid = state_global_index(&piece.placed->box, piece.first + e, &index);
                float wanted =
                    valid ? value_of(piece.placed->parameter.name, kind, index, step) : 0.0f;
                unlike += piece.data[kind][e] != wanted;
            }
        }
    }
    EXPECT_OK(weft_optimizer_leave(m->optimizer, m->compute));
    return unlike;
}

static size_t count_unlike_weights(const state_model *m, int64_t step)
{
    size_t unlike = 0;
    for (int i = 0; i < weft_parameters_count(m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(m->parameters, i);
        for (size_t e = 0; e < p->count; e++) {
            uint64_t index;
            float wanted = state_global_index(&p->box, e, &index)
                               ? value_of(p->parameter.name, WEFT_STATE_MASTER, index, step)
                               : 0.0f;
            if (p->parameter.weight.dtype == WEFT_BF16)
                wanted = state_bf16(wanted);
            unlike += state_weight(p, e) != wanted;
        }
    }
    return unlike;
}

static weft_status save_step(const char *dir, const state_model *m, int64_t step)
{
    weft_checkpoint_info info = {.step = step, .consumed_tokens = 10 * step, .seed = 77};
    return weft_checkpoint_save(dir, &info, m->parameters, m->optimizer, "{\"a\": 1}", NULL);
}

static void save_on(weft_comm *world, const char *dir, const layout *l, int64_t step)
{
    weft_comm *sub = world_part(world, l->world);
    state_model m;
    weft_optimizer_options options = {.sharding = l->distributed ? WEFT_SHARD_OPTIM : WEFT_NO_SHARD,
                                      .split_master = l->split};
    if (sub && state_model_create(&m, sub, l->mesh, l->dtype, &options)) {
        fill_state(&m, step);
        EXPECT_OK(save_step(dir, &m, step));
    }
    if (sub)
        state_model_release(&m);
    weft_comm_destroy(sub);
    EXPECT_OK(weft_comm_barrier(world));
}

static void load_on(weft_comm *world, const char *dir, const layout *l, int64_t step)
{
    weft_comm *sub = world_part(world, l->world);
    state_model m;
    weft_optimizer_options options = {.sharding = l->distributed ? WEFT_SHARD_OPTIM : WEFT_NO_SHARD,
                                      .split_master = l->split};
    int before = expect_failures;
    if (sub && state_model_create(&m, sub, l->mesh, l->dtype, &options)) {
        const char *folder = "";
        weft_checkpoint_info info = {0};
        EXPECT_OK(weft_checkpoint_resolve(dir, &m.arena, &folder));
        EXPECT_OK(weft_checkpoint_read_info(folder, &info));
        EXPECT(info.step == step && info.consumed_tokens == 10 * step && info.seed == 77 &&
                   !weft_loss_scale_is_on(&info.loss_scale),
               "step %lld", (long long)info.step);
        EXPECT_OK(weft_checkpoint_load_weights(folder, m.parameters, m.compute));
        EXPECT(count_unlike_weights(&m, step) == 0, "%zu weights alone differ",
               count_unlike_weights(&m, step));
        fill_state(&m, step + 1000);
        EXPECT_OK(weft_checkpoint_load(folder, m.parameters, m.optimizer, m.compute));
        EXPECT(count_unlike(&m, step) == 0, "%zu elements differ", count_unlike(&m, step));
        EXPECT(count_unlike_weights(&m, step) == 0, "%zu weights differ",
               count_unlike_weights(&m, step));
    }
    EXPECT(before == expect_failures, "loading step %lld on %d ranks, mesh %s", (long long)step,
           l->world, l->mesh);
    if (sub)
        state_model_release(&m);
    weft_comm_destroy(sub);
    EXPECT_OK(weft_comm_barrier(world));
}

static void flip_bit(const char *path, off_t at)
{
    char byte = 0;
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pread(fd, &byte, 1, at) == 1, "cannot read %s", path);
    byte ^= 4;
    EXPECT(pwrite(fd, &byte, 1, at) == 1, "cannot write %s", path);
    close(fd);
}

/* One rank cannot write: every rank's save fails, and what was there stays. */
static void check_one_rank_full(weft_comm *world, const char *dir, const state_model *m)
{
    struct rlimit old, limit;
    char path[600];
    int last = weft_comm_size(world) - 1;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 100;
    if (last && weft_comm_rank(world) == last)
        setrlimit(RLIMIT_FSIZE, &limit);
    weft_status status = save_step(dir, m, 501);
    setrlimit(RLIMIT_FSIZE, &old);
    snprintf(path, sizeof path, "rank %d: %s/.step-501.saving/model.h5: cannot write: ", last, dir);
    if (last)
        EXPECT_ERROR(status, WEFT_FILE, path);
    else
        EXPECT_OK(status);
    snprintf(path, sizeof path, "%s/.step-501.saving", dir);
    EXPECT_OK(weft_comm_barrier(world));
    EXPECT(access(path, F_OK) != 0, "%s is left over", path);
}

/* One rank holds a number that is none: every rank says so, and nothing is published. */
static void check_one_rank_not_finite(weft_comm *world, const char *dir, state_model *m)
{
    char path[600];
    fill_state(m, 500);
    if (weft_comm_rank(world) == weft_comm_size(world) - 1) {
        bool done = false;
        for (int i = 0; !done && i < weft_optimizer_num_pieces(m->optimizer); i++) {
            weft_state_piece piece = weft_optimizer_piece(m->optimizer, i);
            done = piece.writer && piece.count > 0;
            if (done)
                piece.data[WEFT_STATE_EXP_AVG_SQ][0] = INFINITY;
        }
        EXPECT(done, "the last rank writes nothing");
    }
    EXPECT_OK(weft_comm_barrier(world));
    EXPECT_ERROR(save_step(dir, m, 504), WEFT_DIVERGED, "step 504: optimizer/exp_avg_sq/");
    snprintf(path, sizeof path, "%s/step-504", dir);
    EXPECT(access(path, F_OK) != 0, "%s is there", path);
    fill_state(m, 500);
}

/* Every rank gets the same error, which names the file and the dataset. */
static void check_errors(weft_comm *world, const char *dir)
{
    state_model m;
    char path[600];
    struct stat info = {0};
    weft_optimizer_options options = {.sharding = WEFT_SHARD_OPTIM, .split_master = true};
    const char *mesh = weft_comm_size(world) > 1 ? "tp=2,binding=tp" : "tp=1";
    if (!state_model_create(&m, world, mesh, WEFT_BF16, &options)) {
        state_model_release(&m);
        return;
    }
    fill_state(&m, 500);
    EXPECT_OK(save_step(dir, &m, 500));
    check_one_rank_full(world, dir, &m);
    check_one_rank_not_finite(world, dir, &m);
    snprintf(path, sizeof path, "%s/step-500/config.json/below", dir);
    EXPECT_ERROR(save_step(path, &m, 501), WEFT_FILE, "config.json");
    fill_state(&m, 502);
    EXPECT_OK(save_step(dir, &m, 500)); /* over the one that is there */
    fill_state(&m, 503);
    const char *folder = "";
    EXPECT_OK(weft_checkpoint_resolve(dir, &m.arena, &folder));
    EXPECT_OK(weft_checkpoint_load(folder, m.parameters, m.optimizer, m.compute));
    EXPECT(count_unlike(&m, 502) == 0, "the second save of a step is not what is loaded");

    snprintf(path, sizeof path, "%s/step-500/model.h5", dir);
    EXPECT_OK(weft_comm_barrier(world));
    if (weft_comm_rank(world) == 0) {
        weft_manifest manifest;
        EXPECT(stat(path, &info) == 0, "%s", path);
        EXPECT_OK(weft_manifest_read(folder, &m.arena, &manifest));
        int damaged =
            weft_stored_find(&manifest.datasets, "optimizer/exp_avg/decoder.layers.1.norm.weight");
        if (damaged >= 0)
            flip_bit(path, (off_t)manifest.datasets.items[damaged].offset + 5);
    }
    EXPECT_OK(weft_comm_barrier(world));
    EXPECT_ERROR(weft_checkpoint_load(folder, m.parameters, m.optimizer, m.compute), WEFT_FILE,
                 "model.h5: optimizer/exp_avg/decoder.layers.1.norm.weight [");
    EXPECT_OK(weft_comm_barrier(world));
    if (weft_comm_rank(world) == 0)
        EXPECT(truncate(path, info.st_size / 2) == 0, "%s", path);
    EXPECT_OK(weft_comm_barrier(world));
    EXPECT_ERROR(weft_checkpoint_load(folder, m.parameters, m.optimizer, m.compute), WEFT_FILE,
                 "model.h5: ");
    state_model_release(&m);
}

typedef struct runs {
    size_t next, unit;
    int count;
} runs;

static weft_status see_run(void *context, size_t first, size_t count)
{
    runs *r = context;
    EXPECT(first == r->next, "a run begins at %zu, not %zu", first, r->next);
    EXPECT(count > 0 && count <= WEFT_SHARD_MAX_ELEMENTS, "a run of %zu", count);
    EXPECT(r->count == 0 || first % r->unit == 0, "a run begins inside a row, at %zu", first);
    r->next = first + count;
    r->count++;
    return WEFT_OK;
}

/* Runs cover a range in order, cut between rows where a row fits in one. */
static void check_runs(void)
{
    static const struct {
        size_t dims[2], first, count, unit;
        int runs;
    } cases[] = {{{3000, 1000}, 0, 3000000, 1000, 1},
                 {{9000, 1000}, 1500, 8998000, 1000, 3},
                 {{2, 6000000}, 5, 11999990, 1, 3},
                 {{7, 3000000}, 0, 21000000, 3000000, 7},
                 {{5, 5}, 24, 1, 5, 1},
                 {{5, 5}, 3, 0, 5, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weft_box box = {.num_dims = 2};
        runs r = {.next = cases[i].first, .unit = cases[i].unit};
        memcpy(box.local, cases[i].dims, sizeof cases[i].dims);
        EXPECT_OK(weft_runs_visit(&box, cases[i].first, cases[i].count, see_run, &r));
        EXPECT(r.next == cases[i].first + cases[i].count, "case %zu ends at %zu", i, r.next);
        EXPECT(r.count == cases[i].runs, "case %zu: %d runs", i, r.count);
    }
}

int main(void)
{
    weft_comm *world = world_begin(0);
    const char *dir = world_folder;
    world_make_folder(world);
    const layout *last = NULL;
    for (int i = 0; i < NUM_LAYOUTS; i++) {
        const layout *l = &layouts[i], *next = NULL;
        if (l->world > weft_comm_size(world))
            continue;
        for (int k = 1; k <= NUM_LAYOUTS && !next; k++) {
            const layout *other = &layouts[(i + k) % NUM_LAYOUTS];
            next = other->world <= weft_comm_size(world) ? other : NULL;
        }
        save_on(world, dir, l, i + 1);
        load_on(world, dir, next, i + 1);
        last = l;
    }
    EXPECT(last != NULL, "nothing was saved");
    check_errors(world, dir);
    check_runs();
    return world_finish(world);
}
