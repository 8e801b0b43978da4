/* Ending a fallible phase with one status on every rank. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm_ops.h"

/* The rank's own text, where its record is about this status. */
static void own_text(weft_status status, char *text, size_t text_bytes)
{
    const weft_error *error = weft_error_get();
    snprintf(text, text_bytes, "%s",
             error->status == status && error->text[0] ? error->text : weft_status_text(status));
}

weft_status weft_comm_agree(weft_comm *comm, weft_status status)
{
    if (comm->size == 1) {
        if (status != WEFT_OK && weft_error_get()->status != status)
            return WEFT_ERROR(status, "%s", weft_status_text(status));
        return status;
    }
    int32_t mine = (int32_t)status;
    int32_t *all = malloc((size_t)comm->size * sizeof *all);
    if (!all) /* the others wait for this rank's status: the caller has to abort */
        return WEFT_ERROR(WEFT_MEMORY, "no memory to agree in group %s", comm->name);
    char text[WEFT_ERROR_TEXT_BYTES] = {0};
    own_text(status, text, sizeof text);

    weft_status failed = weft_comm_all_gather_host(comm, &mine, all, sizeof mine);
    int root = 0;
    for (int rank = 1; failed == WEFT_OK && rank < comm->size; rank++)
        if (all[rank] > all[root])
            root = rank;
    weft_status worst = failed == WEFT_OK ? (weft_status)all[root] : failed;
    free(all);
    WEFT_TRY(failed);
    if (worst == WEFT_OK)
        return WEFT_OK;

    WEFT_TRY(weft_comm_broadcast_host(comm, text, sizeof text, root));
    text[sizeof text - 1] = '\0';
    if (comm->rank != root || weft_error_get()->status != worst) /* else it keeps its frames */
        (void)WEFT_ERROR(worst, "%s", text);
    weft_error_of_rank(worst, comm->world_ranks[root]);
    return weft_error_share(worst, comm->world_ranks[0]);
}
