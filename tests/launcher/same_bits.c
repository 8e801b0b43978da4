#include "tests/launcher/same_bits.h"

#include <stdio.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { NUM_STEPS = 3 };

static void check(weft_comm *part, const same_case *c, int i, bool is_packed, const char *also)
{
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
        mesh_set_documents(&what, 5);
    mesh_run(part, &what, without);
    snprintf(train, sizeof train, "%s%s", c->train, c->change);
    what.train = train;
    snprintf(parallel, sizeof parallel, "%s%s", c->parallel ? c->parallel : "", also);
    what.parallel = parallel;
    mesh_run(part, &what, with);
    mesh_compare(with, without, NUM_STEPS, 0, "%s with %s%s", c->mesh, train, also);
}

int same_bits_main(const same_case *cases, int num_cases, int num_packed, const char *also)
{
    weft_comm *world = world_begin(4);
    for (int i = 0; i < num_cases; i++) {
        weft_comm *part = world_part(world, cases[i].world);
        if (part)
            check(part, &cases[i], i, i >= num_cases - num_packed, also);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
