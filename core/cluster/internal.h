/* What the sources that read and write a cluster's file share. Private to core/. */
#ifndef WEFT_CORE_CLUSTER_INTERNAL_H
#define WEFT_CORE_CLUSTER_INTERNAL_H

#include "core/arena.h"
#include "core/cluster/cluster.h"

/* Reads a file's text. Writes `out` on success. */
weft_status weft_cluster_parse(const char *file, const char *text, weft_arena *arena,
                               weft_cluster *out) WEFT_CHECKED;

/* The names of the file's sections of hardware. */
enum { WEFT_CLUSTER_NUM_SECTIONS = 6 };
extern const char *const weft_cluster_sections[WEFT_CLUSTER_NUM_SECTIONS];

#endif
