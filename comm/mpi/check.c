/* Debug mode: before a collective, the ranks of a group show each other its signature. These
 * messages have their own tag and one size for every kind, so they match whatever ranks issue. */
#include "comm/mpi/mpi_comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct signature {
    uint64_t sequence, bytes;
    int32_t kind, dtype, reduce, root;
    uint64_t rows[]; /* 2 * size: an all-to-all's; else zeros */
} signature;

static size_t signature_bytes(const weft_comm *comm)
{
    return sizeof(signature) + 2 * (size_t)comm->size * sizeof(uint64_t);
}

static signature *signature_of(const weft_mpi_run *run, int rank)
{
    char *all = run->signatures;
    return (signature *)(all + (size_t)rank * signature_bytes(run->op->comm));
}

static void sign(const weft_mpi_run *run)
{
    const weft_comm_op *op = run->op;
    signature *mine = signature_of(run, op->comm->rank);
    memset(mine, 0, signature_bytes(op->comm));
    mine->sequence = op->sequence;
    mine->kind = (int32_t)op->kind;
    mine->dtype = (int32_t)op->dtype;
    mine->reduce = (int32_t)op->reduce;
    mine->root = op->peer;
    mine->bytes = op->rows ? op->chunk_bytes : op->bytes;
    for (int i = 0; op->rows && i < 2 * op->comm->size; i++)
        mine->rows[i] = op->rows->bytes[i];
}

static weft_status step_signatures(weft_mpi_run *run, weft_mpi_slot *slot)
{
    if (slot->phase > 0)
        return WEFT_OK;
    weft_comm *comm = run->op->comm;
    size_t bytes = signature_bytes(comm);
    int tag = weft_mpi_tag(run, slot);
    for (int peer = 0; peer < comm->size; peer++)
        if (peer != comm->rank)
            WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, peer, tag, signature_of(run, peer),
                                        bytes));
    for (int peer = 0; peer < comm->size; peer++)
        if (peer != comm->rank)
            WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, peer, tag,
                                        signature_of(run, comm->rank), bytes));
    return WEFT_OK;
}

enum { SIGNATURE_TEXT_BYTES = 128 };

static const char *describe(const signature *s, char text[SIGNATURE_TEXT_BYTES])
{
    static const char *const reduces[] = {
        [WEFT_REDUCE_SUM] = "sum", [WEFT_REDUCE_MAX] = "max", [WEFT_REDUCE_MIN] = "min"};
    int used = snprintf(text, SIGNATURE_TEXT_BYTES, "%s %" PRIu64, weft_comm_kind_text(s->kind),
                        s->sequence);
    size_t at = (size_t)used;
    if (s->kind == WEFT_COMM_ALL_TO_ALL)
        return text;
    if (s->kind == WEFT_COMM_ALL_TO_ALL_SHARDED && s->root < 0) {
        snprintf(text + at, SIGNATURE_TEXT_BYTES - at, " in chunks of %" PRIu64 " bytes", s->bytes);
        return text;
    }
    used = snprintf(text + at, SIGNATURE_TEXT_BYTES - at, " of %" PRIu64 " bytes %s", s->bytes,
                    weft_dtype_text((weft_dtype)s->dtype));
    at += (size_t)used;
    if (s->kind == WEFT_COMM_ALL_REDUCE || s->kind == WEFT_COMM_REDUCE_SCATTER)
        snprintf(text + at, SIGNATURE_TEXT_BYTES - at, " %s", reduces[s->reduce]);
    else if (s->kind == WEFT_COMM_BROADCAST)
        snprintf(text + at, SIGNATURE_TEXT_BYTES - at, " from rank %d", (int)s->root);
    else if (s->kind == WEFT_COMM_ALL_TO_ALL_SHARDED)
        snprintf(text + at, SIGNATURE_TEXT_BYTES - at, ", sizes %08x", (unsigned)s->root);
    return text;
}

/* Every rank compares the same signatures in the same order, hence finds the same difference. */
static weft_status compare(const weft_mpi_run *run)
{
    int size = run->op->comm->size;
    const signature *first = signature_of(run, 0);
    for (int rank = 1; rank < size; rank++) {
        const signature *other = signature_of(run, rank);
        if (memcmp(first, other, sizeof *first) == 0)
            continue;
        char texts[2][SIGNATURE_TEXT_BYTES];
        return WEFT_ERROR(WEFT_COMM, "rank %d differs: %s, where rank 0 has %s", rank,
                          describe(other, texts[0]), describe(first, texts[1]));
    }
    for (int from = 0; run->op->rows && from < size; from++)
        for (int to = 0; to < size; to++) {
            uint64_t sent = signature_of(run, from)->rows[to];
            uint64_t received = signature_of(run, to)->rows[size + from];
            if (sent != received)
                return WEFT_ERROR(WEFT_COMM,
                                  "rank %d sends %" PRIu64 " bytes to rank %d, which receives "
                                  "%" PRIu64,
                                  from, sent, to, received);
        }
    return WEFT_OK;
}

weft_status weft_mpi_check(const weft_comm_op *op)
{
    weft_mpi_run run;
    WEFT_TRY(weft_mpi_run_init(&run, op));
    run.signatures = malloc((size_t)op->comm->size * signature_bytes(op->comm));
    if (!run.signatures) {
        weft_mpi_work_give_back(run.comm, run.work);
        return WEFT_ERROR(WEFT_MEMORY, "no memory to check signatures");
    }
    sign(&run);
    run.step = step_signatures;
    run.num_rounds = 1;
    weft_status status = weft_mpi_run_rounds(&run);
    if (status == WEFT_OK) {
        status = weft_error_share(compare(&run), weft_comm_world_rank(op->comm, 0));
        free(run.signatures);
    } /* else MPI may still write there */
    WEFT_TRY(status);
    return WEFT_OK;
}
