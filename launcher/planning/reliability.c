#include "launcher/planning/reliability.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define T weft_reliability_options
#define LIMIT(key, initial, help)                                                                  \
    {                                                                                              \
#key, WEFT_OPTION_INT, offsetof(T, key), initial, 1, 1e6, NULL, "s", help                  \
    }

const weft_option_row weft_reliability_rows[] = {
    {"watchdog", WEFT_OPTION_BOOL, offsetof(T, watchdog), "true", 0, 0, NULL, NULL,
     "end a job whose ranks no longer get on, and say which rank is missing"},
    LIMIT(setup_limit_s, "1800", "the least limit of starting, up to the first step"),
    LIMIT(load_limit_s, "1800", "the same of loading a checkpoint"),
    LIMIT(first_step_limit_s, "1800", "the same of a start's first step and first evaluation"),
    LIMIT(step_limit_s, "300", "the same of a step, or of a batch of an evaluation"),
    LIMIT(exchange_limit_s, "60", "the same of one exchange of ranks within a step"),
    LIMIT(save_limit_s, "1800", "the same of a save, and of the end"),
    {"limit_factor", WEFT_OPTION_DOUBLE, offsetof(T, limit_factor), "5", 1, 1e6, NULL, NULL,
     "a limit is also so many times the longest that the same took lately"},
    {"max_restarts", WEFT_OPTION_INT, offsetof(T, max_restarts), "0", 0, 1e6, NULL, "starts",
     "after a fault, start the ranks again from the newest checkpoint, so often at most"},
    {"restart_delay_s", WEFT_OPTION_DOUBLE, offsetof(T, restart_delay_s), "1", 0, 600, NULL, "s",
     "wait so long before, and twice as long where a start came no further than before"},
    {"on_bad_step", WEFT_OPTION_CHOICE, offsetof(T, on_bad_step), "\"stop\"", 0, 0,
     "stop|skip|rewind", NULL,
     "a loss or gradient not finite, or a spike: stop, skip its batch, or go back and pass it"},
    {"max_bad_steps", WEFT_OPTION_INT, offsetof(T, max_bad_steps), "10", 1, 1e15, NULL, "steps",
     "with skip and rewind: as many as a run may have"},
    {"loss_spike_factor", WEFT_OPTION_DOUBLE, offsetof(T, loss_spike_factor), "0", 0, 1e6, NULL,
     NULL,
     "a loss above so many times its running mean makes a bad step; 0: none does, else above 1"},
    {"straggler_factor", WEFT_OPTION_DOUBLE, offsetof(T, straggler_factor), "1.5", 0, 1e6, NULL,
     NULL,
     "name a rank, or a node's link, that takes so many times as long as others; 0: none, else "
     "above 1"},
    {"straggler_steps", WEFT_OPTION_INT, offsetof(T, straggler_steps), "50", 1, 1e15, NULL, "steps",
     "for so many steps without a break"},
    {"replica_check_interval", WEFT_OPTION_INT, offsetof(T, replica_check_interval), "0", 0, 1e15,
     NULL, "steps", "compare hashes of what ranks hold alike so often; 0: never"},
    {"on_replica_difference", WEFT_OPTION_CHOICE, offsetof(T, on_replica_difference), "\"stop\"", 0,
     0, "stop|majority", NULL, "stop, or take the bits of more than half of the replicas"},
    {"state_check_interval", WEFT_OPTION_INT, offsetof(T, state_check_interval), "0", 0, 1e15, NULL,
     "steps", "compare hashes of a rank's weights and moments between steps so often; 0: never"},
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
