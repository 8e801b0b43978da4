/* Folders of tests/oracle/models, altered in memory, written and imported. */
#ifndef WEFT_TESTS_LAUNCHER_ALTERED_H
#define WEFT_TESTS_LAUNCHER_ALTERED_H

#include "launcher/models/models.h"

enum { MAX_TENSORS = 256, MAX_BYTES = 1 << 16 };

/* A folder in memory. */
typedef struct model {
    weft_arena arena;
    const char *config;
    weft_safetensor tensors[MAX_TENSORS];
    char *data[MAX_TENSORS]; /* by tensor */
    size_t count;
} model;

void load(model *m, const char *name);
void release(model *m);
size_t find(const model *m, const char *name);
void drop(model *m, const char *name);
/* A tensor with another's shape and bytes. */
size_t add(model *m, const char *name, const char *like);
/* The first `from` in the config becomes `to`. */
void say(model *m, const char *from, const char *to);
void write_folder(model *m, const char *folder);
weft_status import_to(const char *folder, const char *run, weft_card *card);
weft_status export_to(const char *run, const char *out, const char *dtype, uint64_t most,
                      weft_card *card);
/* The folder is refused with this text, and no run is there afterwards. */
void refused(model *m, weft_status status, const char *part);
void taken(model *m, weft_card *card);
void has_text(const char *path, const char *part);

#endif
