"""Programs that many people use with OpenAI's API, against a running server: libraries, load generators and an evaluation.

They run in a venv of their own (tests/support/clients_venv.sh), each as a process. A package that does not install skips its
test, with pip's words."""
import json
import os
import pathlib
import subprocess

import pytest
import requests
from gguf import GGUFReader

from conftest import ROOT, Sluice, free_port, model_path, patience

CLIENTS = pathlib.Path(os.environ.get("SLUICE_CLIENTS_VENV", ROOT / "build/clients-venv"))
PARIS = "The capital of France is"
SPECIAL = 3  # kind of a special token in a GGUF file


def write_tokenizer(folder):
    """Writes the sample model's tokenizer as a Hugging Face folder: byte-level BPE with digits one by one."""
    fields = GGUFReader(model_path()).fields
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{k}"].contents() for k in ("tokens", "merges", "token_type"))
    bos, eos = (tokens[fields[f"tokenizer.ggml.{k}_token_id"].contents()] for k in ("bos", "eos"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    made = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": level,
            "added_tokens": [dict(flags, id=i, content=t) for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == SPECIAL],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}}
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos,
                                                              "eos_token": eos, "model_max_length": 8192}))


@pytest.fixture(scope="module")
def api(tmp_path_factory, stubs):
    """The sample model as "smol" over HTTP, and its tokenizer as the model local/smol of a hub's cache."""
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    port = free_port()
    sluice.url = f"http://127.0.0.1:{port}"
    hub = tmp_path_factory.mktemp("hub")
    cached = hub / "hub/models--local--smol"
    sluice.tokenizer = cached / "snapshots" / ("0" * 40)
    write_tokenizer(sluice.tokenizer)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0" * 40)
    sluice.environment = dict(os.environ, HF_HOME=str(hub), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
                              TOKENIZERS_PARALLELISM="false", LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_API_KEY="x",
                              URL=f"{sluice.url}/v1")
    sluice.start(env={"SLUICE_HTTP_LISTEN": f"127.0.0.1:{port}"})
    try:
        sluice.cli("register", "smol", model_path(), "--version", "1")
        sluice.cli("load", "smol")
        sluice.wait(lambda: requests.get(f"{sluice.url}/v2/models/smol/ready", timeout=patience(30)).status_code == 200, 60,
                    "the model is ready")
        sluice.text = complete(sluice, PARIS).choices[0].text
        chat = stubs.inference.GenerateRequest(model="smol")
        chat.chat.messages.add(role="user", content=PARIS)
        chat.sampling.temperature, chat.stopping.max_tokens = 0, 8
        sluice.said = sluice.inference.Complete(chat, timeout=patience(60)).choices[0].text
        yield sluice
    finally:
        sluice.stop()


def complete(api, prompt, **kwargs):
    return api.inference.Complete(api.request("smol", prompt, max_tokens=8, temperature=0, **kwargs), timeout=patience(60))


def run(api, package, *command, script=None, cwd=None):
    """Runs a program of the venv and returns its output. Skips the test if the package did not install."""
    missing = (CLIENTS / "missing").read_text().splitlines() if (CLIENTS / "missing").exists() else []
    for line in missing:
        if line.startswith(f"{package}:"):
            pytest.skip(f"does not install: {line}")
    assert (CLIENTS / "bin/python").exists(), f"tests/support/clients_venv.sh makes {CLIENTS}"
    command = [CLIENTS / "bin/python", "-c", script] if script else [CLIENTS / "bin" / command[0], *command[1:]]
    result = subprocess.run(command, env=api.environment, cwd=cwd, capture_output=True, text=True, timeout=patience(300))
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


def answers(api, package, script):
    """The object that a script prints last."""
    return json.loads(run(api, package, script=script).splitlines()[-1])


def test_langchain(api):
    got = answers(api, "langchain-openai", f"""
import json, os
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
class Form(BaseModel):
    x: int
same = dict(base_url=os.environ["URL"], model="smol", temperature=0, max_tokens=8)
chat = ChatOpenAI(**same)
whole = chat.invoke({PARIS!r})
parts = list(ChatOpenAI(stream_usage=True, **same).stream({PARIS!r}))
scored = ChatOpenAI(logprobs=True, top_logprobs=2, **same).invoke({PARIS!r}).response_metadata["logprobs"]["content"]
try:
    chat.with_structured_output(Form).invoke("hi")
    refused = None
except Exception as e:
    refused = [e.status_code, e.param]
print(json.dumps(dict(text=OpenAI(**same).invoke({PARIS!r}), said=whole.content, usage=whole.usage_metadata["output_tokens"],
                      streamed="".join(p.content for p in parts), n=len(parts), used=[p.usage_metadata["output_tokens"] for p in parts if p.usage_metadata],
                      scored="".join(s["token"] for s in scored), many=[m.content for m in chat.batch([{PARIS!r}] * 4)], refused=refused)))
""")
    assert (got["text"], got["said"], got["streamed"], got["scored"]) == (api.text, api.said, api.said, api.said)
    assert (got["usage"], got["used"], got["many"]) == (8, [8], [api.said] * 4) and got["n"] > 2
    assert got["refused"] == [400, "response_format"]


def test_llama_index(api):
    got = answers(api, "llama-index-llms-openai-like", f"""
import json, os
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
found = []
for is_chat in (False, True):
    m = OpenAILike(model="smol", api_base=os.environ["URL"], is_chat_model=is_chat, temperature=0, max_tokens=8, context_window=2048)
    ask = [ChatMessage(role="user", content={PARIS!r})]
    found.append([m.complete({PARIS!r}).text, "".join(p.delta for p in m.stream_complete({PARIS!r}))] if not is_chat else
                 [m.chat(ask).message.content, "".join(p.delta or "" for p in m.stream_chat(ask))])
print(json.dumps(found))
""")
    assert got == [[api.text, api.text], [api.said, api.said]]


def test_litellm(api):
    got = answers(api, "litellm", f"""
import json, os, litellm
url = os.environ["URL"]
ask = lambda model, text, **more: litellm.completion(model=model, api_base=url, api_key="x", temperature=0, max_tokens=8,
                                                     messages=[dict(role="user", content=text)], **more)
said, streamed, failed = [], [], []
for model in ("openai/smol", "hosted_vllm/smol"):
    said.append(ask(model, {PARIS!r}).choices[0].message.content)
    streamed.append("".join(c.choices[0].delta.content or "" for c in ask(model, {PARIS!r}, stream=True)))
text = litellm.text_completion(model="text-completion-openai/smol", api_base=url, api_key="x", prompt={PARIS!r}, max_tokens=8, temperature=0)
for model, words in (("openai/none", "hi"), ("openai/smol", "word " * 9000)):
    try:
        ask(model, words)
    except Exception as e:
        failed.append(type(e).__name__)
print(json.dumps(dict(said=said, streamed=streamed, text=text.choices[0].text, failed=failed)))
""")
    assert got == {"said": [api.said] * 2, "streamed": [api.said] * 2, "text": api.text,
                   "failed": ["NotFoundError", "ContextWindowExceededError"]}


def test_guidellm(api, tmp_path):
    run(api, "guidellm", "guidellm", "run", "--backend", f"kind=openai_http,target={api.url},model=smol",
        "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
        "--tokenizer", f"kind=huggingface_auto,model={api.tokenizer}", "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
        "--output", f"kind=json,path={tmp_path / 'report.json'}", "--disable-console", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    requests_made = report["benchmarks"][0]["requests"]
    assert (len(requests_made["successful"]), len(requests_made["errored"])) == (6, 0)
    assert {r["output_tokens"] for r in requests_made["successful"]} == {8}


@pytest.mark.parametrize("kind", ["chat", "completions", "huggingface-generate"])
def test_aiperf(api, tmp_path, kind):
    run(api, "aiperf", "aiperf", "profile", "--model", "smol", "--url", api.url, "--endpoint-type", kind, "--streaming", "--tokenizer",
        "local/smol", "--request-count", "6", "--concurrency", "2", "--synthetic-input-tokens-mean", "20", "--synthetic-input-tokens-stddev",
        "0", "--output-tokens-mean", "8", "--output-tokens-stddev", "0", "--artifact-dir", tmp_path, "--ui", "simple", cwd=tmp_path)
    report = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 6 and report["time_to_first_token"]["avg"] > 0
    assert "error_request_count" not in report or not report["error_request_count"]["avg"]


DOCS = [("France", ["Paris", "Rome"]), ("Italy", ["Rome", "a city of 12 hills"]), ("Spain", ["Madrid", "Lisbon"]),
        ("Japan", ["Tokyo", "São Paulo"]), ("Peru", ["Lima", "somewhere"]), ("Egypt", ["Cairo", "Oslo"])]


def loglikelihood(api, context, continuation):
    """(sum of the continuation's log-probabilities, is each token the likeliest) over gRPC."""
    tokenize = api.stubs.inference.TokenizeRequest
    ids = list(api.inference.Tokenize(tokenize(model="smol", text=context + continuation)).ids)
    n_context = len(api.inference.Tokenize(tokenize(model="smol", text=context)).ids)
    request = api.request("smol", "", max_tokens=1, temperature=0)
    request.token_ids.ids.extend(ids)
    request.output.prompt_logprobs, request.output.top_n = True, 1
    entries = api.inference.Complete(request, timeout=patience(60)).prompt_info.prompt_logprobs[n_context:]
    return sum(e.logprob for e in entries), all(e.top[0].id == e.id for e in entries)


def test_lm_eval_gives_the_loglikelihoods_of_grpc(api, tmp_path):
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"country": c, "choices": choices, "answer": 0}) + "\n" for c, choices in DOCS))
    (tmp_path / "capitals.yaml").write_text(f"""
task: capitals
dataset_path: json
dataset_kwargs:
  data_files:
    test: {tmp_path / "docs.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
""")
    run(api, "lm-eval", "lm_eval", "--model", "local-completions", "--model_args",
        f"base_url={api.url}/v1/completions,model=smol,tokenizer={api.tokenizer},tokenized_requests=True,num_concurrent=1",
        "--include_path", tmp_path, "--tasks", "capitals", "--batch_size", "4", "--output_path", tmp_path / "out", "--log_samples", cwd=tmp_path)
    [samples] = (tmp_path / "out").rglob("samples_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(rows) == len(DOCS)
    for row in rows:
        for (score, greedy), arguments in zip(row["filtered_resps"], row["arguments"].values()):
            wanted, is_greedy = loglikelihood(api, arguments["arg_0"], arguments["arg_1"])
            assert float(score) == pytest.approx(wanted, abs=1e-4), arguments
            assert (greedy == "True") == is_greedy, arguments
