/* Tensors whose numbers others scale, in blocks: fp8 and MXFP4 are read as products by hand, come
 * out as bf16, and what does not fit is refused by name. */
#include <math.h>
#include <stdlib.h>

#include "tests/expect.h"
#include "tests/launcher/altered.h"
#include "tests/launcher/child.h"

/* A tensor of fp8, no number of which is NaN, and its scales, one each 128 x 128. */
static void add_fp8(model *m, const char *name, const char *scales, size_t rows, size_t cols)
{
    const size_t blocks = (rows + 127) / 128 * ((cols + 127) / 128), at = m->count++;
    m->tensors[at] = (weft_safetensor){.name = name,
                                       .dtype_text = "F8_E4M3",
                                       .num_dims = 2,
                                       .dims = {rows, cols},
                                       .bytes = rows * cols};
    m->data[at] = calloc(1, rows * cols + 1);
    for (size_t i = 0; i < rows * cols; i++)
        m->data[at][i] = (char)((i % 2 ? 128 : 0) + i * 7 % 127);
    m->tensors[m->count] = (weft_safetensor){.name = scales,
                                             .dtype_text = "F32",
                                             .num_dims = 2,
                                             .dims = {(rows + 127) / 128, (cols + 127) / 128},
                                             .bytes = blocks * sizeof(float)};
    float *scale = calloc(blocks + 1, sizeof *scale);
    for (size_t b = 0; b < blocks; b++)
        scale[b] = 0.5f + (float)b;
    m->data[m->count++] = (char *)scale;
}

/* The number at i, by hand. */
static double fp8_at(size_t i, size_t cols)
{
    const size_t x = i * 7 % 127, across = (cols + 127) / 128;
    const double size =
        x < 8 ? (double)x / 512 : (1 + (double)(x % 8) / 8) * pow(2, (double)(x / 8) - 7);
    return (i % 2 ? -size : size) * (0.5 + (double)(i / cols / 128 * across + i % cols / 128));
}

static void blocks_of_fp8_are_scaled(void)
{
    enum { ROWS = 130, COLS = 300 };
    static const char down[] = "model.layers.0.mlp.down_proj.weight",
                      scales[] = "model.layers.0.mlp.down_proj.weight_scale_inv";
    static float read[ROWS * COLS], raw[ROWS * COLS];
    weft_arena arena = {0};
    weft_safetensors files;
    weft_card card;
    model m;
    load(&m, "llama");
    add_fp8(&m, "a.weight", "a.weight_scale_inv", ROWS, COLS);
    write_folder(&m, "altered");
    EXPECT_OK(weft_safetensors_open("altered", &arena, &files));
    const weft_safetensor *a = weft_safetensors_find(&files, "a.weight");
    for (size_t at = 0, step = 701; at < ROWS * COLS; at += step)
        EXPECT_OK(weft_safetensor_read(
            &files, a, at, at + step < ROWS * COLS ? step : ROWS * COLS - at, raw, &read[at]));
    for (size_t i = 0; i < ROWS * COLS; i++)
        EXPECT((double)read[i] == fp8_at(i, COLS), "%zu: %g, not %g", i, (double)read[i],
               fp8_at(i, COLS));
    weft_safetensors_release(&files);
    release(&m);

    load(&m, "llama");
    drop(&m, down);
    add_fp8(&m, down, scales, 24, 36);
    say(&m, "\"vocab_size\"",
        "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}, "
        "\"vocab_size\"");
    write_folder(&m, "altered");
    EXPECT_OK(import_to("altered", "run", &card));
    EXPECT(card.num_scaled == 1, "%zu scaled", card.num_scaled);
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = "run", .out = "made"}, &arena, &card));
    char *config = child_read("made/config.json");
    EXPECT(config && !strstr(config, "quantization_config"), "%s", config);
    EXPECT_OK(weft_safetensors_open("made", &arena, &files));
    a = weft_safetensors_find(&files, down);
    EXPECT(strcmp(a->dtype_text, "BF16") == 0 && !weft_safetensors_find(&files, scales), "%s",
           a->dtype_text);
    EXPECT_OK(weft_safetensor_read(&files, a, 0, 24 * 36, raw, read));
    for (size_t i = 0; i < 24 * 36; i++)
        EXPECT((double)read[i] == fp8_at(i, 36), "%zu: %g", i, (double)read[i]);
    weft_safetensors_release(&files);
    EXPECT(system("rm -r run made") == 0, "folders");
    m.tensors[find(&m, scales)].dims[0] = 2;
    m.tensors[find(&m, scales)].bytes = 8;
    m.data[find(&m, scales)] = realloc(m.data[find(&m, scales)], 8);
    refused(&m, WEFT_FILE, "should have an F32 for each block of 128 x 128");
    weft_arena_release(&arena);
}

/* Numbers by hand: 2^(scale - 127) times what a half byte is; in any part. */
static double fp4_at(const uint8_t *blocks, const uint8_t *scales, size_t i)
{
    static const double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int x = i % 2 ? blocks[i / 2] >> 4 : blocks[i / 2] & 15;
    return (x & 8 ? -sizes[x & 7] : sizes[x & 7]) * pow(2, scales[i / 32] - 127.0);
}

/* With the shapes that the file has. */
static void load_blocks(model *m)
{
    load(m, "gpt_oss_mxfp4");
    for (size_t i = 0; i < m->count; i++) {
        weft_safetensor *t = &m->tensors[i];
        if (!t->is_fp4)
            continue;
        t->dims[t->num_dims - 1] /= 32;
        t->dims[t->num_dims++] = 16;
    }
}

static void blocks_of_mxfp4_are_scaled(void)
{
    static const char down[] = "model.layers.0.mlp.experts.down_proj_blocks",
                      scales[] = "model.layers.0.mlp.experts.down_proj_scales";
    weft_arena arena = {0};
    weft_safetensors files;
    weft_card card;
    model m;
    float raw[128], read[128];
    load_blocks(&m);
    const uint8_t *blocks = (uint8_t *)m.data[find(&m, down)],
                  *powers = (uint8_t *)m.data[find(&m, scales)];
    write_folder(&m, "altered");
    EXPECT_OK(weft_safetensors_open("altered", &arena, &files));
    const weft_safetensor *t = weft_safetensors_find(&files, down);
    EXPECT(t->is_fp4 && t->num_dims == 3 && t->dims[1] == 64 && t->dims[2] == 32, "%s", t->name);
    for (size_t at = 0, count = 1; at + count < 3 * 64 * 32; at += count, count = at % 127 + 1) {
        EXPECT_OK(weft_safetensor_read(&files, t, at, count, raw, read));
        for (size_t i = 0; i < count; i++)
            EXPECT((double)read[i] == fp4_at(blocks, powers, at + i), "%zu: %g", at + i,
                   (double)read[i]);
    }
    weft_safetensors_release(&files);
    EXPECT_OK(import_to("altered", NULL, &card));
    EXPECT(card.num_scaled == 4, "%zu scaled", card.num_scaled);
    m.data[find(&m, scales)][70] = (char)255;
    refused(&m, WEFT_DIVERGED, "down_proj_blocks: element 2240 is nan");
    load_blocks(&m);
    drop(&m, scales);
    refused(&m, WEFT_FILE, "down_proj_blocks has dtype U8; Weft reads F32, BF16, F16 and, with");
    load_blocks(&m);
    drop(&m, down);
    refused(&m, WEFT_FILE, "down_proj_scales: no parameter of this GPT-OSS model takes it");
    load_blocks(&m);
    m.tensors[find(&m, scales)].dims[0] = 1;
    m.tensors[find(&m, scales)].dims[1] = 3 * 64;
    refused(&m, WEFT_FILE, "down_proj_scales: should have a U8 for each 16 bytes of");
    load_blocks(&m);
    say(&m, "\"mxfp4\"", "\"mxfp6\"");
    refused(&m, WEFT_CONFIG, "quantised weights (\"mxfp6\"), which Weft does not read");
    weft_arena_release(&arena);
}

int main(void)
{
    child_begin();
    blocks_of_fp8_are_scaled();
    blocks_of_mxfp4_are_scaled();
    return child_finish();
}
