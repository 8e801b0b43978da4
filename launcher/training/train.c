#include "launcher/training/train.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/arguments/arguments.h"
#include "launcher/planning/ramp.h"
#include "launcher/planning/run_changes.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"
#include "launcher/training/dry_run.h"
#include "launcher/training/energy.h"
#include "launcher/training/ledger.h"
#include "launcher/training/metrics.h"
#include "launcher/training/progress.h"
#include "launcher/training/saves.h"
#include "launcher/training/setup.h"
#include "launcher/training/start.h"
#include "launcher/training/trainer.h"
#include "parallel/checkpoint/checkpoint.h"
#include "schedule/pipeline/order.h"

static weft_status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s%s", path, strerror(errno),
                          errno == ENOENT ? ": make the one that it is in first" : "");
    return WEFT_OK;
}

/* The config, what the run that is resumed had, and where it starts. */
typedef struct plan {
    weft_run_start start;
    weft_config run; /* of start.checkpoint */
    weft_config config;
    bool owes_evaluation; /* all steps are done, and a stop left out the evaluation behind them */
} plan;

/* The run's own config where none is given: the last that ran, else the checkpoint's. */
static weft_status find_config(weft_training *args, const plan *p, weft_arena *arena)
{
    if (args->source.file)
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(arena, &args->source.file, "%s/config.json", args->run.path));
    if (access(args->source.file, F_OK) == 0)
        return WEFT_OK;
    if (!p->start.checkpoint)
        return WEFT_ERROR(WEFT_CONFIG, "%s: not there; a run's first start needs a CONFIG",
                          args->source.file);
    return weft_arena_printf(arena, &args->source.file, "%s/config.json", p->start.checkpoint);
}

/* Of the learning rate alone the verb that trains asks so much: a few steps of any config can be
 * planned and measured. */
static weft_status check_rate(const weft_config *c, const void *unused)
{
    const weft_train_options *t = &c->train;
    (void)unused;
    const long long iters = (long long)t->train_iters;
    if (iters > 0 && t->lr_warmup_iters > iters)
        return WEFT_KEY_ERROR("train.lr_warmup_iters",
                              "a warm-up of %lld steps in a run of %lld (train.train_iters)",
                              (long long)t->lr_warmup_iters, iters);
    if (iters > 0 && t->lr_decay_style == (int)WEFT_LR_WSD && t->lr_wsd_decay_iters > iters)
        return WEFT_KEY_ERROR("train.lr_wsd_decay_iters",
                              "a decay of %lld steps in a run of %lld (train.train_iters)",
                              (long long)t->lr_wsd_decay_iters, iters);
    return WEFT_OK;
}

/* Behind these steps there is an evaluation. */
static bool evaluates_at(const weft_config *c, int64_t step)
{
    const int64_t interval = c->train.eval_interval;
    return weft_config_evaluates(c) && (step % interval == 0 || step >= c->train.train_iters);
}

static weft_status find_last_line(void *context, const struct cJSON *line)
{
    bool *is_step = context;
    *is_step = !weft_metrics_is_evaluation(line);
    return WEFT_OK;
}

/* Of a run whose steps are all done. */
static weft_status find_owed(const weft_training *args, plan *p, weft_arena *arena)
{
    const char *metrics;
    p->owes_evaluation = false;
    if (!p->start.checkpoint || p->start.step != p->config.train.train_iters ||
        !evaluates_at(&p->config, p->start.step))
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(arena, &metrics, "%s/metrics.jsonl", args->run.path));
    return access(metrics, F_OK) == 0
               ? weft_metrics_read(args->run.path, find_last_line, &p->owes_evaluation)
               : WEFT_OK;
}

static weft_status make_plan(weft_training *args, weft_arena *arena, plan *out)
{
    weft_config_source had = {.application = args->source.application};
    if (!args->source.file && !args->run.resume)
        return WEFT_ERROR(WEFT_CONFIG, "CONFIG is missing; see weft train --help");
    if (args->source.allow_change && !args->run.resume)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--allow-change %s: changes a run that is resumed; add --resume",
                          args->source.allow_change);
    WEFT_TRY(weft_run_check_allowed(&args->source));
    WEFT_TRY(weft_run_find_start(&args->run, arena, &out->start));
    WEFT_TRY(find_config(args, out, arena));
    if (out->start.checkpoint) {
        WEFT_TRY(weft_arena_printf(arena, &had.file, "%s/config.json", out->start.checkpoint));
        WEFT_TRY(weft_config_load(&had, arena, &out->run));
        args->source.run = &out->run;
    }
    WEFT_TRY(weft_config_load(&args->source, arena, &out->config));
    WEFT_TRY(weft_config_check(&out->config, &args->source, check_rate, NULL));
    WEFT_TRY(weft_config_locate(
        &args->source, weft_run_check_decay(&out->config, &args->source, out->start.step)));
    WEFT_TRY(find_owed(args, out, arena));
    return weft_run_check_fallback(&args->run, &out->start, weft_run_fallback(&out->config));
}

static bool is_finished(const plan *p)
{
    return p->start.checkpoint && p->start.step >= p->config.train.train_iters &&
           !p->owes_evaluation;
}

static weft_status find_other_data(void *context, const char *section, const weft_key *row,
                                   const char *before, const char *after)
{
    static const char *const names[] = {"data_path", "blend", "validation"};
    bool *is_other = context;
    (void)before;
    (void)after;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        *is_other |= strcmp(section, "data") == 0 && strcmp(row->key, names[i]) == 0;
    return WEFT_OK;
}

/* A resume that would be refused is refused where nothing is left to do, too. What only the data
 * say is the run's, unless the config names others: one rank reads those. */
static weft_status check_finished(const weft_training *args, const plan *p, int rank)
{
    weft_config config = p->config;
    bool is_other = false;
    WEFT_TRY(weft_run_compare(&p->run, &config, find_other_data, &is_other));
    if (is_other && rank == 0)
        return weft_setup_check_data(&config, &args->source);
    if (config.model.vocab_size == 0)
        config.model.vocab_size = p->run.model.vocab_size;
    if (config.data.eod_token < 0)
        config.data.eod_token = p->run.data.eod_token;
    config.data.data_xxh64 = p->run.data.data_xxh64;
    return weft_config_locate(&args->source, weft_run_check_changes(&config, &args->source));
}

static void warn_of_latest(const weft_training *args, const weft_run_start *start)
{
    if (start->latest_is_lost)
        weft_log(WEFT_LOG_WARN, "%s/checkpoints/latest names no checkpoint: %s is taken",
                 args->run.path, start->checkpoint);
}

/* An error's own words, in a line of rank 0, which need not be named again. */
static const char *words_of(const weft_error *error)
{
    return error->text + (error->found_by == 0 ? error->own_at : 0);
}

static void say_finished(const weft_training *args, const plan *p)
{
    warn_of_latest(args, &p->start);
    weft_run_tell_damage(&p->start, "resume");
    fprintf(args->json ? stderr : stdout,
            "%s: finished: step %" PRId64 " of train.train_iters %" PRId64 " is done\n",
            args->run.path, p->start.step, p->config.train.train_iters);
}

/* The resolved config beside the run's other files; rank 0. */
static weft_status write_config(const weft_training *args, const weft_config *config,
                                weft_arena *arena)
{
    const char *path, *text;
    weft_new_file file;
    static const int64_t none[] = {0};
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/config.json", args->run.path));
    weft_config copy = *config;
    if (config->moe_is_kept) /* on another mesh it is chosen anew */
        copy.schedule = config->asked;
    if (config->context_is_kept) {
        copy.parallel.cp_comm_type = WEFT_NUM_CONTEXT_FORMS; /* auto */
        copy.parallel.hierarchical_context_parallel_sizes =
            (weft_int_list){.values = none, .count = 1};
    }
    if (config->chunks_are_kept)
        copy.parallel.tp_comm_overlap_chunks = (weft_int_list){.values = none, .count = 1};
    copy.tier = weft_tier_with_choice(&config->tier_asked, &config->tier);
    WEFT_TRY(weft_config_text(&copy, arena, &text));
    WEFT_TRY(weft_new_file_open(path, &file));
    fputs(text, file.file);
    return weft_new_file_close(&file, WEFT_OK);
}

/* What lies on the mesh beside its sizes, where these let it: ", vp 2, zero 1; 1f1b". */
static void print_on_mesh(const weft_trainer *t, char *out, size_t room)
{
    const weft_config *c = &t->config;
    const weft_mesh *mesh = &t->groups.mesh;
    const char *order = weft_pipeline_kind_text(c->schedule.pipeline_schedule);
    char chunks[24] = "", zero[24] = "";
    if (t->runs.train.shape.num_chunks > 1)
        snprintf(chunks, sizeof chunks, ", vp %d", t->runs.train.shape.num_chunks);
    if (mesh->dp * mesh->cp > 1)
        snprintf(zero, sizeof zero, ", zero %d", (int)weft_parallel_sharding(&c->parallel));
    if (c->schedule.pipeline_schedule_file[0])
        order = c->schedule.pipeline_schedule_file;
    snprintf(out, room, "%s%s%s%s", chunks, zero, mesh->pp > 1 ? "; " : "",
             mesh->pp > 1 ? order : "");
}

/* Whether the load that routers compare is of the micro-batches so far. */
static bool balances_by_replicas(const weft_trainer *t)
{
    const weft_model_options *o = &t->config.model;
    return o->num_experts > 0 && o->moe_aux_loss_coeff > 0 &&
           o->moe_router_load_balancing_type == WEFT_BALANCE_GLOBAL_BATCH &&
           t->runs.train.shape.num_micro_batches > 1;
}

static void print_ramp(const weft_trainer *t)
{
    const weft_train_options *train = &t->config.train;
    char text[96];
    if (weft_ramp_num_sizes(train) > 0)
        printf("%s a step, from %" PRId64 " samples on all; the next step has %" PRId64 "\n",
               weft_ramp_text(train, text), train->rampup_batch_size.values[2],
               weft_ramp_batch(train, t->consumed_tokens / t->config.model.seq_length));
}

static void print_start(const weft_trainer *t, const char *from)
{
    char mesh[128], more[200];
    weft_mesh_print(&t->groups.mesh, mesh, sizeof mesh);
    print_on_mesh(t, more, sizeof more);
    char frozen[48] = "";
    if (weft_model_num_frozen(t->model) > 0)
        snprintf(frozen, sizeof frozen, " (%.3g M of them frozen)",
                 (double)weft_model_num_frozen(t->model) / 1e6);
    printf("%.1f M parameters%s, %s: %s%s; %s; %s a step and replica\n",
           (double)t->measured.num_params / 1e6, frozen,
           weft_count_text(t->groups.mesh.world, "rank").text, mesh, more,
           weft_dtype_text(weft_config_dtype(&t->config)),
           weft_count_text(t->runs.train.shape.num_micro_batches, "micro-batch").text);
    print_ramp(t);
    if (t->config.model.num_experts > 0 && t->config.model.moe_expert_capacity_factor > 0)
        printf(
            "capacity factor %g: which choices are dropped, and so the loss, depends on the mesh\n",
            t->config.model.moe_expert_capacity_factor);
    if (balances_by_replicas(t))
        puts("global_aux_loss: of several micro-batches a replica, so that it depends on dp");
    weft_peak_print(&t->measured.peak,
                    t->measured.flops_per_sample / (double)t->config.model.seq_length);
    if (from)
        printf("starting from %s (step %" PRId64 ")\n", from, t->step);
    weft_output_flush();
}

typedef enum timeline_state { NO_TIMELINE, TIMELINE_UNWRITTEN, TIMELINE_WRITTEN } timeline_state;

typedef struct job {
    weft_training *args;
    plan *plan;
    int lock; /* on the run folder, rank 0's; -1: none */
    weft_trainer trainer;
    weft_progress progress;
    weft_ledger ledger; /* rank 0's */
    weft_energy energy;
    double load_us[2];              /* when it began to load, and had */
    weft_checkpoint_writer *writer; /* borrowed; NULL: none */
    weft_saves saves;
    bool speaks;             /* rank 0 */
    bool damaged;            /* the checkpoint that it starts from cannot be loaded */
    timeline_state timeline; /* rank 0 */
    bool warned_of_timeline;
    int folder;        /* the run's, open, so that no other takes its number; rank 0's; -1: none */
    bool moved;        /* its path leads there no more */
    bool stopped;      /* as asked, before its end */
    int64_t evaluated; /* the last step behind which all of an evaluation ran */
} job;

/* What rank 0 did until now. */
static weft_status note(job *j, weft_ledger_did did)
{
    j->ledger.saved = j->saves.published;
    return weft_ledger_write(&j->ledger, did, j->trainer.step, weft_now_us());
}

static weft_status note_step(job *j, const weft_step_result *r)
{
    const bool lost = r->bad.rewinds || r->scale.skipped || r->bad.skips_batch;
    return weft_ledger_write_step(&j->ledger, lost ? WEFT_DID_SKIP : WEFT_DID_STEP, j->trainer.step,
                                  weft_now_us(), &r->joules, r->tokens);
}

/* *stopped is set where a stop ended it, and else left. */
static weft_status evaluate(job *j, bool *stopped)
{
    weft_evaluation evaluation;
    if (j->speaks)
        weft_stop_set_evaluating(true);
    WEFT_TRY(weft_trainer_evaluate(&j->trainer, WEFT_SPLIT_VALIDATION, &evaluation));
    if (j->speaks)
        weft_stop_set_evaluating(false);
    WEFT_TRY(note(j, WEFT_DID_EVALUATE));
    *stopped |= evaluation.stopped;
    if (!evaluation.stopped)
        j->evaluated = j->trainer.step;
    if (j->speaks && !evaluation.stopped)
        weft_progress_evaluation(&j->progress, j->trainer.step, &evaluation);
    return WEFT_OK;
}

/* The evaluation that a stop or a fault left out behind the step that the run goes on from. */
static weft_status evaluate_owed(job *j, bool *stopped)
{
    const weft_trainer *t = &j->trainer;
    int64_t owed = j->speaks && evaluates_at(&t->config, t->step) && j->progress.ends_with_step;
    WEFT_TRY(weft_comm_broadcast_host(t->world, &owed, sizeof owed, 0));
    return owed ? evaluate(j, stopped) : WEFT_OK;
}

/* What steps wrote to the experts' files, and how long they took. */
typedef struct wear {
    double bytes, seconds;
} wear;

static void tell_wear(const job *j, const wear *w)
{
    const double a_day = w->bytes / j->trainer.num_nodes / w->seconds * 86400;
    if (j->speaks && w->bytes > 0 && !weft_path_is_memory(j->trainer.config.tier.path))
        weft_log(WEFT_LOG_INFO,
                 "experts' files: steps wrote %s in %.3g s: %.3g TB a day%s; that wears SSDs out",
                 weft_bytes_text(w->bytes).text, w->seconds, a_day / 1e12,
                 j->trainer.num_nodes > 1 ? " on each node" : "");
}

/* To the newest checkpoint, which then is the last that metrics.jsonl has. */
static weft_status rewind_run(job *j)
{
    weft_trainer *t = &j->trainer;
    const int64_t bad = t->step + 1;
    char path[WEFT_SAVES_PATH_BYTES];
    weft_watch_enter(WEFT_WATCH_LOAD, t->step);
    WEFT_TRY(weft_saves_rewind(&j->saves, j->args->run.path, path));
    WEFT_TRY(note(j, WEFT_DID_LOAD));
    if (!j->speaks)
        return WEFT_OK;
    weft_progress_note(&j->progress, "step %" PRId64 ": back to %s", bad, path);
    const int64_t unwritten = j->progress.num_unwritten;
    weft_progress_close(&j->progress);
    WEFT_TRY(
        weft_progress_open(&j->progress, j->args->run.path, t->step, &t->config, j->args->json));
    j->progress.account = &j->ledger.account;
    j->progress.num_unwritten = unwritten;
    return WEFT_OK;
}

/* After a step: what is due to be saved. */
static weft_status save(job *j, const weft_step_result *result)
{
    const weft_config *c = &j->trainer.config;
    const int64_t step = j->trainer.step;
    const double least_us = 1000, begin_us = weft_now_us();
    WEFT_TRY(weft_saves_advance(&j->saves, result->writers));
    bool ends = step >= c->train.train_iters || result->stop;
    bool due = !ends && weft_config_saves_at(c, step, false);
    if (due)
        WEFT_TRY(weft_saves_save(&j->saves));
    else if (!ends && step % c->checkpoint.peer_interval == 0)
        WEFT_TRY(weft_saves_copy(&j->saves));
    due = due || j->saves.published != j->ledger.saved; /* rank 0's */
    return due || weft_now_us() - begin_us > least_us ? note(j, WEFT_DID_SAVE) : WEFT_OK;
}

/* Rank 0: whether the run's files are still where their paths say. */
static void look_at_folder(job *j)
{
    struct stat opened, now;
    const char *path = j->args->run.path;
    if (j->moved || j->folder < 0 || fstat(j->folder, &opened) != 0)
        return;
    j->moved = stat(path, &now) != 0 || now.st_dev != opened.st_dev || now.st_ino != opened.st_ino;
    if (j->moved)
        weft_log(WEFT_LOG_WARN,
                 "step %" PRId64
                 ": %s is no longer the folder that this run opened: it was moved or "
                 "removed, and its metrics with it; training goes on, saves make the folder anew",
                 j->trainer.step, path);
}

/* Rank 0, which others may wait for. */
static void tell_step(job *j, const weft_step_result *result)
{
    char low[256];
    if (weft_watch_find_low(low, sizeof low))
        weft_log(WEFT_LOG_WARN, "%s", low);
    weft_progress_step(&j->progress, result);
    look_at_folder(j);
}

/* Rank 0: where its files cannot be written, one line, and a later step tries again. */
static weft_status write_timeline(job *j)
{
    weft_status status =
        weft_trainer_write_trace(&j->trainer, j->ledger.account.num_starts, j->args->run.path);
    j->timeline = status == WEFT_OK ? TIMELINE_WRITTEN : TIMELINE_UNWRITTEN;
    if (status != WEFT_FILE)
        return status;
    if (!j->warned_of_timeline)
        weft_log(WEFT_LOG_WARN,
                 "step %" PRId64 ": %s; training goes on, and the timeline is tried again",
                 j->trainer.step, words_of(weft_error_get()));
    j->warned_of_timeline = true;
    weft_error_clear();
    return WEFT_OK;
}

static weft_status keep_timeline(job *j)
{
    const weft_trainer *t = &j->trainer;
    const weft_log_options *log = &t->config.log;
    const bool due = t->step == log->trace_step;
    if (due) {
        weft_watch_enter(WEFT_WATCH_SAVE, t->step);
        WEFT_TRY(weft_trainer_collect_trace(&j->trainer));
    }
    if (j->speaks &&
        (due || (j->timeline == TIMELINE_UNWRITTEN && t->step % log->log_interval == 0)))
        return write_timeline(j);
    return WEFT_OK;
}

/* Rank 0: what of the run's files is missing, at its end. */
static weft_status tell_unwritten(job *j)
{
    if (j->timeline == TIMELINE_UNWRITTEN) {
        WEFT_TRY(write_timeline(j));
        if (j->timeline == TIMELINE_UNWRITTEN)
            weft_log(WEFT_LOG_WARN, "%s: the timeline could not be written", j->args->run.path);
    }
    weft_progress_tell_unwritten(&j->progress);
    return WEFT_OK;
}

static weft_status steps(job *j)
{
    weft_trainer *t = &j->trainer;
    const weft_config *c = &t->config;
    weft_step_result result = {0};
    wear written = {0};
    WEFT_TRY(evaluate_owed(j, &result.stop));
    while (t->step < c->train.train_iters && !result.stop) {
        WEFT_TRY(weft_trainer_step(t, &result));
        written.bytes += result.tier.written_bytes;
        written.seconds += result.step_ms / 1e3;
        WEFT_TRY(weft_energy_take(&j->energy, t->world, &result.joules));
        if (j->speaks) /* whose files may hang, while others wait */
            weft_watch_enter(WEFT_WATCH_OUTPUT, t->step);
        WEFT_TRY(note_step(j, &result));
        if (result.bad.rewinds) {
            WEFT_TRY(rewind_run(j));
            continue;
        }
        if (j->speaks)
            tell_step(j, &result);
        WEFT_TRY(keep_timeline(j));
        WEFT_TRY(save(j, &result)); /* so a fault in a long evaluation costs no steps */
        if (evaluates_at(c, t->step) && !result.stop)
            WEFT_TRY(evaluate(j, &result.stop));
    }
    tell_wear(j, &written);
    if (j->speaks)
        WEFT_TRY(tell_unwritten(j));
    WEFT_TRY(weft_saves_end(&j->saves));
    WEFT_TRY(note(j, WEFT_DID_END));
    WEFT_TRY(weft_memory_write(t, j->args->run.path));
    int64_t moved = j->moved;
    WEFT_TRY(weft_comm_broadcast_host(t->world, &moved, sizeof moved, 0));
    j->moved = moved != 0;
    j->stopped = t->step < c->train.train_iters ||
                 (result.stop && evaluates_at(c, t->step) && j->evaluated != t->step);
    if (j->stopped && j->speaks)
        weft_progress_note(&j->progress, "stopped as asked after step %" PRId64, t->step);
    return WEFT_OK;
}

/* Rank 0. */
static weft_status lock(job *j)
{
    if (!j->speaks || j->lock >= 0)
        return WEFT_OK;
    return weft_run_lock(&j->args->run, &j->plan->start, &j->lock);
}

/* A run's own checkpoint, or the one that a new run starts from. */
static weft_status load(job *j, weft_arena *arena, const char **out_from)
{
    const weft_run_start *start = &j->plan->start;
    const char *other = j->plan->config.checkpoint.load;
    weft_status status = WEFT_OK;
    *out_from = start->checkpoint;
    if (!start->checkpoint && other)
        status = weft_checkpoint_resolve(other, arena, out_from);
    WEFT_TRY(weft_comm_agree(j->trainer.world, status));
    j->load_us[0] = weft_now_us();
    status = weft_trainer_start(&j->trainer, *out_from);
    j->load_us[1] = weft_now_us();
    j->damaged = status == WEFT_FILE && start->checkpoint;
    return status;
}

/* How the run that is resumed differs from what it was, in one line. */
static weft_status tell_changes(const job *j, weft_arena *arena)
{
    const weft_run_start *start = &j->plan->start;
    const char *changes = NULL;
    if (!start->checkpoint)
        return WEFT_OK;
    WEFT_TRY(weft_run_changes(&j->plan->run, &j->trainer.config, arena, &changes));
    warn_of_latest(j->args, start);
    weft_run_tell_damage(start, "resume");
    if (changes)
        weft_log(WEFT_LOG_WARN, "resume: %s", changes);
    return WEFT_OK;
}

/* Rank 0: what was done before there was a folder. */
static weft_status open_ledger(job *j)
{
    weft_ledger *ledger = &j->ledger;
    WEFT_TRY(weft_ledger_open(ledger, j->args->run.path));
    if (j->args->run.resume && !j->plan->start.checkpoint && ledger->account.num_starts > 0)
        weft_log(WEFT_LOG_INFO, "resume: %s has no checkpoint yet: it starts again at step 0",
                 j->args->run.path);
    WEFT_TRY(
        weft_ledger_begin(ledger, &j->trainer.groups.mesh, weft_ledger_began(j->args->began_us)));
    WEFT_TRY(weft_ledger_write(ledger, WEFT_DID_START, 0, j->load_us[0]));
    WEFT_TRY(weft_ledger_write(ledger, WEFT_DID_LOAD, j->trainer.step, j->load_us[1]));
    j->progress.account = &ledger->account;
    return WEFT_OK;
}

/* Files have the stripes that their folder has when they are made. */
static void advise_stripes(const char *run)
{
    if (weft_path_is_lustre(run))
        weft_log(WEFT_LOG_INFO,
                 "checkpoints will lie on a Lustre: lfs setstripe -c 8 -S 4M %s, before the first "
                 "save, spreads them over 8 targets",
                 run);
}

/* Rank 0: the folder's files. */
static weft_status open_files(job *j, const char *from, weft_arena *arena)
{
    const weft_config *resolved = &j->trainer.config;
    weft_config told = *resolved;
    told.tier.experts = j->plan->config.tier.experts; /* `auto` may come to another degree */
    weft_watch_set_aside(j->args->run.path);
    WEFT_TRY(weft_progress_open(&j->progress, j->args->run.path, j->trainer.step, resolved,
                                j->args->json));
    WEFT_TRY(write_config(j->args, resolved, arena));
    WEFT_TRY(open_ledger(j));
    if (!j->args->json)
        print_start(&j->trainer, from);
    WEFT_TRY(weft_config_tell_no_effect(&told));
    if (weft_config_evaluates(resolved))
        weft_trainer_tell_repeats(&j->trainer, WEFT_SPLIT_VALIDATION);
    WEFT_TRY(tell_changes(j, arena));
    if (!j->plan->start.checkpoint)
        advise_stripes(j->args->run.path);
    return note(j, WEFT_DID_START);
}

/* What a start that came to no step has made: of a folder that was there, files without a byte. */
static void remove_made(const char *run, bool is_new)
{
    static const char *const names[] = {"metrics.jsonl", "ledger.jsonl", "config.json", ".lock"};
    char path[4096];
    struct stat info;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((size_t)snprintf(path, sizeof path, "%s/%s", run, names[i]) < sizeof path &&
            lstat(path, &info) == 0 && S_ISREG(info.st_mode) && (is_new || info.st_size == 0))
            unlink(path);
    if (is_new)
        rmdir(run);
}

static weft_status claim_folder(job *j, weft_arena *arena)
{
    WEFT_TRY(make_folder(j->args->run.path));
    WEFT_TRY(lock(j));
    if (j->folder < 0)
        j->folder = open(j->args->run.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return weft_run_check_room(&j->args->run, &j->trainer.config, true, arena);
}

static weft_status fill_folder(job *j, const char *from, weft_arena *arena)
{
    WEFT_TRY(open_files(j, from, arena));
    if (from && !j->plan->start.checkpoint)
        return weft_run_keep_source(j->args->run.path, from);
    return WEFT_OK;
}

/* Rank 0's, not before all else is known to be good; what is saved there comes from all ranks. */
static weft_status open_folder(job *j, weft_comm *world, const char *from, weft_arena *arena)
{
    const char *run = j->args->run.path;
    const bool is_new = access(run, F_OK) != 0;
    weft_status status = weft_comm_agree(world, j->speaks ? claim_folder(j, arena) : WEFT_OK);
    if (status == WEFT_OK && !j->plan->config.checkpoint.no_save)
        status = weft_comm_agree(world, weft_run_check_shared(&j->args->run, world));
    if (status == WEFT_OK)
        status = weft_comm_agree(world, j->speaks ? fill_folder(j, from, arena) : WEFT_OK);
    if (status != WEFT_OK && j->speaks)
        remove_made(run, is_new);
    return status;
}

/* What each node may have its own way: paths, and what it has. */
static bool is_local(const char *section, const char *key)
{
    static const char *const sections[] = {"device", "offload", "log"};
    static const char *const keys[] = {
        "data_path", "blend",      "validation", "load",
        "peer_path", "data_xxh64", "cluster",    "pipeline_schedule_file"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strcmp(section, sections[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Two texts of weft_config_text, a line a key: refuses the first key that they have otherwise. */
static weft_status compare_configs(const char *ours, const char *theirs)
{
    char section[64] = "", key[64];
    for (; *ours && *theirs; ours = strchr(ours, '\n') + 1, theirs = strchr(theirs, '\n') + 1) {
        const int mine = (int)strcspn(ours, "\n"), other = (int)strcspn(theirs, "\n");
        int at = 0;
        if (sscanf(ours, " \"%63[^\"]\": %n", key, &at) != 1)
            continue;
        if (ours[at] == '{')
            memcpy(section, key, sizeof key);
        else if ((mine != other || memcmp(ours, theirs, (size_t)mine) != 0) &&
                 !is_local(section, key))
            return WEFT_ERROR(
                WEFT_CONFIG, "all ranks need the same config: %s.%s is %.*s here, on rank 0 %.*s",
                section, key, mine - at - (ours[mine - 1] == ','), ours + at,
                other > at ? other - at - (theirs[other - 1] == ',') : 0, theirs + at);
    }
    return WEFT_OK;
}

/* Each node has read a file of its own, by the same name. */
static weft_status agree_on_config(const weft_config *config, weft_comm *world, weft_arena *arena)
{
    const char *text;
    char *theirs;
    WEFT_TRY(weft_config_text(config, arena, &text));
    int64_t bytes = (int64_t)strlen(text) + 1;
    WEFT_TRY(weft_comm_broadcast_host(world, &bytes, sizeof bytes, 0));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)bytes, &theirs));
    if (weft_comm_rank(world) == 0)
        memcpy(theirs, text, (size_t)bytes);
    WEFT_TRY(weft_comm_broadcast_host(world, theirs, (size_t)bytes, 0));
    return weft_comm_agree(world, compare_configs(text, theirs));
}

/* Every rank has looked for itself. */
static weft_status agree_on_start(const job *j, weft_comm *world)
{
    const weft_run_start *start = &j->plan->start;
    int64_t step = start->checkpoint ? start->step : -1, most[2] = {step, -step};
    WEFT_TRY(weft_comm_all_reduce_host(world, most, 2, WEFT_I64, WEFT_REDUCE_MAX));
    WEFT_TRY(weft_comm_broadcast_host(world, &j->plan->owes_evaluation,
                                      sizeof j->plan->owes_evaluation, 0));
    if (most[0] == -most[1])
        return WEFT_OK;
    char least[32] = "none";
    if (most[1] <= 0)
        snprintf(least, sizeof least, "step %" PRId64, -most[1]);
    return WEFT_ERROR(WEFT_FILE,
                      "%s: the newest checkpoint that ranks find there is of step %" PRId64
                      " for some, for others %s: a run needs a file system that all of them share",
                      j->args->run.path, most[0], least);
}

/* Everything up to the first step; all ranks return the same status. */
static weft_status set_up(job *j, weft_comm *world, weft_arena *arena)
{
    const char *from;
    weft_status status = WEFT_OK;
    WEFT_TRY(agree_on_config(&j->plan->config, world, arena));
    WEFT_TRY(agree_on_start(j, world));
    if (is_finished(j->plan))
        return weft_comm_agree(world, check_finished(j->args, j->plan, weft_comm_rank(world)));
    if (access(j->args->run.path, F_OK) == 0)
        status = lock(j);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(weft_trainer_create(&j->trainer, &j->plan->config, &j->args->source, world, arena));
    j->trainer.writer = j->writer;
    WEFT_TRY(weft_saves_reserve(&j->trainer, &j->args->source, j->plan->start.checkpoint));
    WEFT_TRY(load(j, arena, &from));
    WEFT_TRY(weft_energy_create(&j->energy, j->trainer.device, world));
    WEFT_TRY(open_folder(j, world, from, arena));
    return weft_saves_reserve_copies(&j->saves, &j->args->source, j->plan->start.checkpoint);
}

static void release(job *j)
{
    weft_progress_close(&j->progress);
    weft_energy_release(&j->energy);
    weft_ledger_close(&j->ledger);
    weft_trainer_release(&j->trainer);
}

/* Plans anew, from the checkpoint before the one that is damaged; the record is its damage. */
static weft_status fall_back(job *j, weft_comm *world, weft_arena *arena)
{
    weft_run_start passed = j->plan->start;
    weft_watch_enter(WEFT_WATCH_SETUP, 0);
    WEFT_TRY(weft_run_pass_over(&passed));
    release(j);
    j->damaged = false;
    j->args->run.below = passed.step;
    weft_run_start *start = &j->plan->start;
    weft_status status = make_plan(j->args, arena, j->plan);
    if (status == WEFT_OK) {
        start->num_damaged += passed.num_damaged;
        start->damaged = passed.damaged;
        start->damage = passed.damage;
        status = weft_run_check_fallback(&j->args->run, start, weft_run_fallback(&j->plan->config));
    } else if (status == WEFT_FILE) {
        status = weft_run_check_fallback(&j->args->run, &passed, 0);
    }
    return weft_comm_agree(world, status);
}

/* What an earlier start has left in nodes' memory may be newer than the checkpoint that was found.
 */
static weft_status restore(job *j, weft_comm *world, weft_arena *arena)
{
    int64_t is_there = j->speaks && weft_copies_are_named(j->saves.dir);
    bool found = false;
    WEFT_TRY(weft_comm_broadcast_host(world, &is_there, sizeof is_there, 0));
    if (!is_there)
        return WEFT_OK;
    WEFT_TRY(weft_comm_agree(world, lock(j)));
    WEFT_TRY(weft_saves_restore(&j->saves, world, &j->args->run, &j->plan->start,
                                &j->plan->config.checkpoint, &found));
    return found ? weft_comm_agree(world, make_plan(j->args, arena, j->plan)) : WEFT_OK;
}

/* Everything up to the first step, from the newest state that is whole. */
static weft_status set_up_from_whole(job *j, weft_comm *world, weft_arena *arena)
{
    j->speaks = weft_comm_rank(world) == 0;
    j->saves = (weft_saves){.trainer = &j->trainer, .progress = &j->progress};
    weft_status status =
        weft_arena_printf(arena, &j->saves.dir, "%s/checkpoints", j->args->run.path);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(restore(j, world, arena));
    status = set_up(j, world, arena);
    while (j->damaged) {
        const weft_run_start *start = &j->plan->start;
        bool damaged = false;
        WEFT_TRY(weft_saves_find_damage(world, start->checkpoint, &damaged));
        if (!damaged || j->args->run.from ||
            start->num_damaged >= weft_run_fallback(&j->plan->config)) {
            if (j->speaks && start->num_damaged == 0)
                status = weft_run_name_whole(&j->args->run, start, status);
            else if (j->speaks)
                status = weft_run_check_fallback(&j->args->run, start, 0);
            return status;
        }
        WEFT_TRY(fall_back(j, world, arena));
        status = set_up(j, world, arena);
    }
    return status;
}

/* Has all ranks write their flight records. What a call that a rank has left out leaves behind may
 * look like a bug, or as if another were to blame. */
static weft_status add_difference(weft_status status)
{
    char difference[WEFT_WATCH_PLACE_BYTES];
    weft_error error;
    weft_watch_record_all(difference, sizeof difference);
    if (!difference[0] || (status != WEFT_COMM && status != WEFT_INTERNAL))
        return status;
    weft_error_take(&error);
    const size_t used = strlen(error.text);
    snprintf(error.text + used, sizeof error.text - used, "; %s", difference);
    error.status = WEFT_COMM;
    return weft_error_put(&error);
}

/* Takes the job down: others may wait for this rank. Where all ranks have the error, or a group,
 * one of them says it; the others speak where that one does not come to it. */
static void take_down(weft_comm *world, weft_status status)
{
    const weft_error *error = weft_error_get();
    bool known = status == WEFT_DIVERGED || status == WEFT_FAULTY || error->is_shared;
    int speaker = error->is_shared ? error->speaker : 0;
    struct timespec grace = {.tv_sec = 5};
    if (known && speaker != weft_comm_rank(world) && nanosleep(&grace, NULL) != 0)
        _exit(weft_status_exit_code(status)); /* a signal: it has spoken */
    status = add_difference(status);
    bool all_have = error->is_shared || weft_comm_size(world) == 1;
    if (all_have && status != WEFT_DIVERGED && status != WEFT_FAULTY)
        weft_verb_fail("train"); /* names the rank that it came from */
    else
        weft_log_error_record();
    weft_comm_abort(world, status);
}

static void close_job(job *j)
{
    release(j);
    if (j->lock >= 0)
        close(j->lock);
    if (j->folder >= 0)
        close(j->folder);
}

static int run_job(weft_training *args, plan *p, const weft_start *start, weft_arena *arena)
{
    weft_comm *world = start->world;
    job j = {.args = args, .plan = p, .lock = -1, .folder = -1, .writer = start->writer};
    weft_log_set_level((weft_log_level)p->config.log.level);
    weft_comm_set_check(p->config.log.check_collectives);
    weft_status status = weft_watch_connect(world);
    if (status == WEFT_OK)
        status = set_up_from_whole(&j, world, arena);
    if (status != WEFT_OK) { /* agreed on: one rank speaks, all leave */
        int code = weft_status_exit_code(status);
        if (j.speaks)
            weft_verb_fail("train");
        close_job(&j);
        return code;
    }
    if (is_finished(p)) {
        if (j.speaks)
            say_finished(args, p);
        return 0;
    }
    if (start->launched && j.speaks)
        weft_alive_enter_steps(args->run.path);
    status = steps(&j);
    if (status == WEFT_FAULTY)
        weft_saves_forget_copies(&j.saves);
    if (status != WEFT_OK)
        take_down(world, status);
    if (j.stopped && j.speaks && !j.moved)
        weft_stop_tell_saved();
    if (j.speaks && !args->json && !j.moved) {
        printf("metrics: %s/metrics.jsonl\n", args->run.path);
        if (j.timeline == TIMELINE_WRITTEN)
            printf("timeline: %s/trace.json, %s/trace.svg\n", args->run.path, args->run.path);
        weft_output_flush();
    }
    if (j.moved && j.speaks)
        fprintf(
            stderr,
            "weft train: %s was moved or removed amid the run, and its metrics with it; what was "
            "saved since is in a new folder of that name\n",
            args->run.path);
    close_job(&j);
    if (j.moved)
        return weft_status_exit_code(WEFT_FILE);
    return j.stopped ? WEFT_EXIT_STOPPED : 0;
}

/* Of several processes that a launcher started one speaks. */
static int dry_run(const weft_training *args, const plan *p, const weft_start *start,
                   weft_arena *arena)
{
    const char *changes = NULL;
    weft_status status = WEFT_OK;
    if (start->rank > 0)
        return 0;
    if (p->start.checkpoint)
        status = weft_run_changes(&p->run, &p->config, arena, &changes);
    if (status == WEFT_OK)
        status = weft_dry_run(args, &p->config, &p->start, changes,
                              start->launched ? start->size : 0, arena);
    return status == WEFT_OK ? 0 : weft_verb_fail("train");
}

/* In the process that was started: what needs no other. */
int weft_train(weft_training *args, int argc, char **argv, weft_arena *arena)
{
    plan made = {0}, *p = &made;
    weft_start start = weft_start_find();
    weft_status status = start.launched ? weft_stop_join() : WEFT_OK;
    if (status == WEFT_OK)
        status = make_plan(args, arena, p);
    const bool finished = status == WEFT_OK && !start.launched && is_finished(p);
    if (finished)
        status = check_finished(args, p, 0);
    if (finished && status == WEFT_OK) {
        say_finished(args, p);
        return 0;
    }
    if (status == WEFT_OK && args->dry_run)
        return dry_run(args, p, &start, arena);
    if (status == WEFT_OK) {
        if (start.rank == 0)
            weft_stop_speak(start.launched);
        weft_stop_set_timeout(p->config.train.stop_timeout_s);
        status = weft_start_ranks(&start, &p->config, &args->source, &args->run, argc, argv);
    }
    int code = start.exit_code;
    if (status != WEFT_OK)
        code = weft_verb_fail_apart("train");
    else if (start.world)
        code = run_job(args, p, &start, arena);
    weft_alive_end();
    weft_checkpoint_writer_destroy(start.writer);
    weft_comm_destroy(start.world);
    weft_watch_stop();
    return code;
}
