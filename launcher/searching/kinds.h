/* What a search's bounds (bound.h) are made of: prices and bytes of kinds of layers, each kept by
 * everything that it depends on, and what passes wait for experts beyond device memory. Pure. */
#ifndef WEFT_LAUNCHER_SEARCHING_KINDS_H
#define WEFT_LAUNCHER_SEARCHING_KINDS_H

#include "launcher/planning/tier_price.h"
#include "launcher/searching/candidates.h"

enum { WEFT_MAX_KINDS = 10 }; /* of layers that are not a user's own */

/* What passes wait for experts beyond device memory at least. */
typedef struct weft_away weft_away;

/* Of the layers of an outline, with their prices; the rest lives in the arena. NULL: they have no
 * such experts, or nothing is known of how they wait. */
weft_status weft_away_make(const weft_config *config, const weft_outline *outline,
                           const weft_pass_price *prices, weft_arena *arena,
                           weft_away **out) WEFT_CHECKED;
/* Of passes through the layers [first, end) of a list, each of which is a layer of the outline,
 * beside what these are priced at, of which recompute_us to compute layers again. What was found is
 * kept in the arena; the list lives as long. Errors: those of weft_tier_costs. */
weft_status weft_away_waits(weft_away *away, const weft_site *site, const weft_config *config,
                            const int *list, int first, int end, double recompute_us,
                            weft_arena *arena, double out_us[WEFT_TIER_LEASTS]) WEFT_CHECKED;

/* A kind of layers: embedding, head, and one or two of blocks between; of a user's own model each
 * layer. Microseconds of a micro-batch. */
typedef struct weft_kind_price {
    double forward_us, backward_us, recompute_us;
    double kept_bytes;     /* of its stash, at least */
    double copy_us[2];     /* of what it offloads, but its input: out, and back */
    double input_us[2];    /* and of its input */
    double dense, experts; /* elements of parameters on a rank */
    double largest[2];     /* of one of them: dense, of experts */
    double away;           /* elements of experts that may leave the device, */
    double expert;         /* and of one of them */
} weft_kind_price;

/* All that a table depends on; zeroed before it is filled, to be compared as bytes. */
typedef struct weft_kind_key {
    int order, class_, tp, cp, ep, etp, binding, sequence_parallel, micro_batch;
    int recompute, offload, reuse; /* of the form */
    int splits;                    /* backwards are in two halves */
    int tier;                      /* where experts are */
    int pp, dp;                    /* where nodes and groups do not nest; else 0 */
} weft_kind_key;

/* What a plan chooses by itself: attention's form over cp, how MoE layers run. */
typedef struct weft_kind_choice {
    weft_kind_key key;
    struct weft_kind_choice *next;
    weft_mesh mesh;
    weft_moe_options moe;
    const double *work; /* by kind of layer, by which `auto` cuts stages; NULL: nobody asked */
} weft_kind_choice;

typedef struct weft_kind_table {
    weft_kind_key key;
    struct weft_kind_table *next;
    const weft_error *error; /* what it describes is not legal; NULL: it is */
    double boundary_bytes;   /* what a stage hands on, as a piece of memory, at least */
    weft_away *away;         /* NULL: nothing is known of experts beyond device memory */
    int num_kinds;
    weft_kind_price kinds[]; /* the first, those between, the last */
} weft_kind_table;

enum { WEFT_KIND_BINS = 1 << 14 };

typedef struct weft_kind_tables {
    const weft_search_space *space;
    weft_model_options short_model;                            /* with a layer of each kind */
    int64_t short_freq[8], short_windows[8], short_no_rope[8]; /* a layer of each kind */
    int num_layers;                                            /* of the model's list */
    int *kind_of;                                              /* [num_layers] */
    bool own; /* a model function: each layer is a kind */
    weft_kind_table *bins[WEFT_KIND_BINS];
    weft_kind_choice *choices[WEFT_KIND_BINS];
    weft_arena arena;            /* of all tables */
    const weft_cluster *experts; /* as in weft_site */
    double *work;                /* [num_layers]: found last */
} weft_kind_tables;

/* Zeroed before. The space lives as long. */
weft_status weft_kind_tables_init(const weft_search_space *space,
                                  weft_kind_tables *out) WEFT_CHECKED;
void weft_kind_tables_release(weft_kind_tables *tables);
size_t weft_kind_bin(const void *key, size_t num_bytes);
/* Whether groups of `span` ranks and nodes nest. */
bool weft_ranks_nest(int span, int each);

/* Of a candidate's stage that begins with the rank. key.pp 0: of any of its stages. */
weft_kind_key weft_kind_key_of(const weft_kind_tables *tables, const weft_candidate *candidate,
                               const weft_config *config, const weft_mesh *mesh, int first_rank);
/* Errors: WEFT_CONFIG: it is not legal. */
weft_status weft_kind_table_find(weft_kind_tables *tables, const weft_candidate *candidate,
                                 const weft_config *config, const weft_mesh *mesh, int stage,
                                 const weft_kind_table **out) WEFT_CHECKED;
/* Errors: likewise. */
weft_status weft_kind_choice_find(weft_kind_tables *tables, const weft_config *config,
                                  const weft_mesh *mesh, const weft_kind_key *of_table,
                                  weft_kind_choice **out) WEFT_CHECKED;
/* The work of the list's layers, by which the config cuts it into stages, until the next one is
 * asked for; NULL: it is cut otherwise. Errors: likewise. */
weft_status weft_kind_work_find(weft_kind_tables *tables, const weft_candidate *candidate,
                                const weft_config *config, const weft_mesh *mesh,
                                const double **out) WEFT_CHECKED;

#endif
