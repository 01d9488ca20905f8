"""Writes three goldens of each family (README.md). The folder tiny/NAME/ has random weights, written by transformers. The
file tiny/NAME.gguf has the same weights, named and ordered as llama.cpp's converter does. The file tiny/NAME.bin has logits
in f32 with eager attention.

    make_families.py [NAME ...]     all families of families.py without a name

Weights are rounded to bf16, so that both formats hold the same numbers. Biases and norms are random, and Q and K are
scaled until attention is peaked."""

import copy
import json
import pathlib
import re
import shutil
import struct
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import make_tiny
from torch_models.logits_file import LogitsFile
from families import FAMILIES, VOCAB

HERE = pathlib.Path(__file__).parent
OUT = HERE / "tiny"
PROMPT, STEPS = 20, 32
# the second sequence is past window and original context already in its prompt
SECOND = 45
QUERIES_AND_KEYS = ("q_proj", "k_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "q_norm", "k_norm", "query_layernorm", "key_layernorm",
                     "q_layernorm", "k_layernorm")


# buffers that a file holds: they change the choice of experts
SELECTION_BIASES = ("expert_bias", "e_score_correction_bias")


def tokenizer():
    """Byte-level BPE whose ids are the rows of every model here."""
    tokens, merges = make_tiny.tokenizer(VOCAB)
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in make_tiny.SPECIALS])
    return t, tokens, merges


def bf16(x):
    return x.to(torch.bfloat16).to(torch.float32)


def random_weights(model, family, rng):
    """Overwrites all parameters. Norm weights spread over 0.4…1.6, biases deviate by 0.3."""
    for name, p in model.named_parameters():
        shape = tuple(p.shape)
        gain = family.peak if any(s in name for s in QUERIES_AND_KEYS) else 1.5
        if "norm" in name.lower() or "ln_" in name:
            center = 0.0 if name.endswith("bias") or family.plus_one else 1.0
            x = center + rng.uniform(-0.6, 0.6, shape)
            if gain == family.peak and not name.endswith("bias"):
                x = x * gain
        elif name.endswith("bias"):
            x = 0.3 * rng.standard_normal(shape)
        else:
            conv1d = isinstance(model, transformers.GPT2LMHeadModel) and ".h." in name
            columns = shape[0] if conv1d else shape[-1]
            gain = 2.5 if "embed" in name or "lm_head" in name or "wte" in name or "embed_out" in name else gain
            x = rng.standard_normal(shape) * gain / np.sqrt(columns) * rng.uniform(0.5, 1.5, (shape[0], *[1] * (len(shape) - 1)))
        p.data = bf16(torch.from_numpy(x.astype(np.float32)))
    family.edit(model, rng)
    model.tie_weights()


def text_config(config):
    return config.get_text_config()


def round_inputs(model):
    """Rounds what linears and experts read to bf16. Routers stay exact."""
    for module in model.modules():
        if type(module).__name__.endswith(("Linear", "Experts")):
            module.register_forward_pre_hook(lambda m, args: (bf16(args[0]), *args[1:]))
    return model


def change_by_rounding(model, seed):
    """How much rounded activations change the logits. A near tie between experts makes this large."""
    rounded, change = round_inputs(copy.deepcopy(model)), 0
    for _, ids, _ in sequences(seed, model.config.vocab_size):
        with torch.no_grad():
            a, b = (logits_of(m, ids).logits[0].float() for m in (model, rounded))
        change = max(change, ((a - b).abs().amax(1) / a.abs().amax(1)).max().item())
    return change


def make_model(family, seed):
    """With several tries, the model that rounding changes the least."""
    cls = getattr(transformers, family.model)
    torch.manual_seed(0)
    config = cls.config_class(**family.config)
    config._attn_implementation = family.attention
    config._experts_implementation = "eager"
    best, least = None, np.inf
    for i in range(family.tries):
        model = cls(config).float().eval()
        random_weights(model, family, np.random.default_rng([*seed, *([i] if i else [])]))
        if family.tries == 1:
            return model
        change = change_by_rounding(model, seed)
        if change < least:
            best, least = model, change
    print(f"{bytes(seed).decode():20} rounding changes the logits by {least:.1e}", flush=True)
    return best


# --- config.json in the spelling of transformers 4 ---


def old_spelling(doc):
    rope = doc.pop("rope_parameters", None)
    if rope is None:
        return doc
    rope = dict(rope)
    doc["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type", "default")
    share = rope.pop("partial_rotary_factor", None)
    if share is not None:
        doc["rotary_pct" if doc["model_type"] == "gpt_neox" else "partial_rotary_factor"] = share
    if doc["model_type"] == "gpt_neox":
        doc["rotary_emb_base"] = doc.pop("rope_theta")
    doc["rope_scaling"] = None if kind == "default" else {"type": kind} | rope
    doc["torch_dtype"] = doc.pop("dtype")
    if doc["model_type"] != "gemma3_text":
        doc.pop("layer_types", None)
    return doc


def link_tokenizer(folder, t):
    """All folders share a single tokenizer."""
    t.save(str(OUT / "tokenizer.json"), pretty=False)
    (folder / "tokenizer.json").symlink_to("../tokenizer.json")


def write_folder(name, family, model, t):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    # a copy, because buffers such as rope frequencies are rounded, too
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    doc = json.loads((folder / "config.json").read_text())
    if family.old_config:
        doc = old_spelling(doc)
    doc = family.spell(doc)
    (folder / "config.json").write_text(json.dumps(doc, indent=2) + "\n")
    link_tokenizer(folder, t)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": make_tiny.SPECIALS[1], "eos_token": make_tiny.SPECIALS[2],
                "pad_token": make_tiny.SPECIALS[3], "chat_template": make_tiny.CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


# --- GGUF ---


def first(c, *names):
    for name in names:
        value = getattr(c, name, None)
        if value is not None:
            return value
    return None


def rope_keys(w, c):
    rope = first(c, "rope_parameters")
    if rope is None:
        return
    rope = rope.get("full_attention", rope)
    kind = rope["rope_type"]
    if kind != "dynamic":
        w.add_rope_freq_base(rope["rope_theta"])
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type({"linear": gguf.RopeScalingType.LINEAR, "yarn": gguf.RopeScalingType.YARN}[kind])
        w.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            w.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        if "beta_fast" in rope:
            w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def write_keys(w, name, c, tokens, merges):
    w.add_name(f"Sluice family {name}")
    w.add_context_length(first(c, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length") or 256)
    hidden = first(c, "hidden_size", "n_embd", "d_model")
    heads = first(c, "num_attention_heads", "n_head", "n_heads")
    w.add_embedding_length(hidden)
    w.add_block_count(first(c, "num_hidden_layers", "n_layer", "n_layers"))
    w.add_feed_forward_length(first(c, "ffn_hidden_size", "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden)
    w.add_head_count(heads or 0)
    if heads:
        w.add_head_count_kv(first(c, "num_key_value_heads", "num_kv_heads") or heads)
    dim = first(c, "head_dim")
    if dim and heads and dim * heads != hidden:
        w.add_key_length(dim)
        w.add_value_length(dim)
    rms, layer = first(c, "rms_norm_eps"), first(c, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    w.add_layer_norm_rms_eps(rms) if rms is not None else w.add_layer_norm_eps(layer)
    rope_keys(w, c)
    make_tiny.write_vocabulary(w, tokens, merges)


def permute(x, n_heads):
    """Rows of each head from halves to pairs."""
    return x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def text_parameters(model):
    """The text model's parameters by name. The norms of a layer's heads are one matrix."""
    out = {}
    biases = [(name, b) for name, b in model.named_buffers() if name.endswith(SELECTION_BIASES)]
    for name, p in [*model.named_parameters(), *biases]:
        x = p.detach().numpy()
        if ".visual." in name:
            continue
        name = name.replace(".language_model.", ".")
        whole = re.sub(r"\.norms\.\d+\.", ".", name)
        out[whole] = x if whole == name else np.vstack([out[whole], x[None]]) if whole in out else x[None]
    return out


def join_qkv(tensors):
    """Q, K and V of a layer as one tensor."""
    out = {}
    for name, x in tensors.items():
        whole = re.sub(r"\.attn_[qkv]\.", ".attn_qkv.", name)
        out[whole] = np.concatenate([out[whole], x]) if whole in out else x
    return out


def write_gguf(name, family, model, tokens, merges, files={}):
    """`files` has the format and the bytes of matrices that are not written as bf16."""
    c = text_config(model.config)
    c.allow_global_per_layer_attribute_access = True  # where layers have different heads
    w = gguf.GGUFWriter(OUT / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[family.arch])
    write_keys(w, name, c, tokens, merges)
    family.keys(w, c)
    names = gguf.get_tensor_name_map(family.arch, first(c, "num_hidden_layers", "n_layer", "n_layers"))
    tensors, kinds = {}, {}
    for hf_name, x in [part for name, x in text_parameters(model).items() for part in family.pieces(name, x)]:
        kind, x = files.get(hf_name, (None, x))
        parts = family.parts(hf_name, x, c)
        if parts is not None:
            tensors |= parts
            continue
        suffixes = (".weight", ".bias", ".scale")
        known = family.rename(hf_name)
        new = names.get_name(known, suffixes) or names.get_name(known.removeprefix("transformer."), suffixes)
        if new is None:
            raise SystemExit(f"{name}: the gguf package has no name for {hf_name}")
        if family.permuted and ("q_proj." in hf_name or "k_proj." in hf_name):
            x = permute(x, c.num_attention_heads if "q_proj." in hf_name else c.num_key_value_heads)
        if family.plus_one and hf_name.endswith("norm.weight") and ".linear_attn." not in hf_name:
            x = x + np.float32(1)
        x = family.transform(hf_name, x, c)
        if new == "token_embd.weight":
            x = x[:family.tokens]
        tensors[new], kinds[new] = x, kind
    for new, x in (join_qkv(tensors) if family.joined else tensors).items():
        x = np.ascontiguousarray(x)
        if x.ndim == 1 or "norm" in new or re.search(family.exact, new):
            w.add_tensor(new, x.astype(np.float32))
        else:
            kind = kinds.get(new)
            w.add_tensor(new, gguf.quantize(x, Q.BF16) if kind is None else x, raw_dtype=kind or Q.BF16)
    for new, x in family.extra(c).items():
        w.add_tensor(new, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# --- logits ---


def logits_of(model, ids):
    eager = model.config._attn_implementation == "eager"
    return model(torch.from_numpy(ids)[None], use_cache=False, output_attentions=eager)


def sequences(seed, vocab):
    """For each sequence the length of its prompt, its ids, and the rows whose logits are written."""
    rng = np.random.default_rng(seed)
    first, ids = PROMPT + STEPS, min(VOCAB, vocab)
    return [
        (PROMPT, rng.integers(0, ids, first), [0, 15, 16, *range(PROMPT - 1, first)]),
        (SECOND, rng.integers(0, ids, SECOND), [15, 16, 31, 32, SECOND - 1]),
    ]


def write_logits(name, family, model, seed):
    """Row r of a sequence comes from a forward pass over the prompt, or over r + 1 ids where that is more. So rope that
    depends on the length is that of a server that computes a sequence again at the crossing."""
    vocab = model.get_output_embeddings().weight.shape[0]
    chosen = sequences(seed, vocab)
    with torch.no_grad(), LogitsFile(OUT / f"{name}.bin", len(chosen), vocab) as f:
        for prompt, ids, rows in chosen:
            f.begin(ids, len(rows))
            for row in rows:
                r = logits_of(model, ids[: max(prompt, row + 1)])
                f.row(row, r.logits[0, row].numpy())
    attentions = getattr(r, "attentions", None)
    peak = np.mean([a[0, :, SECOND // 2 :].amax(-1).mean() for a in attentions]) if attentions else np.nan
    return r.logits.std(), peak


def write_answers(name, family, model, seed):
    """Greedy answers by generate(), with its cache. Returns the least difference between the two largest logits."""
    rng = np.random.default_rng(seed)
    least = np.inf
    with torch.no_grad(), open(OUT / f"{name}_answers.bin", "wb") as f:
        f.write(b"SLTG" + struct.pack("<I", len(family.answers)))
        for n in family.answers:
            prompt = torch.from_numpy(rng.integers(4, VOCAB, n))[None]
            model.generation_config.eos_token_id = None
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=STEPS, do_sample=False, use_cache=True,
                                 return_dict_in_generate=True, output_logits=True)
            best = torch.cat(out.logits).topk(2).values
            least = min(least, float((best[:, 0] - best[:, 1]).min()))
            ids = out.sequences[0].numpy()
            f.write(struct.pack("<II", n, len(ids)) + ids.astype("<u4").tobytes())
    return least


def make(name, t, tokens, merges):
    family, seed = FAMILIES[name], list(name.encode())
    model = make_model(family, seed)
    if family.has_folder:
        write_folder(name, family, model, t)
    gguf_file = OUT / f"{name}.gguf"
    gguf_file.unlink(missing_ok=True)
    if family.arch is not None:
        write_gguf(name, family, model, tokens, merges)
    deviation, peak = write_logits(name, family, model, seed)
    if family.answers:
        print(f"{name:20} answers: the two largest logits differ by {write_answers(name, family, model, seed):.1e} at least", flush=True)
    size = lambda p: p.stat().st_size // 1000 if p.exists() else 0
    print(f"{name:20} folder {size(OUT / name / 'model.safetensors'):4} KB, GGUF {size(gguf_file):4} KB, logits deviate {deviation:.2f}, "
          f"mean largest attention weight {peak:.2f}", flush=True)


def main():
    transformers.logging.set_verbosity_error()
    OUT.mkdir(exist_ok=True)
    t, tokens, merges = tokenizer()
    for name in sys.argv[1:] or FAMILIES:
        make(name, t, tokens, merges)


if __name__ == "__main__":
    main()
