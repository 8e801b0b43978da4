/* Weft: hybrid-parallel training of dense and mixture-of-experts language models.
 *
 * A user's program defines a model and hands it to weft_main, which gives the program every verb
 * of the weft command (train, generate, inspect, ...):
 *
 *     int main(int argc, char **argv) { return weft_main(argc, argv, build); }
 */
#ifndef WEFT_H
#define WEFT_H

#include "device.h"
#include "kernels.h"
#include "layer.h"
#include "list.h"
#include "model.h"
#include "parameter.h"
#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs the command line with this model; `build` NULL: the model that the config describes.
 * Returns the process' exit code (see WEFT_STATUS_LIST). */
int weft_main(int argc, char **argv, weft_model_function build);

#ifdef __cplusplus
}
#endif
#endif
