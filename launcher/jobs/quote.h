/* Any text as a word of a shell script or of YAML, and names that both take as they are. Pure. */
#ifndef WEFT_LAUNCHER_JOBS_QUOTE_H
#define WEFT_LAUNCHER_JOBS_QUOTE_H

#include <stdbool.h>
#include <stdio.h>

/* One word of a bash script, on one line: as it is, between single quotes, or with control
 * characters escaped. */
void weft_shell_word(const char *text, FILE *out);
/* A scalar in double quotes; `text` is UTF-8. expands: of a container's command, where Kubernetes
 * replaces $(NAME), which is written so that it stays. */
void weft_yaml_text(const char *text, bool expands, FILE *out);
/* A text of lines as a block below a key that stands `indent` columns in; its lines stand two
 * further. What a block cannot hold is written as a scalar. Ends its line. */
void weft_yaml_block(const char *text, int indent, FILE *out);
bool weft_is_utf8(const char *text);

enum { WEFT_JOB_NAME_BYTES = 41 };
/* The last part of a path as a name: a DNS label (a-z, 0-9 and -), "weft" where nothing is left. */
void weft_job_name(const char *path, char out[WEFT_JOB_NAME_BYTES]);

#endif
