/* The end of a step: its program for buckets of every kind, to the byte; every wait is needed, and
 * what is damaged is refused. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

/* Two layers' buckets with ZeRO-1, one of experts that no other rank has, one that is a part of a
 * sum over TP, and a tied embedding that is not sharded. */
static const weft_bucket_shape shapes[] = {
    {.layer = 3, .reduces = true, .gathers = true, .elements = 64},
    {.layer = 1, .elements = 32},
    {.layer = 1, .reduces = true, .gathers = true, .elements = 64},
    {.layer = -1, .sum = WEFT_BUCKET_SUM_TENSOR, .reduces = true, .gathers = true, .elements = 32},
    {.layer = -1, .sum = WEFT_BUCKET_SUM_TENSOR, .reduces = true, .gathers = true, .elements = 32},
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
    ASSERT_OK(weft_program_pipeline(&set.shape, &set.arena, set.programs));
    ASSERT_OK(check_set(&set));
    return set;
}

static void is_this_program(void **state)
{
    (void)state;
    program_set set = make(1, &all);
    weft_program parsed;
    char *text = text_of(&set.programs[0]);
    assert_string_equal(text, program_text);
    ASSERT_OK(weft_program_parse(text, &set.arena, &parsed));
    assert_true(same_program(&set.programs[0], &parsed));
    free(text);
    release_set(&set);
}

/* Stages have buckets of their own, or none: then the norm alone is left, for all ranks take it. */
static void each_stage_has_its_own(void **state)
{
    (void)state;
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

static void every_wait_is_needed(void **state)
{
    (void)state;
    static edit edited;
    program_set set = make(1, &all);
    const weft_program whole = set.programs[0];
    for (uint32_t t = 0; t < whole.num_tasks; t++)
        for (uint32_t w = 0; w < whole.tasks[t].num_waits; w++) {
            edit_open(&set, 0, &edited);
            drop_wait(&edited, t, w);
            edit_close(&edited, &set);
            ASSERT_ERROR(check_set(&set), WEFT_INTERNAL, " may start before the ");
            set.programs[0] = whole;
        }
    release_set(&set);
}

static void refuse(const char *from, const char *to, const char *part)
{
    program_set set = make(1, &all);
    char *text = text_of(&set.programs[0]), *at = strstr(text, from);
    char *damaged = calloc(1, strlen(text) + strlen(to) + 1);
    assert_non_null(at);
    assert_non_null(damaged);
    sprintf(damaged, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ASSERT_OK(weft_program_parse(damaged, &set.arena, &set.programs[0]));
    ASSERT_ERROR(check_set(&set), WEFT_INTERNAL, part);
    free(damaged);
    free(text);
    release_set(&set);
}

static void refuses_what_is_damaged(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_this_program),
        cmocka_unit_test(each_stage_has_its_own),
        cmocka_unit_test(every_wait_is_needed),
        cmocka_unit_test(refuses_what_is_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
