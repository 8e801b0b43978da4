/* Where the elements of a file's tensor lie in a parameter, for every layout there is: up to three
 * pieces, each a block of both sides with a stride of its own on every axis. A transposition is two
 * axes that change places, the queries of packed QKV are an axis of groups before one of rows.
 * Pure.
 */
#ifndef WEFT_LAUNCHER_MODELS_MAP_H
#define WEFT_LAUNCHER_MODELS_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include <weft/status.h>

enum { WEFT_MAP_AXES = 5, WEFT_MAP_PIECES = 3 }; /* axes: one more than any layout has */

/* The two sides of a map. */
typedef enum weft_map_side { WEFT_MAP_FILE, WEFT_MAP_PARAMETER } weft_map_side;

typedef struct weft_map_piece {
    int num_axes;
    size_t extent[WEFT_MAP_AXES];
    size_t stride[2][WEFT_MAP_AXES]; /* by weft_map_side; elements */
    size_t first[2];
} weft_map_piece;

typedef struct weft_map {
    int num_pieces;
    weft_map_piece pieces[WEFT_MAP_PIECES];
} weft_map;

/* Adds an axis, one of four at most, to a piece that begins with none; axes of one index are left
 * out. */
void weft_map_add_axis(weft_map_piece *piece, size_t extent, size_t in_file, size_t in_parameter);
size_t weft_map_elements(const weft_map *map);
/* Whether both sides have the same runs: nothing is transposed. */
bool weft_map_is_straight(const weft_map *map);

/* Elements here, here + 1, ... of one side are there, there + stride, ... of the other. */
typedef weft_status (*weft_map_function)(void *context, size_t here, size_t there, size_t count,
                                         size_t stride);
/* Visits what a piece has in [first, first + count) of `side`, in rising order. */
weft_status weft_map_visit(const weft_map_piece *piece, weft_map_side side, size_t first,
                           size_t count, weft_map_function visit, void *context) WEFT_CHECKED;

#endif
