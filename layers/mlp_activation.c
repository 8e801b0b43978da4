/* The activation of an MLP, whole or of a chunk of its rows. */
#include "kernels/kernels.h"
#include "layers/mlp.h"

bool weft_mlp_has_gelu(const weft_mlp *mlp)
{
    return weft_activation_of(&mlp->common.options) == WEFT_ACTIVATION_GELU;
}

static float limit_of(const weft_mlp *mlp)
{
    return (float)mlp->common.options.activation_func_clamp_value;
}

static float offset_of(const weft_mlp *mlp)
{
    return (float)mlp->common.options.glu_linear_offset;
}

weft_status weft_mlp_activate(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *hidden,
                              weft_tensor *act)
{
    return weft_activation_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_forward_args, .kind = weft_activation_of(&mlp->common.options),
                   .rows = act->dims[0], .cols = act->dims[1], .dtype = act->dtype,
                   .x = hidden->data, .y = act->data, .limit = limit_of(mlp),
                   .offset = offset_of(mlp)));
}

weft_status weft_mlp_activate_backward(const weft_mlp *mlp, weft_pass *pass,
                                       const weft_tensor *hidden, const weft_tensor *dact,
                                       const weft_tensor *dhidden)
{
    return weft_activation_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_backward_args, .kind = weft_activation_of(&mlp->common.options),
                   .rows = dact->dims[0], .cols = dact->dims[1], .dtype = dact->dtype,
                   .x = hidden->data, .dy = dact->data, .dx = dhidden->data, .limit = limit_of(mlp),
                   .offset = offset_of(mlp)));
}
