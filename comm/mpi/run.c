/* Runs an operation's rounds: the engine's driver advances them. */
#include "comm/mpi/mpi_comm.h"

int weft_mpi_first_tag(uint64_t sequence)
{
    uint64_t number = sequence % weft_mpi_num_sequences();
    return WEFT_MPI_FIRST_COLLECTIVE_TAG + WEFT_MPI_TAGS_PER_COLLECTIVE * (int)number;
}

int weft_mpi_tag(const weft_mpi_run *run, const weft_mpi_slot *slot)
{
    if (weft_comm_is_message(run->op->kind))
        return run->op->tag;
    if (run->signatures)
        return run->first_tag;
    return run->first_tag + 1 + 2 * (int)(slot - run->work->slots) + slot->phase;
}

/* Starts a round that an idle slot may take, or moves a busy slot's round on. */
static weft_status advance_slot(weft_mpi_run *run, weft_mpi_slot *slot, bool *out_moved)
{
    if (slot->phase < 0) {
        uint64_t index = (uint64_t)(slot - run->work->slots);
        if (run->num_started == run->num_rounds || run->num_started % WEFT_MPI_NUM_SLOTS != index)
            return WEFT_OK;
        slot->round = run->num_started++;
        slot->phase = 0;
    } else {
        bool done = false;
        WEFT_TRY(weft_mpi_batch_test(&slot->batch, out_moved, &done));
        if (!done)
            return WEFT_OK;
        slot->phase++;
    }
    *out_moved = true;
    slot->batch.count = slot->batch.num_pending = slot->batch.num_queued = 0;
    WEFT_TRY(run->step(run, slot));
    if (slot->batch.count == 0) {
        slot->phase = -1;
        run->num_ended++;
    }
    return WEFT_OK;
}

static weft_status advance(void *operation, bool *out_moved, bool *out_done)
{
    weft_mpi_run *run = operation;
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++) {
        weft_status status = advance_slot(run, &run->work->slots[i], out_moved);
        if (status == WEFT_OK)
            continue;
        weft_gate_leave(&run->pass);
        return status;
    }
    *out_done = run->num_ended == run->num_rounds;
    return WEFT_OK;
}

static void end_work(weft_mpi_run *run)
{
    int num_pending = 0;
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++)
        num_pending += run->work->slots[i].batch.num_pending;
    if (num_pending == 0)
        weft_mpi_work_give_back(run->comm, run->work);
    else
        weft_mpi_work_abandon(run->work);
}

weft_status weft_mpi_run_rounds(weft_mpi_run *run)
{
    int priority = (int)run->comm->base.purpose;
    weft_status status = weft_engine_run(weft_mpi_engine(), priority, advance, run);
    end_work(run);
    WEFT_TRY(status);
    return WEFT_OK;
}

weft_status weft_mpi_run_init(weft_mpi_run *run, const weft_comm_op *op)
{
    *run = (weft_mpi_run){
        .comm = (weft_mpi_comm *)op->comm,
        .op = op,
        .first_tag = weft_mpi_first_tag(op->sequence),
    };
    weft_gate_enter(&run->pass, weft_mpi_gate(), &weft_mpi_get_limits()->gate, op->comm->purpose);
    WEFT_TRY(weft_mpi_work_take(run->comm, &run->work));
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++)
        run->work->slots[i].batch.pass = &run->pass;
    return WEFT_OK;
}
