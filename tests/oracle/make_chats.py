#!/usr/bin/env python3
"""Chats as Hugging Face's transformers writes them, for tests/launcher/chats.c.

python3 make_chats.py FOLDER writes FOLDER/{chatml,llama3}.json, two tokenizers; FOLDER/chats.jsonl,
chats as JSON lines; and FOLDER/{chatml,llama3}.txt: of each chat a line of ids and one of what
assistants say, by the templates of the two families with `generation` around that. transformers
5.24."""
import json, os, random, sys

from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
CHATML = ("{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
          "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
          "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
          "{% endif %}{% endfor %}")
LLAMA3 = ("{% for m in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}"
          "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
          "{% if m['role'] == 'assistant' %}{% generation %}{{ (m['content'] | trim) + '<|eot_id|>' }}"
          "{% endgeneration %}{% else %}{{ (m['content'] | trim) + '<|eot_id|>' }}{% endif %}"
          "{% endfor %}")
WORDS = ["the", " a", "\n", "\n\n", "  ", "\t", " new", "newer", "12345", "é", "e\u0301", "世界", "!",
         "?!", "'s", " I'll", "\u00a0", "\u3000", "<", "|>", "im_end", "assistant", "\r\n", "😀", "Z"]


def chats(count):
    r = random.Random(7)
    for _ in range(count):
        text = lambda: "".join(r.choice(WORDS) for _ in range(r.randint(0, 12)))
        messages = [{"role": "system", "content": text()}] if r.random() < 0.5 else []
        for turn in range(r.randint(1, 3)):
            messages.append({"content": text(), "role": "user"})
            messages.append({"role": "assistant", "content": text(), "weight": 1})
        if r.random() < 0.2:
            messages.append({"role": "tool", "content": text()})
        yield messages


def tokenizer(name, more, folder, form):
    with open(f"{HERE}/golden/tokenizers/{name}.json") as file:
        made = json.load(file)
    for text in more:
        made["added_tokens"].append({"id": 1 + max(a["id"] for a in made["added_tokens"]),
                                     "content": text, "single_word": False, "lstrip": False,
                                     "rstrip": False, "normalized": False, "special": True})
    path = f"{folder}/{form}.json"
    with open(path, "w") as file:
        json.dump(made, file, ensure_ascii=False)
    return PreTrainedTokenizerFast(tokenizer_file=path, bos_token="<|begin_of_text|>")


def main():
    folder = sys.argv[1]
    lines = list(chats(200))
    with open(f"{folder}/chats.jsonl", "w") as file:
        for i, messages in enumerate(lines):
            file.write(json.dumps({"id": i, "messages": messages}, ensure_ascii=i % 2 == 0) + "\n")
    for form, template, t in (
            ("chatml", CHATML, tokenizer("qwen2", [], folder, "chatml")),
            ("llama3", LLAMA3, tokenizer("llama3", ["<|start_header_id|>", "<|end_header_id|>",
                                                    "<|eot_id|>"], folder, "llama3"))):
        with open(f"{folder}/{form}.txt", "w") as file:
            for messages in lines:
                out = t.apply_chat_template(messages, chat_template=template, tokenize=True,
                                            return_dict=True, return_assistant_tokens_mask=True)
                file.write(" ".join(map(str, out["input_ids"])) + "\n")
                file.write(" ".join(map(str, out["assistant_masks"])) + "\n")


main()
