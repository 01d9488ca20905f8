"""A Hugging Face folder through the programs: whole, in shards, and as the Hub's cache keeps it. All three give the same
answers. The model is tests/golden/tiny/qwen3 with a tokenizer of the 256 bytes."""
import json
import os
import shutil
import subprocess

import pytest

from conftest import BIN, ROOT, names
from log_events import MODEL_PARTS_NOT_USED, logged

MODEL = ROOT / "tests/golden/tiny/qwen3"


def byte_alphabet():
    """GPT-2's visible character of each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in visible else chr(next(hidden)) for b in range(256)]


def tokenizer():
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 256, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(byte_alphabet())}, "merges": []}}


def read_safetensors(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return header, raw[8 + n:]


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "Tiny-Qwen3"
    shutil.copytree(MODEL, path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return path


def split(folder, to, n_shards=3):
    """The same model in shards."""
    header, data = read_safetensors(folder / "model.safetensors")
    shutil.copytree(folder, to)
    (to / "model.safetensors").unlink()
    shards = {}
    for i in range(n_shards):
        name, part, at = f"model-{i + 1:05}-of-{n_shards:05}.safetensors", {}, b""
        for tensor in sorted(header)[i::n_shards]:
            begin, end = header[tensor]["data_offsets"]
            part[tensor] = {**header[tensor], "data_offsets": [len(at), len(at) + end - begin]}
            at += data[begin:end]
            shards[tensor] = name
        write_safetensors(to / name, part, at)
    (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": len(data)}, "weight_map": shards}))
    return to


def hub(folder, root):
    """The same model as the Hub's cache keeps it: links from snapshots/ into blobs/."""
    repo = root / "models--Org--Tiny-Qwen3"
    (repo / "blobs").mkdir(parents=True)
    snapshot = repo / "snapshots/0a1b"
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, repo / f"blobs/{i:08x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{i:08x}")
    return snapshot


def generate(path):
    return subprocess.run([BIN / "sluice-worker", "generate", path, "The first answer", "--max-tokens", "24", "--temperature", "0"],
                          capture_output=True, check=True, timeout=60).stdout


def test_folder_shards_and_hub_cache_answer_alike(folder, tmp_path):
    answer = generate(folder)
    assert answer and generate(split(folder, tmp_path / "shards")) == answer
    assert generate(hub(folder, tmp_path)) == answer


def test_serve_takes_a_folder(folder, tmp_path, stubs):
    from conftest import Sluice
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "state").mkdir()
    snapshot = hub(folder, root)
    sluice = Sluice(tmp_path / "state", stubs)
    sluice.start("--model-root", root, snapshot.relative_to(root), "--kv-tokens", "2048")
    try:
        sluice.wait(lambda: len(sluice.ready()) == 1, 30, "ready")
        text, ids, _ = sluice.generate(sluice.request("tiny-qwen3", "The first answer", max_tokens=24, temperature=0, ignore_eos=True))
        assert len(ids) == 24
        shown = json.loads(sluice.cli("show", "tiny-qwen3", "--json").stdout)
        assert str(snapshot.relative_to(root)) in json.dumps(shown)
        # the keys and rows that are not used are counted in a line of the worker's log
        logs = [line for path in sluice.state.rglob("*") if path.is_file() and "log" in path.name
                for line in logged(path.read_text(errors="replace"), MODEL_PARTS_NOT_USED)]
        assert len(logs) == 1 and int(logs[0]["keys"]) > 0, logs
        sluice.cli("unload", "tiny-qwen3")
        # the tokenizer belongs to the version: with another tokenizer the folder is another model
        blob = snapshot / "tokenizer.json"
        blob.resolve().write_text(json.dumps(tokenizer()) + " ")
        failed = sluice.cli("load", "tiny-qwen3", check=False)
        assert failed.returncode and names(failed.stderr, "MODEL_FILE_CHANGED"), failed.stderr
    finally:
        sluice.stop()


def change_config(**values):
    def change(path):
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return change


def replace(name, data, *without):
    def change(path):
        for old in (name, *without):
            (path / old).unlink(missing_ok=True)
        (path / name).write_bytes(data)
    return change


def cut(name, n):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:n])


def fifo(name):
    def change(path):
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
    return change


TEKKEN = b'{"config":{"pattern":"a","default_vocab_size":18446744073709551615,"default_num_special_tokens":1},"vocab":[]}'
INDEX = b'{"weight_map": {"model.norm.weight": "../../model.safetensors"}}'
# a change to a copy of the folder, and a value that the refusal names
HOSTILE = {
    "no weights": (cut("model.safetensors", 0), "model.safetensors"),
    "cut weights": (cut("model.safetensors", 1000), "model.safetensors"),
    "a long header": (replace("model.safetensors", b"\xff" * 8 + b"{}"), "model.safetensors"),
    "a cut config": (cut("config.json", 100), "config.json"),
    "a deep config": (replace("config.json", b"[" * 10000), "config.json"),
    "many layers": (change_config(num_hidden_layers=4294967295), "num_hidden_layers"),
    "a layer more": (change_config(num_hidden_layers=3), "model.layers.2.input_layernorm.weight"),
    "a path in the index": (replace("model.safetensors.index.json", INDEX, "model.safetensors"), "../../model.safetensors"),
    "a FIFO as tokenizer": (fifo("tokenizer.json"), "tokenizer.json"),
    "a FIFO as config": (fifo("config.json"), "config.json"),
    "a deep tokenizer": (replace("tokenizer.json", b'{"model":' + b"[" * 10000), "tokenizer.json"),
    "a long piece": (replace("tokenizer.model", b"\x0a\x03\x0a\x01a\x0a" + b"\xff" * 9 + b"\x01", "tokenizer.json"), "tokenizer.model"),
    "absurd tekken": (replace("tekken.json", TEKKEN), "tekken.json"),
    "a bad rank": (replace("tiktoken.model", b"YQ== 0\nYg== 4294967296\n", "tokenizer.json"), "tiktoken.model"),
}


def resident(pid):
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10


def test_hostile_folders_are_refused_by_name_and_nothing_else_happens(folder, tmp_path, stubs):
    from conftest import Sluice
    (tmp_path / "state").mkdir()
    sluice = Sluice(tmp_path / "state", stubs)
    sluice.start(folder, "--kv-tokens", "2048")
    try:
        sluice.wait(lambda: len(sluice.ready()) == 1, 30, "ready")
        before = sluice.generate(sluice.request("tiny-qwen3", "The first answer", max_tokens=24, temperature=0, ignore_eos=True))[0]
        sluice.cli("register", "bad", folder, "--version", "1", check=False)
        (pid,) = sluice.children("sluice-manager")
        rest = resident(pid)
        for name, (change, named) in HOSTILE.items():
            bad = tmp_path / "bad" / name.replace(" ", "-")
            shutil.copytree(folder, bad)
            change(bad)
            refused = sluice.cli("register", "bad", bad, "--version", "2", check=False)
            assert refused.returncode == 1 and names(refused.stderr, "INVALID_ARGUMENT", "MODEL_FILE_INVALID"), (name, refused.stderr)
            assert named in refused.stderr, (name, refused.stderr)
        assert sluice.children("sluice-manager") == [pid] and resident(pid) < rest + (8 << 20)
        assert sluice.generate(sluice.request("tiny-qwen3", "The first answer", max_tokens=24, temperature=0, ignore_eos=True))[0] == before
    finally:
        sluice.stop()


def test_a_tensor_of_another_type_is_refused_by_name(folder):
    """Types other than F32, F16 and BF16 are listed; a model that needs one is refused."""
    header, data = read_safetensors(folder / "model.safetensors")
    tensor = "model.layers.1.mlp.up_proj.weight"
    entry = header[tensor]
    entry["dtype"] = "I16"  # as many bytes as BF16
    write_safetensors(folder / "model.safetensors", header, data)
    report = subprocess.run([BIN / "sluice-worker", "inspect", folder, "--text", "--tensors"], capture_output=True, text=True, timeout=60)
    assert report.returncode == 0 and names(report.stdout, "I16")
    reason = [line for line in report.stdout.splitlines() if "unsupported_reason" in line]
    assert reason and all(names(line, tensor, "I16", "model.safetensors") for line in reason)
