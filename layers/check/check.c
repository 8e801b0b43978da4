#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weft/check.h>

#include "core/device/device.h"
#include "core/log.h"
#include "core/sized.h"
#include "layers/check/internal.h"
#include "layers/describe/rehearse.h"

/* --- whether the lanes of a layer are ordered: in its rehearsal, where every order is known -- */

typedef struct finding {
    const char *layer;
    bool is_rehearsed;
    weft_race_words race; /* "": none */
} finding;

static weft_status see(void *context, const weft_layer *layer, const weft_device *device)
{
    finding *f = context;
    size_t count;
    weft_race race;
    const weft_noted *notes = weft_notes(device, &count);
    if (strcmp(weft_layer_name(layer), f->layer) != 0)
        return WEFT_OK;
    WEFT_TRY(weft_race_find(notes, count, weft_noted_ranges(device), &race));
    f->is_rehearsed = true;
    f->race = weft_race_text(&race);
    return WEFT_OK;
}

/* Rehearses the model: whether lanes of the layer, one of the list, touch the same bytes unordered
 * (core/device/device.h). *out: they do; then no rank can run it, since results would differ from
 * run to run. */
static weft_status check_races(const weft_check_layer *l, weft_check_report *report, bool *out)
{
    const weft_model *model = l->place->model;
    finding f = {.layer = weft_layer_name(l->layer)};
    const weft_witness witness = {see, &f};
    char check[48];
    snprintf(check, sizeof check, "races at %s", l->place->mesh);
    if (model->shape.tp == 1)
        check[strlen("races")] = '\0';
    *out = false;
    if (!l->in_list) /* rehearsed inside another */
        return WEFT_OK;
    WEFT_TRY(weft_rehearse_before(&witness, &model->options, model->setup.own_options,
                                  &model->shape, model->build));
    *out = f.race.text[0] != '\0';
    if (!f.is_rehearsed)
        weft_check_report_add(report, WEFT_CHECK_LEFT_OUT, check,
                              "it describes itself, and is not rehearsed");
    else if (!*out)
        weft_check_report_add(report, WEFT_CHECK_OK, check, "its lanes are ordered");
    else
        weft_check_report_add(report, WEFT_CHECK_WRONG, check,
                              "%s; record an event behind the first (weft_lane_record) and let the "
                              "other lane wait for it (weft_lane_wait)",
                              f.race.text);
    return WEFT_OK;
}

enum { MAX_PLACES = 4, BATCH = 2, MANY_PARAMETERS = 1000000 };

/* --- the alarm: how rank 0 learns of another rank's error before that rank ends the job ----- */

/* An error of one rank, told to rank 0 while rank 0 itself may wait in a collective. A thread of
 * each rank hears the next rank and tells the one before. */
typedef struct check_alarm {
    weft_comm *comm; /* NULL: of one rank, or not started */
    weft_check_report *report;
    pthread_t thread;
    bool listens;
} check_alarm;

enum { NEWS, TOLD }; /* tags */

typedef struct news {
    bool failed; /* else the check is over */
    char text[WEFT_ERROR_TEXT_BYTES];
} news;

/* To rank 0's report, or to the rank before, until that has told it. Where the ranks can no longer
 * talk the report stays as it is: the job ends. */
static void tell(const check_alarm *alarm, const news *what)
{
    int rank = weft_comm_rank(alarm->comm);
    bool told;
    weft_status status = WEFT_OK;
    if (rank > 0)
        status = weft_comm_send_host(alarm->comm, rank - 1, NEWS, what, sizeof *what);
    else if (what->failed)
        weft_check_report_fail(alarm->report, what->text);
    if (rank > 0 && what->failed && status == WEFT_OK)
        status = weft_comm_recv_host(alarm->comm, rank - 1, TOLD, &told, sizeof told);
    if (status != WEFT_OK)
        weft_error_clear();
}

static void *listen_to_next(void *argument)
{
    const check_alarm *alarm = argument;
    int next = weft_comm_rank(alarm->comm) + 1;
    bool told = true;
    news what = {0};
    if (weft_comm_recv_host(alarm->comm, next, NEWS, &what, sizeof what) != WEFT_OK || !what.failed)
        return NULL;
    tell(alarm, &what);
    if (weft_comm_send_host(alarm->comm, next, TOLD, &told, sizeof told) != WEFT_OK)
        weft_error_clear();
    return NULL;
}

/* Collective over world, as stop is, before which no rank has raised it. */
static weft_status start_alarm(weft_comm *world, weft_check_report *report, check_alarm *out)
{
    int rank = weft_comm_rank(world), size = weft_comm_size(world);
    out->report = report;
    if (size == 1)
        return WEFT_OK;
    WEFT_TRY(weft_comm_split(world, 0, rank, "alarm", WEFT_PURPOSE_CONTROL, &out->comm));
    bool hears = rank + 1 < size;
    out->listens = hears && pthread_create(&out->thread, NULL, listen_to_next, out) == 0;
    return hears && !out->listens ? WEFT_ERROR(WEFT_MEMORY, "no thread to hear rank %d", rank + 1)
                                  : WEFT_OK;
}

static void stop_alarm(check_alarm *alarm)
{
    if (!alarm->comm)
        return;
    if (alarm->listens)
        pthread_join(alarm->thread, NULL);
    tell(alarm, &(news){.failed = false});
    weft_comm_destroy(alarm->comm);
}

/* Returns when rank 0's report has this thread's error, which stays. */
static void raise_alarm(check_alarm *alarm)
{
    const weft_error error = *weft_error_get();
    news what = {.failed = true};
    weft_error_of_rank(error.status,
                       weft_comm_world_rank(alarm->comm, weft_comm_rank(alarm->comm)));
    memcpy(what.text, weft_error_get()->text, sizeof what.text);
    tell(alarm, &what);
    weft_error_put(&error);
}

/* --- a check ------------------------------------------------------------------------------- */

typedef struct check_job {
    const weft_check_setup *setup;
    weft_model_function build;
    weft_comm *world, *self;
    weft_check_place places[MAX_PLACES]; /* the first: one rank in fp32 */
    char meshes[MAX_PLACES][32];
    int num_places;
    weft_check_report report;
    check_alarm alarm;
} check_job;

/* --- which layers -------------------------------------------------------------------------- */

static bool alike(const weft_model_tree *t, int a, int b);

/* Whether the members' children are alike, in order. */
static bool alike_children(const weft_model_tree *t, int a, int b)
{
    int i = a + 1, k = b + 1;
    for (;; i++, k++) {
        while (i < t->num_members && t->members[i].parent != a)
            i++;
        while (k < t->num_members && t->members[k].parent != b)
            k++;
        if (i == t->num_members || k == t->num_members)
            return i == k || (i == t->num_members && k == t->num_members);
        if (!alike(t, i, k))
            return false;
    }
}

/* Whether the members use parameters of equal shapes, in order. */
static bool alike_parameters(const weft_model_tree *t, int a, int b)
{
    int i = 0, k = 0;
    for (;; i++, k++) {
        while (i < t->num_uses && t->uses[i].member != a)
            i++;
        while (k < t->num_uses && t->uses[k].member != b)
            k++;
        if (i == t->num_uses || k == t->num_uses)
            return i == t->num_uses && k == t->num_uses;
        const weft_tensor *first = &t->uses[i].parameter->weight,
                          *second = &t->uses[k].parameter->weight;
        if (first->num_dims != second->num_dims ||
            memcmp(first->dims, second->dims, (size_t)first->num_dims * sizeof *first->dims) != 0)
            return false;
    }
}

/* Whether layers are alike: kind, parameters, children, and both in the model's middle. */
static bool alike(const weft_model_tree *t, int a, int b)
{
    const weft_layer *first = t->members[a].layer, *second = t->members[b].layer;
    const weft_layer *ends[] = {t->layers[0], t->layers[t->num_layers - 1]};
    if (a == b)
        return true;
    for (int i = 0; i < 2; i++)
        if (first == ends[i] || second == ends[i])
            return false;
    if (first->ops != second->ops || (t->members[a].parent < 0) != (t->members[b].parent < 0))
        return false;
    return alike_parameters(t, a, b) && alike_children(t, a, b);
}

/* Whether the layer, or one that it is inside, is what setup->layer names. */
static bool is_wanted(const check_job *j, int index)
{
    const weft_model_tree *t = &j->places[0].model->tree;
    const char *wanted = j->setup->layer;
    for (; wanted && index >= 0; index = t->members[index].parent) {
        const weft_layer *layer = t->members[index].layer;
        if (strcmp(wanted, weft_layer_name(layer)) == 0 || strcmp(wanted, layer->ops->kind) == 0)
            return true;
    }
    return !wanted;
}

/* Whether to check the layer: no earlier one is alike. *out_alike: how many are, itself too. */
static bool is_chosen(const check_job *j, int index, int *out_alike)
{
    const weft_model_tree *t = &j->places[0].model->tree;
    *out_alike = 0;
    if (!is_wanted(j, index))
        return false;
    for (int i = 0; i < t->num_members; i++)
        if (is_wanted(j, i) && alike(t, i, index)) {
            if (i < index)
                return false;
            ++*out_alike;
        }
    return true;
}

/* --- where --------------------------------------------------------------------------------- */

static weft_status add_place(check_job *j, weft_comm *comm, weft_dtype dtype, const char *mesh)
{
    weft_check_place *place = &j->places[j->num_places];
    char *text = j->meshes[j->num_places++];
    snprintf(text, sizeof j->meshes[0], "%s", mesh);
    return weft_check_place_create(place, comm, j->setup, text, dtype, j->build);
}

/* A mesh that the model does not fit is left out. */
static weft_status try_place(check_job *j, weft_comm *comm, weft_dtype dtype, const char *mesh)
{
    weft_status status = weft_comm_agree(comm, add_place(j, comm, dtype, mesh));
    if (status != WEFT_CONFIG)
        return status;
    weft_check_report_note(&j->report, "%s: %.200s", mesh, weft_error_get()->text);
    weft_error_clear();
    weft_check_place_release(&j->places[--j->num_places]);
    return WEFT_OK;
}

static weft_status find_other_places(check_job *j)
{
    int tp = weft_comm_size(j->world);
    char mesh[32];
    if (j->setup->dtype != WEFT_F32)
        WEFT_TRY(try_place(j, j->self, j->setup->dtype, "tp=1"));
    if (tp == 1) {
        weft_check_report_note(&j->report, "tensor parallelism: it needs two ranks");
        return WEFT_OK;
    }
    snprintf(mesh, sizeof mesh, "tp=%d", tp);
    WEFT_TRY(try_place(j, j->world, WEFT_F32, mesh));
    snprintf(mesh, sizeof mesh, "tp=%d,sp=1", tp);
    return try_place(j, j->world, WEFT_F32, mesh);
}

/* Why a layer's results at this place cannot be compared; NULL: they can. */
static const char *not_comparable(const weft_check_place *p, const weft_check_layer *l)
{
    const weft_model_options *o = &p->model->options;
    if (!weft_check_has_experts(l))
        return NULL;
    if (p->dtype != WEFT_F32)
        return "rounding may choose other experts";
    if (o->moe_expert_capacity_factor > 0 && !weft_moe_dims_of(o, &p->model->shape).full)
        return "with a capacity, results depend on the mesh";
    return NULL;
}

/* --- the checks ---------------------------------------------------------------------------- */

static weft_status check_first(check_job *j, const weft_check_layer *l, weft_check_result *out)
{
    bool races;
    WEFT_TRY(check_races(l, &j->report, &races));
    if (races)
        return WEFT_OK;
    WEFT_TRY(weft_check_alone(l, &j->report, out));
    if (!out->is_whole)
        return WEFT_OK;
    WEFT_TRY(weft_check_gradients(l, out, &j->report));
    return weft_check_describe(l, &j->report);
}

static weft_status check_places(check_job *j, int index, const weft_check_result *wanted)
{
    for (int p = 1; p < j->num_places; p++) {
        weft_check_layer there;
        bool races = false;
        WEFT_TRY(weft_check_layer_of(&j->places[p], index, &there));
        if (j->places[p].model->shape.tp > 1)
            WEFT_TRY(check_races(&there, &j->report, &races));
        if (races)
            continue;
        const char *why = not_comparable(&j->places[p], &there);
        if (why)
            weft_check_report_add(&j->report, WEFT_CHECK_LEFT_OUT, j->meshes[p], "%s", why);
        else
            WEFT_TRY(weft_check_elsewhere(&there, wanted, &j->report));
        WEFT_TRY(weft_check_describe(&there, &j->report));
    }
    return WEFT_OK;
}

/* For ranks that work on a layer together: a failing rank ends the job, since others may wait for
 * it in a collective. If all fail, one of them prints the error. */
static weft_status take_down(check_job *j, weft_status status)
{
    const weft_error *error = weft_error_get();
    int speaker = error->is_shared ? error->speaker : 0;
    struct timespec grace = {.tv_sec = error->is_shared ? 5 : 1};
    if (status == WEFT_OK || weft_comm_size(j->world) == 1)
        return status;
    if (speaker != weft_comm_rank(j->world) && nanosleep(&grace, NULL) != 0)
        _exit(weft_status_exit_code(status)); /* ended by a signal, whose line is printed already */
    raise_alarm(&j->alarm);
    weft_log_error_record();
    weft_comm_abort(j->world, status);
    return status;
}

static weft_status check_member(check_job *j, int index, int num_alike)
{
    weft_check_layer l;
    weft_check_result result = {0};
    WEFT_TRY(weft_check_layer_of(&j->places[0], index, &l));
    weft_check_report_layer(&j->report, &l, num_alike);
    weft_status status = weft_comm_agree(j->world, check_first(j, &l, &result));
    if (status == WEFT_OK && result.is_whole)
        status = take_down(j, check_places(j, index, &result));
    weft_check_result_release(&result);
    return status;
}

/* Checks the layer's children, then the layer: a fault of a child shows under the child's name. */
static weft_status check_family(check_job *j, int index)
{
    const weft_model_tree *t = &j->places[0].model->tree;
    int num_alike;
    for (int i = index + 1; i < t->num_members; i++)
        if (t->members[i].parent == index)
            WEFT_TRY(check_family(j, i));
    return is_chosen(j, index, &num_alike) ? check_member(j, index, num_alike) : WEFT_OK;
}

static void say_if_large(const check_job *j)
{
    const weft_parameters *parameters = weft_model_parameters(j->places[0].model);
    uint64_t num_params = 0;
    for (int i = 0; i < weft_parameters_count(parameters); i++)
        num_params += weft_parameters_at(parameters, i)->count;
    if (num_params < MANY_PARAMETERS || !j->report.out || j->report.json)
        return;
    fprintf(j->report.out, "%.0f M parameters take long; sizes of a few dozen check the same\n",
            (double)num_params / 1e6);
    fflush(j->report.out);
}

static weft_status no_such_layer(const weft_model_tree *t, const char *wanted)
{
    const char *names[128];
    size_t count = 0;
    for (int i = 0; i < t->num_members && count + 2 <= sizeof names / sizeof *names; i++) {
        names[count++] = t->members[i].layer->ops->kind;
        names[count++] = weft_layer_name(t->members[i].layer);
    }
    const char *nearest = weft_nearest_name(wanted, names, count);
    return WEFT_ERROR(WEFT_CONFIG, "no layer has the name or kind %.80s%s%s%s", wanted,
                      nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static weft_status check_all(check_job *j)
{
    WEFT_TRY(weft_comm_agree(j->world, add_place(j, j->self, WEFT_F32, "tp=1")));
    say_if_large(j);
    WEFT_TRY(find_other_places(j));
    const weft_model_tree *t = &j->places[0].model->tree;
    for (int i = 0; i < t->num_members; i++)
        if (t->members[i].parent < 0)
            WEFT_TRY(check_family(j, i));
    if (j->report.num_layers == 0)
        return no_such_layer(t, j->setup->layer);
    weft_check_report_end(&j->report);
    return WEFT_OK;
}

weft_status weft_check_run(weft_comm *world, const weft_check_setup *setup,
                           weft_model_function build, int *out_wrong)
{
    check_job j = {.setup = setup,
                   .build = build,
                   .world = world,
                   .report = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    j.report.out = weft_comm_rank(world) == 0 ? setup->out : NULL;
    j.report.json = setup->json;
    bool checking = weft_comm_checking();
    weft_comm_set_check(true);
    weft_status status = weft_comm_create_self(&j.self);
    if (status == WEFT_OK)
        status = weft_comm_agree(world, start_alarm(world, &j.report, &j.alarm));
    if (status == WEFT_OK)
        status = check_all(&j);
    if (status != WEFT_OK)
        weft_check_report_fail(&j.report, weft_error_get()->text);
    stop_alarm(&j.alarm);
    for (int p = 0; p < j.num_places; p++)
        weft_check_place_release(&j.places[p]);
    weft_comm_destroy(j.self);
    weft_comm_set_check(checking);
    *out_wrong = j.report.num_wrong;
    return status;
}

/* --- for programs -------------------------------------------------------------------------- */

static weft_status read_options(const char *model, weft_arena *arena, weft_model_options *out)
{
    const char *text;
    weft_option_section section = {"model", weft_model_rows, weft_num_model_rows, out, ""};
    WEFT_TRY(weft_arena_printf(arena, &text, "{\"model\": %s}", model ? model : "{}"));
    WEFT_TRY(weft_options_parse(&section, 1, "weft_check", text, NULL, 0, arena));
    if (out->vocab_size == 0)
        out->vocab_size = WEFT_CHECK_VOCAB;
    return weft_model_options_resolve(out);
}

static weft_status run(const weft_check *check, weft_comm *world, weft_arena *arena,
                       weft_model_function build)
{
    weft_model_options options = {0};
    int wrong;
    weft_status status = read_options(check->model, arena, &options);
    if (status != WEFT_OK && check->json && weft_comm_rank(world) == 0)
        weft_check_could_not_begin(check->out ? check->out : stdout);
    WEFT_TRY(status);
    weft_check_setup setup = {.options = &options,
                              .own_options = check->own_options,
                              .micro_batch_size =
                                  check->micro_batch_size ? check->micro_batch_size : BATCH,
                              .binding = WEFT_BINDING_TP,
                              .dtype = check->bf16 ? WEFT_BF16 : WEFT_F32,
                              .layer = check->layer,
                              .json = check->json,
                              .out = check->out ? check->out : stdout};
    WEFT_TRY(weft_check_run(world, &setup, build, &wrong));
    return wrong ? WEFT_ERROR(WEFT_CONFIG, "%d %s wrong", wrong,
                              wrong == 1 ? "check is" : "checks are")
                 : WEFT_OK;
}

weft_status weft_check_layers(const weft_check *given, weft_model_function build)
{
    weft_check check;
    weft_arena arena = {0};
    weft_comm *world = NULL;
    int rank, size = 1, local_rank, local_size;
    WEFT_TRY(weft_sized_copy("weft_check", given, &check, sizeof check));
    bool launched = weft_comm_launched(&rank, &size, &local_rank, &local_size);
    weft_status status =
        launched && size > 1 ? weft_comm_create_world(&world) : weft_comm_create_self(&world);
    if (status == WEFT_OK)
        status = run(&check, world, &arena, build);
    weft_comm_destroy(world);
    weft_arena_release(&arena);
    return status;
}
