#include "core/options/options.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

/* Longer names are compared by their beginnings. */
enum { MAX_NAME = 63 };

static int fold(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b, where case and
 * '-' against '_' cost nothing. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][MAX_NAME + 1];
    size_t na = strnlen(a, MAX_NAME), nb = strnlen(b, MAX_NAME);
    for (size_t j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *now = rows[i % 3], *above = rows[(i + 2) % 3], *twice = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t replace = above[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            now[j] = min_of(replace, min_of(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                now[j] = min_of(now[j], twice[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

/* Other words for names of ours; letters say nothing of these. */
static const struct {
    const char *words, *name;
} synonyms[] = {
    {"gpu nvidia", "cuda"},
    {"host", "cpu"},
    {"float32 float single", "fp32"},
    {"half float16", "fp16"},
    {"bfloat16", "bf16"},
    {"layer_norm", "LayerNorm"},
    {"rms_norm", "RMSNorm"},
    {"rotary", "rope"},
    {"learning_rate max_lr", "lr"},
    {"lr_schedule lr_scheduler lr_scheduler_type", "lr_decay_style"},
    {"warmup_steps num_warmup_steps", "lr_warmup_iters"},
    {"lr_decay_steps", "lr_decay_iters"},
    {"steps num_steps max_steps total_steps iters max_iters num_iters epochs", "train_iters"},
    {"max_grad_norm gradient_clipping", "clip_grad"},
    {"wd", "weight_decay"},
    {"frozen_parameters freeze frozen_layers", "parameter_rules"},
    {"random_seed", "seed"},
    {"dtype bf16 fp16", "precision"},
    {"activation_checkpointing gradient_checkpointing", "recompute_granularity"},
    {"eval_steps eval_every", "eval_interval"},
    {"save_steps save_every", "save_interval"},
    {"log_every log_steps logging_steps", "log_interval"},
    {"dataset train_data", "data_path"},
    {"layers", "num_layers"},
    {"n_embd d_model embed_dim width", "hidden_size"},
    {"d_ff ffn_dim intermediate_size", "ffn_hidden_size"},
    {"n_kv_heads num_kv_heads num_key_value_heads", "num_query_groups"},
    {"head_dim", "kv_channels"},
    {"block_size context_length n_ctx max_seq_len max_seq_length max_length", "seq_length"},
    {"norm_eps layer_norm_eps rms_norm_eps layernorm_epsilon", "norm_epsilon"},
    {"rope_theta rope_base", "rotary_base"},
    {"tie_word_embeddings tie_embeddings", "untie_embeddings_and_output_weights"},
    {"num_local_experts", "num_experts"},
    {"top_k num_experts_per_tok", "moe_router_topk"},
    {"tp", "tensor_model_parallel_size"},
    {"pp", "pipeline_model_parallel_size"},
    {"cp", "context_parallel_size"},
    {"ep", "expert_model_parallel_size"},
    {"dp world_size", "data_parallel_size"},
    {"delay_wgrad_compute", "pipeline_schedule"},
    {"vp", "num_virtual_stages_per_pipeline_rank"},
    {"zero zero_stage", "data_parallel_sharding_strategy"},
};

static bool is_same(const char *a, size_t bytes, const char *b)
{
    for (size_t i = 0; i < bytes; i++)
        if (fold(a[i]) != fold(b[i]))
            return false;
    return b[bytes] == '\0';
}

static bool has_word(const char *words, const char *name)
{
    for (const char *at = words; *at; at += strspn(at, " ")) {
        const size_t bytes = strcspn(at, " ");
        if (is_same(at, bytes, name))
            return true;
        at += bytes;
    }
    return false;
}

/* The index of the name that `name` is another word for; count: none. */
static size_t find_synonym(const char *name, const char *const *names, size_t count)
{
    for (size_t s = 0; s < sizeof synonyms / sizeof *synonyms; s++)
        for (size_t i = 0; i < count; i++)
            if (strcmp(synonyms[s].name, names[i]) == 0 && has_word(synonyms[s].words, name))
                return i;
    return count;
}

static size_t word_bytes(const char *at)
{
    return strcspn(at, "_-");
}

/* "n" of "num", "len" of "length", "heads" of "head": the first letter, and others in order. */
static bool shortens(const char *word, size_t bytes, const char *other, size_t other_bytes)
{
    size_t at = 1;
    if (bytes == 0 || other_bytes == 0 || fold(*word) != fold(*other))
        return false;
    if (bytes > 3 && fold(word[bytes - 1]) == 's')
        bytes--;
    for (size_t i = 1; i < other_bytes && at < bytes; i++)
        at += fold(word[at]) == fold(other[i]);
    return at == bytes;
}

/* How many words `other` has more than `name`, whose words it all has; MAX_NAME: it has not. */
static size_t words_more(const char *name, const char *other)
{
    uint64_t matched = 0;
    size_t count = 0;
    for (const char *word = name; *word; word += word_bytes(word), word += *word != '\0') {
        uint64_t bit = 1;
        const char *at = other;
        while (*at && ((matched & bit) || !shortens(word, word_bytes(word), at, word_bytes(at)))) {
            at += word_bytes(at);
            at += *at != '\0';
            bit <<= 1;
        }
        if (!*at)
            return MAX_NAME;
        matched |= bit;
        count++;
    }
    size_t words = *other != '\0';
    for (const char *at = other; *at; at++)
        words += *at == '_' || *at == '-';
    return words - count;
}

/* One word that shortens one of many says nothing: "force" is no "moe_router_forced_load", though
 * "capacity" means "moe_expert_capacity_factor". */
static bool says_little(const char *name, const char *other, size_t more)
{
    enum { FEW = 2 };
    bool is_word = false;
    for (const char *at = other; *at; at += word_bytes(at), at += *at != '\0')
        is_word = is_word || is_same(at, word_bytes(at), name);
    return more > FEW && more < MAX_NAME && word_bytes(name) == strlen(name) && !is_word;
}

/* Those of [first, end) with the fewest words more. */
static size_t with_words(const char *name, const char *const *names, size_t first, size_t end,
                         size_t out[WEFT_LIKELY_NAMES])
{
    size_t least = MAX_NAME, found = 0;
    for (size_t i = first; i < end; i++) {
        const size_t more = words_more(name, names[i]);
        if (says_little(name, names[i], more))
            continue;
        if (more < least) {
            least = more;
            found = 0;
        }
        if (more == least && more < MAX_NAME && found < WEFT_LIKELY_NAMES)
            out[found++] = i;
    }
    return found;
}

size_t weft_likely_names(const char *name, const char *const *names, size_t count, size_t first,
                         size_t own, size_t out[WEFT_LIKELY_NAMES])
{
    out[0] = find_synonym(name, names, count);
    if (out[0] < count)
        return 1;
    if (strlen(name) < 3 || strlen(name) >= MAX_NAME) /* too short to say anything */
        return 0;
    const size_t found = with_words(name, names, first, first + own, out);
    return found > 0 ? found : with_words(name, names, 0, count, out);
}

/* "memory_bytes" of "memory_gb": the same but for the unit of bytes. */
static const char *of_bytes(const char *name, const char *const *names, size_t count)
{
    const char *unit = strrchr(name, '_');
    if (!unit || !has_word("gb gib mb mib tb tib kb kib", unit + 1))
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (strncmp(names[i], name, (size_t)(unit - name)) == 0 &&
            strcmp(names[i] + (unit - name), "_bytes") == 0)
            return names[i];
    return NULL;
}

const char *weft_nearest_name(const char *name, const char *const *names, size_t count)
{
    const size_t synonym = find_synonym(name, names, count);
    if (synonym < count)
        return names[synonym];
    const char *bytes_of = of_bytes(name, names, count);
    if (bytes_of)
        return bytes_of;
    /* A third of the letters may be wrong; beyond that a suggestion misleads. */
    size_t bytes = strnlen(name, MAX_NAME), limit = (bytes + 2) / 3 + 1;
    const char *best = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strnlen(names[i], MAX_NAME);
        if ((other > bytes ? other - bytes : bytes - other) >= limit)
            continue; /* so many letters are missing alone */
        if (other + 1 < bytes && fold(name[other]) != '_' &&
            strncasecmp(name, names[i], other) == 0)
            continue; /* another word that begins so: "force" is no "for" */
        size_t distance = edit_distance(name, names[i]);
        if (distance < limit) {
            limit = distance;
            best = names[i];
        }
    }
    return best;
}

/* What an unknown key may stand for. */

/* Every row's key, section after section. */
typedef struct rows {
    const weft_option_section *sections;
    const char **names;
    size_t count;
} rows;

static const weft_option_section *section_of(const rows *r, size_t index)
{
    const weft_option_section *section = r->sections;
    for (; index >= section->num_rows; section++)
        index -= section->num_rows;
    return section;
}

static size_t nearest(const rows *r, size_t first, const char *key, size_t count, size_t *out)
{
    const char *near = weft_nearest_name(key, r->names + first, count);
    for (size_t i = first; near && i < first + count; i++)
        if (r->names[i] == near) {
            *out = i;
            return 1;
        }
    return 0;
}

/* What means the same before what is spelled much the same; of these the section's own first, which
 * rows [first, first + own) are. */
static size_t find(const rows *r, const char *key, size_t first, size_t own,
                   size_t out[WEFT_LIKELY_NAMES])
{
    size_t count = nearest(r, first, key, own, out), all[1];
    if (count > 0 && edit_distance(key, r->names[*out]) == 1)
        return count;
    count = weft_likely_names(key, r->names, r->count, first, own, out);
    if (count > 0)
        return count;
    count = nearest(r, first, key, own, out);
    if (nearest(r, 0, key, r->count, all) == 0)
        return count;
    /* The earlier of equally near ones wins. */
    const char *const both[] = {count ? r->names[*out] : r->names[*all], r->names[*all]};
    if (count == 0 || weft_nearest_name(key, both, 2) != both[0])
        *out = *all;
    return 1;
}

weft_status weft_options_near(const weft_option_section *sections, size_t num_sections,
                              const char *section, const char *key, weft_arena *arena,
                              weft_string_list *out)
{
    rows r = {.sections = sections};
    size_t first = 0, own = 0, at = 0, found[WEFT_LIKELY_NAMES];
    for (size_t i = 0; i < num_sections; r.count += sections[i++].num_rows)
        if (section && strcmp(sections[i].name, section) == 0) {
            first = r.count;
            own = sections[i].num_rows;
        }
    if (!section)
        own = r.count;
    const char **keys;
    WEFT_TRY(WEFT_ARRAY(arena, r.count + WEFT_LIKELY_NAMES, &keys));
    r.names = keys + WEFT_LIKELY_NAMES;
    for (size_t i = 0; i < num_sections; i++)
        for (size_t j = 0; j < sections[i].num_rows; j++)
            r.names[at++] = sections[i].rows[j].key;
    const size_t count = find(&r, key, first, own, found);
    for (size_t i = 0; i < count; i++)
        WEFT_TRY(weft_arena_printf(arena, &keys[i], "%s.%s", section_of(&r, found[i])->name,
                                   r.names[found[i]]));
    *out = (weft_string_list){.values = keys, .count = count};
    return WEFT_OK;
}

weft_status weft_options_near_text(const weft_string_list *near, const char *before,
                                   const char *after, weft_arena *arena, const char **out)
{
    *out = "";
    for (size_t i = 0; i < near->count; i++) {
        const char *between = i == 0 ? "" : i + 1 == near->count ? " or " : ", ";
        WEFT_TRY(weft_arena_printf(arena, out, "%s%s%s%s%s", *out, between, before, near->values[i],
                                   after));
    }
    return WEFT_OK;
}
