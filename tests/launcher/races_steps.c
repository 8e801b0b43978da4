/* Whatever a rank's trainer enqueues in three steps, no two lanes touch the same bytes unordered:
 * passes, and the update that the host's lanes run beside the next step. Of the host's waits those
 * at a step's end alone count, and not for the host's lanes where they run on.
 *
 * Then waits are dropped: one of a program, wherever its task runs; or all by which a lane waits
 * for one record of an event, where it has not waited for a later one of the same lane. And records
 * are. Each is named, or with the waits beside it, or it is redundant: the proof holds without it.
 */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "layers/pass/pass.h"
#include "layers/tier/internal.h"
#include "tests/expect.h"
#include "tests/launcher/note_trainer.h"

enum { NUM_STEPS = 3, DROPS = 12 };

#define HOST "offload.experts=host"
#define FROM_FILE "offload.experts=file"
#define STATE "offload.optimizer_state=host", "parallel.ddp_bucket_size=1000"
#define UNCLIPPED "train.clip_grad=0"
#define KEPT "offload.kept=0.4"
#define AFTER "offload.optimizer=after"
#define ORDER(name) "offload.order=" name
#define ONE_BATCH "train.global_batch_size=1"
#define BF16 "train.precision=bf16"
#define SLOTS "offload.slots=3"
#define CUT "parallel.moe_num_partitions=3", "parallel.moe_partition_by=experts"
#define FEW_PLACES "offload.cached=0.1"
#define RECOMPUTE "train.recompute_granularity=full"
#define CHUNKS "model.num_layers=4", "parallel.num_layers_per_virtual_pipeline_stage=1"
#define HALVES "parallel.pipeline_schedule=zb_h1"
#define PAIRS "parallel.overlap_moe_expert_parallel_comm=true"

static const note_trainer_case cases[] = {
    {"dp=1", 1, 0, 0, {HOST}},
    {"dp=1", 1, 0, 0, {HOST, KEPT}},
    {"dp=1", 1, 0, 0, {HOST, KEPT, UNCLIPPED}},
    {"dp=1", 1, 0, 0, {HOST, KEPT, UNCLIPPED, ONE_BATCH}},
    {"dp=1", 1, 0, 0, {HOST, KEPT, AFTER}},
    {"dp=1", 1, 0, 0, {HOST, KEPT, ORDER("layer"), BF16}},
    {"dp=1", 1, 0, 0, {HOST, UNCLIPPED, ORDER("demand")}},
    {"ep=2", 2, 1, 0, {HOST, KEPT, UNCLIPPED}},
    {"dp=2", 2, 1, 0, {HOST}},
    {"dp=2,zero=1", 2, 0, 0, {HOST}},
    {"ep=2", 2, 0, 0, {HOST}},
    {"pp=2", 2, 0, 0, {HOST}},
    {"dp=2", 2, 1, 0, {HOST, KEPT}},
    {"dp=2", 2, 1, 0, {HOST, KEPT, UNCLIPPED, "train.global_batch_size=2"}},
    {"dp=2,zero=1", 2, 1, 0, {HOST, KEPT}},
    {"dp=4,ep=2,zero=1", 4, 1, 0, {HOST, KEPT, UNCLIPPED}},
    {"dp=4,ep=2,zero=2", 4, 1, 0, {HOST, UNCLIPPED, BF16}},
    {"dp=4,ep=2,zero=3", 4, 3, 0, {HOST, KEPT}},
    {"dp=1", 1, 0, 0, {FROM_FILE}},
    {"dp=1", 1, 0, 0, {FROM_FILE, KEPT, BF16}},
    {"dp=1", 1, 0, 0, {FROM_FILE, KEPT, UNCLIPPED}},
    {"dp=1", 1, 0, 0, {FROM_FILE, KEPT, UNCLIPPED, ONE_BATCH, ORDER("layer")}},
    {"dp=2", 2, 0, 0, {FROM_FILE, KEPT}},
    {"dp=2,zero=1", 2, 0, 0, {FROM_FILE, KEPT, UNCLIPPED}},
    {"dp=1", 1, 0, 0, {STATE}},
    {"dp=2,zero=1", 2, 0, 0, {STATE}},
    {"dp=2,zero=2", 2, 0, 0, {STATE, BF16}},
    {"dp=4,ep=2,zero=1", 4, 0, 0, {STATE, PAIRS}},
    {"dp=2,zero=1", 2, 0, 0, {STATE, HOST, KEPT}},
    {"dp=1", 1, 0, 0, {STATE, FROM_FILE, KEPT, BF16}},
    {"pp=2", 2, 0, 0, {HOST, KEPT}},
    {"pp=2", 2, 1, 1, {HOST, KEPT, UNCLIPPED}},
    {"pp=2,dp=2,zero=1", 4, 1, 0, {HOST, KEPT}},
    {"pp=2", 2, 1, 1, {FROM_FILE, KEPT, UNCLIPPED}},
    {"pp=2", 2, 1, 1, {STATE}},
    {"ep=1", 1, 0, 0, {HOST, CUT, SLOTS}},
    {"ep=2", 2, 0, 0, {HOST, CUT, KEPT, ORDER("layer")}},
    {"dp=4,ep=2", 4, 0, 0, {HOST, CUT, SLOTS, "offload.kept=1", ORDER("demand")}},
    {"dp=1", 1, 0, 0, {HOST, KEPT, RECOMPUTE}},
    {"dp=1", 1, 0, 0, {FROM_FILE, KEPT, UNCLIPPED, RECOMPUTE}},
    {"dp=1", 1, 0, 0, {FROM_FILE, AFTER, FEW_PLACES}},
    {"dp=4,ep=2,zero=3", 4, 1, 0, {FROM_FILE, KEPT, UNCLIPPED, FEW_PLACES}},
    {"pp=2", 2, 1, 1, {FROM_FILE, KEPT, UNCLIPPED, FEW_PLACES, CHUNKS}},
    {"pp=2,dp=2,zero=1", 4, 0, 0, {HOST, KEPT, UNCLIPPED, CHUNKS}},
    {"pp=2", 2, 0, 0, {STATE, HOST, KEPT, HALVES}},
    {"tp=2,ep=2,dp=2,etp=1,zero=1", 4, 0, 0, {HOST, KEPT, UNCLIPPED}},
    {"dp=2,zero=3", 2, 1, 0, {STATE, BF16, "parallel.overlap_grad_reduce=true"}},
};

/* What a wait or a record that is dropped is for. */
typedef enum drop_kind {
    OF_STEP,    /* a task of the step's program, and points of its backward */
    OF_BODY,    /* a task of a body */
    OF_LANDING, /* an expert's gradient */
    OF_UPDATE,  /* an expert's update, by the step before */
    OF_SLOT,    /* an expert's slot on the device, or its gradient's */
    OF_OTHERS,  /* a record's place in host memory, or another ring's */
    NUM_KINDS
} drop_kind;
static const char *const kind_texts[NUM_KINDS] = {"steps' tasks",     "bodies' tasks", "landings",
                                                  "experts' updates", "slots",         "places"};

typedef struct tally {
    size_t dropped, named, together;
} tally;

enum { NUM_UPDATE_LANES = 3 };
static const char *const update_lanes[NUM_UPDATE_LANES] = {"host", "reduce", "to_device"};

static struct {
    size_t notes, operations;        /* ordered */
    tally updates[NUM_UPDATE_LANES]; /* all of a case */
    tally waits[NUM_KINDS], records[NUM_KINDS], tasks[2] /* of steps, of bodies */;
    size_t uploads; /* waits for updates where nothing else orders them, all named */
} sum;

/* What may be dropped, behind the first step, in which everything is empty. */
typedef struct droppable {
    size_t *record_of; /* by note: 1 + the record that a wait is for; 0: of none of these steps */
    size_t *waits[NUM_KINDS], num[NUM_KINDS];
} droppable;

static drop_kind kind_of(const weft_trainer *t, const weft_event *event)
{
    const weft_tier_run *tier = t->model->tier;
    const weft_executor *bodies = &t->model->run.executors[0];
    for (int l = 0; l < weft_model_num_layers(t->model); l++)
        if (t->runs.points[l] == event)
            return OF_STEP;
    for (uint32_t i = 0; i < t->executor.num_done; i++)
        if (t->executor.done[i] == event)
            return OF_STEP;
    for (uint32_t i = 0; i < bodies->num_done; i++)
        if (bodies->done[i] == event)
            return OF_BODY;
    for (int e = 0; tier && e < tier->num_experts; e++)
        if (tier->experts[e].landed == event || tier->experts[e].stepped == event)
            return tier->experts[e].landed == event ? OF_LANDING : OF_UPDATE;
    for (int i = 0; tier && i < tier->num_slots; i++)
        if (tier->slots[i].filled == event || tier->slots[i].used == event)
            return OF_SLOT;
    for (int i = 0; tier && i < WEFT_TIER_GRADIENTS; i++)
        if (tier->gradients[i].free == event)
            return OF_SLOT;
    return OF_OTHERS;
}

/* --- what may be dropped -------------------------------------------------------------------- */

/* The number of an address in a list, to which it is added. */
static size_t number_of(const void **list, size_t *count, const void *address)
{
    size_t i = 0;
    while (i < *count && list[i] != address)
        i++;
    *count += i == *count;
    list[i] = address;
    return i;
}

static void find_records(const note_trainer *n, droppable *d)
{
    const void **events = malloc(n->count * sizeof *events);
    size_t *latest = calloc(n->count, sizeof *latest), count = 0;
    for (size_t i = 0; i < n->count; i++) {
        const weft_noted *note = &n->notes[i];
        if (note->kind == WEFT_NOTED_RECORD)
            latest[number_of(events, &count, note->event)] = i + 1;
        else if (note->kind == WEFT_NOTED_WAIT)
            d->record_of[i] = latest[number_of(events, &count, note->event)];
    }
    free(events);
    free(latest);
}

/* A lane that has waited for a record has waited for all before it on the same lane. */
static void find_waits(const note_trainer *n, droppable *d)
{
    enum { MOST = 64 };
    static size_t known[MOST][MOST]; /* by lane: 1 + the latest record of another */
    const void *lanes[MOST + 1];
    size_t count = 0;
    memset(known, 0, sizeof known);
    for (size_t i = 0; i < n->count; i++) {
        if (n->notes[i].kind != WEFT_NOTED_WAIT || d->record_of[i] == 0)
            continue;
        const size_t record = d->record_of[i] - 1;
        const size_t own = number_of(lanes, &count, n->notes[i].lane);
        const size_t other = number_of(lanes, &count, n->notes[record].lane);
        if (own == other || known[own][other] > record)
            continue;
        known[own][other] = record + 1;
        if (i >= n->steps[1] && !note_trainer_ends(n->notes[i].event)) {
            const drop_kind kind = kind_of(&n->trainer, n->notes[i].event);
            d->waits[kind][d->num[kind]++] = i;
        }
    }
    EXPECT(count <= MOST, "%zu lanes", count);
}

static droppable find_droppable(const note_trainer *n)
{
    droppable d = {.record_of = calloc(n->count, sizeof *d.record_of)};
    for (int kind = 0; kind < NUM_KINDS; kind++)
        d.waits[kind] = malloc(n->count * sizeof *d.waits[kind]);
    find_records(n, &d);
    find_waits(n, &d);
    return d;
}

static void release_droppable(droppable *d)
{
    free(d->record_of);
    for (int kind = 0; kind < NUM_KINDS; kind++)
        free(d->waits[kind]);
}

/* --- dropping ------------------------------------------------------------------------------- */

static bool races(const note_trainer *n, const weft_noted *notes, size_t count,
                  weft_race_words *out)
{
    weft_race race;
    EXPECT_OK(weft_race_find(notes, count, n->ranges, &race));
    *out = weft_race_text(&race);
    return race.notes[0] != NULL;
}

typedef enum drop_set { ONE, OF_ONE_RECORD, BESIDE, ALL_UPDATES } drop_set;

/* Whether the note goes with the one at `at`: itself; a wait of the same lane for the same record;
 * also those around it, with no work of the lane between; or all that are for experts' updates. */
static bool goes(const note_trainer *n, const droppable *d, size_t at, drop_set set,
                 const size_t around[2], size_t i)
{
    const weft_noted *note = &n->notes[i];
    if (i == at || set == ONE || note->kind != WEFT_NOTED_WAIT || note->lane != n->notes[at].lane)
        return i == at;
    if (set == ALL_UPDATES)
        return kind_of(&n->trainer, note->event) == OF_UPDATE;
    return d->record_of[i] == d->record_of[at] ||
           (set == BESIDE && i > around[0] && i < around[1] && !note_trainer_ends(note->event));
}

static bool races_without(const note_trainer *n, const droppable *d, size_t at, drop_set set)
{
    weft_noted *rest = malloc(n->count * sizeof *rest);
    weft_race_words words;
    size_t kept = 0, around[2] = {0, n->count};
    for (size_t i = 0; i < n->count; i++)
        if (n->notes[i].lane == n->notes[at].lane && n->notes[i].kind != WEFT_NOTED_WAIT) {
            if (i < at)
                around[0] = i;
            else if (around[1] == n->count)
                around[1] = i;
        }
    for (size_t i = 0; i < n->count; i++)
        if (!goes(n, d, at, set, around, i))
            rest[kept++] = n->notes[i];
    const bool found = races(n, rest, kept, &words);
    free(rest);
    return found;
}

/* A wait of that kind, and the record that another one is for. */
static void drop(note_trainer *n, const droppable *d, int kind)
{
    tally *waits = &sum.waits[kind], *records = &sum.records[kind];
    const size_t num = d->num[kind];
    if (num == 0)
        return;
    const size_t wait = d->waits[kind][note_trainer_draw(n, num)];
    const size_t other = d->waits[kind][note_trainer_draw(n, num)];
    waits->dropped++;
    if (races_without(n, d, wait, OF_ONE_RECORD))
        waits->named++;
    else
        waits->together += races_without(n, d, wait, BESIDE);
    records->dropped++;
    records->named += races_without(n, d, d->record_of[other] - 1, ONE);
}

/* All waits of a lane for the update of the step before. One alone is most often redundant, since
 * the lane has waited for an expert that was stepped later. */
static void drop_updates(const note_trainer *n, const droppable *d)
{
    const weft_trainer *t = &n->trainer;
    const weft_lane *lanes[NUM_UPDATE_LANES] = {
        t->lanes[WEFT_LANE_HOST], t->lanes[WEFT_LANE_REDUCE],
        t->model->tier ? t->model->tier->lanes[WEFT_LANE_TO_DEVICE] : NULL};
    for (int lane = 0; lane < NUM_UPDATE_LANES; lane++) {
        size_t k = 0;
        while (k < d->num[OF_UPDATE] && n->notes[d->waits[OF_UPDATE][k]].lane != lanes[lane])
            k++;
        if (k == d->num[OF_UPDATE])
            continue;
        sum.updates[lane].dropped++;
        sum.updates[lane].named += races_without(n, d, d->waits[OF_UPDATE][k], ALL_UPDATES);
    }
}

/* The step's program, or one of bodies. */
static weft_program *program_at(const weft_trainer *t, size_t at)
{
    return at == 0 ? (weft_program *)&t->runs.of_step->program
                   : &t->model->run.bodies->programs[at - 1];
}

/* Two steps without a wait of a task, in whatever micro-batch. */
static void drop_of_task(note_trainer *n, const note_trainer_case *c)
{
    const weft_trainer *t = &n->trainer;
    const size_t num = 1 + WEFT_NUM_WHOLE_PASS_KINDS * (size_t)t->model->layout.num_chunks;
    weft_race_words words;
    weft_program *p;
    size_t at;
    do
        p = program_at(t, at = note_trainer_draw(n, 2) ? 0 : note_trainer_draw(n, num));
    while (p->num_waits == 0);
    const size_t which = note_trainer_draw(n, p->num_waits);
    weft_task *task = (weft_task *)p->tasks;
    while (which < task->first_wait || which >= task->first_wait + task->num_waits)
        task++;
    weft_wait *waits = (weft_wait *)p->waits, *last = &waits[task->first_wait + --task->num_waits];
    const weft_wait dropped = waits[which];
    waits[which] = *last;
    const weft_status status = note_trainer_run(n, 2);
    sum.tasks[at > 0].dropped++;
    sum.tasks[at > 0].named += status != WEFT_OK || races(n, n->notes, n->count, &words);
    *last = waits[which];
    waits[which] = dropped;
    task->num_waits++;
    if (status == WEFT_OK)
        return;
    /* An update came so early that the host itself went wrong. */
    EXPECT(strstr(weft_error_get()->text, "is not on the device"), "%s", weft_error_get()->text);
    weft_error_clear();
    note_trainer_close(n);
    note_trainer_open(n, c);
}

/* --- cases ---------------------------------------------------------------------------------- */

/* A function of the host has its ranges ahead of it. */
static void check_functions(const note_trainer *n, const char *name)
{
    for (size_t i = 1; i < n->count; i++)
        EXPECT(n->notes[i].kind != WEFT_NOTED_HOST || (n->notes[i - 1].kind == WEFT_NOTED_TOUCH &&
                                                       n->notes[i - 1].lane == n->notes[i].lane),
               "%s: nobody knows what %s touches", name, n->notes[i].label);
}

/* Where all experts come up from host memory and are stepped behind the norm of all, an upload's
 * wait for its expert's update is all that orders them. */
static void check_uploads(const note_trainer *n, const droppable *d, const char *name)
{
    for (size_t k = 0; k < d->num[OF_UPDATE]; k++) {
        const size_t at = d->waits[OF_UPDATE][k];
        if (n->notes[at].lane != n->trainer.model->tier->lanes[WEFT_LANE_TO_DEVICE])
            continue;
        sum.uploads++;
        EXPECT(races_without(n, d, at, OF_ONE_RECORD), "%s: nobody misses an upload's wait %zu",
               name, at);
    }
}

static void run(const note_trainer_case *c)
{
    note_trainer n;
    weft_race_words words;
    char name[200] = "";
    for (int i = 0; i < NOTE_MAX_SET && c->set[i]; i++)
        snprintf(name + strlen(name), sizeof name - strlen(name), "%s ", c->set[i]);
    snprintf(name + strlen(name), sizeof name - strlen(name), "on %s", c->mesh);
    note_trainer_open(&n, c);
    EXPECT_OK(note_trainer_run(&n, NUM_STEPS));
    EXPECT(!races(&n, n.notes, n.count, &words), "%s: %s", name, words.text);
    check_functions(&n, name);
    sum.notes += n.count;
    for (size_t i = 0; i < n.count; i++)
        sum.operations += n.notes[i].num_ranges > 0;
    droppable d = find_droppable(&n);
    if (strcmp(c->set[0], HOST) == 0 && !c->set[1])
        check_uploads(&n, &d, name);
    drop_updates(&n, &d);
    for (int i = 0; i < DROPS; i++)
        drop(&n, &d, i % NUM_KINDS);
    release_droppable(&d);
    for (int i = 0; i < DROPS; i++)
        drop_of_task(&n, c);
    note_trainer_close(&n);
}

static void tell(const char *what, const char *of, const tally *t)
{
    printf("%-16s %-8s %4zu dropped: %4zu named, %4zu with those beside them, %4zu redundant\n", of,
           what, t->dropped, t->named, t->together, t->dropped - t->named - t->together);
}

int main(void)
{
    weft_log_set_level(WEFT_LOG_ERROR);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run(&cases[i]);
    printf("%zu notes, %zu operations: all ordered; %zu waits of uploads for updates\n", sum.notes,
           sum.operations, sum.uploads);
    for (int k = 0; k < NUM_KINDS; k++) {
        tell("waits", kind_texts[k], &sum.waits[k]);
        tell("records", kind_texts[k], &sum.records[k]);
    }
    for (int k = 0; k < NUM_UPDATE_LANES; k++)
        tell("updates", update_lanes[k], &sum.updates[k]);
    tell("of tasks", "steps' programs", &sum.tasks[0]);
    tell("of tasks", "bodies", &sum.tasks[1]);
    for (int k = 0; k < NUM_KINDS; k++)
        EXPECT(sum.waits[k].dropped >= 60 &&
                   2 * (sum.waits[k].named + sum.waits[k].together) >= sum.waits[k].dropped,
               "nobody needs %s", kind_texts[k]);
    for (int k = 0; k < 2; k++)
        EXPECT(sum.tasks[k].dropped >= 100 && 2 * sum.tasks[k].named >= sum.tasks[k].dropped,
               "nobody needs the waits of programs");
    for (int k = 0; k < NUM_UPDATE_LANES; k++)
        EXPECT(sum.updates[k].named >= (k == NUM_UPDATE_LANES - 1 ? 15 : 1),
               "nobody needs the waits of %s for updates", update_lanes[k]);
    EXPECT(sum.uploads >= 30, "only %zu waits of uploads", sum.uploads);
    return expect_finish();
}
