/* Status codes and the thread-local error record.
 *
 * Every fallible function returns a weft_status. The first function that finds out what went
 * wrong writes the text with WEFT_ERROR; callers pass it on with WEFT_TRY, which adds a frame
 * and never replaces the text. Nobody logs on the way up: the top of the program prints once.
 *
 * A function that gets NULL where its comment does not allow it returns WEFT_INTERNAL and names
 * itself and the argument.
 *
 * The record is thread-local. A lane's thread moves its record out with weft_error_take; the thread
 * that waits for the lane puts it in with weft_error_put. */
#ifndef WEFT_STATUS_H
#define WEFT_STATUS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, process exit code, text */
#define WEFT_STATUS_LIST(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(CONFIG, 2, "bad configuration")                                                              \
    X(MEMORY, 3, "out of memory")                                                                  \
    X(DEVICE, 4, "device call failed")                                                             \
    X(COMM, 5, "communication failed")                                                             \
    X(FILE, 6, "bad file")                                                                         \
    X(INTERNAL, 7, "broken invariant: a bug")                                                      \
    X(DIVERGED, 8, "training diverged")                                                            \
    X(HUNG, 9, "ranks make no more progress")                                                      \
    X(FAULTY, 10, "a rank computes wrongly")

/* The exit code of a run that was told to stop before its end and has saved, to be resumed:
 * EX_TEMPFAIL, which batch systems know. Not a status: nothing failed. */
enum { WEFT_EXIT_STOPPED = 75 };

typedef enum weft_status {
#define WEFT_STATUS_ENUM(name, code, text) WEFT_##name,
    WEFT_STATUS_LIST(WEFT_STATUS_ENUM)
#undef WEFT_STATUS_ENUM
} weft_status;

#if defined(__GNUC__)
#define WEFT_PRINTF(format_index, first_index)                                                     \
    __attribute__((format(printf, format_index, first_index)))
#define WEFT_CHECKED __attribute__((warn_unused_result))
#else
#define WEFT_PRINTF(format_index, first_index)
#define WEFT_CHECKED
#endif

enum { WEFT_ERROR_TEXT_BYTES = 512, WEFT_ERROR_KEY_BYTES = 96, WEFT_ERROR_MAX_FRAMES = 8 };

/* A place in the source that an error passed. */
typedef struct weft_error_where {
    const char *file; /* static strings */
    int line;
    const char *function;
} weft_error_where;

/* What went wrong. Plain data: copyable between threads, fixed size so that running out of
 * memory can be reported too. */
typedef struct weft_error {
    weft_status status;
    char text[WEFT_ERROR_TEXT_BYTES];
    char key[WEFT_ERROR_KEY_BYTES]; /* the config's "section.key" that is wrong; "": none known */
    bool is_unknown; /* of what a file holds that Weft does not know: the file may be good */
    bool is_shared;  /* every rank of a group has this error; `speaker` reports it */
    int speaker;     /* a rank of the world */
    int found_by;    /* where own_at is not 0: the rank of the world whose error it was */
    int own_at;      /* where in text that rank's own words begin, behind "rank 3: "; 0: unknown */
    int num_frames;
    weft_error_where frames[WEFT_ERROR_MAX_FRAMES];
} weft_error;

/* Starts this thread's record: one line, control characters become blanks. Returns `status`. */
weft_status weft_error_set(const char *file, int line, const char *function, weft_status status,
                           const char *format, ...) WEFT_PRINTF(5, 6);
/* Adds a frame to the current record; returns `status`. */
weft_status weft_error_frame(const char *file, int line, const char *function, weft_status status);
/* Starts a WEFT_CONFIG record about a key of the config ("train.min_lr") and returns WEFT_CONFIG.
 * Its text is the key, ": " and the formatted text; the ": " falls away before a blank. */
weft_status weft_error_set_key(const char *file, int line, const char *function, const char *key,
                               const char *format, ...) WEFT_PRINTF(5, 6);
/* Gives the current record `status` and a key, and puts "key: " before its text. Returns `status`.
 */
weft_status weft_error_key(weft_status status, const char *key);
/* Puts "context: " before the record's text, such as "layer 12 moe". Returns `status`. */
weft_status weft_error_context(weft_status status, const char *format, ...) WEFT_PRINTF(2, 3);

/* Notes that the current record is of what a file holds that Weft does not know. Returns `status`.
 */
weft_status weft_error_unknown(weft_status status);
/* Puts "rank 3: " before the text: that rank of the world had the error. A text that begins so
 * already stays. Returns `status`. */
weft_status weft_error_of_rank(weft_status status, int rank);
/* Notes that the ranks of a group agreed on the current record, and which rank of the world
 * reports it. Returns `status`. */
weft_status weft_error_share(weft_status status, int speaker);

/* The record of this thread; its status is WEFT_OK when there is none. Borrowed, and overwritten by
 * the thread's next error. */
const weft_error *weft_error_get(void);
void weft_error_clear(void);
/* Move a record out of this thread, which clears it, and into this thread; put returns the record's
 * status. */
void weft_error_take(weft_error *out);
weft_status weft_error_put(const weft_error *error);

/* Of WEFT_STATUS_LIST: the text (static), and the exit code of a process that ends with it. */
const char *weft_status_text(weft_status status);
int weft_status_exit_code(weft_status status);

/* Starts a record; its value is the status: return WEFT_ERROR(WEFT_FILE, "%s: no magic", path); */
#define WEFT_ERROR(status, ...) weft_error_set(__FILE__, __LINE__, __func__, (status), __VA_ARGS__)
/* The same about a key of the config: return WEFT_KEY_ERROR("model.x", "%d is odd", x); A verb that
 * knows where the key was given puts the place first: "config.json:3:7: model.x: 5 is odd". */
#define WEFT_KEY_ERROR(key, ...)                                                                   \
    weft_error_set_key(__FILE__, __LINE__, __func__, (key), __VA_ARGS__)

/* When the call fails, returns its status from the calling function. */
#define WEFT_TRY(call)                                                                             \
    do {                                                                                           \
        weft_status weft_try_ = (call);                                                            \
        if (weft_try_ != WEFT_OK)                                                                  \
            return weft_error_frame(__FILE__, __LINE__, __func__, weft_try_);                      \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
