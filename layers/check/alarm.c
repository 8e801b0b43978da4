/* How rank 0 learns of another rank's error before that rank ends the job. */
#include <string.h>

#include "layers/check/check.h"

enum { NEWS, TOLD }; /* tags */

typedef struct news {
    bool failed; /* else the check is over */
    char text[WEFT_ERROR_TEXT_BYTES];
} news;

/* To rank 0's report, or to the rank before, until that has told it. Where the ranks can no longer
 * talk the report stays as it is: the job ends. */
static void tell(const weft_check_alarm *alarm, const news *what)
{
    int rank = weft_comm_rank(alarm->comm);
    bool told;
    weft_status status = WEFT_OK;
    if (rank > 0)
        status = weft_comm_send_host(alarm->comm, rank - 1, NEWS, what, sizeof *what);
    else if (what->failed)
        weft_check_report_fail(alarm->report, what->text);
    if (rank > 0 && what->failed && status == WEFT_OK)
        status = weft_comm_recv_host(alarm->comm, rank - 1, TOLD, &told, sizeof told);
    if (status != WEFT_OK)
        weft_error_clear();
}

static void *listen_to_next(void *argument)
{
    const weft_check_alarm *alarm = argument;
    int next = weft_comm_rank(alarm->comm) + 1;
    bool told = true;
    news what = {0};
    if (weft_comm_recv_host(alarm->comm, next, NEWS, &what, sizeof what) != WEFT_OK || !what.failed)
        return NULL;
    tell(alarm, &what);
    if (weft_comm_send_host(alarm->comm, next, TOLD, &told, sizeof told) != WEFT_OK)
        weft_error_clear();
    return NULL;
}

weft_status weft_check_alarm_start(weft_comm *world, weft_check_report *report,
                                   weft_check_alarm *out)
{
    int rank = weft_comm_rank(world), size = weft_comm_size(world);
    out->report = report;
    if (size == 1)
        return WEFT_OK;
    WEFT_TRY(weft_comm_split(world, 0, rank, "alarm", WEFT_PURPOSE_CONTROL, &out->comm));
    bool hears = rank + 1 < size;
    out->listens = hears && pthread_create(&out->thread, NULL, listen_to_next, out) == 0;
    return hears && !out->listens ? WEFT_ERROR(WEFT_MEMORY, "no thread to hear rank %d", rank + 1)
                                  : WEFT_OK;
}

void weft_check_alarm_stop(weft_check_alarm *alarm)
{
    if (!alarm->comm)
        return;
    if (alarm->listens)
        pthread_join(alarm->thread, NULL);
    tell(alarm, &(news){.failed = false});
    weft_comm_destroy(alarm->comm);
}

void weft_check_alarm_raise(weft_check_alarm *alarm)
{
    const weft_error error = *weft_error_get();
    news what = {.failed = true};
    weft_error_of_rank(error.status,
                       weft_comm_world_rank(alarm->comm, weft_comm_rank(alarm->comm)));
    memcpy(what.text, weft_error_get()->text, sizeof what.text);
    tell(alarm, &what);
    weft_error_put(&error);
}
