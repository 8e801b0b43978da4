/* weft train. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "launcher/arguments.h"
#include "launcher/launch.h"
#include "launcher/progress.h"
#include "launcher/setup.h"
#include "launcher/trainer.h"
#include "launcher/verbs.h"
#include "parallel/checkpoint.h"

typedef struct arguments {
    weft_config_source source;
    const char *out;
    bool resume, json;
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
         .text = &args->out, .required = true},
        {"set", "KEY=VALUE", "override a key of the config; may be repeated", .texts = &sets},
        {"mesh", "AXES", "such as tp=2,pp=2,ep=4,binding=dp: replaces the file's mesh",
         .text = &args->source.mesh},
        {"resume", NULL, "go on from RUN's latest checkpoint", .flag = &args->resume},
        {"json", NULL, "metrics as JSON lines on standard output", .flag = &args->json},
    };
    const weft_arguments verb = {
        .verb = "train",
        .operands = "CONFIG",
        .given = &given,
        .about = "A mesh of more than one rank starts mpirun, unless a launcher already has.\n"
                 "SIGTERM and SIGUSR1 make a run save a checkpoint and end after its step.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows,
        .more = print_keys,
        .context = args->source.application};
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    args->source.set = sets.values;
    args->source.num_set = sets.count;
    args->source.file = given.count ? given.values[0] : NULL;
    return code;
}

static weft_status make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", path, strerror(errno));
    return WEFT_OK;
}

/* Where the run starts from: its own latest checkpoint, checkpoint.load, or nothing. A run that has
 * checkpoints is never started over by accident, nor where `latest` cannot be followed. */
static weft_status find_start(const arguments *args, const weft_config *config, weft_arena *arena,
                              const char **out)
{
    const char *latest;
    *out = NULL;
    WEFT_TRY(weft_arena_printf(arena, &latest, "%s/checkpoints/latest", args->out));
    bool has_own = access(latest, F_OK) == 0;
    if (args->resume && !has_own)
        return WEFT_ERROR(WEFT_CONFIG, "%s: no checkpoint to resume from", args->out);
    if (args->resume)
        return weft_checkpoint_resolve(args->out, arena, out);
    if (has_own)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: holds checkpoints already; give --resume to go on, or another --out",
                          args->out);
    if (config->checkpoint.load)
        return weft_checkpoint_resolve(config->checkpoint.load, arena, out);
    return WEFT_OK;
}

/* What can be known wrong before any rank starts. */
static weft_status check_before(const arguments *args, const weft_config *config,
                                const weft_mesh *mesh, weft_arena *arena)
{
    const char *start;
    WEFT_TRY(weft_setup_check_device(config, &args->source));
    WEFT_TRY(weft_setup_check_data(config, &args->source));
    WEFT_TRY(weft_setup_check_model(config, &args->source, mesh));
    return find_start(args, config, arena, &start);
}

/* The resolved config beside the run's other files; rank 0. */
static weft_status write_config(const arguments *args, const weft_config *config, weft_arena *arena)
{
    const char *path, *text;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/config.json", args->out));
    WEFT_TRY(weft_config_text(config, arena, &text));
    FILE *out = fopen(path, "w");
    if (!out)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    int bad = fputs(text, out) < 0;
    if ((fclose(out) != 0) | bad)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return WEFT_OK;
}

static void print_start(const weft_trainer *t, const char *start)
{
    char mesh[128];
    weft_mesh_print(&t->groups.mesh, mesh, sizeof mesh);
    printf("%.1f M parameters, %d ranks: %s; %s; %d micro-batches a step and replica\n",
           (double)t->num_params / 1e6, t->groups.mesh.world, mesh,
           weft_dtype_text(weft_config_dtype(&t->config)), t->shape.num_micro_batches);
    if (start)
        printf("starting from %s (step %" PRId64 ")\n", start, t->step);
    fflush(stdout);
}

typedef struct job {
    const arguments *args;
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
    if (j->speaks)
        weft_log(WEFT_LOG_WARN, "step %" PRId64 ": not saved, the next save tries again: %s",
                 j->trainer.step, weft_error_get()->text);
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
            WEFT_TRY(weft_trainer_write_trace(t, j->args->out));
            j->traced = true;
        }
        bool ends = t->step >= c->train.train_iters || result.stop;
        if (!ends && c->checkpoint.save_interval > 0 && t->step % c->checkpoint.save_interval == 0)
            WEFT_TRY(save_or_warn(j));
    }
    WEFT_TRY(save(j));
    j->stopped = t->step < c->train.train_iters;
    if (j->stopped && j->speaks)
        weft_progress_note(&j->progress, "stopped as asked after step %" PRId64, t->step);
    return WEFT_OK;
}

/* Everything up to the first step; all ranks return the same status. */
static weft_status set_up(job *j, const weft_config *config, weft_comm *world, weft_arena *arena)
{
    const char *start = NULL;
    j->speaks = weft_comm_rank(world) == 0;
    weft_status status = find_start(j->args, config, arena, &start);
    if (status == WEFT_OK)
        status = weft_arena_printf(arena, &j->checkpoints, "%s/checkpoints", j->args->out);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(weft_trainer_create(&j->trainer, config, &j->args->source, world, arena));
    WEFT_TRY(weft_trainer_start(&j->trainer, start));
    if (j->speaks) {
        const weft_config *resolved = &j->trainer.config;
        status = make_folder(j->args->out); /* not before all else is known to be good */
        if (status == WEFT_OK)
            status = write_config(j->args, resolved, arena);
        if (status == WEFT_OK)
            status = weft_progress_open(&j->progress, j->args->out, j->trainer.step,
                                        resolved->train.train_iters, resolved->log.log_interval,
                                        j->args->json);
        if (status == WEFT_OK && !j->args->json)
            print_start(&j->trainer, start);
    }
    return weft_comm_agree(world, status);
}

static void asked_to_stop(int signal)
{
    (void)signal;
    weft_trainer_ask_to_stop();
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = asked_to_stop, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

static int run_job(const arguments *args, const weft_config *config, weft_comm *world,
                   weft_arena *arena)
{
    job j = {.args = args};
    weft_log_set_level((weft_log_level)config->log.level);
    weft_comm_set_check(config->log.check_collectives);
    weft_status status = set_up(&j, config, world, arena);
    if (status != WEFT_OK) { /* agreed on: one rank speaks, all leave */
        int code = weft_status_exit_code(status);
        if (j.speaks)
            weft_verb_fail("train");
        weft_progress_close(&j.progress);
        weft_trainer_release(&j.trainer);
        return code;
    }
    status = steps(&j);
    if (status != WEFT_OK) { /* this rank may be the only one that knows */
        weft_log_error_record();
        weft_comm_abort(world, status);
    }
    if (j.speaks && !args->json) {
        printf("metrics: %s/metrics.jsonl\n", args->out);
        if (j.traced)
            printf("timeline: %s/trace.json, %s/trace.svg\n", args->out, args->out);
        fflush(stdout);
    }
    weft_progress_close(&j.progress);
    weft_trainer_release(&j.trainer);
    return j.stopped ? WEFT_EXIT_STOPPED : 0;
}

int weft_verb_train(int argc, char **argv, const weft_application *application)
{
    arguments args = {.source.application = application};
    weft_arena arena = {0};
    weft_config config;
    weft_mesh mesh;
    weft_comm *world = NULL;
    int rank = 0, size = 1, local_rank, local_size, code;
    code = parse_arguments(argc, argv, &args, &arena);
    if (code >= 0) {
        weft_arena_release(&arena);
        return code;
    }
    bool launched = weft_comm_launched(&rank, &size, &local_rank, &local_size), starts = false;
    weft_log_set_rank(rank);
    weft_status status = weft_config_load(&args.source, &arena, &config);
    if (!launched)
        size = status == WEFT_OK ? weft_config_world(&config) : 1;
    if (status == WEFT_OK)
        status = weft_config_mesh(&config, &args.source, size, &mesh);
    if (status == WEFT_OK && !launched && size > 1) {
        starts = true;
        status = check_before(&args, &config, &mesh, &arena);
        if (status == WEFT_OK)
            status = weft_launch_mpirun(size, argc + 1, argv - 1, &code);
    }
    if (status == WEFT_OK && !starts) {
        catch_signals();
        weft_setup_driver(&config);
        status =
            size > 1 || launched ? weft_comm_create_world(&world) : weft_comm_create_self(&world);
    }
    if (status != WEFT_OK)
        code = rank == 0 ? weft_verb_fail("train") : weft_status_exit_code(status);
    else if (!starts)
        code = run_job(&args, &config, world, &arena);
    weft_comm_destroy(world);
    weft_arena_release(&arena);
    return code;
}
