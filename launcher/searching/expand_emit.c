/* Each step as a config and the command that goes on with it. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"
#include "launcher/searching/expand.h"

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

/* Keys of another run that this step asks for. */
static void put_allowed(const weft_config *before, const weft_config *config, FILE *out)
{
    const struct {
        const char *key;
        bool differs;
    } rows[] = {
        {"model.seq_length", before->model.seq_length != config->model.seq_length},
        {"model.max_position_embeddings",
         before->model.max_position_embeddings != config->model.max_position_embeddings},
        {"data.shuffle_block_tokens",
         before->data.shuffle_block_tokens != config->data.shuffle_block_tokens},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].differs)
            fprintf(out, "%s%s", count++ ? "," : " --allow-change ", rows[i].key);
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
    if (i > 0)
        put_allowed(&e->steps[i - 1].config, &step->config, file.file);
    fprintf(file.file, " \"$@\"\n");
    return weft_new_file_close(&file, WEFT_OK);
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
