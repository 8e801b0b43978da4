/* Parts of the trainer's set-up. Private to launcher/. */
#ifndef WEFT_LAUNCHER_TRAINING_SETUP_H
#define WEFT_LAUNCHER_TRAINING_SETUP_H

#include "launcher/planning/tier_choice.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/trainer.h"

/* The tokenizer description beside the (first) dataset (PREFIX.json), NULL when there is none. */
weft_status weft_setup_tokenizer_text(const weft_config *config, weft_arena *arena,
                                      const char **out) WEFT_CHECKED;
/* Fills model.vocab_size from the datasets' tokenizer where the config leaves it 0, and refuses
 * datasets that ask for more, or that have several; so data.eod_token where documents are told
 * apart. */
weft_status weft_setup_vocabulary(weft_config *config) WEFT_CHECKED;
/* Opens the datasets and divides their samples, after weft_setup_vocabulary. whole: learns the hash
 * and the largest of the training's tokens, by reading them all unless that is kept beside them,
 * fills data.data_xxh64, and refuses changes that make the resumed run another one. Tokens outside
 * the vocabulary are refused where they are read. out: zero before; the caller closes it, also
 * after an error. Rank-local; errors point into the config. */
weft_status weft_setup_data(weft_config *config, const weft_config_source *source, bool whole,
                            weft_arena *arena, weft_data *out) WEFT_CHECKED;
/* Hashes a dataset of files by what is kept of it, else by reading all of it, which is then kept
 * beside it, or as that of prefix `spare` (NULL: none). */
weft_status weft_setup_hash_data(const weft_config_source *source, const char *spare,
                                 const char *tokenizer, weft_data_set *set,
                                 weft_known *out) WEFT_CHECKED;
/* Whether the datasets that the config names are there. */
weft_status weft_setup_find_data(const weft_config *config,
                                 const weft_config_source *source) WEFT_CHECKED;
/* weft_setup_data before there are ranks; the datasets are closed. */
weft_status weft_setup_check_data(const weft_config *config,
                                  const weft_config_source *source) WEFT_CHECKED;
/* Whether the application's layers make a model on this mesh, before there are ranks: makes its
 * outline. Errors name the layer or point into the config. */
weft_status weft_setup_check_model(const weft_config *config, const weft_config_source *source,
                                   const weft_mesh *mesh) WEFT_CHECKED;
/* What this rank may take here. Host memory that the config does not bound is what the machine
 * leaves, shared by the node's ranks. */
weft_tier_room weft_setup_room(const weft_config *config);
/* Whether this machine has what device.kind asks for, before there are ranks. Errors: WEFT_CONFIG
 * (built without it), WEFT_DEVICE (no driver or no GPU). */
weft_status weft_setup_check_device(const weft_config *config,
                                    const weft_config_source *source) WEFT_CHECKED;
/* Starts the CUDA driver where the config uses it, with the device's settings. */
void weft_setup_driver(const weft_config *config);
/* The device of device.kind: the CPU with this rank's share of the cores, or the GPU that the
 * rank's number on this machine falls to; more ranks than GPUs share them in turn. */
weft_status weft_setup_device(const weft_config *config, weft_device **out) WEFT_CHECKED;
/* How GPUs talk in the groups that are made from now on. Collective over the world. */
weft_status weft_setup_comm(const weft_config *config, const weft_config_source *source,
                            weft_comm *world, weft_device *device) WEFT_CHECKED;

#endif
