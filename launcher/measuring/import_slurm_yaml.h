/* Slurm's topology.yaml (Slurm 25.05 and later), as the settings of a topology.conf. Private to
 * launcher/measuring/.
 *
 * Of YAML it reads the form of topology.yaml(5): lists of "- ", "key: value" below each other,
 * names with or without quotes, comments, a list of numbers also as [4, 16]. All else is refused by
 * its line: tabs before a key, other brackets, |, >, &, *, !. Pure. */
#ifndef WEFT_LAUNCHER_MEASURING_IMPORT_SLURM_YAML_H
#define WEFT_LAUNCHER_MEASURING_IMPORT_SLURM_YAML_H

#include "launcher/measuring/import.h"

/* What topology.conf calls it: SwitchName, Switches, Nodes, BlockName or BlockSizes. */
typedef weft_status weft_slurm_setting(void *ctx, int line, const char *key, const char *value,
                                       size_t bytes);

/* Whether the first line that says something begins a list of topologies. */
bool weft_slurm_is_yaml(const char *text);
/* Calls `setting` in the file's order for one topology: the first with `cluster_default: true`, or
 * the first. `import` gets a note where there are others. WEFT_CONFIG: one line with the file's
 * line. */
weft_status weft_slurm_yaml_read(weft_import *import, const char *file, const char *text,
                                 weft_slurm_setting *setting, void *ctx) WEFT_CHECKED;

#endif
