#!/usr/bin/env python3
"""Writes golden files, as make_golden.py does, of small random models of published families:
losses and every gradient in fp64 by the code of those who published them, as transformers has it.

    python3 make_family_golden.py OUT_DIR [FAMILY...]     (pip install torch transformers)
"""
import sys
import zlib

import torch
import torch.nn.functional as F
import transformers as t

import make_golden

torch.set_default_dtype(torch.float64)

H, HEADS, GROUPS, DIM, FFN, VOCAB, SEQ, LAYERS = 24, 4, 2, 8, 28, 50, 10, 2

# Of both sides.
SHAPE = dict(vocab_size=VOCAB, hidden_size=H, intermediate_size=FFN, num_hidden_layers=LAYERS,
             num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=DIM, rms_norm_eps=1e-6,
             max_position_embeddings=1024, tie_word_embeddings=False)
BASE = dict(num_layers=LAYERS, hidden_size=H, ffn_hidden_size=FFN, num_attention_heads=HEADS,
            num_query_groups=GROUPS, kv_channels=DIM, seq_length=SEQ, vocab_size=VOCAB,
            normalization="RMSNorm", norm_epsilon=1e-6, swiglu=True, disable_bias_linear=True,
            position_embedding_type="rope", untie_embeddings_and_output_weights=True,
            init_method_std=0.2)


def rope(theta, **more):
    return dict(rope_parameters=dict({"rope_type": "default", "rope_theta": theta}, **more))


# Family: transformers' config, its model, what Weft's config adds.
FAMILIES = {
    "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM, rope(1e6),
              dict(qk_layernorm=True, rotary_base=1e6)),
    "llama-biases": (t.LlamaConfig, t.LlamaForCausalLM, dict(rope(500.0), attention_bias=True),
                     dict(add_qkv_bias=True, add_proj_bias=True, rotary_base=500)),
    "qwen2-linear": (t.Qwen2Config, t.Qwen2ForCausalLM,
                     dict(rope(1e4, rope_type="linear", factor=4.0), head_dim=None),
                     dict(add_qkv_bias=True, kv_channels=H // HEADS, rotary_scaling_type="linear",
                          rotary_scaling_factor=4)),
    "llama3": (t.LlamaConfig, t.LlamaForCausalLM,
               rope(500.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                    high_freq_factor=4.0, original_max_position_embeddings=256),
               dict(rotary_base=500, rotary_scaling_type="llama3", rotary_scaling_factor=8,
                    original_max_position_embeddings=256)),
    "qwen3-yarn": (t.Qwen3Config, t.Qwen3ForCausalLM,
                   rope(1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
                   dict(qk_layernorm=True, rotary_scaling_type="yarn", rotary_scaling_factor=4,
                        original_max_position_embeddings=64)),
    "yarn-mscale": (t.Qwen3Config, t.Qwen3ForCausalLM,
                    rope(1e4, rope_type="yarn", factor=40.0, original_max_position_embeddings=64,
                         beta_fast=8.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=1.3,
                         truncate=False),
                    dict(qk_layernorm=True, rotary_scaling_type="yarn", rotary_scaling_factor=40,
                         original_max_position_embeddings=64, yarn_beta_fast=8, yarn_beta_slow=2,
                         yarn_mscale=0.7, yarn_mscale_all_dim=1.3,
                         yarn_correction_range_round_to_int=False)),
    "glm": (t.GlmConfig, t.GlmForCausalLM,
            dict(rope(1e4, partial_rotary_factor=0.5), attention_bias=True),
            dict(add_qkv_bias=True, rotary_interleaved=True, rotary_percent=0.5)),
    "smollm3": (t.SmolLM3Config, t.SmolLM3ForCausalLM,
                dict(rope(1e5), head_dim=None, no_rope_layers=[1, 0]),
                dict(rotary_base=1e5, no_rope_freq=2, kv_channels=H // HEADS)),
    "olmoe": (t.OlmoeConfig, t.OlmoeForCausalLM,
              dict(rope(1e4), num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
                   head_dim=None),
              dict(qk_layernorm=True, qk_layernorm_across_heads=True, kv_channels=H // HEADS,
                   num_experts=4, moe_router_topk=2, moe_router_pre_softmax=True)),
    "qwen3-moe": (t.Qwen3MoeConfig, t.Qwen3MoeForCausalLM,
                  dict(rope(1e6), num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                       moe_intermediate_size=12),
                  dict(qk_layernorm=True, rotary_base=1e6, num_experts=4, moe_router_topk=2,
                       moe_ffn_hidden_size=12)),
    "qwen2-moe": (t.Qwen2MoeConfig, t.Qwen2MoeForCausalLM,
                  dict(rope(1e6), num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
                       moe_intermediate_size=12, shared_expert_intermediate_size=20,
                       decoder_sparse_step=1, head_dim=None),
                  dict(add_qkv_bias=True, rotary_base=1e6, kv_channels=H // HEADS, num_experts=4,
                       moe_router_topk=2, moe_router_pre_softmax=True, moe_ffn_hidden_size=12,
                       moe_shared_expert_intermediate_size=20, moe_shared_expert_gate=True)),
    "minimax-m2": (t.MiniMaxM2Config, t.MiniMaxM2ForCausalLM,
                   dict(rope(5e6, partial_rotary_factor=0.5), num_local_experts=6,
                        num_experts_per_tok=3),
                   dict(qk_layernorm=True, qk_layernorm_across_heads=True, rotary_base=5e6,
                        rotary_percent=0.5, num_experts=6, moe_router_topk=3,
                        moe_router_score_function="sigmoid",
                        moe_router_enable_expert_bias=True)),
    "glm4-moe": (t.Glm4MoeConfig, t.Glm4MoeForCausalLM,
                 dict(rope(1e4, partial_rotary_factor=0.5), n_routed_experts=12,
                      num_experts_per_tok=4, n_group=4, topk_group=2, norm_topk_prob=True,
                      routed_scaling_factor=1.5, first_k_dense_replace=1, n_shared_experts=1,
                      moe_intermediate_size=12, use_qk_norm=True, num_nextn_predict_layers=0),
                 dict(qk_layernorm=True, rotary_percent=0.5, num_experts=12, moe_router_topk=4,
                      moe_layer_freq=[0, 1], moe_ffn_hidden_size=12,
                      moe_shared_expert_intermediate_size=12, moe_router_num_groups=4,
                      moe_router_group_topk=2, moe_router_topk_scaling_factor=1.5,
                      moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True)),
}


def packed(*parts):
    """q, k and v as [group: q..., k, v]."""
    rest = parts[0].shape[1:]
    grouped = [p.view(GROUPS, -1, p.shape[0] // (HEADS if i == 0 else GROUPS), *rest)
               for i, p in enumerate(parts)]
    return torch.cat(grouped, 1).reshape(-1, *rest)


def gated(gate_up):
    """[..., 2 F, H] as [..., 2, F, H]."""
    return gate_up.view(*gate_up.shape[:-2], 2, -1, gate_up.shape[-1])


def mlp_names(of, p):
    if p + "gate_up_proj.weight" in of:
        fc1 = gated(of[p + "gate_up_proj.weight"])
    else:
        fc1 = torch.stack([of[p + "gate_proj.weight"], of[p + "up_proj.weight"]])
    return {"linear_fc1.weight": fc1, "linear_fc2.weight": of[p + "down_proj.weight"]}


def moe_names(of, p):
    out = {"router.weight": of[p + "gate.weight"],
           "experts.linear_fc1.weight": gated(of[p + "experts.gate_up_proj"]),
           "experts.linear_fc2.weight": of[p + "experts.down_proj"]}
    for shared in "shared_expert", "shared_experts":
        if any(name.startswith(p + shared + ".") for name in of):
            names = mlp_names(of, p + shared + ".")
            out |= {"shared_experts." + name: value for name, value in names.items()}
    if p + "shared_expert_gate.weight" in of:
        out["shared_experts.gate.weight"] = of[p + "shared_expert_gate.weight"]
    for bias in "gate.e_score_correction_bias", "e_score_correction_bias":
        if p + bias in of:
            out["router.expert_bias"] = of[p + bias]
    return out


def attention_names(of, p):
    out = {}
    for kind in "weight", "bias":
        if p + "q_proj." + kind in of:
            out["linear_qkv." + kind] = packed(*(of[f"{p}{n}_proj.{kind}"] for n in "qkv"))
        if p + "o_proj." + kind in of:
            out["linear_proj." + kind] = of[p + "o_proj." + kind]
    for n in "qk":
        if p + n + "_norm.weight" in of:
            out[n + "_layernorm.weight"] = of[p + n + "_norm.weight"]
    return out


def weft_names(of):
    """Tensors by transformers' names, by Weft's."""
    out = {"embedding.word_embeddings.weight": of["model.embed_tokens.weight"],
           "decoder.final_layernorm.weight": of["model.norm.weight"],
           "output_layer.weight": of["lm_head.weight"]}
    for i in range(LAYERS):
        p, to = f"model.layers.{i}.", f"decoder.layers.{i}."
        out[to + "input_layernorm.weight"] = of[p + "input_layernorm.weight"]
        out[to + "pre_mlp_layernorm.weight"] = of[p + "post_attention_layernorm.weight"]
        is_moe = p + "mlp.gate.weight" in of
        parts = {"self_attention.": attention_names(of, p + "self_attn."),
                 "mlp.": (moe_names if is_moe else mlp_names)(of, p + "mlp.")}
        for part, names in parts.items():
            out |= {to + part + name: value for name, value in names.items()}
    return out


def randomise(model, generator):
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if name.endswith("inv_freq"):
                continue
            around = 1.0 if "norm" in name else 0.0
            p.copy_((torch.randn(p.shape, generator=generator) * 0.2 + around).float())


def watch_loads(model):
    """What moves an expert bias in place of a gradient: the experts' loads over a balanced one."""
    loads = {}

    def keep(name, experts):
        def of(module, inputs, outputs):
            index = outputs[2]
            count = torch.bincount(index.flatten(), minlength=experts)
            loads[name + ".e_score_correction_bias"] = count - index.numel() / experts
        return of

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(keep(name, module.weight.shape[0]))
    return loads


def write(folder, seed, name, config, kind, theirs, ours):
    settings = {key: value for key, value in (SHAPE | theirs).items() if value is not None}
    of_model = config(**settings)
    of_model.pad_token_id = None  # its embedding would have no gradient
    of_model._experts_implementation = "eager"  # the others have no fp64
    model = kind(of_model).double()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    shape = (SEQ, make_golden.BATCH)
    tokens = torch.randint(VOCAB, shape, generator=generator)
    labels = torch.randint(VOCAB, shape, generator=generator)
    loads = watch_loads(model)
    logits = model(input_ids=tokens.T).logits.transpose(0, 1)
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))
    loss.backward()
    of = dict(model.named_parameters())
    tensors = {"tokens": tokens, "labels": labels, "loss": loss.view(1), "aux": torch.zeros(1)}
    buffers = {key: value for key, value in model.named_buffers() if "bias" in key}
    weights = weft_names(of | buffers)
    gradients = weft_names({key: w.grad for key, w in of.items()} | loads)
    for key, w in weights.items():
        tensors["weight/" + key] = w
        if key in gradients:
            tensors["grad/" + key] = gradients[key]
    make_golden.write(f"{folder}/{name}.golden", BASE | ours, tensors)
    print(name, float(loss), len(weights), "tensors")


def main():
    for name, row in FAMILIES.items():
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            write(sys.argv[1], zlib.crc32(name.encode()), name, *row)


if __name__ == "__main__":
    main()
