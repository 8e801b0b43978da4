/* weft doctor --nodes: which rank, node or link of a job is slower than the others. */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "core/log.h"
#include "launcher/arguments/arguments.h"
#include "launcher/measuring/nodes.h"
#include "launcher/planning/config.h"
#include "launcher/training/setup.h"
#include "launcher/verbs/measure/doctor.h"
#include "launcher/verbs/measure/measure.h"

/* The line of a rank that still waits when the time is over; two, so that one is whole. */
static char late[2][320];
static atomic_int which;
static int own_rank;
static char own_node[WEFT_NODES_NAME_BYTES];
static double limit_s;

static void tell_late(int signal)
{
    const char *line = late[atomic_load(&which)];
    (void)signal;
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        _exit(1);
    _exit(weft_status_exit_code(WEFT_COMM));
}

static void note(const char *what)
{
    const int next = 1 - atomic_load(&which);
    snprintf(late[next], sizeof late[next],
             "weft doctor: --seconds %g are over: rank %d (%s) waits for %s\n", limit_s, own_rank,
             own_node, what);
    atomic_store(&which, next);
}

/* A link that is cut, or a rank that stands still, never answers. */
static void limit_time(const weft_doctor_nodes_options *options, int rank)
{
    own_rank = rank;
    limit_s = options->seconds;
    if (gethostname(own_node, sizeof own_node - 1))
        snprintf(own_node, sizeof own_node, "?");
    note("the other ranks");
    signal(SIGALRM, tell_late);
    alarm((unsigned)ceil(options->seconds));
}

static weft_status compare(const weft_doctor_nodes_options *o, const weft_config *config,
                           weft_comm *world, bool *out_even)
{
    const weft_nodes_options options = {
        .seconds = o->seconds, .factor = o->factor, .folder = o->folder, .entering = note};
    weft_device *device = NULL;
    weft_nodes nodes = {0};
    weft_status status = weft_comm_agree(world, weft_setup_device(config, &device));
    if (status == WEFT_OK)
        status = weft_nodes_measure(world, device, &options, &nodes);
    alarm(0);
    if (status == WEFT_OK && weft_comm_rank(world) == 0) {
        weft_report report;
        weft_report_begin(&report, o->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
        weft_nodes_report(&report, &nodes, &options);
        status = weft_report_end(&report, WEFT_OK, stdout);
    }
    *out_even = nodes.num_odd == 0;
    weft_nodes_release(&nodes);
    weft_device_destroy(device);
    if (status == WEFT_COMM || status == WEFT_DEVICE || status == WEFT_INTERNAL) {
        weft_log_error_record(); /* this rank may be the only one that knows */
        weft_comm_abort(world, status);
    }
    return status;
}

int weft_doctor_nodes(const weft_doctor_nodes_options *options)
{
    const weft_config config = {.device.kind =
                                    options->on_gpu ? WEFT_DEVICE_KIND_CUDA : WEFT_DEVICE_KIND_CPU};
    weft_comm *world = NULL;
    int rank = 0;
    bool even = true;
    const bool launched = weft_comm_launched(&rank, NULL, NULL, NULL);
    weft_log_set_rank(rank);
    weft_setup_driver(&config);
    weft_status status = launched ? weft_comm_create_world(&world) : weft_comm_create_self(&world);
    if (status == WEFT_OK) {
        limit_time(options, rank);
        status = compare(options, &config, world, &even);
    }
    const int code = status != WEFT_OK && rank == 0 ? weft_verb_fail("doctor")
                     : status != WEFT_OK            ? weft_status_exit_code(status)
                     : even                         ? 0
                                                    : weft_status_exit_code(WEFT_DEVICE);
    weft_comm_destroy(world);
    return code;
}
