/* What the sources that read and write a cluster's file share. Private to core/. */
#ifndef WEFT_CORE_CLUSTER_INTERNAL_H
#define WEFT_CORE_CLUSTER_INTERNAL_H

#include "core/cluster/cluster.h"
#include "core/json.h"
#include "core/options/options.h"

typedef struct weft_cluster_reader {
    weft_option_source source;
    weft_arena *arena;
} weft_cluster_reader;

/* An object's members by the names it may have. A member that is missing has a span of 0 bytes. */
typedef struct weft_cluster_members {
    const char *path; /* NULL: the file's own */
    const char *const *names;
    size_t count;
    weft_json_span *values;
    weft_json_span *keys;
} weft_cluster_members;

/* FAULT(r, at, path, key, "%g is odd", x): the error with FILE:line:column of `at` and the path of
 * a key. */
#define FAULT(r, ...) WEFT_OPTION_FAULT(&(r)->source, __VA_ARGS__)

/* Errors of all: WEFT_CONFIG, one line with the place. */
weft_status weft_cluster_want(const weft_cluster_reader *r, weft_json_span value,
                              weft_json_kind kind, const char *what, const char *path,
                              const char *key) WEFT_CHECKED;
weft_status weft_cluster_members_read(const weft_cluster_reader *r, weft_json_span object,
                                      weft_cluster_members *m) WEFT_CHECKED;
weft_status weft_cluster_number_read(const weft_cluster_reader *r, weft_json_span value,
                                     const char *path, const char *key, double *out) WEFT_CHECKED;
/* `text` has room for `bytes`. */
weft_status weft_cluster_string_read(const weft_cluster_reader *r, weft_json_span value,
                                     const char *path, const char *key, char *text,
                                     size_t bytes) WEFT_CHECKED;
/* Reads an array of exactly `num` numbers. */
weft_status weft_cluster_numbers_read(const weft_cluster_reader *r, weft_json_span array,
                                      const char *path, const char *key, int num, const char *what,
                                      double *out) WEFT_CHECKED;
/* "points[3]". */
typedef struct weft_cluster_element {
    char text[48];
} weft_cluster_element;
weft_cluster_element weft_cluster_element_of(const char *array, int index);

/* Reads an array of at most `most` elements into the cluster; *count: of those that are read. */
typedef struct weft_cluster_array {
    const char *path, *key;
    int most;
    weft_status (*read)(const weft_cluster_reader *r, weft_json_span element, int index,
                        weft_cluster *cluster);
} weft_cluster_array;
weft_status weft_cluster_array_read(const weft_cluster_reader *r, weft_json_span array,
                                    const weft_cluster_array *of, const char *what,
                                    weft_cluster *cluster, int *count) WEFT_CHECKED;

/* Reads a whole number from 1 to 1000000. */
weft_status weft_cluster_count_read(const weft_cluster_reader *r, weft_json_span value,
                                    const char *path, const char *key, int *out) WEFT_CHECKED;

/* Reads a file's text. Writes `out` on success. */
weft_status weft_cluster_parse(const char *file, const char *text, weft_arena *arena,
                               weft_cluster *out) WEFT_CHECKED;

/* The names of the file's sections of hardware. */
enum { WEFT_CLUSTER_NUM_SECTIONS = 6 };
extern const char *const weft_cluster_sections[WEFT_CLUSTER_NUM_SECTIONS];

#endif
