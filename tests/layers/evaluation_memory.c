/* Evaluation costs training no memory: a stage holds as many passes as its schedule needs, each as
 * large as any other, evaluates in these, and the validation loss is that of one rank. Runs with 4
 * ranks. */
#include <math.h>

#include "tests/world.h"
#include "tests/layers/training.h"

#define MODEL                                                                                      \
    "\"num_layers\": 4, \"hidden_size\": 32, \"num_attention_heads\": 4, \"seq_length\": 32, "     \
    "\"vocab_size\": 61"

enum { MOST = 8 }; /* micro-batches, on 4 stages: the first one's bound is below it */

static const struct {
    int stages;
    const char *mesh;
    bool gpipe;
} cases[] = {
    {1, "dp=1,schedule=1f1b", false},
    {2, "pp=2,schedule=1f1b", false},
    {4, "pp=4,schedule=1f1b", false},
    {2, "pp=2,schedule=gpipe", true},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

/* This rank's high-water mark of a step and an evaluation, the same before as after the latter. */
static double peak_of(weft_comm *part, int i, int micro_batches, double *out_loss)
{
    training_case c = {
        .name = "dense", .model = MODEL, .mesh = cases[i].mesh, .global_batch = micro_batches};
    training t;
    weft_step_result result;
    weft_device_stats trained, evaluated;
    training_start(&t, &c, part);
    training_step(&t, &result);
    weft_device_get_stats(t.trainer.device, &trained);
    weft_evaluation evaluation = {0};
    EXPECT_OK(weft_trainer_evaluate(&t.trainer, WEFT_SPLIT_VALIDATION, &evaluation));
    *out_loss = evaluation.loss;
    weft_device_get_stats(t.trainer.device, &evaluated);
    EXPECT(evaluated.bytes_peak == trained.bytes_peak &&
               evaluated.pinned_bytes_peak == trained.pinned_bytes_peak &&
               evaluated.num_allocs == trained.num_allocs,
           "%s, %d micro-batches: evaluation takes %zu bytes to %zu", c.mesh, micro_batches,
           trained.bytes_peak, evaluated.bytes_peak);
    training_release(&t);
    return (double)trained.bytes_peak;
}

static void check(weft_comm *part, int i, double *single_loss)
{
    int stage = weft_comm_rank(part);
    double loss;
    double one = peak_of(part, i, 1, &loss), two = peak_of(part, i, 2, &loss);
    double pass = two - one; /* of the stages that may hold two */
    double peak = peak_of(part, i, MOST, &loss);
    int bound = cases[i].gpipe ? MOST : cases[i].stages - stage;
    EXPECT(peak == one + pass * (bound - 1) && (bound == 1 ? pass == 0 : pass > 0),
           "%s, stage %d: 1, 2 and %d micro-batches take %.0f, %.0f and %.0f bytes", cases[i].mesh,
           stage, MOST, one, two, peak);
    if (i == 0)
        *single_loss = loss;
    EXPECT(stage > 0 || fabs(loss / *single_loss - 1) < 1e-5, "%s: validation loss %.9g, not %.9g",
           cases[i].mesh, loss, *single_loss);
}

int main(void)
{
    double single_loss = 0;
    weft_comm *world = world_begin(4);
    for (int i = 0; i < NUM_CASES; i++) {
        weft_comm *part = world_part(world, cases[i].stages);
        if (part)
            check(part, i, &single_loss);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
