#!/usr/bin/env python3
"""Writes the small models that tests/launcher/models.c imports, and what transformers computes with
them: for each family random weights, config.json and safetensors as transformers writes them, and
NAME.golden beside them with the loss, logits and every gradient of fixed tokens, in fp32 and
computed in fp64.

    python3 make_models.py OUT_DIR [NAME...]      (pip: transformers, torch, safetensors)
    python3 make_models.py --open FOLDER...       opens folders strictly: no name missing or left over

NAME.golden/ has tensors: tokens, loss [S, B] a token, logits, grad/<name of the file>.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

BATCH, SEQ = 2, 12
BASE = dict(vocab_size=53, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
            initializer_range=0.2, rms_norm_eps=1e-6)
DEEPSEEK = dict(BASE, model_type="deepseek_v3", num_key_value_heads=4, num_hidden_layers=3,
                first_k_dense_replace=1, q_lora_rank=20, kv_lora_rank=12, qk_nope_head_dim=6,
                qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=8, n_shared_experts=1,
                num_experts_per_tok=4, moe_intermediate_size=16, n_group=4, topk_group=2,
                routed_scaling_factor=2.5, num_nextn_predict_layers=0)
MODELS = {
    "gpt2": (dict(model_type="gpt2", vocab_size=53, n_embd=24, n_layer=2, n_head=4, n_positions=16,
                  n_inner=40, initializer_range=0.2), {}),
    "llama": (dict(BASE, model_type="llama"), {}),
    "llama_tied": (dict(BASE, model_type="llama", tie_word_embeddings=True, head_dim=8,
                        rope_parameters={"rope_type": "default", "rope_theta": 500.0}), {}),
    "llama_bf16": (dict(BASE, model_type="llama", dtype="bfloat16"), {"max_shard_size": "6KB"}),
    "qwen2": (dict(BASE, model_type="qwen2"), {}),
    "llama3": (dict(BASE, model_type="llama", rope_parameters={
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 2.0, "original_max_position_embeddings": 8}), {}),
    "qwen3": (dict(BASE, model_type="qwen3", head_dim=8, tie_word_embeddings=True, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
        "original_max_position_embeddings": 8}), {}),
    "qwen3_moe": (dict(BASE, model_type="qwen3_moe", head_dim=8, num_experts=4,
                       num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
                       mlp_only_layers=[]), {}),
    "qwen3_moe_unnormed": (dict(BASE, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2,
                                moe_intermediate_size=16, norm_topk_prob=False,
                                mlp_only_layers=[]), {}),
    "mixtral": (dict(BASE, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2,
                     rms_norm_eps=1e-5), {}),
    "mixtral_fused": (dict(BASE, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
                      {"save_original_format": False}),
    "mistral": (dict(BASE, model_type="mistral", sliding_window=4), {}),
    "smollm3": (dict(BASE, model_type="smollm3", num_hidden_layers=3, no_rope_layers=[1, 0, 0],
                     pad_token_id=None, bos_token_id=None, eos_token_id=None, rope_parameters={
                         "rope_type": "default", "rope_theta": 100.0}), {}),
    "phi3": (dict(BASE, model_type="phi3", pad_token_id=None, rope_parameters={
        "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}), {}),
    "olmo2": (dict(BASE, model_type="olmo2", pad_token_id=None, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0}), {}),
    "olmo3": (dict(BASE, model_type="olmo3", num_hidden_layers=4, sliding_window=3,
                   pad_token_id=None, rope_parameters={
                       "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                       "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                          "original_max_position_embeddings": 8}}), {}),
    "gemma2": (dict(BASE, model_type="gemma2", head_dim=8, pad_token_id=None, query_pre_attn_scalar=16,
                    sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                    tie_word_embeddings=True), {}),
    "gemma3": (dict(BASE, model_type="gemma3_text", head_dim=8, query_pre_attn_scalar=16,
                    num_hidden_layers=3, sliding_window=4, pad_token_id=None,
                    layer_types=["sliding_attention"] * 2 + ["full_attention"],
                    tie_word_embeddings=True, rope_parameters={
                        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0,
                                           "factor": 8.0}}), {}),
    "gpt_oss": (dict(BASE, model_type="gpt_oss", head_dim=8, intermediate_size=16, sliding_window=4,
                     num_local_experts=4, num_experts_per_tok=2, rms_norm_eps=1e-5,
                     swiglu_limit=0.5, rope_parameters={
                         "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                         "original_max_position_embeddings": 8, "truncate": False,
                         "beta_fast": 32.0, "beta_slow": 1.0}), {}),
    "gpt_oss_mxfp4": (dict(BASE, model_type="gpt_oss", hidden_size=64, head_dim=8,
                           intermediate_size=32, sliding_window=4, num_local_experts=3,
                           num_experts_per_tok=2, rms_norm_eps=1e-5, swiglu_limit=0.5,
                           dtype="bfloat16", rope_parameters={
                               "rope_type": "default", "rope_theta": 100.0}), {"mxfp4": True}),
    "glm4_moe": (dict(BASE, model_type="glm4_moe", head_dim=8, attention_bias=True,
                      use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=2, n_group=1,
                      topk_group=1, n_shared_experts=1, moe_intermediate_size=12,
                      routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1,
                      num_nextn_predict_layers=0,
                      rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                       "partial_rotary_factor": 0.5}), {}),
    "minimax_m2": (dict(BASE, model_type="minimax_m2", head_dim=8, intermediate_size=16,
                        num_local_experts=4, num_experts_per_tok=2,
                        rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                         "partial_rotary_factor": 0.5}), {}),
    "deepseek_v3": (dict(DEEPSEEK, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 8}), {}),
    "moonlight": (dict(DEEPSEEK, q_lora_rank=None, n_group=1, topk_group=1, n_shared_experts=2,
                       num_experts_per_tok=3, rms_norm_eps=1e-5, rope_interleave=False), {}),
}


def randomize(model, generator):
    """Biases and norms too, so that no name is right by chance."""
    for name, p in model.named_parameters():
        norm = p.dim() == 1 and "norm" in name or ".ln_" in name and name.endswith("weight")
        with torch.no_grad():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.2 + (1.0 if norm else 0.0))
    for name, p in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            p.copy_(torch.randn(p.shape, generator=generator) * 0.2)


def write_mxfp4(folder, generator):
    """The experts of a saved GPT-OSS as OpenAI publishes them: random pairs of FP4 and random scales,
    some of them far apart, [experts, rows, blocks of 32, 16 bytes]. Gives what transformers reads."""
    path, config = (os.path.join(folder, name) for name in ("model.safetensors", "config.json"))
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, rows = tensors.pop(name).shape
        shape = (experts, rows, inputs // 32)
        tensors[name + "_blocks"] = torch.randint(256, (*shape, 16), generator=generator,
                                                  dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(121, 126, shape, generator=generator,
                                                  dtype=torch.uint8)
    save_file(tensors, path, metadata={"format": "pt"})
    with open(config) as file:
        text = json.load(file)
    text["quantization_config"] = {"modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"}
    with open(config, "w") as file:
        file.write(json.dumps(text, indent=2, sort_keys=True) + "\n")
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16,
        attn_implementation="eager", experts_implementation="eager").eval()


def loads_of(model):
    from make_family_golden import watch_loads
    torch.set_default_dtype(torch.float32)
    return watch_loads(model)


def golden(model, path):
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(model.config.vocab_size, (BATCH, SEQ + 1), generator=generator)
    model = model.double()
    loads = loads_of(model)
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1), reduction="none")
    loss.mean().backward()
    out = {"tokens": tokens.float(), "loss": loss.detach(), "logits": logits.detach()}
    for name, p in model.named_parameters():
        out["grad/" + name] = p.grad
    for name, load in loads.items():
        out["grad/" + name] = load
    os.makedirs(path, exist_ok=True)
    save_file({k: v.float().contiguous() for k, v in out.items()},
              os.path.join(path, "model.safetensors"))
    return loss.mean().item()


def make(folder, name, seed):
    config, how = MODELS[name]
    config, how = dict(config), dict(how)
    mxfp4 = how.pop("mxfp4", False)
    dtype = config.pop("dtype", "float32")
    kind = config.pop("model_type")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config),
                                             attn_implementation="eager",
                                             experts_implementation="eager",
                                             dtype=getattr(torch, dtype)).eval()
    randomize(model, torch.Generator().manual_seed(100 + seed))
    model.tie_weights()
    model.save_pretrained(os.path.join(folder, name), **how)
    for other in os.listdir(os.path.join(folder, name)):
        if other == "generation_config.json":
            os.remove(os.path.join(folder, name, other))
    if mxfp4:
        model = write_mxfp4(os.path.join(folder, name), torch.Generator().manual_seed(seed))
    print(name, golden(model, os.path.join(folder, name + ".golden")))


def open_strictly(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    print(folder, type(model).__name__, model.dtype, json.dumps(
        {k: sorted(map(str, v)) for k, v in info.items() if v}))
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def main():
    if sys.argv[1] == "--open":
        for folder in sys.argv[2:]:
            open_strictly(folder)
        return
    for name in sys.argv[2:] or MODELS:
        make(sys.argv[1], name, sum(map(ord, name)))


if __name__ == "__main__":
    main()
