"""CTranslate2 with a checkpoint's own weights, as int8 with a scale per row: what it has below 16 bits on a CPU."""

import pathlib

import ctranslate2
from checkpoint import Checkpoint
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec


def prepare(gguf, folder):
    c = Checkpoint(gguf)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        c.layers, c.heads, activation=common_spec.Activation.SWISH, pre_norm=True, ffn_glu=True, rms_norm=True, rotary_dim=0,
        rotary_interleave=True, rotary_base=c.rope_base, num_heads_kv=c.kv_heads if c.kv_heads != c.heads else None,
    )  # fmt: skip
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = c.weight("token_embd.weight")
    decoder.layer_norm.gamma = c.weight("output_norm.weight")
    decoder.projection.weight = c.head()
    for i, layer in enumerate(decoder.layer):
        layer.self_attention.layer_norm.gamma = c.layer(i, "attn_norm")
        parts = [common_spec.LinearSpec() for _ in range(3)]
        for part, name in zip(parts, ("attn_q", "attn_k", "attn_v")):
            part.weight = c.layer(i, name)
        utils.fuse_linear(layer.self_attention.linear[0], parts)
        layer.self_attention.linear[1].weight = c.layer(i, "attn_output")
        layer.ffn.layer_norm.gamma = c.layer(i, "ffn_norm")
        layer.ffn.linear_0.weight = c.layer(i, "ffn_gate")
        layer.ffn.linear_0_noact.weight = c.layer(i, "ffn_up")
        layer.ffn.linear_1.weight = c.layer(i, "ffn_down")
    spec.register_vocabulary([f"<{i}>" for i in range(c.vocab)])  # requests have ids, so the texts do not matter
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = f"<{c.bos}>", f"<{c.eos}>", "<0>"
    spec.config.layer_norm_epsilon = c.epsilon
    spec.validate()
    spec.optimize(quantization="int8")
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    spec.save(folder)
    return "int8 weights with a scale per row, int8 activations, f32 KV"


class Engine:
    def __init__(self, _gguf, folder, setting):
        self.generator = ctranslate2.Generator(folder, device="cpu", compute_type="int8", inter_threads=1, intra_threads=setting["threads"])

    def generate(self, prompts, n):
        tokens = [[f"<{i}>" for i in prompt] for prompt in prompts]
        results = self.generator.generate_batch(tokens, max_batch_size=0, max_length=n, min_length=n, sampling_topk=1, beam_size=1,
                                                include_prompt_in_result=False, end_token=[])  # fmt: skip
        return [list(r.sequences_ids[0]) for r in results]
