/* hwloc's XML (lstopo FILE.xml), of hwloc 1 and 2: a node's memory, GPUs and cards. */
#include <ctype.h>
#include <string.h>

#include "launcher/measuring/import_internal.h"

enum { MAX_DEPTH = 128, MAX_ATTRIBUTES = 48, NAME_BYTES = 48, VALUE_BYTES = 160 };

typedef struct attribute {
    char name[NAME_BYTES], value[VALUE_BYTES];
} attribute;

typedef struct element {
    char name[NAME_BYTES];
    bool is_cuda; /* an <object> of a GPU */
} element;

typedef struct reader {
    const char *file, *at;
    int line;
    element open[MAX_DEPTH];
    int depth;
    char name[NAME_BYTES]; /* of the tag that was read */
    attribute attributes[MAX_ATTRIBUTES];
    int num_attributes;
    /* found: */
    double memory_bytes;
    int num_cuda, num_nvml, num_rsmi, num_nvidia_cards, num_cards;
    char gpu[64];
    bool gpus_differ;
    double gpu_bytes, multiprocessors;
    char host[64];
} reader;

static weft_status wrong(const reader *r, const char *what)
{
    return WEFT_ERROR(WEFT_CONFIG, "%s:%d: hwloc XML: %s", r->file, r->line, what);
}

/* --- XML ----------------------------------------------------------------------------------- */

/* Past the text; false: it does not come. */
static bool skip_past(reader *r, const char *end)
{
    const char *found = strstr(r->at, end);
    for (; *r->at && r->at != found; r->at++)
        r->line += *r->at == '\n';
    if (found)
        r->at += strlen(end);
    return found != NULL;
}

static void skip_blanks(reader *r)
{
    for (; *r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n'; r->at++)
        r->line += *r->at == '\n';
}

static bool read_name(reader *r, char out[NAME_BYTES])
{
    size_t used = 0;
    for (; isalnum((unsigned char)*r->at) || (*r->at && strchr("_-:.", *r->at)); r->at++)
        if (used + 1 < NAME_BYTES)
            out[used++] = *r->at;
    out[used] = '\0';
    return used > 0;
}

static char entity(const char **at)
{
    static const struct {
        const char *name;
        char value;
    } entities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++)
        if (strncmp(*at, entities[i].name, strlen(entities[i].name)) == 0) {
            *at += strlen(entities[i].name);
            return entities[i].value;
        }
    return *(*at)++;
}

static weft_status read_attribute(reader *r)
{
    attribute a;
    size_t used = 0;
    if (!read_name(r, a.name))
        return wrong(r, "a tag without its end");
    skip_blanks(r);
    if (*r->at != '=')
        return wrong(r, "an attribute without a value");
    r->at++;
    skip_blanks(r);
    const char quote = *r->at;
    if (quote != '"' && quote != '\'')
        return wrong(r, "an attribute's value without quotes");
    r->at++;
    while (*r->at && *r->at != quote && *r->at != '<') {
        r->line += *r->at == '\n';
        char c = entity(&r->at);
        c = (unsigned char)c < 32 ? ' ' : c; /* as XML has it, of breaks */
        if (used + 1 < sizeof a.value)
            a.value[used++] = c;
    }
    a.value[used] = '\0';
    if (*r->at != quote)
        return wrong(r, "an attribute's value without its end");
    r->at++;
    if (r->num_attributes < MAX_ATTRIBUTES)
        r->attributes[r->num_attributes++] = a;
    return WEFT_OK;
}

/* "": it is not there. */
static const char *value_of(const reader *r, const char *name)
{
    for (int i = 0; i < r->num_attributes; i++)
        if (strcmp(r->attributes[i].name, name) == 0)
            return r->attributes[i].value;
    return "";
}

/* --- what it says -------------------------------------------------------------------------- */

static weft_status number_of(const reader *r, const char *name, double scale, double *out)
{
    double value;
    if (!weft_import_number(value_of(r, name), &value) || value < 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: hwloc XML: %s \"%.40s\" is no number", r->file,
                          r->line, name, value_of(r, name));
    *out = value * scale;
    return WEFT_OK;
}

/* cuda0, nvml3. */
static bool is_numbered(const char *name, const char *kind)
{
    const size_t bytes = strlen(kind);
    return strncmp(name, kind, bytes) == 0 && name[bytes] &&
           strspn(name + bytes, "0123456789") == strlen(name + bytes);
}

static weft_status take_object(reader *r, element *e)
{
    const char *type = value_of(r, "type"), *name = value_of(r, "name");
    double bytes;
    if (value_of(r, "local_memory")[0]) {
        WEFT_TRY(number_of(r, "local_memory", 1, &bytes));
        r->memory_bytes += bytes;
    }
    if (strcmp(type, "PCIDev") == 0) /* "0302 [10de:2330] [...] a1": a 3D controller of NVIDIA's */
        r->num_nvidia_cards += strncmp(value_of(r, "pci_type"), "0302 [10de:", 11) == 0;
    if (strcmp(type, "OSDev") != 0)
        return WEFT_OK;
    e->is_cuda = is_numbered(name, "cuda");
    r->num_cuda += e->is_cuda;
    r->num_nvml += is_numbered(name, "nvml");
    r->num_rsmi += is_numbered(name, "rsmi");
    r->num_cards += strcmp(value_of(r, "osdev_type"), "3") == 0; /* OpenFabrics */
    return WEFT_OK;
}

/* The same of all GPUs. */
static void agree(reader *r, double value, double *common)
{
    if (*common > 0 && *common != value)
        r->gpus_differ = true;
    *common = value;
}

static weft_status take_info(reader *r)
{
    const char *name = value_of(r, "name"), *value = value_of(r, "value");
    const bool of_gpu = r->depth > 0 && r->open[r->depth - 1].is_cuda;
    double number;
    if (strcmp(name, "HostName") == 0)
        snprintf(r->host, sizeof r->host, "%.63s", value);
    if (!of_gpu)
        return WEFT_OK;
    if (strcmp(name, "GPUModel") == 0) {
        if (r->gpu[0] && strncmp(r->gpu, value, sizeof r->gpu - 1) != 0)
            r->gpus_differ = true;
        snprintf(r->gpu, sizeof r->gpu, "%.63s", value);
    } else if (strcmp(name, "CUDAGlobalMemorySize") == 0) {
        WEFT_TRY(number_of(r, "value", 1024, &number)); /* KiB */
        agree(r, number, &r->gpu_bytes);
    } else if (strcmp(name, "CUDAMultiProcessors") == 0) {
        WEFT_TRY(number_of(r, "value", 1, &number));
        agree(r, number, &r->multiprocessors);
    }
    return WEFT_OK;
}

static weft_status take_tag(reader *r, bool closed)
{
    element e = {{0}, false};
    snprintf(e.name, sizeof e.name, "%s", r->name);
    if (r->depth == 0 && strcmp(e.name, "topology") != 0)
        return wrong(r, "begins with another tag than topology");
    if (strcmp(e.name, "object") == 0)
        WEFT_TRY(take_object(r, &e));
    else if (strcmp(e.name, "info") == 0)
        WEFT_TRY(take_info(r));
    if (closed)
        return WEFT_OK;
    if (r->depth == MAX_DEPTH)
        return wrong(r, "tags inside each other without end");
    r->open[r->depth++] = e;
    return WEFT_OK;
}

static weft_status read_tag(reader *r)
{
    r->num_attributes = 0;
    if (!read_name(r, r->name))
        return wrong(r, "a tag without a name");
    for (;;) {
        skip_blanks(r);
        const bool closed = r->at[0] == '/' && r->at[1] == '>';
        if (closed || *r->at == '>') {
            r->at += closed ? 2 : 1;
            return take_tag(r, closed);
        }
        WEFT_TRY(read_attribute(r));
    }
}

static weft_status read_end(reader *r)
{
    char name[NAME_BYTES];
    (void)read_name(r, name);
    skip_blanks(r);
    if (*r->at != '>' || r->depth == 0 || strcmp(r->open[r->depth - 1].name, name) != 0)
        return wrong(r, "an end that is not of the tag that is open");
    r->at++;
    r->depth--;
    return WEFT_OK;
}

static weft_status read_all(reader *r)
{
    bool seen = false;
    for (;;) {
        for (; *r->at && *r->at != '<'; r->at++)
            r->line += *r->at == '\n';
        if (!*r->at)
            break;
        r->at++;
        if (strncmp(r->at, "!--", 3) == 0) {
            if (!skip_past(r, "-->"))
                return wrong(r, "a comment without its end");
        } else if (*r->at == '?' || *r->at == '!') {
            if (!skip_past(r, ">"))
                return wrong(r, "a tag without its end");
        } else if (*r->at == '/') {
            r->at++;
            WEFT_TRY(read_end(r));
        } else {
            WEFT_TRY(read_tag(r));
            seen = true;
        }
    }
    if (r->depth > 0 || !seen)
        return wrong(r, "ends before its topology does");
    return WEFT_OK;
}

/* --- what a cluster gets ------------------------------------------------------------------- */

static weft_status take_gpus(weft_import *import, const reader *r)
{
    weft_hardware *hardware = &import->cluster.hardware;
    const int counts[] = {r->num_cuda, r->num_nvml, r->num_rsmi, r->num_nvidia_cards};
    int num_gpus = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        num_gpus = counts[i] > num_gpus ? counts[i] : num_gpus;
    if (num_gpus > 0)
        weft_import_ranks(import, r->file, num_gpus);
    else
        weft_import_note(import, "ranks_per_node: %s shows no GPU", r->file);
    if (r->gpus_differ)
        weft_import_note(import, "device: %s: its GPUs differ: left out", r->file);
    if (r->gpus_differ || r->num_cuda == 0)
        return WEFT_OK;
    if (r->gpu[0]) {
        snprintf(hardware->device_name, sizeof hardware->device_name, "%s", r->gpu);
        WEFT_TRY(weft_import_source(import, "device.name", WEFT_SOURCE_MEASURED, r->file));
    }
    if (r->gpu_bytes > 0)
        WEFT_TRY(weft_import_figure(import, WEFT_FIGURE_MEMORY, r->gpu_bytes, WEFT_SOURCE_MEASURED,
                                    r->file, r->line, r->file));
    if (r->multiprocessors > 0)
        WEFT_TRY(weft_import_figure(import, WEFT_FIGURE_MULTIPROCESSORS, r->multiprocessors,
                                    WEFT_SOURCE_MEASURED, r->file, r->line, r->file));
    return WEFT_OK;
}

weft_status weft_import_hwloc(weft_import *import, const char *file, const char *text)
{
    reader r = {.file = file, .at = text, .line = 1};
    WEFT_TRY(read_all(&r));
    if (r.memory_bytes > 0)
        WEFT_TRY(weft_import_figure(import, WEFT_FIGURE_HOST_MEMORY, r.memory_bytes,
                                    WEFT_SOURCE_MEASURED, file, r.line, file));
    else
        weft_import_note(import, "host.memory_bytes: %s does not tell it", file);
    if (r.num_cards > 0)
        WEFT_TRY(weft_import_figure(import, WEFT_FIGURE_CARDS, r.num_cards, WEFT_SOURCE_MEASURED,
                                    file, r.line, file));
    else
        weft_import_note(import, "between.cards: %s shows no InfiniBand card", file);
    if (r.host[0] && !import->cluster.name[0])
        snprintf(import->cluster.name, sizeof import->cluster.name, "%s", r.host);
    return take_gpus(import, &r);
}
