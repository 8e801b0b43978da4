#include "launcher/training/state.h"

weft_status weft_trainer_run(weft_trainer *t, bool eval, int64_t step)
{
    t->running_eval = eval;
    t->running_step = step;
    t->running_batches = weft_trainer_num_batches(t);
    if (!t->evaluates)
        t->running_scale = *weft_optimizer_loss_scale(t->optimizer);
    weft_model_settle(t->model);
    weft_model_clear_metrics(t->model);
    weft_model_begin_tier(t->model, !eval);
    return weft_step_clock_run(&t->clock, eval ? &t->eval_program : &t->program, &t->executor);
}
