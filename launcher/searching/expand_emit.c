/* Each step as a config and the command that goes on with it. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
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

static weft_status write_command(const weft_expand *e, int i, const char *path, const char *config,
                                 const char *run)
{
    const weft_expand_step *step = &e->steps[i];
    char axes[128];
    weft_new_file file;
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_mesh_print(&step->mesh, axes, sizeof axes);
    fprintf(
        file.file,
        "#!/bin/sh\n"
        "# Step %d: %lld tokens of context on %d nodes: %s.\n"
        "# RUN: another run folder. WEFT: the program. LAUNCH: what starts %d ranks on several\n"
        "# machines, such as \"mpirun -n %d --hostfile hosts --bind-to none\".\n",
        i, (long long)step->config.model.seq_length, step->num_nodes, axes, step->mesh.world,
        step->mesh.world);
    if (i + 1 < e->num_steps)
        fprintf(file.file,
                "# SIGUSR1 ends and saves it for the next step; --set train.train_iters=N "
                "ends it after step N.\n");
    fprintf(file.file, "run=");
    put_quoted(run, file.file);
    fprintf(file.file, "\nexec $LAUNCH \"${WEFT:-weft}\" train ");
    put_quoted(config, file.file);
    fprintf(file.file, " --out \"${RUN:-$run}\" --resume");
    if (i > 0)
        put_allowed(&e->steps[i - 1].config, &step->config, file.file);
    fprintf(file.file, " \"$@\"\n");
    return weft_new_file_close(&file, WEFT_OK);
}

static weft_status write_step(const weft_expand *e, int i, const char *folder, const char *run,
                              const char *cluster, weft_arena *arena)
{
    const char *config_path, *command_path, *text;
    weft_config config = e->steps[i].config;
    config.schedule.cluster = cluster;
    WEFT_TRY(weft_config_text(&config, arena, &text));
    WEFT_TRY(weft_arena_printf(arena, &config_path, "%s/step-%d.json", folder, i));
    WEFT_TRY(weft_arena_printf(arena, &command_path, "%s/step-%d.sh", folder, i));
    WEFT_TRY(write_text(config_path, text));
    WEFT_TRY(write_command(e, i, command_path, config_path, run));
    if (chmod(command_path, 0777 & ~022) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", command_path, strerror(errno));
    return WEFT_OK;
}

weft_status weft_expand_emit(const weft_expand *e, const char *folder, const char *run,
                             const char *cluster, weft_arena *arena)
{
    const bool goes_on = run != NULL;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", folder, strerror(errno));
    if (!goes_on)
        WEFT_TRY(weft_arena_printf(arena, &run, "%s/run", folder));
    for (int i = goes_on; i < e->num_steps; i++)
        WEFT_TRY(write_step(e, i, folder, run, cluster, arena));
    return WEFT_OK;
}
