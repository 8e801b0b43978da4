#include "launcher/training/energy.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/device/device.h"

/* The part of nvml.h that is used: every function returns nvmlReturn_t, 0 for success. */
enum { SUCCESS = 0 };

static bool find(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

static bool start(weft_nvml *nvml, const char *bus)
{
    int (*init)(void);
    int (*by_bus)(const char *, void **);
    if (!find(nvml->library, "nvmlInit_v2", (void *)&init, sizeof init) ||
        !find(nvml->library, "nvmlShutdown", (void *)&nvml->end, sizeof nvml->end) ||
        !find(nvml->library, "nvmlDeviceGetHandleByPciBusId_v2", (void *)&by_bus, sizeof by_bus) ||
        !find(nvml->library, "nvmlDeviceGetTotalEnergyConsumption", (void *)&nvml->read,
              sizeof nvml->read))
        nvml->end = NULL;
    else if (init() != SUCCESS)
        nvml->end = NULL;
    else
        return by_bus(bus, &nvml->gpu) == SUCCESS;
    return false;
}

bool weft_nvml_open(const char *bus, weft_nvml *out)
{
    const char *own = getenv("WEFT_NVML");
    double joules;
    *out = (weft_nvml){.library = dlopen(own ? own : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (out->library && start(out, bus) && weft_nvml_joules(out, &joules))
        return true;
    weft_nvml_close(out);
    return false;
}

bool weft_nvml_joules(const weft_nvml *nvml, double *out)
{
    unsigned long long mj = 0;
    if (!nvml->library || nvml->read(nvml->gpu, &mj) != SUCCESS)
        return false;
    *out = (double)mj * 1e-3;
    return true;
}

void weft_nvml_close(weft_nvml *nvml)
{
    if (nvml->end)
        nvml->end();
    if (nvml->library)
        dlclose(nvml->library);
    *nvml = (weft_nvml){.library = NULL};
}

static bool read_word(const char *folder, const char *name, char out[64])
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    bool good = file && fscanf(file, "%63s", out) == 1;
    if (file)
        fclose(file);
    return good;
}

static bool read_joules(const char *folder, const char *name, double *out)
{
    char word[64], *end = word;
    if (read_word(folder, name, word))
        *out = strtod(word, &end) * 1e-6;
    return end > word && *end == '\0';
}

/* False: a counter cannot be read. What is not a package's, such as the whole machine's, would be
 * counted twice. */
static bool add_package(weft_energy *e, const char *folder)
{
    char name[64];
    weft_energy_package *p = &e->packages[e->num_packages];
    if (!read_word(folder, "name", name) || strncmp(name, "package", 7) != 0)
        return true;
    snprintf(p->folder, sizeof p->folder, "%s", folder);
    e->num_packages++;
    return read_joules(folder, "energy_uj", &p->last) &&
           read_joules(folder, "max_energy_range_uj", &p->range);
}

static bool find_packages(weft_energy *e)
{
    const char *own = getenv("WEFT_POWERCAP"), *root = own ? own : "/sys/class/powercap";
    DIR *dir = opendir(root);
    bool good = dir != NULL;
    for (const struct dirent *entry; good && (entry = readdir(dir));) {
        char path[256];
        int number, used = 0;
        if (sscanf(entry->d_name, "intel-rapl:%d%n", &number, &used) != 1 || entry->d_name[used])
            continue; /* a part of a package */
        good = snprintf(path, sizeof path, "%s/%s", root, entry->d_name) < (int)sizeof path &&
               e->num_packages < WEFT_ENERGY_MAX_PACKAGES && add_package(e, path);
    }
    if (dir)
        closedir(dir);
    return good && e->num_packages > 0;
}

/* Of the ranks of a node that use one GPU the first reads it. *missing: it should, and cannot. */
static weft_status find_gpu(weft_energy *e, const weft_device *device, weft_comm *world,
                            bool *missing)
{
    char own[WEFT_GPU_BUS_BYTES] = "", (*all)[WEFT_GPU_BUS_BYTES] = NULL;
    weft_arena scratch = {0};
    weft_comm *node = NULL;
    const bool has_one = weft_device_gpu_bus(device, own);
    WEFT_TRY(weft_comm_split_node(world, &node));
    weft_status status =
        weft_comm_agree(world, WEFT_ARRAY(&scratch, (size_t)weft_comm_size(node), &all));
    if (status == WEFT_OK)
        status = weft_comm_all_gather_host(node, own, all, sizeof own);
    int first = 0;
    while (status == WEFT_OK && first < weft_comm_rank(node) && strcmp(all[first], own) != 0)
        first++;
    const bool reads = first == weft_comm_rank(node);
    *missing = !has_one || (reads && !weft_nvml_open(own, &e->nvml));
    weft_arena_release(&scratch);
    weft_comm_destroy(node);
    return status;
}

weft_status weft_energy_create(weft_energy *e, const weft_device *device, weft_comm *world)
{
    int rank, size, local_rank = 0, local_size;
    bool lacks_gpu = true;
    *e = (weft_energy){0};
    bool reads = !weft_comm_launched(&rank, &size, &local_rank, &local_size) || local_rank == 0;
    if (strcmp(weft_device_name(device), "cuda") == 0) /* of all ranks, or none */
        WEFT_TRY(find_gpu(e, device, world, &lacks_gpu));
    int64_t missing[2] = {reads && !find_packages(e), lacks_gpu};
    WEFT_TRY(weft_comm_all_reduce_host(world, missing, 2, WEFT_I64, WEFT_REDUCE_MAX));
    e->is_read = missing[0] == 0;
    e->gpus_are_read = missing[1] == 0;
    if (!e->gpus_are_read || !weft_nvml_joules(&e->nvml, &e->gpu_last))
        weft_nvml_close(&e->nvml);
    return WEFT_OK;
}

/* What cannot be read now comes later. */
static double take_packages(weft_energy *e)
{
    double sum = 0;
    for (int i = 0; e->is_read && i < e->num_packages; i++) {
        weft_energy_package *p = &e->packages[i];
        double now = p->last;
        if (read_joules(p->folder, "energy_uj", &now)) {
            sum += now - p->last + (now < p->last ? p->range : 0);
            p->last = now;
        }
    }
    return sum;
}

/* A counter that begins again (the driver was loaded anew) has nothing to say once. */
static double take_gpu(weft_energy *e)
{
    double now, before = e->gpu_last;
    if (!weft_nvml_joules(&e->nvml, &now))
        return 0;
    e->gpu_last = now;
    return now > before ? now - before : 0;
}

weft_status weft_energy_take(weft_energy *e, weft_comm *world, weft_joules *out)
{
    *out = (weft_joules){-1, -1};
    if (!e->is_read && !e->gpus_are_read)
        return WEFT_OK;
    double sums[2] = {take_packages(e), take_gpu(e)};
    WEFT_TRY(weft_comm_all_reduce_host(world, sums, 2, WEFT_F64, WEFT_REDUCE_SUM));
    if (e->is_read)
        out->processors = sums[0];
    if (e->gpus_are_read)
        out->gpus = sums[1];
    return WEFT_OK;
}

void weft_energy_release(weft_energy *e)
{
    weft_nvml_close(&e->nvml);
}
