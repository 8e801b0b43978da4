/* Whose turn it is in a pair of a forward and a backward, and how long the pair takes. */
#include "schedule/pair.h"

#include <math.h>
#include <string.h>

#include "tests/schedule/programs.h"

enum { MAX_PARTS = 64 };

/* Parts as letters: a small one computes, a capital travels. */
static weft_part_kind kind_of(char letter)
{
    return letter == '\0' ? WEFT_PART_NONE : letter < 'a' ? WEFT_PART_TRAVELS : WEFT_PART_COMPUTES;
}

/* What a part before " leaves comes soon, before ' late; all of it comes at ', and at " what is
 * soon.
 */
static void turns_are(const char *forward, const char *backward, const char *wanted)
{
    const char *at[WEFT_PAIR_STRANDS] = {forward, backward};
    char text[2 * MAX_PARTS] = "";
    weft_turns turns = {.whose = WEFT_PAIR_BACKWARD};
    weft_pair_left left = WEFT_LEFT_NONE;
    bool late = false;
    for (size_t i = 0;; i++) {
        const weft_part_kind next[WEFT_PAIR_STRANDS] = {kind_of(*at[0]), kind_of(*at[1])};
        const int whose = weft_turns_next(&turns, next, left);
        if (whose < 0)
            break;
        if (whose == WEFT_PAIR_LEFT) {
            text[i] = turns.soon ? '"' : '\'';
            late = late && turns.soon;
            left = late ? WEFT_LEFT_LATE : WEFT_LEFT_NONE;
            continue;
        }
        text[i] = *at[whose]++;
        for (; *at[whose] == '"' || *at[whose] == '\''; at[whose]++) {
            late |= *at[whose] == '\'';
            left = *at[whose] == '"' || left == WEFT_LEFT_SOON ? WEFT_LEFT_SOON : WEFT_LEFT_LATE;
        }
    }
    assert_string_equal(text, wanted);
}

/* Forward: a attends and routes, N counts, P permutes, D, e, C, r; backward: k, X, y, Z, w. */
CASE(turns)
{
    turns_are("aNPDeCr", "kXyZw", "kaXyNPDeZwCr");
    turns_are("aNPDeCraNPDeCr", "kXyZwkXyZw", "kaXyNPDeZwkCraXyNPDeZwCr");
    turns_are("", "kXyZw", "kXyZw");
    turns_are("aNPDeCr", "", "aNPDeCr");
    turns_are("ab", "kl", "klab");
    turns_are("aDe", "kXyZwXyZw", "kaXyDeZwXyZw");
    turns_are("", "", "");
    turns_are("aNPDeCr", "kXy'Zw'", "kaXyNPDe'Zw'Cr");
    turns_are("aDeCraDeCr", "kXy'Zw'kXy'Zw'", "kaXyDe'ZwkCra'XyDe'Zw'Cr");
    turns_are("aDeCraDeCr", "kXy\"'Zw'kXy\"'Zw'", "kaXy\"De'ZwkCra'Xy\"De'Zw'Cr");
    turns_are("aDeCr", "kXy\"Zw'", "kaXy\"DeZw'Cr");
    turns_are("", "kXy\"'Zw'", "kXy'Zw'");
    turns_are("", "kXy'Zw'", "kXy'Zw'");
    turns_are("a", "k'Xy'", "ka'Xy'");
}

static double slowed_us(const char *forward, const char *backward, double computes, double travels,
                        const weft_interference *interference)
{
    const char *letters[WEFT_PAIR_STRANDS] = {forward, backward};
    weft_pair_part parts[WEFT_PAIR_STRANDS][MAX_PARTS];
    const weft_pair_part *const both[WEFT_PAIR_STRANDS] = {parts[0], parts[1]};
    int counts[WEFT_PAIR_STRANDS];
    for (int s = 0; s < WEFT_PAIR_STRANDS; s++) {
        counts[s] = 0;
        for (const char *at = letters[s]; *at; at++) {
            weft_pair_part *part = &parts[s][counts[s]];
            if (*at == '"' || *at == '\'') {
                *(*at == '"' ? &part[-1].soon_us : &part[-1].late_us) = computes;
                continue;
            }
            *part = (weft_pair_part){.kind = kind_of(*at)};
            part->us = part->kind == WEFT_PART_TRAVELS ? travels : computes;
            counts[s]++;
        }
    }
    double us = -1;
    OK(weft_pair_price(both, counts, interference, &us));
    return us;
}

static double us_of(const char *forward, const char *backward, double computes, double travels)
{
    return slowed_us(forward, backward, computes, travels, NULL);
}

/* Alone all parts take their time; as a pair what travels is hidden but for the first and the last
 * of it. Where nothing travels nothing is hidden. */
CASE(times)
{
    const char *f = "aDeCaDeCaDeCa", *b = "aDeCaDeCaDeCa";
    assert_true(us_of(f, "", 10, 10) == 130);
    assert_true(us_of(f, b, 10, 10) == 140);
    assert_true(us_of(f, b, 10, 0) == 140);
    assert_true(us_of(f, b, 10, 5) == 140);
    assert_true(us_of("aaa", "aa", 10, 10) == 50);
    for (double travels = 0; travels < 100; travels += 7) {
        const double us = us_of(f, b, 10, travels);
        assert_true(us >= fmax(140, 12 * travels));
        assert_true(us <= us_of(f, "", 10, travels) + us_of("", b, 10, travels));
    }
}

/* As much computation as communication: whole backwards' parts, of 20 us, leave either lane idle
 * beside each block's all-to-alls, of 15. Of 10 us, and 10 left for later, nearly only the first
 * and the last block's are beside nothing. */
CASE(leaves)
{
    const char *f = "aDeCaDeCaDeCaDeC";
    assert_true(us_of("aD", "kXy'Z", 10, 15) < us_of("aD", "kXylZ", 10, 15));
    assert_true(us_of("", "kXy'Zw'", 10, 15) == 70);
    assert_true(us_of("", "kXy'Zw'", 10, 0) == 50);
    assert_true(us_of(f, "XylZwmXylZwmXylZwmXylZwm", 10, 15) == 4 * 70 + 25);
    assert_true(us_of(f, "Xy'Zw'Xy'Zw'Xy'Zw'Xy'Zw'", 10, 15) == 4 * 60 + 30);
    assert_true(us_of(f, "Xy\"Zw'Xy\"Zw'Xy\"Zw'Xy\"Zw'", 10, 15) == 4 * 60 + 45);
}

/* Beside what computes what travels goes at half speed, and slows nothing: it has 10 us, in which
 * it comes as far as alone in 5. */
CASE(slowed)
{
    weft_interference half = weft_interference_none();
    half.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] = 0.5;
    assert_true(slowed_us("aDe", "", 10, 10, &half) == 30);
    assert_true(slowed_us("aDe", "kXy", 10, 5, &half) == us_of("aDe", "kXy", 10, 10));
}
