/* The job refuses to run as N copies of something smaller. */
#include <stdlib.h>

#include "comm/comm.h"
#include "tests/expect.h"

int main(void)
{
    weft_comm *world = NULL;
    int size = 0;
    char wrong[16], text[64];
    EXPECT(weft_comm_launched(NULL, &size, NULL, NULL), "run under mpirun");
    snprintf(wrong, sizeof wrong, "%d", size + 2);
    setenv("OMPI_COMM_WORLD_SIZE", wrong, 1);
    snprintf(text, sizeof text, "the launcher started %d ranks but MPI sees %d", size + 2, size);
    EXPECT_ERROR(weft_comm_create_world(&world), WEFT_CONFIG, text);
    EXPECT(world == NULL, "a world came out");
    return expect_finish();
}
