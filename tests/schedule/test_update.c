/* The end of a step: its program for buckets of every kind, to the byte; every wait is needed, and
 * what is damaged is refused. */
#include "schedule/price/price.h"
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

/* Two layers' buckets with ZeRO-1, one of experts that no other rank has, one that is a part of a
 * sum over TP, and a tied embedding that is not sharded. */
static const weft_bucket_shape shapes[] = {
    {.layer = 3, .ranks = 2, .owners = 2, .elements = 64},
    {.layer = 1, .elements = 32},
    {.layer = 1, .ranks = 2, .owners = 2, .elements = 64},
    {.layer = -1, .sum = WEFT_BUCKET_SUM_TENSOR, .ranks = 2, .owners = 2, .elements = 32},
    {.layer = -1, .sum = WEFT_BUCKET_SUM_TENSOR, .ranks = 2, .owners = 2, .elements = 32},
    {.layer = -1, .sum = WEFT_BUCKET_SUM_TIED, .elements = 32},
};
static const weft_buckets all = {shapes, sizeof(shapes) / sizeof(shapes[0])};

static const char program_text[] = "program in_flight=1\n"
                                   "slots 0-0 activation chunk=0\n"
                                   "0 forward compute mb=0 chunk=0 stash=0\n"
                                   "1 backward compute mb=0 chunk=0 stash=0\n"
                                   "2 forward compute mb=1 chunk=0 stash=0\n"
                                   "3 backward compute mb=1 chunk=0 stash=0\n"
                                   "4 reduce reduce bucket=0 waits=3@3\n"
                                   "5 reduce reduce bucket=2 waits=3@1\n"
                                   "6 sum reduce tensor waits=3\n"
                                   "7 reduce reduce bucket=3\n"
                                   "8 reduce reduce bucket=4\n"
                                   "9 sum reduce tied\n"
                                   "10 norm compute host waits=9\n"
                                   "11 step compute bucket=0\n"
                                   "12 gather reduce weight bucket=0 waits=11\n"
                                   "13 step compute bucket=1\n"
                                   "14 step compute bucket=2\n"
                                   "15 gather reduce weight bucket=2 waits=14\n"
                                   "16 step compute bucket=3\n"
                                   "17 gather reduce weight bucket=3 waits=16\n"
                                   "18 step compute bucket=4\n"
                                   "19 gather reduce weight bucket=4 waits=18\n"
                                   "20 step compute bucket=5\n";

static program_set make(int num_stages, const weft_buckets *buckets)
{
    program_set set = {.shape = {.num_stages = num_stages,
                                 .num_micro_batches = 2,
                                 .boundary_bytes = 8,
                                 .buckets = buckets}};
    OK(weft_program_pipeline(&set.shape, &set.arena, set.programs));
    OK(check_set(&set));
    return set;
}

CASE(is_this_program)
{
    program_set set = make(1, &all);
    program_is(&set.programs[0], program_text);
    release_set(&set);
}

/* Stages have buckets of their own, or none: then the norm alone is left, for all ranks take it. */
CASE(each_stage_has_its_own)
{
    const weft_buckets buckets[3] = {all, {NULL, 0}, {shapes, 1}};
    program_set set = make(3, buckets);
    int norms = 0, updates[3] = {0};
    for (int s = 0; s < 3; s++)
        for (uint32_t i = 0; i < set.programs[s].num_tasks; i++) {
            const weft_task *task = &set.programs[s].tasks[i];
            norms += task->kind == WEFT_TASK_NORM;
            updates[s] += task->bucket >= 0;
        }
    assert_int_equal(norms, 3);
    assert_int_equal(updates[0], 14);
    assert_int_equal(updates[1], 0);
    assert_int_equal(updates[2], 3);
    release_set(&set);
}

static weft_status check_alone(const void *of, const program_set *set)
{
    (void)of;
    return check_set(set);
}

CASE(every_wait_counts)
{
    program_set set = make(1, &all);
    every_wait_is_needed(&set, 0, check_alone, NULL, " may start before the ");
    release_set(&set);
}

static void refuse_of(const weft_buckets *buckets, const char *from, const char *to,
                      const char *part)
{
    program_set set = make(1, buckets);
    char *text = text_of(&set.programs[0]), *at = strstr(text, from);
    char *damaged = calloc(1, strlen(text) + strlen(to) + 1);
    assert_non_null(at);
    assert_non_null(damaged);
    sprintf(damaged, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    OK(weft_program_parse(damaged, &set.arena, &set.programs[0]));
    FAILS(check_set(&set), WEFT_INTERNAL, part);
    free(damaged);
    free(text);
    release_set(&set);
}

static void refuse(const char *from, const char *to, const char *part)
{
    refuse_of(&all, from, to, part);
}

CASE(refuses_what_is_damaged)
{
    refuse("bucket=0 waits=3@3", "bucket=0 waits=3@4",
           "task 4 (reduce reduce bucket=0 waits=3@4) "
           "may start before the backward in task 3");
    refuse("waits=3@1", "waits=1", "may start before the backward in task 3");
    refuse("10 norm compute host", "10 norm compute", "hides that the host waits");
    refuse("10 norm compute host waits=9", "10 norm compute host waits=6",
           "may start before the reduce in task 7");
    refuse("4 reduce reduce bucket=0 waits=3@3\n5 reduce reduce bucket=2 waits=3@1\n",
           "4 reduce reduce bucket=2 waits=3@1\n5 reduce reduce bucket=0 waits=3@3\n",
           "comes before task");
    refuse("6 sum reduce tensor waits=3\n7 reduce reduce bucket=3\n",
           "6 reduce reduce bucket=3 waits=3\n7 sum reduce tensor\n", "may start before the sum");
    refuse("bucket=5", "bucket=6", "has no place in this program");
    refuse("19 gather reduce weight bucket=4 waits=18\n20 step compute bucket=5\n",
           "19 step compute bucket=5\n", "has no gather reduce weight bucket=4");
    refuse("bucket=4 waits=18", "bucket=4 waits=16", "may start before the step in task 18");
}

/* --- experts beyond device memory ------------------------------------------------------------ */

enum { MAX_OFFLOADED = 24 };

/* Two layers of two experts each, over edp 2, the first of each layer kept; and a dense bucket. */
static weft_buckets offloaded(bool at_once, weft_bucket_shape out[MAX_OFFLOADED])
{
    int count = 0;
    for (int layer = 3; layer >= 1; layer -= 2)
        for (int expert = 0; expert < 2; expert++, count++)
            out[count] = (weft_bucket_shape){
                .layer = layer,
                .ranks = layer == 3 ? 2 : 1,
                .owners = layer == 3 ? 2 : 1,
                .residency = {WEFT_LIES_ON_HOST, WEFT_LIES_ON_HOST, WEFT_LIES_ON_HOST},
                .at_once = at_once,
                .refreshes = expert == 0,
                .elements = 64};
    out[count++] = (weft_bucket_shape){.layer = 0, .ranks = 2, .elements = 32};
    return (weft_buckets){out, count};
}

static const char head_text[] = "program in_flight=1\n"
                                "slots 0-0 activation chunk=0\n"
                                "0 forward compute mb=0 chunk=0 stash=0\n"
                                "1 backward compute mb=0 chunk=0 stash=0\n"
                                "2 forward compute mb=1 chunk=0 stash=0\n"
                                "3 backward compute mb=1 chunk=0 stash=0\n";

static void written_as(const weft_buckets *buckets, const char *wanted)
{
    program_set set = make(1, buckets);
    char *text = text_of(&set.programs[0]);
    assert_memory_equal(text, head_text, strlen(head_text));
    assert_string_equal(text + strlen(head_text), wanted);
    free(text);
    is_read_back(&set.programs[0]);
    release_set(&set);
}

static void text_is(bool at_once, const char *wanted)
{
    weft_bucket_shape of[MAX_OFFLOADED];
    const weft_buckets buckets = offloaded(at_once, of);
    written_as(&buckets, wanted);
}

CASE(host_steps_written_out)
{
    text_is(true, "4 reduce reduce bucket=0 waits=3@landed,step_before\n"
                  "5 norm host bucket=0 waits=4\n"
                  "6 step host bucket=0 waits=step_before\n"
                  "7 gather host weight bucket=0\n"
                  "8 upload to_device weight bucket=0 waits=3@3,7\n"
                  "9 reduce reduce bucket=1 waits=3@landed,step_before\n"
                  "10 norm host bucket=1 waits=9\n"
                  "11 step host bucket=1\n"
                  "12 gather host weight bucket=1\n"
                  "13 norm host bucket=2 waits=3@landed\n"
                  "14 step host bucket=2 waits=step_before\n"
                  "15 upload to_device weight bucket=2 waits=3@1,14\n"
                  "16 norm host bucket=3 waits=3@landed\n"
                  "17 step host bucket=3\n"
                  "18 reduce reduce bucket=4 waits=3@0\n"
                  "19 norm compute host waits=16,18\n"
                  "20 step compute bucket=4\n");
    text_is(false, "4 reduce reduce bucket=0 waits=3@landed,step_before\n"
                   "5 norm host bucket=0 waits=4\n"
                   "6 reduce reduce bucket=1 waits=3@landed,step_before\n"
                   "7 norm host bucket=1 waits=6\n"
                   "8 norm host bucket=2 waits=3@landed\n"
                   "9 norm host bucket=3 waits=3@landed\n"
                   "10 reduce reduce bucket=4 waits=3@0\n"
                   "11 norm compute host waits=9,10\n"
                   "12 step compute bucket=4\n"
                   "13 step host bucket=3 waits=11\n"
                   "14 step host bucket=2 waits=step_before\n"
                   "15 upload to_device weight bucket=2 waits=14\n"
                   "16 step host bucket=1\n"
                   "17 gather host weight bucket=1\n"
                   "18 step host bucket=0 waits=step_before\n"
                   "19 gather host weight bucket=0\n"
                   "20 upload to_device weight bucket=0 waits=19\n");
}

/* Three buckets of whose state alone is on the host, which take two places in turn; one of them is
 * gathered. */
static weft_buckets staged(weft_bucket_shape out[MAX_OFFLOADED])
{
    for (int i = 0; i < 3; i++)
        out[i] = (weft_bucket_shape){.layer = 3 - i,
                                     .ranks = i != 1 ? 2 : 1,
                                     .owners = i == 0 ? 2 : 1,
                                     .residency.state = WEFT_LIES_ON_HOST,
                                     .staging = i % WEFT_BUCKET_STAGING,
                                     .elements = 64};
    return (weft_buckets){out, 3};
}

CASE(staged_steps_written_out)
{
    weft_bucket_shape of[MAX_OFFLOADED];
    const weft_buckets buckets = staged(of);
    written_as(&buckets, "4 reduce reduce bucket=0 waits=3@3\n"
                         "5 reduce reduce bucket=2 waits=3@1\n"
                         "6 norm compute host waits=5\n"
                         "7 download to_host gradient bucket=0 waits=6\n"
                         "8 step host bucket=0 waits=7\n"
                         "9 upload to_device weight bucket=0 waits=8\n"
                         "10 gather reduce weight bucket=0 waits=9\n"
                         "11 download to_host gradient bucket=1\n"
                         "12 step host bucket=1 waits=11\n"
                         "13 upload to_device weight bucket=1 waits=12\n"
                         "14 download to_host gradient bucket=2 waits=8\n"
                         "15 step host bucket=2 waits=14\n"
                         "16 upload to_device weight bucket=2 waits=15\n"
                         "17 upload compute weight waits=16\n");
}

CASE(refuses_damaged_staged_steps)
{
    weft_bucket_shape of[MAX_OFFLOADED];
    const weft_buckets buckets = staged(of);
    refuse_of(&buckets, "14 download to_host gradient bucket=2 waits=8",
              "14 download to_host gradient bucket=2", "may start before the step in task 8");
    refuse_of(&buckets, "bucket=0 waits=6", "bucket=0 waits=4",
              "may start before the norm in task 6");
    refuse_of(&buckets, "17 upload compute weight waits=16\n", "", "has no upload compute weight");
    refuse_of(&buckets, "17 upload compute weight waits=16", "17 upload compute weight waits=13",
              "may start before the upload in task 16");
    refuse_of(&buckets, "17 upload compute", "17 upload to_device", "is not on the compute lane");
    refuse_of(&buckets, "8 step host", "8 step compute", "is not on the host lane");
    refuse_of(&buckets, "10 gather reduce weight bucket=0 waits=9",
              "10 gather reduce weight bucket=0 waits=8", "may start before the upload in task 9");
}

static weft_buckets draw_offloaded(uint64_t *random, weft_bucket_shape out[MAX_OFFLOADED])
{
    const bool at_once = next_random(random, 2), reduces = next_random(random, 2);
    const bool gathers = reduces && next_random(random, 2), refreshes = next_random(random, 2);
    const int experts = 1 + (int)next_random(random, 4);
    const bool state_on_host = next_random(random, 2);
    int count = 0, num_staged = 0;
    for (int layer = 4; layer >= 0; layer--) {
        const bool dense = next_random(random, 2);
        for (int e = 0; e < experts && !dense; e++, count++)
            out[count] = (weft_bucket_shape){
                .layer = layer,
                .ranks = reduces ? 2 : 1,
                .owners = gathers ? 2 : 1,
                .residency = {WEFT_LIES_ON_HOST, WEFT_LIES_ON_HOST, WEFT_LIES_ON_HOST},
                .at_once = at_once,
                .refreshes = refreshes,
                .elements = 64};
        if (dense)
            out[count++] = (weft_bucket_shape){
                .layer = layer,
                .ranks = 1 + (int32_t)next_random(random, 2),
                .owners = 1 + (int32_t)next_random(random, 2),
                .residency.state = state_on_host ? WEFT_LIES_ON_HOST : WEFT_LIES_ON_DEVICE,
                .staging = state_on_host ? num_staged++ % WEFT_BUCKET_STAGING : 0,
                .elements = 32};
    }
    return (weft_buckets){out, count};
}

/* No wait is one too many, and none for the step before is missing. */
CASE(every_host_wait_is_needed)
{
    static edit edited;
    uint64_t random = 17;
    for (int draw = 0; draw < 60; draw++) {
        weft_bucket_shape of[MAX_OFFLOADED];
        const weft_buckets buckets = draw_offloaded(&random, of);
        program_set set = make(1, &buckets);
        const weft_program whole = set.programs[0];
        every_wait_is_needed(&set, 0, check_alone, NULL, " may start before the ");
        for (uint32_t t = 0; t < whole.num_tasks; t++) {
            for (uint32_t w = 0; w < whole.tasks[t].num_waits; w++) {
                edit_open(&set, 0, &edited);
                if (edited.waits[t][w].point != WEFT_POINT_LANDED)
                    continue;
                /* neither the layer's point nor the end says that a gradient has landed */
                for (int point = 0; point >= -1; point--) {
                    edit_open(&set, 0, &edited);
                    edited.waits[t][w].point = point;
                    edit_close(&edited, &set);
                    FAILS(check_set(&set), WEFT_INTERNAL, " may start before the ");
                    set.programs[0] = whole;
                }
            }
            edit_open(&set, 0, &edited);
            flip_step_wait(&edited, t);
            edit_close(&edited, &set);
            FAILS(check_set(&set), WEFT_INTERNAL, "step");
            set.programs[0] = whole;
        }
        release_set(&set);
    }
}

CASE(refuses_damaged_host_steps)
{
    weft_bucket_shape first[MAX_OFFLOADED], second[MAX_OFFLOADED];
    const weft_buckets at_once = offloaded(true, first), later = offloaded(false, second);
    refuse_of(&at_once, "13 norm host bucket=2 waits=3@landed", "13 norm host bucket=2 waits=3",
              "may start before the backward in task 3 is over");
    refuse_of(&at_once, "6 step host", "6 step compute", "is not on the host lane");
    refuse_of(&later, "bucket=4\n13 step host bucket=3 waits=11", "bucket=4\n13 step host bucket=3",
              "may start before the norm in task 11");
    refuse_of(&later, "16 step host bucket=1\n17 gather host weight bucket=1\n",
              "16 gather host weight bucket=1\n17 step host bucket=1\n",
              "may start before the step in task 17");
    refuse_of(&later, "20 upload to_device weight bucket=0 waits=19\n", "",
              "has no upload to_device weight bucket=0");
}

/* A step's own time is over when all lanes but the host's are; the host's steps go on. Gradients
 * land when the caller says, in whatever order. */
static double host_us(const void *context, int stage, const weft_task *task)
{
    (void)context;
    (void)stage;
    return task->kind == WEFT_TASK_BACKWARD                                   ? 40
           : task->kind == WEFT_TASK_FORWARD                                  ? 20
           : task->kind == WEFT_TASK_STEP && task->lane == WEFT_LANE_HOST     ? 8
           : task->kind == WEFT_TASK_UPLOAD || task->kind == WEFT_TASK_REDUCE ? 1
                                                                              : 0;
}

static double share_of(const void *context, int stage, const weft_task *task, int point,
                       const weft_task *waiting)
{
    static const double landed[] = {0.5, 0.25, 1, 0.75};
    (void)context;
    (void)stage;
    (void)task;
    return point == WEFT_POINT_LANDED ? landed[waiting->bucket] : 1 - point / 4.0;
}

CASE(host_steps_run_on)
{
    weft_bucket_shape of[MAX_OFFLOADED];
    for (int at_once = 0; at_once < 2; at_once++) {
        const weft_buckets buckets = offloaded(at_once, of);
        program_set set = make(1, &buckets);
        weft_price price;
        weft_pricing pricing = {.cost = host_us, .point = share_of};
        OK(weft_program_price(set.programs, 1, &pricing, &set.arena, &price));
        assert_true(price.makespan_us == price.end_us);
        pricing.runs_on = 1u << WEFT_LANE_HOST | 1u << WEFT_LANE_TO_DEVICE;
        OK(weft_program_price(set.programs, 1, &pricing, &set.arena, &price));
        /* The last backward begins at 80 and ends at 120; the dense bucket is reduced behind it. At
         * once, layer 3's steps are from 101 to 117 and layer 1's from 120 to 136; the norm waits
         * for the last gradient's, behind the first of these. */
        assert_true(price.makespan_us == (at_once ? 128 : 121));
        assert_true(price.end_us == (at_once ? 136 : 121 + 4 * 8 + 1));
        assert_true(price.spans[0][5].start_us == 101); /* the norm of bucket 0 */
        release_set(&set);
    }
}

/* Gradients take 2 down, a step 5, weights 1 up; the norm is at 120, and what the host steps is a
 * part of the step, though its lane runs on. All of it is waited for as the host's. */
static double staged_us(const void *context, int stage, const weft_task *task)
{
    (void)context;
    (void)stage;
    return task->kind == WEFT_TASK_BACKWARD                      ? 40
           : task->kind == WEFT_TASK_FORWARD                     ? 20
           : task->kind == WEFT_TASK_DOWNLOAD                    ? 2
           : task->kind == WEFT_TASK_STEP                        ? 5
           : task->kind == WEFT_TASK_UPLOAD && task->bucket >= 0 ? 1
                                                                 : 0;
}

CASE(staged_steps_end_the_step)
{
    weft_bucket_shape of[MAX_OFFLOADED];
    const weft_buckets buckets = staged(of);
    program_set set = make(1, &buckets);
    weft_price price;
    const weft_pricing pricing = {.cost = staged_us,
                                  .point = share_of,
                                  .runs_on = 1u << WEFT_LANE_HOST | 1u << WEFT_LANE_TO_DEVICE};
    OK(weft_program_price(set.programs, 1, &pricing, &set.arena, &price));
    /* Bucket 1 comes down while bucket 0 is stepped, bucket 2 while bucket 1 is. */
    assert_true(price.makespan_us == 120 + 2 + 3 * 5 + 1);
    assert_true(price.spans[0][11].start_us == 122 && price.spans[0][14].start_us == 127);
    const weft_idle idle = weft_price_idle(&set.programs[0], &price, 0);
    assert_true(idle.host_us == 18 && idle.bubble_us == 0);
    release_set(&set);
}

/* Behind the last backward a gradient is read from the file, for 10, for its norm, which takes 2:
 * that is the host's, and no bubble. */
static double read_us(const void *context, int stage, const weft_task *task)
{
    (void)context;
    (void)stage;
    return task->kind == WEFT_TASK_READ   ? 10
           : task->lane == WEFT_LANE_HOST ? 2
           : task->kind == WEFT_TASK_NORM ? 0
                                          : 4;
}

CASE(reads_for_steps_are_no_bubble)
{
    static const char text[] = "program in_flight=1\n"
                               "slots 0-0 activation chunk=0\n"
                               "0 forward compute mb=0 chunk=0 stash=0\n"
                               "1 backward compute mb=0 chunk=0 stash=0\n"
                               "2 read file gradient bucket=0 waits=1\n"
                               "3 norm host bucket=0 waits=2\n"
                               "4 norm compute host waits=3\n";
    weft_arena arena = {0};
    weft_program program;
    weft_price price;
    const weft_pricing pricing = {.cost = read_us};
    OK(weft_program_parse(text, &arena, &program));
    OK(weft_program_price(&program, 1, &pricing, &arena, &price));
    assert_true(price.makespan_us == 8 + 10 + 2);
    const weft_idle idle = weft_price_idle(&program, &price, 0);
    assert_true(idle.host_us == 12 && idle.bubble_us == 0);
    weft_arena_release(&arena);
}
