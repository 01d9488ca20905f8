"""Real models through the whole stack (tests/long.sh models). Their answers are sensible, their perplexity is that of
llama.cpp, and their greedy tokens are those of transformers in f32. Each model is served from its GGUF file, the sample
model from a Hugging Face folder too."""
import ast
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from conftest import BIN, ROOT, Sluice, patience

sys.path.insert(0, str(ROOT / "tests/models"))
import fetch  # noqa: E402

CACHE = fetch.CACHE.parent
GOLDEN = CACHE / "golden-venv/bin/python"
TEXT = (ROOT / "tests/golden/perplexity.txt").read_text()
WINDOW = 1024  # longer than Gemma 3's window of 512
STEPS = 64
MAX_CHANGE = 0.01  # relative difference of two perplexities
MAX_EXPLAINED_MARGIN = 1e-3  # between two logits that rounding may swap
PROMPTS = [
    "The capital of France is",
    "def is_prime(n):\n",
    "Once upon a time, in a village between two rivers, there lived a clockmaker who had never owned a watch. Every morning he",
]


@dataclass(frozen=True)
class Real:
    name: str
    source: str  # a name of fetch.py
    instruct: bool
    folder: bool = False
    coder: bool = False


MODELS = [
    Real("smollm2", "smollm2", True),
    Real("smollm2-folder", "smollm2", True, folder=True),
    Real("qwen2.5-coder", "qwen2.5-coder", True, coder=True),
    Real("gemma3-270m", "gemma3-270m", False),
]


def golden(*args, **kwargs):
    """Runs reference.py in the venv of the reference packages."""
    return subprocess.run([GOLDEN, ROOT / "tests/models/reference.py", *args], check=True, stdout=subprocess.PIPE, text=True,
                          timeout=patience(1800), **kwargs).stdout


def path_of(real):
    path = fetch.fetch(real.source)
    if not real.folder:
        return path
    folder = CACHE / "models" / f"{real.name}-BF16"
    if not (folder / "tokenizer_config.json").exists():  # the last file that reference.py writes
        golden("folder", path, folder)
    return folder


class Served:
    """A model in two versions: `fast` has the kernels that serve, `exact` the f32 kernels and an f32 cache."""

    def __init__(self, real, sluice):
        self.real, self.sluice = real, sluice
        self.path = path_of(real)
        self.inference = sluice.stubs.inference
        for version, more in (("fast", []), ("exact", ["--kernels", "f32", "--kv-dtype", "f32"])):
            sluice.cli("register", real.name, self.path, "--version", version, timeout=300)
            sluice.cli("load", real.name, "--version", version, "--kv-tokens", "4096", *more, timeout=600)

    def tokenize(self, text, special=True):
        """Token ids of the text. `special`: with the tokens that the model expects around a text."""
        return list(self.sluice.inference.Tokenize(self.inference.TokenizeRequest(model=self.real.name, version="fast", text=text,
                                                                                  add_special_tokens=special)).ids)

    def request(self, version, ids=None, text=None, chat=None, max_tokens=1, output=None):
        prompt = {"token_ids": self.inference.TokenIds(ids=ids)} if ids else {"text": text} if text else {"chat": chat}
        return self.inference.GenerateRequest(
            model=self.real.name, version=version, sampling=self.inference.Sampling(temperature=0),
            stopping=self.inference.Stopping(max_tokens=max_tokens, ignore_eos=ids is not None), output=output, **prompt)

    def complete(self, *args, **kwargs):
        return self.sluice.inference.Complete(self.request(*args, **kwargs), timeout=patience(600))

    def logprobs(self, ids, version="fast"):
        """The log-probability of each token but the first."""
        answer = self.complete(version, ids=ids, output=self.inference.Output(prompt_logprobs=True))
        entries = answer.prompt_info.prompt_logprobs
        assert [e.id for e in entries] == ids
        return [e.logprob for e in entries[1:]]

    def windows(self):
        """The text in whole windows, as llama-perplexity cuts it: where the model expects BOS, a window's first token is BOS."""
        ids, plain = self.tokenize(TEXT), self.tokenize(TEXT, special=False)
        windows = [ids[at:at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]
        return [ids[:1] + w[1:] if len(ids) > len(plain) else w for w in windows]


@pytest.fixture(scope="module", params=MODELS, ids=lambda real: real.name)
def served(request, tmp_path_factory, stubs):
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start()
    try:
        yield Served(request.param, sluice)
    finally:
        sluice.stop()


def perplexity(logprobs):
    """Reads the later half of each window, where every token has at least half a window before it."""
    scored = [p for window in logprobs for p in window[WINDOW // 2:]]
    return math.exp(-sum(scored) / len(scored))


def llama_perplexity(path):
    """llama.cpp's perplexity of the text on the same file, with flash attention off and a cache in f16."""
    folder = subprocess.run([ROOT / "tests/bench/peers/llama_cpp.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    out = subprocess.run([f"{folder}/llama-perplexity", "-m", path, "-f", ROOT / "tests/golden/perplexity.txt", "-c", str(WINDOW), "-fa", "off"],
                         check=True, capture_output=True, text=True, timeout=patience(1800))
    (value,) = re.findall(r"Final estimate: PPL = ([0-9.]+)", out.stdout + out.stderr)
    (chunks,) = re.findall(r"calculating perplexity over (\d+) chunks", out.stdout + out.stderr)
    return float(value), int(chunks)


def reference(served, **job):
    return json.loads(golden("compute", served.path, input=json.dumps({"greedy": [], "windows": [], "steps": STEPS} | job)))


def check_function(served):
    """The coder writes a function that parses and returns a value."""
    said = served.sluice.run(served.real.name, "Write a Python function add(a, b) that returns the sum of two numbers. Answer with code only.",
                             "-n", "200", "--temperature", "0", "--version", "fast")
    blocks = re.findall(r"```(?:python)?\n(.*?)```", said.stdout, re.DOTALL) or [said.stdout]
    functions = [node for node in ast.walk(ast.parse(blocks[0])) if isinstance(node, ast.FunctionDef)]
    assert [f.name for f in functions] == ["add"] and any(isinstance(node, ast.Return) for node in ast.walk(functions[0])), said.stdout


def test_answers_are_sensible(served):
    begin, answer = ("The capital of France is", "Paris") if served.real.instruct else ("The city of Paris is the capital of", "France")
    for version in ("fast", "exact"):
        (choice,) = served.complete(version, text=begin, max_tokens=8).choices
        assert answer in choice.text, (version, choice.text)
    said = served.sluice.run(served.real.name, begin, "--raw", "-n", "8", "--temperature", "0", "--version", "fast")
    assert answer in said.stdout, said.stdout
    if not served.real.instruct:
        return
    question = "What is the capital of France?"
    message = served.inference.ChatMessage(role="user", content=question)
    stream = served.sluice.generate(served.request("fast", chat=served.inference.Chat(messages=[message]), max_tokens=64))
    assert "Paris" in stream[0] and stream[2].reason == served.inference.FINISH_REASON_EOS, stream
    chat = subprocess.run([BIN / "sluice", "chat", served.real.name, "--no-history", "--temperature", "0", "--state-dir", served.sluice.state,
                           "--server", served.sluice.address], input=question + "\n", capture_output=True, text=True, timeout=patience(120))
    assert chat.returncode == 0 and "Paris" in chat.stdout, chat
    if served.real.coder:
        check_function(served)


def test_perplexity_is_that_of_others(served):
    windows = served.windows()
    ours = perplexity([served.logprobs(ids) for ids in windows])
    if served.real.folder:
        other, theirs = "transformers, f32", perplexity(reference(served, windows=windows)["logprobs"])
    else:
        other, (theirs, chunks) = "llama.cpp", llama_perplexity(served.path)
        assert chunks == len(windows)
    print(f"\n{served.real.name}: perplexity {ours:.4f}, {other} {theirs:.4f} ({100 * (ours / theirs - 1):+.3f} %), "
          f"{len(windows) * (WINDOW // 2 - 1)} tokens")
    assert abs(ours / theirs - 1) <= MAX_CHANGE


def test_greedy_tokens_are_those_of_transformers(served):
    """With the f32 kernels. A different token is allowed where the two best logits are as close as rounding is."""
    prompts = [served.tokenize(text) for text in PROMPTS]
    expected = reference(served, greedy=prompts)["greedy"]
    agree, wrong = 0, []
    for ids, other in zip(prompts, expected):
        (choice,) = served.complete("exact", ids=ids, max_tokens=STEPS).choices
        ours = list(choice.ids)
        first = next((i for i in range(STEPS) if ours[i] != other["ids"][i]), STEPS)
        agree += first == STEPS
        if first < STEPS and other["margins"][first] >= MAX_EXPLAINED_MARGIN:
            wrong.append((first, ours[first], other["ids"][first], other["margins"][first]))
    print(f"\n{served.real.name}: {agree} of {len(prompts)} prompts × {STEPS} tokens agree")
    assert not wrong, wrong
