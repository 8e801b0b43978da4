/* Experts in a file: what is read and written is counted, and with places for all of them nothing
 * is. Every fault of the file ends a run with one line that names layer, expert and the system's
 * words, whenever it comes: while the file is made, the first values are put there, steps run or a
 * checkpoint is written, which leaves the one before as it was. Limits and folders that cannot be
 * are told before anything trains.
 *
 * Runs in one process. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "launcher/training/trainer.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/expect.h"

enum { STEPS = 3, SET_UP = 3 + 8 /* calls: the file, and threads */ };

static char folder[64];
static weft_comm *world;

typedef struct run {
    weft_arena arena;
    weft_config config;
    weft_trainer trainer;
} run;

/* Sets trainer, which is released whatever comes. */
static weft_status create(run *r, const char *const *set)
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 4, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
        "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, "
        "\"num_experts\": 6, \"moe_router_topk\": 2}, "
        "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 2, \"train_iters\": 3, "
        "\"lr\": 2e-3, \"seed\": 9}, \"data\": {\"mock_data\": true}, "
        "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}, "
        "\"offload\": {\"experts\": \"file\"}}";
    weft_config_source source = {.file = "file.json", .text = text, .set = set};
    memset(r, 0, sizeof *r);
    while (set[source.num_set])
        source.num_set++;
    WEFT_TRY(weft_config_load(&source, &r->arena, &r->config));
    return weft_trainer_create(&r->trainer, &r->config, &source, world, &r->arena);
}

static weft_status step_on(run *r)
{
    weft_step_result result;
    for (int i = 0; i < STEPS; i++)
        WEFT_TRY(weft_trainer_step(&r->trainer, &result));
    return WEFT_OK;
}

static weft_status train(run *r, const char *to)
{
    WEFT_TRY(weft_trainer_start(&r->trainer, NULL));
    WEFT_TRY(step_on(r));
    return to ? weft_trainer_save(&r->trainer, to) : WEFT_OK;
}

static void release(run *r)
{
    weft_trainer_release(&r->trainer);
    weft_arena_release(&r->arena);
}

/* Bytes read and written, by the experts that host memory has places for. */
static weft_tier_counts count(const char *cached, const char *eviction)
{
    const char *const set[] = {cached, eviction, NULL};
    weft_tier_counts counts = {0};
    run r;
    EXPECT_OK(create(&r, set));
    for (int i = 0; i < 4; i++) /* the first step is not foreseen */
        EXPECT_OK(i == 0 ? train(&r, NULL) : step_on(&r));
    EXPECT_OK(weft_model_drain_tier(r.trainer.model));
    counts = *weft_model_tier_counts(r.trainer.model);
    release(&r);
    return counts;
}

static void check_counts(void)
{
    const weft_tier_counts all = count("offload.cached=1", NULL);
    const weft_tier_counts quarter = count("offload.cached=0.25", NULL);
    const weft_tier_counts lru = count("offload.cached=0.25", "offload.eviction=lru");
    EXPECT(all.read_bytes == 0 && all.written_bytes == 0, "%llu read, %llu written",
           (unsigned long long)all.read_bytes, (unsigned long long)all.written_bytes);
    EXPECT(quarter.read_bytes > 0 && quarter.written_bytes > 0, "nothing read or written");
    EXPECT(all.uploaded_bytes == quarter.uploaded_bytes, "other uploads");
    EXPECT((double)quarter.read_bytes < 0.97 * (double)lru.read_bytes,
           "by program %llu read, least used %llu", (unsigned long long)quarter.read_bytes,
           (unsigned long long)lru.read_bytes);
}

/* Experts that no token chose are not read to decay: of 4 layers' 96 experts each the 32 rows of a
 * step reach few. A record's weights and state are 4 and 8 KiB of the file. */
static void check_owed(void)
{
    enum { EXPERTS = 4 * 96, PLACES = 39, RECORD = 12288 };
    const weft_tier_counts counts = count("offload.cached=0.1", "model.num_experts=96");
    const double all = 4.0 * STEPS * (EXPERTS - PLACES) * RECORD;
    EXPECT((double)counts.written_bytes < 0.7 * all && (double)counts.read_bytes < 0.7 * all,
           "%llu read, %llu written, for all %g", (unsigned long long)counts.read_bytes,
           (unsigned long long)counts.written_bytes, all);
}

/* At a pace the file takes its bytes' time, less what the last turn before was late. */
static void check_pace(void)
{
    static const char *const set[] = {"offload.cached=0.25", "device.pace_file=1e6", NULL};
    const double pace_s = 1e-6, late_s = 0.06;
    run r;
    EXPECT_OK(create(&r, set));
    EXPECT_OK(train(&r, NULL));
    EXPECT_OK(weft_model_drain_tier(r.trainer.model));
    const weft_tier_counts before = *weft_model_tier_counts(r.trainer.model);
    const double start = weft_now_us();
    EXPECT_OK(step_on(&r));
    EXPECT_OK(weft_model_drain_tier(r.trainer.model));
    const double took_s = 1e-6 * (weft_now_us() - start);
    const weft_tier_counts after = *weft_model_tier_counts(r.trainer.model);
    const double bytes = (double)(after.read_bytes - before.read_bytes) +
                         (double)(after.written_bytes - before.written_bytes);
    EXPECT(bytes > 3e5 && took_s > pace_s * bytes - late_s, "%g bytes took %g s", bytes, took_s);
    release(&r);
}

static void check_refused(const char *setting, weft_status wanted, const char *part)
{
    const char *const set[] = {setting, NULL};
    run r;
    EXPECT_ERROR(create(&r, set), wanted, part);
    release(&r);
}

/* The n-th call to the file fails: returns whether it was made at all. */
static bool fails_at(int n, int fault, const char *words)
{
    static const char *const set[] = {"offload.io=threads", NULL};
    run r;
    weft_spill_fail_after(n, fault);
    weft_status status = create(&r, set);
    if (status == WEFT_OK)
        status = train(&r, folder);
    const char *text = weft_error_get()->text;
    const bool happened = weft_spill_fail_after(0, 0) == 0;
    EXPECT(happened == (status != WEFT_OK), "fault at call %d: status %d", n, (int)status);
    if (status != WEFT_OK) {
        EXPECT(status == (n > 3 && n <= SET_UP ? WEFT_DEVICE : WEFT_FILE) && strstr(text, words) &&
                   (n <= SET_UP || (strstr(text, "layer ") && strstr(text, "expert "))),
               "call %d: status %d, \"%s\"", n, (int)status, text);
        weft_error_clear();
    }
    release(&r);
    return happened;
}

/* Of the checkpoint that was whole before. */
static void check_checkpoint(int64_t step)
{
    weft_arena arena = {0};
    const char *path;
    weft_checkpoint_info info = {0};
    EXPECT_OK(weft_checkpoint_resolve(folder, &arena, &path));
    EXPECT_OK(weft_checkpoint_verify(path));
    EXPECT_OK(weft_checkpoint_read_info(path, &info));
    EXPECT(info.step == step, "step %lld", (long long)info.step);
    weft_arena_release(&arena);
}

static void check_faults(void)
{
    int n = 1;
    EXPECT(!fails_at(1 << 20, EIO, ""), "no fault, and none happened");
    check_checkpoint(STEPS);
    for (; fails_at(n, EIO, "Input/output error"); n += n < 6 ? 1 : n / 3)
        check_checkpoint(STEPS);
    EXPECT(n > 100, "only %d calls", n);
    for (int k = 1; k < 3; k++)
        EXPECT(fails_at(k, ENOSPC, "No space left"), "no call %d", k);
}

static void check_flip(void)
{
    static const char *const set[] = {"offload.io=threads", NULL};
    run r;
    weft_step_result result;
    weft_status status = WEFT_OK;
    EXPECT_OK(create(&r, set));
    EXPECT_OK(weft_trainer_start(&r.trainer, NULL));
    for (int i = 0; i < 40 && status == WEFT_OK; i++) { /* one of the calls is a read */
        if (weft_spill_fail_after(0, 0) == 0)
            weft_spill_fail_after(1 + i % 7, WEFT_SPILL_FAULT_FLIP);
        status = weft_trainer_step(&r.trainer, &result);
    }
    weft_spill_fail_after(0, 0);
    EXPECT(status == WEFT_FILE && strstr(weft_error_get()->text, "expert "), "status %d: %s",
           (int)status, weft_error_get()->text);
    weft_error_clear();
    release(&r);
}

int main(void)
{
    EXPECT_OK(weft_comm_create_world(&world));
    snprintf(folder, sizeof folder, "/tmp/weft-tier-faults-%d", (int)getpid());
    check_counts();
    check_owed();
    check_pace();
    check_refused(
        "offload.path=/nowhere/at/all", WEFT_FILE,
        "offload.path: /nowhere/at/all: cannot make the experts' file: No such file or directory");
    check_refused("offload.host_memory_limit=10000", WEFT_MEMORY, "of host memory");
    check_refused("offload.file_limit=10000", WEFT_CONFIG, "takes a file of");
    check_faults();
    check_flip();
    expect_shell("rm -rf %s", folder);
    weft_comm_destroy(world);
    return expect_finish();
}
