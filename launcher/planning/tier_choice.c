#include "launcher/planning/tier_choice.h"

#include <math.h>
#include <stdio.h>

#include "core/text.h"
#include "launcher/planning/moe_choice.h"
#include "layers/model/model.h"
#include "layers/outline/footprint.h"
#include "layers/pass/offload.h"

bool weft_tier_is_open(const weft_config *config)
{
    return config->model.num_experts > 0 && weft_tier_is_left_open(&config->tier);
}

static uint64_t limit_of(int64_t bytes)
{
    return bytes > 0 ? (uint64_t)bytes : UINT64_MAX;
}

weft_tier_room weft_tier_room_of(const weft_config *config)
{
    return (weft_tier_room){.device_bytes = limit_of(config->device.memory_limit),
                            .host_bytes = limit_of(config->tier.host_memory_limit),
                            .file_bytes = limit_of(config->tier.file_limit)};
}

/* --- whether a step fits ------------------------------------------------------------------- */

enum { ON_DEVICE, ON_HOST, IN_FILE, NUM_PLACES };

/* The rank that lacks most, or has least left, of each place. */
typedef struct fullest {
    int stage[NUM_PLACES];
    uint64_t bytes[NUM_PLACES], limit[NUM_PLACES];
    weft_footprint footprint[NUM_PLACES];
} fullest;

static double lack(uint64_t bytes, uint64_t limit)
{
    return (double)bytes - (double)limit;
}

/* Where passes and scratch grow amid a step, each leaves the rest of a block empty, less than one
 * piece, until the next one (layers/pass/stack.h). */
static uint64_t growing_bytes(const weft_step *step, int rank)
{
    const weft_program *program = &step->programs[rank];
    const weft_outline *outline = &step->outline;
    uint64_t largest = 0, num_stacks = 1;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++) {
            const weft_description *d = &outline->layers[l].description;
            for (int i = 0; outline->layers[l].num_experts > 0 && i < d->num_kept; i++)
                if (!d->kept[i].offloaded && d->kept[i].bytes > largest)
                    largest = d->kept[i].bytes;
        }
    }
    for (int i = 0; i < program->num_slots; i++)
        num_stacks += program->slots[i].holds == WEFT_SLOT_ACTIVATION;
    return num_stacks * largest;
}

static const weft_tier_room *room_of(const weft_tier_room *room, int stage)
{
    return room->by_stage ? &room->by_stage[stage] : room;
}

/* grows: experts may get more rows than the step's load says. */
static fullest find_fullest(const weft_config *config, const weft_mesh *mesh, const weft_step *step,
                            bool grows, const weft_tier_room *room)
{
    fullest most = {.stage = {-1, -1, -1}};
    for (int rank = 0; rank < mesh->pp; rank++) {
        const weft_tier_room *here = room_of(room, rank);
        weft_footprint f;
        weft_step_footprint(config, step, rank, &step->programs[rank], &f);
        f.device_bytes += grows ? growing_bytes(step, rank) : 0;
        const uint64_t pinned = f.bytes[WEFT_MEMORY_PINNED] + (here->is_host ? f.device_bytes : 0) +
                                (here->file_is_host ? f.file_bytes : 0);
        const uint64_t bytes[] = {f.device_bytes, pinned, f.file_bytes};
        const uint64_t limits[] = {here->device_bytes, here->host_bytes, here->file_bytes};
        for (int i = 0; i < NUM_PLACES; i++) {
            const double now = lack(bytes[i], limits[i]),
                         before = lack(most.bytes[i], most.limit[i]);
            if (most.stage[i] >= 0 &&
                (now < before || (now == before && bytes[i] <= most.bytes[i])))
                continue;
            most.stage[i] = rank;
            most.bytes[i] = bytes[i];
            most.limit[i] = limits[i];
            most.footprint[i] = f;
        }
    }
    return most;
}

static bool fits(const fullest *f)
{
    for (int i = 0; i < NUM_PLACES; i++)
        if (f->bytes[i] > f->limit[i])
            return false;
    return true;
}

static bool has_tier(const weft_config *config)
{
    return config->tier.experts != WEFT_TIER_NONE && config->model.num_experts > 0;
}

bool weft_tier_pins(const weft_config *config)
{
    return has_tier(config) || config->tier.optimizer_state == WEFT_TIER_STATE_HOST;
}

/* --- what would fit ------------------------------------------------------------------------ */

/* What takes less memory, the cheapest first; several at once. */
typedef enum remedy {
    SMALLER_BATCH = 1,
    SELECTIVE = 2,
    FULL = 4,
    ACTIVATIONS_AWAY = 8,
    EXPERTS_AWAY = 16,
    STATE_AWAY = 32
} remedy;

static const unsigned remedies[] = {SMALLER_BATCH,
                                    SELECTIVE,
                                    FULL,
                                    ACTIVATIONS_AWAY,
                                    EXPERTS_AWAY,
                                    STATE_AWAY,
                                    EXPERTS_AWAY | STATE_AWAY,
                                    SMALLER_BATCH | FULL,
                                    SMALLER_BATCH | FULL | EXPERTS_AWAY,
                                    SMALLER_BATCH | FULL | STATE_AWAY,
                                    SMALLER_BATCH | FULL | EXPERTS_AWAY | STATE_AWAY};

/* What the config does not do yet, of a step that is used so. */
static unsigned open_to(const weft_config *config, weft_step_use use)
{
    const int granularity = config->train.recompute.granularity;
    unsigned out =
        use != WEFT_STEP_GENERATES && config->train.micro_batch_size > 1 ? SMALLER_BATCH : 0;
    if (config->model.num_experts > 0 && !has_tier(config))
        out |= EXPERTS_AWAY;
    if (use != WEFT_STEP_TRAINS)
        return out;
    if (granularity == WEFT_RECOMPUTE_NONE)
        out |= SELECTIVE;
    if (granularity != WEFT_RECOMPUTE_FULL && !config->train.offload.on)
        out |= FULL | ACTIVATIONS_AWAY;
    if (config->tier.optimizer_state == WEFT_TIER_STATE_DEVICE)
        out |= STATE_AWAY;
    return out;
}

/* The config with them, and a micro-batch of so many samples. */
static weft_config with(const weft_config *config, unsigned set, int64_t micro)
{
    weft_config out = *config;
    out.is_trial = true;
    if (set & SMALLER_BATCH)
        out.train.micro_batch_size = micro;
    if (set & (SELECTIVE | FULL))
        out.train.recompute.granularity =
            set & FULL ? WEFT_RECOMPUTE_FULL : WEFT_RECOMPUTE_SELECTIVE;
    if (set & ACTIVATIONS_AWAY)
        out.train.offload.on = true;
    if (set & EXPERTS_AWAY) {
        out.tier.experts = WEFT_TIER_HOST;
        out.tier.kept = 0;
    }
    if (set & STATE_AWAY)
        out.tier.optimizer_state = WEFT_TIER_STATE_HOST;
    return out;
}

static weft_status check_rules(const weft_config *c, const weft_mesh *mesh)
{
    unsigned modules;
    WEFT_TRY(weft_offload_modules(&c->train.offload, &c->train.recompute, &modules));
    WEFT_TRY(weft_tier_check(&c->tier, &c->model, &c->schedule));
    return weft_model_check_mesh(&c->model, mesh, c->model.num_layers, c->train.micro_batch_size);
}

typedef struct trial {
    bool runs, fits; /* runs: no rule is against it */
    double bytes;    /* on the fullest device */
    double lacking;  /* of them, where they are too many */
} trial;

static weft_status try_with(const weft_config *config, const weft_mesh *mesh, const weft_step *as,
                            const weft_tier_room *room, trial *out)
{
    weft_arena arena = {0};
    weft_step step = {0};
    *out = (trial){0};
    weft_status status = check_rules(config, mesh);
    if (status == WEFT_OK)
        status = weft_step_make(as->use, config, mesh, &as->moe, &arena, &step);
    if (status == WEFT_OK) {
        const fullest f = find_fullest(config, mesh, &step, false, room);
        *out = (trial){.runs = true,
                       .fits = fits(&f),
                       .bytes = (double)f.bytes[ON_DEVICE],
                       .lacking = lack(f.bytes[ON_DEVICE], f.limit[ON_DEVICE])};
    } else if (status == WEFT_CONFIG) {
        weft_error_clear();
        status = WEFT_OK;
    }
    weft_step_release(&step);
    weft_arena_release(&arena);
    return status;
}

/* With these; of smaller micro-batches the largest that fits, else 1. */
static weft_status try_set(const weft_config *config, unsigned set, const weft_mesh *mesh,
                           const weft_step *as, const weft_tier_room *room, int64_t *micro,
                           trial *out)
{
    const int64_t now = config->train.micro_batch_size;
    *micro = 1;
    for (int64_t parts = 2; set == SMALLER_BATCH && parts <= now; parts++) {
        if (now % parts != 0)
            continue;
        *micro = now / parts;
        const weft_config less = with(config, set, *micro);
        WEFT_TRY(try_with(&less, mesh, as, room, out));
        if (out->fits)
            return WEFT_OK;
    }
    const weft_config changed = with(config, set, 1);
    return try_with(&changed, mesh, as, room, out);
}

/* "train.micro_batch_size 1 and offload.optimizer_state host" */
static void name_set(unsigned set, int64_t micro, char *out, size_t capacity)
{
    static const char *const names[] = {"train.micro_batch_size",
                                        "train.recompute_granularity selective",
                                        "train.recompute_granularity full",
                                        "train.fine_grained_activation_offloading true",
                                        "offload.experts auto",
                                        "offload.optimizer_state host"};
    size_t used = 0;
    for (int i = 0; set >> i; i++) {
        if (!(set >> i & 1) || used >= capacity)
            continue;
        const char *between = used == 0 ? "" : set >> i == 1 ? " and " : ", ";
        used += (size_t)snprintf(out + used, capacity - used, "%s", between);
        if (used < capacity && i == 0)
            used += (size_t)snprintf(out + used, capacity - used, "%s %lld", names[i],
                                     (long long)micro);
        else if (used < capacity)
            used += (size_t)snprintf(out + used, capacity - used, "%s", names[i]);
    }
}

/* The first of the remedies with which the config would fit. */
weft_status weft_tier_advise(const weft_config *config, const weft_mesh *mesh,
                             const weft_step *step, const weft_tier_room *room,
                             char out[WEFT_ADVICE_BYTES])
{
    const unsigned open = open_to(config, step->use);
    char names[200];
    uint64_t done = 0; /* a bit a set */
    out[0] = '\0';
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++) {
        const bool is_last = i + 1 == sizeof remedies / sizeof *remedies;
        const unsigned set = remedies[i] & open;
        int64_t micro;
        trial found;
        if (set == 0 || (done >> set & 1 && !is_last))
            continue;
        done |= (uint64_t)1 << set;
        WEFT_TRY(try_set(config, set, mesh, step, room, &micro, &found));
        name_set(set, micro, names, sizeof names);
        if (found.fits) {
            snprintf(out, WEFT_ADVICE_BYTES, "; %s would fit, with %s", names,
                     weft_bytes_text(found.bytes).text);
            break;
        }
        if (is_last && found.runs && found.lacking > 0)
            snprintf(out, WEFT_ADVICE_BYTES, "; with %s it would still lack %s", names,
                     weft_bytes_text(found.lacking).text);
    }
    return WEFT_OK;
}

/* "experts' weights 3 GB, ..." */
static const char *host_text(const weft_footprint *f, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < f->num_offloaded && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%s %s", used > 0 ? ", " : "",
                                 f->offloaded[i].module[0] ? f->offloaded[i].module : "layers",
                                 weft_bytes_text((double)f->offloaded[i].bytes).text);
    return out;
}

weft_status weft_tier_check_room(const weft_config *config, const weft_mesh *mesh,
                                 const weft_step *step, const weft_tier_room *room)
{
    const fullest f = find_fullest(config, mesh, step, false, room);
    char text[256], advice[WEFT_ADVICE_BYTES];
    weft_status status;
    if (f.bytes[ON_DEVICE] > f.limit[ON_DEVICE]) {
        WEFT_TRY(weft_tier_advise(config, mesh, step, room, advice));
        status = WEFT_ERROR(
            WEFT_MEMORY, "out of memory: stage %d of %d takes %s, %s above the limit: %s%s",
            f.stage[ON_DEVICE], mesh->pp, weft_bytes_text((double)f.bytes[ON_DEVICE]).text,
            weft_bytes_text(lack(f.bytes[ON_DEVICE], f.limit[ON_DEVICE])).text,
            weft_footprint_text(&f.footprint[ON_DEVICE], text, sizeof text), advice);
        return weft_error_key(status, "device.memory_limit");
    }
    const int sharers =
        f.bytes[IN_FILE] > f.limit[IN_FILE] ? room_of(room, f.stage[IN_FILE])->sharers : 0;
    if (sharers > 0)
        return WEFT_KEY_ERROR(
            "offload.path", "%s has %s free%s%s; stage %d of %d takes a file of %s",
            config->tier.path, weft_bytes_text((double)f.limit[IN_FILE] * sharers).text,
            sharers > 1 ? ", shared by " : "",
            sharers > 1 ? weft_count_text(sharers, "rank").text : "", f.stage[IN_FILE], mesh->pp,
            weft_bytes_text((double)f.bytes[IN_FILE]).text);
    if (f.bytes[IN_FILE] > f.limit[IN_FILE])
        return WEFT_KEY_ERROR("offload.file_limit",
                              "stage %d of %d takes a file of %s, %s above it", f.stage[IN_FILE],
                              mesh->pp, weft_bytes_text((double)f.bytes[IN_FILE]).text,
                              weft_bytes_text(lack(f.bytes[IN_FILE], f.limit[IN_FILE])).text);
    if (!weft_tier_pins(config) || f.bytes[ON_HOST] <= f.limit[ON_HOST])
        return WEFT_OK;
    status = WEFT_ERROR(WEFT_MEMORY,
                        "out of memory: stage %d of %d takes %s of host memory%s%s, %s above the "
                        "%s a rank has of it: %s",
                        f.stage[ON_HOST], mesh->pp, weft_bytes_text((double)f.bytes[ON_HOST]).text,
                        room_of(room, f.stage[ON_HOST])->is_host ? " with the device's" : "",
                        room_of(room, f.stage[ON_HOST])->file_is_host &&
                                f.footprint[ON_HOST].file_bytes > 0
                            ? ", with a file under offload.path, which is in memory"
                            : "",
                        weft_bytes_text(lack(f.bytes[ON_HOST], f.limit[ON_HOST])).text,
                        weft_bytes_text((double)f.limit[ON_HOST]).text,
                        host_text(&f.footprint[ON_HOST], text, sizeof text));
    return weft_error_key(status, "offload.host_memory_limit");
}

/* --- the choice ---------------------------------------------------------------------------- */

enum { MOST_EXPERTS = 1 << 14 }; /* of a rank, that a share tells apart */
/* Rows that the fullest rank's experts are to have room for, over the mean: routing is uneven, and
 * from step to step unlike. */
#define UNEVEN_LOAD 1.25

/* What a trial found, without and with what growing takes. */
typedef struct remembered {
    int experts, num_local;
    double kept, cached, rows;
    fullest found[2];
} remembered;

enum { MOST_REMEMBERED = 6 };

typedef struct choosing {
    weft_step_use use;
    weft_config config; /* of the trial at hand */
    const weft_mesh *mesh;
    const weft_moe_options *moe;
    const weft_tier_room *room;
    bool grows;         /* as of find_fullest */
    fullest found;      /* of the last trial that fits, or of the last one */
    bool fits;          /* it does */
    bool brief;         /* of what does not fit the least bytes are enough */
    int num_local;      /* the most experts of a layer on a rank */
    remembered *trials; /* [MOST_REMEMBERED] */
    int num_trials;
} choosing;

static int most_experts(const weft_outline *outline)
{
    int most = 0;
    for (int l = 0; l < outline->num_layers; l++)
        most = outline->layers[l].num_experts > most ? (int)outline->layers[l].num_experts : most;
    return most;
}

/* What a step takes, whatever its programs are: least with none. *out_lacks: that is too much. */
static weft_status find_least(const choosing *c, weft_step *step, weft_arena *arena,
                              fullest found[2], bool *out_lacks)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)c->mesh->pp, &step->programs));
    for (int grows = 0; grows < 2; grows++)
        found[grows] = find_fullest(&c->config, c->mesh, step, grows, c->room);
    *out_lacks = !fits(&found[0]);
    return WEFT_OK;
}

static weft_status measure(const choosing *c, weft_step *step, weft_arena *arena, fullest found[2])
{
    bool lacks = false;
    if (c->brief)
        WEFT_TRY(find_least(c, step, arena, found, &lacks));
    if (lacks)
        return WEFT_OK;
    WEFT_TRY(weft_step_add_programs(&c->config, arena, step));
    for (int grows = 0; grows < 2; grows++)
        found[grows] = find_fullest(&c->config, c->mesh, step, grows, c->room);
    return WEFT_OK;
}

static weft_status make_trial(const choosing *c, remembered *out)
{
    const weft_tier_options *tier = &c->config.tier;
    weft_arena arena = {0};
    weft_step step;
    *out = (remembered){.experts = tier->experts,
                        .kept = tier->kept,
                        .cached = tier->cached,
                        .rows = c->moe->load.rows};
    weft_status status = weft_step_start(c->use, &c->config, c->mesh, c->moe, &arena, &step);
    if (status == WEFT_OK) {
        status = measure(c, &step, &arena, out->found);
        out->num_local = most_experts(&step.outline);
        weft_step_release(&step);
    }
    weft_arena_release(&arena);
    return status;
}

/* The last ones are remembered: with and without growing the same are tried. */
static weft_status find_trial(choosing *c, const remembered **out)
{
    const weft_tier_options *tier = &c->config.tier;
    for (int i = 0; i < c->num_trials && i < MOST_REMEMBERED; i++) {
        const remembered *r = &c->trials[i];
        *out = r;
        if (r->experts == tier->experts && r->kept == tier->kept && r->cached == tier->cached &&
            r->rows == c->moe->load.rows)
            return WEFT_OK;
    }
    remembered *made = &c->trials[c->num_trials % MOST_REMEMBERED];
    *out = made;
    WEFT_TRY(make_trial(c, made));
    c->num_trials++;
    return WEFT_OK;
}

static weft_status try(choosing *c, int experts, double kept, bool *out)
{
    const remembered *found;
    c->config.tier.experts = experts;
    c->config.tier.kept = kept;
    WEFT_TRY(find_trial(c, &found));
    const fullest *f = &found->found[c->grows];
    *out = fits(f);
    if (*out || !c->fits)
        c->found = *f;
    c->fits |= *out;
    c->num_local = found->num_local;
    return WEFT_OK;
}

/* The largest share, in steps fine enough for any number of experts, with which a file fits: host
 * memory grows with it. */
static weft_status choose_cached(choosing *c, double kept)
{
    const double most = c->config.tier.cached;
    double least = 0;
    bool fit;
    c->config.tier.cached = 0;
    WEFT_TRY(try(c, WEFT_TIER_FILE, kept, &fit));
    for (double step = most / 2; fit && step * MOST_EXPERTS > 1; step /= 2) {
        bool more;
        c->config.tier.cached = least + step;
        WEFT_TRY(try(c, WEFT_TIER_FILE, kept, &more));
        least = more ? least + step : least;
    }
    c->config.tier.cached = least;
    return WEFT_OK;
}

static weft_status choose_degree(choosing *c, const weft_config *config)
{
    const double kept = config->tier.kept < 0 ? 0 : config->tier.kept;
    bool fit = false;
    if (config->tier.experts != WEFT_TIER_AUTO)
        return try(c, config->tier.experts, kept, &fit);
    WEFT_TRY(try(c, WEFT_TIER_NONE, 0, &fit));
    if (!fit)
        WEFT_TRY(try(c, WEFT_TIER_HOST, kept, &fit));
    if (!fit)
        WEFT_TRY(try(c, WEFT_TIER_FILE, kept, &fit));
    return fit ? WEFT_OK : choose_cached(c, kept);
}

/* Memory grows with the experts that are kept; keeps: any are. */
static weft_status choose_kept(choosing *c, bool keeps)
{
    const int experts = c->config.tier.experts;
    int least = 0, above = c->fits && keeps ? c->num_local + 1 : 1;
    while (above - least > 1) {
        const int middle = least + (above - least) / 2;
        bool fit;
        WEFT_TRY(try(c, experts, (double)middle / c->num_local, &fit));
        *(fit ? &least : &above) = middle;
    }
    c->config.tier.kept = c->num_local > 0 ? (double)least / c->num_local : 0;
    return WEFT_OK;
}

static const char *of_text(uint64_t limit, char out[64])
{
    out[0] = '\0';
    if (limit < UINT64_MAX)
        snprintf(out, 64, " of %s", weft_bytes_text((double)limit).text);
    return out;
}

static void tell(const choosing *c, const weft_config *config, weft_tier_selection *out)
{
    const fullest *f = &c->found;
    const weft_tier_options *o = &c->config.tier;
    char limits[NUM_PLACES][64], host[256], kept[64] = "", file[128] = "", load[64] = "";
    const int num = weft_tier_num_kept(o, c->num_local);
    if (o->experts != WEFT_TIER_NONE)
        snprintf(kept, sizeof kept, ", %d of %d kept on the device%s", num, c->num_local,
                 config->tier.kept < 0 ? " (what its memory leaves)" : "");
    if (f->bytes[IN_FILE] > 0)
        snprintf(file, sizeof file, "; file %s%s", weft_bytes_text((double)f->bytes[IN_FILE]).text,
                 of_text(f->limit[IN_FILE], limits[IN_FILE]));
    if (c->moe->load.rows > 1)
        snprintf(load, sizeof load, "; with room for %g times the mean's rows", c->moe->load.rows);
    snprintf(out->reason, sizeof out->reason, "experts: %s%s%s; device %s%s, host %s%s%s%s%s%s%s",
             weft_tier_text(o->experts),
             config->tier.experts != WEFT_TIER_AUTO ? ""
             : c->fits                              ? " (auto: the first that fits)"
                                                    : " (auto: nothing fits)",
             kept, weft_bytes_text((double)f->bytes[ON_DEVICE]).text,
             of_text(f->limit[ON_DEVICE], limits[ON_DEVICE]),
             weft_bytes_text((double)f->footprint[ON_HOST].bytes[WEFT_MEMORY_PINNED]).text,
             of_text(f->limit[ON_HOST], limits[ON_HOST]),
             room_of(c->room, f->stage[ON_HOST])->is_host && f->limit[ON_HOST] < UINT64_MAX
                 ? " that the device's is part of"
                 : "",
             f->footprint[ON_HOST].num_offloaded > 0 ? ": " : "",
             host_text(&f->footprint[ON_HOST], host, sizeof host), file, load);
}

/* What is left open is chosen for uneven routing, with what growing takes; where that fits nowhere
 * without that, or for routing as it is asked. Then no memory is left to keep experts by. */
typedef enum choosing_for { FOR_GROWING, FOR_UNEVEN, FOR_EVEN } choosing_for;

static weft_status choose_for(choosing_for what, choosing *c, const weft_config *config,
                              weft_tier_selection *out)
{
    weft_moe_options uneven = *c->moe;
    const weft_moe_options *asked = c->moe;
    const double load = fmin(UNEVEN_LOAD, weft_moe_worst_load(config, c->mesh));
    uneven.load.rows = fmax(asked->load.rows, load);
    c->config = *config;
    c->config.is_trial = true;
    c->fits = false;
    c->grows = what == FOR_GROWING;
    c->moe = what == FOR_EVEN ? asked : &uneven;
    weft_status status = choose_degree(c, config);
    if (status == WEFT_OK && c->config.tier.experts != WEFT_TIER_NONE && config->tier.kept < 0)
        status = choose_kept(c, what == FOR_GROWING || !(load > 1));
    if (status == WEFT_OK) {
        out->options = c->config.tier;
        out->fits = c->fits;
        tell(c, config, out);
    }
    c->moe = asked;
    return status;
}

weft_status weft_tier_choose(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                             const weft_moe_options *moe, const weft_tier_room *room,
                             weft_tier_selection *out)
{
    remembered trials[MOST_REMEMBERED];
    choosing c = {.use = use,
                  .config = *config,
                  .mesh = mesh,
                  .moe = moe,
                  .room = room,
                  .trials = trials,
                  .brief = config->is_trial};
    c.config.is_trial = true;
    const bool is_even = !(weft_moe_worst_load(config, mesh) > 1);
    *out = (weft_tier_selection){
        .options = config->tier, .chosen = weft_tier_is_open(config), .fits = true};
    if (!has_tier(config))
        return weft_tier_pins(config) ? try(&c, WEFT_TIER_NONE, 0, &out->fits) : WEFT_OK;
    for (int what = out->chosen && !is_even ? FOR_GROWING : FOR_EVEN; what <= FOR_EVEN; what++) {
        WEFT_TRY(choose_for((choosing_for)what, &c, config, out));
        if (out->fits)
            break;
    }
    return WEFT_OK;
}

weft_status weft_tier_require(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                              const weft_moe_options *moe, const weft_tier_room *room,
                              weft_tier_selection *out)
{
    weft_config copy = *config;
    weft_arena arena = {0};
    weft_step step;
    WEFT_TRY(weft_tier_choose(use, config, mesh, moe, room, out));
    if (out->fits)
        return WEFT_OK;
    copy.tier = out->options;
    weft_status status = weft_step_make(use, &copy, mesh, moe, &arena, &step);
    if (status == WEFT_OK) {
        status = weft_tier_check_room(&copy, mesh, &step, room);
        weft_step_release(&step);
    }
    weft_arena_release(&arena);
    return status;
}
