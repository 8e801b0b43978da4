#include "launcher/planning/reliability.h"

#include <stdlib.h>
#include <string.h>

#include "core/key_rows.h"

#define T weft_reliability_options
#define LIMIT(field, value, ...) RANGE(FREE, field, value, 1, 1e6, "s", __VA_ARGS__)

const weft_key weft_reliability_rows[] = {
    FLAG(FREE, watchdog, "true",
         "end a job whose ranks no longer get on, and say which rank is missing"),
    LIMIT(setup_limit_s, "1800", "the least limit of starting, up to the first step"),
    LIMIT(load_limit_s, "1800", "the same of loading a checkpoint"),
    LIMIT(first_step_limit_s, "1800", "the same of a start's first step and first evaluation"),
    LIMIT(step_limit_s, "300", "the same of a step, or of a batch of an evaluation"),
    LIMIT(exchange_limit_s, "60", "the same of one exchange of ranks within a step"),
    LIMIT(save_limit_s, "1800", "the same of a save, and of the end"),
    REAL(FREE, limit_factor, "5", 1, 1e6,
         "a limit is also so many times the longest that the same took lately"),
    RANGE(FREE, max_restarts, "0", 0, 1e6, "starts",
          "after a fault, start the ranks again from the newest checkpoint, so often at most"),
    ROW(FREE, "restart_delay_s", restart_delay_s, DOUBLE, "1", 0, 600, "s",
        "wait so long before, and twice as long where a start came no further than before"),
    CHOICE(
        FREE, on_bad_step, "\"stop\"", "stop|skip|rewind",
        "a loss or gradient not finite, or a spike: stop, skip its batch, or go back and pass it"),
    INT(FREE, max_bad_steps, "10", 1, "steps", "with skip and rewind: as many as a run may have"),
    REAL(
        FREE, loss_spike_factor, "0", 0, 1e6,
        "a loss above so many times its running mean makes a bad step; 0: none does, else above 1"),
    REAL(FREE, straggler_factor, "1.5", 0, 1e6,
         "name a rank, or a node's link, that takes so many times as long as others; 0: none, else "
         "above 1"),
    INT(FREE, straggler_steps, "50", 1, "steps", "for so many steps without a break"),
    INT(FREE, replica_check_interval, "0", 0, "steps",
        "compare hashes of what ranks hold alike so often; 0: never"),
    CHOICE(FREE, on_replica_difference, "\"stop\"", "stop|majority",
           "stop, or take the bits of more than half of the replicas",
           .idle = "reliability.replica_check_interval is 0"),
    INT(FREE, state_check_interval, "0", 0, "steps",
        "compare hashes of a rank's weights and moments between steps so often; 0: never",
        .idle = "offload.optimizer_state is host"),
};
const size_t weft_num_reliability_rows =
    sizeof weft_reliability_rows / sizeof *weft_reliability_rows;

double weft_reliability_default_factor(void)
{
    size_t row = 0;
    while (strcmp(weft_reliability_rows[row].key, "straggler_factor") != 0)
        row++;
    return strtod(weft_reliability_rows[row].initial, NULL);
}
