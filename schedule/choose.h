/* Choosing the cheapest of several ways. Ways are rows of a table: one loop prices them, settles
 * ties and says why.
 *
 * Of the rows within 1 % of the cheapest the lightest is chosen, of these the cheapest, of these
 * the first: rows of one weight go by price alone.
 *
 * A row that a rule is against is left out, and so is one whose price refuses it (WEFT_CONFIG), for
 * what that error says. A figure that the cluster lacks (weft_lack_is) ends the choice: what nobody
 * measured may be the best. Pure, as far as prices are. */
#ifndef WEFT_SCHEDULE_CHOOSE_H
#define WEFT_SCHEDULE_CHOOSE_H

#include <weft/status.h>

enum { WEFT_CHOICE_REASON_BYTES = 256 };

typedef struct weft_choice_row {
    char name[80];
    char why_not[144]; /* the rule against it; empty: it can be chosen */
    int weight;        /* whatever it takes beside time */
    double us;         /* its price; NAN: it has none, and cannot be chosen */
} weft_choice_row;

/* Sets the row's price; may complete its name. */
typedef weft_status (*weft_choice_price)(void *context, int index, weft_choice_row *row);

/* The index of the row to choose of rows that are priced; -1: none can be. */
int weft_choose_priced(const weft_choice_row *rows, int num_rows);

/* Prices the rows and chooses: *out is an index. reason: one line, such as "p2p: 12.3 ms a layer
 * (all_gather 14 ms; a2a cannot be: 6 heads over 4 ranks; 3 more)", with `unit` behind the chosen
 * one's price. Errors: those of prices; WEFT_CONFIG where no row is left, by the first refusal. */
weft_status weft_choose(weft_choice_row *rows, int num_rows, weft_choice_price price, void *context,
                        const char *unit, int *out,
                        char reason[WEFT_CHOICE_REASON_BYTES]) WEFT_CHECKED;

#endif
