"""Models that Weft trained from nothing, exported, have transformers' losses.

    read_exports.py WEFT          exit code 77: this Python has no transformers

The folder's tokenizer makes the tokens that the model was trained on. Each family of examples/families is trained for a few steps with little more than its name, and again with other
rotary positions; `weft eval` and transformers, which opens the exported folder strictly, then give the mean loss of
the same tokens.
"""
import array
import json
import os
import subprocess
import sys
import tempfile

try:
    import tokenizers
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SEQ, BATCH, ITERS = 16, 2, 4
TEXT = "The weaver's 12 threads: weft, warp, wéft; " + "the weaver threw the weft through the warp, and again;\n" * 60
SIZES = {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "seq_length": SEQ, "max_position_embeddings": 64,
         "ffn_hidden_size": 48, "init_method_std": 0.2}
ROPE = {"rotary_base": 123.0}
YARN = {**ROPE, "rotary_scaling_type": "yarn", "rotary_scaling_factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {**ROPE, "rotary_scaling_type": "llama3", "rotary_scaling_factor": 4.0, "original_max_position_embeddings": 8}
GROUPED = {"num_query_groups": 2}
EXPERTS = {"num_experts": 4, "moe_router_topk": 2}
NARROW = {**EXPERTS, "moe_ffn_hidden_size": 24}
SIGMOID = {**NARROW, "moe_shared_expert_intermediate_size": 24, "moe_layer_freq": [0, 1, 1, 1]}
LATENT = {**SIGMOID, "kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}
WINDOW = {"window_size": 5, "window_attn_skip_freq": [1, 1, 1, 0]}
MODELS = [("gpt2", {}),
          ("llama", GROUPED), ("llama", {**GROUPED, **ROPE}), ("llama", {**GROUPED, **LLAMA3}),
          ("mistral", GROUPED), ("mistral", {**GROUPED, **ROPE, "window_size": 5}),
          ("smollm3", {**GROUPED, **ROPE, "no_rope_freq": [0, 0, 0, 1]}),
          ("qwen2", {**GROUPED, **ROPE}), ("qwen3", {**GROUPED, "kv_channels": 8}),
          ("qwen3", {**GROUPED, **YARN, "kv_channels": 8}), ("qwen3_moe", {**GROUPED, **NARROW, **ROPE}),
          ("mixtral", {**GROUPED, **EXPERTS}), ("mixtral", {**GROUPED, **EXPERTS, **ROPE}),
          ("olmo2", ROPE), ("olmo3", WINDOW), ("olmo3", {**WINDOW, **ROPE}), ("olmo3", {**WINDOW, **YARN, "rotary_base_local": 123.0}),
          ("gemma2", {**WINDOW, **ROPE}), ("gemma3_text", {**WINDOW, **ROPE}),
          ("gemma3_text", {**WINDOW, **ROPE, "rotary_base_local": 77.0}),
          ("gpt_oss", {**EXPERTS, "window_size": 5, "window_attn_skip_freq": [1, 0, 1, 0]}),
          ("gpt_oss", {**EXPERTS, **ROPE, "activation_func_clamp_value": 0.5}), ("gpt_oss", {**EXPERTS, **YARN}),
          ("glm4_moe", {**GROUPED, **SIGMOID}), ("glm4_moe", {**GROUPED, **SIGMOID, **ROPE}),
          ("deepseek_v3", LATENT), ("deepseek_v3", {**LATENT, **ROPE, "q_lora_rank": 12}),
          ("deepseek_v3", {**LATENT, **YARN}), ("minimax_m2", {**GROUPED, **EXPERTS, **ROPE})]


def weft(*words):
    done = subprocess.run([WEFT, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def write(path, text):
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def train(name, family, model):
    """Exports to NAME.out; the loss of the first BATCH * ITERS samples."""
    config = {"model": {**SIZES, "family": family, **model},
              "train": {"micro_batch_size": BATCH, "global_batch_size": BATCH, "train_iters": 2, "lr": 1e-2,
                        "eval_iters": ITERS},
              "data": {"data_path": "corpus", "split": "1,1"}, "log": {"trace_step": 0}}
    write(f"{name}.json", json.dumps(config))
    weft("train", f"{name}.json", "--out", name)
    weft("export", name, "--out", f"{name}.out")
    return json.loads(weft("eval", name, "--data", "corpus", "--split", "train", "--json"))


def loss_of(name, tokens):
    model, found = transformers.AutoModelForCausalLM.from_pretrained(f"{name}.out", dtype=torch.float32,
                                                                     output_loading_info=True,
                                                                     attn_implementation="eager")
    wrong = {what: names for what, names in found.items() if names}
    if wrong:
        raise RuntimeError(f"{name}: {wrong}")
    model.eval()
    rows = torch.tensor([tokens[i * SEQ:i * SEQ + SEQ + 1] for i in range(BATCH * ITERS)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def make_tokenizer(path):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    made.save(path)


def makes_the_tokens(name, family, tokens):
    # Of qwen2 AutoTokenizer takes the family's own class, whatever the folder says.
    reader = transformers.PreTrainedTokenizerFast if family == "qwen2" else transformers.AutoTokenizer
    made = reader.from_pretrained(f"{name}.out")
    return made(TEXT, add_special_tokens=False)["input_ids"] == list(tokens)


def main():
    write("text", TEXT)
    make_tokenizer("tokenizer.json")
    weft("prepare", "text", "--out", "corpus", "--tokenizer", "tokenizer.json")
    tokens = array.array("H")
    with open("corpus.bin", "rb") as file:
        tokens.frombytes(file.read())
    failed = 0
    for i, (family, model) in enumerate(MODELS):
        name = f"{i}-{family}"
        try:
            got = train(name, family, model)
            mine, theirs = got["loss"], loss_of(name, tokens)
            good = abs(mine - theirs) <= 1e-5 * mine and makes_the_tokens(name, family, tokens)
            print(f"{name}: {mine:.7f}, transformers {theirs:.7f}{'' if good else '  DIFFERS, or its tokens'}")
        except Exception as error:  # the next family is looked at as well
            good = False
            print(f"{name}: {error}")
        failed += not good
    return failed > 0


WEFT = os.path.abspath(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    sys.exit(main())
