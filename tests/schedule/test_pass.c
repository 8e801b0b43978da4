/* The programs of a chunk's layers: to the byte, and what is damaged is refused. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/body.h"
#include "schedule/tensor.h"
#include "schedule/pass.h"

static const weft_pass_layer layers[4] = {
    {.stash_bytes = 100},
    {.stash_bytes = 200, .in_place = true, .host_waits = true},
    {.stash_bytes = 300},
    {.stash_bytes = 400}};
/* The second has nothing to share out. */
static const weft_pass_layer sharing[4] = {{.gathers = true, .reduces = true},
                                           {.in_place = true},
                                           {.gathers = true, .reduces = true},
                                           {.gathers = true, .reduces = true}};

static void refuse_in(weft_chunk_shape shape, weft_pass_kind kind, const char *from, const char *to,
                      const char *part);

static char *text_of_pass(weft_chunk_shape shape, weft_pass_kind kind, weft_arena *arena)
{
    weft_program program;
    OK(weft_program_pass(&shape, kind, arena, &program));
    OK(weft_program_pass_check(&shape, kind, &program));
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

static const weft_chunk_shape shared = {.layers = sharing,
                                        .num_layers = 4,
                                        .row_bytes = 64,
                                        .weight_slots = 2,
                                        .gradient_slots = 2,
                                        .weight_bytes = 50,
                                        .gradient_bytes = 90};

CASE(are_these_programs)
{
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
}

/* The first layer keeps its stash, the others are two groups: of layers 6 and 7, and of 8. */
static const weft_pass_layer grouped[4] = {
    {.stash_bytes = 100},
    {.stash_bytes = 200, .in_place = true, .host_waits = true, .group = 1},
    {.stash_bytes = 300, .group = 1},
    {.stash_bytes = 400, .group = 2}};

static weft_chunk_shape grouped_chunk(bool early)
{
    weft_chunk_shape shape = amid;
    shape.layers = grouped;
    shape.recomputes_early = early;
    return shape;
}

CASE(recomputed_groups_keep_their_input)
{
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

CASE(the_last_group_is_recomputed_early)
{
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

/* Layers' weights are gathered a layer ahead, their gradients reduced behind. */
CASE(shares_out)
{
    expect_text(shared, false,
                "program in_flight=0\n"
                "slots 0-3 layer_stash\n"
                "slots 4-5 weights bytes=50\n"
                "slots 6-8 layer bytes=64\n"
                "0 gather gather weight layer=0 weights=4\n"
                "1 gather gather weight layer=2 weights=5\n"
                "2 layer compute activation layer=0 stash=0 y=6 weights=4 waits=0\n"
                "3 gather gather weight layer=3 weights=4 waits=2\n"
                "4 layer compute activation layer=1 x=6 stash=1 y=7\n"
                "5 layer compute activation layer=2 x=7 stash=2 y=8 weights=5 waits=1\n"
                "6 layer compute activation layer=3 x=8 stash=3 weights=4 waits=3\n");
    expect_text(
        shared, true,
        "program in_flight=0\n"
        "slots 0-3 layer_stash\n"
        "slots 4-5 weights bytes=50\n"
        "slots 6-7 weight_gradients bytes=90\n"
        "slots 8-9 layer_gradient bytes=64\n"
        "0 gather gather weight layer=3 weights=4\n"
        "1 gather gather weight layer=2 weights=5\n"
        "2 layer compute gradient layer=3 stash=3 dx=8 weights=4 weight_gradients=6 waits=0\n"
        "3 gather gather weight layer=0 weights=4 waits=2\n"
        "4 reduce reduce layer=3 weight_gradients=6 waits=2\n"
        "5 layer compute gradient layer=2 stash=2 dy=8 dx=9 weights=5 weight_gradients=7 waits=1\n"
        "6 reduce reduce layer=2 weight_gradients=7 waits=5\n"
        "7 layer compute gradient layer=1 stash=1 dy=9 dx=9\n"
        "8 layer compute gradient layer=0 stash=0 dy=9 dx=8 weights=4 weight_gradients=6 "
        "waits=3,4\n"
        "9 reduce reduce layer=0 weight_gradients=6 waits=8\n");
}

/* The model's last layer makes its weights' gradients in the forward, and needs neither again. */
CASE(the_last_layer_reduces_in_the_forward)
{
    weft_pass_layer with_loss[4];
    weft_chunk_shape shape = shared;
    memcpy(with_loss, sharing, sizeof with_loss);
    with_loss[3].is_loss = true;
    shape.layers = with_loss;
    expect_text(shape, WEFT_PASS_FORWARD,
                "program in_flight=0\n"
                "slots 0-3 layer_stash\n"
                "slots 4-5 weights bytes=50\n"
                "slots 6-7 weight_gradients bytes=90\n"
                "slots 8-10 layer bytes=64\n"
                "0 gather gather weight layer=0 weights=4\n"
                "1 gather gather weight layer=2 weights=5\n"
                "2 layer compute activation layer=0 stash=0 y=8 weights=4 waits=0\n"
                "3 gather gather weight layer=3 weights=4 waits=2\n"
                "4 layer compute activation layer=1 x=8 stash=1 y=9\n"
                "5 layer compute activation layer=2 x=9 stash=2 y=10 weights=5 waits=1\n"
                "6 layer compute activation layer=3 x=10 stash=3 weights=4 weight_gradients=6 "
                "waits=3\n"
                "7 reduce reduce layer=3 weight_gradients=6 waits=6\n");
    expect_text(shape, WEFT_PASS_BACKWARD,
                "program in_flight=0\n"
                "slots 0-3 layer_stash\n"
                "slots 4-5 weights bytes=50\n"
                "slots 6-7 weight_gradients bytes=90\n"
                "slots 8-9 layer_gradient bytes=64\n"
                "0 gather gather weight layer=2 weights=4\n"
                "1 gather gather weight layer=0 weights=5\n"
                "2 layer compute gradient layer=3 stash=3 dx=8\n"
                "3 layer compute gradient layer=2 stash=2 dy=8 dx=9 weights=4 weight_gradients=6 "
                "waits=0\n"
                "4 reduce reduce layer=2 weight_gradients=6 waits=3\n"
                "5 layer compute gradient layer=1 stash=1 dy=9 dx=9\n"
                "6 layer compute gradient layer=0 stash=0 dy=9 dx=8 weights=5 weight_gradients=7 "
                "waits=1\n"
                "7 reduce reduce layer=0 weight_gradients=7 waits=6\n");
    refuse_in(shape, WEFT_PASS_FORWARD, "7 reduce reduce layer=3 weight_gradients=6 waits=6\n", "",
              "has no reduce reduce layer=3");
}

/* Two layers of four split: of another one the first half has the whole backward, and the second a
 * task that does nothing. */
CASE(comes_in_two_halves)
{
    weft_pass_layer two[4];
    weft_chunk_shape shape = shared;
    memcpy(two, sharing, sizeof two);
    two[0].splits = two[2].splits = true;
    two[0].deferred_bytes = 70;
    two[2].deferred_bytes = 80;
    shape.layers = two;
    shape.receives = true;
    expect_text(shape, WEFT_PASS_INPUT,
                "program in_flight=0\n"
                "slots 0-0 input_gradient bytes=64\n"
                "slots 1-4 layer_stash\n"
                "slots 5-6 weights bytes=50\n"
                "slots 7-8 weight_gradients bytes=90\n"
                "slots 9-10 layer_gradient bytes=64\n"
                "slots 11-11 deferred bytes=70\n"
                "slots 12-12 deferred\n"
                "slots 13-13 deferred bytes=80\n"
                "slots 14-14 deferred\n"
                "0 gather gather weight layer=3 weights=5\n"
                "1 gather gather weight layer=2 weights=6\n"
                "2 layer compute gradient layer=3 stash=4 dx=9 weights=5 weight_gradients=7 "
                "waits=0\n"
                "3 gather gather weight layer=0 weights=5 waits=2\n"
                "4 reduce reduce layer=3 weight_gradients=7 waits=2\n"
                "5 layer compute input layer=2 stash=3 dy=9 dx=10 weights=6 deferred=13 waits=1\n"
                "6 layer compute gradient layer=1 stash=2 dy=10 dx=10\n"
                "7 layer compute input layer=0 stash=1 dy=10 dx=0 weights=5 deferred=11 waits=3\n");
    expect_text(shape, WEFT_PASS_WEIGHTS,
                "program in_flight=0\n"
                "slots 0-3 layer_stash\n"
                "slots 4-5 weight_gradients bytes=90\n"
                "slots 6-6 deferred bytes=70\n"
                "slots 7-7 deferred\n"
                "slots 8-8 deferred bytes=80\n"
                "slots 9-9 deferred\n"
                "0 layer compute weight layer=3\n"
                "1 layer compute weight layer=2 stash=2 deferred=8 weight_gradients=4\n"
                "2 reduce reduce layer=2 weight_gradients=4 waits=1\n"
                "3 layer compute weight layer=1\n"
                "4 layer compute weight layer=0 stash=0 deferred=6 weight_gradients=5\n"
                "5 reduce reduce layer=0 weight_gradients=5 waits=4\n");
    refuse_in(shape, WEFT_PASS_INPUT, "weights=6 deferred=13", "weights=6", "must write");
    refuse_in(shape, WEFT_PASS_WEIGHTS, "stash=2 deferred=8", "stash=2 deferred=6",
              "needs what weights' gradients are made of");
    refuse_in(shape, WEFT_PASS_WEIGHTS, "weight layer=1", "weight layer=7",
              "weight gradients, task 3 (layer compute weight layer=7) has no place");
    refuse_in(shape, WEFT_PASS_WEIGHTS, "5 reduce reduce layer=0 weight_gradients=5 waits=4\n", "",
              "has no reduce reduce layer=0");
}

/* Recomputing a layer and its backward use what is gathered once; of a longer group what has left
 * the ring is gathered again. */
CASE(shares_out_what_is_recomputed)
{
    weft_pass_layer groups[4];
    weft_chunk_shape shape = shared;
    for (int i = 0; i < 4; i++) {
        groups[i] = sharing[i];
        groups[i].gathers = true;
        groups[i].group = i > 0;
    }
    shape.layers = groups;
    expect_text(shape, WEFT_PASS_BACKWARD,
                "program in_flight=0\n"
                "slots 0-3 layer_stash\n"
                "slots 4-5 weights bytes=50\n"
                "slots 6-7 weight_gradients bytes=90\n"
                "slots 8-9 layer_gradient bytes=64\n"
                "slots 10-12 layer bytes=64\n"
                "slots 13-15 recomputed\n"
                "slots 16-17 recomputed_layer bytes=64\n"
                "0 gather gather weight layer=1 weights=4\n"
                "1 gather gather weight layer=2 weights=5\n"
                "2 recompute compute activation layer=1 x=10 stash=13 y=16 weights=4 waits=0\n"
                "3 gather gather weight layer=3 weights=4 waits=2\n"
                "4 recompute compute activation layer=2 x=16 stash=14 y=17 weights=5 waits=1\n"
                "5 recompute compute activation layer=3 x=17 stash=15 y=8 weights=4 waits=3\n"
                "6 layer compute gradient layer=3 stash=15 dx=8 weights=4 weight_gradients=6\n"
                "7 reduce reduce layer=3 weight_gradients=6 waits=6\n"
                "8 layer compute gradient layer=2 stash=14 dy=8 dx=9 weights=5 weight_gradients=7\n"
                "9 gather gather weight layer=1 part=1 weights=5 waits=8\n"
                "10 gather gather weight layer=0 weights=4\n"
                "11 reduce reduce layer=2 weight_gradients=7 waits=8\n"
                "12 layer compute gradient layer=1 stash=13 dy=9 dx=9 weights=5 waits=9\n"
                "13 layer compute gradient layer=0 stash=0 dy=9 dx=8 weights=4 weight_gradients=6 "
                "waits=7,10\n"
                "14 reduce reduce layer=0 weight_gradients=6 waits=13\n");
}

/* The first one's input comes from the stage before; the others' inputs go out with their stashes.
 */
static const weft_pass_layer offloading[4] = {
    {.stash_bytes = 10, .offloads = true, .offloaded_bytes = 100},
    {.stash_bytes = 20, .offloads = true, .offloaded_bytes = 200, .offloads_input = true},
    {.stash_bytes = 30, .offloads = true, .offloaded_bytes = 300, .offloads_input = true},
    {.stash_bytes = 40, .offloads = true, .offloaded_bytes = 400, .offloads_input = true}};

static weft_chunk_shape offloading_chunk(void)
{
    weft_chunk_shape shape = amid;
    shape.layers = offloading;
    shape.offload_slots = 2;
    shape.input_slots = 3;
    shape.offload_bytes[0] = 300;
    shape.offload_bytes[1] = 400;
    return shape;
}

/* Out while the next layer computes; back as soon as the slot is free, to the same slot. */
CASE(offloads)
{
    expect_text(offloading_chunk(), WEFT_PASS_FORWARD,
                "program in_flight=0\n"
                "slots 0-0 activation bytes=64\n"
                "slots 1-1 output bytes=64\n"
                "slots 2-2 layer_stash bytes=10\n"
                "slots 3-3 layer_stash bytes=20\n"
                "slots 4-4 layer_stash bytes=30\n"
                "slots 5-5 layer_stash bytes=40\n"
                "slots 6-8 layer\n"
                "slots 9-9 offloaded bytes=300\n"
                "slots 10-10 offloaded bytes=400\n"
                "slots 11-13 offloaded_layer bytes=64\n"
                "slots 14-14 host_stash bytes=100\n"
                "slots 15-15 host_stash bytes=264\n"
                "slots 16-16 host_stash bytes=364\n"
                "slots 17-17 host_stash bytes=464\n"
                "0 layer compute activation layer=5 x=0 stash=2 y=11 offloaded=9\n"
                "1 offload offload stash layer=5 offloaded=9 to=14 waits=0\n"
                "2 layer compute activation layer=6 x=11 stash=3 y=12 offloaded=10\n"
                "3 offload offload stash layer=6 offloaded=10 x=11 to=15 waits=2\n"
                "4 layer compute activation layer=7 x=12 stash=4 y=13 offloaded=9 waits=1\n"
                "5 offload offload stash layer=7 offloaded=9 x=12 to=16 waits=4\n"
                "6 layer compute activation layer=8 x=13 stash=5 y=1 offloaded=10 waits=3\n"
                "7 offload offload stash layer=8 offloaded=10 x=13 to=17 waits=6\n");
    expect_text(offloading_chunk(), WEFT_PASS_BACKWARD,
                "program in_flight=0\n"
                "slots 0-0 gradient bytes=64\n"
                "slots 1-1 input_gradient bytes=64\n"
                "slots 2-2 layer_stash bytes=10\n"
                "slots 3-3 layer_stash bytes=20\n"
                "slots 4-4 layer_stash bytes=30\n"
                "slots 5-5 layer_stash bytes=40\n"
                "slots 6-7 layer_gradient bytes=64\n"
                "slots 8-8 offloaded bytes=300\n"
                "slots 9-9 offloaded bytes=400\n"
                "slots 10-12 offloaded_layer bytes=64\n"
                "slots 13-13 host_stash bytes=100\n"
                "slots 14-14 host_stash bytes=264\n"
                "slots 15-15 host_stash bytes=364\n"
                "slots 16-16 host_stash bytes=464\n"
                "0 prefetch prefetch stash layer=8 from=16 offloaded=9 x=12\n"
                "1 prefetch prefetch stash layer=7 from=15 offloaded=8 x=11\n"
                "2 layer compute gradient layer=8 stash=5 dy=0 dx=6 offloaded=9 x=12 waits=0\n"
                "3 prefetch prefetch stash layer=6 from=14 offloaded=9 x=10 waits=2\n"
                "4 layer compute gradient layer=7 stash=4 dy=6 dx=7 offloaded=8 x=11 waits=1\n"
                "5 prefetch prefetch stash layer=5 from=13 offloaded=8 waits=4\n"
                "6 layer compute gradient layer=6 stash=3 dy=7 dx=6 offloaded=9 x=10 waits=3\n"
                "7 layer compute gradient layer=5 stash=2 dy=6 dx=1 offloaded=8 waits=5\n");
}

/* Beside what is shared out, and where some layers offload and others do not. */
CASE(offloads_beside_the_rest)
{
    for (int which = 0; which < 256; which++)
        for (int kind = 0; kind < WEFT_NUM_PASS_KINDS; kind++) {
            weft_arena arena = {0};
            weft_chunk_shape shape = shared;
            weft_pass_layer some[4];
            for (int i = 0; i < 4; i++) {
                some[i] = sharing[i];
                some[i].offloads = which >> i & 1;
                some[i].offloads_input = some[i].offloads && i > 0 && (which >> (4 + i) & 1);
            }
            shape.layers = some;
            shape.offload_slots = 1 + which % 2;
            shape.input_slots = 2 + which % 3;
            free(text_of_pass(shape, (weft_pass_kind)kind, &arena));
            weft_arena_release(&arena);
        }
}

CASE(every_length)
{
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
    OK(weft_program_parse(other, &arena, &damaged));
    FAILS(weft_program_pass_check(&shape, kind, &damaged), WEFT_INTERNAL, part);
    free(other);
    free(text);
    weft_arena_release(&arena);
}

static void refuse(bool backward, const char *from, const char *to, const char *part)
{
    refuse_in(amid, backward ? WEFT_PASS_BACKWARD : WEFT_PASS_FORWARD, from, to, part);
}

CASE(refuses_what_is_recomputed_wrongly)
{
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

CASE(refuses_what_is_offloaded_wrongly)
{
    const weft_chunk_shape shape = offloading_chunk();
    const weft_pass_kind forward = WEFT_PASS_FORWARD, back = WEFT_PASS_BACKWARD;
    refuse_in(shape, forward, "to=14 waits=0", "to=14",
              "may read slot 9 before task 0 has written it");
    refuse_in(shape, forward, "y=13 offloaded=9 waits=1", "y=13 offloaded=9",
              "may overwrite slot 9 while task 1 still reads it");
    refuse_in(shape, forward, "7 offload offload stash layer=8 offloaded=10 x=13 to=17 waits=6\n",
              "", "forward has no offload offload stash layer=8");
    refuse_in(shape, forward, "layer=6 offloaded=10 x=11", "layer=6 offloaded=10 x=12",
              "needs the layer's input of layer 6");
    refuse_in(shape, forward, "layer=6 offloaded=10 x=11", "layer=6 offloaded=10",
              "must read the layer's input");
    refuse_in(shape, forward,
              "y=1 offloaded=10 waits=3\n7 offload offload stash layer=8 offloaded=10",
              "y=1 offloaded=9 waits=5\n7 offload offload stash layer=8 offloaded=9",
              "what layer 8 offloads is not in its slot of the ring");
    refuse_in(shape, forward,
              "y=13 offloaded=9 waits=1\n5 offload offload stash layer=7 offloaded=9 x=12 to=16 "
              "waits=4\n6 layer compute activation layer=8 x=13 stash=5 y=1 offloaded=10 waits=3\n"
              "7 offload offload stash layer=8 offloaded=10 x=13",
              "y=8 offloaded=9 waits=1\n5 offload offload stash layer=7 offloaded=9 x=12 to=16 "
              "waits=4\n6 layer compute activation layer=8 x=8 stash=5 y=1 offloaded=10 waits=3\n"
              "7 offload offload stash layer=8 offloaded=10 x=8",
              "the input of layer 8 is not in its slot of the ring");
    refuse_in(shape, back, "layer=6 from=14 offloaded=9 x=10 waits=2",
              "layer=6 from=14 offloaded=9 x=10",
              "may overwrite slot 9 while task 2 still reads it");
    refuse_in(shape, back, "offloaded=8 x=11 waits=1", "offloaded=8 x=11",
              "may read slot 8 before task 1 has written it");
    refuse_in(shape, back, "layer=7 from=15", "layer=7 from=14",
              "needs what the layer offloaded, on the host of layer 7 from slot 14");
    refuse_in(shape, back, "layer=6 from=14 offloaded=9", "layer=6 from=14 offloaded=8", "slot 8");
    refuse_in(shape, back, "dx=6 offloaded=9 x=10 waits=3", "dx=6 offloaded=8 x=10 waits=3",
              "needs what the layer offloads of layer 6");
    refuse_in(shape, back,
              "0 prefetch prefetch stash layer=8 from=16 offloaded=9 x=12\n"
              "1 prefetch prefetch stash layer=7 from=15 offloaded=8 x=11\n",
              "0 prefetch prefetch stash layer=7 from=15 offloaded=8 x=11\n"
              "1 prefetch prefetch stash layer=8 from=16 offloaded=9 x=12\n",
              "comes before task");
}

CASE(refuses_what_is_damaged)
{
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
    refuse_in(shared, true, "weights=4 waits=2", "weights=5 waits=2",
              "needs the weights of layer 2 from slot 5, which holds the weights of layer 0");
    refuse_in(shared, true, "weight_gradients=6 waits=3,4", "weight_gradients=6 waits=3",
              "may overwrite slot 6 while task 4 still reads it");
    refuse_in(shared, true, "6 reduce reduce layer=2", "6 reduce reduce layer=1",
              "has no place in this program");
    refuse(true, "3 layer compute gradient layer=5 stash=2 dy=7 dx=1\n", "",
           "backward has no layer compute gradient layer=5");
}

/* --- bodies --------------------------------------------------------------------------------- */

static const int with_program = 6; /* the layer that has one inside */

/* Own, the program's tasks, and own again. */
static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const weft_program *inside = context;
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    if (part == 0 || task->layer != with_program)
        return part == 0;
    if ((uint32_t)part > inside->num_tasks)
        return (uint32_t)part == inside->num_tasks + 1;
    out->program = inside;
    out->task = (uint32_t)part - 1;
    out->lane = (weft_lane_kind)inside->tasks[out->task].lane;
    return true;
}

/* Products in chunks: two programs, the second of which begins behind a part of the layer's own. */
static bool part_of_two(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const weft_program *inside = context;
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    (void)task;
    for (int i = 0; i < 2 && part > 0; i++) {
        if ((uint32_t)part <= inside[i].num_tasks) {
            out->program = &inside[i];
            out->task = (uint32_t)part - 1;
            if (inside[i].tasks[out->task].lane != WEFT_LANE_COMPUTE)
                out->lane = WEFT_LANE_TENSOR;
            return true;
        }
        part -= (int)inside[i].num_tasks + 1;
    }
    return part == 0;
}

CASE(bodies_have_the_chunks_of_products)
{
    const weft_tensor_plan enter = {.chunks = 2,
                                    .gathers = true,
                                    .multiplies = true,
                                    .reads = true},
                           leave = {.chunks = 2, .multiplies = true, .reduces = true};
    weft_chunk_shape shape = amid;
    weft_arena arena = {0};
    weft_program pass, inside[2], body;
    shape.num_layers = 1;
    OK(weft_program_pass(&shape, WEFT_PASS_FORWARD, &arena, &pass));
    OK(weft_program_tensor(&enter, &arena, &inside[0]));
    OK(weft_program_tensor(&leave, &arena, &inside[1]));
    OK(weft_program_body(&pass, part_of_two, inside, &arena, &body));
    program_is(&body, "program in_flight=0\n"
                      "slots 0-0 activation bytes=64\n"
                      "slots 1-1 output bytes=64\n"
                      "slots 2-2 layer_stash bytes=100\n"
                      "slots 3-4 gathered\n"
                      "slots 5-6 partial\n"
                      "0 layer compute activation layer=5 x=0 stash=2 y=1\n"
                      "1 gather tensor tensor layer=5 part=0 to=3 waits=0\n"
                      "2 gather tensor tensor layer=5 part=1 to=4\n"
                      "3 product compute activation layer=5 part=0 x=3 waits=1\n"
                      "4 product compute activation layer=5 part=1 x=4 waits=2\n"
                      "5 layer compute activation layer=5 x=0 stash=2 y=1\n"
                      "6 product compute activation layer=5 part=0 y=5\n"
                      "7 reduce tensor tensor layer=5 part=0 from=5 waits=6\n"
                      "8 product compute activation layer=5 part=1 y=6\n"
                      "9 reduce tensor tensor layer=5 part=1 from=6 waits=8\n"
                      "10 layer compute activation layer=5 x=0 stash=2 y=1 waits=9\n");
    weft_arena_release(&arena);
}

/* A wait that no operand tells of. */
CASE(bodies_keep_the_waits_of_what_is_inside)
{
    static const weft_lane_kind lanes[] = {WEFT_LANE_EXPERT, WEFT_LANE_PLACE, WEFT_LANE_COMPUTE};
    weft_arena arena = {0};
    weft_program_builder *builder;
    weft_program pass, inside, body;
    weft_chunk_shape shape = amid;
    shape.first = with_program;
    shape.num_layers = 1;
    OK(weft_program_builder_create(&arena, &builder));
    for (uint32_t i = 0; i < 3; i++) {
        const weft_wait before = {i - 1, -1};
        weft_task task = weft_task_of(WEFT_TASK_COUNTS, WEFT_FLOW_NONE);
        task.lane = (uint8_t)lanes[i];
        OK(weft_program_add(builder, &task, &before, i > 0, NULL));
    }
    OK(weft_program_finish(builder, 0, &inside));
    OK(weft_program_pass(&shape, WEFT_PASS_FORWARD, &arena, &pass));
    OK(weft_program_body(&pass, part_of, &inside, &arena, &body));
    program_is(&body, "program in_flight=0\n"
                      "slots 0-0 activation bytes=64\n"
                      "slots 1-1 output bytes=64\n"
                      "slots 2-2 layer_stash bytes=100\n"
                      "0 layer compute activation layer=6 x=0 stash=2 y=1\n"
                      "1 counts expert layer=6 waits=0\n"
                      "2 counts place layer=6 waits=1\n"
                      "3 counts compute layer=6 waits=2\n"
                      "4 layer compute activation layer=6 x=0 stash=2 y=1\n");
    weft_arena_release(&arena);
}

/* Whatever is inside no layer changes nothing. */
CASE(bodies_are_passes_where_nothing_is_inside)
{
    const weft_program nothing = {.num_tasks = 0};
    weft_chunk_shape shapes[] = {amid, shared};
    for (int i = 0; i < 2; i++)
        for (int kind = 0; kind < WEFT_NUM_PASS_KINDS; kind++) {
            weft_arena arena = {0};
            weft_program pass, body;
            shapes[i].first = 7;
            OK(weft_program_pass(&shapes[i], (weft_pass_kind)kind, &arena, &pass));
            OK(weft_program_body(&pass, part_of, &nothing, &arena, &body));
            assert_true(same_program(&pass, &body));
            weft_arena_release(&arena);
        }
}
