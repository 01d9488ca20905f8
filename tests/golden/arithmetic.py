"""Measures integer arithmetics on the sample model: prints the table of docs/log/2026-11-21-arithmetic.md.

Usage: arithmetic.py [NAME ...]     names of VARIANTS below; all without arguments (some five minutes)

Own forward in torch, all rows of the text at once. Integer products are f64 matrix products of integers below 2^53,
so they are exact."""

import math
import pathlib
import sys

import gguf
import numpy as np
import torch

from torch_models.gguf_model import Model, sample_path

HERE = pathlib.Path(__file__).parent
CHUNK = 512


def parts(model, name):
    """q [rows, blocks, 32] and d, m f32 [rows, blocks]; m is None for Q8_0"""
    t = model.tensors[name]
    columns, rows = (int(n) for n in t.shape)
    b = np.array(t.data).reshape(rows, columns // 32, -1)
    half = lambda at: b[..., at : at + 2].copy().view(np.float16).astype(np.float32)[..., 0]
    if t.tensor_type == gguf.GGMLQuantizationType.Q4_1:
        return np.concatenate([b[..., 4:] & 15, b[..., 4:] >> 4], -1).astype(np.int64), half(0), half(2)
    assert t.tensor_type == gguf.GGMLQuantizationType.Q8_0
    return b[..., 2:].copy().view(np.int8).astype(np.int64), half(0), None


def nonzero(u):
    return np.where(u == 0, np.float32(1), u).astype(np.float32)


class Exact:
    """f32 activations, dequantized weights"""

    stats = None

    def weight(self, model, name):
        return torch.from_numpy(model.dequantized(name))

    def linear(self, w, x, tag):
        return x @ w.T


class BlockScales(Exact):
    """Design A: int8 activations, with a scale for each block of 32. Weights are dequantized."""

    def linear(self, w, x, tag):
        b = x.view(len(x), -1, 32)
        s = b.abs().amax(2, keepdim=True) / 127
        return (torch.round(b / torch.where(s == 0, 1.0, s)) * s).view_as(x) @ w.T


class Integers:
    """S and B. Weights "row": int8 multiples of one unit per `segment` columns. Weights "block": B. Weights "block8": B
    after requantizing to 8 bits per block. Weights "exact": unchanged. Outliers begin at sigma; None = f32 activations."""

    def __init__(self, weights, sigma, segment=None):
        self.weights, self.sigma, self.segment, self.stats = weights, sigma, segment, {}

    def weight(self, model, name):
        q, d, m = parts(model, name)
        rows = len(q)
        w = (d[..., None] * q + (0 if m is None else m[..., None])).astype(np.float32)
        if self.weights == "exact":
            return self.pieces([(w, np.ones(rows, np.float32))])
        if self.weights == "row":
            step, out = (self.segment or q.shape[1] * 32) // 32, []
            for at in range(0, q.shape[1], step):
                ws = w[:, at : at + step]
                u = nonzero(np.abs(ws).reshape(rows, -1).max(1) / np.float32(127))
                if m is None:
                    w8 = np.rint(ws / u[:, None, None])
                else:
                    scale = lambda v: np.rint(v[:, at : at + step] / u[:, None] * np.float32(256)).astype(np.int64)[..., None]
                    w8 = (q[:, at : at + step] * scale(d) + scale(m) + 128) >> 8
                out.append((w8, u))
            return self.pieces(out)
        if self.weights == "block8":
            d, m = np.abs(w).max(2) / np.float32(127), None
            q = np.rint(w / nonzero(d)[..., None]).astype(np.int64)
        if m is None:
            u = nonzero(np.abs(d).max(1) / np.float32(255))
            return self.pieces([(q * np.rint(d / u[:, None])[..., None], u)])
        u = nonzero(np.maximum(np.abs(m), np.abs(m + 15 * d)).max(1) / np.float32(2032))
        isw, ioff = np.rint(d / u[:, None]), np.rint((m + 8 * d) / u[:, None])
        return self.pieces([((q - 8) * isw[..., None] + ioff[..., None], u)])

    @staticmethod
    def pieces(list_of):
        return [(torch.from_numpy(w.reshape(len(w), -1).astype(np.float64)), torch.from_numpy(u.astype(np.float64))) for w, u in list_of]

    def integers(self, x, tag):
        mean, top = x.abs().mean(1), x.abs().amax(1)
        s = torch.maximum(torch.maximum(mean * (self.sigma * 1.2533 / 127), top / 32000), torch.tensor(1e-30))
        a = torch.round(x / s[:, None])
        flagged = (a.abs() > 127).view(len(x), -1, 64).any(2)
        st = self.stats.setdefault(tag[1], {}).setdefault(tag[0], [0, 0, 0.0])
        st[0] += int(flagged.sum())
        st[1] += flagged.numel()
        st[2] = max(st[2], float((top / mean).max()))
        return a.double(), s.double()

    def linear(self, w, x, tag):
        y, at = 0, 0
        whole = None if self.sigma is None or self.segment else self.integers(x, tag)
        for wi, u in w:
            part = slice(at, at + wi.shape[1])
            at = part.stop
            if self.sigma is None:
                y = y + (x[:, part].double() @ wi.T) * u
            else:
                a, s = (whole[0][:, part], whole[1]) if whole else self.integers(x[:, part].contiguous(), tag)
                y = y + (a @ wi.T) * (u[None] * s[:, None])
        return y.float()


VARIANTS = {
    "S, 4.5": Integers("row", 4.5),
    "S, weights alone": Integers("row", None),
    "S, activations alone": Integers("exact", 4.5),
    "S, per 192 columns": Integers("row", 4.5, 192),
    "A": BlockScales(),
    "B, 4.5": Integers("block", 4.5),
    "B, 3.5": Integers("block", 3.5),
    "B, 3.5, 8 bits": Integers("block8", 3.5),
    "B, 1.5": Integers("block", 1.5),
}


class Llama:
    def __init__(self, model):
        f = lambda key: model.field("llama." + key)
        self.model, self.layers = model, f("block_count")
        self.heads, self.kv = f("attention.head_count"), f("attention.head_count_kv")
        self.head_dim, self.base, self.eps = f("rope.dimension_count"), f("rope.freq_base"), f("attention.layer_norm_rms_epsilon")

    def norm(self, x, name):
        w = torch.from_numpy(self.model.dequantized(name))
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * w

    def rope(self, x, pos):  # interleaved pairs, as the GGUF stores Q and K
        n = x.shape[-1]
        angle = pos.double()[:, None] * self.base ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)[None]
        c, s = angle.cos().float()[:, None], angle.sin().float()[:, None]
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

    def forward(self, arithmetic, chunks):
        lens = [len(c) for c in chunks]
        pos = torch.cat([torch.arange(n) for n in lens])
        head = arithmetic.weight(self.model, "token_embd.weight")
        ids = torch.cat(chunks)
        if isinstance(arithmetic, Integers) and arithmetic.weights.startswith("block"):
            x = (head[0][0][ids].float() * head[0][1][ids].float()[:, None])  # the embedding from the packed weights
        else:
            x = torch.from_numpy(self.model.dequantized("token_embd.weight"))[ids]
        for layer in range(self.layers):
            p = f"blk.{layer}."
            lin = lambda name, v, tag: arithmetic.linear(arithmetic.weight(self.model, p + name + ".weight"), v, (layer, tag))
            h = self.norm(x, p + "attn_norm.weight")
            q = self.rope(lin("attn_q", h, "qkv").view(-1, self.heads, self.head_dim), pos)
            k = self.rope(lin("attn_k", h, "qkv").view(-1, self.kv, self.head_dim), pos)
            v = lin("attn_v", h, "qkv").view(-1, self.kv, self.head_dim)
            out = []
            for qs, ks, vs in zip(q.split(lens), k.split(lens), v.split(lens)):
                n = len(qs)
                ks, vs = (t.transpose(0, 1).repeat_interleave(self.heads // self.kv, 0) for t in (ks, vs))
                score = qs.transpose(0, 1) @ ks.transpose(1, 2) / math.sqrt(self.head_dim)
                score = score.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -1e30)
                out.append((score.softmax(-1) @ vs).transpose(0, 1).reshape(n, -1))
            x = x + lin("attn_output", torch.cat(out), "o")
            h = self.norm(x, p + "ffn_norm.weight")
            x = x + lin("ffn_down", torch.nn.functional.silu(lin("ffn_gate", h, "gate, up")) * lin("ffn_up", h, "gate, up"), "down")
        x = self.norm(x, "output_norm.weight")
        return torch.cat([arithmetic.linear(head, part, (self.layers, "head")) for part in x.split(CHUNK)])


def measure(ref, out, chunks):
    nll = kl = 0.0
    lens = [len(c) for c in chunks]
    for c, a, b in zip(chunks, ref.split(lens), out.split(lens)):
        la, lb = a.log_softmax(-1), b.log_softmax(-1)
        nll -= float(lb[:-1].gather(1, c[1:, None]).double().sum())
        kl += float((la.exp() * (la - lb)).sum(1).double().sum())
    rel = ((ref - out).abs().amax(1) / ref.abs().amax(1)).numpy()
    top = float((ref.argmax(1) == out.argmax(1)).float().mean())
    return math.exp(nll / (sum(lens) - len(lens))), kl / sum(lens), top, np.quantile(rel, [0.5, 0.99, 1.0])


def main():
    torch.set_num_threads(2)
    model = Model(sample_path())
    ids = torch.tensor(model.tokenizer(False).encode((HERE / "perplexity.txt").read_text()).ids)
    chunks = list(ids.split(CHUNK))
    llama = Llama(model)
    with torch.no_grad():
        ref = llama.forward(Exact(), chunks)
        base = measure(ref, ref, chunks)[0]
        print(f"{len(ids)} tokens, reference perplexity {base:.3f}")
        for name in sys.argv[1:] or VARIANTS:
            arithmetic = VARIANTS[name]
            ppl, kl, top, rel = measure(ref, llama.forward(arithmetic, chunks), chunks)
            print(f"{name:22} {(ppl / base - 1) * 100:+.2f} %  KL {kl:.5f}  top-1 {top * 100:.1f} %  {rel[0]:.3f} {rel[1]:.3f} {rel[2]:.3f}", flush=True)
            for tag, per_layer in (arithmetic.stats or {}).items():
                worst = max((st[2], layer) for layer, st in per_layer.items())
                share = np.mean([st[0] / st[1] for st in per_layer.values()])
                print(f"    {tag:9} outlier chunks {share * 100:.0f} %, worst max/mean {worst[0]:.0f} (layer {worst[1]})")


if __name__ == "__main__":
    main()
