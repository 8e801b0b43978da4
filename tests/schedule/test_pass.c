/* The programs of a chunk's layers: to the byte, and what is damaged is refused. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/pass.h"

static const weft_pass_layer layers[4] = {
    {100, false, false}, {200, true, true}, {300, false, false}, {400, false, false}};

static char *text_of_pass(weft_chunk_shape shape, bool backward, weft_arena *arena)
{
    weft_program program;
    ASSERT_OK(weft_program_pass(&shape, backward, arena, &program));
    ASSERT_OK(weft_program_pass_check(&shape, backward, &program));
    return text_of(&program);
}

static void expect_text(weft_chunk_shape shape, bool backward, const char *wanted)
{
    weft_arena arena = {0};
    char *text = text_of_pass(shape, backward, &arena);
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

static void every_length(void **state)
{
    (void)state;
    for (int n = 0; n <= 4; n++)
        for (int ends = 0; ends < 4; ends++)
            for (int backward = 0; backward < 2; backward++) {
                weft_arena arena = {0};
                weft_chunk_shape shape = amid;
                shape.num_layers = n;
                shape.receives = ends & 1;
                shape.passes_on = ends & 2;
                free(text_of_pass(shape, backward, &arena));
                weft_arena_release(&arena);
            }
}

static void refuse(bool backward, const char *from, const char *to, const char *part)
{
    weft_arena arena = {0};
    weft_program damaged;
    char *text = text_of_pass(amid, backward, &arena), *at = strstr(text, from);
    char *other = calloc(1, strlen(text) + strlen(to) + 1);
    assert_non_null(at);
    assert_non_null(other);
    sprintf(other, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ASSERT_OK(weft_program_parse(other, &arena, &damaged));
    ASSERT_ERROR(weft_program_pass_check(&amid, backward, &damaged), WEFT_INTERNAL, part);
    free(other);
    free(text);
    weft_arena_release(&arena);
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
        cmocka_unit_test(every_length),
        cmocka_unit_test(refuses_what_is_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
