"""`sluice inspect` shows what a model's files hold, and the plan that `sluice load --validate-only` makes. A process
of its own reads a path, and the manager inspects registered models."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import BIN, ROOT, Sluice, model_path, names, patience
from test_folder import hub, read_safetensors, split, tokenizer, write_safetensors

TINY = ROOT / "tests/golden/tiny"


def inspect(*args, check=0, cwd=None, state="/nonexistent"):
    result = subprocess.run([BIN / "sluice", "inspect", *map(str, args), "--state-dir", str(state)], capture_output=True, text=True,
                            timeout=patience(60), cwd=cwd)
    assert result.returncode == check, (result.stdout, result.stderr)
    return result


def facts(*args, **kwargs):
    return json.loads(inspect(*args, "--json", **kwargs).stdout)


def refusal(*args, check=1, **kwargs):
    """The error of a command that prints nothing else."""
    result = inspect(*args, "--json", check=check, **kwargs)
    assert result.stdout == "", result
    return json.loads(result.stderr)["error"]


@pytest.fixture
def folder(tmp_path):
    """Makes a folder of a golden model, with a tokenizer of the 256 bytes."""
    def make(name, **config):
        path = tmp_path / name
        shutil.copytree(TINY / name, path)
        (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
        if config:
            text = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**text, **config}))
        return path
    return make


def numbers(kind):
    return kind["layers"]


def test_a_dense_file(tmp_path):
    """The tensors of the file add up to its parameters and formats."""
    found = facts(model_path())
    assert found["info"]["architecture"] == "llama" and found["n_files"] == 1 and not found["unsupported_reason"]
    assert found["file_bytes"] == os.path.getsize(model_path())
    (kind,) = found["layers"]
    assert numbers(kind) == list(range(found["info"]["n_layers"]))
    assert (kind["mixer"], kind["reach"], kind["rope"], kind["ffn"], kind["ffn_form"]) == ("attention", "full", 0, "dense", "gated")
    assert found["n_loaded_parameters"] == found["n_active_parameters"] == sum(f["n_parameters"] for f in found["formats"])
    sizes = [f["bytes"] for f in found["formats"]]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == found["info"]["weight_bytes"]
    assert found["tied_output"] and "experts" not in found and "plan_error" not in found
    assert found["tokenizer"]["model"] == "gpt2" and found["tokenizer"]["pre"] == "smollm"
    assert "<|im_end|>" in [t["text"] for t in found["tokenizer"]["ends"]]
    assert [t["name"] for t in found["templates"]] == ["default"] and not found["templates"][0]["error"]


def test_layers_of_two_kinds(folder):
    found = facts(folder("gemma3"))
    window, full = found["layers"]
    assert (window["reach"], window["reach_tokens"], numbers(window)) == ("window", 16, [0, 1, 2, 3, 4])
    assert (full["reach"], full["reach_tokens"], numbers(full)) == ("full", 0, [5])
    ropes = {rope["rope"]: rope for rope in found["ropes"]}
    assert ropes[full["rope"]]["scaling"] == "linear" and ropes[window["rope"]]["scaling"] == "none"
    text = inspect(folder("gemma2")).stdout
    assert names(text, "window", "full", "16") and "numbers" in text


def test_experts_count_for_a_token_as_far_as_they_are_chosen(folder):
    found = facts(folder("qwen3moe"))
    experts = found["experts"]
    assert (experts["n_experts"], experts["n_used"]) == (5, 2) and found["layers"][0]["ffn"] == "experts"
    header, _ = read_safetensors(TINY / "qwen3moe/model.safetensors")
    of_experts = sum(dims(entry) for name, entry in header.items() if ".experts." in name)
    assert found["n_loaded_parameters"] == sum(dims(entry) for entry in header.values())
    assert found["n_active_parameters"] == found["n_loaded_parameters"] - of_experts * 3 // 5
    fused = facts(folder("qwen3moe_fused"))
    assert (fused["experts"]["n_experts"], fused["experts"]["n_used"]) == (5, 3)  # here a tensor holds all experts of a layer
    header, _ = read_safetensors(TINY / "qwen3moe_fused/model.safetensors")
    of_experts = sum(dims(entry) for name, entry in header.items() if ".experts." in name)
    assert fused["n_active_parameters"] == fused["n_loaded_parameters"] - of_experts * 2 // 5


def dims(entry):
    n = 1
    for dim in entry["shape"]:
        n *= dim
    return n


def test_a_quantized_folder_names_its_formats(folder):
    found = facts(folder("gpt_oss_mxfp4"))
    assert {f["format"] for f in found["formats"]} == {"BF16", "MXFP4"}
    assert [kind["reach"] for kind in found["layers"]] == ["window", "full"]


def test_parts_that_are_not_used_are_listed_by_rule(folder):
    found = facts(folder("gemma3_images"))
    tensors = {part["rule"]: part for part in found["ignored"] if part["kind"] == "IGNORED_KIND_TENSOR"}
    header, _ = read_safetensors(TINY / "gemma3_images/model.safetensors")
    assert tensors["vision_tower."]["n_parts"] == sum(name.startswith("vision_tower.") for name in header)
    assert tensors["vision_tower."]["first"].startswith("vision_tower.") and tensors["vision_tower."]["bytes"]
    keys = [part["rule"] for part in found["ignored"] if part["kind"] == "IGNORED_KIND_KEY"]
    assert "transformers_version" in keys and "vision_config.*" in keys and "eos_token_id" not in keys
    rows = [part for part in found["ignored"] if part["kind"] == "IGNORED_KIND_ROW"]  # 257 tokens
    assert [part["n_parts"] for part in rows] == [found_rows(TINY / "gemma3_images") - 257]
    assert all(part["why"] for part in found["ignored"])
    drafts = facts(folder("glm4moe"))
    assert any("draft" in part["why"] for part in drafts["ignored"])
    assert drafts["n_loaded_parameters"] < drafts["info"]["n_parameters"]


def test_the_cache_has_the_widths_of_keys_and_values(folder):
    found = facts(folder("mimo2"))
    assert [(kind["key_dim"], kind["value_dim"], kind["n_kv_heads"]) for kind in found["layers"]] == [(24, 16, 1), (24, 16, 2)]
    plan = found["plan"]  # the second layer has a window, and so blocks of its own
    assert plan["kv_token_bytes"] == (24 + 16) * 1 * 2
    assert plan["window_bytes"] == plan["n_window_blocks"] * plan["kv_block_tokens"] * (24 + 16) * 2 * 2 > 0


def found_rows(path):
    header, _ = read_safetensors(path / "model.safetensors")
    return next(entry["shape"][0] for name, entry in header.items() if "embed_tokens" in name)


def test_recommended_sampling_is_shown(folder):
    """inspect named another temperature than requests get, where the file says "do_sample": false."""
    path = folder("qwen3")
    assert "default_sampling" not in facts(path)["info"]
    assert not [line for line in inspect(path).stdout.splitlines() if line.startswith("sampling ")]
    for file, want in (({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
                       ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0, "top_p": 0.9}),
                       ({"do_sample": True}, {"temperature": 1})):
        (path / "generation_config.json").write_text(json.dumps(file))
        found = facts(path)["info"]["default_sampling"]
        assert found == {key: pytest.approx(value) for key, value in want.items()}
        shown, = [line for line in inspect(path).stdout.splitlines() if line.startswith("sampling ")]
        assert names(shown, *[f"{key} {value}" for key, value in want.items()])


def test_the_limit_of_the_context_is_named(folder):
    for name, context, limit in (("phi3_long", 256, "longrope"), ("qwen3", 200, "files"), ("gpt2", 200, "position")):
        found = facts(folder(name))
        assert found["info"]["trained_context_length"] == found["info"]["context_length"] == context, name
        assert names(found["context_limit"], limit), found["context_limit"]


def test_shards_a_hub_cache_and_a_folder_of_a_gguf_file(folder, tmp_path):
    path = folder("qwen3")
    whole = facts(path)
    shards = facts(split(path, tmp_path / "shards"))
    assert shards["n_files"] > whole["n_files"] and shards["layers"] == whole["layers"]
    cached = facts(hub(path, tmp_path))
    assert cached["info"]["display_name"] == "Org/Tiny-Qwen3" and cached["info"]["weights_digest"] == whole["info"]["weights_digest"]
    repository = hub(path, tmp_path / "again").parent.parent
    assert names(refusal(repository)["message"], repository.name, "snapshots/0a1b")
    (tmp_path / "one").mkdir()
    shutil.copy(TINY / "q8_0.gguf", tmp_path / "one")
    assert facts(tmp_path / "one")["info"]["format"] == "gguf"
    assert facts("qwen3", cwd=tmp_path)["layers"] == whole["layers"]  # a name in the current folder


def test_the_plan_of_a_split_has_bytes_per_rank(folder):
    """Three KV heads on two ranks: both hold the shared one, so a token takes more bytes."""
    path = folder("qwen3")
    one, two = (facts(path, "--tp", n, "--kv-tokens", 4096)["plan"] for n in (1, 2))
    assert [(d["device"], d["rank"]) for d in two["devices"]][1][1] == 1 and len(one["devices"]) == 1
    assert one["n_kv_tokens"] == two["n_kv_tokens"] == 4096 and one["fits"]
    assert one["kv_token_bytes"] * 4096 == sum(d["kv_bytes"] for d in one["devices"])
    assert two["kv_token_bytes"] * 4096 == sum(d["kv_bytes"] for d in two["devices"]) > one["devices"][0]["kv_bytes"]
    tool = subprocess.run([BIN / "sluice-worker", "plan", path, "--tp", "2", "--kv-tokens", "4096", "--text"], capture_output=True,
                          text=True, check=True, timeout=patience(60)).stdout
    assert names(tool, *(two["devices"][0][part] for part in ("weight_bytes", "kv_bytes", "workspace_bytes")), two["kv_token_bytes"])
    small = facts(path, "--kv-tokens", 4096, "--kv-dtype", "int8")["plan"]
    assert small["kv_token_bytes"] < one["kv_token_bytes"]


def test_a_model_that_is_not_served_is_described_with_status_3(folder):
    path = folder("qwen3", architectures=["NovelForCausalLM"], model_type="novel")
    found = facts(path, check=3)
    assert names(found["unsupported_reason"], "novel") and found["formats"] and found["info"]["n_parameters"]
    assert "plan" not in found and "plan_error" not in found and not found["layers"]
    assert "not served" in inspect(path, check=3).stdout


def test_bad_paths_are_errors_with_a_next_step(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").mkdir()
    whole = pathlib.Path(TINY / "q8_0.gguf").read_bytes()
    for name, data in (("cut.gguf", whole[:5000]), ("header.gguf", whole[:30]), ("none.gguf", b""), ("text.gguf", b"{}")):
        (tmp_path / name).write_bytes(data)
    for name in ("fifo", "empty", "cut.gguf", "header.gguf", "none.gguf", "text.gguf"):
        error = refusal(tmp_path / name)
        assert (error["code"], error["reason"]) == ("INVALID_ARGUMENT", "MODEL_FILE_INVALID") and names(error["message"], name), error
    assert refusal(tmp_path / "missing")["code"] == "NOT_FOUND"
    assert len(inspect(tmp_path / "missing", check=1).stderr.splitlines()) == 2  # the error, and what to do
    error = refusal("missing", cwd=tmp_path)  # a name that is no path: asks the manager
    assert error["reason"] == "NOT_CONNECTED"
    assert names(inspect("missing", check=1, cwd=tmp_path).stderr, "sluice ls", "path")


def test_a_header_that_lies_is_refused(folder):
    """A tensor that ends behind the file, and a count that fits no file."""
    path = folder("qwen3")
    header, data = read_safetensors(path / "model.safetensors")
    last = max(header, key=lambda name: header[name]["data_offsets"][1])
    header[last]["data_offsets"][1] += 64
    write_safetensors(path / "model.safetensors", header, data)
    assert names(refusal(path)["message"], "model.safetensors")
    (path / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    assert names(refusal(path)["message"], "model.safetensors")
    (path / "config.json").unlink()
    assert names(refusal(path)["message"], "config.json")


def test_a_head_dimension_that_no_key_gives_is_explained_by_both_sizes(folder):
    """The message was "0 is odd": it named neither the heads nor the hidden size."""
    for name in ("gptneox", "falcon"):
        assert names(refusal(folder(name, num_attention_heads=7))["message"], 7, 48)


def test_settings_that_cannot_work_are_named_by_their_flags(folder):
    path = folder("qwen3")
    for flags, code in ((["--tp", "3"], 1), (["--context-length", "9999"], 1), (["--kv-dtype", "fp8"], 1), (["--group", "cpu"], 2),
                        (["--version", "1"], 2)):
        assert names(inspect(path, *flags, check=code).stderr, flags[0]), flags
    assert names(inspect("smol", "--devices", "cpu", check=2).stderr, "--devices", "--group")


def test_texts_of_a_model_cannot_steer_a_terminal(folder):
    """Token 2, which ends an answer here, is a control character."""
    text = inspect(folder("qwen3")).stdout
    assert r"2 \x02" in text and not any(ord(c) < 32 and c != "\n" for c in text)


def test_registered_models_are_inspected_by_the_manager(folder, tmp_path, stubs):
    path = folder("qwen3moe")
    (tmp_path / "state").mkdir()
    sluice = Sluice(tmp_path / "state", stubs).start()
    try:
        sluice.cli("register", "tiny", path)
        sluice.cli("register", "tiny", folder("qwen3"))

        def registered(*args, **kwargs):
            return facts(*args, state=sluice.state, cwd=tmp_path / "state", **kwargs)
        first, latest = registered("tiny:1", "--tp", 2, "--kv-tokens", 4096), registered("tiny")
        assert first["experts"]["n_experts"] == 5 and "experts" not in latest
        assert [(found["plan"]["model"], found["plan"]["version"]) for found in (first, latest)] == [("tiny", "1"), ("tiny", "2")]
        plan = json.loads(sluice.cli("load", "tiny:1", "--tp", "2", "--kv-tokens", "4096", "--validate-only", "--json").stdout)["plan"]
        parts = ("weight_bytes", "kv_bytes", "workspace_bytes", "rank", "device")
        assert [[d[p] for p in parts] for d in first["plan"]["devices"]] == [[d[p] for p in parts] for d in plan["devices"]]
        alone = facts(path, "--tp", 2, "--kv-tokens", 4096)
        assert [[d[p] for p in parts] for d in alone["plan"]["devices"]] == [[d[p] for p in parts] for d in plan["devices"]]
        assert {k: v for k, v in alone.items() if k != "plan"} == {k: v for k, v in first.items() if k != "plan"}
        sluice.cli("load", "tiny:1", "--kv-tokens", "4096")  # the plan of a loaded version counts its weights, too
        assert registered("tiny:1", "--kv-tokens", 4096)["plan"]["devices"][0]["weight_bytes"] == \
            facts(path, "--kv-tokens", 4096)["plan"]["devices"][0]["weight_bytes"]
        assert names(inspect("tiny:1", state=sluice.state).stdout, "tiny", path)

        def refused(*args):
            return refusal(*args, state=sluice.state, cwd=tmp_path / "state")["reason"]
        assert refused("tiny:9") == "VERSION_NOT_FOUND" and refused("none") == "MODEL_NOT_FOUND"
        assert refused("tiny", "--group", "none") == "DEVICE_GROUP_NOT_FOUND"
        (path / "tokenizer.json").write_text(json.dumps(tokenizer()) + " ")
        assert refused("tiny:1") == "MODEL_FILE_CHANGED"
    finally:
        sluice.stop()
