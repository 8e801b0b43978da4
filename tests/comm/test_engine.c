/* The progress engine with operations made up here: no MPI is started, so ThreadSanitizer sees
 * all there is. Nothing below locks: the engine promises that one thread at a time advances. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/mpi/engine.h"
#include "tests/core/check.h"

enum { NUM_THREADS = 8, NUM_OPERATIONS = 300, MAX_CALLS = 16 };

typedef struct fake {
    int id;
    int num_needed, num_calls; /* complete at this many calls; by calls so far */
    atomic_int *num_started;   /* a meeting: complete when this many ... */
    int num_meeting;           /* ... have started; 0: none */
    weft_status status;        /* at its end */
    atomic_bool *gate;         /* complete only when this is set */
} fake;

/* Plain memory, touched in advance alone. */
static int calls[MAX_CALLS], num_calls;
static bool inside, recording;
static int num_overlaps;

static weft_status advance(void *operation, bool *out_moved, bool *out_done)
{
    fake *f = operation;
    num_overlaps += inside;
    inside = true;
    if (recording && num_calls < MAX_CALLS)
        calls[num_calls++] = f->id;
    if (f->num_calls++ == 0 && f->num_started)
        atomic_fetch_add(f->num_started, 1);
    *out_moved = f->num_calls == 1;
    *out_done = f->num_calls >= f->num_needed &&
                (!f->num_meeting || atomic_load(f->num_started) >= f->num_meeting) &&
                (!f->gate || atomic_load(f->gate));
    weft_status status = *out_done ? f->status : WEFT_OK;
    inside = false;
    return status == WEFT_OK ? WEFT_OK : WEFT_ERROR(status, "operation %d failed", f->id);
}

typedef struct worker {
    weft_engine *engine;
    int index, num_bad;
    atomic_int *meetings; /* one counter an operation; NULL: none */
    pthread_t thread;
} worker;

/* Many operations a thread, some of which fail; each thread gets its own errors. */
static void *run_many(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < NUM_OPERATIONS; i++) {
        bool fails = (i + w->index) % 10 == 0;
        fake f = {.id = w->index * NUM_OPERATIONS + i,
                  .num_needed = 1 + (i * 7 + w->index) % 5,
                  .status = fails ? WEFT_COMM : WEFT_OK};
        if (w->meetings) {
            f.num_started = &w->meetings[i];
            f.num_meeting = NUM_THREADS;
        }
        weft_status status = weft_engine_run(w->engine, (i * 3 + w->index) % 6, advance, &f);
        char text[64];
        snprintf(text, sizeof text, "operation %d failed", f.id);
        w->num_bad += status != f.status || f.num_calls < f.num_needed;
        w->num_bad += fails && strcmp(weft_error_get()->text, text) != 0;
        weft_error_clear();
    }
    return NULL;
}

static void run_workers(atomic_int *meetings)
{
    weft_engine engine;
    worker workers[NUM_THREADS];
    assert_int_equal(weft_engine_init(&engine), WEFT_OK);
    for (int i = 0; i < NUM_THREADS; i++) {
        workers[i] = (worker){.engine = &engine, .index = i, .meetings = meetings};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, run_many, &workers[i]), 0);
    }
    for (int i = 0; i < NUM_THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].num_bad, 0);
    }
    assert_int_equal(num_overlaps, 0);
    assert_null(engine.incoming);
    assert_null(engine.active);
    assert_false(engine.driven);
    weft_engine_release(&engine);
}

CASE(test_many_threads)
{
    run_workers(NULL);
}

/* Operation i of every thread waits for operation i of all: whoever drives must start what the
 * others bring, whatever its priority. */
CASE(test_none_held_back)
{
    static atomic_int meetings[NUM_OPERATIONS];
    run_workers(meetings);
    for (int i = 0; i < NUM_OPERATIONS; i++)
        assert_int_equal(atomic_load(&meetings[i]), NUM_THREADS);
}

typedef struct gated {
    weft_engine *engine;
    fake operation;
    int priority;
    pthread_t thread;
} gated;

static void *run_gated(void *arg)
{
    gated *g = arg;
    return weft_engine_run(g->engine, g->priority, advance, &g->operation) == WEFT_OK ? NULL : g;
}

static atomic_bool gate;

/* The last to arrive: writes down who is served from here on, and lets all go after some passes. */
static weft_status advance_last(void *operation, bool *out_moved, bool *out_done)
{
    fake *f = operation;
    recording = true;
    if (f->num_calls == 4)
        atomic_store(&gate, true);
    return advance(operation, out_moved, out_done);
}

/* Four operations come in the order 5, 1, 3, 1 (by priority); a pass serves 1, 1, 3, 5, equal ones
 * by arrival. */
CASE(test_priorities)
{
    static const int priorities[4] = {5, 1, 3, 1};
    static atomic_int num_started;
    weft_engine engine;
    gated all[4];
    assert_int_equal(weft_engine_init(&engine), WEFT_OK);
    for (int i = 0; i < 4; i++) {
        all[i] = (gated){.engine = &engine,
                         .operation = {.id = i, .num_started = &num_started, .gate = &gate},
                         .priority = priorities[i]};
        if (i == 3)
            break;
        assert_int_equal(pthread_create(&all[i].thread, NULL, run_gated, &all[i]), 0);
        while (atomic_load(&num_started) < i + 1)
            sched_yield();
    }
    assert_int_equal(weft_engine_run(&engine, 1, advance_last, &all[3].operation), WEFT_OK);
    for (int i = 0; i < 3; i++) {
        void *bad;
        assert_int_equal(pthread_join(all[i].thread, &bad), 0);
        assert_null(bad);
    }
    static const int wanted[9] = {3, 2, 0, 1, 3, 2, 0, 1, 3};
    assert_true(num_calls >= 9);
    for (int i = 0; i < 9; i++)
        assert_int_equal(calls[i], wanted[i]);
    weft_engine_release(&engine);
}
