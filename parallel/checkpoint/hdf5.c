#include <hdf5.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "parallel/checkpoint/internal.h"

/* Of Lustre: stripes have 1 to 4 MiB, and pieces 16 MiB. */
enum { LUSTRE_LARGE_BYTES = 16 << 20, LUSTRE_STRIPE_BYTES = 4 << 20 };

struct weft_tensor_file {
    const char *path;
    const weft_stored_list *list;
    hid_t file;
    hid_t *datasets; /* [list->count], H5I_INVALID_HID where not open */
};

/* The innermost message says what the system said. */
static herr_t take_innermost(unsigned index, const H5E_error2_t *error, void *context)
{
    if (index == 0)
        snprintf(context, 256, "%s", error->desc ? error->desc : "no reason given");
    return 0;
}

static weft_status hdf5_error(const char *path, const char *dataset, const char *what)
{
    char text[256] = "no reason given";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, text);
    text[strcspn(text, "\n")] = '\0';
    return WEFT_ERROR(WEFT_FILE, "%s: %s%s%s: %s", path, dataset ? dataset : "",
                      dataset ? ": " : "", what, text);
}

static weft_status allocate(const char *path, const weft_stored_list *list, weft_tensor_file **out)
{
    weft_tensor_file *file = calloc(1, sizeof *file);
    hid_t *datasets = malloc(((size_t)list->count + 1) * sizeof *datasets);
    if (!file || !datasets) {
        free(file);
        free(datasets);
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for %d dataset handles", path, list->count);
    }
    for (int i = 0; i < list->count; i++)
        datasets[i] = H5I_INVALID_HID;
    *file = (weft_tensor_file){
        .path = path, .list = list, .file = H5I_INVALID_HID, .datasets = datasets};
    /* Everything is closed by hand; HDF5 1.10 crashes at exit over a file whose close failed. */
    H5dont_atexit();
    /* Errors are told by our own messages, not on stderr. */
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    *out = file;
    return WEFT_OK;
}

/* Shapes in HDF5's own type. */
static void to_hdf5(const size_t *from, int num_dims, hsize_t to[WEFT_MAX_DIMS])
{
    for (int d = 0; d < num_dims; d++)
        to[d] = from[d];
}

/* Creates the datasets, whose space is given out at once and never filled: their elements are
 * written past HDF5, at the offsets that it chose. */
static weft_status create_datasets(weft_tensor_file *file, weft_stored_list *list)
{
    hid_t create = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
    weft_status status = WEFT_OK;

    if (H5Pset_obj_track_times(create, false) < 0 || /* equal states are equal bytes */
        H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(create, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_create_intermediate_group(links, 1) < 0)
        status = hdf5_error(file->path, NULL, "cannot set up");
    for (int i = 0; status == WEFT_OK && i < list->count; i++) {
        weft_stored *stored = &list->items[i];
        hsize_t dims[WEFT_MAX_DIMS];
        to_hdf5(stored->dims, stored->num_dims, dims);
        hid_t space = H5Screate_simple(stored->num_dims, dims, NULL);
        file->datasets[i] =
            H5Dcreate2(file->file, stored->name, H5T_IEEE_F32LE, space, links, create, H5P_DEFAULT);
        if (file->datasets[i] < 0)
            status = hdf5_error(file->path, stored->name, "cannot create the dataset");
        else
            stored->offset = H5Dget_offset(file->datasets[i]);
        H5Sclose(space);
    }
    H5Pclose(create);
    H5Pclose(links);
    return status;
}

/* Closes and frees when a create or an open got only half way; keeps its error. */
static void abandon(weft_tensor_file *file)
{
    weft_error error;
    weft_error_take(&error);
    if (weft_tensor_file_close(file) != WEFT_OK)
        weft_error_clear();
    weft_error_put(&error);
}

/* On a Lustre large datasets begin where stripes do: their pieces share no stripe, whose lock one
 * rank would have to take from another. */
static hid_t create_file(const char *path)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), file = H5I_INVALID_HID;
    if (!weft_path_is_lustre(path) ||
        H5Pset_alignment(access, LUSTRE_LARGE_BYTES, LUSTRE_STRIPE_BYTES) >= 0)
        file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    return file;
}

weft_status weft_tensor_file_create(const char *path, weft_stored_list *list)
{
    weft_tensor_file *file;
    WEFT_TRY(allocate(path, list, &file));
    weft_status status = WEFT_OK;
    file->file = create_file(path);
    if (file->file < 0)
        status = hdf5_error(path, NULL, "cannot create");
    else if (H5Tequal(H5T_NATIVE_FLOAT, H5T_IEEE_F32LE) <= 0)
        status = WEFT_ERROR(WEFT_FILE, "%s: this machine's floats are not little-endian", path);
    else
        status = create_datasets(file, list);
    if (status != WEFT_OK) {
        abandon(file);
        return status;
    }
    return weft_tensor_file_close(file);
}

/* Every part of a dataset's name is a place in this very file: HDF5 would follow links to others,
 * out of the folder, and wait for one that is a FIFO. */
static weft_status check_links(const weft_tensor_file *file, const char *name)
{
    char part[WEFT_STORED_NAME_BYTES];
    for (const char *end = name; *end; end += *end == '/') {
        H5L_info_t info;
        end += strcspn(end, "/");
        snprintf(part, sizeof part, "%.*s", (int)(end - name), name);
        if (H5Lget_info(file->file, part, &info, H5P_DEFAULT) < 0)
            return hdf5_error(file->path, name, "cannot open the dataset");
        if (info.type != H5L_TYPE_HARD)
            return WEFT_ERROR(WEFT_FILE, "%s: %s: a link, which is not followed", file->path, part);
    }
    return WEFT_OK;
}

/* Nor are its elements in other files. */
static weft_status check_layout(const weft_tensor_file *file, int index)
{
    hid_t create = H5Dget_create_plist(file->datasets[index]);
    const bool good = create >= 0 && H5Pget_layout(create) == H5D_CONTIGUOUS &&
                      H5Pget_external_count(create) == 0;
    if (create >= 0)
        H5Pclose(create);
    return good ? WEFT_OK
                : WEFT_ERROR(WEFT_FILE, "%s: %s: its elements are not one piece of this file",
                             file->path, file->list->items[index].name);
}

/* The dataset has the type and shape that the list says. */
static weft_status check_dataset(const weft_tensor_file *file, int index)
{
    const weft_stored *stored = &file->list->items[index];
    WEFT_TRY(check_layout(file, index));
    hid_t type = H5Dget_type(file->datasets[index]), space = H5Dget_space(file->datasets[index]);
    hsize_t dims[WEFT_MAX_DIMS] = {0};
    weft_status status = WEFT_OK;

    if (H5Tequal(type, H5T_IEEE_F32LE) <= 0)
        status = WEFT_ERROR(WEFT_FILE, "%s: %s: not a dataset of 32-bit floats", file->path,
                            stored->name);
    int num_dims = H5Sget_simple_extent_ndims(space);
    bool same = num_dims == stored->num_dims && num_dims <= WEFT_MAX_DIMS &&
                H5Sget_simple_extent_dims(space, dims, NULL) == num_dims;
    for (int d = 0; same && d < num_dims; d++)
        same = dims[d] == stored->dims[d];
    if (status == WEFT_OK && !same)
        status = WEFT_ERROR(WEFT_FILE, "%s: %s: its shape is not the manifest's", file->path,
                            stored->name);
    if (status == WEFT_OK && H5Dget_offset(file->datasets[index]) != stored->offset)
        status = WEFT_ERROR(WEFT_FILE, "%s: %s: its place is not the manifest's", file->path,
                            stored->name);
    H5Tclose(type);
    H5Sclose(space);
    return status;
}

static weft_status open_datasets(weft_tensor_file *file)
{
    file->file = H5Fopen(file->path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file->file < 0)
        return hdf5_error(file->path, NULL, "cannot open");
    for (int i = 0; i < file->list->count; i++) {
        WEFT_TRY(check_links(file, file->list->items[i].name));
        file->datasets[i] = H5Dopen2(file->file, file->list->items[i].name, H5P_DEFAULT);
        if (file->datasets[i] < 0)
            return hdf5_error(file->path, file->list->items[i].name, "cannot open the dataset");
        WEFT_TRY(check_dataset(file, i));
    }
    return WEFT_OK;
}

weft_status weft_tensor_file_open(const char *path, const weft_stored_list *list,
                                  weft_tensor_file **out)
{
    weft_tensor_file *file;
    WEFT_TRY(allocate(path, list, &file));
    weft_status status = open_datasets(file);
    if (status != WEFT_OK) {
        abandon(file);
        return status;
    }
    *out = file;
    return WEFT_OK;
}

/* The file's and the memory's view of one shard. */
typedef struct selection {
    hid_t file_space, memory_space;
} selection;

static bool select_shard(const weft_tensor_file *file, const weft_stored_shard *shard,
                         selection *out)
{
    const weft_stored *stored = &file->list->items[shard->dataset];
    hsize_t start[WEFT_MAX_DIMS], count[WEFT_MAX_DIMS];
    hsize_t elements = weft_shard_elements(shard, stored->num_dims);
    to_hdf5(shard->start, stored->num_dims, start);
    to_hdf5(shard->count, stored->num_dims, count);
    out->file_space = H5Dget_space(file->datasets[shard->dataset]);
    out->memory_space = H5Screate_simple(1, &elements, NULL);
    return out->memory_space >= 0 &&
           H5Sselect_hyperslab(out->file_space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0;
}

static void release_selection(const selection *s)
{
    H5Sclose(s->file_space);
    H5Sclose(s->memory_space);
}

weft_status weft_tensor_file_read(weft_tensor_file *file, const weft_stored_shard *shard,
                                  float *data)
{
    selection s;
    weft_status status = WEFT_OK;
    if (!select_shard(file, shard, &s) ||
        H5Dread(file->datasets[shard->dataset], H5T_NATIVE_FLOAT, s.memory_space, s.file_space,
                H5P_DEFAULT, data) < 0)
        status = hdf5_error(file->path, file->list->items[shard->dataset].name, "cannot read");
    release_selection(&s);
    return status;
}

weft_status weft_tensor_file_close(weft_tensor_file *file)
{
    weft_status status = WEFT_OK;
    if (!file)
        return WEFT_OK;
    for (int i = 0; i < file->list->count; i++) {
        if (file->datasets[i] >= 0 && H5Dclose(file->datasets[i]) < 0 && status == WEFT_OK)
            status = hdf5_error(file->path, file->list->items[i].name, "cannot close the dataset");
    }
    if (file->file >= 0 && H5Fclose(file->file) < 0 && status == WEFT_OK)
        status = hdf5_error(file->path, NULL, "cannot close");
    free(file->datasets);
    free(file);
    return status;
}
