/* What loss packed documents are trained on, by a dataset of four samples whose losses are taken
 * one by one: the mean of the micro-batches' means, or the mean over all that bear one; of a
 * micro-batch without any it is 0. The same on meshes. Options that change nothing change no bit.
 *
 * Runs under mpirun with 4 ranks. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { SEQ = 16, SAMPLES = 4, EOD = 40 };

#define MODEL                                                                                      \
    "{\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4, \"seq_length\": 16, "    \
    "\"vocab_size\": 41, \"init_method_std\": 0.2}"

/* Sample 2 is nothing but ends of documents; the others have documents of several lengths. With a
 * mask: it says of labels what data.eod_mask_loss would. */
static void write_dataset(const char *name, bool has_mask)
{
    char prefix[96];
    weft_dataset_writer *writer;
    int32_t tokens[SAMPLES * SEQ + 1], bears[SAMPLES * SEQ + 1];
    for (int i = 0; i <= SAMPLES * SEQ; i++) {
        tokens[i] = i / SEQ == 2 || (i * i) % 23 == 2 ? EOD : i * 7 % EOD;
        bears[i] = i == 0 || tokens[i - 1] != EOD;
    }
    snprintf(prefix, sizeof prefix, "%s/%s", world_folder, name);
    EXPECT_OK(weft_dataset_writer_create(prefix, EOD + 1, &writer));
    if (has_mask)
        EXPECT_OK(weft_dataset_writer_mask(writer));
    EXPECT_OK(weft_dataset_writer_add_masked(writer, tokens, bears, 10));
    EXPECT_OK(
        weft_dataset_writer_add_masked(writer, tokens + 10, bears + 10, SAMPLES * SEQ + 1 - 10));
    EXPECT_OK(weft_dataset_writer_finish(writer));
    EXPECT_OK(weft_dataset_writer_commit(writer));
    weft_dataset_writer_destroy(writer);
}

typedef struct run_case {
    const char *mesh;
    int batch, steps, ranks;
    const char *set[4]; /* beside `documents`; a data.eod_token goes over its own */
} run_case;

/* The first `ranks` ranks of the world train; results on each of them. */
static void train(weft_comm *world, const run_case *c, weft_step_result *out)
{
    char path[96];
    mesh_training what = {.name = "packed",
                          .model = MODEL,
                          .mesh = c->mesh,
                          .batch = c->batch,
                          .steps = c->steps,
                          .set = {path, "data.mock_data=false", "data.split=1,0,0"}};
    snprintf(path, sizeof path, "data.data_path=%s/data", world_folder);
    mesh_set_documents(&what, EOD);
    mesh_set(&what, c->set, 4);
    weft_comm *part = world_part(world, c->ranks);
    if (part)
        mesh_run(part, &what, out);
    weft_comm_destroy(part);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static const char by_documents[] = "parallel.context_parallel_load_balancer=documents";
static const char by_token_key[] = "train.calculate_per_token_loss=true";

static void check_losses(weft_comm *world)
{
    weft_step_result one[SAMPLES], by_batch[1], by_token[1], pairs[1], r[1];
    train(world, &(run_case){"dp=1", 1, SAMPLES, 1, {"train.lr=0"}}, one);
    train(world, &(run_case){"dp=1", SAMPLES, 1, 1, {NULL}}, by_batch);
    train(world, &(run_case){"dp=1", SAMPLES, 1, 1, {by_token_key}}, by_token);
    train(world, &(run_case){"dp=1", SAMPLES, 1, 1, {"train.micro_batch_size=2"}}, pairs);
    if (weft_comm_rank(world) == 0) {
        double sum = 0, weighted = 0, count = 0, by_pairs = 0;
        int without = 0;
        for (int i = 0; i < SAMPLES; i++) {
            sum += one[i].loss;
            weighted += one[i].loss * one[i].loss_tokens;
            count += one[i].loss_tokens;
            without += one[i].loss_tokens == 0;
            EXPECT(one[i].loss_tokens == 0 ? one[i].loss == 0 && one[i].grad_norm == 0
                                           : one[i].loss > 1,
                   "sample %d: loss %g of %g tokens, norm %g", i, one[i].loss, one[i].loss_tokens,
                   one[i].grad_norm);
        }
        for (int i = 0; i < SAMPLES; i += 2)
            by_pairs +=
                (one[i].loss * one[i].loss_tokens + one[i + 1].loss * one[i + 1].loss_tokens) /
                (one[i].loss_tokens + one[i + 1].loss_tokens) / 2;
        EXPECT(without == 1, "%d samples bear no loss", without);
        EXPECT(is_near(by_batch->loss, sum / SAMPLES), "%.9g for %.9g", by_batch->loss,
               sum / SAMPLES);
        EXPECT(is_near(by_token->loss, weighted / count), "%.9g for %.9g", by_token->loss,
               weighted / count);
        EXPECT(is_near(pairs->loss, by_pairs), "%.9g for %.9g", pairs->loss, by_pairs);
        EXPECT(by_token->loss_tokens == count && by_token->tokens == SAMPLES * SEQ, "%g of %g",
               by_token->loss_tokens, by_token->tokens);
    }
    const run_case meshes[] = {
        {"dp=4", SAMPLES, 1, 4, {by_token_key}},
        {"pp=4", SAMPLES, 1, 4, {by_token_key}},
        {"tp=2,sp=1,pp=2", SAMPLES, 1, 4, {by_token_key}},
        {"tp=2,sp=1,pp=2", SAMPLES, 1, 4, {by_token_key, "train.loss_chunk_tokens=5"}},
        {"dp=2,pp=2,zero=1", SAMPLES, 1, 4, {NULL}},
        {"cp=4", SAMPLES, 1, 4, {by_token_key}},
        {"cp=2,pp=2", SAMPLES, 1, 4, {by_token_key, by_documents}},
        {"cp=4", SAMPLES, 1, 4, {by_token_key, by_documents, "parallel.cp_comm_type=a2a"}},
        {"cp=4", SAMPLES, 1, 4, {by_token_key, by_documents, "parallel.cp_comm_type=p2p"}},
        {"cp=2,tp=2,sp=1", SAMPLES, 1, 4, {by_token_key, by_documents}},
    };
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const weft_step_result *expected = meshes[i].set[0] ? by_token : by_batch;
        train(world, &meshes[i], r);
        EXPECT(weft_comm_rank(world) > 0 ||
                   (fabs(r->loss - expected->loss) <= 1e-5 * expected->loss &&
                    fabs(r->grad_norm - expected->grad_norm) <= 1e-4 * expected->grad_norm &&
                    r->loss_tokens == expected->loss_tokens),
               "%s: loss %.9g for %.9g, norm %.9g for %.9g", meshes[i].mesh, r->loss,
               expected->loss, r->grad_norm, expected->grad_norm);
    }
}

/* No sample holds token 5, so every sample is one document. */
static void check_bits(weft_comm *world)
{
    enum { STEPS = 3 };
    weft_step_result plain[STEPS], asked[STEPS];
    const run_case off = {"dp=2,pp=2",
                          SAMPLES,
                          STEPS,
                          4,
                          {"data.reset_position_ids=false", "data.reset_attention_mask=false",
                           "data.eod_mask_loss=false"}};
    train(world, &off, plain);
    train(world, &(run_case){"dp=2,pp=2", SAMPLES, STEPS, 4, {by_token_key, "data.eod_token=5"}},
          asked);
    for (int i = 0; i < STEPS; i++)
        EXPECT(plain[i].loss == asked[i].loss && plain[i].grad_norm == asked[i].grad_norm,
               "step %d: loss %.17g, with documents of one sample each %.17g", i + 1, plain[i].loss,
               asked[i].loss);
}

/* A mask weighs the labels that it marks as data.eod_mask_loss weighs those it finds, to the bit,
 * and only where it is asked for. */
static void check_masks(weft_comm *world)
{
    weft_step_result r[2], all[1];
    char path[96];
    static const char off[] = "data.eod_mask_loss=false";
    const run_case meshes[] = {
        {"dp=1", SAMPLES, 1, 1, {NULL}},
        {"dp=2,pp=2,zero=1", SAMPLES, 1, 4, {by_token_key}},
        {"tp=2,sp=1,pp=2", SAMPLES, 1, 4, {by_token_key}},
        {"cp=2,pp=2", SAMPLES, 1, 4, {by_token_key, by_documents}},
    };
    snprintf(path, sizeof path, "data.data_path=%s/masked", world_folder);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        run_case masked = meshes[i];
        int at = 0;
        while (masked.set[at])
            at++;
        masked.set[at] = off;
        masked.set[at + 1] = path;
        train(world, &meshes[i], &r[0]);
        train(world, &masked, &r[1]);
        EXPECT(weft_comm_rank(world) > 0 ||
                   (r[0].loss == r[1].loss && r[0].grad_norm == r[1].grad_norm &&
                    r[0].loss_tokens == r[1].loss_tokens),
               "%s: loss %.17g, by a mask %.17g", masked.mesh, r[0].loss, r[1].loss);
    }
    train(world, &(run_case){"dp=1", SAMPLES, 1, 1, {off, path, "data.label_mask=false"}}, all);
    EXPECT(weft_comm_rank(world) > 0 || all->loss_tokens == SAMPLES * SEQ, "%g", all->loss_tokens);
}

int main(void)
{
    weft_comm *world = world_begin(0);
    world_make_folder(world);
    if (weft_comm_rank(world) == 0) {
        write_dataset("data", false);
        write_dataset("masked", true);
    }
    EXPECT_OK(weft_comm_barrier(world));
    check_losses(world);
    check_bits(world);
    check_masks(world);
    return world_finish(world);
}
