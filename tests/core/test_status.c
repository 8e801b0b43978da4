#include <pthread.h>

#include "tests/core/check.h"

static weft_status innermost(int n)
{
    return WEFT_ERROR(WEFT_FILE, "corpus.idx: %d bytes are missing", n);
}

static weft_status middle(int n)
{
    WEFT_TRY(innermost(n));
    return WEFT_OK;
}

static weft_status deep(int levels)
{
    if (levels == 0)
        return WEFT_ERROR(WEFT_COMM, "bottom");
    WEFT_TRY(deep(levels - 1));
    return WEFT_OK;
}

CASE(frames_follow_the_way_up)
{
    weft_error_clear();
    assert_int_equal(weft_error_get()->status, WEFT_OK);
    assert_int_equal(middle(7), WEFT_FILE);
    const weft_error *error = weft_error_get();
    assert_int_equal(error->status, WEFT_FILE);
    assert_string_equal(error->text, "corpus.idx: 7 bytes are missing");
    assert_int_equal(error->num_frames, 2);
    assert_string_equal(error->frames[0].function, "innermost");
    assert_string_equal(error->frames[1].function, "middle");
    assert_true(error->frames[1].line > error->frames[0].line);
    assert_non_null(strstr(error->frames[0].file, "test_status.c"));
}

CASE(only_the_first_frames_are_kept)
{
    assert_int_equal(deep(40), WEFT_COMM);
    assert_int_equal(weft_error_get()->num_frames, WEFT_ERROR_MAX_FRAMES);
    assert_string_equal(weft_error_get()->text, "bottom");
}

CASE(a_new_error_replaces_the_record)
{
    assert_int_equal(middle(1), WEFT_FILE);
    /* The old text may be an argument of the new one. */
    assert_int_equal(WEFT_ERROR(WEFT_CONFIG, "wrapped <%s>", weft_error_get()->text), WEFT_CONFIG);
    assert_string_equal(weft_error_get()->text, "wrapped <corpus.idx: 1 bytes are missing>");
    assert_int_equal(weft_error_get()->num_frames, 1);
}

CASE(context_goes_before_the_text)
{
    assert_int_equal(weft_error_context(middle(3), "layer %d %s", 12, "moe"), WEFT_FILE);
    assert_string_equal(weft_error_get()->text, "layer 12 moe: corpus.idx: 3 bytes are missing");
    weft_error_clear();
    assert_int_equal(weft_error_context(WEFT_OK, "nothing happened"), WEFT_OK);
    assert_int_equal(weft_error_get()->status, WEFT_OK);
}

CASE(a_long_text_is_cut_not_overrun)
{
    char longer[2 * WEFT_ERROR_TEXT_BYTES];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)WEFT_ERROR(WEFT_FILE, "%s", longer);
    assert_int_equal(strlen(weft_error_get()->text), WEFT_ERROR_TEXT_BYTES - 1);
    (void)weft_error_context(WEFT_FILE, "rank 3");
    assert_int_equal(strlen(weft_error_get()->text), WEFT_ERROR_TEXT_BYTES - 1);
    assert_memory_equal(weft_error_get()->text, "rank 3: xxxx", 12);
    (void)weft_error_context(WEFT_FILE, "%s", longer);
    assert_true(strlen(weft_error_get()->text) < WEFT_ERROR_TEXT_BYTES);
}

/* Names and values that a user gave may hold anything. */
CASE(a_text_is_one_line)
{
    (void)WEFT_ERROR(WEFT_FILE, "%s: is\tnot", "a\nb\r\x1b[31m\x7f\xc3\xa9");
    assert_string_equal(weft_error_get()->text, "a b  [31m \xc3\xa9: is not");
    (void)weft_error_context(WEFT_FILE, "--set %s", "x=\n1");
    assert_string_equal(weft_error_get()->text, "--set x= 1: a b  [31m \xc3\xa9: is not");
    (void)WEFT_KEY_ERROR("train.lr", "\n");
    assert_string_equal(weft_error_get()->text, "train.lr:  ");
}

CASE(a_status_without_a_record_gets_one)
{
    weft_error_clear();
    assert_int_equal(weft_error_frame("a.c", 4, "f", WEFT_MEMORY), WEFT_MEMORY);
    assert_int_equal(weft_error_get()->status, WEFT_MEMORY);
    assert_string_equal(weft_error_get()->text, "out of memory");
    weft_error_clear();
    assert_int_equal(weft_error_context(WEFT_DEVICE, "gpu 1"), WEFT_DEVICE);
    assert_string_equal(weft_error_get()->text, "gpu 1: device call failed");
}

static void *fail_elsewhere(void *arg)
{
    if (middle(9) == WEFT_FILE)
        weft_error_take(arg);
    return weft_error_get()->status == WEFT_OK ? arg : NULL;
}

CASE(records_travel_between_threads)
{
    weft_error carried;
    pthread_t thread;
    void *emptied;
    weft_error_clear();
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &carried), 0);
    assert_int_equal(pthread_join(thread, &emptied), 0);
    assert_non_null(emptied);                            /* take leaves nothing behind */
    assert_int_equal(weft_error_get()->status, WEFT_OK); /* records are a thread's own */
    assert_int_equal(weft_error_put(&carried), WEFT_FILE);
    assert_string_equal(weft_error_get()->text, "corpus.idx: 9 bytes are missing");
    assert_int_equal(weft_error_get()->num_frames, 2);
}

CASE(what_is_unknown_is_no_word_of_the_text)
{
    weft_error carried;
    (void)weft_error_unknown(middle(5));
    assert_true(weft_error_get()->is_unknown);
    weft_error_take(&carried);
    assert_false(weft_error_get()->is_unknown);
    (void)weft_error_put(&carried);
    assert_true(weft_error_get()->is_unknown);
    assert_int_equal(middle(5), WEFT_FILE);
    assert_false(weft_error_get()->is_unknown);
}

CASE(a_record_has_the_key_it_is_about)
{
    weft_error carried;
    assert_int_equal(WEFT_KEY_ERROR("train.lr", "%g is below %s", 0.5, "min_lr"), WEFT_CONFIG);
    assert_string_equal(weft_error_get()->text, "train.lr: 0.5 is below min_lr");
    assert_string_equal(weft_error_get()->key, "train.lr");
    assert_string_equal(weft_error_get()->frames[0].function, "a_record_has_the_key_it_is_about");
    (void)weft_error_context(WEFT_CONFIG, "layer 2");
    assert_string_equal(weft_error_get()->text, "layer 2: train.lr: 0.5 is below min_lr");
    weft_error_take(&carried);
    assert_string_equal(weft_error_get()->key, "");
    (void)weft_error_put(&carried);
    assert_string_equal(weft_error_get()->key, "train.lr");

    (void)WEFT_KEY_ERROR("parallel.order", " '%s': twice", "tp-tp");
    assert_string_equal(weft_error_get()->text, "parallel.order 'tp-tp': twice");
    assert_int_equal(middle(5), WEFT_FILE); /* a new record is about no key */
    assert_string_equal(weft_error_get()->key, "");
    assert_int_equal(weft_error_key(WEFT_OK, "data.data_path"), WEFT_OK);
    assert_string_equal(weft_error_get()->key, "");
    assert_int_equal(weft_error_key(WEFT_CONFIG, "data.data_path"), WEFT_CONFIG);
    assert_int_equal(weft_error_get()->status, WEFT_CONFIG);
    assert_string_equal(weft_error_get()->text, "data.data_path: corpus.idx: 5 bytes are missing");
    assert_string_equal(weft_error_get()->key, "data.data_path");
}

CASE(a_record_has_the_rank_it_comes_from)
{
    assert_int_equal(weft_error_of_rank(middle(4), 12), WEFT_FILE);
    assert_string_equal(weft_error_get()->text, "rank 12: corpus.idx: 4 bytes are missing");
    assert_int_equal(weft_error_get()->found_by, 12);
    assert_string_equal(weft_error_get()->text + weft_error_get()->own_at,
                        "corpus.idx: 4 bytes are missing");
    (void)weft_error_of_rank(WEFT_FILE, 0); /* it was agreed on before */
    assert_string_equal(weft_error_get()->text, "rank 12: corpus.idx: 4 bytes are missing");
    assert_int_equal(weft_error_get()->found_by, 12);
    (void)weft_error_context(WEFT_FILE, "step 2"); /* in front of the rank: all of it is said */
    assert_int_equal(weft_error_get()->own_at, 0);
    (void)weft_error_of_rank(WEFT_FILE, 3);
    assert_int_equal(middle(4), WEFT_FILE);
    assert_int_equal(weft_error_get()->own_at, 0);
}

CASE(exit_codes_and_texts)
{
    assert_int_equal(weft_status_exit_code(WEFT_OK), 0);
    assert_int_equal(weft_status_exit_code(WEFT_CONFIG), 2);
    assert_int_equal(weft_status_exit_code(WEFT_INTERNAL), 7);
    assert_int_equal(weft_status_exit_code(WEFT_DIVERGED), 8);
    assert_string_equal(weft_status_text(WEFT_COMM), "communication failed");
    assert_int_equal(weft_status_exit_code((weft_status)99), 7);
}
