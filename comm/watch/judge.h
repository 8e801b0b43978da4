/* What the head makes of the ranks' answers: who is missing. Pure; private to comm/. */
#ifndef WEFT_COMM_WATCH_JUDGE_H
#define WEFT_COMM_WATCH_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/doing.h"

enum {
    WEFT_ANSWER_GROUPS = 16,
    WEFT_ANSWER_MEMBERS = 32,
    WEFT_VERDICT_MISSING = 16,
    WEFT_VERDICT_TEXT_BYTES = 640,
};

/* A group that a rank is in, and how many collectives it has begun and issued there. */
typedef struct weft_answer_group {
    char group[16];
    int32_t first_rank, size;
    uint64_t num_begun, num_issued;
} weft_answer_group;

/* Where a rank is. Travels as it is. */
typedef struct weft_answer {
    int32_t phase; /* weft_watch_phase */
    int64_t step;
    double phase_s, phase_limit_s;
    uint8_t phase_is_over, exchange_is_over; /* its limit has passed */
    uint8_t is_in_exchange, is_message;
    /* The oldest exchange in flight. */
    char group[16], kind[20], dtype[8];
    int32_t first_rank, size, tag;
    uint64_t sequence, bytes;
    double exchange_s, exchange_limit_s;
    weft_doing_place place; /* where it was issued */
    uint8_t failed;         /* it is over: it met what it could not go on with */
    int32_t num_unsent;     /* messages, up to there: fewer than in the step before */
    char doing[64];
    int8_t
        follows;          /* in a COMPARE's answer: in earlier steps this call came right behind the
                             asker's       (1), or the asker's behind this one (-1); 0: neither is known */
    weft_doing_place now; /* of the rank, which issues ahead of its lanes */
    int32_t num_members;  /* others, by world rank; of a message: its other ends */
    int32_t members[WEFT_ANSWER_MEMBERS]; /* the first of them */
    int32_t num_groups;
    weft_answer_group groups[WEFT_ANSWER_GROUPS];
} weft_answer;

typedef struct weft_answers {
    int size;
    const weft_answer *const *at; /* [size]; NULL: that rank did not answer */
    const char *const *nodes;     /* [size] */
    double silent_s;              /* how long those have been silent, at least */
    double silence_limit_s;       /* above 0: nothing but that this has passed is the alarm */
    double recovers_s; /* so long yet TCP may be silent after ranks were; weft_watch_recovery_s */
} weft_answers;

typedef struct weft_verdict {
    bool is_minority; /* fewer than half of the ranks, or a half without rank 0, hear each other
                         here, and the others may be cut off */
    bool is_none; /* what the alarm waits for is in a phase that may last, or on its way: not yet */
    int in_other; /* a rank whose exchange may differ from another's of the same number; -1: none */
    int num_missing;
    int missing[WEFT_VERDICT_MISSING]; /* the first of them */
    char text[WEFT_VERDICT_TEXT_BYTES];
    int place_at; /* of the dead, where in `text` it begins where they were; 0: the watchdog's own
                   */
} weft_verdict;

/* How long TCP may stay silent once a link that was cut for `silent_s` is whole: its tries are each
 * twice as far apart as the last two, 120 s at most (RFC 6298, 5.5), so the next one comes after as
 * long again. 2 s more for what then comes at once. */
double weft_watch_recovery_s(double silent_s);
/* `alarmed`: the rank whose limit has passed, or the head where only others' silence is the alarm;
 * it has answered. */
void weft_watch_judge(const weft_answers *answers, int alarmed, weft_verdict *out);
/* Which rank's calls differ from others', where `own` has met an error: "" in `text` where no
 * answers say so. */
void weft_watch_judge_difference(const weft_answers *answers, int own, weft_verdict *out);
/* What a verdict says of ranks whose exchange differs, of `difference`, which knows more: "" where
 * it does not. */
void weft_watch_judge_again(const weft_verdict *difference, weft_verdict *out);
/* Who is dead, of a job that its starter takes down: ranks without an answer. `own` has answered.
 * num_missing 0: nobody. */
void weft_watch_judge_dead(const weft_answers *answers, int own, weft_verdict *out);

#endif
