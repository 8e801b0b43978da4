#include "schedule/choose.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/text.h"

#define TIE 1.01

static bool can_be(const weft_choice_row *row)
{
    return !row->why_not[0] && !isnan(row->us);
}

int weft_choose_priced(const weft_choice_row *rows, int num_rows)
{
    double least_us = INFINITY;
    int best = -1;
    for (int i = 0; i < num_rows; i++)
        least_us = can_be(&rows[i]) ? fmin(least_us, rows[i].us) : least_us;
    for (int i = 0; i < num_rows; i++) {
        const weft_choice_row *row = &rows[i];
        if (!can_be(row) || (row->us > least_us && row->us >= TIE * least_us))
            continue;
        if (best < 0 || row->weight < rows[best].weight ||
            (row->weight == rows[best].weight && row->us < rows[best].us))
            best = i;
    }
    return best;
}

/* "a2a 14 ms", or why it cannot be. */
static void say_price(const weft_choice_row *row, char *out, size_t capacity)
{
    if (row->why_not[0])
        snprintf(out, capacity, "%s cannot be: %s", row->name, row->why_not);
    else if (isnan(row->us))
        snprintf(out, capacity, "%s has no price", row->name);
    else
        snprintf(out, capacity, "%s %s", row->name, weft_seconds_text(row->us / 1e6).text);
}

/* The others in their order, as far as there is room. */
static void say_why(const weft_choice_row *rows, int num_rows, int chosen, const char *unit,
                    char reason[WEFT_CHOICE_REASON_BYTES])
{
    const size_t capacity = WEFT_CHOICE_REASON_BYTES, for_more = sizeof "; 9999 more)";
    int left = num_rows - 1;
    const char *before = " (";
    size_t used = (size_t)snprintf(reason, capacity, "%s: %s%s", rows[chosen].name,
                                   weft_seconds_text(rows[chosen].us / 1e6).text, unit);
    for (int i = 0; i < num_rows; i++) {
        char other[sizeof *rows + 32];
        if (i == chosen)
            continue;
        say_price(&rows[i], other, sizeof other);
        if (used + strlen(other) + 2 + for_more > capacity)
            break;
        used += (size_t)snprintf(reason + used, capacity - used, "%s%s", before, other);
        before = "; ";
        left--;
    }
    if (left > 0)
        snprintf(reason + used, capacity - used, "%s%d more)", before, left);
    else if (num_rows > 1)
        snprintf(reason + used, capacity - used, ")");
}

weft_status weft_choose(weft_choice_row *rows, int num_rows, weft_choice_price price, void *context,
                        const char *unit, int *out, char reason[WEFT_CHOICE_REASON_BYTES])
{
    weft_error first = {.status = WEFT_OK};
    for (int i = 0; i < num_rows; i++) {
        weft_choice_row *row = &rows[i];
        if (row->why_not[0])
            continue;
        const weft_status status = price(context, i, row);
        if (status != WEFT_CONFIG || weft_lack_is(weft_error_get())) {
            WEFT_TRY(status);
            continue;
        }
        weft_error refusal;
        weft_error_take(&refusal);
        snprintf(row->why_not, sizeof row->why_not, "%.*s", (int)sizeof row->why_not - 1,
                 refusal.text);
        if (first.status == WEFT_OK)
            first = refusal;
    }
    const int chosen = weft_choose_priced(rows, num_rows);
    if (chosen < 0 && first.status != WEFT_OK)
        return weft_error_put(&first);
    if (chosen < 0)
        return WEFT_ERROR(WEFT_CONFIG, "nothing to choose from%s%s%s%s", num_rows > 0 ? ": " : "",
                          num_rows > 0 ? rows[0].name : "", num_rows > 0 ? " cannot be: " : "",
                          num_rows > 0 ? rows[0].why_not : "");
    say_why(rows, num_rows, chosen, unit, reason);
    *out = chosen;
    return WEFT_OK;
}
