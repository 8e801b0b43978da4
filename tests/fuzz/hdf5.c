/* A checkpoint as it was saved, of which bytes of model.h5 are changed and all hashes put right.
 * Five bytes a change: what (set a byte, set eight, cut off, put a byte behind), where (two), a
 * value, how often. Crashes inside libhdf5 are its own (docs/faults.md): by the hashes a damaged
 * file does not come so far. */
#include <hdf5.h>

#include "parallel/checkpoint/internal.h"
#include "tests/fuzz/fuzz.h"
#include "tests/parallel/checkpoint_tiny.h"

enum { ROOM = 1 << 16 };

static tiny model;
static char good[ROOM];
static size_t good_bytes;
static weft_arena arena;
static weft_manifest manifest;

static void start(void)
{
    size_t bytes;
    FUZZ_CHECK(tiny_create(&model, PLAIN), "the model");
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    FUZZ_OK(save_step(&model, fuzz_folder(), 5));
    FUZZ_OK(weft_manifest_read(fuzz_path("step-5"), &arena, &manifest));
    char *saved = read_bytes(fuzz_path("step-5/model.h5"), &bytes);
    FUZZ_CHECK(bytes < ROOM, "%zu bytes", bytes);
    memcpy(good, saved, bytes);
    good_bytes = bytes;
    free(saved);
}

static size_t change(char text[ROOM], size_t bytes, const uint8_t *how)
{
    const size_t at = bytes > 0 ? (how[1] + 256u * how[2]) % bytes : 0;
    switch (how[0] % 4) {
    case 0:
        text[at] = (char)how[3];
        return bytes;
    case 1:
        for (size_t i = 0; i < 8 && at + i < bytes; i++)
            text[at + i] = (char)(how[4] > i ? how[3] : 0);
        return bytes;
    case 2:
        return at;
    default:
        if (bytes + how[4] > ROOM)
            return bytes;
        memset(text + bytes, how[3], how[4]);
        return bytes + how[4];
    }
}

/* Whatever was wrong, Weft closes what it has opened. */
static void check_closed(void)
{
    const ssize_t open = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
    FUZZ_CHECK(open == 0, "%zd are open", open);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[ROOM];
    if (good_bytes == 0)
        start();
    size_t bytes = good_bytes;
    memcpy(text, good, bytes);
    for (; size >= 5 && bytes > 0; data += 5, size -= 5)
        bytes = change(text, bytes, data);
    fuzz_write(fuzz_path("step-5/model.h5"), text, bytes);
    const char *folder = fuzz_path("step-5");
    if (weft_manifest_measure(folder, &manifest) == WEFT_OK) {
        FUZZ_OK(weft_manifest_write(folder, &manifest));
        weft_status status = weft_checkpoint_verify(folder);
        if (status == WEFT_OK)
            status = weft_checkpoint_load(folder, model.parameters, model.optimizer, model.lane);
        if (status != WEFT_OK)
            fuzz_refused(status);
    }
    check_closed();
    weft_error_clear();
    return 0;
}
