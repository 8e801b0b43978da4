#include "launcher/training/data_copies.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/file.h"
#include "core/text.h"
#include "launcher/planning/data_sources.h"
#include "launcher/training/setup.h"

/* --- which files ---------------------------------------------------------------------------- */

/* Of what identifies this writing of a dataset's files. One that is not there counts as well: its
 * opening says what is wrong. */
static uint64_t mark_files(const char *prefix)
{
    static const char *const suffixes[] = {".bin", ".idx", ".mask"};
    weft_file_stamp stamps[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        char path[4096];
        weft_file file;
        weft_status status = WEFT_FILE;
        if ((size_t)snprintf(path, sizeof path, "%s%s", prefix, suffixes[i]) < sizeof path &&
            access(path, F_OK) == 0)
            status = weft_file_open(path, &file);
        if (status == WEFT_OK) {
            status = weft_file_take_stamp(&file, &stamps[i]);
            weft_file_close(&file);
        }
        if (status != WEFT_OK)
            weft_error_clear();
    }
    return XXH64(stamps, sizeof stamps, 0);
}

static weft_status mark_all(const weft_config *config, weft_arena *arena, size_t out_counts[2],
                            uint64_t **out)
{
    weft_data_sources lists[2];
    uint64_t *marks;
    WEFT_TRY(weft_data_find_training(config, arena, &lists[0]));
    WEFT_TRY(weft_data_find_validation(config, arena, &lists[1]));
    WEFT_TRY(WEFT_ARRAY(arena, lists[0].count + lists[1].count + 1, &marks));
    *out = marks;
    for (int l = 0; l < 2; l++) {
        out_counts[l] = lists[l].count;
        for (size_t i = 0; i < lists[l].count; i++)
            *marks++ = mark_files(lists[l].of[i].prefix);
    }
    return WEFT_OK;
}

/* Configs that name other paths may name other numbers of them. */
static weft_status check_counts(weft_comm *world, const weft_config *config, const size_t counts[2])
{
    size_t first[2] = {counts[0], counts[1]};
    WEFT_TRY(weft_comm_broadcast_host(world, first, sizeof first, 0));
    for (int l = 0; l < 2; l++) {
        const char *key = l == 1                         ? "data.validation"
                          : config->data.blend.count > 0 ? "data.blend"
                                                         : "data.data_path";
        if (counts[l] != first[l])
            return WEFT_KEY_ERROR(key, "%s, where rank 0 has %zu",
                                  weft_count_text((int64_t)counts[l], "dataset").text, first[l]);
    }
    return WEFT_OK;
}

/* Clears what a lower rank of this node reads. */
static weft_status leave_to_lower(weft_comm *node, const uint64_t *marks, weft_data_copies *copies)
{
    const size_t bytes = copies->count * sizeof *marks;
    weft_arena scratch = {0};
    uint64_t *all = NULL;
    weft_status status = weft_comm_agree(
        node, weft_arena_alloc_array(&scratch, (size_t)weft_comm_size(node), bytes, &all));
    if (status == WEFT_OK)
        status = weft_comm_all_gather_host(node, marks, all, bytes);
    for (int r = 0; status == WEFT_OK && r < weft_comm_rank(node); r++)
        for (size_t i = 0; i < copies->count; i++)
            if (all[(size_t)r * copies->count + i] == marks[i])
                copies->reads[i] = false;
    weft_arena_release(&scratch);
    return status;
}

static weft_status share_reads(weft_comm *world, const uint64_t *marks, const uint64_t *first,
                               int64_t *differs, weft_data_copies *copies)
{
    const bool is_first = weft_comm_rank(world) == 0;
    weft_comm *node = NULL;
    int64_t any = 0;
    for (size_t i = 0; i < copies->count; i++) {
        differs[i] = marks[i] != first[i];
        copies->reads[i] = differs[i];
    }
    WEFT_TRY(weft_comm_all_reduce_host(world, differs, copies->count, WEFT_I64, WEFT_REDUCE_MAX));
    for (size_t i = 0; i < copies->count; i++)
        any += differs[i];
    if (any == 0) {
        copies->count = 0;
        return WEFT_OK;
    }
    WEFT_TRY(weft_comm_split_node(world, &node));
    weft_status status = leave_to_lower(node, marks, copies);
    weft_comm_destroy(node);
    for (size_t i = 0; i < copies->count && is_first; i++)
        copies->reads[i] = differs[i];
    return weft_comm_agree(world, status);
}

weft_status weft_data_copies_find(weft_comm *world, const weft_config *config,
                                  const weft_config_source *source, weft_arena *arena,
                                  weft_data_copies *out)
{
    weft_data_copies copies = {0};
    uint64_t *marks = NULL, *first = NULL;
    int64_t *differs = NULL;
    size_t counts[2] = {0};
    *out = copies;
    if (weft_comm_size(world) == 1)
        return WEFT_OK;
    weft_status status = mark_all(config, arena, counts, &marks);
    copies.num_training = counts[0];
    copies.count = counts[0] + counts[1];
    if (status == WEFT_OK)
        status = WEFT_ARRAY(arena, copies.count + 1, &copies.reads);
    if (status == WEFT_OK)
        status = WEFT_ARRAY(arena, copies.count + 1, &first);
    if (status == WEFT_OK)
        status = WEFT_ARRAY(arena, copies.count + 1, &differs);
    WEFT_TRY(weft_comm_agree(world, weft_config_locate(source, status)));
    status = check_counts(world, config, counts);
    WEFT_TRY(weft_comm_agree(world, weft_config_locate(source, status)));
    if (copies.count == 0)
        return WEFT_OK;
    memcpy(first, marks, copies.count * sizeof *first);
    WEFT_TRY(weft_comm_broadcast_host(world, first, copies.count * sizeof *first, 0));
    WEFT_TRY(share_reads(world, marks, first, differs, &copies));
    *out = copies;
    return WEFT_OK;
}

/* --- what is in them ------------------------------------------------------------------------ */

static weft_data_set *set_of(const weft_data_copies *copies, const weft_data *data, size_t i)
{
    return i < copies->num_training ? &data->parts[i] : &data->validation[i - copies->num_training];
}

weft_status weft_data_copies_read(const weft_data_copies *copies, const weft_config_source *source,
                                  weft_data *data)
{
    weft_known known;
    for (size_t i = 0; i < copies->count; i++) {
        weft_data_set *set = set_of(copies, data, i);
        if (copies->reads[i] && !set->is_hashed)
            WEFT_TRY(weft_setup_hash_data(source, NULL, data->tokenizer, set, &known));
    }
    return WEFT_OK;
}

/* What ranks compare of a dataset. */
typedef struct content {
    uint64_t num_tokens, num_documents, xxh64;
} content;

static weft_status check_set(const weft_data_set *set, bool reads, const content *first)
{
    const weft_dataset *dataset = set->dataset;
    const uint64_t num_tokens = weft_dataset_num_tokens(dataset);
    const uint64_t num_documents = weft_dataset_num_documents(dataset);
    char node[64] = "";
    gethostname(node, sizeof node - 1);
    if (num_tokens != first->num_tokens || num_documents != first->num_documents)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: not rank 0's copy: %" PRIu64
                          " tokens in %s on node %s, there %" PRIu64 " in %" PRIu64,
                          weft_dataset_name(dataset), num_tokens,
                          weft_count_text((long long)num_documents, "document").text, node,
                          first->num_tokens, first->num_documents);
    if (reads && set->xxh64 != first->xxh64)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: not rank 0's copy: the hash of tokens and tokenizer is %016" PRIx64
                          " on node %s, there %016" PRIx64,
                          weft_dataset_name(dataset), set->xxh64, node, first->xxh64);
    return WEFT_OK;
}

weft_status weft_data_copies_compare(const weft_data_copies *copies, weft_comm *world,
                                     const weft_data *data)
{
    weft_arena scratch = {0};
    content *first = NULL;
    if (copies->count == 0)
        return WEFT_OK;
    weft_status status = weft_comm_agree(world, WEFT_ARRAY(&scratch, copies->count, &first));
    for (size_t i = 0; status == WEFT_OK && i < copies->count; i++) {
        const weft_data_set *set = set_of(copies, data, i);
        first[i] = (content){weft_dataset_num_tokens(set->dataset),
                             weft_dataset_num_documents(set->dataset), set->xxh64};
    }
    if (status == WEFT_OK)
        status = weft_comm_broadcast_host(world, first, copies->count * sizeof *first, 0);
    weft_status same = status;
    for (size_t i = 0; same == WEFT_OK && i < copies->count; i++)
        same = check_set(set_of(copies, data, i), copies->reads[i], &first[i]);
    weft_arena_release(&scratch);
    return status == WEFT_OK ? weft_comm_agree(world, same) : status;
}
