#include "launcher/training/start.h"

#include "core/log.h"
#include "launcher/process/launch.h"
#include "launcher/training/setup.h"

weft_start weft_start_find(void)
{
    weft_start start = {.size = 1};
    int local_rank, local_size;
    start.launched = weft_comm_launched(&start.rank, &start.size, &local_rank, &local_size);
    weft_log_set_rank(start.rank);
    return start;
}

weft_status weft_start_ranks(weft_start *start, const weft_config *config,
                             const weft_config_source *source, const weft_run_folder *folder,
                             int argc, char **argv)
{
    weft_mesh mesh;
    WEFT_TRY(weft_config_mesh(config, source, start->launched ? start->size : 0, &mesh));
    if (!start->launched && mesh.world > 1) {
        if (folder)
            WEFT_TRY(weft_run_check_free(folder));
        WEFT_TRY(weft_setup_check_device(config, source));
        WEFT_TRY(weft_setup_check_data(config, source));
        WEFT_TRY(weft_setup_check_model(config, source, &mesh));
        return weft_launch_mpirun(mesh.world, argc + 1, argv - 1, &start->exit_code);
    }
    weft_setup_driver(config);
    return start->launched ? weft_comm_create_world(&start->world)
                           : weft_comm_create_self(&start->world);
}
