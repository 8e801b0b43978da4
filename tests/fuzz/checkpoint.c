/* A checkpoint whose hashes are right, so that what lies behind them is reached. Parts end with a
 * NUL: what model.h5 holds, the manifest without its end, shards.json, config.json, tokenizer.json
 * (none where it is empty), latest.
 *
 * model.h5: a byte that fills all elements, then lines:
 *   d NAME TYPE LAYOUT DIMS   a dataset; TYPE f 32-bit float, d double, b big-endian, i integer, s
 *                             string, c compound; LAYOUT c contiguous, k chunked, z chunked and
 *                             compressed, p compact, e in another file; DIMS 3,5
 *   g NAME, l NAME TO, h NAME TO, x NAME TO, a NAME BYTES
 *                             group, soft link, hard link, link to another file, attribute
 * In the manifest $3 is the offset of dataset 3, $B0 the bytes and $H0 the hash of file 0; in
 * shards.json $Z15 is the hash of 15 elements. */
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "parallel/checkpoint/internal.h"
#include "tests/fuzz/fuzz.h"
#include "tests/parallel/checkpoint_tiny.h"

enum { MOST_DATASETS = 10, MOST_ELEMENTS = 1 << 14 };

static tiny model;
static uint64_t offsets[MOST_DATASETS];

/* --- model.h5 -------------------------------------------------------------------------------- */

static hid_t type_of(char letter)
{
    hid_t type;
    switch (letter) {
    case 'd':
        return H5Tcopy(H5T_IEEE_F64LE);
    case 'b':
        return H5Tcopy(H5T_IEEE_F32BE);
    case 'i':
        return H5Tcopy(H5T_STD_I32LE);
    case 's':
        return H5Tcopy(H5T_C_S1);
    case 'c':
        type = H5Tcreate(H5T_COMPOUND, 8);
        H5Tinsert(type, "r", 0, H5T_IEEE_F32LE);
        H5Tinsert(type, "i", 4, H5T_IEEE_F32LE);
        return type;
    default:
        return H5Tcopy(H5T_IEEE_F32LE);
    }
}

static void set_layout(hid_t create, char letter, int num_dims, const hsize_t *dims, size_t bytes)
{
    H5Pset_obj_track_times(create, false);
    if (letter == 'k' || letter == 'z')
        H5Pset_chunk(create, num_dims, dims);
    if (letter == 'z')
        H5Pset_deflate(create, 1);
    if (letter == 'p')
        H5Pset_layout(create, H5D_COMPACT);
    if (letter == 'e')
        H5Pset_external(create, "outside", 0, bytes);
    if (letter == 'c') {
        H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
        H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
    }
}

/* Returns the dataset's place in the file and its bytes; 0: it has none. */
static uint64_t put_dataset(hid_t file, hid_t links, const char *name, char type_letter,
                            char layout, const char *sizes, size_t *out_bytes)
{
    hsize_t dims[8], elements = 1;
    int num_dims = 0;
    uint64_t offset = 0;
    for (char *end; num_dims < 8 && *sizes; sizes = end + (*end == ',')) {
        dims[num_dims] = strtoull(sizes, &end, 10);
        if (end == sizes || dims[num_dims] > MOST_ELEMENTS / elements)
            return 0;
        elements *= dims[num_dims] ? dims[num_dims] : 1;
        num_dims++;
    }
    hid_t type = type_of(type_letter), create = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = H5Screate_simple(num_dims, dims, NULL);
    *out_bytes = elements * H5Tget_size(type);
    set_layout(create, layout, num_dims, dims, *out_bytes);
    hid_t dataset = H5Dcreate2(file, name, type, space, links, create, H5P_DEFAULT);
    if (dataset >= 0) {
        offset = H5Dget_offset(dataset);
        H5Dclose(dataset);
    }
    H5Sclose(space);
    H5Pclose(create);
    H5Tclose(type);
    return layout == 'c' ? offset : 0;
}

static void put_attribute(hid_t file, const char *name, unsigned long long bytes)
{
    hsize_t size = bytes % 65536;
    hid_t object = H5Oopen(file, name, H5P_DEFAULT);
    hid_t space = H5Screate_simple(1, &size, NULL);
    hid_t attribute = H5Acreate2(object, "extra", H5T_STD_I8LE, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    if (object >= 0)
        H5Oclose(object);
}

static void put_line(hid_t file, hid_t links, const char *line, int *count, size_t *bytes)
{
    char name[128] = "", to[128] = "", type, layout;
    if (sscanf(line, "d %127s %c %c %127s", name, &type, &layout, to) == 4) {
        if (*count < MOST_DATASETS) {
            offsets[*count] = put_dataset(file, links, name, type, layout, to, &bytes[*count]);
            ++*count;
        }
    } else if (sscanf(line, "g %127s", name) == 1) {
        hid_t group = H5Gcreate2(file, name, links, H5P_DEFAULT, H5P_DEFAULT);
        if (group >= 0)
            H5Gclose(group);
    } else if (sscanf(line, "l %127s %127s", name, to) == 2) {
        H5Lcreate_soft(to, file, name, links, H5P_DEFAULT);
    } else if (sscanf(line, "h %127s %127s", name, to) == 2) {
        H5Lcreate_hard(file, to, file, name, links, H5P_DEFAULT);
    } else if (sscanf(line, "x %127s %127s", name, to) == 2) {
        H5Lcreate_external("other.h5", to, file, name, links, H5P_DEFAULT);
    } else if (sscanf(line, "a %127s %127s", name, to) == 2) {
        put_attribute(file, name, strtoull(to, NULL, 10));
    }
}

/* Fills a dataset's elements past HDF5, as a save does. */
static void fill(const char *path, char byte, uint64_t offset, size_t bytes)
{
    static char block[8 * MOST_ELEMENTS];
    FILE *file = fopen(path, "r+b");
    memset(block, byte, bytes);
    FUZZ_CHECK(file && fseek(file, (long)offset, SEEK_SET) == 0 &&
                   fwrite(block, 1, bytes, file) == bytes && fclose(file) == 0,
               "%s", path);
}

static void make_model(const char *path, const char *text)
{
    size_t bytes[MOST_DATASETS] = {0};
    int count = 0;
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    FUZZ_CHECK(file >= 0 && links >= 0, "%s", path);
    H5Pset_create_intermediate_group(links, 1);
    memset(offsets, 0, sizeof offsets);
    for (const char *line = *text ? text + 1 : text; *line;) {
        put_line(file, links, line, &count, bytes);
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    H5Pclose(links);
    H5Fclose(file);
    for (int i = 0; i < count; i++)
        if (offsets[i] > 0 && offsets[i] != HADDR_UNDEF)
            fill(path, text[0], offsets[i], bytes[i]);
}

/* --- the texts ------------------------------------------------------------------------------- */

typedef struct part_facts {
    uint64_t bytes[WEFT_NUM_PARTS], hash[WEFT_NUM_PARTS];
    char filler;
} part_facts;

static uint64_t hash_of(char filler, unsigned long long elements)
{
    static char block[4 * MOST_ELEMENTS];
    memset(block, filler, sizeof block);
    return XXH64(block, 4 * (elements % (MOST_ELEMENTS + 1)), 0);
}

/* Puts the facts where the text asks for them; the caller frees what it returns. */
static char *expand(const char *text, const part_facts *facts)
{
    char *out = NULL, *end;
    size_t bytes;
    FILE *file = open_memstream(&out, &bytes);
    FUZZ_CHECK(file, "no memory");
    for (; *text; text++) {
        const int part = text[0] == '$' && text[1] ? (text[2] - '0') & 3 : 0;
        if (text[0] != '$') {
            fputc(*text, file);
        } else if (text[1] >= '0' && text[1] <= '9') {
            fprintf(file, "%" PRIu64, offsets[*++text - '0']);
        } else if (text[1] == 'B' && text[2]) {
            fprintf(file, "%" PRIu64, facts->bytes[part]);
            text += 2;
        } else if (text[1] == 'H' && text[2]) {
            fprintf(file, "%016" PRIx64, facts->hash[part]);
            text += 2;
        } else if (text[1] == 'Z') {
            fprintf(file, "%016" PRIx64, hash_of(facts->filler, strtoull(text + 2, &end, 10)));
            text = end - 1;
        }
    }
    FUZZ_CHECK(fclose(file) == 0, "no memory");
    return out;
}

static void write_text(const char *folder, int part, const char *text, part_facts *facts)
{
    char path[4096], *expanded = expand(text, facts);
    snprintf(path, sizeof path, "%s/%s", folder, weft_part_names[part]);
    facts->bytes[part] = strlen(expanded);
    facts->hash[part] = XXH64(expanded, strlen(expanded), 0);
    fuzz_write(path, expanded, strlen(expanded));
    free(expanded);
}

static void write_manifest(const char *folder, const char *text, const part_facts *facts)
{
    char path[4096], end[WEFT_MANIFEST_END_BYTES], *expanded = expand(text, facts);
    snprintf(path, sizeof path, "%s/" WEFT_MANIFEST_NAME, folder);
    FILE *file = fopen(path, "wb");
    weft_manifest_print_end(expanded, strlen(expanded), end);
    FUZZ_CHECK(file && fprintf(file, "%s%s", expanded, end) > 0 && fclose(file) == 0, "%s", path);
    free(expanded);
}

/* The hash of model.h5 outside its datasets: where those are, the manifest says. */
static void find_hash(const char *folder, part_facts *facts)
{
    weft_arena arena = {0};
    weft_manifest manifest;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, weft_part_names[WEFT_PART_MODEL]);
    if (weft_manifest_read(folder, &arena, &manifest) == WEFT_OK)
        (void)!weft_part_hash(path, &manifest, WEFT_PART_MODEL, &facts->bytes[WEFT_PART_MODEL],
                              &facts->hash[WEFT_PART_MODEL]);
    weft_error_clear();
    weft_arena_release(&arena);
}

/* --- reading --------------------------------------------------------------------------------- */

static void note(weft_status status)
{
    if (status != WEFT_OK)
        fuzz_refused(status);
}

/* One of the ways in; which one the input's length says. */
static void read_one(const char *folder, size_t which, weft_arena *arena)
{
    const char *text;
    weft_checkpoint_info info;
    if (which == 0)
        note(weft_checkpoint_read_info(folder, &info));
    else if (which == 1)
        note(weft_checkpoint_read_config(folder, arena, &text));
    else if (which == 2)
        note(weft_checkpoint_read_tokenizer(folder, arena, &text));
    else
        note(weft_checkpoint_verify(folder));
}

static void read_all(const char *dir, size_t size)
{
    const char *folder;
    weft_arena arena = {0};
    int64_t *steps;
    size_t count;
    weft_checkpoint_contents contents;
    note(weft_checkpoint_list(dir, &arena, &steps, &count));
    weft_status status = weft_checkpoint_resolve(dir, &arena, &folder);
    if (status == WEFT_OK) {
        read_one(folder, size % 4, &arena);
        status = weft_checkpoint_inspect(folder, &arena, &contents);
        if (status == WEFT_OK && size % 3 == 0)
            note(weft_checkpoint_load_weights(folder, model.parameters, model.lane));
        else if (status == WEFT_OK)
            note(weft_checkpoint_load(folder, model.parameters, model.optimizer, model.lane));
    }
    note(status);
    weft_arena_release(&arena);
}

/* Whatever was wrong, Weft closes what it has opened. */
static void check_closed(void)
{
    const ssize_t open = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
    FUZZ_CHECK(open == 0, "%zd are open", open);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    fuzz_cut(data, size, 6, &parts);
    if (!model.world) {
        FUZZ_CHECK(tiny_create(&model, PLAIN), "the model");
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
        FUZZ_CHECK(mkdir(fuzz_path("step-5"), 0700) == 0, "step-5");
    }
    const char *folder = fuzz_path("step-5"), *model_path = fuzz_path("step-5/model.h5");
    part_facts facts = {.filler = parts.at[0][0]};
    struct stat info;
    fuzz_empty(folder);
    make_model(model_path, parts.at[0]);
    FUZZ_CHECK(stat(model_path, &info) == 0, "%s", model_path);
    facts.bytes[WEFT_PART_MODEL] = (uint64_t)info.st_size;
    write_text(folder, WEFT_PART_SHARDS, parts.at[2], &facts);
    write_text(folder, WEFT_PART_CONFIG, parts.at[3], &facts);
    if (parts.at[4][0])
        write_text(folder, WEFT_PART_TOKENIZER, parts.at[4], &facts);
    write_manifest(folder, parts.at[1], &facts);
    find_hash(folder, &facts);
    write_manifest(folder, parts.at[1], &facts);
    fuzz_write(fuzz_path("latest"), parts.at[5], parts.bytes[5]);
    check_closed();
    read_all(fuzz_folder(), size);
    check_closed();
    fuzz_release(&parts);
    return 0;
}
