/* How a run's MoE layers move their tokens. The config fixes it or leaves it open; then Weft
 * chooses, from a cluster's costs before the first step or by measuring the first steps. All ranks
 * choose alike. */
#ifndef WEFT_LAUNCHER_PLANNING_MOE_CHOICE_H
#define WEFT_LAUNCHER_PLANNING_MOE_CHOICE_H

#include "launcher/planning/config.h"
#include "layers/model/model.h"
#include "parallel/topology/topology.h"
#include "schedule/moe/choose.h"

typedef struct weft_moe_selection {
    bool travels;             /* tokens of MoE layers travel on this mesh; else no more is used */
    bool is_sharded;          /* experts are tensor-sharded: the form matters too */
    weft_moe_options options; /* what the model is made with */
    char reason[640];         /* one line: what was chosen and why; empty until it is known */
    bool told;                /* the line was logged */
    /* measuring */
    bool profiling;
    bool by_experts;  /* so partitions are cut */
    double tokens;    /* B of a micro-batch */
    unsigned allowed; /* strategies: bit i is strategy i */
    weft_granularity searches[WEFT_NUM_REUSES];
    weft_moe_pipeline peers[WEFT_MOE_MAX_PEERS]; /* measured after them */
    double peers_us[WEFT_MOE_MAX_PEERS];
    int num_peers, num_tried;
    weft_moe_pipeline trial;
    bool is_trial;
    double best_us;
    int num_steps, num_trials;
    double trial_ms; /* the best of the trial's repetitions so far */
    int num_repeats;
} weft_moe_selection;

/* The shape that cost models get for a layer of these options: balanced routing, the baseline's
 * all-to-all. ep_inside, pace_flops: as in the struct. Pure. */
weft_moe_layer_shape weft_moe_layer_shape_of(const weft_model_options *options,
                                             const weft_shape *shape, int ep_inside,
                                             double pace_flops);
/* The cluster that choices are made by: planned_on, or parallel.cluster's file, with the link to
 * host memory at its pace. Products keep their time: their pace is told to what prices them. Errors
 * carry the key. */
weft_status weft_choice_cluster(const weft_config *config, weft_cluster *out) WEFT_CHECKED;
/* Where the mesh's groups lie: a choice takes its curves by it. */
typedef struct weft_moe_nodes {
    int ep_inside;      /* the fewest ranks of an EP group on one of its nodes; 0: not known */
    int ranks_per_node; /* of the fullest one; 0: not known */
    bool by_file;       /* nodes are those that the cluster file was measured on */
} weft_moe_nodes;
/* Groups lie on the nodes of `topology`. Exception: the cluster file was measured on as many ranks
 * divided into other nodes (calibrate --ranks-per-node); then groups lie on those, as its curves
 * do. topology NULL: not known yet. All zero where no tokens travel. Errors: those of the cluster
 * file. */
weft_status weft_moe_find_nodes(const weft_config *config, const weft_mesh *mesh,
                                const weft_topology *topology, weft_moe_nodes *out) WEFT_CHECKED;
/* The partitions that the config asks for, of MoE layers whose tokens travel between `ep` ranks.
 * false: something is left open, and *out is one partition. */
bool weft_moe_fixed_pipeline(const weft_schedule_options *options, int ep, weft_moe_pipeline *out);
/* The highest load of experts there is on this mesh: all rows on one rank, as far as a token's
 * choices and capacity allow. 1: one rank has all experts. */
double weft_moe_worst_load(const weft_config *config, const weft_mesh *mesh);
/* Reads the cluster file where the choice needs it. Leaves open what depends on nodes that are not
 * known: a later call with nodes decides it. Errors: WEFT_CONFIG with the key that asks for a
 * missing cost and how to measure it; those of the cluster file. Pure but for reading the file: the
 * same on every rank. */
weft_status weft_moe_selection_start(const weft_config *config, const weft_mesh *mesh,
                                     const weft_moe_nodes *nodes,
                                     weft_moe_selection *out) WEFT_CHECKED;
/* Before a training step: gives the model the partitions to measure, or the best ones. */
weft_status weft_moe_selection_before(weft_moe_selection *selection,
                                      weft_model *model) WEFT_CHECKED;
/* After a training step; step_ms: of the slowest rank. */
void weft_moe_selection_after(weft_moe_selection *selection, double step_ms);
/* Writes the choice over what the config left open, for the config of a checkpoint; nothing while
 * measuring goes on. */
void weft_moe_selection_keep(const weft_moe_selection *selection, weft_schedule_options *out);
/* Logs the choice once, from rank 0, as soon as it is known. */
void weft_moe_selection_tell(weft_moe_selection *selection);

#endif
