"""Fill in the middle: the prompt that a suffix builds, through all programs. The model is tests/golden/tiny/qwen3 with a
tokenizer of the 256 bytes and the tokens of Qwen's family."""
import json
import shutil

import grpc
import pytest
import requests

from conftest import bad_field, free_port, model_path, names, patience
from test_folder import MODEL, tokenizer

PREFIX, SUFFIX, MIDDLE, PADDING = 257, 258, 259, 260
TEXTS = {PREFIX: "<|fim_prefix|>", SUFFIX: "<|fim_suffix|>", MIDDLE: "<|fim_middle|>", PADDING: "<|fim_pad|>"}


@pytest.fixture(scope="module")
def filler(tmp_path_factory, stubs):
    """The tiny model as "filler", and the sample model, which has no such tokens, as "plain"."""
    from conftest import Sluice
    folder = tmp_path_factory.mktemp("model") / "Filler"
    shutil.copytree(MODEL, folder)
    made = tokenizer()
    # Not "special": such tokens are matched in every text, so the texts of users must be guarded from them.
    made["added_tokens"] += [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                              "special": False} for i, text in TEXTS.items()]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.folder = folder
    port = free_port()
    sluice.url = f"http://127.0.0.1:{port}/v1/completions"
    sluice.start(env={"SLUICE_HTTP_LISTEN": f"127.0.0.1:{port}"})
    try:
        for name, path in (("filler", folder), ("plain", model_path())):
            sluice.cli("register", name, path, "--version", "1")
            sluice.cli("load", name, "--kv-tokens", "2048")
        sluice.wait(lambda: len(sluice.ready()) == 2, 60, "both are ready")
        yield sluice
    finally:
        sluice.stop()


def fill(filler, prefix, suffix, **kwargs):
    request = filler.request("filler", prefix, suffix=suffix, **kwargs)
    request.output.return_prompt_token_ids = True
    return filler.inference.Complete(request, timeout=patience(30))


@pytest.mark.parametrize("prefix,suffix", [("def f(", ") -> int:"), ("", "end"), ("é", "\n"), ("a<|fim_suffix|>b", "c<|fim_middle|><|end|>")])
def test_prefix_and_suffix_stand_behind_their_tokens(filler, prefix, suffix):
    answer = fill(filler, prefix, suffix, max_tokens=8, temperature=0)
    ids = list(answer.prompt_info.prompt_token_ids)
    # a token of a text is a byte: no literal of a user's text becomes a special token
    assert ids == [PREFIX, *prefix.encode(), SUFFIX, *suffix.encode(), MIDDLE]
    # the same ids as a prompt give the same answer
    request = filler.request("filler", "", max_tokens=8, temperature=0)
    request.token_ids.ids.extend(ids)
    assert filler.inference.Complete(request, timeout=patience(30)).choices[0].ids == answer.choices[0].ids


def test_a_padding_token_ends_the_gap(filler):
    inference = filler.stubs.inference
    request = filler.request("filler", "a", suffix="b", max_tokens=8, temperature=0)
    request.sampling.allowed_token_ids.append(PADDING)
    finished = filler.inference.Complete(request, timeout=patience(30)).choices[0].finished
    assert (finished.reason, finished.n_tokens, finished.stop_token_id) == (inference.FINISH_REASON_EOS, 1, PADDING)
    request.ClearField("suffix")  # without a gap it is a token like others
    assert filler.inference.Complete(request, timeout=patience(30)).choices[0].finished.n_tokens == 8


def refused(filler, request, field):
    with pytest.raises(grpc.RpcError) as e:
        filler.inference.Complete(request, timeout=patience(30))
    assert (e.value.code(), bad_field(e.value)) == (grpc.StatusCode.INVALID_ARGUMENT, field), e.value


def test_a_suffix_that_cannot_be_used_is_refused_by_name(filler):
    refused(filler, filler.request("plain", "a", suffix="b", max_tokens=1), "suffix")
    chat = filler.request("filler", "", suffix="b", max_tokens=1)
    chat.chat.messages.add(role="user", content="hi")
    refused(filler, chat, "suffix")
    ids = filler.request("filler", "", suffix="b", max_tokens=1)
    ids.token_ids.ids.append(5)
    refused(filler, ids, "suffix")
    for field, value in (("return_full_text", True), ("truncate", 4)):
        request = filler.request("filler", "a", suffix="b", max_tokens=1)
        setattr(request.output, field, value)
        refused(filler, request, f"output.{field}")


def test_inspect_and_show_name_the_tokens(filler):
    shown = filler.cli("show", "filler").stdout
    assert names(shown, *TEXTS), shown
    looked = filler.cli("inspect", filler.folder).stdout
    assert all(f"{i} {text}" in looked for i, text in TEXTS.items()), looked
    info = {m.name: m.versions[0].info for m in filler.inference.ListModels(filler.stubs.inference.ListModelsRequest()).models}
    assert (info["filler"].fim.prefix, info["filler"].fim.padding, info["filler"].capabilities.suffix) == (PREFIX, PADDING, True)
    assert not info["plain"].HasField("fim") and not info["plain"].capabilities.suffix


def test_the_fingerprint_names_weights_and_arithmetic(filler):
    served = {m.name: m.versions[0] for m in filler.inference.ListModels(filler.stubs.inference.ListModelsRequest()).models}
    marks = {name: list(v.fingerprints) for name, v in served.items()}
    assert [len(m) for m in marks.values()] == [1, 1] and marks["filler"] != marks["plain"]
    for _ in range(2):
        for name in marks:
            answer = filler.inference.Complete(filler.request(name, "a", max_tokens=1), timeout=patience(30))
            assert answer.prompt_info.fingerprint == marks[name][0]


def test_the_command_line_fills_gaps(filler):
    """Symptom: `sluice run` had no --suffix."""
    answer = fill(filler, "def f(", "): pass", max_tokens=12, temperature=0, ignore_eos=True)
    options = ("def f(", "--suffix", "): pass", "-n", "12", "--json")
    events = [json.loads(line) for line in filler.cli("run", "filler", *options, "--ignore-eos", "-t", "0").stdout.splitlines()]
    ids = [i for event in events for i in event.get("tokens", {}).get("ids", [])]
    assert ids == list(answer.choices[0].ids)
    refused = filler.cli("run", "plain", *options, check=False)
    assert refused.returncode == 1 and json.loads(refused.stderr)["error"]["field"] == "suffix"


def test_openai_fills_gaps_as_grpc_does(filler):
    answer = fill(filler, "def f(", "): pass", max_tokens=12, temperature=0, ignore_eos=True)
    body = {"model": "filler", "prompt": "def f(", "suffix": "): pass", "max_tokens": 12, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    got = requests.post(filler.url, json=body, timeout=patience(30)).json()
    assert got["choices"][0]["token_ids"] == answer.choices[0].ids and got["choices"][0]["text"] == answer.choices[0].text
    assert got["usage"]["prompt_tokens"] == len(answer.prompt_info.prompt_token_ids)
    assert got["system_fingerprint"] == answer.prompt_info.fingerprint
    refused = requests.post(filler.url, json=body | {"model": "plain"}, timeout=patience(30))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "suffix")
