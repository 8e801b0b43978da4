#include "parallel/mesh/internal.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"

enum { NUM_LETTERS = 5, MAX_WORLD = 1 << 20 };

static const char *const default_order = "tp-cp-ep-dp-pp";

static weft_status check_bounds(const weft_parallel_options *o, int world)
{
    if (world < 1 || world > MAX_WORLD)
        return WEFT_ERROR(WEFT_CONFIG, "a mesh of %d ranks: 1 to %d are possible", world,
                          MAX_WORLD);
    for (size_t i = 0; i < weft_num_parallel_rows; i++) {
        const weft_key *row = &weft_parallel_rows[i];
        if (row->resume != WEFT_RESUME_SIZE)
            continue;
        const int64_t value = *(const int64_t *)((const char *)o + row->offset);
        char key[64];
        snprintf(key, sizeof key, "parallel.%s", row->key);
        if (value < (int64_t)row->min)
            return WEFT_KEY_ERROR(key, " %lld: at least %lld", (long long)value,
                                  (long long)row->min);
        if (value > MAX_WORLD)
            return WEFT_KEY_ERROR(key, " %lld is more than the %s", (long long)value,
                                  weft_count_text(world, "rank").text);
    }
    return WEFT_OK;
}

static weft_status check_order(const char *order)
{
    bool seen[NUM_LETTERS] = {false};
    bool good = strlen(order) == strlen(default_order);
    for (int i = 0; good && i < NUM_LETTERS; i++) {
        int letter = 0;
        while (letter < NUM_LETTERS && strncmp(order + 3 * i, default_order + 3 * letter, 2))
            letter++;
        good = letter < NUM_LETTERS && !seen[letter] && (order[3 * i + 2] == '-' || i == 4);
        if (good)
            seen[letter] = true;
    }
    if (!good)
        return WEFT_KEY_ERROR("parallel.order",
                              " '%.40s': each of tp, cp, ep, dp and pp once, joined by '-', such "
                              "as %s",
                              order, default_order);
    return WEFT_OK;
}

/* tp x cp x pp must divide the ranks: names the size that the others leave room for. */
static weft_status refuse_product(const weft_parallel_options *o, int world)
{
    int64_t tp = o->tensor_model_parallel_size, pp = o->pipeline_model_parallel_size;
    int64_t cp = o->context_parallel_size;
    bool by_cp = cp > 1 && tp * pp <= world && world % (tp * pp) == 0;
    bool by_pp = world % (pp * cp) != 0 && world % (tp * cp) == 0;
    char context[48] = "";
    if (by_cp)
        return WEFT_KEY_ERROR("parallel.context_parallel_size",
                              " %lld x tensor %lld x pipeline %lld = %lld does not divide %s",
                              (long long)cp, (long long)tp, (long long)pp,
                              (long long)(tp * cp * pp), weft_count_text(world, "rank").text);
    if (cp > 1)
        snprintf(context, sizeof context, " x context %lld", (long long)cp);
    return WEFT_KEY_ERROR(
        by_pp ? "parallel.pipeline_model_parallel_size" : "parallel.tensor_model_parallel_size",
        " %lld x %s %lld%s = %lld does not divide %s", (long long)(by_pp ? pp : tp),
        by_pp ? "tensor" : "pipeline", (long long)(by_pp ? tp : pp), context,
        (long long)(tp * cp * pp), weft_count_text(world, "rank").text);
}

static int64_t product_of(const weft_int_list *sizes)
{
    int64_t product = 1;
    for (size_t i = 0; i < sizes->count && product < INT32_MAX; i++)
        product *= sizes->values[i];
    return product;
}

/* [inside a node, between]: which neighbours deal heads, and how long the ring of them is. What is
 * left open is p2p, which is always legal, until it is chosen. */
static weft_status check_context(const weft_parallel_options *o, weft_mesh *mesh)
{
    enum { P2P = 0, A2A_P2P = 3, AUTO };
    const char *key = "parallel.hierarchical_context_parallel_sizes";
    const weft_int_list *sizes = &o->hierarchical_context_parallel_sizes;
    mesh->cp_comm_type = o->cp_comm_type == AUTO ? P2P : o->cp_comm_type;
    if (mesh->cp == 1 || o->cp_comm_type != A2A_P2P)
        return WEFT_OK;
    if (!sizes->is_array && sizes->count == 1 && sizes->values[0] > 0) {
        int inner = 2;
        char example[48] = ", or another cp_comm_type"; /* a prime has no two above 1 */
        while (inner < mesh->cp && mesh->cp % inner != 0)
            inner++;
        if (inner < mesh->cp)
            snprintf(example, sizeof example, ", like [%d, %d]", inner, mesh->cp / inner);
        return WEFT_KEY_ERROR(key,
                              " is one size, %lld; cp_comm_type a2a+p2p needs two, whose product "
                              "is context_parallel_size, %d%s",
                              (long long)sizes->values[0], mesh->cp, example);
    }
    if (!sizes->is_array)
        return WEFT_KEY_ERROR(key, " is not given; cp_comm_type a2a+p2p needs two sizes, whose "
                                   "product is context_parallel_size");
    if (sizes->count != 2 || sizes->values[0] * sizes->values[1] != mesh->cp)
        return WEFT_KEY_ERROR(key,
                              " has %zu sizes of product %lld; two, whose product is "
                              "context_parallel_size, %d, would fit, or another cp_comm_type",
                              sizes->count, (long long)product_of(sizes), mesh->cp);
    if (sizes->values[0] == 1 || sizes->values[1] == 1)
        return WEFT_KEY_ERROR(key,
                              " [%lld, %lld]: both are above 1; cp_comm_type %s is what this "
                              "is",
                              (long long)sizes->values[0], (long long)sizes->values[1],
                              sizes->values[0] == 1 ? "p2p" : "a2a");
    mesh->cp_inner = (int)sizes->values[0];
    return WEFT_OK;
}

static weft_status check_dense(const weft_parallel_options *o, int world, weft_mesh *mesh)
{
    int64_t tp = o->tensor_model_parallel_size, pp = o->pipeline_model_parallel_size;
    int64_t cp = o->context_parallel_size;
    /* bounded by 2^20 each: two of them cannot overflow, the third is compared first */
    if (tp * pp > world || tp * pp * cp > world || world % (tp * pp * cp))
        return refuse_product(o, world);
    mesh->tp = (int)tp;
    mesh->cp = (int)cp;
    mesh->pp = (int)pp;
    mesh->dp = (int)(world / (tp * pp * cp));
    WEFT_TRY(check_context(o, mesh));
    if (o->data_parallel_size && o->data_parallel_size != mesh->dp)
        return WEFT_KEY_ERROR("parallel.data_parallel_size",
                              " %lld: tensor %d x context %d x pipeline %d leave %d of %s; give "
                              "%d, or leave it out",
                              (long long)o->data_parallel_size, mesh->tp, mesh->cp, mesh->pp,
                              mesh->dp, weft_count_text(world, "rank").text, mesh->dp);
    if (o->sequence_parallel && tp == 1)
        return WEFT_KEY_ERROR("parallel.sequence_parallel",
                              " has no effect with tensor_model_parallel_size 1; it needs tp above "
                              "1");
    return WEFT_OK;
}

/* Experts in the tensor-parallel group (PPMoE §3.3.2): N experts a rank, N x tp = E. */
static weft_status check_binding_tp(const weft_parallel_options *o, int64_t num_experts,
                                    weft_mesh *mesh)
{
    int64_t ep = o->expert_model_parallel_size, etp = o->expert_tensor_parallel_size;
    if (ep && ep != mesh->tp)
        return WEFT_KEY_ERROR("parallel.expert_model_parallel_size",
                              " %lld: expert_binding tp puts the experts on the tensor-parallel "
                              "ranks, so ep is tp, %d; leave it out, or choose expert_binding dp",
                              (long long)ep, mesh->tp);
    if (etp > 1)
        return WEFT_KEY_ERROR("parallel.expert_tensor_parallel_size",
                              " %lld: with expert_binding tp every expert is whole on one rank, so "
                              "etp is 1; expert_binding dp can split experts",
                              (long long)etp);
    if (num_experts % mesh->tp)
        return WEFT_KEY_ERROR(
            "parallel.tensor_model_parallel_size",
            " %d: expert_binding tp spreads num_experts %lld over the tensor-parallel ranks, which "
            "does not come out even (expert_binding dp need not)",
            mesh->tp, (long long)num_experts);
    mesh->ep = mesh->tp;
    mesh->etp = 1;
    mesh->edp = mesh->cp * mesh->dp;
    return WEFT_OK;
}

/* Experts over the data-parallel ranks, or over all ranks of a stage when they are whole. */
static weft_status check_binding_dp(const weft_parallel_options *o, int64_t num_experts,
                                    weft_mesh *mesh)
{
    int64_t ep = o->expert_model_parallel_size ? o->expert_model_parallel_size : 1;
    int64_t etp = o->expert_tensor_parallel_size ? o->expert_tensor_parallel_size : 1;
    if (etp != 1 && etp != mesh->tp)
        return WEFT_KEY_ERROR("parallel.expert_tensor_parallel_size",
                              " %lld: 1 (experts whole) or tensor_model_parallel_size, %d",
                              (long long)etp, mesh->tp);
    int64_t stage = mesh->world / mesh->pp;
    if (ep > stage || stage % (ep * etp))
        return WEFT_KEY_ERROR("parallel.expert_model_parallel_size",
                              " %lld x expert tensor %lld = %lld does not divide the %lld ranks of "
                              "a pipeline stage",
                              (long long)ep, (long long)etp, (long long)(ep * etp),
                              (long long)stage);
    if (num_experts % ep)
        return WEFT_KEY_ERROR("parallel.expert_model_parallel_size",
                              " %lld does not divide num_experts %lld", (long long)ep,
                              (long long)num_experts);
    mesh->ep = (int)ep;
    mesh->etp = (int)etp;
    mesh->edp = (int)(stage / (ep * etp));
    return WEFT_OK;
}

/* Where the order lets the two grids part: pipeline groups must be the same in both (Megatron
 * asserts this too), and a sharded expert must lie on exactly one tensor-parallel group, whose
 * ranks hold the same tokens. */
static weft_status check_grids(const weft_mesh *mesh)
{
    if (mesh->pp > 1 &&
        weft_mesh_stride(mesh, false, WEFT_AXIS_PP) != weft_mesh_stride(mesh, true, WEFT_AXIS_PP))
        return WEFT_KEY_ERROR("parallel.order",
                              " %s: the dense grid (tp %d, cp %d, dp %d) and the expert grid (etp "
                              "%d, ep %d, edp %d) would get different pipeline groups; put pp last",
                              mesh->order, mesh->tp, mesh->cp, mesh->dp, mesh->etp, mesh->ep,
                              mesh->edp);
    if (mesh->etp > 1 &&
        weft_mesh_stride(mesh, false, WEFT_AXIS_TP) != weft_mesh_stride(mesh, true, WEFT_AXIS_ETP))
        return WEFT_KEY_ERROR("parallel.order",
                              " %s: with expert_tensor_parallel_size %d the expert's shards would "
                              "not lie on one tensor-parallel group; put tp first",
                              mesh->order, mesh->etp);
    return WEFT_OK;
}

bool weft_mesh_leaves_chunks(const weft_parallel_options *o, const weft_mesh *mesh)
{
    const weft_int_list *chunks = &o->tp_comm_overlap_chunks;
    return o->tp_comm_overlap && mesh->tp > 1 && (chunks->count == 0 || chunks->values[0] == 0);
}

/* Chunks of tensor-parallel products. */
static weft_status check_chunks(const weft_parallel_options *o, weft_mesh *mesh)
{
    const weft_int_list *chunks = &o->tp_comm_overlap_chunks;
    mesh->attention_chunks = mesh->mlp_chunks = 1;
    if (!o->tp_comm_overlap || mesh->tp == 1)
        return WEFT_OK;
    if (chunks->is_array && chunks->count != 2)
        return WEFT_KEY_ERROR("parallel.tp_comm_overlap_chunks",
                              " has %zu numbers: one, or two, attention's and MLPs'",
                              chunks->count);
    if (chunks->is_array && (chunks->values[0] == 0 || chunks->values[1] == 0))
        return WEFT_KEY_ERROR("parallel.tp_comm_overlap_chunks",
                              " [%lld, %lld]: two numbers are from 1 on; 0, by price, stands alone",
                              (long long)chunks->values[0], (long long)chunks->values[1]);
    const bool is_open = weft_mesh_leaves_chunks(o, mesh);
    mesh->attention_chunks = is_open ? WEFT_TP_CHUNKS : (int)chunks->values[0];
    mesh->mlp_chunks = is_open ? WEFT_TP_CHUNKS : (int)chunks->values[chunks->count - 1];
    return WEFT_OK;
}

weft_status weft_mesh_build_plain(const weft_parallel_options *options, int world,
                                  int64_t num_experts, weft_mesh *out)
{
    const char *order = options->order ? options->order : default_order;
    weft_mesh mesh = {.world = world, .sequence_parallel = options->sequence_parallel};
    WEFT_TRY(check_bounds(options, world));
    if (num_experts < 0)
        return WEFT_KEY_ERROR("model.num_experts", " %lld: at least 0", (long long)num_experts);
    WEFT_TRY(check_order(order));
    memcpy(mesh.order, order, strlen(order) + 1);
    WEFT_TRY(check_dense(options, world, &mesh));
    mesh.stages_in_v = options->stages_in_v && mesh.pp > 1;
    WEFT_TRY(check_chunks(options, &mesh));

    if (!num_experts) { /* no expert grid: one group of every stage's ranks stands in for it */
        if (options->expert_model_parallel_size > 1)
            return WEFT_KEY_ERROR("parallel.expert_model_parallel_size",
                                  " %lld: the model has no experts (num_experts 0)",
                                  (long long)options->expert_model_parallel_size);
        if (options->expert_tensor_parallel_size > 1)
            return WEFT_KEY_ERROR("parallel.expert_tensor_parallel_size",
                                  " %lld: the model has no experts (num_experts 0)",
                                  (long long)options->expert_tensor_parallel_size);
        mesh.binding = WEFT_BINDING_DP;
        mesh.ep = mesh.etp = 1;
        mesh.edp = world / mesh.pp;
    } else if (options->expert_binding == WEFT_BINDING_TP) {
        mesh.binding = WEFT_BINDING_TP;
        WEFT_TRY(check_binding_tp(options, num_experts, &mesh));
    } else {
        mesh.binding = WEFT_BINDING_DP;
        WEFT_TRY(check_binding_dp(options, num_experts, &mesh));
        WEFT_TRY(check_grids(&mesh));
    }
    *out = mesh;
    return WEFT_OK;
}
