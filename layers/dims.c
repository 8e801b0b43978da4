/* The local sizes that layers and their descriptions share. */
#include "layers/describe.h"

size_t weft_rotary_channels(size_t head_dim, double percent)
{
    return (size_t)((double)head_dim * percent * (1 + 1e-12));
}

weft_dims weft_dims_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_dims d = {0};
    size_t tp = (size_t)shape->tp;
    d.rows_full = weft_shape_local_tokens(shape);
    d.rows = d.rows_full / (shape->sequence_parallel ? tp : 1);
    d.hidden = shape->hidden;
    d.heads_all = (size_t)o->num_attention_heads;
    d.groups_all = weft_or_else(o->num_query_groups, o->num_attention_heads);
    d.head_dim = weft_or_else(o->kv_channels, o->hidden_size / o->num_attention_heads);
    if (o->position_embedding_type == WEFT_POSITION_ROPE)
        d.rotary = weft_rotary_channels(d.head_dim, o->rotary_percent);
    d.heads = d.heads_all / tp;
    d.sharers = d.groups_all < tp ? tp / d.groups_all : 1;
    d.groups = d.groups_all * d.sharers / tp;
    d.qkv = (d.heads + 2 * d.groups) * d.head_dim;
    d.gates = o->swiglu ? 2 : 1;
    d.ffn_all = weft_or_else(o->ffn_hidden_size, 4 * o->hidden_size);
    d.ffn = d.ffn_all / tp;
    d.vocab_rows = (shape->vocab + tp - 1) / tp;
    return d;
}
