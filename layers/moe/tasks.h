/* The functions that run the tasks of an MoE layer's programs. Private to layers/. */
#ifndef WEFT_LAYERS_MOE_TASKS_H
#define WEFT_LAYERS_MOE_TASKS_H

#include "schedule/run.h"

/* Fills executor.run for programs of schedule/moe/layer.h; the context is moe_tasks.c's own. */
void weft_moe_bind_tasks(weft_executor *executor);
/* The same for programs of schedule/exchange/exchange.h; the context is exchange.c's own. */
void weft_moe_bind_exchange_tasks(weft_executor *executor);

#endif
