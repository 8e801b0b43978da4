/* The gate with a clock made up here: no MPI, no threads. */

#include "comm/mpi/gate.h"
#include "tests/core/check.h"

enum {
    SMALL = 8,
    BULK = 9,
    HOLD = 1000,
    QUIET = 300,
    STALL = 5000,
    WINDOW = 256,
    INNER_WINDOW = 1024
};

static const weft_gate_limits limits = {
    .small_bytes = SMALL,
    .window_bytes = {[WEFT_GATE_INSIDE] = INNER_WINDOW, [WEFT_GATE_BETWEEN] = WINDOW},
    .hold_ns = HOLD,
    .quiet_ns = QUIET,
    .stall_ns = STALL,
};
static const weft_gate_link between = WEFT_GATE_BETWEEN, within = WEFT_GATE_INSIDE;

static weft_gate_pass enter(weft_gate *gate, weft_comm_purpose purpose)
{
    weft_gate_pass pass;
    weft_gate_enter(&pass, gate, &limits, purpose);
    return pass;
}

CASE(test_urgent_is_free)
{
    for (int purpose = WEFT_PURPOSE_CONTROL; purpose <= WEFT_PURPOSE_EXPERT; purpose++) {
        weft_gate gate = {0};
        weft_gate_pass more_urgent = enter(&gate, WEFT_PURPOSE_CONTROL);
        weft_gate_pass pass = enter(&gate, (weft_comm_purpose)purpose);
        weft_gate_await(&more_urgent, between, BULK, 0);
        for (uint64_t i = 0; i < 100; i++) {
            assert_int_equal(weft_gate_queue(&pass, between, BULK, 0), i);
            assert_true(weft_gate_admit(&pass, between, i, 10 * WINDOW, 0));
        }
    }
}

CASE(test_window)
{
    weft_gate gate = {0};
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_DATA);
    for (int i = 0; i < 6; i++)
        weft_gate_queue(&pass, between, BULK, 0);
    assert_true(weft_gate_admit(&pass, between, 0, WINDOW / 2, 1));
    assert_true(weft_gate_admit(&pass, between, 1, WINDOW / 2, 2));
    assert_false(weft_gate_admit(&pass, between, 2, WINDOW / 2, 3));
    weft_gate_end(&pass, between, WINDOW / 2, 4);
    assert_true(weft_gate_admit(&pass, between, 2, WINDOW / 2, 5));
    assert_false(weft_gate_admit(&pass, between, 3, BULK, 6));
    weft_gate_end(&pass, between, WINDOW / 2, 7);
    /* More than a window waits until nothing else is in flight. */
    assert_false(weft_gate_admit(&pass, between, 3, 2 * WINDOW, 8));
    weft_gate_end(&pass, between, WINDOW / 2, 9);
    assert_true(weft_gate_admit(&pass, between, 3, 2 * WINDOW, 10));
    assert_false(weft_gate_admit(&pass, between, 4, BULK, 11));
    /* The other link, and another operation, have windows of their own. */
    assert_int_equal(weft_gate_queue(&pass, within, BULK, 12), 0);
    assert_true(weft_gate_admit(&pass, within, 0, INNER_WINDOW, 12));
    weft_gate_pass other = enter(&gate, WEFT_PURPOSE_DATA);
    weft_gate_queue(&other, between, BULK, 13);
    assert_true(weft_gate_admit(&other, between, 0, WINDOW, 13));
}

/* Between nodes all operations share the window, but for a message each; inside each has its own.
 */
CASE(test_shared_window)
{
    for (weft_gate_link link = 0; link < WEFT_GATE_LINKS; link++) {
        weft_gate gate = {0};
        size_t window = limits.window_bytes[link];
        weft_gate_pass one = enter(&gate, WEFT_PURPOSE_DATA);
        weft_gate_pass other = enter(&gate, WEFT_PURPOSE_DATA);
        for (int i = 0; i < 3; i++) {
            weft_gate_queue(&one, link, window / 2, 0);
            weft_gate_queue(&other, link, window / 2, 0);
        }
        assert_true(weft_gate_admit(&one, link, 0, window / 2, 0));
        assert_true(weft_gate_admit(&one, link, 1, window / 2, 0));
        assert_true(weft_gate_admit(&other, link, 0, window / 2, 0));
        bool passed = weft_gate_admit(&other, link, 1, window / 2, 0);
        assert_true(passed == (link == within));
        weft_gate_end(&one, link, window / 2, 0);
        weft_gate_end(&one, link, window / 2, 0);
        assert_true(passed || weft_gate_admit(&other, link, 1, window / 2, 0));
    }
}

CASE(test_order)
{
    weft_gate gate = {0};
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_PIPELINE);
    for (int i = 0; i < 3; i++)
        weft_gate_queue(&pass, between, BULK, 0);
    assert_false(weft_gate_admit(&pass, between, 1, BULK, 1));
    assert_true(weft_gate_admit(&pass, between, 0, WINDOW, 1));
    /* The second does not fit, and is not overtaken by one that would. */
    assert_false(weft_gate_admit(&pass, between, 1, WINDOW, 2));
    assert_false(weft_gate_admit(&pass, between, 2, SMALL, 2));
}

/* An exchange that moves all the time holds the background for HOLD, which then sends a window. */
CASE(test_hold_is_bounded)
{
    weft_gate gate = {0};
    weft_gate_pass urgent = enter(&gate, WEFT_PURPOSE_EXPERT);
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_DATA);
    int64_t admitted[8];
    int num_admitted = 0;
    weft_gate_await(&urgent, between, BULK, 0);
    for (int i = 0; i < 8; i++)
        weft_gate_queue(&pass, between, BULK, 0);
    for (int64_t now = 1; now < 10 * HOLD && num_admitted < 8; now++) {
        if (now % (QUIET - 1) == 0) {
            weft_gate_await(&urgent, between, BULK, now);
            weft_gate_arrive(&urgent, between, BULK, now);
        }
        if (weft_gate_admit(&pass, between, (uint64_t)num_admitted, WINDOW / 2, now)) {
            admitted[num_admitted++] = now;
            weft_gate_end(&pass, between, WINDOW / 2, now);
        }
    }
    assert_int_equal(num_admitted, 8);
    for (int i = 0; i < 8; i++)
        assert_in_range(admitted[i], (i / 2 + 1) * HOLD, (i / 2 + 1) * HOLD + 8);
    /* It ends: nobody is held. */
    weft_gate_arrive(&urgent, between, BULK, 10 * HOLD);
    for (int i = 8; i < 12; i++) {
        assert_int_equal(weft_gate_queue(&pass, between, BULK, 10 * HOLD), i);
        assert_true(weft_gate_admit(&pass, between, (uint64_t)i, WINDOW / 4, 10 * HOLD));
    }
}

CASE(test_who_holds_whom)
{
    for (int a = 0; a < WEFT_NUM_PURPOSES; a++)
        for (int b = 0; b < WEFT_NUM_PURPOSES; b++)
            for (int link = 0; link < WEFT_GATE_LINKS; link++) {
                weft_gate gate = {0};
                weft_gate_pass first = enter(&gate, (weft_comm_purpose)a);
                weft_gate_pass second = enter(&gate, (weft_comm_purpose)b);
                weft_gate_queue(&first, between, BULK, 0);
                assert_true(weft_gate_admit(&first, between, 0, BULK, 0));
                weft_gate_queue(&second, (weft_gate_link)link, BULK, 1);
                bool held = !weft_gate_admit(&second, (weft_gate_link)link, 0, BULK, 1);
                assert_int_equal(held, b > WEFT_PURPOSE_EXPERT && a < b && link == between);
                /* Traffic that stands still holds nobody. */
                if (held)
                    assert_true(weft_gate_admit(&second, (weft_gate_link)link, 0, BULK, QUIET));
            }
}

/* A full window that nobody empties lets one message pass now and then. */
CASE(test_stall)
{
    weft_gate gate = {0};
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_DATA);
    for (int i = 0; i < 4; i++)
        weft_gate_queue(&pass, between, BULK, 0);
    assert_true(weft_gate_admit(&pass, between, 0, WINDOW, 10));
    assert_false(weft_gate_admit(&pass, between, 1, WINDOW, 10));
    assert_false(weft_gate_admit(&pass, between, 1, WINDOW, 10 + STALL - 1));
    assert_true(weft_gate_admit(&pass, between, 1, WINDOW, 10 + STALL));
    assert_false(weft_gate_admit(&pass, between, 2, WINDOW, 10 + STALL));
    assert_false(weft_gate_admit(&pass, between, 2, WINDOW, 10 + 2 * STALL - 1));
    assert_true(weft_gate_admit(&pass, between, 2, WINDOW, 10 + 2 * STALL));
    /* Waiting for room does not count as being held. */
    weft_gate_pass urgent = enter(&gate, WEFT_PURPOSE_EXPERT);
    int64_t now = 20 + 2 * STALL;
    assert_false(weft_gate_admit(&pass, between, 3, WINDOW, now));
    for (int i = 0; i < 3; i++)
        weft_gate_end(&pass, between, WINDOW, now + HOLD);
    weft_gate_await(&urgent, between, BULK, now + HOLD);
    assert_false(weft_gate_admit(&pass, between, 3, WINDOW, now + HOLD));
    weft_gate_arrive(&urgent, between, BULK, now + HOLD);
    assert_true(weft_gate_admit(&pass, between, 3, WINDOW, now + HOLD));
}

/* Neither held nor holding, but in order. */
CASE(test_small_messages)
{
    weft_gate gate = {0};
    weft_gate_pass urgent = enter(&gate, WEFT_PURPOSE_EXPERT);
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_DATA);
    weft_gate_await(&urgent, between, SMALL, 0);
    weft_gate_queue(&urgent, between, SMALL, 0);
    assert_true(weft_gate_admit(&urgent, between, 0, SMALL, 0));
    weft_gate_queue(&pass, between, WINDOW, 1);
    assert_true(weft_gate_admit(&pass, between, 0, WINDOW, 1));
    weft_gate_queue(&pass, between, SMALL, 2);
    assert_true(weft_gate_admit(&pass, between, 1, SMALL, 2));
    weft_gate_queue(&pass, between, BULK, 3);
    weft_gate_queue(&pass, between, SMALL, 3);
    assert_false(weft_gate_admit(&pass, between, 2, BULK, 3));
    assert_false(weft_gate_admit(&pass, between, 3, SMALL, 3));
    weft_gate_end(&pass, between, SMALL, 4);
    assert_false(weft_gate_admit(&pass, between, 2, BULK, 4));
    weft_gate_end(&pass, between, WINDOW, 5);
    assert_true(weft_gate_admit(&pass, between, 2, BULK, 5));
    assert_true(weft_gate_admit(&pass, between, 3, SMALL, 5));
}

/* What sends nothing holds nobody; what sends too holds until all has come. */
CASE(test_only_receives)
{
    weft_gate gate = {0}, empty = {0};
    weft_gate_pass urgent = enter(&gate, WEFT_PURPOSE_EXPERT);
    weft_gate_pass receiver = enter(&gate, WEFT_PURPOSE_TENSOR);
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_DATA);
    weft_gate_only_receives(&receiver);
    weft_gate_await(&receiver, between, BULK, 0);
    weft_gate_await(&urgent, between, BULK, 0);
    weft_gate_queue(&urgent, between, BULK, 0);
    assert_true(weft_gate_admit(&urgent, between, 0, BULK, 0));
    weft_gate_queue(&pass, between, BULK, 0);
    assert_false(weft_gate_admit(&pass, between, 0, BULK, 0));
    weft_gate_end(&urgent, between, BULK, 0);
    assert_false(weft_gate_admit(&pass, between, 0, BULK, 0));
    weft_gate_arrive(&urgent, between, BULK, 0);
    assert_true(weft_gate_admit(&pass, between, 0, BULK, 0));
    weft_gate_arrive(&receiver, between, BULK, 0);
    weft_gate_end(&pass, between, BULK, 0);
    weft_gate_leave(&urgent);
    assert_memory_equal(&gate, &empty, sizeof gate);
}

CASE(test_leave)
{
    weft_gate gate = {0}, empty = {0};
    weft_gate_pass urgent = enter(&gate, WEFT_PURPOSE_TENSOR);
    weft_gate_pass pass = enter(&gate, WEFT_PURPOSE_CONTEXT);
    weft_gate_queue(&urgent, between, BULK, 0);
    weft_gate_queue(&urgent, between, BULK, 0);
    weft_gate_await(&urgent, between, BULK, 0);
    assert_true(weft_gate_admit(&urgent, between, 0, BULK, 0));
    weft_gate_queue(&pass, between, BULK, 0);
    assert_false(weft_gate_admit(&pass, between, 0, BULK, 0));
    weft_gate_leave(&urgent);
    assert_true(weft_gate_admit(&pass, between, 0, BULK, 0));
    weft_gate_leave(&pass);
    assert_memory_equal(&gate, &empty, sizeof gate);
}

/* Random traffic: no window is exceeded, nobody waits for more than all that is before it may take,
 * and everything gets through. */
CASE(test_random)
{
    enum { NUM = 12, SENDS = 60, FLIGHT = 150 };
    uint64_t x = 12345;
    for (int repeat = 0; repeat < 15; repeat++) {
        weft_gate gate = {0};
        weft_gate_pass passes[NUM];
        size_t bytes[NUM][SENDS];
        int64_t ends[NUM][SENDS], since[NUM] = {0};
        uint64_t next[NUM] = {0};
        int num_done = 0;
        for (int i = 0; i < NUM; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            passes[i] = enter(&gate, (weft_comm_purpose)(x >> 33) % WEFT_NUM_PURPOSES);
            for (int k = 0; k < SENDS; k++) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                bytes[i][k] = (x >> 40) % (WINDOW + WINDOW / 4);
                ends[i][k] = -1;
                weft_gate_queue(&passes[i], between, bytes[i][k], 0);
            }
        }
        for (int64_t now = 0; num_done < NUM * SENDS; now++) {
            assert_in_range(now, 0, NUM * SENDS * HOLD);
            for (int i = 0; i < NUM; i++) {
                weft_gate_pass *pass = &passes[i];
                for (uint64_t k = 0; k < next[i]; k++)
                    if (ends[i][k] == now) {
                        weft_gate_end(pass, between, bytes[i][k], now);
                        num_done++;
                    }
                while (next[i] < SENDS &&
                       weft_gate_admit(pass, between, next[i], bytes[i][next[i]], now)) {
                    x = x * 6364136223846793005u + 1442695040888963407u;
                    ends[i][next[i]++] = now + 1 + (int64_t)((x >> 40) % FLIGHT);
                    since[i] = now;
                }
                if (next[i] < SENDS)
                    assert_in_range(now - since[i], 0, HOLD + 2 * FLIGHT);
                size_t in_flight = 0;
                int num_in_flight = 0;
                for (uint64_t k = 0; k < next[i]; k++)
                    if (ends[i][k] > now && bytes[i][k] > SMALL) {
                        in_flight += bytes[i][k];
                        num_in_flight++;
                    }
                if (weft_gate_is_background(pass->purpose))
                    assert_true(in_flight <= WINDOW || num_in_flight == 1);
            }
        }
    }
}
