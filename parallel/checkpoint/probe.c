#include "parallel/probe.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "comm/comm.h"

enum { NUM_VALUES = 16 };

#ifdef H5_HAVE_PARALLEL
static weft_status check(hid_t result, const char *call)
{
    return result >= 0 ? WEFT_OK : WEFT_ERROR(WEFT_FILE, "%s failed", call);
}

/* Writes NUM_VALUES floats, or reads them back, in one dataset of the file. */
static weft_status transfer(hid_t file, bool write, float *values)
{
    hsize_t count = NUM_VALUES;
    hid_t space = H5Screate_simple(1, &count, NULL);
    hid_t data =
        write ? H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)
              : H5Dopen2(file, "x", H5P_DEFAULT);
    hid_t how = H5Pcreate(H5P_DATASET_XFER);
    weft_status status = check(data, write ? "H5Dcreate" : "H5Dopen");
    if (status == WEFT_OK)
        status = check(H5Pset_dxpl_mpio(how, H5FD_MPIO_INDEPENDENT), "H5Pset_dxpl_mpio");
    if (status == WEFT_OK)
        status =
            write
                ? check(H5Dwrite(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, how, values), "H5Dwrite")
                : check(H5Dread(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, how, values), "H5Dread");
    H5Pclose(how);
    if (data >= 0)
        H5Dclose(data);
    H5Sclose(space);
    return status;
}

static weft_status open_and_transfer(const char *path, bool write, float *values)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    weft_status status =
        check(H5Pset_fapl_mpio(access, MPI_COMM_SELF, MPI_INFO_NULL), "H5Pset_fapl_mpio");
    hid_t file = -1;
    if (status == WEFT_OK) {
        file = write ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access)
                     : H5Fopen(path, H5F_ACC_RDONLY, access);
        status = check(file, write ? "H5Fcreate" : "H5Fopen");
    }
    if (status == WEFT_OK)
        status = transfer(file, write, values);
    H5Pclose(access);
    if (file >= 0 && H5Fclose(file) < 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "H5Fclose failed");
    return status;
}

static weft_status round_trip(const char *path)
{
    float sent[NUM_VALUES], received[NUM_VALUES] = {0};
    for (int i = 0; i < NUM_VALUES; i++)
        sent[i] = 0.5f + (float)i;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* the status says it */
    WEFT_TRY(open_and_transfer(path, true, sent));
    WEFT_TRY(open_and_transfer(path, false, received));
    if (memcmp(sent, received, sizeof sent))
        return WEFT_ERROR(WEFT_FILE, "read other values than were written");
    return WEFT_OK;
}
#else
static weft_status round_trip(const char *path)
{
    (void)path;
    return WEFT_ERROR(WEFT_FILE, "compiled without parallel support");
}
#endif

static weft_status in_temporary_folder(weft_status (*use)(const char *path))
{
    const char *parent = getenv("TMPDIR");
    char folder[512], path[520];
    snprintf(folder, sizeof folder, "%s/weft-doctor-XXXXXX", parent && *parent ? parent : "/tmp");
    if (!mkdtemp(folder))
        return WEFT_ERROR(WEFT_FILE, "cannot make a folder %s", folder);
    snprintf(path, sizeof path, "%s/x.h5", folder);
    weft_status status = use(path);
    unlink(path);
    rmdir(folder);
    return status;
}

void weft_probe_hdf5(weft_probe *out)
{
    unsigned major = 0, minor = 0, release = 0;
    char version[32];
    H5get_libversion(&major, &minor, &release);
    snprintf(version, sizeof version, "%u.%u.%u", major, minor, release);
    if (major != H5_VERS_MAJOR || minor != H5_VERS_MINOR || release != H5_VERS_RELEASE) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "compiled for %d.%d.%d", H5_VERS_MAJOR,
                       H5_VERS_MINOR, H5_VERS_RELEASE);
        return;
    }
    weft_comm *world = NULL;
    weft_status status = weft_comm_create_world(&world);
    if (status == WEFT_OK)
        status = in_temporary_folder(round_trip);
    if (status == WEFT_OK)
        weft_probe_say(out, WEFT_PROBE_WORKS, version, "parallel; wrote and read a file");
    else
        weft_probe_say_error(out, version);
    weft_comm_destroy(world);
}

void weft_probe_xxhash(weft_probe *out)
{
    char version[32];
    unsigned number = XXH_versionNumber();
    snprintf(version, sizeof version, "%u.%u.%u", number / 10000, number / 100 % 100, number % 100);
    if (XXH64("", 0, 0) == UINT64_C(0xEF46DB3751D8E999))
        weft_probe_say(out, WEFT_PROBE_WORKS, version, "hashes right");
    else
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "a wrong hash of nothing");
}
