#include "tests/launcher/altered.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

void load(model *m, const char *name)
{
    char path[600];
    weft_safetensors files;
    char *text = NULL;
    size_t bytes;
    memset(m, 0, sizeof *m);
    snprintf(path, sizeof path, "%s/tests/oracle/models/%s/config.json", getenv("WEFT_SOURCE_DIR"),
             name);
    EXPECT_OK(weft_file_read_text(path, &m->arena, &text, &bytes));
    m->config = text;
    *strrchr(path, '/') = '\0';
    EXPECT_OK(weft_safetensors_open(path, &m->arena, &files));
    m->count = files.num_tensors;
    for (size_t i = 0; i < m->count; i++) {
        const weft_safetensor *t = &files.tensors[i];
        m->tensors[i] = *t;
        m->data[i] = calloc(1, t->bytes + 1);
        EXPECT_OK(weft_file_read(&files.files[t->file], t->offset, m->data[i], t->bytes));
        m->tensors[i].file = 0;
    }
    weft_safetensors_release(&files);
}

void release(model *m)
{
    for (size_t i = 0; i < m->count; i++)
        free(m->data[i]);
    weft_arena_release(&m->arena);
}

size_t find(const model *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return i;
    EXPECT(false, "no tensor %s", name);
    return 0;
}

void drop(model *m, const char *name)
{
    const size_t at = find(m, name);
    free(m->data[at]);
    m->count--;
    for (size_t i = at; i < m->count; i++) {
        m->tensors[i] = m->tensors[i + 1];
        m->data[i] = m->data[i + 1];
    }
}

size_t add(model *m, const char *name, const char *like)
{
    const size_t of = find(m, like), at = m->count++;
    m->tensors[at] = m->tensors[of];
    m->tensors[at].name = name;
    m->data[at] = calloc(1, m->tensors[of].bytes + 1);
    memcpy(m->data[at], m->data[of], m->tensors[of].bytes);
    return at;
}

void say(model *m, const char *from, const char *to)
{
    const char *at = strstr(m->config, from), *text = NULL;
    EXPECT(at != NULL, "the config has no %s", from);
    if (at)
        EXPECT_OK(weft_arena_printf(&m->arena, &text, "%.*s%s%s", (int)(at - m->config), m->config,
                                    to, at + strlen(from)));
    if (at)
        m->config = text;
}

void write_folder(model *m, const char *folder)
{
    char path[64];
    const char *head;
    size_t head_bytes;
    weft_safetensor *order[MAX_TENSORS];
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/config.json", folder);
    EXPECT(child_write(path, m->config), "%s", path);
    for (size_t i = 0; i < m->count; i++)
        order[i] = &m->tensors[i];
    EXPECT_OK(weft_safetensors_lay_out(order, m->count, &m->arena, &head, &head_bytes));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    fwrite(head, 1, head_bytes, file);
    for (size_t i = 0; i < m->count; i++)
        fwrite(m->data[order[i] - m->tensors], 1, order[i]->bytes, file);
    fclose(file);
}

weft_status import_to(const char *folder, const char *run, weft_card *card)
{
    static weft_arena arena;
    weft_arena_reset(&arena);
    return weft_import_model(&(weft_import){.folder = folder, .out = run}, &arena, card);
}

weft_status export_to(const char *run, const char *out, const char *dtype, uint64_t most,
                      weft_card *card)
{
    static weft_arena arena;
    weft_arena_reset(&arena);
    return weft_export_model(
        &(weft_export){.checkpoint = run, .out = out, .dtype = dtype, .max_shard_bytes = most},
        &arena, card);
}

void refused(model *m, weft_status status, const char *part)
{
    weft_card card;
    write_folder(m, "altered");
    EXPECT_ERROR(import_to("altered", "run", &card), status, part);
    EXPECT(access("run", F_OK) != 0 && access(".run.weft-part", F_OK) != 0, "half a run after %s",
           part);
    release(m);
}

void taken(model *m, weft_card *card)
{
    write_folder(m, "altered");
    EXPECT_OK(import_to("altered", NULL, card));
    release(m);
}

void has_text(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && strstr(text, part), "%s lacks %s", path, part);
}
