/* The mesh as a layer sees it: the axes of two grids over the same ranks (docs/mesh.md). */
#ifndef WEFT_MESH_H
#define WEFT_MESH_H

typedef enum weft_axis {
    WEFT_AXIS_NONE,
    WEFT_AXIS_TP,
    WEFT_AXIS_CP,
    WEFT_AXIS_DP,
    WEFT_AXIS_PP,
    WEFT_AXIS_EP,
    WEFT_AXIS_ETP,
    WEFT_AXIS_EDP,
    WEFT_AXIS_DP_CP, /* dense gradient group: dp x cp */
    WEFT_NUM_AXES
} weft_axis;

/* Fixed. */
typedef struct weft_axis_place {
    int at, size; /* this rank's coordinate, from 0; ranks along the axis */
} weft_axis_place;

/* Where a rank stands. May grow at its end. */
typedef struct weft_place {
    weft_axis_place world;
    weft_axis_place tp, cp, dp, pp; /* dense grid */
    weft_axis_place ep, etp, edp;   /* expert grid: the same ranks in another order */
} weft_place;

#endif
