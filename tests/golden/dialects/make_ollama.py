"""Writes copies of GGUF goldens in the dialect of Ollama. Some keys and tensors have other names, and some keys are left out.
The weights are those of the copied file.

    tiny/gpt_oss_ollama.gguf   the logits are those of gpt_oss.gguf
    tiny/gemma3_ollama.gguf    without an epsilon, which is then 1e-6; other logits than those of gemma3.gguf"""

import pathlib

import gguf

TINY = pathlib.Path(__file__).parents[1] / "tiny"

COPIES = {
    "gpt_oss": dict(
        arch="gptoss",
        without=["expert_feed_forward_length", "rope.scaling.type"],
        keys={},
        tensors={".attn_output.": ".attn_out.", ".attn_sinks.weight": ".attn_sinks", ".post_attention_norm.": ".ffn_norm."}),
    "gemma3": dict(
        arch="gemma3",
        without=["attention.layer_norm_rms_epsilon"],
        keys={"rope.freq_base": "rope.global.freq_base"},
        tensors={}),
}


def copy(name, arch, without, keys, tensors):
    reader = gguf.GGUFReader(TINY / f"{name}.gguf")
    old = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(TINY / f"{name}_ollama.gguf", arch)
    for field in reader.fields.values():
        key = field.name.removeprefix(f"{old}.")
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or key in without:
            continue
        if key != field.name:
            key = f"{arch}.{keys.get(key, key)}"
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        new = tensor.name
        for part, other in tensors.items():
            new = new.replace(part, other)
        writer.add_tensor(new, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for name, changes in COPIES.items():
        copy(name, **changes)
