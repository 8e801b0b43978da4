/* The programs of a chunk's layers: to the byte, and what is damaged is refused. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/pass.h"

static const weft_pass_layer layers[4] = {
    {100, false, false, 0}, {200, true, true, 0}, {300, false, false, 0}, {400, false, false, 0}};

static char *text_of_pass(weft_chunk_shape shape, weft_pass_kind kind, weft_arena *arena)
{
    weft_program program;
    ASSERT_OK(weft_program_pass(&shape, kind, arena, &program));
    ASSERT_OK(weft_program_pass_check(&shape, kind, &program));
    return text_of(&program);
}

static void expect_text(weft_chunk_shape shape, weft_pass_kind kind, const char *wanted)
{
    weft_arena arena = {0};
    char *text = text_of_pass(shape, kind, &arena);
    assert_string_equal(text, wanted);
    free(text);
    weft_arena_release(&arena);
}

/* A chunk amid a pipeline: layer 1 of it gives its gradient in place, and inside its forward the
 * host waits. */
static const weft_chunk_shape amid = {.layers = layers,
                                      .first = 5,
                                      .num_layers = 4,
                                      .receives = true,
                                      .passes_on = true,
                                      .row_bytes = 64};

static void are_these_programs(void **state)
{
    (void)state;
    weft_chunk_shape whole = amid;
    whole.first = 0;
    whole.num_layers = 2;
    whole.receives = whole.passes_on = false;
    expect_text(amid, false,
                "program in_flight=0\n"
                "slots 0-0 activation bytes=64\n"
                "slots 1-1 output bytes=64\n"
                "slots 2-2 layer_stash bytes=100\n"
                "slots 3-3 layer_stash bytes=200\n"
                "slots 4-4 layer_stash bytes=300\n"
                "slots 5-5 layer_stash bytes=400\n"
                "slots 6-8 layer bytes=64\n"
                "0 layer compute activation layer=5 x=0 stash=2 y=6\n"
                "1 layer compute activation host layer=6 x=6 stash=3 y=7\n"
                "2 layer compute activation layer=7 x=7 stash=4 y=8\n"
                "3 layer compute activation layer=8 x=8 stash=5 y=1\n");
    expect_text(amid, true,
                "program in_flight=0\n"
                "slots 0-0 gradient bytes=64\n"
                "slots 1-1 input_gradient bytes=64\n"
                "slots 2-2 layer_stash bytes=100\n"
                "slots 3-3 layer_stash bytes=200\n"
                "slots 4-4 layer_stash bytes=300\n"
                "slots 5-5 layer_stash bytes=400\n"
                "slots 6-7 layer_gradient bytes=64\n"
                "0 layer compute gradient layer=8 stash=5 dy=0 dx=6\n"
                "1 layer compute gradient layer=7 stash=4 dy=6 dx=7\n"
                "2 layer compute gradient layer=6 stash=3 dy=7 dx=7\n"
                "3 layer compute gradient layer=5 stash=2 dy=7 dx=1\n");
    expect_text(whole, false,
                "program in_flight=0\n"
                "slots 0-0 layer_stash bytes=100\n"
                "slots 1-1 layer_stash bytes=200\n"
                "slots 2-2 layer bytes=64\n"
                "0 layer compute activation layer=0 stash=0 y=2\n"
                "1 layer compute activation host layer=1 x=2 stash=1\n");
    expect_text(whole, true,
                "program in_flight=0\n"
                "slots 0-0 layer_stash bytes=100\n"
                "slots 1-1 layer_stash bytes=200\n"
                "slots 2-3 layer_gradient bytes=64\n"
                "0 layer compute gradient layer=1 stash=1 dx=2\n"
                "1 layer compute gradient layer=0 stash=0 dy=2 dx=3\n");
}

/* The first layer keeps its stash, the others are two groups: of layers 6 and 7, and of 8. */
static const weft_pass_layer grouped[4] = {
    {100, false, false, 0}, {200, true, true, 1}, {300, false, false, 1}, {400, false, false, 2}};

static weft_chunk_shape grouped_chunk(bool early)
{
    weft_chunk_shape shape = amid;
    shape.layers = grouped;
    shape.recomputes_early = early;
    return shape;
}

static void recomputed_groups_keep_their_input(void **state)
{
    (void)state;
    expect_text(grouped_chunk(false), WEFT_PASS_FORWARD,
                "program in_flight=0\n"
                "slots 0-0 activation bytes=64\n"
                "slots 1-1 output bytes=64\n"
                "slots 2-2 layer_stash bytes=100\n"
                "slots 3-5 layer_stash\n"
                "slots 6-8 layer bytes=64\n"
                "slots 9-9 recomputed bytes=400\n"
                "slots 10-10 recomputed bytes=300\n"
                "slots 11-11 recomputed_layer bytes=64\n"
                "0 layer compute activation layer=5 x=0 stash=2 y=6\n"
                "1 layer compute activation host layer=6 x=6 stash=9 y=11\n"
                "2 layer compute activation layer=7 x=11 stash=10 y=8\n"
                "3 layer compute activation layer=8 x=8 stash=9 y=1\n");
    expect_text(grouped_chunk(false), WEFT_PASS_BACKWARD,
                "program in_flight=0\n"
                "slots 0-0 gradient bytes=64\n"
                "slots 1-1 input_gradient bytes=64\n"
                "slots 2-2 layer_stash bytes=100\n"
                "slots 3-5 layer_stash\n"
                "slots 6-7 layer_gradient bytes=64\n"
                "slots 8-8 activation bytes=64\n"
                "slots 9-11 layer bytes=64\n"
                "slots 12-12 recomputed bytes=400\n"
                "slots 13-13 recomputed bytes=300\n"
                "slots 14-14 recomputed_layer bytes=64\n"
                "0 recompute compute activation layer=8 x=11 stash=12 y=6\n"
                "1 layer compute gradient layer=8 stash=12 dy=0 dx=6\n"
                "2 recompute compute activation layer=6 x=9 stash=12 y=14\n"
                "3 recompute compute activation layer=7 x=14 stash=13 y=7\n"
                "4 layer compute gradient layer=7 stash=13 dy=6 dx=7\n"
                "5 layer compute gradient layer=6 stash=12 dy=7 dx=7\n"
                "6 layer compute gradient layer=5 stash=2 dy=7 dx=1\n");
}

static void the_last_group_is_recomputed_early(void **state)
{
    (void)state;
    weft_arena arena = {0};
    char *early = text_of_pass(grouped_chunk(true), WEFT_PASS_RECOMPUTE, &arena);
    char *rest = text_of_pass(grouped_chunk(true), WEFT_PASS_BACKWARD, &arena);
    char *none = text_of_pass(grouped_chunk(false), WEFT_PASS_RECOMPUTE, &arena);
    assert_non_null(strstr(early, "0 recompute compute activation layer=8 x=11 stash=12 y=6\n"));
    assert_null(strstr(early, "\n1 "));
    assert_non_null(strstr(rest, "0 layer compute gradient layer=8 stash=12 dy=0 dx=6\n"
                                 "1 recompute compute activation layer=6"));
    assert_null(strstr(none, "\n0 "));
    free(early);
    free(rest);
    free(none);
    weft_arena_release(&arena);
}

static void every_length(void **state)
{
    (void)state;
    for (int n = 0; n <= 4; n++)
        for (int ends = 0; ends < 4; ends++)
            for (int kind = 0; kind < WEFT_NUM_PASS_KINDS; kind++)
                for (int early = 0; early < 2; early++) {
                    weft_arena arena = {0};
                    weft_chunk_shape shape = grouped_chunk(early && n > 1);
                    shape.num_layers = n;
                    shape.receives = ends & 1;
                    shape.passes_on = ends & 2;
                    free(text_of_pass(shape, (weft_pass_kind)kind, &arena));
                    weft_arena_release(&arena);
                }
}

static void refuse_in(weft_chunk_shape shape, weft_pass_kind kind, const char *from, const char *to,
                      const char *part)
{
    weft_arena arena = {0};
    weft_program damaged;
    char *text = text_of_pass(shape, kind, &arena), *at = strstr(text, from);
    char *other = calloc(1, strlen(text) + strlen(to) + 1);
    assert_non_null(at);
    assert_non_null(other);
    sprintf(other, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ASSERT_OK(weft_program_parse(other, &arena, &damaged));
    ASSERT_ERROR(weft_program_pass_check(&shape, kind, &damaged), WEFT_INTERNAL, part);
    free(other);
    free(text);
    weft_arena_release(&arena);
}

static void refuse(bool backward, const char *from, const char *to, const char *part)
{
    refuse_in(amid, backward ? WEFT_PASS_BACKWARD : WEFT_PASS_FORWARD, from, to, part);
}

static void refuses_what_is_recomputed_wrongly(void **state)
{
    (void)state;
    const weft_chunk_shape shape = grouped_chunk(false), early = grouped_chunk(true);
    const weft_pass_kind back = WEFT_PASS_BACKWARD;
    refuse_in(shape, WEFT_PASS_FORWARD, "x=6 stash=9", "x=6 stash=3",
              "the stash of layer 6 is recomputed");
    refuse_in(shape, back, "layer=6 x=9", "layer=6 x=10", "needs the layer's input");
    refuse_in(shape, back, "layer=7 x=14", "layer=7 x=10", "the input of layer 7 is recomputed");
    refuse_in(shape, back, "layer=7 x=14 stash=13", "layer=7 x=14 stash=12",
              "reads slot 13 before anything is written to it");
    refuse_in(shape, back, "layer=7 x=14 stash=13 y=7", "layer=7 x=14 stash=13 y=6",
              "the layer's gradient");
    refuse_in(shape, back, "layer=7 x=14 stash=13 y=7\n4 layer compute gradient layer=7 stash=13",
              "layer=7 x=14 stash=12 y=7\n4 layer compute gradient layer=7 stash=12",
              "needs the layer's stash of layer 6");
    refuse_in(early, WEFT_PASS_RECOMPUTE, "layer=8 x=11", "layer=8 x=10",
              "needs the layer's input");
}

static void refuses_what_is_damaged(void **state)
{
    (void)state;
    refuse(false, "layer=6 x=6", "layer=6 x=0",
           "forward, task 1 (layer compute activation host layer=6 "
           "x=0 stash=3 y=7) needs the layer's input");
    refuse(false, "host layer=6", "layer=6", "hides that the host waits");
    refuse(false, "layer=8 x=8 stash=5 y=1", "layer=8 x=8 stash=5", "must write the layer's input");
    refuse(false, "layer=7 x=7 stash=4 y=8\n3 layer compute activation layer=8 x=8 stash=5 y=1",
           "layer=8 x=7 stash=4 y=8\n3 layer compute activation layer=7 x=8 stash=5 y=1",
           "comes before task 3");
    refuse(true, "layer=7 stash=4", "layer=7 stash=3", "needs the layer's stash of layer 7");
    refuse(true, "stash=3 dy=7 dx=7", "stash=3 dy=7 dx=6", "holds the layer's gradient");
    refuse(true, "3 layer compute gradient layer=5 stash=2 dy=7 dx=1\n", "",
           "backward has no layer compute gradient layer=5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(are_these_programs),
        cmocka_unit_test(recomputed_groups_keep_their_input),
        cmocka_unit_test(the_last_group_is_recomputed_early),
        cmocka_unit_test(every_length),
        cmocka_unit_test(refuses_what_is_recomputed_wrongly),
        cmocka_unit_test(refuses_what_is_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
