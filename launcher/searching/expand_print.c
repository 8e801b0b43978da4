/* What an expansion says: as a report, and as configs. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"
#include "launcher/planning/run_changes.h"
#include "launcher/searching/expand.h"

static bool runs_out(const weft_expand_step *step)
{
    return (double)step->config.train.global_batch_size != step->wanted_batch;
}

/* Why the step has fewer tokens a second than the one before, in a word and as a clause; text NULL:
 * it has not. */
typedef struct slower {
    const char *text, *clause;
} slower;

#define GROWS ", and attention's work a token grows with the context"

static slower find_slower(const weft_expand *e, int i)
{
    const weft_expand_step *step = &e->steps[i], *before = &e->steps[i > 0 ? i - 1 : 0];
    if (step->tokens_per_s >= before->tokens_per_s)
        return (slower){NULL, ""};
    if (step->cluster != before->cluster)
        return (slower){"cluster", "it is on another cluster"};
    if (step->config.model.seq_length == before->config.model.seq_length)
        return (slower){weft_limit_texts[step->limits], "which takes most of the step"};
    if (step->fewer.short_by_bytes > 0)
        return (slower){"memory", "no smaller mesh has the memory" GROWS};
    if (step->fewer.reason)
        return (slower){"mesh", "no smaller mesh is legal" GROWS};
    return (slower){"attention", "attention's work a token grows with the context"};
}

/* What a row cannot say. */
static void report_notes(weft_report *r, const weft_expand *e, int i)
{
    const weft_expand_step *step = &e->steps[i];
    const weft_train_options *train = &step->config.train;
    const slower why = find_slower(e, i);
    if (why.text)
        weft_report_line(r, "step %d: %.3g of the tokens/s of step %d (%s): %s", i,
                         step->tokens_per_s / e->steps[i - 1].tokens_per_s, i - 1, why.text,
                         why.clause);
    if (step->fewer.reason)
        weft_report_line(r, "step %d: not %s on %s: %s", i, step->fewer.mesh,
                         weft_count_text(step->fewer.num_nodes, "node").text, step->fewer.reason);
    if (step->refused.reason)
        weft_report_line(r, "step %d: refused %s on %s: %s", i, step->refused.mesh,
                         weft_count_text(step->refused.num_nodes, "node").text,
                         step->refused.reason);
    if (!step->fits)
        weft_report_line(r, "step %d: does not fit: a rank needs %s, and there are %s", i,
                         weft_bytes_text((double)step->memory_bytes).text,
                         weft_bytes_text((double)step->memory_limit_bytes).text);
    if (runs_out(step))
        weft_report_line(
            r,
            "step %d: micro-batches run out: %.6g samples would be %g tokens a step; the "
            "nearest legal batch is %lld (micro_batch_size %lld x dp %d)",
            i, step->wanted_batch, e->steps[0].tokens, (long long)train->global_batch_size,
            (long long)train->micro_batch_size, step->mesh.dp);
    if (step->lr_advised > 0)
        weft_report_line(
            r,
            "step %d: %.4g times the tokens a step: advice, not done: train.lr %g instead of "
            "%g, by the square root",
            i, step->tokens / e->steps[0].tokens, step->lr_advised, train->lr);
    if (step->write_s > 0)
        weft_report_line(r, "step %d: %.3g s to write the checkpoint before it", i, step->write_s);
    if (step->read_s > 0)
        weft_report_line(r, "step %d: %.3g s to read it", i, step->read_s);
}

static void report_data(weft_report *r, const weft_expand *e)
{
    if (e->positions)
        weft_report_line(r, "%s", e->positions);
    if (e->block_tokens > 0)
        weft_report_line(
            r,
            "data: in blocks of %lld tokens (data.shuffle_block_tokens) every length goes on at "
            "the next token%s",
            (long long)e->block_tokens,
            e->reorders ? "; the first longer one deals what is left of the epoch anew" : "");
    else if (e->reorders)
        weft_report_line(r, "data: the lengths do not divide the longest, so each deals what is "
                            "left of the epoch anew");
}

/* 0: nobody knows. */
static void report_known(weft_report *r, const char *key, double value)
{
    weft_report_value(r, key, value > 0 ? value : (double)NAN);
}

static void report_state(weft_report *r, const char *key, const weft_expand_step *step)
{
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_value(r, "memory_bytes", step->memory_bytes);
    weft_report_value(r, "memory_limit_bytes", step->memory_limit_bytes);
    weft_report_value(r, "step_time_s", step->step_us / 1e6);
    weft_report_value(r, "tokens_per_s", step->tokens_per_s);
    weft_report_open(r, WEFT_REPORT_OBJECT, "cost");
    if (*step->cluster->currency)
        weft_report_text(r, "currency", NULL, step->cluster->currency);
    weft_report_value(r, "hour", step->costs.hour);
    weft_report_value(r, "billion_tokens", step->costs.billion_tokens);
    weft_report_close(r);
    weft_report_close(r);
}

static void report_miss(weft_report *r, const char *key, const weft_expand_miss *miss)
{
    if (!miss->reason) {
        weft_report_text(r, key, NULL, NULL);
        return;
    }
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_value(r, "num_nodes", miss->num_nodes);
    weft_report_text(r, "mesh", NULL, miss->mesh);
    weft_report_text(r, "reason", NULL, miss->reason);
    weft_report_value(r, "short_by_bytes", miss->short_by_bytes);
    weft_report_close(r);
}

static void report_step(weft_report *r, const weft_expand *e, int i)
{
    const weft_expand_step *step = &e->steps[i];
    const weft_train_options *train = &step->config.train;
    char axes[128];
    weft_mesh_print(&step->mesh, axes, sizeof axes);
    weft_report_record(r);
    weft_report_row(r, "step", "step", WEFT_UNIT_COUNT, i);
    weft_report_row(r, "context", "context", WEFT_UNIT_COUNT, step->config.model.seq_length);
    weft_report_text(r, "cluster", NULL, step->cluster->name);
    weft_report_row(r, "num_nodes", "nodes", WEFT_UNIT_COUNT, step->num_nodes);
    weft_report_row(r, "nodes_added", "added", WEFT_UNIT_COUNT, step->nodes_added);
    weft_report_value(r, "num_devices", step->mesh.world);
    weft_report_value(r, "cp", step->mesh.cp);
    weft_report_value(r, "ep", step->mesh.ep);
    weft_report_value(r, "dp", step->mesh.dp);
    weft_report_text(r, "kind", "kind", weft_expand_texts[step->kind]);
    weft_report_row(r, NULL, "memory", WEFT_UNIT_BYTES, step->memory_bytes);
    weft_report_row(r, NULL, "takes", WEFT_UNIT_SECONDS, step->step_us / 1e6);
    weft_report_row(r, NULL, "tokens/s", WEFT_UNIT_COUNT, step->tokens_per_s);
    weft_report_text(r, "slower_for", "slower for", find_slower(e, i).text);
    weft_report_row(r, NULL, "cost/1e9", WEFT_UNIT_NONE, step->costs.billion_tokens);
    weft_report_row(r, "global_batch_size", "batch", WEFT_UNIT_COUNT, train->global_batch_size);
    weft_report_row(r, "micro_batch_size", "micro-batch", WEFT_UNIT_COUNT, train->micro_batch_size);
    weft_report_text(r, "mesh", "mesh", axes);
    weft_report_bool(r, "fits", step->fits);
    weft_report_value(r, "tokens", step->tokens);
    weft_report_bool(r, "micro_batches_run_out", runs_out(step));
    report_known(r, "lr_advised", step->lr_advised);
    weft_report_value(r, "model_flops_utilization", step->model_flops_utilization);
    weft_report_text(r, "limits", NULL, weft_limit_texts[step->limits]);
    report_state(r, "before", &e->steps[i > 0 ? i - 1 : 0]);
    report_state(r, "after", step);
    weft_report_open(r, WEFT_REPORT_OBJECT, "checkpoint");
    report_known(r, "write_s", step->write_s);
    report_known(r, "read_s", step->read_s);
    weft_report_close(r);
    report_miss(r, "why_not_fewer", &step->fewer);
    report_miss(r, "refused", &step->refused);
}

static void report_head(weft_report *r, const weft_expand *e, const weft_expand_request *request)
{
    const bool moves = request->to != request->cluster;
    const char *keeps = request->keeps_samples ? "samples" : "tokens";
    weft_report_line(r, "%s%s%s, a step keeps its %s; checkpoint %s\n", request->cluster->name,
                     moves ? " to " : "", moves ? request->to->name : "", keeps,
                     weft_bytes_text((double)e->checkpoint_bytes).text);
    weft_report_text(r, "cluster", NULL, request->cluster->name);
    weft_report_text(r, "to", NULL, request->to->name);
    weft_report_text(r, "batch", NULL, keeps);
    weft_report_text(r, "conditions", NULL, "MoNTA, section Cluster Expansion");
    weft_report_value(r, "checkpoint_bytes", e->checkpoint_bytes);
    if (e->positions)
        weft_report_text(r, "positions", NULL, e->positions);
    report_known(r, "shuffle_block_tokens", (double)e->block_tokens);
    weft_report_bool(r, "reorders_data", e->reorders);
}

void weft_expand_report(weft_report *r, const weft_expand *e, const weft_expand_request *request)
{
    report_head(r, e, request);
    weft_report_open(r, WEFT_REPORT_TABLE, "steps");
    for (int i = 0; i < e->num_steps; i++)
        report_step(r, e, i);
    weft_report_close(r);
    if (e->stop_text)
        weft_report_text(r, "stopped", NULL, e->stop_text);
    report_miss(r, "nearest", &e->nearest);
    report_miss(r, "beyond", &e->beyond);
    weft_report_line(r, "%s", "");
    for (int i = 0; i < e->num_steps; i++)
        report_notes(r, e, i);
    report_data(r, e);
}

/* As one word of a shell: 'it'\''s'. */
static void put_quoted(const char *text, FILE *out)
{
    fputc('\'', out);
    for (const char *at = text; *at; at++)
        if (*at == '\'')
            fputs("'\\''", out);
        else
            fputc(*at, out);
    fputc('\'', out);
}

/* --- a ladder's folder --------------------------------------------------------------------- */

/* step-N.json or step-N.sh. */
static bool is_of_ladder(const char *name)
{
    static const char start[] = "step-";
    const size_t bytes = sizeof start - 1;
    if (strncmp(name, start, bytes) != 0)
        return false;
    const size_t digits = strspn(name + bytes, "0123456789");
    const char *end = name + bytes + digits;
    return digits > 0 && (strcmp(end, ".json") == 0 || strcmp(end, ".sh") == 0);
}

/* Neither the file nor the folder has to be there. */
bool weft_expand_emits(const char *folder, const char *file)
{
    char *real = realpath(file, NULL);
    const char *path = real ? real : file, *slash = strrchr(path, '/');
    bool emits = is_of_ladder(slash ? slash + 1 : path);
    if (emits) {
        char *of_file =
            slash ? strndup(path, (size_t)(slash - path) + (slash == path)) : strdup(".");
        struct stat a, b;
        const bool is_there = stat(folder, &a) == 0;
        if (is_there)
            emits =
                of_file && stat(of_file, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
        else
            emits = of_file && strcmp(of_file, folder) == 0;
        free(of_file);
    }
    free(real);
    return emits;
}

weft_status weft_expand_check_folder(const char *folder, bool force)
{
    weft_status status = WEFT_OK;
    DIR *open = force ? NULL : opendir(folder);
    if (!open)
        return WEFT_OK;
    for (const struct dirent *entry = readdir(open); entry && status == WEFT_OK;
         entry = readdir(open))
        if (is_of_ladder(entry->d_name))
            status = WEFT_ERROR(WEFT_CONFIG,
                                "--emit %s: has the files of a ladder already; give --force to "
                                "replace them, or another folder",
                                folder);
    closedir(open);
    return status;
}

/* Steps of a longer ladder would stand beside those of this one. */
static weft_status remove_ladder(const char *folder)
{
    weft_status status = WEFT_OK;
    DIR *open = opendir(folder);
    if (!open)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", folder, strerror(errno));
    for (const struct dirent *entry = readdir(open); entry && status == WEFT_OK;
         entry = readdir(open))
        if (is_of_ladder(entry->d_name) && unlinkat(dirfd(open), entry->d_name, 0) != 0)
            status = WEFT_ERROR(WEFT_FILE, "%s/%s: cannot remove it: %s", folder, entry->d_name,
                                strerror(errno));
    closedir(open);
    return status;
}

/* --- its files ----------------------------------------------------------------------------- */

static weft_status write_text(const char *path, const char *text)
{
    weft_new_file file;
    WEFT_TRY(weft_new_file_open(path, &file));
    fputs(text, file.file);
    return weft_new_file_close(&file, WEFT_OK);
}

typedef struct allowing {
    FILE *out;
    int count;
} allowing;

/* Keys of another run that this step asks for. */
static weft_status put_allowed(void *context, const char *section, const weft_key *row,
                               const char *before, const char *after)
{
    allowing *a = context;
    (void)before;
    (void)after;
    if (row->resume >= WEFT_RESUME_RUN)
        fprintf(a->out, "%s%s.%s", a->count++ ? "," : " --allow-change ", section, row->key);
    return WEFT_OK;
}

/* Absolute: a script may be started anywhere. */
typedef struct places {
    const char *folder, *run;
    const char *current; /* where relative paths of the configs begin */
} places;

static weft_status write_command(const weft_expand *e, int i, const char *path, const char *config,
                                 const places *at)
{
    const weft_expand_step *step = &e->steps[i];
    char axes[128];
    weft_new_file file;
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_mesh_print(&step->mesh, axes, sizeof axes);
    fprintf(
        file.file,
        "#!/bin/sh\n"
        "# Step %d: %lld tokens of context on %s: %s.\n"
        "# RUN: another run folder. WEFT: the program. LAUNCH: what starts %d ranks on several\n"
        "# machines, such as \"mpirun -n %d --hostfile hosts --bind-to none\". Paths begin in the "
        "folder below.\n",
        i, (long long)step->config.model.seq_length, weft_count_text(step->num_nodes, "node").text,
        axes, step->mesh.world, step->mesh.world);
    if (step->config.device.kind == WEFT_DEVICE_KIND_CPU &&
        weft_plan_is_of_gpus(&step->config, step->cluster))
        fprintf(file.file, "# Planned on GPUs, and device.kind is cpu: --set device.kind=cuda "
                           "trains on them.\n");
    if (i + 1 < e->num_steps)
        fprintf(file.file,
                "# SIGUSR1 ends and saves it for the next step; --set train.train_iters=N "
                "ends it after step N.\n");
    fprintf(file.file, "cd -- ");
    put_quoted(at->current, file.file);
    fprintf(file.file, " || exit\nrun=");
    put_quoted(at->run, file.file);
    fprintf(file.file, "\nexec $LAUNCH \"${WEFT:-weft}\" train ");
    put_quoted(config, file.file);
    fprintf(file.file, " --out \"${RUN:-$run}\" --resume");
    allowing a = {.out = file.file};
    const weft_status status =
        i > 0 ? weft_run_compare(&e->steps[i - 1].config, &step->config, put_allowed, &a) : WEFT_OK;
    fprintf(file.file, " \"$@\"\n");
    return weft_new_file_close(&file, status);
}

static weft_status write_step(const weft_expand *e, int i, const places *at, const char *cluster,
                              weft_arena *arena)
{
    const char *config_path, *command_path, *text;
    weft_config config = e->steps[i].config;
    config.schedule.cluster = cluster;
    WEFT_TRY(weft_config_text(&config, arena, &text));
    WEFT_TRY(weft_arena_printf(arena, &config_path, "%s/step-%d.json", at->folder, i));
    WEFT_TRY(weft_arena_printf(arena, &command_path, "%s/step-%d.sh", at->folder, i));
    WEFT_TRY(write_text(config_path, text));
    WEFT_TRY(write_command(e, i, command_path, config_path, at));
    if (chmod(command_path, 0777 & ~022) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", command_path, strerror(errno));
    return WEFT_OK;
}

static weft_status find_path(const char *path, weft_arena *arena, const char **out)
{
    char *real = realpath(path, NULL);
    if (!real)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    const weft_status status = weft_arena_strdup(arena, real, out);
    free(real);
    return status;
}

weft_status weft_expand_emit(const weft_expand *e, const char *folder, const char *run,
                             const char *cluster, weft_arena *arena)
{
    const bool goes_on = run != NULL;
    places at;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", folder, strerror(errno));
    WEFT_TRY(find_path(folder, arena, &at.folder));
    WEFT_TRY(find_path(".", arena, &at.current));
    if (goes_on)
        WEFT_TRY(find_path(run, arena, &at.run));
    else
        WEFT_TRY(weft_arena_printf(arena, &at.run, "%s/run", at.folder));
    WEFT_TRY(remove_ladder(at.folder));
    for (int i = goes_on; i < e->num_steps; i++)
        WEFT_TRY(write_step(e, i, &at, cluster, arena));
    return WEFT_OK;
}
