#include "tests/launcher/planned.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/planning/levels.h"
#include "layers/pass/pass.h"
#include "schedule/text.h"
#include "tests/expect.h"

/* What the executor is watched by. */
static struct {
    const char *mesh;
    weft_arena arena;
    weft_program step; /* planned, of this rank */
    uint32_t num_run;
    uint32_t next[WEFT_NUM_LANES]; /* behind the last task that ran on each, */
    bool goes_ahead;               /* where lanes keep their order alone (schedule/run.h) */
    const weft_task *at;           /* of several parts, if its next one comes */
    weft_executor *executor;       /* the trainer's */
    weft_task_function run[WEFT_NUM_TASK_KINDS]; /* the trainer's */
} watch;

static void compare(const char *name, const weft_program *planned, const weft_program *run)
{
    const bool counts =
        planned->num_tasks == run->num_tasks && planned->num_waits == run->num_waits &&
        planned->num_slots == run->num_slots && planned->max_in_flight == run->max_in_flight;
    EXPECT(counts, "%s, %s: %u tasks are planned, %u run", watch.mesh, name, planned->num_tasks,
           run->num_tasks);
    if (!counts)
        return;
    const bool same =
        memcmp(planned->tasks, run->tasks, run->num_tasks * sizeof *run->tasks) == 0 &&
        memcmp(planned->waits, run->waits, run->num_waits * sizeof *run->waits) == 0 &&
        memcmp(planned->slots, run->slots, (size_t)run->num_slots * sizeof *run->slots) == 0;
    char was[WEFT_TASK_TEXT_BYTES], is[WEFT_TASK_TEXT_BYTES];
    uint32_t at = 0;
    do {
        (void)weft_task_format(planned, at, was, sizeof was);
        (void)weft_task_format(run, at, is, sizeof is);
    } while (strcmp(was, is) == 0 && ++at < run->num_tasks);
    EXPECT(same, "%s, %s: task %u, %s, is planned; %s runs", watch.mesh, name, at, was, is);
}

static weft_status run_part(void *context, const weft_task *task, weft_lane *lane)
{
    WEFT_TRY(watch.run[task->kind](context, task, lane));
    if (watch.executor->goes_on(context, task))
        watch.at = task;
    return WEFT_OK;
}

static weft_status run_planned(void *context, const weft_task *task, weft_lane *lane)
{
    uint32_t at = watch.goes_ahead ? watch.next[task->lane] : watch.num_run;
    if (watch.at == task) {
        watch.at = NULL;
        return run_part(context, task, lane);
    }
    while (watch.goes_ahead && at < watch.step.num_tasks && watch.step.tasks[at].lane != task->lane)
        at++;
    EXPECT(at < watch.step.num_tasks && memcmp(task, &watch.step.tasks[at], sizeof *task) == 0,
           "%s: task %u runs, and another is planned", watch.mesh, at);
    watch.next[task->lane] = at + 1;
    watch.num_run++;
    return run_part(context, task, lane);
}

static void begin_watch(weft_trainer *t)
{
    watch.num_run = 0;
    memset(watch.next, 0, sizeof watch.next);
    watch.goes_ahead = t->executor.ahead != 0;
    watch.at = NULL;
    watch.executor = &t->executor;
    memcpy(watch.run, t->executor.run, sizeof watch.run);
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        if (watch.run[kind])
            t->executor.run[kind] = run_planned;
}

/* The bodies of this rank's passes, by the names that `weft schedule --level pass` gives them. */
static void compare_passes(const weft_trainer *t, const weft_config *config,
                           const weft_config_source *source)
{
    const weft_model *model = t->model;
    weft_levels levels;
    EXPECT_OK(weft_levels_make(config, source, NULL, WEFT_LEVEL_PASS, WEFT_BODY_ALL, NULL,
                               &watch.arena, &levels));
    int num_compared = 0, num_chunks = 0;
    for (int i = 0; i < WEFT_NUM_PASS_KINDS * model->layout.num_chunks; i++) {
        char name[64];
        snprintf(name, sizeof name, "rank %d chunk %d %s", model->place.pp.at,
                 i / WEFT_NUM_PASS_KINDS,
                 weft_pass_kind_text((weft_pass_kind)(i % WEFT_NUM_PASS_KINDS)));
        /* A rank whose order has no halves of a chunk makes no programs of them. */
        const weft_program *run = &model->run.bodies->programs[i];
        if (run->num_tasks == 0)
            continue;
        num_chunks++;
        for (int r = 0; r < levels.num_rows; r++)
            if (strcmp(levels.rows[r].name, name) == 0) {
                compare(name, levels.rows[r].program, run);
                num_compared++;
            }
    }
    EXPECT(num_compared == num_chunks, "%s: %d passes are planned, %d run", watch.mesh,
           num_compared, num_chunks);
    weft_levels_release(&levels);
}

static void compare_layer(const weft_trainer *t, const weft_config *config,
                          const weft_config_source *source)
{
    weft_levels levels;
    EXPECT_OK(weft_levels_make(config, source, NULL, WEFT_LEVEL_LAYER, WEFT_BODY_EXPERTS, NULL,
                               &watch.arena, &levels));
    const weft_moe_runtime *moe = t->model->moe;
    int positions = 0;
    if (t->model->tier)
        (void)weft_tier_programs(t->model->tier, 0, &positions);
    const weft_moe_whole *whole = weft_moe_whole_of(moe, moe->current, positions);
    for (int r = 0; r < levels.num_rows; r++)
        compare(levels.rows[r].name, levels.rows[r].program,
                &whole->programs[strcmp(levels.rows[r].name, "backward") == 0]);
    weft_levels_release(&levels);
}

void planned_begin(weft_trainer *t, const weft_config_source *source)
{
    const int rank = t->groups.coords.at[WEFT_AXIS_PP];
    char path[1024], name[32];
    weft_config config;
    weft_cluster *cluster;
    weft_plan plan;
    weft_config_source alone = *source;
    alone.no_data = true;
    watch.mesh = source->mesh;
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    EXPECT_OK(weft_plan_load(&alone, NULL, &watch.arena, &config));
    const char *own = config.schedule.cluster; /* that the run chose for */
    EXPECT_OK(weft_plan_cluster("cluster", path, &config, &watch.arena, &cluster));
    if (own) { /* from which the plan chooses, too */
        config.schedule.cluster = own;
        config.planned_on = config.planned_curves = NULL;
    }
    EXPECT_OK(weft_plan_make(&config, &alone, cluster, NULL, &watch.arena, &plan));
    snprintf(name, sizeof name, "step of rank %d", rank);
    watch.step = plan.step.programs[rank];
    compare(name, &watch.step, &t->runs.train.program);
    weft_plan_release(&plan);
    compare_passes(t, &config, &alone);
    if (t->moe.travels)
        compare_layer(t, &config, &alone);
    begin_watch(t);
}

void planned_end(weft_trainer *t)
{
    EXPECT(watch.num_run == watch.step.num_tasks, "%s: %u tasks ran of %u that are planned",
           watch.mesh, watch.num_run, watch.step.num_tasks);
    memcpy(t->executor.run, watch.run, sizeof watch.run);
    weft_arena_release(&watch.arena);
}
