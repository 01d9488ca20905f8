"""Models of other architectures than Llama through the programs: a tiny GPT-2, BLOOM, Qwen3, Phi-3 and Qwen3.5
(tests/golden/tiny).
Answers of Phi-3 cross the original context of longrope, 32 tokens.
The answers are the same for each number of ranks and for each repetition. The server refuses a prompt or a context
beyond the context length of the file. The manager refuses a file that is not supported."""
import subprocess

import grpc
import pytest

from conftest import BIN, ROOT, names

TINY = ROOT / "tests/golden/tiny"
MODELS = {"gpt2": TINY / "gpt2_q8_0.gguf", "bloom": TINY / "bloom_q4_1.gguf", "qwen3": TINY / "qwen3.gguf",
          "phi3": TINY / "phi3_long.gguf", "qwen35": TINY / "qwen35.gguf"}
TEXT = "The first (and 2nd) answer, it's"
CONTEXTS = {"gpt2": 200, "bloom": 200, "qwen3": 200, "phi3": 256, "qwen35": 256}


@pytest.fixture(scope="module")
def served(tmp_path_factory, stubs):
    """Each model is version 1 on a single rank, and version 2, from the same file, on two ranks."""
    from conftest import Sluice
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start()
    try:
        for name, path in MODELS.items():
            sluice.cli("register", name, path, "--version", "1")
            sluice.cli("load", name, "--version", "1", "--kv-tokens", "2048")
            sluice.cli("register", name, path, "--version", "2")
            sluice.cli("load", name, "--version", "2", "--kv-tokens", "2048", "--tp", "2")
            for version in ("1", "2"):
                sluice.wait(lambda: answers(sluice, name, version), 30, f"{name} {version} answers")
        yield sluice
    finally:
        sluice.stop()


def ask(sluice, name, version, text=TEXT, **kwargs):
    return sluice.generate(sluice.request(name, text, version=version, ignore_eos=True, **kwargs), timeout=60)


def answers(sluice, name, version):
    try:
        return bool(ask(sluice, name, version, max_tokens=1)[1])
    except grpc.RpcError:
        return False


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_the_same_whatever_the_ranks(served, name):
    text, ids, finished = ask(served, name, "1", max_tokens=40, temperature=0)
    assert len(ids) == 40 and text and finished
    assert ask(served, name, "1", max_tokens=40, temperature=0)[1] == ids
    assert ask(served, name, "2", max_tokens=40, temperature=0)[1] == ids
    drawn = ask(served, name, "1", max_tokens=40, temperature=1.0, seed=7)[1]
    assert drawn != ids and ask(served, name, "2", max_tokens=40, temperature=1.0, seed=7)[1] == drawn


@pytest.mark.parametrize("name", MODELS)
def test_text_becomes_ids_and_text_again(served, name):
    ids = served.inference.Tokenize(served.stubs.inference.TokenizeRequest(model=name, text=TEXT)).ids
    assert 4 < len(ids) < len(TEXT) + 1
    assert served.inference.Detokenize(served.stubs.inference.DetokenizeRequest(model=name, ids=ids)).text == TEXT


@pytest.mark.parametrize("name", MODELS)
def test_the_context_is_what_the_file_says(served, name):
    model = served.inference.GetModel(served.stubs.inference.GetModelRequest(model=name))
    context = CONTEXTS[name]
    assert str(context) in str(model)
    with pytest.raises(grpc.RpcError) as refused:
        ask(served, name, "1", text="a b c " * context, max_tokens=4)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    longer = served.cli("load", name, "--version", "1", "--context-length", str(context + 1), "--validate-only", check=False)
    assert longer.returncode != 0 and names(longer.stderr, "--context-length", context + 1, context), longer


def test_a_model_that_is_not_supported_is_refused_in_one_sentence(served, tmp_path):
    """Symptom: `tokenizer "llam" is not known, ...; use a model with a byte-level BPE tokenizer is not supported`."""
    data = MODELS["gpt2"].read_bytes()
    at = data.index(b"gpt2", data.index(b"tokenizer.ggml.model"))
    path = tmp_path / "other.gguf"
    path.write_bytes(data[:at] + b"llam" + data[at + 4:])
    report = subprocess.run([BIN / "sluice-worker", "inspect", path], check=True, capture_output=True).stdout
    reason = served.stubs.report.ToolReport.FromString(report).inspect.unsupported_reason
    refused = served.cli("register", "other", path, check=False)
    assert refused.returncode == 1 and reason, refused
    assert refused.stderr.splitlines()[0].endswith(f": {reason} (FAILED_PRECONDITION, MODEL_UNSUPPORTED)"), refused.stderr
