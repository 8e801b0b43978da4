#include "tests/launcher/same_bits.h"

#include <stdio.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/meshes.h"

enum { NUM_STEPS = 3 };

static void check(weft_comm *part, const same_case *c, int i, bool is_packed, const char *also)
{
    static const char *const documents[] = {"data.reset_position_ids=true",
                                            "data.reset_attention_mask=true",
                                            "data.eod_mask_loss=true", "data.eod_token=5"};
    weft_step_result without[NUM_STEPS], with[NUM_STEPS];
    char train[320], parallel[320], name[32];
    snprintf(name, sizeof name, "case %d", i);
    mesh_training what = {.name = name,
                          .model = c->model,
                          .mesh = c->mesh,
                          .parallel = c->parallel,
                          .train = c->train,
                          .batch = 12,
                          .steps = NUM_STEPS};
    if (is_packed)
        memcpy(what.set, documents, sizeof documents);
    mesh_run(part, &what, without);
    snprintf(train, sizeof train, "%s%s", c->train, c->change);
    what.train = train;
    snprintf(parallel, sizeof parallel, "%s%s", c->parallel ? c->parallel : "", also);
    what.parallel = parallel;
    mesh_run(part, &what, with);
    for (int s = 0; s < NUM_STEPS; s++)
        EXPECT(without[s].loss == with[s].loss && without[s].grad_norm == with[s].grad_norm &&
                   without[s].dropped_tokens == with[s].dropped_tokens,
               "%s with %s%s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
               c->mesh, train, also, s + 1, with[s].loss, without[s].loss, with[s].grad_norm,
               without[s].grad_norm);
}

int same_bits_main(const same_case *cases, int num_cases, int num_packed, const char *also)
{
    weft_comm *world, *part;
    EXPECT_OK(weft_comm_create_world(&world));
    const int rank = weft_comm_rank(world);
    EXPECT(weft_comm_size(world) == 4, "run with 4 ranks");
    for (int i = 0; i < num_cases; i++) {
        EXPECT_OK(weft_comm_split(world, rank < cases[i].world ? 0 : -1, rank, "part",
                                  WEFT_PURPOSE_CONTROL, &part));
        if (part)
            check(part, &cases[i], i, i >= num_cases - num_packed, also);
        weft_comm_destroy(part);
    }
    EXPECT_OK(weft_comm_barrier(world));
    weft_comm_destroy(world);
    return expect_finish();
}
