/* Who is missing, by what ranks answer: each way in which ranks come to wait for ever. */
#include <stdio.h>
#include <string.h>

#include "comm/watch/watch.h"
#include "comm/watch/judge.h"
#include "tests/expect.h"

enum { MAX_RANKS = 6 };

static weft_answer answers[MAX_RANKS];
static bool silent[MAX_RANKS];
static int num_ranks = 4;
static double recovers_s, silence_limit_s;
static weft_verdict verdict;

static void restart(void)
{
    memset(answers, 0, sizeof answers);
    memset(silent, 0, sizeof silent);
    recovers_s = silence_limit_s = 0;
    for (int i = 0; i < num_ranks; i++) {
        weft_answer *a = &answers[i];
        a->phase = WEFT_WATCH_STEP;
        a->step = 17;
        a->phase_s = 9;
        a->phase_limit_s = 60;
        a->exchange_limit_s = 5;
        a->num_groups = 1;
        a->groups[0] = (weft_answer_group){.group = "world", .size = num_ranks, .num_begun = 30};
    }
}

static void wait_in(int rank, const char *kind, uint64_t sequence)
{
    weft_answer *a = &answers[rank];
    a->is_in_exchange = a->exchange_is_over = 1;
    a->exchange_s = 6;
    a->size = num_ranks;
    a->tag = -1;
    a->sequence = sequence;
    a->bytes = 64;
    snprintf(a->kind, sizeof a->kind, "%s", kind);
    snprintf(a->group, sizeof a->group, "world");
    snprintf(a->dtype, sizeof a->dtype, "f32");
    a->groups[0].num_begun = sequence + 1;
    for (int i = 0; i < num_ranks; i++)
        if (i != rank)
            a->members[a->num_members++] = i;
}

static void wait_for_message(int rank, const char *kind, int peer, int tag)
{
    weft_answer *a = &answers[rank];
    a->is_in_exchange = a->is_message = a->exchange_is_over = 1;
    a->exchange_s = 6;
    a->tag = tag;
    snprintf(a->kind, sizeof a->kind, "%s", kind);
    snprintf(a->group, sizeof a->group, "pp");
    snprintf(a->doing, sizeof a->doing, "%s micro-batch 1", kind);
    a->members[a->num_members++] = peer;
}

static void judge(int alarmed)
{
    const weft_answer *at[MAX_RANKS];
    const char *const nodes[MAX_RANKS] = {"node0", "node0", "node1", "node1", "node2", "node2"};
    for (int i = 0; i < num_ranks; i++)
        at[i] = silent[i] ? NULL : &answers[i];
    weft_watch_judge(&(weft_answers){.size = num_ranks,
                                     .at = at,
                                     .nodes = nodes,
                                     .silent_s = 1,
                                     .silence_limit_s = silence_limit_s,
                                     .recovers_s = recovers_s},
                     alarmed, &verdict);
}

static void expect_missing(const char *what, int rank, const char *text)
{
    EXPECT(!verdict.is_none && verdict.num_missing == 1 && verdict.missing[0] == rank,
           "%s: %d missing, first %d: %s", what, verdict.num_missing, verdict.missing[0],
           verdict.text);
    EXPECT(strstr(verdict.text, text) && strstr(verdict.text, "step 17"), "%s: %s", what,
           verdict.text);
}

static void test_silent(void)
{
    restart();
    wait_in(0, "all_reduce", 30);
    wait_for_message(1, "recv", 2, 3);
    wait_in(3, "all_reduce", 30);
    silent[2] = true;
    judge(1);
    expect_missing("silent", 2, "rank 2 (node1) is missing: no answer");
    EXPECT(strstr(verdict.text, "rank 1 waits 6.0 s in recv 0 of group pp with rank 2"), "%s",
           verdict.text);
    silent[3] = true;
    judge(0);
    EXPECT(verdict.num_missing == 2 &&
               strstr(verdict.text, "ranks 2 (node1), 3 (node1) are missing"),
           "%s", verdict.text);
}

static void test_late(void)
{
    restart();
    wait_in(0, "all_reduce", 30);
    wait_in(1, "all_reduce", 30);
    wait_for_message(3, "recv", 2, 3); /* through another */
    judge(3);
    expect_missing("late", 2, "alive but not there, in step 17");
    judge(0);
    expect_missing("late", 2, "all_reduce 30 of group world");
    answers[2].phase = WEFT_WATCH_SAVE;
    judge(0);
    EXPECT(verdict.is_none, "a save within its limit: %s", verdict.text);
    answers[2].phase_is_over = 1;
    judge(0);
    EXPECT(!verdict.is_none, "a save beyond it");
}

static void test_chain(void)
{
    restart();
    wait_for_message(0, "recv", 1, 0);
    wait_for_message(1, "recv", 2, 0);
    wait_for_message(2, "recv", 3, 0);
    judge(0);
    expect_missing("chain", 3, "rank 3 (node1) is missing: alive");
}

static void test_other_kind(void)
{
    restart();
    for (int i = 0; i < num_ranks; i++)
        wait_in(i, i == 2 ? "broadcast" : "all_reduce", 30);
    judge(0);
    expect_missing("kinds", 2, "broadcast of 64 bytes f32, where rank 0 has all_reduce");
}

static void test_link(void)
{
    restart();
    for (int i = 0; i < num_ranks; i++)
        wait_in(i, "all_reduce", 30);
    judge(1);
    EXPECT(verdict.num_missing == 0 && !verdict.is_none &&
               strstr(verdict.text, "does not arrive, between rank 1 (node0) and 0 (node0)"),
           "%s", verdict.text);
    restart();
    wait_for_message(1, "send", 2, 5);
    wait_for_message(2, "recv", 1, 5);
    judge(2);
    EXPECT(verdict.num_missing == 0 && strstr(verdict.text, "does not arrive"), "%s", verdict.text);
}

/* Soon after a cut TCP still sleeps: its k-th try comes rto (2^k - 1) after what was sent. */
static void test_recovery(void)
{
    for (double cut_s = 0.1; cut_s < 60; cut_s *= 1.01)
        for (double rto_s = 0.2; rto_s < 1.5; rto_s *= 1.1) {
            double at_s = rto_s, wait_s = rto_s;
            while (at_s < cut_s)
                at_s += wait_s *= 2;
            EXPECT(at_s <= cut_s + weft_watch_recovery_s(cut_s), "a cut of %g s: %g s, rto %g s",
                   cut_s, at_s, rto_s);
        }
    EXPECT(weft_watch_recovery_s(5) < 10, "%g s", weft_watch_recovery_s(5));
    restart();
    for (int i = 0; i < num_ranks; i++)
        wait_in(i, "all_reduce", 30);
    recovers_s = 0.1;
    judge(1);
    EXPECT(verdict.is_none, "a link that has just come back: %s", verdict.text);
    silent[2] = true;
    judge(1);
    expect_missing("cut again", 2, "no answer");
    silent[2] = false;
    recovers_s = -1;
    judge(1);
    EXPECT(!verdict.is_none, "a link that came back long ago");
}

/* Rank 2 has left out a receive: rank 1 still sends, and 2 waits for 1 where the step ends. */
static void test_circle(void)
{
    restart();
    wait_for_message(1, "send", 2, 5);
    wait_in(2, "all_reduce", 30);
    wait_in(0, "all_reduce", 30);
    wait_in(3, "all_reduce", 30);
    judge(1);
    expect_missing("circle", 2, "out of order");
    judge(0);
    expect_missing("circle", 2, "out of order");
}

/* Rank 2 is further than where others issued a collective that it has not; and of two that differ
 * in one exchange the further has left a call out. */
static void test_left_out(void)
{
    restart();
    for (int i = 0; i < num_ranks; i++)
        if (i != 2)
            wait_in(i, "all_reduce", 30);
    wait_for_message(2, "recv", 1, 4);
    answers[2].groups[0].num_issued = 30;
    answers[2].now.number = 9;
    judge(0);
    expect_missing("left out", 2, "rank 2 (node1) has left out all_reduce 30 of group world");
    answers[2].groups[0].num_issued = 31; /* it stands on a lane behind others */
    judge(0);
    EXPECT(!strstr(verdict.text, "left out"), "%s", verdict.text);
    num_ranks = 2;
    restart();
    wait_in(0, "all_reduce", 30);
    wait_in(1, "all_reduce", 30);
    answers[0].place.number = 7;
    answers[1].place.number = 6;
    judge(0);
    expect_missing("further", 0, "rank 0 (node0) is in another exchange");
    judge(1);
    expect_missing("further", 0, "rank 0 (node0) is in another exchange");
    num_ranks = 4;
}

/* A job that its starter takes down. */
static void test_dead(void)
{
    const weft_answer *at[MAX_RANKS] = {&answers[0], &answers[1], NULL, &answers[3]};
    const char *const nodes[MAX_RANKS] = {"node0", "node0", "node1", "node1"};
    restart();
    wait_for_message(1, "recv", 2, 3);
    weft_watch_judge_dead(&(weft_answers){.size = num_ranks, .at = at, .nodes = nodes}, 0,
                          &verdict);
    EXPECT(verdict.num_missing == 1 && verdict.missing[0] == 2 &&
               strstr(verdict.text, "rank 2 (node1) is dead: ") == verdict.text,
           "%s", verdict.text);
    EXPECT(strcmp(verdict.text + verdict.place_at,
                  "in step 17; rank 1 waited for it in recv 0 of "
                  "group pp with rank 2 (recv micro-batch 1)") == 0,
           "%s", verdict.text);
}

static void test_slow(void)
{
    restart();
    answers[1].phase = WEFT_WATCH_SAVE;
    answers[1].phase_is_over = 1;
    judge(1);
    expect_missing("slow", 1, "raise the limit");
    EXPECT(strstr(verdict.text, "reliability.save_limit_s"), "%s", verdict.text);
}

/* A step's limit has passed, waits are as short as ever, whoever is in one: nobody is to blame. */
static void test_low(void)
{
    for (int waiting = 0; waiting < 1 << num_ranks; waiting++)
        for (int phase = WEFT_WATCH_FIRST_STEP; phase <= WEFT_WATCH_STEP; phase++) {
            const int alarmed = waiting % num_ranks;
            restart();
            for (int rank = 0; rank < num_ranks; rank++) {
                answers[rank].phase = phase;
                if (waiting >> rank & 1)
                    wait_in(rank, "all_reduce", 30);
                answers[rank].exchange_is_over = 0;
                answers[rank].exchange_s = 4.9 / (1 + rank);
            }
            answers[alarmed].phase_is_over = 1;
            judge(alarmed);
            EXPECT(verdict.num_missing == 0 && !verdict.is_none &&
                       strstr(verdict.text, "all get on") &&
                       strstr(verdict.text, phase == WEFT_WATCH_STEP
                                                ? "raise reliability.step_limit_s"
                                                : "raise reliability.first_step_limit_s"),
                   "%x: %s", waiting, verdict.text);
        }
    restart(); /* a first step, whose exchanges have no limit */
    wait_in(3, "all_reduce", 30);
    answers[3].phase = WEFT_WATCH_FIRST_STEP;
    answers[3].exchange_is_over = 0;
    answers[3].phase_is_over = 1;
    judge(3);
    EXPECT(verdict.num_missing == 3 && strstr(verdict.text, "alive but not there"), "%s",
           verdict.text);
}

/* Of each cut of the nodes in two, one side speaks at once; a node's ranks are not cut in two. */
static void test_minority(void)
{
    num_ranks = MAX_RANKS;
    for (int cut = 1; cut < (1 << num_ranks) - 1; cut++) {
        bool sides[2];
        const bool whole = ((cut >> 1 ^ cut) & 0x15) == 0; /* ranks 2i and 2i + 1 alike */
        for (int side = 0; side < 2; side++) {
            int here = 0;
            restart();
            for (int rank = num_ranks; rank-- > 0;) {
                silent[rank] = (cut >> rank & 1) != side;
                if (silent[rank])
                    continue;
                wait_in(rank, "all_reduce", 30);
                here = rank;
            }
            judge(here);
            sides[side] = verdict.is_minority;
            EXPECT(verdict.is_minority == (strstr(verdict.text, " hear each other here") != NULL),
                   "%s", verdict.text);
        }
        EXPECT(whole ? sides[0] != sides[1] : !sides[0] && !sides[1],
               "ranks %x of %d: %d against %d", cut, num_ranks, sides[0], sides[1]);
    }
    num_ranks = 4;
}

/* A save that ranks wait for by right, and a rank that no longer shows that it lives. */
static void test_dead_in_save(void)
{
    restart();
    for (int i = 0; i < num_ranks; i++)
        answers[i].phase = WEFT_WATCH_SAVE;
    silent[3] = true;
    silence_limit_s = 300;
    judge(0);
    expect_missing("dead in a save", 3,
                   "limit 300 s (reliability.step_limit_s); rank 0 is in save");
}

int main(void)
{
    test_silent();
    test_late();
    test_chain();
    test_other_kind();
    test_link();
    test_recovery();
    test_circle();
    test_left_out();
    test_dead();
    test_slow();
    test_low();
    test_minority();
    test_dead_in_save();
    return expect_finish();
}
