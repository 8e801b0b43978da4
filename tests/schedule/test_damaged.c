/* Damaged texts of programs and of orders of compute: an error, or what prints as it was read; and
 * whatever is read, the checkers, the lowering and the pricing cope with it. Run it under ASan.
 * An argument names one test. */
#include "tests/schedule/subjects.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 12000, ROOM = 65536 };

typedef struct fuzz {
    uint64_t random;
    int round, num_read, num_accepted;
    char text[ROOM];
} fuzz;

static void fuzz_start(fuzz *f, uint64_t seed)
{
    *f = (fuzz){.random = seed};
}

static bool fuzz_next(fuzz *f)
{
    return f->round++ < ROUNDS;
}

static uint32_t draw(fuzz *f, uint32_t bound)
{
    return next_random(&f->random, bound);
}

/* --- damage -------------------------------------------------------------------------------- */

static void replace(char *text, size_t at, size_t cut, const char *piece)
{
    const size_t length = strlen(text), added = strlen(piece);
    if (length - cut + added >= ROOM)
        return;
    memmove(text + at + added, text + at + cut, length - at - cut + 1);
    memcpy(text + at, piece, added);
}

/* A whole number becomes another: a near one, or one at an end of some range. */
static void damage_number(fuzz *f)
{
    static const char *const ends[] = {"-1",         "255",         "65535",
                                       "65536",      "2147483647",  "2147483648",
                                       "4294967295", "-2147483648", "18446744073709551615"};
    size_t at = draw(f, (uint32_t)strlen(f->text)), length = 0;
    char near[24];
    at += strcspn(f->text + at, "0123456789");
    length = strspn(f->text + at, "0123456789");
    snprintf(near, sizeof near, "%u", draw(f, 12));
    if (length > 0)
        replace(f->text, at, length, draw(f, 3) ? near : ends[draw(f, sizeof ends / sizeof *ends)]);
}

static size_t line_start(const char *text, size_t at)
{
    while (at > 0 && text[at - 1] != '\n')
        at--;
    return at;
}

/* A line is left out, comes twice, or changes places with its neighbour. */
static void damage_line(fuzz *f)
{
    const size_t at = line_start(f->text, draw(f, (uint32_t)strlen(f->text)));
    const size_t length = strcspn(f->text + at, "\n") + 1;
    char line[WEFT_TASK_TEXT_BYTES + 64];
    if (length >= sizeof line || at + length > strlen(f->text))
        return;
    memcpy(line, f->text + at, length);
    line[length] = '\0';
    const uint32_t how = draw(f, 3);
    if (how > 0)
        replace(f->text, at, length, "");
    if (how == 0)
        replace(f->text, at, 0, line);
    if (how == 2)
        replace(f->text, line_start(f->text, at > 0 ? at - 1 : 0), 0, line);
}

static void damage_bytes(fuzz *f, const char *likely)
{
    const size_t length = strlen(f->text), at = draw(f, (uint32_t)length);
    const char byte[] = {(char)(1 + draw(f, 255)), '\0'};
    const char good[] = {likely[draw(f, (uint32_t)strlen(likely))], '\0'};
    char piece[32];
    switch (draw(f, 6)) {
    case 0:
        replace(f->text, at, 1, byte);
        break;
    case 1:
        replace(f->text, at, 1, "");
        break;
    case 2:
        replace(f->text, at, 0, good);
        break;
    case 3:
        replace(f->text, at, 1, good);
        break;
    case 4:
        if (draw(f, 8) == 0)
            f->text[at] = '\0';
        break;
    default: /* a stretch comes again elsewhere */
        snprintf(piece, 1 + draw(f, sizeof piece), "%s", f->text + draw(f, (uint32_t)length));
        replace(f->text, at, draw(f, 2) && strlen(piece) < length - at ? strlen(piece) : 0, piece);
    }
}

static void damage(fuzz *f, const char *likely)
{
    for (uint32_t times = 1 + draw(f, 3); times > 0 && *f->text; times--) {
        const uint32_t how = draw(f, 4);
        if (how == 0)
            damage_line(f);
        else if (how == 1)
            damage_bytes(f, likely);
        else
            damage_number(f);
    }
}

/* Tasks count from 0 again, so that a program with a line more or less is still read. */
static void renumber(fuzz *f)
{
    static char out[ROOM + 16 * 4096];
    size_t used = 0;
    unsigned number = 0;
    for (const char *line = f->text; *line;) {
        const size_t digits = strspn(line, "0123456789"), length = strcspn(line, "\n");
        if (digits > 0)
            used += (size_t)snprintf(out + used, sizeof out - used, "%u", number++);
        used += (size_t)snprintf(out + used, sizeof out - used, "%.*s", (int)(length - digits),
                                 line + digits);
        line += length;
        if (*line)
            used += (size_t)snprintf(out + used, sizeof out - used, "%c", *line++);
    }
    if (used < ROOM)
        memcpy(f->text, out, used + 1);
}

/* --- programs ------------------------------------------------------------------------------ */

static uint32_t draw_next(void *context, uint32_t bound)
{
    return draw(context, bound);
}

CASE(programs)
{
    static fuzz f;
    static subject s;
    fuzz_start(&f, 99);
    while (fuzz_next(&f)) {
        make_subject(&(draws){draw_next, &f}, &s);
        const uint32_t which = draw(&f, (uint32_t)s.num_programs);
        char *whole = text_of(&s.programs[which]);
        snprintf(f.text, ROOM, "%s", whole);
        free(whole);
        damage(&f, "0123456789,= \n-@x");
        if (draw(&f, 2))
            renumber(&f);
        char *exact = strdup(f.text); /* reading past its end is seen */
        const weft_status status = weft_program_parse(exact, &s.arena, &s.programs[which]);
        if (status == WEFT_OK) {
            char *printed = text_of(&s.programs[which]);
            assert_string_equal(printed, exact);
            free(printed);
            const bool accepted = check_subject(&s) == WEFT_OK;
            price_subject(&s, accepted);
            f.num_read++;
            f.num_accepted += accepted;
        } else
            assert_int_equal(status, WEFT_CONFIG);
        weft_error_clear();
        free(exact);
        release_subject(&s);
    }
    print_message("%d texts: %d read, %d accepted\n", f.round, f.num_read, f.num_accepted);
    assert_in_range(f.num_read, f.round / 50, f.round);
    assert_in_range(f.num_accepted, f.round / 1000, f.num_read - 1);
}

/* --- orders of compute --------------------------------------------------------------------- */

/* Two cells of a line change places. */
static void swap_cells(fuzz *f)
{
    const size_t at = draw(f, (uint32_t)strlen(f->text));
    char *comma = strchr(f->text + at, ','), *next = comma ? comma + 1 : NULL;
    const size_t length = next ? strcspn(next, ",\n") : 0;
    char cell[32];
    if (length == 0 || length + 1 >= sizeof cell)
        return;
    snprintf(cell, sizeof cell, "%.*s,", (int)length, next);
    replace(f->text, (size_t)(comma - f->text), length + 1, "");
    const size_t start = line_start(f->text, (size_t)(comma - f->text));
    size_t before = (size_t)(comma - f->text);
    while (before > start && f->text[before - 1] != ',')
        before--;
    replace(f->text, before, 0, cell);
}

/* What the reader takes ends, so it is lowered, and to programs that end. */
static void lower_orders(fuzz *f, const weft_order_shape *shape, const weft_order *orders)
{
    bool host_waits[MAX_STAGES];
    for (int i = 0; i < MAX_STAGES; i++)
        host_waits[i] = draw(f, 3) == 0;
    program_set set = {.shape = {.num_stages = shape->num_ranks,
                                 .num_chunks = shape->num_chunks,
                                 .num_micro_batches = shape->num_micro_batches,
                                 .forward_only = draw(f, 5) == 0,
                                 .boundary_bytes = 8,
                                 .orders = orders,
                                 .host_waits = host_waits}};
    OK(weft_program_pipeline(&set.shape, &set.arena, set.programs));
    OK(check_set(&set));
    release_set(&set);
}

CASE(orders)
{
    static fuzz f;
    fuzz_start(&f, 3);
    while (fuzz_next(&f)) {
        const weft_order_shape shape = {.num_ranks = 1 + (int)draw(&f, 4),
                                        .num_chunks = 1 + (int)draw(&f, 3),
                                        .num_micro_batches = 1 + (int)draw(&f, 6)};
        weft_arena arena = {0};
        weft_order made[MAX_STAGES], read[MAX_STAGES], twice[MAX_STAGES];
        OK(weft_order_make((weft_pipeline_kind)draw(&f, 2), &shape, &arena, made));
        char *whole = order_text(&shape, made);
        snprintf(f.text, ROOM, "%s", whole);
        free(whole);
        for (uint32_t swaps = draw(&f, 12); swaps > 0; swaps--)
            swap_cells(&f);
        if (draw(&f, 3) == 0)
            damage(&f, "0123456789FBIW,,\n\r\t x-");
        char *exact = strdup(f.text);
        const weft_status status = weft_order_parse(exact, &shape, &arena, read);
        f.num_accepted += status == WEFT_OK;
        if (status == WEFT_OK) {
            char *again = order_text(&shape, read);
            OK(weft_order_parse(again, &shape, &arena, twice));
            assert_true(same_orders(&shape, read, twice));
            free(again);
            lower_orders(&f, &shape, read);
        } else {
            assert_int_equal(status, WEFT_CONFIG);
            const char *error = weft_error_get()->text;
            if (strchr(error, '\n') || !(strstr(error, "line ") || strstr(error, " lines for ") ||
                                         strstr(error, "the order of compute never ends: rank ")))
                fail_msg("%s\ngave %s", exact, error);
        }
        weft_error_clear();
        free(exact);
        weft_arena_release(&arena);
    }
    print_message("%d texts: %d accepted\n", f.round, f.num_accepted);
    assert_in_range(f.num_accepted, f.round / 20, f.round - f.round / 5);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return run_cases(NULL, NULL);
}
