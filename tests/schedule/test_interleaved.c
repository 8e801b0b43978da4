/* Interleaved schedules: orders of compute with several virtual stages a rank, lowered. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

enum { NUM_DRAWS = 400 };

static void order_is(const weft_order_shape *shape, int rank, const char *wanted)
{
    weft_arena arena = {0};
    weft_order orders[MAX_STAGES];
    char text[512] = "";
    OK(weft_order_make(WEFT_PIPELINE_1F1B, shape, &arena, orders));
    for (uint32_t i = 0; i < orders[rank].count; i++) {
        const weft_compute *c = &orders[rank].computes[i];
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d%c%d", i ? " " : "",
                 c->chunk * shape->num_ranks + rank, weft_compute_letter(c->kind), c->micro_batch);
    }
    assert_string_equal(text, wanted);
    weft_arena_release(&arena);
}

/* Megatron-LM's own example: core/pipeline_parallel/schedules.py, get_schedule_table, and its
 * warm-up of 2 (p - rank - 1) + (v - 1) N; and a last group that it refuses. */
CASE(orders)
{
    order_is(&(weft_order_shape){2, 2, 4, 0, false, false}, 0,
             "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
    order_is(&(weft_order_shape){2, 2, 4, 0, false, false}, 1,
             "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
    order_is(&(weft_order_shape){2, 2, 5, 3, false, false}, 1,
             "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4");
    order_is(&(weft_order_shape){2, 2, 3, 0, false, false}, 1,
             "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2");
    order_is(&(weft_order_shape){1, 3, 2, 0, false, false}, 0,
             "0F0 1F0 2F0 2B0 0F1 1B0 1F1 0B0 2F1 2B1 1B1 0B1");
}

/* A rank alone hands over from chunk to chunk: nothing is sent, and a chunk's output is the next
 * one's input, in its slot. */
CASE(hands_over)
{
    const weft_pipeline_shape shape = {
        .num_stages = 1, .num_chunks = 2, .num_micro_batches = 1, .boundary_bytes = 8};
    program_set set = make_shaped_set(&shape);
    program_is(&set.programs[0], "program in_flight=2\n"
                                 "slots 0-0 activation chunk=0\n"
                                 "slots 1-1 activation chunk=1 bytes=8\n"
                                 "slots 2-3 gradient bytes=8\n"
                                 "0 forward compute mb=0 chunk=0 stash=0 y=1\n"
                                 "1 forward compute mb=0 chunk=1 x=1 stash=1\n"
                                 "2 backward compute mb=0 chunk=1 stash=1 dx=2\n"
                                 "3 backward compute mb=0 chunk=0 stash=0 dy=2\n"
                                 "4 reduce reduce bucket=0 waits=3\n"
                                 "5 norm compute host waits=4\n"
                                 "6 step compute bucket=0\n");
    release_set(&set);
}

/* Hosts wait in all forwards. Rank 1 receives what it uses next and one input more before it waits,
 * and sends what it has made. */
CASE(hosts_wait_behind_messages)
{
    const bool host_waits[4] = {true, true, true, true};
    const weft_pipeline_shape shape = {.num_stages = 2,
                                       .num_chunks = 2,
                                       .num_micro_batches = 2,
                                       .forward_only = true,
                                       .boundary_bytes = 8,
                                       .host_waits = host_waits};
    program_set set = make_shaped_set(&shape);
    program_is(&set.programs[1], "program in_flight=4\n"
                                 "slots 0-1 activation chunk=0 bytes=8\n"
                                 "slots 2-3 activation chunk=1 bytes=8\n"
                                 "slots 4-5 output bytes=8\n"
                                 "0 receive receive activation mb=0 chunk=0 peer=0 to=0\n"
                                 "1 receive receive activation mb=1 chunk=0 peer=0 to=1\n"
                                 "2 forward compute host mb=0 chunk=0 x=0 stash=0 y=4 waits=0\n"
                                 "3 send send activation mb=0 chunk=0 peer=0 from=4 waits=2\n"
                                 "4 receive receive activation mb=0 chunk=1 peer=0 to=2\n"
                                 "5 forward compute host mb=1 chunk=0 x=1 stash=1 y=5 waits=1\n"
                                 "6 send send activation mb=1 chunk=0 peer=0 from=5 waits=5\n"
                                 "7 receive receive activation mb=1 chunk=1 peer=0 to=3\n"
                                 "8 forward compute host mb=0 chunk=1 x=2 stash=2 waits=4\n"
                                 "9 forward compute host mb=1 chunk=1 x=3 stash=3 waits=7\n");
    release_set(&set);
}

/* Hosts wait wherever they may, and every order that ends is lowered to programs that end. */
CASE(random_orders)
{
    uint64_t random = 8;
    int num_ended = 0;
    for (int draw = 0; draw < NUM_DRAWS; draw++) {
        weft_order_shape shape = {1 + (int)next_random(&random, 4),
                                  1 + (int)next_random(&random, 3),
                                  1 + (int)next_random(&random, 8),
                                  0,
                                  false,
                                  false};
        weft_arena arena = {0};
        weft_order drawn[MAX_STAGES];
        OK(weft_order_make(WEFT_PIPELINE_1F1B, &shape, &arena, drawn));
        /* Swaps of neighbours that keep a backward behind its forward. */
        for (uint32_t swaps = next_random(&random, 60); swaps > 0; swaps--) {
            const weft_order *order = &drawn[next_random(&random, (uint32_t)shape.num_ranks)];
            const uint32_t at = next_random(&random, order->count - 1);
            weft_compute *c = &order->computes[at], swapped = c[0];
            if (c[0].micro_batch == c[1].micro_batch && c[0].chunk == c[1].chunk)
                continue;
            c[0] = c[1];
            c[1] = swapped;
        }
        bool host_waits[MAX_STAGES];
        for (int s = 0; s < MAX_STAGES; s++)
            host_waits[s] = next_random(&random, 2);
        const weft_pipeline_shape pipeline = {.num_stages = shape.num_ranks,
                                              .num_chunks = shape.num_chunks,
                                              .num_micro_batches = shape.num_micro_batches,
                                              .forward_only = next_random(&random, 6) == 0,
                                              .boundary_bytes = 8,
                                              .orders = drawn,
                                              .host_waits = host_waits};
        program_set set = {.shape = pipeline};
        if (weft_program_pipeline(&pipeline, &set.arena, set.programs) == WEFT_OK) {
            num_ended++;
            if (check_set(&set) != WEFT_OK)
                fail_msg("draw %d: %s", draw, weft_error_get()->text);
        } else {
            assert_non_null(strstr(weft_error_get()->text, "the order of compute never ends"));
            weft_error_clear();
        }
        release_set(&set);
        weft_arena_release(&arena);
    }
    print_message("%d of %d orders end\n", num_ended, NUM_DRAWS);
    assert_in_range(num_ended, NUM_DRAWS / 4, NUM_DRAWS - 1);
}

/* A send behind a forward inside which the host waits, and that needs what is sent to come back:
 * lanes and waits let it through, the host never enqueues it. */
CASE(a_host_that_waits_for_itself)
{
    static edit edited;
    for (int waits = 0; waits < 2; waits++) {
        const bool host_waits[4] = {false, false, waits, false};
        const weft_pipeline_shape shape = {.num_stages = 2,
                                           .num_chunks = 2,
                                           .num_micro_batches = 1,
                                           .forward_only = true,
                                           .boundary_bytes = 8,
                                           .host_waits = host_waits};
        program_set set = make_shaped_set(&shape);
        OK(check_set(&set));
        edit_open(&set, 0, &edited);
        uint32_t at = 0;
        while (edited.tasks[at].kind != WEFT_TASK_SEND)
            at++;
        for (; !(edited.tasks[at - 1].kind == WEFT_TASK_FORWARD && edited.tasks[at - 1].chunk == 1);
             at++)
            swap_tasks(&edited, at, at + 1);
        edit_close(&edited, &set);
        if (waits)
            FAILS(check_set(&set), WEFT_INTERNAL, "deadlock: ");
        else
            OK(check_set(&set));
        release_set(&set);
    }
}

CASE(refuses)
{
    weft_arena arena = {0};
    weft_order made[4];
    weft_program programs[4];
    weft_order_shape shape = {4, 2, 8, 3, false, false};
    FAILS(weft_order_make(WEFT_PIPELINE_1F1B, &shape, &arena, made), WEFT_CONFIG,
          "groups of 3 micro-batches in a pipeline of 4 ranks");
    shape = (weft_order_shape){2, 1, 2, 0, false, false};
    OK(weft_order_make(WEFT_PIPELINE_1F1B, &shape, &arena, made));
    /* Each rank begins with what the other has not done. */
    made[0].computes[0] = (weft_compute){1, 0, WEFT_COMPUTE_FORWARD, 0};
    made[0].computes[1] = (weft_compute){1, 0, WEFT_COMPUTE_BACKWARD, 0};
    made[0].computes[2] = (weft_compute){0, 0, WEFT_COMPUTE_FORWARD, 0};
    made[0].computes[3] = (weft_compute){0, 0, WEFT_COMPUTE_BACKWARD, 0};
    const weft_pipeline_shape pipeline = {
        .num_stages = 2, .num_micro_batches = 2, .boundary_bytes = 8, .orders = made};
    FAILS(weft_program_pipeline(&pipeline, &arena, programs), WEFT_CONFIG,
          "the order of compute never ends: rank 0 stands at 0B1 and waits for 1B1 of rank "
          "1, rank 1 stands at 1F0 and waits for 0F0 of rank 0");
    weft_arena_release(&arena);
}

CASE(csv_errors)
{
    const weft_order_shape shape = {2, 1, 1, 0, false, false};
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"0F0,,0B0\n", "1 line for 2 ranks"},
        {"0F0\n", "1 line for 2 ranks"},
        {"\n", "0 lines for 2 ranks"},
        {"0F0,0B0\n1F0,1B0\n\n0F0\n", "3 lines for 2 ranks"},
        {"0F0\n1F0,1B0\n", "line 1: 0B0 is missing"},
        {"0F0,0B0\n,1B0,1F0\n", "line 2, column 2, \"1B0\": premature: 1F0 has not come"},
        {"0F0,0F0,0B0\n1F0,1B0\n", "line 1, column 2, \"0F0\": repeated"},
        {"0F0,1B0\n1F0,1B0\n", "line 1, column 2, \"1B0\": stage 1 is rank 1's, whose line is 2"},
        {"0F0,0X0\n1F0,1B0\n", "column 2, \"0X0\": expected a stage below 2, F, B, I or W"},
        {"0F0,0W0\n1F0,1B0\n", "column 2, \"0W0\": premature: neither 0I0 nor 0B0 has come"},
        {"0F0,0I0\n1F0,1B0\n", "line 1: 0W0 is missing"},
        {"0F0,0I0,0B0,0W0\n1F0,1B0\n", "line 1, column 3, \"0B0\": repeated"},
        {"0F0,0B0,0W0,0W0\n1F0,1B0\n", "line 1, column 4, \"0W0\": repeated"},
        {"0F0,0BW0,0W0\n1F0,1B0\n", "line 1, column 3, \"0W0\": repeated"},
        {"0F0,0BW0,0B0\n1F0,1B0\n", "line 1, column 3, \"0B0\": repeated"},
        {"0F0,0B0,1SEND_B0\n1F0,1B0\n", "\"1SEND_B0\": stage 1 is rank 1's"},
        {"0F0,0B0,0UNSHARD0\n1F0,1B0\n", "\"0UNSHARD0\": expected a stage"},
        {"0F0,0B0,0SEND_F1\n1F0,1B0\n", "\"0SEND_F1\": expected a stage"},
        {"0F0,0B0,0SEND_\n1F0,1B0\n", "\"0SEND_\": expected a stage"},
        {"(0F0;0B0)\n1F0,1B0\n", "\"(0F0;0B0)\": expected a pair as (0F1;1B0)OVERLAP_F_B"},
        {"(\n1F0,1B0\n", "column 1, \"(\": expected a pair"},
        {"(0F0,0B0)OVERLAP_F_B\n1F0,1B0\n", "column 1, \"(0F0\": expected a pair"},
        {"(0F0 0B0)OVERLAP_F_B\n1F0,1B0\n", ": expected a pair"},
        {"(0F0;)OVERLAP_F_B\n1F0,1B0\n", ": expected a stage below 2"},
        {"(0F0;0UNSHARD)OVERLAP_F_B,0B0\n1F0,1B0\n", ": a pair is a forward and a backward"},
        {"(0F0;0B0)OVERLAP_F_B\n1F0,1B0\n", "and a backward of another stage or micro-batch"},
        {"0F0,(0I0;0W0)OVERLAP_F_B\n1F0,1B0\n", "column 2, \"(0I0;0W0)OVERLAP_F_B\": a pair is"},
        {"0F0,0B1\n1F0,1B0\n", "and a micro-batch below 1"},
        {"00F0\n1F0,1B0\n", "line 1, column 1, \"00F0\""},
        {"0F0x,0B0\n1F0,1B0\n", "\"0F0x\""},
    };
    weft_order read[2];
    weft_arena arena = {0};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        FAILS(weft_order_parse(cases[c].text, &shape, &arena, read), WEFT_CONFIG, cases[c].error);
    const weft_order_shape two = {2, 1, 2, 0, false, false};
    FAILS(weft_order_parse("0F1,0B1,0F0,0B0\n1F0,1B0,1F1,1B1\n", &two, &arena, read), WEFT_CONFIG,
          "rank 0 stands at 0B1 (line 1, column 2) and waits for 1B1 of rank 1, rank 1 "
          "stands at 1F0 (line 2, column 1) and waits for 0F0 of rank 0");
    OK(weft_order_parse("0F0, ,0B0,\r\n,1F0,1B0", &shape, &arena, read));
    OK(weft_order_parse("\xef\xbb\xbf\n0F0,0B0\r\n \r\n1F0,1B0\n\n", &shape, &arena, read));
    weft_arena_release(&arena);
}

/* The same order of one rank, in either of the dialects of PyTorch's files, with and without what
 * its lowering adds. A merged whole backward is a whole one. */
CASE(csv_dialects)
{
    static const char *const texts[] = {
        "0F0,0F1,0I0,0W0,0F2,0B1,(0F3;0B2)OVERLAP_F_B,0I3,0W3\n",
        "0F0,0F1,,0B0,0W0, ,0F2,0BW1,(0F3;0BW2)OVERLAP_F_B,0B3,0W3\n",
        ("0UNSHARD,0F0,0SEND_F0,0F1,0WAIT_SEND_F0,0RECV_B0,0B0,0W0,0F2,0RECV_F2,0B1,"
         "(0F3;0B2)OVERLAP_F_B,0I3,0SEND_B3,0W3,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"),
    };
    const weft_order_shape shape = {.num_ranks = 1, .num_chunks = 1, .num_micro_batches = 4};
    weft_arena arena = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        weft_order read[1];
        OK(weft_order_parse(texts[i], &shape, &arena, read));
        assert_int_equal(read[0].columns[read[0].count - 1] >= 9, 1);
        char *text = order_text(&shape, read);
        assert_string_equal(text, texts[0]);
        free(text);
    }
    weft_arena_release(&arena);
}

CASE(csv_layouts)
{
    assert_true(weft_order_text_is_v("0F0,3F0\n1F0,2F0\n", 2));
    assert_true(weft_order_text_is_v("\xef\xbb\xbf"
                                     "0F0\r\n\n,(1F0;2B0)OVERLAP_F_B\n",
                                     2));
    assert_false(weft_order_text_is_v("0F0,2F0\n1F0,3F0\n", 2));
    assert_false(weft_order_text_is_v("0F0,1F0\n", 1));
    assert_false(weft_order_text_is_v("0F0\n1F0\n", 2));
    assert_false(weft_order_text_is_v("x,99999999999999999999F0,\n", 2));
    assert_false(weft_order_text_is_v("", 2));
}

/* Print and parse are inverses. */
CASE(csv_round_trips)
{
    uint64_t random = 3;
    for (int draw = 0; draw < NUM_DRAWS; draw++) {
        const weft_pipeline_kind kind =
            (weft_pipeline_kind)next_random(&random, WEFT_PIPELINE_AUTO);
        const bool is_v = weft_pipeline_kind_is_v((int)kind);
        const weft_order_shape shape = {.num_ranks = 1 + (int)next_random(&random, 4),
                                        .num_chunks = is_v ? 2 : 2 + (int)next_random(&random, 2),
                                        .num_micro_batches = 1 + (int)next_random(&random, 12),
                                        .is_v = is_v};
        weft_arena arena = {0};
        weft_order made[MAX_STAGES], read[MAX_STAGES];
        OK(weft_order_make(kind, &shape, &arena, made));
        char *text = order_text(&shape, made), *again;
        assert_true(weft_order_text_is_v(text, shape.num_ranks) == (is_v && shape.num_ranks > 1));
        OK(weft_order_parse(text, &shape, &arena, read));
        assert_true(same_orders(&shape, made, read));
        again = order_text(&shape, read);
        assert_string_equal(text, again);
        free(text);
        free(again);
        weft_arena_release(&arena);
    }
}
