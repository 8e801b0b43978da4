#include <unistd.h>

#include "core/log.h"
#include "tests/core/check.h"

static char captured[8192];
static int kept_stderr, pipe_ends[2];

static void capture_begin(void)
{
    kept_stderr = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipe_ends), 0);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[1]);
}

static const char *capture_end(void)
{
    dup2(kept_stderr, STDERR_FILENO); /* closes the last writing end */
    close(kept_stderr);
    size_t length = 0;
    ssize_t got;
    while ((got = read(pipe_ends[0], captured + length, sizeof captured - 1 - length)) > 0)
        length += (size_t)got;
    close(pipe_ends[0]);
    captured[length] = '\0';
    return captured;
}

CASE(a_line_has_time_rank_level_message)
{
    weft_log_set_rank(3);
    capture_begin();
    weft_log(WEFT_LOG_WARN, "device %d is slow", 1);
    const char *line = capture_end();
    int hour, minute, second, milli, end = 0;
    assert_int_equal(sscanf(line, "%2d:%2d:%2d.%3d rank 3 warn device 1 is slow%n", &hour, &minute,
                            &second, &milli, &end),
                     4);
    assert_true(end > 0);
    assert_string_equal(line + end, "\n");
}

CASE(levels_and_ranks_decide)
{
    weft_log_set_rank(1);
    weft_log_set_level(WEFT_LOG_INFO);
    capture_begin();
    weft_log(WEFT_LOG_INFO, "info of another rank");
    weft_log(WEFT_LOG_DEBUG, "too fine");
    weft_log(WEFT_LOG_ERROR, "error of another rank");
    weft_log_set_level(WEFT_LOG_DEBUG);
    weft_log(WEFT_LOG_DEBUG, "wanted now");
    weft_log_set_rank(0);
    weft_log_set_level(WEFT_LOG_ERROR);
    weft_log(WEFT_LOG_WARN, "no warnings");
    weft_log_set_level(WEFT_LOG_INFO);
    weft_log(WEFT_LOG_INFO, "info of rank 0");
    const char *text = capture_end();
    assert_null(strstr(text, "info of another rank"));
    assert_null(strstr(text, "too fine"));
    assert_non_null(strstr(text, "rank 1 error error of another rank\n"));
    assert_non_null(strstr(text, "rank 1 debug wanted now\n"));
    assert_null(strstr(text, "no warnings"));
    assert_non_null(strstr(text, "rank 0 info info of rank 0\n"));
}

CASE(a_long_line_is_cut_and_ends)
{
    static char longer[4000];
    weft_log_set_rank(0);
    for (size_t length = 1990; length < 2060; length++) {
        memset(longer, 'y', length);
        longer[length] = '\0';
        capture_begin();
        weft_log(WEFT_LOG_WARN, "%s", longer);
        const char *line = capture_end();
        size_t got = strlen(line);
        assert_true(got <= 2048);
        assert_ptr_equal(strchr(line, '\n'), line + got - 1);
        /* "hh:mm:ss.mmm rank 0 warn " and the line's end take 26 bytes. */
        bool whole = strstr(line, longer) != NULL;
        assert_true(whole || strcmp(line + got - 5, "y...\n") == 0);
        assert_true(whole == (length + 26 <= 2048));
    }
}

CASE(the_record_is_one_line_with_frames_at_debug)
{
    weft_log_set_level(WEFT_LOG_INFO);
    (void)WEFT_ERROR(WEFT_CONFIG, "model.num_layers: -1 is below 1");
    capture_begin();
    weft_log_error_record();
    const char *text = capture_end();
    assert_non_null(strstr(text, "rank 0 error model.num_layers: -1 is below 1\n"));
    assert_null(strstr(text, "test_log.c"));
    weft_log_set_level(WEFT_LOG_DEBUG);
    capture_begin();
    weft_log_error_record();
    assert_non_null(strstr(capture_end(), "test_log.c"));
    weft_error_clear();
    capture_begin();
    weft_log_error_record();
    assert_string_equal(capture_end(), "");
}
