#include "comm/watch/judge.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/watch/watch.h"

const char *weft_watch_phase_text(int phase)
{
    static const char *const texts[WEFT_WATCH_NUM_LIMITS] = {
        [WEFT_WATCH_SETUP] = "setup",           [WEFT_WATCH_LOAD] = "load",
        [WEFT_WATCH_FIRST_STEP] = "first_step", [WEFT_WATCH_STEP] = "step",
        [WEFT_WATCH_OUTPUT] = "output",         [WEFT_WATCH_SAVE] = "save",
        [WEFT_WATCH_EXCHANGE] = "exchange"};
    return texts[phase];
}

static const char *limit_text(int limit)
{
    return weft_watch_phase_text(limit == WEFT_WATCH_OUTPUT ? WEFT_WATCH_SAVE : limit);
}

static bool is_steps(const weft_answer *answer)
{
    return answer->phase == WEFT_WATCH_STEP || answer->phase == WEFT_WATCH_FIRST_STEP;
}

/* --- text ---------------------------------------------------------------------------------- */

static void add(weft_verdict *v, const char *format, ...) WEFT_PRINTF(2, 3);
static void add(weft_verdict *v, const char *format, ...)
{
    size_t used = strlen(v->text);
    va_list args;
    va_start(args, format);
    vsnprintf(v->text + used, sizeof v->text - used, format, args);
    va_end(args);
}

static void miss(weft_verdict *v, int rank)
{
    for (int i = 0; i < v->num_missing && i < WEFT_VERDICT_MISSING; i++)
        if (v->missing[i] == rank)
            return;
    if (v->num_missing < WEFT_VERDICT_MISSING)
        v->missing[v->num_missing] = rank;
    v->num_missing++;
}

/* "rank 2 (node1) is", "ranks 2 (node1), 3 (node1) and 4 more are" */
static void add_missing(const weft_answers *all, weft_verdict *v)
{
    enum { MOST = 8 };
    int count = v->num_missing < MOST ? v->num_missing : MOST;
    add(v, "%s", v->num_missing == 1 ? "rank" : "ranks");
    for (int i = 0; i < count; i++)
        add(v, "%s %d (%s)", i ? "," : "", v->missing[i], all->nodes[v->missing[i]]);
    if (v->num_missing > count)
        add(v, " and %d more", v->num_missing - count);
    add(v, v->num_missing == 1 ? " is" : " are");
}

static void add_exchange(weft_verdict *v, const weft_answer *a)
{
    add(v, "%s %" PRIu64 " of group %s", a->kind, a->sequence, a->group);
    if (a->is_message)
        add(v, " with rank %d", (int)a->members[0]);
    if (a->doing[0])
        add(v, " (%s)", a->doing);
}

static void add_place(weft_verdict *v, const weft_answer *a)
{
    if (is_steps(a))
        add(v, "in step %" PRId64 " for %.1f s", a->step, a->phase_s);
    else
        add(v, "in %s for %.1f s", weft_watch_phase_text(a->phase), a->phase_s);
}

/* Who waits where, how long, and which limit that has passed. */
static void add_waiting(weft_verdict *v, const weft_answers *all, int rank)
{
    const weft_answer *a = all->at[rank];
    add(v, "; rank %d ", rank);
    if (a->is_in_exchange) {
        add(v, "waits %.1f s in ", a->exchange_s);
        add_exchange(v, a);
    }
    if (a->is_in_exchange && a->phase_is_over && !a->exchange_is_over) {
        add(v, " and is ");
        add_place(v, a);
        add(v, ", limit %.3g s (reliability.%s_limit_s)", a->phase_limit_s, limit_text(a->phase));
    } else if (!a->is_in_exchange) {
        add(v, "is ");
        add_place(v, a);
    }
    if (a->exchange_is_over)
        add(v, ", limit %.3g s (reliability.exchange_limit_s)", a->exchange_limit_s);
    else if (a->phase_is_over && !a->is_in_exchange)
        add(v, ", limit %.3g s (reliability.%s_limit_s)", a->phase_limit_s, limit_text(a->phase));
}

/* --- who waits for whom -------------------------------------------------------------------- */

static bool has_member(const weft_answer *a, int rank)
{
    int known = a->num_members < WEFT_ANSWER_MEMBERS ? a->num_members : WEFT_ANSWER_MEMBERS;
    for (int i = 0; i < known; i++)
        if (a->members[i] == rank)
            return true;
    return false;
}

/* Where `other` is in the group of a's exchange, the furthest of that name; NULL: it is not in it.
 */
static const weft_answer_group *find_group(const weft_answer *a, const weft_answer *other)
{
    const weft_answer_group *found = NULL;
    for (int i = 0; i < other->num_groups && i < WEFT_ANSWER_GROUPS; i++) {
        const weft_answer_group *g = &other->groups[i];
        if (strcmp(g->group, a->group) != 0 || g->first_rank != a->first_rank || g->size != a->size)
            continue;
        found = !found || g->num_begun > found->num_begun ? g : found;
    }
    return found;
}

static bool is_same_exchange(const weft_answer *a, const weft_answer *b)
{
    return b->is_in_exchange && !b->is_message && a->sequence == b->sequence &&
           a->first_rank == b->first_rank && a->size == b->size && strcmp(a->group, b->group) == 0;
}

static bool meets(const weft_answer *a, int own, const weft_answer *b)
{
    return b->is_in_exchange && b->is_message && has_member(b, own) && a->tag == b->tag &&
           strcmp(a->group, b->group) == 0;
}

/* Whether `rank` has not come to what `own` waits in. */
static bool is_behind(const weft_answers *all, int own, int rank)
{
    const weft_answer *a = all->at[own], *other = all->at[rank];
    if (!other || rank == own)
        return false;
    if (a->is_message)
        return has_member(a, rank) && !meets(a, own, other);
    const weft_answer_group *g = find_group(a, other);
    return g && g->num_begun <= a->sequence;
}

static int next_behind(const weft_answers *all, int own, int from)
{
    for (int rank = from; rank < all->size; rank++)
        if (is_behind(all, own, rank))
            return rank;
    return -1;
}

static int choose_behind(const weft_answers *all, int own)
{
    int first = next_behind(all, own, 0);
    for (int rank = first; rank >= 0; rank = next_behind(all, own, rank + 1))
        if (!all->at[rank]->is_in_exchange)
            return rank; /* it waits for nobody */
    return first;
}

static bool waits_for_missing(const weft_answers *all, int rank, const weft_verdict *v)
{
    const weft_answer *a = all->at[rank];
    for (int i = 0; a && i < v->num_missing && i < WEFT_VERDICT_MISSING; i++)
        if (has_member(a, v->missing[i]))
            return true;
    return false;
}

/* Whether the ranks without an answer may be there and only cut off: none of them is on a node
 * whose ranks do answer. */
static bool may_be_cut(const weft_answers *all)
{
    for (int gone = 0; gone < all->size; gone++)
        for (int here = 0; !all->at[gone] && here < all->size; here++)
            if (all->at[here] && strcmp(all->nodes[gone], all->nodes[here]) == 0)
                return false;
    return true;
}

/* --- verdicts ------------------------------------------------------------------------------ */

static void judge_silent(const weft_answers *all, int alarmed, weft_verdict *v)
{
    int waits = alarmed;
    for (int rank = 0; rank < all->size; rank++)
        if (!all->at[rank])
            miss(v, rank);
    bool good = waits_for_missing(all, alarmed, v);
    for (int rank = 0; !good && rank < all->size; rank++)
        if ((good = waits_for_missing(all, rank, v)))
            waits = rank;
    add(v, "step %" PRId64 ": ", all->at[alarmed]->step);
    add_missing(all, v);
    add(v, " missing: no answer for %.1f s", all->silent_s);
    if (all->silence_limit_s > 0)
        add(v, ", limit %.3g s (reliability.step_limit_s)", all->silence_limit_s);
    const int num_here = all->size - v->num_missing;
    v->is_minority =
        (2 * num_here < all->size || (2 * num_here == all->size && !all->at[0])) && may_be_cut(all);
    if (v->is_minority)
        add(v, "; only %d of %d ranks hear each other here", num_here, all->size);
    add_waiting(v, all, waits);
    if (waits != alarmed)
        add_waiting(v, all, alarmed);
}

static bool is_alike(const weft_answer *a, const weft_answer *b)
{
    const bool knows = a->place.program == b->place.program && a->place.step == b->place.step;
    return strcmp(a->kind, b->kind) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           (!knows || a->place.number == b->place.number) &&
           (a->bytes == b->bytes || strncmp(a->kind, "all_to_all", 10) == 0);
}

/* How many ranks are in the same exchange with the same kind, type, size and task. */
static int count_alike(const weft_answers *all, int own)
{
    int count = 0;
    for (int rank = 0; rank < all->size; rank++)
        count += all->at[rank] && is_same_exchange(all->at[own], all->at[rank]) &&
                 is_alike(all->at[own], all->at[rank]);
    return count;
}

/* Two ranks that differ in one exchange, the odd one first: of the lesser number, or else the one
 * that is further, having left out a call. False: none differ. */
static bool find_odd(const weft_answers *all, int own, int *out_odd, int *out_other)
{
    const weft_answer *a = all->at[own];
    for (int rank = 0; rank < all->size; rank++) {
        const weft_answer *b = all->at[rank];
        if (rank == own || !b || !is_same_exchange(a, b) || is_alike(a, b))
            continue;
        int more = count_alike(all, rank) - count_alike(all, own);
        if (more == 0)
            more = weft_doing_compare(&a->place, &b->place);
        if (more == 0)
            more = a->follows - b->follows;
        *out_odd = more > 0 ? own : rank;
        *out_other = more > 0 ? rank : own;
        return true;
    }
    return false;
}

static void add_call(weft_verdict *v, const weft_answer *a)
{
    add(v, "%s of %" PRIu64 " bytes %s", a->kind, a->bytes, a->dtype);
    if (a->doing[0])
        add(v, " (%s)", a->doing);
}

static void say_odd(const weft_answers *all, int odd, int other, weft_verdict *v)
{
    const weft_answer *a = all->at[other], *b = all->at[odd];
    miss(v, odd);
    add_missing(all, v);
    add(v, " in another exchange: ");
    add_call(v, b);
    add(v, ", where rank %d has ", other);
    add_call(v, a);
}

/* A rank that has not issued a collective in which another is, and is further than where that one
 * issued it; -1: none. */
static int find_left_out(const weft_answers *all, int *out_waits)
{
    for (int waits = 0; waits < all->size; waits++) {
        const weft_answer *x = all->at[waits];
        for (int rank = 0; x && x->is_in_exchange && !x->is_message && rank < all->size; rank++) {
            const weft_answer *other = all->at[rank];
            const weft_answer_group *g = other && rank != waits ? find_group(x, other) : NULL;
            if (!g || g->num_issued > x->sequence ||
                weft_doing_compare(&other->now, &x->place) <= 0)
                continue;
            *out_waits = waits;
            return rank;
        }
    }
    return -1;
}

static void say_left_out(const weft_answers *all, int odd, int waits, weft_verdict *v)
{
    const weft_answer *a = all->at[odd];
    miss(v, odd);
    add(v, "rank %d (%s) has left out ", odd, all->nodes[odd]);
    add_exchange(v, all->at[waits]);
    if (a->is_in_exchange) {
        add(v, ": it is further, in ");
        add_exchange(v, a);
    }
}

void weft_watch_judge_difference(const weft_answers *all, int own, weft_verdict *v)
{
    int other;
    *v = (weft_verdict){.in_other = -1};
    int odd = find_left_out(all, &other);
    if (odd >= 0)
        say_left_out(all, odd, other, v);
    else if (all->at[own]->is_in_exchange && !all->at[own]->is_message &&
             find_odd(all, own, &odd, &other))
        say_odd(all, odd, other, v);
}

/* All have come to it. */
static void judge_stuck(const weft_answers *all, int own, weft_verdict *v)
{
    const weft_answer *a = all->at[own];
    int odd, other;
    v->in_other = a->is_message ? -1 : own;
    add(v, "step %" PRId64 ": ", a->step);
    if (!a->is_message && find_odd(all, own, &odd, &other)) {
        say_odd(all, odd, other, v);
        own = other;
    } else {
        add(v, "no rank is missing, but what they send does not arrive, between");
        int known = a->num_members < WEFT_ANSWER_MEMBERS ? a->num_members : WEFT_ANSWER_MEMBERS;
        add(v, " rank %d (%s)", own, all->nodes[own]);
        for (int i = 0; i < known && i < 8; i++)
            add(v, "%s %d (%s)", i ? "," : " and", (int)a->members[i], all->nodes[a->members[i]]);
    }
    add_waiting(v, all, own);
}

/* Ranks that wait for each other: their calls differ. Of the two, the one that is further has left
 * something out. */
static void judge_circle(const weft_answers *all, int own, int behind, weft_verdict *v)
{
    const weft_answer *a = all->at[own], *b = all->at[behind];
    int further = weft_doing_compare(&a->place, &b->place);
    if (a->is_message && b->is_message)
        further = (a->num_unsent > 0) - (b->num_unsent > 0);
    const bool swaps = further > 0 && is_behind(all, behind, own);
    int odd = swaps ? own : behind, other = swaps ? behind : own;
    miss(v, odd);
    add(v, "step %" PRId64 ": ", all->at[own]->step);
    add_missing(all, v);
    add(v, " out of order: it waits in ");
    add_exchange(v, all->at[odd]);
    add(v, " and has not come to what others wait in");
    add_waiting(v, all, other);
}

static void judge_late(const weft_answers *all, int own, weft_verdict *v)
{
    int last = -1;
    for (int rank = next_behind(all, own, 0); rank >= 0; rank = next_behind(all, own, rank + 1)) {
        const weft_answer *a = all->at[rank];
        if (a->is_in_exchange)
            continue;
        if (!is_steps(a) && !a->phase_is_over && a->phase != WEFT_WATCH_SETUP)
            v->is_none = true;
        miss(v, rank);
        last = rank;
    }
    add(v, "step %" PRId64 ": ", all->at[own]->step);
    add_missing(all, v);
    add(v, " missing: alive but not there, ");
    add_place(v, all->at[last]);
    if (all->at[last]->doing[0])
        add(v, " (last: %s)", all->at[last]->doing);
    add_waiting(v, all, own);
}

/* Whether a step's limit has passed and no exchange has waited for as long as one may: so far all
 * get on. */
static bool gets_on(const weft_answers *all, int alarmed, double *out_longest_s)
{
    const weft_answer *own = all->at[alarmed];
    *out_longest_s = 0;
    for (int rank = 0; rank < all->size; rank++) {
        const weft_answer *a = all->at[rank];
        if (a->is_in_exchange && a->exchange_s > *out_longest_s)
            *out_longest_s = a->exchange_s;
    }
    return is_steps(own) && own->phase_is_over && *out_longest_s < own->exchange_limit_s;
}

static void judge_low(const weft_answers *all, int alarmed, double longest_s, weft_verdict *v)
{
    const weft_answer *a = all->at[alarmed];
    add(v, "step %" PRId64 ": no rank is missing and all get on: ", a->step);
    if (longest_s > 0)
        add(v, "none has waited longer than %.1f s, limit %.3g s", longest_s, a->exchange_limit_s);
    else
        add(v, "none waits for another");
    add(v, "; raise reliability.%s_limit_s where a step takes so long", limit_text(a->phase));
    add_waiting(v, all, alarmed);
}

/* Nobody waits for anybody: somebody is slow, or its limit is short. */
static void judge_slow(const weft_answers *all, int alarmed, weft_verdict *v)
{
    miss(v, alarmed);
    add(v, "step %" PRId64 ": ", all->at[alarmed]->step);
    add_missing(all, v);
    add(v, " alive and waits for no other; where it only takes so long, raise the limit");
    add_waiting(v, all, alarmed);
}

double weft_watch_recovery_s(double silent_s)
{
    const double most_s = 120, rest_s = 2;
    return (silent_s < most_s ? silent_s : most_s) + rest_s;
}

/* All have answered. */
static void judge_answers(const weft_answers *all, int alarmed, weft_verdict *v)
{
    double longest_s;
    if (gets_on(all, alarmed, &longest_s)) {
        judge_low(all, alarmed, longest_s, v);
        return;
    }
    if (!all->at[alarmed]->is_in_exchange) {
        judge_slow(all, alarmed, v);
        return;
    }
    int own = alarmed, waits;
    const int odd = find_left_out(all, &waits);
    if (odd >= 0) {
        add(v, "step %" PRId64 ": ", all->at[waits]->step);
        say_left_out(all, odd, waits, v);
        add_waiting(v, all, waits);
        return;
    }
    for (int turn = 0; turn < all->size; turn++) {
        int behind = choose_behind(all, own);
        if (behind < 0) {
            judge_stuck(all, own, v);
            return;
        }
        if (!all->at[behind]->is_in_exchange) {
            judge_late(all, own, v);
            return;
        }
        if (turn == all->size - 1 || is_behind(all, behind, own)) {
            judge_circle(all, own, behind, v);
            return;
        }
        own = behind;
    }
}

void weft_watch_judge(const weft_answers *all, int alarmed, weft_verdict *v)
{
    *v = (weft_verdict){.in_other = -1};
    for (int rank = 0; rank < all->size; rank++)
        if (!all->at[rank]) {
            judge_silent(all, alarmed, v);
            return;
        }
    judge_answers(all, alarmed, v);
    v->is_none = v->is_none || all->recovers_s > 0;
}

void weft_watch_judge_again(const weft_verdict *difference, weft_verdict *v)
{
    char rest[WEFT_VERDICT_TEXT_BYTES];
    const char *waiting = strrchr(v->text, ';');
    if (!difference->text[0] || v->in_other < 0)
        return;
    snprintf(rest, sizeof rest, "%s", waiting ? waiting : "");
    v->text[strcspn(v->text, ":")] = '\0';
    add(v, ": %s%s", difference->text, rest);
    v->num_missing = difference->num_missing;
    memcpy(v->missing, difference->missing, sizeof v->missing);
}

void weft_watch_judge_dead(const weft_answers *all, int own, weft_verdict *v)
{
    int waits = -1;
    *v = (weft_verdict){.in_other = -1};
    for (int rank = 0; rank < all->size; rank++)
        if (!all->at[rank])
            miss(v, rank);
    if (v->num_missing == 0)
        return;
    for (int rank = 0; rank < all->size && waits < 0; rank++)
        if (waits_for_missing(all, rank, v))
            waits = rank;
    const weft_answer *a = all->at[waits < 0 ? own : waits];
    add_missing(all, v);
    add(v, " dead: ");
    v->place_at = (int)strlen(v->text);
    if (is_steps(a))
        add(v, "in step %" PRId64, a->step);
    else
        add(v, "in %s", weft_watch_phase_text(a->phase));
    if (waits < 0)
        return;
    add(v, "; rank %d waited for it in ", waits);
    add_exchange(v, a);
}
