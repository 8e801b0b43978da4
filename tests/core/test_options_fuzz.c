/* Damaged config files: an error or a value, never a crash; run it under ASan. */
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "tests/core/check.h"
#include "tests/core/options_sample.h"
#include "tests/core/random.h"

enum { NUM_ROUNDS = 20000, CAPACITY = 1024 };

static const char *const seeds[] = {
    ("{ // c\n \"model\": {\"num_layers\": 3, \"swiglu\": true, \"position\": \"none\","
     " \"layer_freq\": [0, 1]},\n \"train\": {\"lr\": 2.5e-4, \"name\": "
     "\"a\\u00e9\\ud83d\\ude42\"}}"),
    ("{\"train\": {\"seed\": 9223372036854775807, \"blend\": [0.30, \"x\"], \"tags\": \"one\","
     " \"data_path\": null, \"num_steps\": \"17\"}}"),
    ("{\"model\": {/* a */\"kind\": \"dense\", \"num_query_groups\": 2.0e1}}"),
};
static const char *const pieces[] = {"{",  "}",    "[",     "]",   "\"",      ",",      ":",   "\\",
                                     "//", "/*",   "*/",    "e99", "\\ud83d", "null",   "-",   "0",
                                     "\n", "true", "1e999", ".",   "\xc3",    "\"lr\"", "\x01"};

static uint64_t random_state = 20240611;

/* Deletes, inserts, repeats or changes a few bytes. */
static void mutate(char text[CAPACITY])
{
    for (uint32_t i = 1 + next_random(4); i > 0; i--) {
        size_t bytes = strlen(text), at = next_random((uint32_t)bytes + 1);
        size_t cut = next_random(8), tail;
        char piece[32];
        snprintf(piece, sizeof(piece), "%s", pieces[next_random(sizeof pieces / sizeof *pieces)]);
        switch (next_random(5)) {
        case 0:
            piece[0] = '\0';
            break;
        case 1:
            cut = 0;
            break;
        case 2:
            snprintf(piece, sizeof(piece), "%.20s", text + next_random((uint32_t)bytes + 1));
            break;
        case 3:
            snprintf(piece, sizeof(piece), "%c", (int)(1 + next_random(255)));
            cut = 1;
            break;
        default:
            break;
        }
        cut = cut > bytes - at ? bytes - at : cut;
        tail = bytes - at - cut;
        if (at + strlen(piece) + tail >= CAPACITY)
            continue;
        memmove(text + at + strlen(piece), text + at + cut, tail + 1);
        memcpy(text + at, piece, strlen(piece));
    }
}

/* What is taken must be JSON to another parser too, and must survive being written. */
static void check_accepted(const char *text, sample *s, weft_arena *arena)
{
    char copy[CAPACITY];
    bool has_mark = strncmp(text, "\xef\xbb\xbf", 3) == 0;
    snprintf(copy, sizeof(copy), "%s", text + (has_mark ? 3 : 0));
    cJSON_Minify(copy);
    cJSON *other = cJSON_ParseWithOpts(copy, NULL, 1);
    if (!other)
        fail_msg("cJSON refuses %s", text);
    cJSON_Delete(other);
    sample again;
    char *first = sample_written(s);
    OK(sample_parse(&again, arena, first, NULL));
    char *second = sample_written(&again);
    assert_string_equal(first, second);
    free(first);
    free(second);
}

CASE(damage_never_crashes)
{
    weft_arena arena = {0};
    int accepted = 0, refused = 0;
    for (int round = 0; round < NUM_ROUNDS; round++) {
        char text[CAPACITY];
        sample s;
        snprintf(text, sizeof(text), "%s", seeds[next_random(sizeof seeds / sizeof *seeds)]);
        mutate(text);
        /* A copy of the exact size, so that reading past its end is seen. */
        char *exact = strdup(text);
        weft_arena_reset(&arena);
        bool as_override = next_random(4) == 0;
        weft_status status =
            sample_parse(&s, &arena, as_override ? NULL : exact, as_override ? exact : NULL);
        int line, column;
        (void)weft_options_locate(exact, "train.lr", &line, &column);
        if (status == WEFT_OK) {
            accepted++;
            if (!as_override)
                check_accepted(exact, &s, &arena);
        } else {
            refused++;
            assert_int_equal(status, WEFT_CONFIG);
            assert_true(strlen(weft_error_get()->text) > 10);
            assert_null(strchr(weft_error_get()->text, '\n'));
        }
        free(exact);
    }
    weft_arena_release(&arena);
    /* Both ways through must have been seen, or the mutations are of no use. */
    assert_true(accepted > NUM_ROUNDS / 100);
    assert_true(refused > NUM_ROUNDS / 2);
}

int main(void)
{
    return run_cases(NULL, NULL);
}
