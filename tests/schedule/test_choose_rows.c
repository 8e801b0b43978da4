/* Choosing among rows: what ties, what is left out, what the line says, and that a rule of what is
 * right, written apart, takes the row that is chosen and refuses every other. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "schedule/choose.h"

enum { MAX_ROWS = 40 };

typedef enum trouble { NONE, REFUSES, LACKS, BREAKS } trouble;

typedef struct table {
    double us[MAX_ROWS];
    trouble with[MAX_ROWS];
    int priced; /* how many were asked for */
} table;

static weft_status price(void *context, int index, weft_choice_row *row)
{
    table *t = context;
    t->priced++;
    switch (t->with[index]) {
    case REFUSES:
        return WEFT_ERROR(WEFT_CONFIG, "row %d is against it", index);
    case LACKS:
        return weft_lack_mark(WEFT_ERROR(WEFT_CONFIG, "costs.%d is not known", index));
    case BREAKS:
        return WEFT_ERROR(WEFT_MEMORY, "no room for row %d", index);
    default:
        row->us = t->us[index];
        return WEFT_OK;
    }
}

static weft_choice_row row_of(const char *name, int weight)
{
    weft_choice_row row = {.weight = weight, .us = NAN};
    snprintf(row.name, sizeof row.name, "%s", name);
    return row;
}

static void is_chosen(const double *us, const int *weights, int num, int wanted)
{
    weft_choice_row rows[MAX_ROWS];
    for (int i = 0; i < num; i++)
        rows[i] = (weft_choice_row){.us = us[i], .weight = weights ? weights[i] : 0};
    assert_int_equal(weft_choose_priced(rows, num), wanted);
}

CASE(ties)
{
    is_chosen((double[]){5, 3, 4}, NULL, 3, 1);
    is_chosen((double[]){3, 3, 3}, NULL, 3, 0);             /* the first of equal ones */
    is_chosen((double[]){100.5, 100}, NULL, 2, 1);          /* one weight: by price alone */
    is_chosen((double[]){100, 100.5}, (int[]){2, 1}, 2, 1); /* a lighter one that ties */
    is_chosen((double[]){100, 101}, (int[]){2, 1}, 2, 0);   /* 1 % is more than a tie */
    is_chosen((double[]){100, 100.5}, (int[]){1, 2}, 2, 0); /* a heavier one */
    is_chosen((double[]){100, 100.9, 100.8, 100.7, 90}, (int[]){3, 1, 1, 1, 9}, 5, 4);
    is_chosen((double[]){100, 100.9, 100.8, 100.8}, (int[]){3, 1, 1, 1}, 4, 2);
    is_chosen((double[]){0, 0, 1e-9}, (int[]){2, 1, 0}, 3, 1); /* what takes nothing */
    is_chosen((double[]){INFINITY, INFINITY}, (int[]){2, 1}, 2, 1);
    is_chosen((double[]){NAN, 7, NAN}, NULL, 3, 1); /* what has no price */
}

CASE(no_candidate)
{
    char reason[WEFT_CHOICE_REASON_BYTES] = "as before";
    table t = {.priced = 0};
    int chosen = -7;
    assert_int_equal(weft_choose_priced(NULL, 0), -1);
    is_chosen((double[]){NAN, NAN}, NULL, 2, -1);
    FAILS(weft_choose(NULL, 0, price, &t, "", &chosen, reason), WEFT_CONFIG,
          "nothing to choose from");
    weft_choice_row rows[2] = {row_of("a", 0), row_of("b", 0)};
    for (int i = 0; i < 2; i++)
        snprintf(rows[i].why_not, sizeof rows[i].why_not, "rule %d", i);
    FAILS(weft_choose(rows, 2, price, &t, "", &chosen, reason), WEFT_CONFIG,
          "nothing to choose from: a cannot be: rule 0");
    assert_int_equal(t.priced, 0); /* what a rule is against has no price */
    assert_int_equal(chosen, -7);
    assert_string_equal(reason, "as before");
}

CASE(left_out)
{
    char reason[WEFT_CHOICE_REASON_BYTES];
    table t = {.us = {1, 2, 3, 4}, .with = {REFUSES}};
    int chosen = -7;
    weft_choice_row rows[] = {row_of("a", 0), row_of("b", 0), row_of("c", 0), row_of("d", 0)};
    snprintf(rows[1].why_not, sizeof rows[1].why_not, "6 heads over 4 ranks");
    OK(weft_choose(rows, 4, price, &t, " a layer", &chosen, reason));
    assert_int_equal(chosen, 2);
    assert_int_equal(t.priced, 3);
    assert_string_equal(reason, "c: 3 us a layer (a cannot be: row 0 is against it; b cannot be: 6 "
                                "heads over 4 ranks; d 4 us)");
    assert_int_equal(weft_error_get()->status, WEFT_OK); /* nobody's error */
    t.us[3] = NAN;
    OK(weft_choose(rows, 4, price, &t, "", &chosen, reason));
    assert_non_null(strstr(reason, "; d has no price)"));
}

CASE(none_left)
{
    char reason[WEFT_CHOICE_REASON_BYTES];
    table t = {.with = {REFUSES, REFUSES}};
    int chosen = -7;
    weft_choice_row rows[] = {row_of("a", 0), row_of("b", 0)};
    FAILS(weft_choose(rows, 2, price, &t, "", &chosen, reason), WEFT_CONFIG, "row 0 is against it");
    assert_int_equal(t.priced, 2);
    assert_int_equal(chosen, -7);
}

/* Nobody measured it, so it may be the best; and what is broken is no candidate's fault. */
CASE(figure_lacks)
{
    char reason[WEFT_CHOICE_REASON_BYTES];
    int chosen = -7;
    for (int with = LACKS; with <= BREAKS; with++) {
        table t = {.us = {1, 2, 3}, .with = {NONE, (trouble)with, NONE}};
        weft_choice_row rows[] = {row_of("a", 0), row_of("b", 0), row_of("c", 0)};
        FAILS(weft_choose(rows, 3, price, &t, "", &chosen, reason),
              with == LACKS ? WEFT_CONFIG : WEFT_MEMORY,
              with == LACKS ? "costs.1 is not known" : "no room for row 1");
        snprintf(rows[1].why_not, sizeof rows[1].why_not, "a rule"); /* then nobody asks */
        OK(weft_choose(rows, 3, price, &t, "", &chosen, reason));
        assert_int_equal(chosen, 0);
        chosen = -7;
    }
    table t = {.with = {LACKS}};
    weft_choice_row row = row_of("a", 0);
    assert_int_equal(weft_choose(&row, 1, price, &t, "", &chosen, reason), WEFT_CONFIG);
    assert_true(weft_lack_is(weft_error_get())); /* still known as one */
    weft_error_clear();
}

/* The line ends whole, however many rows there are and however long their names. */
CASE(reason_fits)
{
    char reason[WEFT_CHOICE_REASON_BYTES];
    for (int num = 1; num <= MAX_ROWS; num++) {
        for (int length = 1; length < 79; length += 13) {
            table t = {.priced = 0};
            weft_choice_row rows[MAX_ROWS];
            int chosen, told = 0, more = 0;
            for (int i = 0; i < num; i++) {
                rows[i] = row_of("", 0);
                snprintf(rows[i].name, sizeof rows[i].name, "%0*d", length, i);
                t.us[i] = 1e3 * (1 + (i + num / 2) % num);
                if (i % 3 == 2)
                    snprintf(rows[i].why_not, sizeof rows[i].why_not, "%0*d", 143, i);
            }
            OK(weft_choose(rows, num, price, &t, "", &chosen, reason));
            const char *others = strstr(reason, " (");
            assert_true((num > 1) == (others != NULL));
            if (!others)
                continue;
            assert_int_equal(reason[strlen(reason) - 1], ')');
            for (const char *at = others; at; at = strstr(at + 2, "; "))
                told++;
            const char *last = strrchr(reason, ';');
            if (sscanf(last ? last + 1 : others + 2, "%d more)", &more) == 1 &&
                strstr(reason, " more)"))
                told--;
            else
                more = 0;
            assert_int_equal(told + more, num - 1);
        }
    }
}

/* The rule, row by row: nothing is cheaper by a tie and more, nothing that ties is lighter, nothing
 * as light is cheaper, and nothing before it is equal. */
static bool is_right(const weft_choice_row *rows, int num, int chosen)
{
    const weft_choice_row *c = &rows[chosen];
    if (c->why_not[0])
        return false;
    double least = INFINITY;
    for (int i = 0; i < num; i++)
        least = rows[i].why_not[0] ? least : fmin(least, rows[i].us);
    for (int i = 0; i < num; i++) {
        const weft_choice_row *r = &rows[i];
        if (r->why_not[0] || i == chosen)
            continue;
        const bool ties = r->us == least || r->us < least * 1.01;
        if ((c->us > least && c->us >= least * 1.01) || (ties && r->weight < c->weight) ||
            (ties && r->weight == c->weight && r->us < c->us) ||
            (r->weight == c->weight && r->us == c->us && i < chosen))
            return false;
    }
    return true;
}

CASE(mutations)
{
    uint64_t random = 11;
    int refused = 0, moved = 0;
    for (int round = 0; round < 3000; round++) {
        weft_choice_row rows[MAX_ROWS];
        const int num = 1 + (int)next_random(&random, MAX_ROWS);
        for (int i = 0; i < num; i++) {
            rows[i] = (weft_choice_row){.weight = (int)next_random(&random, 4),
                                        .us = 1000 + (double)next_random(&random, 30)};
            rows[i].why_not[0] = next_random(&random, 4) == 0 ? 'x' : '\0';
        }
        const int chosen = weft_choose_priced(rows, num);
        for (int i = 0; chosen < 0 && i < num; i++)
            assert_true(rows[i].why_not[0]);
        for (int i = 0; chosen >= 0 && i < num; i++) { /* another answer is wrong */
            assert_int_equal(is_right(rows, num, i), i == chosen);
            refused += i != chosen;
        }
        if (chosen < 0)
            continue;
        rows[chosen].why_not[0] = 'x'; /* another table has another answer */
        const int next = weft_choose_priced(rows, num);
        assert_true(next != chosen && (next < 0 || is_right(rows, num, next)));
        if (next < 0)
            continue;
        moved++;
        rows[chosen].why_not[0] = '\0';
        rows[next].us = 980; /* cheaper by more than a tie */
        assert_int_equal(weft_choose_priced(rows, num), next);
        rows[chosen].us = 980 * 1.009;
        rows[chosen].weight = rows[next].weight - 1; /* ties, and is lighter */
        assert_int_equal(weft_choose_priced(rows, num), chosen);
        rows[chosen].us = 980 * 1.011;
        assert_int_equal(weft_choose_priced(rows, num), next);
    }
    assert_true(refused > 10000 && moved > 1000);
}
