/* Weft: hybrid-parallel training of dense and mixture-of-experts language models.
 *
 * A user's program defines a model and hands it to weft_main, which gives the program every verb
 * of the weft command (train, generate, inspect, ...):
 *
 *     int main(int argc, char **argv) { return weft_main(argc, argv, build); }
 *
 * A program with config keys or a dataset of its own calls weft_application_main. */
#ifndef WEFT_H
#define WEFT_H

#include "application.h"
#include "check.h"
#include "describe.h"
#include "device.h"
#include "family.h"
#include "kernels.h"
#include "layer.h"
#include "list.h"
#include "mesh.h"
#include "model.h"
#include "operation.h"
#include "options.h"
#include "parameter.h"
#include "sample.h"
#include "sized.h"
#include "status.h"
#include "tensor.h"

#endif
