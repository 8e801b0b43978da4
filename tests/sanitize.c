/* Linked into every program of a sanitizer build: nothing is ever unloaded. Open MPI unloads its
 * plugins before the program ends, and a report cannot name, nor scripts/lsan.supp recognise, code
 * that is gone. */
#include <dlfcn.h>

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
