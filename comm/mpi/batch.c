#include "comm/mpi/mpi_comm.h"

#include <assert.h>
#include <limits.h>
#include <time.h>

static const char *error_text(int code, char text[MPI_MAX_ERROR_STRING + 1])
{
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, MPI_MAX_ERROR_STRING, "error %d", code);
    text[length] = '\0';
    return text;
}

weft_status weft_mpi_status(const char *file, int line, const char *function, const char *call,
                            int code)
{
    if (code == MPI_SUCCESS)
        return WEFT_OK;
    char text[MPI_MAX_ERROR_STRING + 1] = {0};
    int name_length = 0;
    while (call[name_length] && call[name_length] != '(')
        name_length++;
    return weft_error_set(file, line, function, WEFT_COMM, "%.*s: %s", name_length, call,
                          error_text(code, text));
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void add(weft_mpi_batch *batch, const weft_mpi_message *message)
{
    batch->messages[batch->count++] = *message;
    batch->num_pending++;
    batch->num_queued += message->queued;
}

/* Sends a queued message if it may go. */
static weft_status send_queued(weft_mpi_batch *batch, int index, int64_t now)
{
    weft_mpi_message *message = &batch->messages[index];
    if (batch->pass &&
        !weft_gate_admit(batch->pass, message->link, message->number, message->bytes, now))
        return WEFT_OK;
    weft_status status =
        WEFT_MPI(MPI_Isend(message->buffer, (int)message->bytes, MPI_BYTE, message->peer,
                           message->tag, message->handle, &batch->requests[index]));
    if (status != WEFT_OK)
        return weft_error_context(status, "to rank %d", message->peer);
    message->queued = false;
    batch->num_queued--;
    return WEFT_OK;
}

weft_status weft_mpi_post_send(const weft_mpi_comm *comm, weft_mpi_batch *batch, int peer, int tag,
                               const void *buffer, size_t bytes)
{
    assert(bytes <= INT_MAX);
    WEFT_TRY(weft_mpi_batch_reserve(batch));
    int64_t now = now_ns();
    weft_mpi_message message = {.peer = peer,
                                .bytes = bytes,
                                .queued = true,
                                .tag = tag,
                                .buffer = buffer,
                                .handle = comm->handle,
                                .link = weft_mpi_link(&comm->base, peer)};
    if (batch->pass)
        message.number = weft_gate_queue(batch->pass, message.link, bytes, now);
    batch->requests[batch->count] = MPI_REQUEST_NULL;
    add(batch, &message);
    WEFT_TRY(send_queued(batch, batch->count - 1, now));
    return WEFT_OK;
}

weft_status weft_mpi_post_recv(const weft_mpi_comm *comm, weft_mpi_batch *batch, int peer, int tag,
                               void *buffer, size_t bytes)
{
    assert(bytes <= INT_MAX);
    WEFT_TRY(weft_mpi_batch_reserve(batch));
    weft_status status = WEFT_MPI(MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, tag, comm->handle,
                                            &batch->requests[batch->count]));
    if (status != WEFT_OK)
        return weft_error_context(status, "from rank %d", peer);
    weft_link link = weft_mpi_link(&comm->base, peer);
    if (batch->pass)
        weft_gate_await(batch->pass, link, bytes, now_ns());
    add(batch, &(weft_mpi_message){.peer = peer, .bytes = bytes, .receive = true, .link = link});
    return WEFT_OK;
}

/* A message that came complete must have the size asked for. The size of one too long is known
 * where the library keeps it in the status. */
static weft_status check_message(const weft_mpi_message *message, const MPI_Status *status,
                                 int code)
{
    int class = MPI_SUCCESS, count = 0;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    if (class != MPI_SUCCESS && class != MPI_ERR_TRUNCATE) {
        char text[MPI_MAX_ERROR_STRING + 1] = {0};
        return WEFT_ERROR(WEFT_COMM, "%s rank %d: %s", message->receive ? "from" : "to",
                          message->peer, error_text(code, text));
    }
    if (!message->receive)
        return WEFT_OK;
    if (MPI_Get_count(status, MPI_BYTE, &count) != MPI_SUCCESS)
        count = MPI_UNDEFINED;
    bool longer = class == MPI_ERR_TRUNCATE;
    if (longer && (count == MPI_UNDEFINED || (size_t)count <= message->bytes))
        return WEFT_ERROR(WEFT_COMM, "rank %d sent more than the %zu bytes received here",
                          message->peer, message->bytes);
    if (longer || (size_t)count != message->bytes)
        return WEFT_ERROR(WEFT_COMM, "rank %d sent %d bytes where %zu are received here",
                          message->peer, count, message->bytes);
    return WEFT_OK;
}

weft_status weft_mpi_batch_test(weft_mpi_batch *batch, bool *out_moved, bool *out_done)
{
    int num_queued = batch->num_queued;
    int64_t now = now_ns();
    for (int i = 0; batch->num_queued > 0 && i < batch->count; i++)
        if (batch->messages[i].queued)
            WEFT_TRY(send_queued(batch, i, now));
    *out_moved |= batch->num_queued < num_queued;
    if (batch->num_pending > batch->num_queued) {
        int num_ended = 0;
        int code = MPI_Testsome(batch->count, batch->requests, &num_ended, batch->indices,
                                batch->statuses);
        if (code != MPI_ERR_IN_STATUS)
            WEFT_TRY(WEFT_MPI(code));
        batch->num_pending -= num_ended;
        *out_moved |= num_ended > 0;
        for (int i = 0; i < num_ended; i++) {
            int own_code = code == MPI_SUCCESS ? MPI_SUCCESS : batch->statuses[i].MPI_ERROR;
            const weft_mpi_message *message = &batch->messages[batch->indices[i]];
            if (batch->pass && message->receive)
                weft_gate_arrive(batch->pass, message->link, message->bytes, now);
            else if (batch->pass)
                weft_gate_end(batch->pass, message->link, message->bytes, now);
            WEFT_TRY(check_message(message, &batch->statuses[i], own_code));
        }
    }
    *out_done = batch->num_pending == 0;
    return WEFT_OK;
}
