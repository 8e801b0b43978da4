/* Every folder on a Lustre, as statfs tells it. */
#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

int statfs(const char *path, struct statfs *out)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int result = file < 0 ? -1 : fstatfs(file, out);
    if (file >= 0)
        close(file);
    if (result == 0)
        out->f_type = 0x0BD00BD0;
    return result;
}
