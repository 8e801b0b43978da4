/* `nvidia-smi topo -m`: a matrix of how a node's GPUs and cards see each other. */
#include <string.h>

#include "core/text.h"
#include "launcher/measuring/import_internal.h"

/* Of NVLink 2 to 4, one way; P100 has 20e9, B200 50e9. */
#define LINK_BANDWIDTH 25e9
/* More links than this no GPU has: peers that show more in sum are behind switches. */
enum { MOST_LINKS = 18, MAX_DEVICES = 128 };

typedef struct matrix {
    int num_devices, num_gpus, num_cards;
    bool is_gpu[MAX_DEVICES];  /* of columns */
    bool is_near[MAX_DEVICES]; /* a card that shares PCIe switches with a GPU */
    int rows;                  /* of GPUs, seen */
    int line;                  /* of the first */
    /* Links of NVLink, the same for all GPUs: of a pair, and a GPU's sum. */
    int least_links, least_sum;
} matrix;

static bool is_gpu(const char *word)
{
    return strncmp(word, "GPU", 3) == 0 && word[3] &&
           strspn(word + 3, "0123456789") == strlen(word + 3);
}

/* NV12: 12; another way: 0; none of the ways: -1. */
static int links_of(const char *cell)
{
    static const char *const ways[] = {"SYS", "NODE", "PHB", "PXB", "PIX", "SOC", "PSB"};
    int links;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(cell, ways[i]) == 0)
            return 0;
    if (strncmp(cell, "NV", 2) == 0 && weft_import_count(cell + 2, 1000, &links))
        return links;
    return -1;
}

/* The columns end where the affinities begin. */
static weft_status read_header(const weft_import_lines *lines, matrix *m)
{
    char word[WEFT_IMPORT_WORD_BYTES];
    size_t at = 0;
    while (weft_import_next_word(lines, &at, word) && strcmp(word, "CPU") != 0) {
        if (m->num_devices == MAX_DEVICES)
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: more than %d devices", lines->file,
                              lines->number, MAX_DEVICES);
        if (strcmp(word, "X") == 0 || links_of(word) >= 0)
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: a row, and no header with the devices above it",
                              lines->file, lines->number);
        const bool gpu = is_gpu(word);
        m->is_gpu[m->num_devices++] = gpu;
        m->num_gpus += gpu;
        m->num_cards += !gpu;
    }
    m->line = lines->number;
    m->least_links = m->least_sum = 1 << 20;
    return WEFT_OK;
}

static weft_status read_row(const weft_import_lines *lines, matrix *m)
{
    char name[WEFT_IMPORT_WORD_BYTES], cell[WEFT_IMPORT_WORD_BYTES];
    size_t at = 0;
    int sum = 0;
    (void)weft_import_next_word(lines, &at, name);
    for (int i = 0; i < m->num_devices; i++) {
        if (!weft_import_next_word(lines, &at, cell))
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %s has %d cells, the header %d", lines->file,
                              lines->number, name, i, m->num_devices);
        const int links = strcmp(cell, "X") == 0 ? 0 : links_of(cell);
        if (links < 0)
            return WEFT_ERROR(WEFT_CONFIG, "%s:%d: %s: \"%s\" is no way between devices",
                              lines->file, lines->number, name, cell);
        if (!m->is_gpu[i])
            m->is_near[i] |= strcmp(cell, "PIX") == 0 || strcmp(cell, "PXB") == 0;
        if (!m->is_gpu[i] || strcmp(cell, "X") == 0)
            continue;
        sum += links;
        m->least_links = links < m->least_links ? links : m->least_links;
    }
    m->least_sum = sum < m->least_sum ? sum : m->least_sum;
    m->rows++;
    return WEFT_OK;
}

/* The file has the number of links, not their generation. */
static weft_status take_links(weft_import *import, const char *file, const matrix *m)
{
    char where[256];
    if (m->num_gpus < 2)
        return WEFT_OK;
    if (m->least_links == 0) {
        weft_import_note(import,
                         "inside.bandwidth: %s: not all GPUs are joined by NVLink, and the "
                         "rate of PCIe is not in it",
                         file);
        return WEFT_OK;
    }
    const bool switched = m->least_sum > MOST_LINKS;
    const int links = switched ? m->least_links : m->least_sum;
    if (weft_hardware_knows(&import->cluster.hardware, WEFT_FIGURE_INSIDE_BANDWIDTH)) {
        weft_import_note(import, "inside.bandwidth: stays; %s has %s", file,
                         weft_count_text(links, "NVLink").text);
        return WEFT_OK;
    }
    snprintf(where, sizeof where, "%s: %d NVLinks of 25e9 bytes/s one way", file, links);
    weft_import_note(import, "inside.bandwidth: %s; B200 has 50e9", where);
    return weft_import_figure(import, WEFT_FIGURE_INSIDE_BANDWIDTH, links * LINK_BANDWIDTH,
                              WEFT_SOURCE_ASSUMED, file, m->line, where);
}

/* Cards far from all GPUs serve storage and logins, where others are near. */
static weft_status take_cards(weft_import *import, const char *file, const matrix *m)
{
    int near = 0;
    if (m->num_cards == 0) {
        weft_import_note(import, "between.cards: %s shows no network card", file);
        return WEFT_OK;
    }
    for (int i = 0; i < m->num_devices; i++)
        near += m->is_near[i];
    if (near > 0 && near < m->num_cards)
        weft_import_note(import,
                         "between.cards: %s: of %d those %d count that are near a GPU (PIX, "
                         "PXB)",
                         file, m->num_cards, near);
    return weft_import_figure(import, WEFT_FIGURE_CARDS, near > 0 ? near : m->num_cards,
                              WEFT_SOURCE_MEASURED, file, m->line, file);
}

weft_status weft_import_nvidia(weft_import *import, const char *file, const char *text)
{
    weft_import_lines lines = {.file = file, .next = text};
    matrix m = {0};
    while (weft_import_next_line(&lines)) {
        char first[WEFT_IMPORT_WORD_BYTES];
        size_t at = 0;
        if (!weft_import_next_word(&lines, &at, first))
            continue;
        if (strcmp(first, "Legend:") == 0)
            break;
        if (m.num_devices == 0 && strcmp(first, "GPU0") == 0)
            WEFT_TRY(read_header(&lines, &m));
        else if (m.num_devices > 0 && is_gpu(first))
            WEFT_TRY(read_row(&lines, &m));
    }
    if (m.num_gpus == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: no header with the devices", file, lines.number);
    if (m.rows != m.num_gpus)
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d: the header has %s, below it are %d", file, m.line,
                          weft_count_text(m.num_gpus, "GPU").text, m.rows);
    weft_import_ranks(import, file, m.num_gpus);
    WEFT_TRY(take_cards(import, file, &m));
    return take_links(import, file, &m);
}
