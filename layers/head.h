/* What the model asks of its head. Private to layers/. */
#ifndef WEFT_LAYERS_HEAD_H
#define WEFT_LAYERS_HEAD_H

#include "layers/layers.h"

/* Logits [S * B, V local] of the pass's forward, on a model that does not train. */
const weft_tensor *weft_head_logits(weft_pass *pass, const weft_layer *layer);

#endif
