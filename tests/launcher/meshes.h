/* Training on a mesh, for tests that compare what meshes give. */
#ifndef WEFT_TESTS_LAUNCHER_MESHES_H
#define WEFT_TESTS_LAUNCHER_MESHES_H

#include "launcher/training/trainer.h"

/* A small model's sizes, to go on behind. */
#define MESH_SIZES(layers)                                                                         \
    "{\"num_layers\": " #layers ", \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": 0.1"
/* Keys of section "train", each behind a comma. */
#define BF16 ", \"precision\": \"bf16\""
#define UNCLIPPED ", \"clip_grad\": 0"

enum { MESH_MAX_SET = 12 };
typedef struct mesh_training {
    const char *name;         /* of the run */
    const char *model, *mesh; /* model: JSON of section "model" */
    const char *parallel;     /* more keys of section "parallel", each behind a comma; NULL: none */
    const char *train;        /* more keys of section "train", likewise */
    int batch, steps;         /* sequences a step */
    const char *from;         /* the run to go on from, behind its step from_step; NULL: none */
    int from_step;
    bool saves; /* after the last step; runs save in world_folder/NAME (tests/world.h) */
    const char *set[MESH_MAX_SET]; /* over all that, as by --set; up to the first NULL */
} mesh_training;

/* Puts more behind what is set, up to the first NULL or so many. */
void mesh_set(mesh_training *what, const char *const *more, int most);
/* Packs documents, which this token ends. */
void mesh_set_documents(mesh_training *what, int token);

/* Trains on all of the world's ranks; results [steps]. The first step must run what is planned
 * (tests/launcher/planned.h). Ends the world's ranks where it cannot. */
void mesh_run(weft_comm *world, const mesh_training *what, weft_step_result *results);

/* Losses, gradient norms and dropped tokens of so many steps: each within `bound` of what is
 * wanted, relative; 0: with its bits. */
void mesh_compare(const weft_step_result *got, const weft_step_result *wanted, int num_steps,
                  double bound, const char *what, ...) WEFT_PRINTF(5, 6);

#endif
