/* weft train. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/arguments.h"
#include "launcher/planning/no_effect.h"
#include "launcher/planning/run_changes.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"
#include "launcher/training/memory.h"
#include "launcher/training/progress.h"
#include "launcher/training/run_folder.h"
#include "launcher/training/start.h"
#include "launcher/training/trainer.h"
#include "launcher/verbs.h"
#include "parallel/checkpoint.h"

typedef struct arguments {
    weft_config_source source;
    weft_run_folder run;
    bool json;
} arguments;

static void print_keys(const void *application)
{
    weft_config config = {.application = application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    printf("\nKeys of the config, with their defaults:\n\n");
    weft_options_help(sections, weft_config_sections(&config, sections), false, stdout);
}

/* Returns -1 to go on, else the exit code. */
static int parse_arguments(int argc, char **argv, arguments *args, weft_arena *arena)
{
    weft_string_list given = {0}, sets = {0};
    const weft_argument rows[] = {
        {"out", "RUN", "folder for config.json, metrics.jsonl, checkpoints/, trace.json",
         .text = &args->run.path, .required = true},
        {"set", "KEY=VALUE", "override a key of the config; may be repeated", .texts = &sets},
        {"mesh", "AXES", "such as tp=2,pp=2,ep=4,binding=dp: replaces the file's mesh",
         .text = &args->source.mesh},
        {"resume", NULL, "go on from RUN's latest checkpoint, if any; CONFIG may be left out",
         .flag = &args->run.resume},
        {"resume-from", "STEP", "the same from another one, such as step-400 or 400",
         .text = &args->run.from},
        {"allow-change", "KEYS",
         "go on with another model, seed or dataset: keys or sections, such as train.seed,data",
         .text = &args->source.allow_change},
        {"json", NULL, "metrics as JSON lines on standard output", .flag = &args->json},
    };
    const weft_arguments verb = {
        .verb = "train",
        .operands = "[CONFIG]",
        .given = &given,
        .about = "A mesh of more than one rank starts mpirun, unless a launcher already has.\n"
                 "SIGINT, SIGTERM, SIGHUP and SIGUSR1 make a run save a checkpoint and end after "
                 "its step.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows,
        .more = print_keys,
        .context = args->source.application};
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    args->source.set = sets.values;
    args->source.num_set = sets.count;
    args->source.file = given.count ? given.values[0] : NULL; /* NULL: the run's own */
    args->run.resume = args->run.resume || args->run.from;
    return code;
}

static weft_status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", path, strerror(errno));
    return WEFT_OK;
}

/* The config, what the run that is resumed had, and where it starts. */
typedef struct plan {
    weft_run_start start;
    weft_config run; /* of start.checkpoint */
    weft_config config;
} plan;

/* The run's own config where none is given: the last that ran, else the checkpoint's. */
static weft_status find_config(arguments *args, const plan *p, weft_arena *arena)
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

static weft_status make_plan(arguments *args, weft_arena *arena, plan *out)
{
    weft_config_source had = {.application = args->source.application};
    if (!args->source.file && !args->run.resume)
        return WEFT_ERROR(WEFT_CONFIG, "CONFIG is missing; see weft train --help");
    WEFT_TRY(weft_run_check_allowed(&args->source));
    WEFT_TRY(weft_run_find_start(&args->run, arena, &out->start));
    WEFT_TRY(find_config(args, out, arena));
    if (out->start.checkpoint) {
        WEFT_TRY(weft_arena_printf(arena, &had.file, "%s/config.json", out->start.checkpoint));
        WEFT_TRY(weft_config_load(&had, arena, &out->run));
        args->source.run = &out->run;
    }
    return weft_config_load(&args->source, arena, &out->config);
}

static bool is_finished(const plan *p)
{
    return p->start.checkpoint && p->start.step >= p->config.train.train_iters;
}

static void warn_of_latest(const arguments *args, const weft_run_start *start)
{
    if (start->latest_is_lost)
        weft_log(WEFT_LOG_WARN, "%s/checkpoints/latest names no checkpoint: %s is taken",
                 args->run.path, start->checkpoint);
}

static void say_finished(const arguments *args, const plan *p)
{
    warn_of_latest(args, &p->start);
    fprintf(args->json ? stderr : stdout,
            "%s: finished: step %" PRId64 " of train.train_iters %" PRId64 " is done\n",
            args->run.path, p->start.step, p->config.train.train_iters);
}

/* The resolved config beside the run's other files; rank 0. */
static weft_status write_config(const arguments *args, const weft_config *config, weft_arena *arena)
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
    WEFT_TRY(weft_config_text(&copy, arena, &text));
    WEFT_TRY(weft_new_file_open(path, &file));
    fputs(text, file.file);
    return weft_new_file_close(&file, WEFT_OK);
}

static void print_start(const weft_trainer *t, const char *from)
{
    char mesh[128];
    weft_mesh_print(&t->groups.mesh, mesh, sizeof mesh);
    char frozen[48] = "";
    if (weft_model_num_frozen(t->model) > 0)
        snprintf(frozen, sizeof frozen, " (%.3g M of them frozen)",
                 (double)weft_model_num_frozen(t->model) / 1e6);
    printf("%.1f M parameters%s, %s: %s; %s; %s a step and replica\n", (double)t->num_params / 1e6,
           frozen, weft_count_text(t->groups.mesh.world, "rank").text, mesh,
           weft_dtype_text(weft_config_dtype(&t->config)),
           weft_count_text(t->shape.num_micro_batches, "micro-batch").text);
    weft_peak_print(&t->peak, t->flops_per_sample / (double)t->config.model.seq_length);
    if (from)
        printf("starting from %s (step %" PRId64 ")\n", from, t->step);
    weft_output_flush();
}

typedef struct job {
    const arguments *args;
    const plan *plan;
    int lock; /* on the run folder, rank 0's; -1: none */
    weft_trainer trainer;
    weft_progress progress;
    const char *checkpoints; /* RUN/checkpoints */
    bool speaks;             /* rank 0 */
    bool traced;
    bool stopped; /* as asked, before its end */
} job;

static weft_status save(job *j)
{
    if (j->trainer.config.checkpoint.no_save)
        return WEFT_OK;
    WEFT_TRY(weft_trainer_save(&j->trainer, j->checkpoints));
    if (j->speaks)
        weft_progress_note(&j->progress, "checkpoint: %s/step-%" PRId64, j->checkpoints,
                           j->trainer.step);
    return WEFT_OK;
}

/* A save that fails amid a run leaves the run as it was: the next one tries again. Not so a state
 * that is not finite, or ranks and devices that are lost. */
static weft_status save_or_warn(job *j)
{
    weft_status status = save(j);
    if (status != WEFT_FILE && status != WEFT_MEMORY)
        return status;
    const weft_error *error = weft_error_get();
    const char *text = error->text + (error->found_by == 0 ? error->own_at : 0);
    if (j->speaks) /* a line of rank 0, which need not be named again */
        weft_log(WEFT_LOG_WARN, "step %" PRId64 ": not saved, the next save tries again: %s",
                 j->trainer.step, text);
    weft_error_clear();
    return WEFT_OK;
}

static weft_status evaluate(job *j)
{
    weft_evaluation evaluation;
    WEFT_TRY(weft_trainer_evaluate(&j->trainer, WEFT_SPLIT_VALIDATION, &evaluation));
    if (!j->speaks)
        return WEFT_OK;
    return weft_progress_evaluation(&j->progress, j->trainer.step, &evaluation);
}

static weft_status steps(job *j)
{
    weft_trainer *t = &j->trainer;
    const weft_config *c = &t->config;
    weft_step_result result = {0};
    while (t->step < c->train.train_iters && !result.stop) {
        WEFT_TRY(weft_trainer_step(t, &result));
        if (j->speaks)
            WEFT_TRY(weft_progress_step(&j->progress, &result));
        if (c->train.eval_interval > 0 && t->step % c->train.eval_interval == 0)
            WEFT_TRY(evaluate(j));
        if (t->step == c->log.trace_step) {
            WEFT_TRY(weft_trainer_write_trace(t, j->args->run.path));
            j->traced = true;
        }
        bool ends = t->step >= c->train.train_iters || result.stop;
        if (!ends && c->checkpoint.save_interval > 0 && t->step % c->checkpoint.save_interval == 0)
            WEFT_TRY(save_or_warn(j));
    }
    WEFT_TRY(save(j));
    WEFT_TRY(weft_memory_write(t, j->args->run.path));
    j->stopped = t->step < c->train.train_iters;
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
    status = weft_trainer_start(&j->trainer, *out_from);
    return j->speaks ? weft_run_name_whole(&j->args->run, start, status) : status;
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
    if (changes)
        weft_log(WEFT_LOG_WARN, "resume: %s", changes);
    return WEFT_OK;
}

/* Rank 0: the folder's files, not before all else is known to be good. */
static weft_status open_folder(job *j, const char *from, weft_arena *arena)
{
    const weft_config *resolved = &j->trainer.config;
    WEFT_TRY(make_folder(j->args->run.path));
    WEFT_TRY(lock(j));
    WEFT_TRY(weft_progress_open(&j->progress, j->args->run.path, j->trainer.step,
                                resolved->train.train_iters, resolved->log.log_interval,
                                j->args->json));
    WEFT_TRY(write_config(j->args, resolved, arena));
    if (!j->args->json)
        print_start(&j->trainer, from);
    WEFT_TRY(weft_config_tell_no_effect(resolved));
    return tell_changes(j, arena);
}

/* Every rank has looked for itself. */
static weft_status agree_on_start(const job *j, weft_comm *world)
{
    const weft_run_start *start = &j->plan->start;
    int64_t step = start->checkpoint ? start->step : -1, most[2] = {step, -step};
    WEFT_TRY(weft_comm_all_reduce_host(world, most, 2, WEFT_I64, WEFT_REDUCE_MAX));
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
    j->speaks = weft_comm_rank(world) == 0;
    weft_status status =
        weft_arena_printf(arena, &j->checkpoints, "%s/checkpoints", j->args->run.path);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(agree_on_start(j, world));
    if (is_finished(j->plan))
        return WEFT_OK;
    if (access(j->args->run.path, F_OK) == 0)
        status = lock(j);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(weft_trainer_create(&j->trainer, &j->plan->config, &j->args->source, world, arena));
    WEFT_TRY(load(j, arena, &from));
    return weft_comm_agree(world, j->speaks ? open_folder(j, from, arena) : WEFT_OK);
}

/* Takes the job down: others may wait for this rank. Where all ranks have the error, or a group,
 * one of them says it; the others speak where that one does not come to it. */
static void take_down(weft_comm *world, weft_status status)
{
    const weft_error *error = weft_error_get();
    bool known = status == WEFT_DIVERGED || error->is_shared;
    int speaker = error->is_shared ? error->speaker : 0;
    struct timespec grace = {.tv_sec = 5};
    if (known && speaker != weft_comm_rank(world) && nanosleep(&grace, NULL) != 0)
        _exit(weft_status_exit_code(status)); /* a signal: it has spoken */
    bool all_have = error->is_shared || weft_comm_size(world) == 1;
    if (all_have && status != WEFT_DIVERGED)
        weft_verb_fail("train"); /* names the rank that it came from */
    else
        weft_log_error_record();
    weft_comm_abort(world, status);
}

static void close_job(job *j)
{
    weft_progress_close(&j->progress);
    weft_trainer_release(&j->trainer);
    if (j->lock >= 0)
        close(j->lock);
}

static int run_job(const arguments *args, const plan *p, weft_comm *world, weft_arena *arena)
{
    job j = {.args = args, .plan = p, .lock = -1};
    weft_log_set_level((weft_log_level)p->config.log.level);
    weft_comm_set_check(p->config.log.check_collectives);
    weft_status status = set_up(&j, world, arena);
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
    status = steps(&j);
    if (status != WEFT_OK)
        take_down(world, status);
    if (j.stopped && j.speaks)
        weft_stop_tell_saved();
    if (j.speaks && !args->json) {
        printf("metrics: %s/metrics.jsonl\n", args->run.path);
        if (j.traced)
            printf("timeline: %s/trace.json, %s/trace.svg\n", args->run.path, args->run.path);
        weft_output_flush();
    }
    close_job(&j);
    return j.stopped ? WEFT_EXIT_STOPPED : 0;
}

/* In the process that was started: what needs no other. Returns the exit code. */
static int train(arguments *args, plan *p, int argc, char **argv, weft_arena *arena)
{
    weft_start start = weft_start_find();
    weft_status status = start.launched ? weft_stop_join() : WEFT_OK;
    if (status == WEFT_OK)
        status = make_plan(args, arena, p);
    if (status == WEFT_OK && !start.launched && is_finished(p)) {
        say_finished(args, p);
        return 0;
    }
    if (status == WEFT_OK) {
        weft_stop_set_timeout(p->config.train.stop_timeout_s);
        status = weft_start_ranks(&start, &p->config, &args->source, &args->run, argc, argv);
    }
    int code = start.exit_code;
    if (status != WEFT_OK)
        code = start.rank == 0 ? weft_verb_fail("train") : weft_status_exit_code(status);
    else if (start.world)
        code = run_job(args, p, start.world, arena);
    weft_comm_destroy(start.world);
    return code;
}

int weft_verb_train(int argc, char **argv, const weft_application *application)
{
    arguments args = {.source.application = application};
    plan p = {0};
    weft_arena arena = {0};
    int code = parse_arguments(argc, argv, &args, &arena);
    if (code < 0)
        code = train(&args, &p, argc, argv, &arena);
    weft_arena_release(&arena);
    return code;
}
