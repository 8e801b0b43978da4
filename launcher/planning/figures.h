/* What a plan says beside the step's price: between which times the step is, what an uneven load of
 * experts, checkpoints and failures take, what it costs, and which numbers stand behind it. Pure.
 * NAN is what the cluster's file does not tell. */
#ifndef WEFT_LAUNCHER_PLANNING_FIGURES_H
#define WEFT_LAUNCHER_PLANNING_FIGURES_H

#include "launcher/planning/plan.h"

/* The plan at a load of experts: rows at the fullest rank's experts over the mean. */
typedef struct weft_plan_at_load {
    double load, step_us;
    uint64_t memory_bytes; /* of the fullest rank */
    bool fits;
} weft_plan_at_load;
enum { WEFT_MAX_PLAN_LOADS = 3 }; /* balanced, the plan's own, the worst */

/* A number behind the plan, as weft_cluster_source has them. */
typedef struct weft_plan_input {
    const char *what; /* its path in the cluster's file */
    weft_source_class class_;
    const char *where; /* "": the file does not say */
    double spread;     /* that the range takes it at */
    bool is_missing;   /* an efficiency that the file does not give, and that counts as 1 */
} weft_plan_input;

/* What the mesh's nodes cost, which count whole. */
typedef struct weft_plan_costs {
    double hour, billion_tokens; /* in the cluster's currency */
    double joules_per_token;
} weft_plan_costs;

typedef struct weft_plan_figures {
    double range_us[2]; /* the shortest step and the longest: every input at that end of its spread
                           (core/cluster/cluster.h) */
    int num_loads;      /* 0: the model has no experts */
    weft_plan_at_load loads[WEFT_MAX_PLAN_LOADS];
    uint64_t checkpoint_bytes; /* of its datasets: master weights and moments, fp32 */
    double write_s, stall_s;   /* until they are written; until training goes on, which waits until
                                  they are read back too */
    double hours_between;      /* failures that end the run */
    /* Of work between two saves, and the share of time that is work that lasts. */
    double save_every_s, goodput;
    const char *save_lacks; /* keys of the cluster file that save_every_s follows from and that are
                               not there; NULL: it is known */
    const char *currency;   /* "": nobody says */
    weft_plan_costs costs;
    double days, total; /* of the tokens asked for */
    int num_inputs;
    const weft_plan_input *inputs;
} weft_plan_figures;

/* WEFT_CONFIG where config->moe_load, of --expert-load, is none that the model can have on the
 * config's mesh; any_mesh: that mesh is not asked for. */
weft_status weft_plan_check_load(const weft_config *config, const weft_config_source *source,
                                 bool any_mesh) WEFT_CHECKED;

weft_plan_costs weft_plan_costs_of(const weft_cluster *cluster, const weft_mesh *mesh,
                                   double tokens_per_s);

/* Fills plan->figures, in the arena; plan is weft_plan_make's of the same config. num_tokens: to
 * train on; 0: nobody asks. */
weft_status weft_plan_figures_make(const weft_config *config, const weft_config_source *source,
                                   const weft_cluster *cluster, double num_tokens,
                                   weft_arena *arena, weft_plan *plan) WEFT_CHECKED;

/* The step with every input at that end of its spread that is fastest, and slowest. */
weft_status weft_plan_range(const weft_config *config, const weft_cluster *cluster,
                            const weft_plan *plan, double out_us[2]) WEFT_CHECKED;

/* The optimum interval of work between saves, and the share of time that is work that lasts, where
 * failures come at random; seconds. save_s: what a save takes; restart_s: from a failure until work
 * goes on. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
 * dumps", 2006: his interval of higher order, of which J. W. Young's "A first order approximation
 * to the optimum checkpoint interval", 1974, is the first term; and his total time. */
double weft_daly_interval_s(double save_s, double between_s);
double weft_daly_goodput(double interval_s, double save_s, double restart_s, double between_s);

#endif
