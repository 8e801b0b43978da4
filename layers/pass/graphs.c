#include "layers/pass/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"

/* The most graphs: boundary slots times passes in flight times chunks that they serve; further
 * calls run without. */
enum { MAX_GRAPHS = 256 };

typedef struct graph_key {
    const weft_pass *pass;
    const weft_lane *lane;
    const void *from, *to;
    const weft_deferred *deferred;
    int chunk;
    weft_pass_kind kind;
    bool training, overwrite;
} graph_key;

/* The host's state of a pass after its enqueueing. */
typedef struct host_state {
    char *states;
    weft_stack stash, host, deferred;
    size_t num_works; /* all passes of a chunk have the same ones */
} host_state;

typedef struct kept_pass {
    graph_key key;
    float loss_scale;
    weft_graph *graph; /* NULL: the call has run once so far */
    host_state after;
} kept_pass;

struct weft_graphs {
    kept_pass kept[MAX_GRAPHS];
    int num_kept;
    uint64_t num_replays;
};

/* --- which models -------------------------------------------------------------------------- */

bool weft_graphs_fit(const weft_model *model)
{
    bool fit = weft_device_has_graphs(model->setup.device) && model->shape.tp == 1 &&
               model->shape.cp == 1 && !model->memory.rings.gather;
    for (int i = 0; i < model->tree.num_layers; i++)
        fit =
            fit && (!weft_model_has_layer(model, i) || weft_layer_is_static(model->tree.layers[i]));
    return fit;
}

static size_t token_bytes(const weft_model *model)
{
    return weft_shape_local_tokens(&model->shape) * sizeof(int32_t);
}

static weft_status allocate_near(weft_model *model, const char *what, void **out)
{
    return weft_device_alloc_for(model->setup.device, WEFT_SPACE_DEVICE, WEFT_MEMORY_SCRATCH,
                                 token_bytes(model), what, out);
}

static int num_inputs(const weft_model *model)
{
    return model->setup.documents ? WEFT_PASS_INPUTS : WEFT_PASS_PLAIN_INPUTS;
}

weft_status weft_graphs_create(weft_model *model)
{
    model->run.graphs = calloc(1, sizeof *model->run.graphs);
    if (!model->run.graphs)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: graphs");
    for (int i = 0; i < model->setup.num_passes; i++) {
        void *losses = NULL;
        for (int input = 0; input < num_inputs(model); input++)
            WEFT_TRY(allocate_near(model, "tokens", &model->memory.passes[i].near[input]));
        if (model->setup.losses)
            WEFT_TRY(allocate_near(model, "losses", &losses));
        model->memory.passes[i].near_losses = losses;
    }
    return WEFT_OK;
}

void weft_graphs_destroy(weft_model *model)
{
    weft_graphs *graphs = model->run.graphs;
    if (!graphs)
        return;
    for (int i = 0; i < graphs->num_kept; i++) {
        weft_graph_destroy(graphs->kept[i].graph);
        free(graphs->kept[i].after.states);
    }
    free(graphs);
    model->run.graphs = NULL;
    for (int i = 0; i < model->setup.num_passes; i++) {
        for (int input = 0; input < num_inputs(model); input++)
            weft_device_free(model->setup.device, WEFT_SPACE_DEVICE,
                             model->memory.passes[i].near[input], token_bytes(model));
        if (model->memory.passes[i].near_losses)
            weft_device_free(model->setup.device, WEFT_SPACE_DEVICE,
                             model->memory.passes[i].near_losses, token_bytes(model));
    }
}

uint64_t weft_model_num_replays(const weft_model *model)
{
    return model->run.graphs ? model->run.graphs->num_replays : 0;
}

weft_status weft_graphs_take_tokens(weft_pass *pass)
{
    const weft_model *model = pass->model;
    weft_micro_batch *m = &pass->micro_batch;
    const bool reads = pass->first == 0, judges = pass->end == model->tree.num_layers;
    const void *from[WEFT_PASS_INPUTS] = {reads ? m->tokens : NULL, judges ? m->labels : NULL,
                                          m->positions, m->first_seen,
                                          judges ? m->label_weights : NULL};
    for (int i = 0; i < WEFT_PASS_INPUTS; i++)
        if (from[i])
            WEFT_TRY(weft_lane_copy(pass->lane, pass->near[i], from[i], token_bytes(model)));
    m->tokens = from[0] ? pass->near[0] : m->tokens;
    m->labels = from[1] ? pass->near[1] : m->labels;
    m->positions = from[2] ? pass->near[2] : NULL;
    m->first_seen = from[3] ? pass->near[3] : NULL;
    m->label_weights = from[4] ? pass->near[4] : NULL;
    pass->far_losses = judges ? m->losses : NULL;
    m->losses = pass->far_losses ? pass->near_losses : NULL;
    return WEFT_OK;
}

weft_status weft_graphs_give_losses(weft_pass *pass)
{
    return pass->far_losses ? weft_lane_copy(pass->lane, pass->far_losses, pass->near_losses,
                                             token_bytes(pass->model))
                            : WEFT_OK;
}

/* --- capturing and replaying --------------------------------------------------------------- */

static weft_status save(const weft_pass *pass, host_state *out)
{
    size_t bytes = pass->model->tree.states_bytes;
    if (!out->states)
        out->states = malloc(bytes + 1);
    if (!out->states)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: graphs");
    memcpy(out->states, pass->states, bytes);
    out->stash = pass->stash;
    out->host = pass->host;
    if (pass->deferred) {
        out->deferred = pass->deferred->stack;
        out->num_works = pass->deferred->num_works;
    }
    return WEFT_OK;
}

static void restore(const host_state *saved, weft_pass *pass)
{
    memcpy(pass->states, saved->states, pass->model->tree.states_bytes);
    weft_stack_restore(&saved->stash, &pass->stash);
    weft_stack_restore(&saved->host, &pass->host);
    if (pass->deferred) {
        weft_stack_restore(&saved->deferred, &pass->deferred->stack);
        pass->deferred->num_works = saved->num_works;
    }
}

static weft_status capture(kept_pass *kept, const weft_pass_call *call, weft_pass_enqueue enqueue)
{
    weft_pass *pass = call->pass;
    WEFT_TRY(weft_graph_begin(pass->lane));
    weft_status status = enqueue(call);
    if (status != WEFT_OK) {
        weft_error first;
        weft_error_take(&first);
        status = weft_graph_end(pass->lane, NULL); /* the first error is of more use */
        return weft_error_put(&first);
    }
    WEFT_TRY(weft_graph_end(pass->lane, &kept->graph));
    return save(pass, &kept->after);
}

static graph_key key_of(const weft_pass_call *call)
{
    const weft_pass *pass = call->pass;
    graph_key key;
    memset(&key, 0, sizeof key); /* keys are compared byte by byte */
    key.pass = pass;
    key.lane = pass->lane;
    key.from = call->from ? call->from->data : NULL;
    key.to = call->to ? call->to->data : NULL;
    key.deferred = call->deferred;
    key.chunk = pass->chunk;
    key.kind = call->kind;
    key.training = pass->micro_batch.training;
    key.overwrite = weft_pass_overwrite(pass);
    return key;
}

static kept_pass *find(weft_graphs *graphs, const graph_key *key)
{
    for (int i = 0; i < graphs->num_kept; i++)
        if (memcmp(&graphs->kept[i].key, key, sizeof *key) == 0)
            return &graphs->kept[i];
    return NULL;
}

weft_status weft_graphs_run(const weft_pass_call *call, weft_pass_enqueue enqueue)
{
    weft_pass *pass = call->pass;
    weft_graphs *graphs = pass->model->run.graphs;
    float loss_scale = pass->micro_batch.training ? pass->micro_batch.loss_scale : 0;
    graph_key key = key_of(call);
    kept_pass *kept = find(graphs, &key);

    if (!kept || kept->loss_scale != loss_scale) {
        if (!kept && graphs->num_kept == MAX_GRAPHS)
            return enqueue(call);
        if (!kept)
            kept = &graphs->kept[graphs->num_kept++];
        weft_graph_destroy(kept->graph); /* from a finished step */
        kept->graph = NULL;
        kept->key = key;
        kept->loss_scale = loss_scale;
        return enqueue(call);
    }
    if (!kept->graph)
        WEFT_TRY(capture(kept, call, enqueue));
    else
        restore(&kept->after, pass);
    graphs->num_replays++;
    return weft_graph_replay(kept->graph, pass->lane);
}
