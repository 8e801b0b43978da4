#!/usr/bin/env python3
"""Writes what tests/launcher/test_tokenizer_json.c compares with: small tokenizers of the very parts
that families of models have in their tokenizer.json, and what Hugging Face's library makes of some
thousand lines of many scripts.

    python3 make_tokenizers.py OUT_DIR      (PyPI: tokenizers 0.23.3)

lines.json: an array of the lines. NAME.json: a tokenizer, trained on some of them. NAME.txt: a line
for each line, the FNV-1a hash of its ids (64 bits; ids as 4 bytes, the lowest first) and that of the
text they are decoded to without special tokens, "-" where that has bytes that are no UTF-8.
"""
import json
import os
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

NUM_LINES = 2400
SIZES = [1100, 1400] # tokens of bytes, of characters
MARK = "\u2581"

SENTENCES = """The weaver threw the shuttle, and the loom's frame didn't even creak.
I've seen it: we're done, they'll come, you'd know, it's fine, I'm sure, can't wait.
IT'S LOUD HERE AND WE'RE SHOUTING; I'VE HAD ENOUGH, THEY'LL SAY, DON'T YOU THINK?
Der Weber wei\u00df, da\u00df \u00dcbung die gro\u00dfe Stra\u00dfe sch\u00f6ner macht.
Le tisserand pr\u00e9f\u00e8re l'\u00e9t\u00e9, o\u00f9 qu'il aille, \u00e0 la for\u00eat d'h\u00eatres.
El tejedor ma\u00f1ana ir\u00e1 al r\u00edo; \u00bfqui\u00e9n vendr\u00e1? \u00a1Nadie todav\u00eda!
O tecel\u00e3o n\u00e3o p\u00f4de, ent\u00e3o ficou \u00e0 espera da manh\u00e3 seguinte.
Tkacz za\u017c\u00f3\u0142ci\u0142 g\u0119\u015bl\u0105 ja\u017a\u0144 i poszed\u0142 spa\u0107.
Tk\u00e1\u010d p\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148 \u00fap\u011bl.
Dokumac\u0131 i\u015fini g\u00fc\u011f\u00fcn de\u011fil, \u0130stanbul'da \u00f6\u011frendi.
Ng\u01b0\u1eddi th\u1ee3 d\u1ec7t \u0111ang ng\u1ed3i b\u00ean khung c\u1eedi c\u0169.
\u0422\u043a\u0430\u0447 \u0441\u0438\u0434\u0438\u0442 \u0443 \u043e\u043a\u043d\u0430 \u0438 \u0442\u043a\u0451\u0442 \u043f\u043e\u043b\u043e\u0442\u043d\u043e, \u0430 \u0441\u043d\u0435\u0433 \u0438\u0434\u0451\u0442.
\u0422\u043a\u0430\u043b\u044f \u0441\u043f\u0456\u0432\u0430\u0454 \u0457\u0445\u043d\u044e \u043f\u0456\u0441\u043d\u044e \u0431\u0456\u043b\u044f \u0491\u0430\u043d\u043a\u0443.
\u039f \u03c5\u03c6\u03b1\u03bd\u03c4\u03ae\u03c2 \u03ba\u03ac\u03b8\u03b5\u03c4\u03b1\u03b9 \u03c3\u03c4\u03bf \u03c0\u03b1\u03c1\u03ac\u03b8\u03c5\u03c1\u03bf \u03ba\u03b1\u03b9 \u03c5\u03c6\u03b1\u03af\u03bd\u03b5\u03b9.
\u05d4\u05d0\u05d5\u05e8\u05d2 \u05d9\u05d5\u05e9\u05d1 \u05dc\u05d9\u05d3 \u05d4\u05d7\u05dc\u05d5\u05df \u05d5\u05d0\u05d5\u05e8\u05d2, \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd.
\u064a\u062c\u0644\u0633 \u0627\u0644\u0646\u0633\u0627\u062c \u0628\u062c\u0627\u0646\u0628 \u0627\u0644\u0646\u0627\u0641\u0630\u0629\u060c \u0648\u064e\u064a\u064e\u0646\u0652\u0633\u064f\u062c\u064f \u0661\u0662\u0663\u0664.
\u0628\u0627\u0641\u0646\u062f\u0647 \u06a9\u0646\u0627\u0631 \u067e\u0646\u062c\u0631\u0647 \u0645\u06cc\u200c\u0646\u0634\u06cc\u0646\u062f \u06f1\u06f2\u06f3.
\u092c\u0941\u0928\u0915\u0930 \u0916\u093f\u0921\u093c\u0915\u0940 \u0915\u0947 \u092a\u093e\u0938 \u092c\u0948\u0920\u093e \u0939\u0948\u0964 \u0967\u0968\u0969
\u09a4\u09be\u0981\u09a4\u09bf \u099c\u09be\u09a8\u09be\u09b2\u09be\u09b0 \u09aa\u09be\u09b6\u09c7 \u09ac\u09b8\u09c7 \u0986\u099b\u09c7\u0964
\u0ba8\u0bc6\u0b9a\u0bb5\u0bbe\u0bb3\u0bb0\u0bcd \u0b9c\u0ba9\u0bcd\u0ba9\u0bb2\u0bcd \u0b85\u0bb0\u0bc1\u0b95\u0bbf\u0bb2\u0bcd.
\u0e0a\u0e48\u0e32\u0e07\u0e17\u0e2d\u0e1c\u0e49\u0e32\u0e19\u0e31\u0e48\u0e07\u0e02\u0e49\u0e32\u0e07\u0e2b\u0e19\u0e49\u0e32\u0e15\u0e48\u0e32\u0e07 \u0e51\u0e52\u0e53
\u10db\u10e5\u10e1\u10dd\u10d5\u10d4\u10da\u10d8 \u10d6\u10d8\u10e1 \u10e4\u10d0\u10dc\u10ef\u10d0\u10e0\u10d0\u10e1\u10d7\u10d0\u10dc.
\u0546\u057d\u057f\u0578\u0582\u0574 \u0567 \u057b\u0578\u0582\u056c\u0570\u0561\u056f\u0568\u0589
\u7ec7\u5de5\u5750\u5728\u7a97\u8fb9\uff0c\u7ec7\u7740\u5e03\uff1b2024\u5e745\u67087\u65e5\u3002
\u7e54\u5de5\u306f\u7a93\u306e\u305d\u3070\u306b\u5ea7\u3063\u3066\u3001\u30bf\u30d4\u30b9\u30c8\u30ea\u30fc\u3092\u7e54\u308b\u3002
\uc9c1\uacf5\uc740 \ucc3d\uac00\uc5d0 \uc549\uc544 \ubca0\ub97c \uc9e0\ub2e4. \u1112\u1161\u11ab
\u12e8\u1238\u121b\u1294 \u1260\u1218\u1235\u12ae\u1275 \u12a0\u1320\u1308\u1265 \u1270\u1240\u121d\u1327\u120d\u1362
def weave(threads, *, width=80):\n    return [t**2 for t in threads if t != None]  # \u00b2
for (int i = 0; i < n; i++) {\n\tsum += a[i] * b[i];\r\n\t\tif (sum >= 1e-7f) break;\n}
{"name": "loom", "tags": ["a-b", "c_d"], "n": 1234567, "ok": true, "x": -0.5e+10}
SELECT * FROM cloth WHERE price>=19.99 AND colour<>'red'; -- don't
https://example.org/weft/?q=a%20b&c=d#top <a href="x">y</a> user@example.com
$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$ \u2211\u222b\u221a\u2248\u2260\u2264 \u20ac5 \u00a33 \u00a57""".split("\n")

PIECES = [
    "'s", "'S", "'t", "'RE", "'Ve", "'m", "'lL", "'D", "\u2019s", "'\u017f", "'\u017fs", "'x", "''", "s'", "l'l",
    "\u212a", "\u017f", "\u00df", "\ufb01", "\u0130", "\u0131", "\u01c5", "\u02b0", "\u00aa", "\u2160", "\u00bd", "\u2075", "\u0967", "\u0663",
    " ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ", " \r\n ",
    "\u00a0", "\u3000", "\u2003", "\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u180e", "\u200b", "\u200d", "\ufeff",
    "\u1680", "\u202f", "\u205f", "\x01", "\x1f", "\x7f", "\u00ad", "\ufffd", MARK, MARK * 2, "a" + MARK, MARK + "b",
    "1", "12", "123", "1234", "12345678901", "3.14", "1,000", "0x1F", "\u0661\u0662\u0663\u0664\u0665", "\u4e00\u4e8c\u4e09", "\uff11\uff12",
    ".", "...", "!?", "--", "---", "==", "//", "/", "\\", "#", "##", "(", ")", "[[", "]]", "{}", "<", ">", "<>", "_", "__", "~", "^", "`", "``",
    "\u2026", "\u2014", "\u300c", "\u300d", "\u3001", "\u060c", "\u0964", "\u00bf", "\u20ac", "\u00a9", "\u2192", "\u2603",
    "\U0001f642", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "1\ufe0f\u20e3",
    "e\u0301", "\u00e9", "o\u0308\u0323", "\u1e69", "s\u0323\u0307", "\u0301", "\u212b", "\u1100\u1161\u11a8", "\uac01", "\u0915\u093c", "\u0958", "\u2126",
    "a", "A", "aB", "AB", "ABc", "Abc", "abC", "iPhone", "HTTPServer", "snake_case", "camelCase", "don't", "DON'T", "I'll", "\u4e2da", "a\u4e2d",
    "<|endoftext|>", "<|im_start|>", "<s>", "</s>", "<bos>", "<unk>", "<tool_call>", "<|begin_of_text|>", "<|x", "|>",
    "<mask>", " <mask> ", "[A]", "[AB]", "[ABC]", "x[A]", "[A]y", "\u00e9[A]", " [L]", "  [L]  ", "[R]  ", "[N]", "\uff3bN\uff3d",
    "<0x41>", "<0x0A>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
]


def random_character(rng):
    while True:
        c = chr(rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x3000, 0xFFFD)]))
        if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co"):
            return c


def make_lines():
    """From a fixed seed. The first are sentences; the others mix words, pieces and characters."""
    rng = random.Random(7)
    words = [w for s in SENTENCES for w in s.split(" ")]
    lines = SENTENCES + PIECES + [""]
    while len(lines) < NUM_LINES:
        kind = rng.randrange(5)
        if kind == 0:
            line = " ".join(rng.choice(words) for _ in range(rng.randrange(1, 12)))
        elif kind == 1:
            line = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
        elif kind == 2:
            line = "".join(rng.choice([rng.choice(words), rng.choice(PIECES), " "])
                           for _ in range(rng.randrange(1, 14)))
        elif kind == 3:
            line = "".join(random_character(rng) + rng.choice(["", "", " ", "'s", "\u0301"])
                           for _ in range(rng.randrange(1, 8)))
        else:
            line = rng.choice(SENTENCES)
            at = rng.randrange(len(line) + 1)
            line = line[:at] + rng.choice(PIECES) + line[at:at + rng.randrange(20)]
        lines.append(line)
    return lines


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

P = pre_tokenizers


def split(pattern, behavior="isolated", invert=False):
    return P.Split(pattern if len(pattern) == 1 else Regex(pattern), behavior, invert)


def byte_level(use_regex=False, add_prefix_space=False):
    return P.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def special(*texts):
    return [AddedToken(t, special=True, normalized=False) for t in texts]


def template(token, id):
    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, id)])


def train(tokenizer, lines, tokens, added=(), alphabet=None):
    limit = {"limit_alphabet": 500} if alphabet is not None else {}
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES[alphabet is not None], show_progress=False, special_tokens=tokens,
        initial_alphabet=P.ByteLevel.alphabet() if alphabet is None else alphabet, **limit)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


def of_bytes(lines, words, tokens, added=(), normalizer=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    return train(tokenizer, lines, tokens, added)


def of_characters(lines, names, added=(), normalizer=None, words=None, after=None, fallback=True):
    """As SentencePiece's models are converted: bytes are tokens of the vocabulary alone. `words`
    trains; `after` is what the file has."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=fallback, fuse_unk=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if words:
        tokenizer.pre_tokenizer = words
    fallbacks = [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    train(tokenizer, lines, special(*names) + fallbacks, [], [])
    text = json.loads(tokenizer.to_str())
    text["added_tokens"] = [t for t in text["added_tokens"] if t["content"] not in fallbacks]
    tokenizer = Tokenizer.from_str(json.dumps(text))
    if after:
        tokenizer.pre_tokenizer = after
    elif words:
        text = json.loads(tokenizer.to_str())
        text["pre_tokenizer"] = None
        tokenizer = Tokenizer.from_str(json.dumps(text))
    tokenizer.add_tokens(list(added))
    return tokenizer


def spaces(strip):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def make_tokenizers(lines):
    """By name: the tokenizer, and whether merges are written "a b"."""
    made = {}
    t = of_bytes(lines, byte_level(True), [AddedToken("<|endoftext|>", special=True, normalized=True)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    made["gpt2"] = t, True
    t = of_bytes(lines, P.Sequence([split(LLAMA3), byte_level()]), [],
                 special("<|begin_of_text|>", "<|end_of_text|>"), ignore_merges=True)
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                            template("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])
    made["llama3"] = t, False
    t = of_bytes(lines, P.Sequence([split(QWEN2), byte_level()]), [],
                 special("<|endoftext|>", "<|im_start|>", "<|im_end|>") +
                 [AddedToken("<tool_call>", normalized=False)], normalizers.NFC())
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    made["qwen2"] = t, True
    t = of_bytes(lines, P.Sequence([split(O200K), byte_level()]), [],
                 special("<|startoftext|>", "<|endoftext|>", "<|return|>"))
    made["o200k"] = t, False
    t = of_bytes(lines, P.Sequence([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                                    split(DEEPSEEK), byte_level()]),
                 special("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
                 [], normalizers.Sequence([]))
    t.post_processor = template("<\uff5cbegin\u2581of\u2581sentence\uff5c>", 0)
    made["deepseek"] = t, True
    t = of_characters(lines, ["<unk>", "<s>", "</s>"], words=P.Split(MARK, "merged_with_next"),
                      normalizer=normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]))
    t.post_processor, t.decoder = template("<s>", 1), spaces(True)
    made["llama2"] = t, True
    t = of_characters(lines, ["<pad>", "<eos>", "<bos>", "<unk>"],
                      [AddedToken(x, normalized=False) for x in ("\n\n", "\n\n\n", MARK * 2, MARK * 4, "<table>")],
                      normalizers.Replace(" ", MARK), after=P.Split(" ", "merged_with_previous"))
    t.post_processor, t.decoder = template("<bos>", 2), spaces(False)
    made["gemma"] = t, False
    t = of_characters(lines, ["<unk>", "<s>", "</s>"], words=P.Metaspace(MARK, "first", True),
                      after=P.Metaspace(MARK, "first", False))
    t.post_processor, t.decoder = template("<s>", 1), spaces(True)
    made["mistral"] = t, False
    # Parts that no family above has, or not in that way.
    odd = [AddedToken("[A]", single_word=True, normalized=False), AddedToken("[AB]", normalized=False),
           AddedToken("[ABC]", normalized=True), AddedToken("[L]", lstrip=True, normalized=False),
           AddedToken("[R]", rstrip=True, normalized=False), AddedToken("[N]", normalized=True),
           AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True)]
    t = of_bytes(lines, P.Sequence([split("-", "removed"), split("=+", "merged_with_previous"),
                                    P.Digits(True), split(r"[#/]", "merged_with_next"),
                                    split(r"\p{Han}", "contiguous"), split(r"\S+", "removed", True),
                                    byte_level()]),
                 special("<|endoftext|>"), odd,
                 normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\.{2,}"), "\u2026")]))
    made["parts1"] = t, False
    t = of_bytes(lines, byte_level(True, True), special("<|endoftext|>"), odd, normalizers.NFD())
    t.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    made["parts2"] = t, True
    words = P.Sequence([P.Metaspace(MARK, "always", True), P.Digits(False)])
    t = of_characters(lines[:60], ["<unk>", "<s>", "</s>"], odd, normalizers.NFKD(), words, words, False)
    t.decoder = decoders.Metaspace(MARK, "always", True)
    made["parts3"] = t, False
    return made


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def main(folder):
    os.makedirs(folder, exist_ok=True)
    lines = make_lines()
    with open(f"{folder}/lines.json", "w", encoding="utf-8") as out:
        json.dump(lines, out, ensure_ascii=False, indent=0)
    for name, (tokenizer, in_one) in make_tokenizers(lines).items():
        text = json.loads(tokenizer.to_str())
        if in_one:
            text["model"]["merges"] = [" ".join(pair) for pair in text["model"]["merges"]]
        text = json.dumps(text, ensure_ascii=False, indent=0, separators=(",", ":"))
        with open(f"{folder}/{name}.json", "w", encoding="utf-8") as out:
            out.write(text)
        tokenizer = Tokenizer.from_str(text)
        with open(f"{folder}/{name}.txt", "w", encoding="utf-8") as out:
            for line in lines:
                ids = tokenizer.encode(line).ids
                back = tokenizer.decode(ids)
                known = "\ufffd" not in back
                out.write(fnv(b"".join(i.to_bytes(4, "little") for i in ids)) + " " +
                          (fnv(back.encode()) if known else "-") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
