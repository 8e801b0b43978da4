/* Damaged texts of programs and of orders of compute: an error, or what prints as it was read; and
 * whatever is read, the checkers, the lowering and the pricing cope with it. Run it under ASan.
 * WEFT_FUZZ_SECONDS=600: each test for so long, from a seed of its own. An argument names one
 * test. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "schedule/exchange.h"
#include "schedule/moe_layer.h"
#include "schedule/pass.h"
#include "schedule/price.h"

enum { ROUNDS = 12000, ROOM = 65536 };

typedef struct fuzz {
    uint64_t random;
    time_t end;
    int round, num_read, num_accepted;
    char text[ROOM];
} fuzz;

static void fuzz_start(fuzz *f, uint64_t seed)
{
    const char *seconds = getenv("WEFT_FUZZ_SECONDS");
    const time_t now = time(NULL);
    *f = (fuzz){.random = seconds ? (uint64_t)now : seed,
                .end = now + (seconds ? atoi(seconds) : 0)};
    if (seconds)
        print_message("seed %llu\n", (unsigned long long)f->random);
}

static bool fuzz_next(fuzz *f)
{
    return f->round++ < ROUNDS || time(NULL) < f->end;
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

/* What programs of each level are made and judged by. */
typedef struct subject {
    weft_arena arena;
    program_set set; /* of a step */
    weft_chunk_shape chunk;
    weft_pass_layer layers[4];
    weft_moe_pipeline moe;
    weft_exchange_form form;
    int kind, num_programs;
    bool backward, host_waits[MAX_STAGES];
    weft_program programs[MAX_STAGES];
} subject;
enum { STEP, PASS, LAYER, EXCHANGE, NUM_SUBJECTS };

static weft_moe_pipeline draw_pipeline(fuzz *f)
{
    const int n = 1 + (int)draw(f, 5), reuse = (int)draw(f, WEFT_NUM_REUSES + 1);
    return reuse == WEFT_NUM_REUSES ? weft_moe_by_peers(2 * n, 2)
                                    : (weft_moe_pipeline){n, (weft_reuse)reuse, 0};
}

static weft_pass_kind pass_kind(const subject *s)
{
    return s->backward ? WEFT_PASS_BACKWARD : WEFT_PASS_FORWARD;
}

static void make_subject(fuzz *f, subject *s)
{
    *s = (subject){.kind = draw(f, 2) ? STEP : (int)draw(f, NUM_SUBJECTS), .backward = draw(f, 2)};
    s->num_programs = 1;
    switch (s->kind) {
    case STEP: {
        weft_pipeline_shape shape = {.kind = (weft_pipeline_kind)draw(f, 2),
                                     .num_stages = 1 + (int)draw(f, 4),
                                     .num_chunks = 1 + (int)draw(f, 3),
                                     .num_micro_batches = 1 + (int)draw(f, 6),
                                     .forward_only = draw(f, 4) == 0,
                                     .boundary_bytes = 64,
                                     .host_waits = s->host_waits};
        for (int i = 0; i < MAX_STAGES; i++)
            s->host_waits[i] = draw(f, 4) == 0;
        s->set = make_shaped_set(&shape);
        s->num_programs = shape.num_stages;
        memcpy(s->programs, s->set.programs, sizeof s->programs);
        break;
    }
    case PASS:
        for (int i = 0; i < 4; i++)
            s->layers[i] = (weft_pass_layer){.stash_bytes = draw(f, 2) * 64,
                                             .in_place = draw(f, 2),
                                             .host_waits = draw(f, 2),
                                             .gathers = draw(f, 2),
                                             .reduces = draw(f, 2),
                                             .group = (int)draw(f, 3)};
        s->chunk = (weft_chunk_shape){.layers = s->layers,
                                      .first = (int)draw(f, 3),
                                      .num_layers = 1 + (int)draw(f, 4),
                                      .receives = draw(f, 2),
                                      .passes_on = draw(f, 2),
                                      .row_bytes = 64,
                                      .weight_slots = 1 + (int)draw(f, 2),
                                      .gradient_slots = 1 + (int)draw(f, 2)};
        ASSERT_OK(weft_program_pass(&s->chunk, pass_kind(s), &s->arena, &s->programs[0]));
        break;
    case LAYER:
        s->moe = draw_pipeline(f);
        s->num_programs = 2;
        for (int i = 0; i < 2; i++)
            ASSERT_OK(weft_program_moe(&s->moe, i, &s->arena, &s->programs[i]));
        break;
    default:
        s->form = (weft_exchange_form)draw(f, WEFT_NUM_EXCHANGES);
        s->chunk.num_layers = weft_exchange_max_chunks(s->form) > 1 ? 4 : 1;
        ASSERT_OK(weft_program_exchange(s->form, s->chunk.num_layers, &s->arena, &s->programs[0]));
    }
}

static void release_subject(subject *s)
{
    weft_arena_release(&s->arena);
    if (s->kind == STEP)
        release_set(&s->set);
}

static weft_status check_subject(const subject *s)
{
    switch (s->kind) {
    case STEP:
        return weft_program_pipeline_check(s->programs, &s->set.shape);
    case PASS:
        return weft_program_pass_check(&s->chunk, pass_kind(s), s->programs);
    case LAYER:
        return weft_program_moe_check(&s->moe, &s->programs[0], &s->programs[1]);
    default:
        return weft_program_exchange_check(s->form, s->chunk.num_layers, s->programs);
    }
}

static double some_us(const void *context, int stage, const weft_task *task)
{
    (void)context;
    return 1 + stage + task->kind % 5;
}

static double half_way(const void *context, int stage, const weft_task *task, int point)
{
    (void)context;
    (void)stage;
    (void)task;
    return 1 / (1.0 + point);
}

static bool every_other(const void *context, int stage, const weft_task *send)
{
    (void)context;
    return (stage ^ send->micro_batch) % 2 == 0; /* numbers are damaged, too */
}

/* What is well-formed has a price, or never ends and says so. */
static void price_subject(const subject *s, bool accepted)
{
    weft_price price;
    weft_arena arena = {0};
    weft_pricing pricing = {.cost = some_us, .point = half_way};
    for (int buffers = 0; buffers < 2; buffers++) {
        pricing.buffered = buffers ? every_other : NULL;
        const weft_status status =
            weft_program_price(s->programs, s->num_programs, &pricing, &arena, &price);
        if (status != WEFT_OK && (accepted || status != WEFT_INTERNAL))
            fail_msg("priced: status %d: %s", (int)status, weft_error_get()->text);
        weft_error_clear();
    }
    weft_arena_release(&arena);
}

static void programs(void **state)
{
    (void)state;
    static fuzz f;
    static subject s;
    fuzz_start(&f, 99);
    while (fuzz_next(&f)) {
        make_subject(&f, &s);
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
    ASSERT_OK(weft_program_pipeline(&set.shape, &set.arena, set.programs));
    ASSERT_OK(check_set(&set));
    release_set(&set);
}

static void orders(void **state)
{
    (void)state;
    static fuzz f;
    fuzz_start(&f, 3);
    while (fuzz_next(&f)) {
        const weft_order_shape shape = {1 + (int)draw(&f, 4), 1 + (int)draw(&f, 3),
                                        1 + (int)draw(&f, 6), 0};
        weft_arena arena = {0};
        weft_order made[MAX_STAGES], read[MAX_STAGES], twice[MAX_STAGES];
        ASSERT_OK(weft_order_make((weft_pipeline_kind)draw(&f, 2), &shape, &arena, made));
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
            ASSERT_OK(weft_order_parse(again, &shape, &arena, twice));
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs),
        cmocka_unit_test(orders),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
