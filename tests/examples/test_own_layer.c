/* The layer of examples/own_layer.c: forward against a plain fp64 version of its formula, and all
 * else by the checker that is installed for users. Runs on one rank and on two. */

/* The example as it stands, its main under another name. */
int own_layer_main(int argc, char **argv);
#define main own_layer_main
#include "examples/own_layer.c"
#undef main

#include "layers/check/internal.h"
#include "tests/expect.h"

static double reference(const weft_tensor *x, const primer *p, size_t row, size_t column)
{
    size_t ffn = p->w1->weight.dims[0], hidden = p->w1->weight.dims[1];
    double y = 0;
    for (size_t f = 0; f < ffn; f++) {
        double pre = 0;
        for (size_t h = 0; h < hidden; h++)
            pre += (double)weft_check_number(x, row * hidden + h) *
                   (double)weft_check_number(&p->w1->weight, f * hidden + h);
        y +=
            (double)weft_check_number(&p->w2->weight, column * ffn + f) * (pre > 0 ? pre * pre : 0);
    }
    return y;
}

static void check_forward(void)
{
    const weft_check_setup setup = {
        .options = &WEFT_ARGS(weft_model_options, .num_layers = 1, .hidden_size = 8,
                              .ffn_hidden_size = 12, .num_attention_heads = 2,
                              .num_query_groups = 2, .kv_channels = 4, .seq_length = 6,
                              .max_position_embeddings = 6, .vocab_size = 16, .norm_epsilon = 1e-5),
        .micro_batch_size = 2};
    weft_comm *self;
    weft_check_place place = {0};
    weft_check_layer l;
    int found = 0;
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(weft_check_place_create(&place, self, &setup, "tp=1", WEFT_F32, build));
    for (int i = 0; place.model && i < place.model->tree.num_members; i++) {
        if (place.model->tree.members[i].layer->ops != &primer_ops)
            continue;
        found++;
        EXPECT_OK(weft_check_layer_of(&place, i, &l));
        EXPECT_OK(weft_check_forward(&l, 0, 0, true, WEFT_CHECK_ZEROED));
        for (size_t k = 0; k < place.rows * place.hidden; k++)
            EXPECT_NEAR(
                (double)weft_check_number(&place.y[0], k),
                reference(&place.x[0], (const primer *)l.layer, k / place.hidden, k % place.hidden),
                1e-5);
    }
    EXPECT(found == 1, "%d primers in the model", found);
    weft_check_place_release(&place);
    weft_comm_destroy(self);
}

int main(void)
{
    check_forward();
    EXPECT_OK(weft_check_layers(
        &WEFT_ARGS(weft_check, .layer = "primer", .bf16 = true,
                   .model = "{\"num_layers\": 1, \"hidden_size\": 8, \"ffn_hidden_size\": 12, "
                            "\"num_attention_heads\": 2, \"seq_length\": 6}"),
        build));
    return expect_finish();
}
