/* The row of a value that a user gives: a key of the config, or a verb's option, which adds where
 * the value goes (launcher/arguments/arguments.h). It is an option's row (<weft/options.h>) and, as
 * columns, what else Weft has to know of it. One row says all; CONTRIBUTING.md shows how to add
 * one. core/key_rows.h and launcher/arguments/rows.h write rows in short. */
#ifndef WEFT_CORE_KEY_H
#define WEFT_CORE_KEY_H

#include <weft/options.h>

/* What it means that a run which is resumed gives a key another value. A step's programs and
 * memory follow from the key or not: plans are compared with runs of the same step. */
typedef enum weft_resume {
    WEFT_RESUME_UNSAID,  /* of an application's keys: as STEP; Weft's own say it, by a test */
    WEFT_RESUME_FREE,    /* the run goes on, with the same step */
    WEFT_RESUME_STEP,    /* the run goes on, with another step */
    WEFT_RESUME_ABOVE_0, /* with another step if one of the two values is 0 */
    WEFT_RESUME_SIZE,    /* of the mesh: steps are compared by their meshes */
    WEFT_RESUME_CHOICE,  /* as STEP; left open, it stays what the run chose */
    WEFT_RESUME_RUN,     /* another run, which --allow-change asks for, of the same step */
    WEFT_RESUME_TASK,    /* another run of another step */
    WEFT_RESUME_STATE,   /* as TASK, which nothing allows: a checkpoint's state is of one value */
    WEFT_RESUME_SHAPES,  /* as TASK; another model where parameters have other shapes by it */
} weft_resume;

/* What the search for the best plan varies (launcher/searching); what of it the command's line
 * gives, the search leaves as it is. */
typedef enum weft_searched {
    WEFT_SEARCHED_NOT,
    WEFT_SEARCHED_TP,
    WEFT_SEARCHED_CP,
    WEFT_SEARCHED_PP,
    WEFT_SEARCHED_DP,
    WEFT_SEARCHED_EP,
    WEFT_SEARCHED_ETP,
    WEFT_SEARCHED_BINDING,
    WEFT_SEARCHED_ORDER,
    WEFT_SEARCHED_SEQUENCE,
    WEFT_SEARCHED_ZERO,
    WEFT_SEARCHED_SCHEDULE,
    WEFT_SEARCHED_CHUNKS,
    WEFT_SEARCHED_LAYOUT,
    WEFT_SEARCHED_MICRO_BATCH,
    WEFT_SEARCHED_RECOMPUTE,
    WEFT_SEARCHED_OFFLOAD,
    WEFT_SEARCHED_CONTEXT,
    WEFT_SEARCHED_OVERLAP,
    WEFT_SEARCHED_PARTITIONS,
    WEFT_SEARCHED_REUSE,
    WEFT_SEARCHED_EXCHANGE,
} weft_searched;

typedef struct weft_key {
    const char *key; /* up to help: as in weft_option_row */
    weft_option_type type;
    size_t offset;
    const char *initial;
    double min, max;
    const char *choices, *unit, *help;
    weft_resume resume;
    const char
        *idle; /* when it has no effect: weft_options_reason's reasons; NULL: it always has */
    /* Why a config is refused by it: reasons too, each the text behind the key's value and its
     * test, "would keep no checkpoint (is 0)"; NULL: by no other key's value. */
    const char *refused;
    weft_searched searched;
    const char *alias;        /* its short name in --mesh; NULL: none */
    const char *const *names; /* in place of `choices`, where a table has them; num_names */
    size_t num_names;
} weft_key;

#endif
