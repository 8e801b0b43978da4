/* The all-to-all of an MoE layer's tokens by form, apart from the layer: weft_moe_exchange and
 * measurements run the same code. Private to layers/ and weft bench. */
#ifndef WEFT_LAYERS_MOE_EXCHANGE_H
#define WEFT_LAYERS_MOE_EXCHANGE_H

#include "comm/comm.h"
#include "layers/moe/runtime.h"

/* Where staging areas come from; their memory must last until the enqueued work is done. */
typedef struct weft_exchange_memory {
    void *context;
    weft_status (*device)(void *context, size_t bytes, void **out);
    weft_status (*host)(void *context, size_t bytes, void **out);
} weft_exchange_memory;

/* The all-to-all over `ep`, enqueued on `lane`, in the runtime's form and chunks; the runtime was
 * created with `exchange` true. Every rank of `etp` holds the same `send` and passes equal sizes,
 * as for weft_all_to_all. A single rank in `etp` uses the baseline. Collective over ep and etp.
 * Errors: the memory's, WEFT_COMM, the lanes' own. */
weft_status weft_moe_exchange_over(weft_moe_runtime *runtime, weft_comm *ep, weft_comm *etp,
                                   const weft_exchange_memory *memory, weft_lane *lane,
                                   const void *send, const size_t *send_bytes, void *recv,
                                   const size_t *recv_bytes) WEFT_CHECKED;

#endif
