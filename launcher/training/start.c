#include "launcher/training/start.h"

#include "comm/watch/watch.h"
#include "core/log.h"
#include "launcher/process/alive.h"
#include "launcher/process/launch.h"
#include "launcher/process/stop.h"
#include "launcher/training/restarts.h"
#include "launcher/training/setup.h"

weft_start weft_start_find(void)
{
    weft_start start = {.size = 1};
    int local_rank, local_size;
    start.launched = weft_comm_launched(&start.rank, &start.size, &local_rank, &local_size);
    weft_log_set_rank(start.rank);
    return start;
}

/* Of several ranks that a launcher started and that train. */
static weft_status start_watch(const weft_reliability_options *r, const weft_start *start,
                               const weft_run_folder *folder)
{
    weft_watch_options options = {
        .factor = r->limit_factor, .folder = folder->path, .is_ending = weft_stop_is_ended};
    const int64_t limits[WEFT_WATCH_NUM_LIMITS] = {
        [WEFT_WATCH_SETUP] = r->setup_limit_s,           [WEFT_WATCH_LOAD] = r->load_limit_s,
        [WEFT_WATCH_FIRST_STEP] = r->first_step_limit_s, [WEFT_WATCH_STEP] = r->step_limit_s,
        [WEFT_WATCH_OUTPUT] = r->save_limit_s,           [WEFT_WATCH_SAVE] = r->save_limit_s,
        [WEFT_WATCH_EXCHANGE] = r->exchange_limit_s};
    for (int i = 0; i < WEFT_WATCH_NUM_LIMITS; i++)
        options.limit_s[i] = (double)limits[i];
    return weft_watch_start(&options, start->rank, start->size);
}

weft_status weft_start_ranks(weft_start *start, const weft_config *config,
                             const weft_config_source *source, const weft_run_folder *folder,
                             int argc, char **argv)
{
    weft_mesh mesh;
    const bool restarts = folder && config->reliability.max_restarts > 0;
    WEFT_TRY(weft_config_mesh(config, source, start->launched ? start->size : 0, &mesh));
    if (!start->launched && (mesh.world > 1 || restarts)) {
        if (folder)
            WEFT_TRY(weft_run_check_free(folder));
        WEFT_TRY(weft_setup_check_device(config, source));
        WEFT_TRY(weft_setup_check_data(config, source));
        WEFT_TRY(weft_setup_check_model(config, source, &mesh));
        if (restarts)
            return weft_restarts_run(&config->reliability, folder, mesh.world, argc + 1, argv - 1,
                                     &start->exit_code);
        return weft_launch_mpirun(mesh.world, argc + 1, argv - 1, folder ? folder->path : NULL,
                                  &start->exit_code);
    }
    if (folder && config->checkpoint.async_save && !config->checkpoint.no_save)
        WEFT_TRY(weft_checkpoint_writer_create(&start->writer));
    if (folder && start->launched && start->rank == 0)
        weft_alive_start(folder->path);
    if (folder && start->launched && start->size > 1 && config->reliability.watchdog)
        WEFT_TRY(start_watch(&config->reliability, start, folder));
    weft_setup_driver(config);
    return start->launched ? weft_comm_create_world(&start->world)
                           : weft_comm_create_self(&start->world);
}
