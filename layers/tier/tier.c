#include "layers/tier/tier.h"

#include <math.h>

#include "core/key_rows.h"
#include "schedule/moe/layer.h"

#define NO_TIER "offload.experts is none"
#define ON_EACH_RANK                                                                               \
    "parallel.expert_model_parallel_size is at most 1 (parallel.expert_model_parallel_size is at " \
    "most 1 and parallel.expert_binding is dp)"
#define DEVICE_STEPS                                                                               \
    NO_TIER " and offload.optimizer_state device; " NO_TIER " and offload.optimizer_state device " \
            "(" NO_EXPERTS " and offload.optimizer_state is device)"
#define T weft_tier_options
const weft_key weft_tier_rows[] = {
    CHOICE(STEP, experts, "\"none\"", "none|host|file|auto",
           "where experts and their state are: device, host memory, a file; the first that fits",
           .idle = NO_EXPERTS,
           .refused = "does not go with model.mtp_num_layers above 1, whose layer has the experts "
                      "of several (is not none and model.num_experts is not 0 and "
                      "model.mtp_num_layers is not at most 1)"),
    RANGE(STEP, slots, "2", 2, 1024, "experts", "whose weights are on the device at a time",
          .idle = NO_EXPERTS "; " NO_TIER "; offload.order is layer"),
    REAL(STEP, kept, "0", -1, 1,
         "share of a rank's experts that stay on the device: the most loaded; -1: as many as fit",
         .idle = NO_EXPERTS "; " NO_TIER),
    CHOICE(STEP, order, "\"expert\"", "expert|demand|layer",
           "when experts go up: slots ahead; each when it is due; all of a layer first",
           .idle = NO_EXPERTS "; " NO_TIER),
    CHOICE(STEP, optimizer, "\"auto\"", "auto|after",
           "the host steps experts beside backward, if clipped beside the next forward; or after",
           .idle = NO_EXPERTS "; " NO_TIER),
    CHOICE(STEP, optimizer_state, "\"device\"", "device|host",
           "where masters and moments are of all that is not an expert elsewhere; host: it steps"),
    RANGE(STEP, num_threads, "0", 0, 4096, "threads",
          "that step on the host; 0: as many as device.num_threads", .idle = DEVICE_STEPS),
    RANGE(
        FREE, host_memory_limit, "0", 0, 1e18, "bytes",
        "pinned host memory a rank may take; 0: its share of what machine and control group leave",
        .idle = DEVICE_STEPS),
    CHOICE(FREE, io, "\"auto\"", "auto|uring|threads",
           "what reads and writes the experts' file; auto: io_uring where it works",
           .idle = NO_EXPERTS "; " NO_FILE),
    TEXT(FREE, path, "\"/tmp\"",
         "folder of the experts' file, which has no name and is gone with the process",
         .idle = NO_EXPERTS "; " NO_FILE),
    CHOICE(FREE, eviction, "\"program\"", "program|lru",
           "which expert leaves host memory: the one used again last, or used least recently",
           .idle = NO_EXPERTS "; " NO_FILE),
    REAL(STEP, cached, "0.25", 0, 1,
         "share of a rank's experts in a file that host memory has places for; at least two",
         .idle = NO_EXPERTS "; " NO_FILE),
    RANGE(FREE, file_limit, "0", 0, 9e15, "bytes",
          "that a rank's file of experts may take; 0: no limit", .idle = NO_EXPERTS "; " NO_FILE),
    CHOICE(STEP, placement, "\"home\"", "home|balanced",
           "where experts compute: on their rank, or each micro-batch dealt out inside the node",
           .idle = NO_EXPERTS "; " NO_TIER "; " ON_EACH_RANK),
    RANGE(STEP, replicas, "1", 1, 64, "ranks",
          "balanced: over which a hotter expert than a rank's mean is split, at most",
          .idle = NO_EXPERTS "; " NO_TIER "; offload.placement is home; " ON_EACH_RANK),
    CHOICE(STEP, chosen_experts, "\"auto\"", "none|host|file|auto",
           "written into a run's config where experts or kept are left open: what it took"),
    REAL(STEP, chosen_kept, "-1", -1, 1, "likewise, of kept"),
    REAL(STEP, chosen_cached, "-1", -1, 1, "likewise, of cached"),
};
const size_t weft_num_tier_rows = sizeof weft_tier_rows / sizeof *weft_tier_rows;

const char *weft_tier_text(int tier)
{
    static const char *const texts[] = {"none", "host", "file", "auto"};
    return tier >= 0 && tier <= WEFT_TIER_AUTO ? texts[tier] : "?";
}

bool weft_tier_is_left_open(const weft_tier_options *o)
{
    return o->experts == WEFT_TIER_AUTO || (o->experts != WEFT_TIER_NONE && o->kept < 0);
}

weft_tier_options weft_tier_as_asked(const weft_tier_options *o)
{
    weft_tier_options asked = *o;
    asked.chosen_experts = WEFT_TIER_AUTO;
    asked.chosen_kept = asked.chosen_cached = -1;
    return asked;
}

weft_tier_options weft_tier_as_ran(const weft_tier_options *o)
{
    weft_tier_options ran = weft_tier_as_asked(o);
    if (!weft_tier_is_left_open(o) || o->chosen_experts == WEFT_TIER_AUTO)
        return ran;
    ran.experts = o->chosen_experts;
    ran.kept = o->chosen_kept >= 0 ? o->chosen_kept : ran.kept;
    ran.cached = o->chosen_cached >= 0 ? o->chosen_cached : ran.cached;
    return ran;
}

weft_tier_options weft_tier_with_choice(const weft_tier_options *o, const weft_tier_options *ran)
{
    weft_tier_options out = weft_tier_as_asked(o);
    if (!weft_tier_is_left_open(o) || weft_tier_is_left_open(ran))
        return out;
    out.chosen_experts = ran->experts;
    out.chosen_kept = ran->kept;
    out.chosen_cached = ran->cached;
    return out;
}

weft_tier_options weft_tier_closed(const weft_tier_options *o)
{
    weft_tier_options closed = *o;
    if (o->experts == WEFT_TIER_AUTO)
        closed.experts = WEFT_TIER_NONE;
    if (o->kept < 0)
        closed.kept = 0;
    return closed;
}

weft_experts_file weft_tier_file(const weft_tier_options *o, size_t state_bytes)
{
    return (weft_experts_file){.folder = o->path,
                               .io = (weft_spill_io)o->io,
                               .eviction = (weft_spill_eviction)o->eviction,
                               .cached = o->cached,
                               .file_limit = (uint64_t)o->file_limit,
                               .state_bytes = state_bytes};
}

size_t weft_tier_state_bytes(weft_dtype dtype, bool split_master)
{
    const size_t master = dtype == WEFT_F32 ? 0 : split_master && dtype == WEFT_BF16 ? 2 : 4;
    return master + 2 * sizeof(float);
}

int weft_tier_num_kept(const weft_tier_options *o, int num_experts)
{
    return o->experts == WEFT_TIER_NONE ? 0 : (int)floor(o->kept * num_experts + 1e-9);
}

int weft_tier_num_seats(const weft_tier_options *o, int num_experts, int num_ranks)
{
    return weft_tier_is_placed(o) ? num_experts * num_ranks : num_experts;
}

bool weft_tier_is_placed(const weft_tier_options *o)
{
    return o->experts == WEFT_TIER_HOST && o->placement == WEFT_TIER_BALANCED;
}

int weft_tier_num_slots(const weft_tier_options *o, int num_experts, int num_ranks)
{
    const int others =
        weft_tier_num_seats(o, num_experts, num_ranks) - weft_tier_num_kept(o, num_experts);
    const int wanted = o->order == WEFT_EXPERT_ORDER_LAYER ? others : (int)o->slots;
    return wanted < others ? wanted : others;
}

/* A layer's share of the places in host memory, which all layers share. */
static int num_places(const weft_tier_options *o, int num_experts)
{
    weft_records_sizes sizes = {.num_records = num_experts};
    if (o->experts != WEFT_TIER_FILE)
        return 0;
    weft_records_choose(&sizes, o->cached);
    return sizes.num_places;
}

weft_experts_shape weft_tier_shape(const weft_tier_options *o, int num_experts, int num_ranks,
                                   bool accumulates)
{
    return (weft_experts_shape){.num_positions = weft_tier_num_seats(o, num_experts, num_ranks),
                                .num_kept = weft_tier_num_kept(o, num_experts),
                                .num_slots = weft_tier_num_slots(o, num_experts, num_ranks),
                                .num_gradient_slots = WEFT_TIER_GRADIENTS,
                                .order = (weft_expert_order)o->order,
                                .accumulates = accumulates,
                                .num_places = num_places(o, num_experts)};
}

/* One upload of an expert serves all its rows. */
static weft_status check_partitions(const weft_tier_options *o,
                                    const weft_schedule_options *schedule)
{
    const long long n = schedule->moe_num_partitions;
    const int by = schedule->moe_partition_by;
    if (by == WEFT_MOE_PARTITION_BY_PEERS)
        return WEFT_KEY_ERROR("parallel.moe_partition_by",
                              "peers with offload.experts %s: an expert's weights go up once for "
                              "all its rows; experts would",
                              weft_tier_text(o->experts));
    if (n != 1 && !weft_tier_cuts_experts(o, schedule))
        return WEFT_KEY_ERROR("parallel.moe_num_partitions",
                              "%lld with offload.experts %s: an expert's weights go up once for "
                              "all its rows; 1 would, or moe_partition_by experts",
                              n, weft_tier_text(o->experts));
    if (n == 0 && (schedule->moe_choice == WEFT_MOE_CHOICE_QUICK ||
                   schedule->moe_choice == WEFT_MOE_CHOICE_PHASES))
        return WEFT_KEY_ERROR("parallel.moe_choice",
                              "%s knows nothing of uploads, and moe_num_partitions is 0 with "
                              "offload.experts %s; price would, or profile",
                              schedule->moe_choice == WEFT_MOE_CHOICE_QUICK ? "quick" : "phases",
                              weft_tier_text(o->experts));
    if (n != 1 && o->placement == WEFT_TIER_BALANCED)
        return WEFT_KEY_ERROR("parallel.moe_num_partitions",
                              "%lld with offload.placement balanced, which deals out all of a "
                              "layer's experts at once; 1 would, or home",
                              n);
    if (schedule->moe_memory_reuse != WEFT_REUSE_NONE)
        return WEFT_KEY_ERROR("parallel.moe_memory_reuse",
                              "reuses buffers of partitions, and offload.experts %s keeps them; "
                              "none would",
                              weft_tier_text(o->experts));
    return WEFT_OK;
}

bool weft_tier_cuts_experts(const weft_tier_options *o, const weft_schedule_options *schedule)
{
    const int by = schedule->moe_partition_by;
    return by == WEFT_MOE_PARTITION_BY_EXPERTS ||
           (by == WEFT_MOE_PARTITION_BY_AUTO && schedule->moe_num_partitions == 0 &&
            o->experts != WEFT_TIER_NONE);
}

/* What no model and no other key makes right. */
static weft_status check_values(const weft_tier_options *o)
{
    const struct {
        const char *key;
        double share;
    } shares[] = {{"offload.kept", o->kept},
                  {"offload.chosen_kept", o->chosen_kept},
                  {"offload.chosen_cached", o->chosen_cached}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        if (shares[i].share < 0 && shares[i].share != -1)
            return WEFT_KEY_ERROR(shares[i].key, "%g is out of range: a share of 0 to 1, or -1",
                                  shares[i].share);
    return o->path && !*o->path ? WEFT_KEY_ERROR("offload.path", "empty; a folder would do")
                                : WEFT_OK;
}

weft_status weft_tier_check(const weft_tier_options *o, const weft_model_options *model,
                            const weft_schedule_options *schedule)
{
    WEFT_TRY(check_values(o));
    if (o->experts == WEFT_TIER_NONE || model->num_experts == 0)
        return WEFT_OK;
    if (o->placement == WEFT_TIER_BALANCED && o->experts == WEFT_TIER_FILE)
        return WEFT_KEY_ERROR("offload.placement",
                              "balanced deals out experts in host memory, and offload.experts is "
                              "file; home would");
    if (o->placement == WEFT_TIER_BALANCED && o->order == WEFT_EXPERT_ORDER_LAYER)
        return WEFT_KEY_ERROR("offload.placement",
                              "balanced with offload.order layer, which has slots for a rank's own "
                              "experts; expert or demand would");
    return check_partitions(o, schedule);
}
