"""Reasoning and content of an answer, through all programs. The model is tests/golden/tiny/qwen3 with a tokenizer of the 256
bytes and the tokens <think> and </think>. Its weights are random, so it opens and closes thoughts anywhere."""
import json
import os
import queue
import shutil
import signal
import subprocess

import grpc
import pytest
import requests

from conftest import BIN, bad_field, free_port, model_path, patience
from test_folder import MODEL, tokenizer

OPEN, CLOSE = 257, 258
TEMPLATE = ("{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
            "{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% if thinks %}<think>\n{% endif %}{% endif %}")
# letters, white space, a character of four bytes, and the markers
ALLOWED = [*b"ab.\n", *"🎉".encode(), OPEN, CLOSE]


def make_model(path):
    shutil.copytree(MODEL, path)
    made = tokenizer()
    made["added_tokens"] += [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                              "special": False} for i, text in ((OPEN, "<think>"), (CLOSE, "</think>"))]
    (path / "tokenizer.json").write_text(json.dumps(made))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates/thinks.jinja").write_text("{{ messages[0].content }}<think>\n")
    return path


@pytest.fixture(scope="module")
def thinker(tmp_path_factory, stubs):
    from conftest import Sluice
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    port = free_port()
    sluice.url = f"http://127.0.0.1:{port}/v1/chat/completions"
    sluice.start(env={"SLUICE_HTTP_LISTEN": f"127.0.0.1:{port}"})
    try:
        for name, path in (("thinker", make_model(tmp_path_factory.mktemp("model") / "Thinker")), ("sample", model_path())):
            sluice.cli("register", name, path, "--version", "1")
            sluice.cli("load", name, "--kv-tokens", "4096")
        sluice.wait(lambda: len(sluice.ready()) == 2, 60, "both are ready")
        yield sluice
    finally:
        sluice.stop()


def ask(thinker, seed, thinks=False, max_tokens=60, **kwargs):
    request = thinker.request("thinker", "", seed=seed, temperature=1.0, max_tokens=max_tokens, ignore_eos=True, **kwargs)
    request.chat.messages.add(role="user", content=f"question {seed}")
    request.chat.template_variables_json = json.dumps({"thinks": thinks})
    request.sampling.allowed_token_ids.extend(ALLOWED)
    return request


def split(ids, thinks):
    """(reasoning, content, number of ids that are reasoning): what this test takes for right."""
    kinds, state = [], "think" if thinks else "begin"
    for i in ids:
        if state == "begin" and i == OPEN:
            kinds, state = ["marker"] * (len(kinds) + 1), "think"
            continue
        if state == "begin" and i not in (10, 32):
            state = "answer"
        kinds.append("marker" if state == "think" and i == CLOSE else state)
        if kinds[-1] == "marker":
            state = "answer"
    kinds = ["answer" if kind == "begin" else kind for kind in kinds]
    spell = {OPEN: b"<think>", CLOSE: b"</think>"}
    text = {kind: b"".join(spell.get(i) or bytes([i]) for i, k in zip(ids, kinds) if k == kind).decode(errors="replace")
            for kind in ("think", "answer")}
    return text["think"], text["answer"], len(kinds) - kinds.count("answer")


def stream(thinker, request, **kwargs):
    """The answer of each choice: (reasoning, content, ids, ids that are reasoning, finished), and the usage."""
    parts, usage = {}, None
    for response in thinker.inference.Generate(request, timeout=patience(60), **kwargs):
        kind = response.WhichOneof("event")
        if kind == "tokens":
            choice = parts.setdefault(response.tokens.choice, ["", "", [], [], None])
            is_reasoning = response.tokens.kind == thinker.stubs.inference.PART_KIND_REASONING
            choice[not is_reasoning] += response.tokens.text
            choice[2] += response.tokens.ids
            choice[3] += list(response.tokens.ids) if is_reasoning else []
        elif kind == "finished":
            parts.setdefault(response.finished.choice, ["", "", [], [], None])[4] = response.finished
            usage = response.finished.usage if response.finished.HasField("usage") else usage
    return [parts[i] for i in sorted(parts)], usage


@pytest.mark.parametrize("seed", range(24))
def test_reasoning_and_content_are_apart_at_any_tokens(thinker, seed):
    thinks, n = seed % 2 == 1, 1 + seed % 3
    request = ask(thinker, seed, thinks, n=n)
    choices, usage = stream(thinker, request)
    assert len(choices) == n
    for reasoning, content, ids, thought, finished in choices:
        want_reasoning, want_content, n_reasoning = split(ids, thinks)
        assert (reasoning, content) == (want_reasoning, want_content)
        assert thought == ids[:n_reasoning] and finished.n_reasoning_tokens == n_reasoning
    assert usage.n_reasoning_tokens == sum(len(c[3]) for c in choices) <= usage.n_generated_tokens == 60 * n
    whole = thinker.inference.Complete(request, timeout=patience(60))
    assert [(c.reasoning_text, c.text, list(c.ids)) for c in whole.choices] == [tuple(c[:3]) for c in choices]
    assert whole.usage.n_reasoning_tokens == usage.n_reasoning_tokens
    # turned off, the same tokens are content, markers included
    request.output.split_reasoning = False
    plain, usage = stream(thinker, request)
    spell = {OPEN: b"<think>", CLOSE: b"</think>"}
    assert [c[2] for c in plain] == [c[2] for c in choices] and usage.n_reasoning_tokens == 0
    for reasoning, content, ids, thought, _ in plain:
        assert (reasoning, thought) == ("", [])
        assert content == b"".join(spell.get(i) or bytes([i]) for i in ids).decode(errors="replace")


def test_stop_strings_match_in_content_alone(thinker):
    n_stopped = n_thought = 0
    for seed in range(40, 64):
        (reasoning, content, *_), = stream(thinker, ask(thinker, seed, thinks=True))[0]
        (thought, answer, _, _, finished), = stream(thinker, ask(thinker, seed, thinks=True, stop=["ab", "b."]))[0]
        first = min((content.find(stop) for stop in ("ab", "b.") if stop in content), default=len(content))
        assert (thought, answer) == (reasoning, content[:first])
        stopped = finished.reason == thinker.stubs.inference.FINISH_REASON_STOP_STRING
        assert stopped == (first < len(content))
        n_stopped += stopped
        n_thought += "ab" in reasoning or "b." in reasoning
    assert n_stopped > 3 and n_thought > 3


def test_raw_prompts_are_not_split_unless_asked(thinker):
    request = thinker.request("thinker", "x", seed=1, temperature=1.0, max_tokens=40, ignore_eos=True)
    request.sampling.allowed_token_ids.extend([OPEN, CLOSE, *b"ab"])
    request.sampling.logit_bias.add(token_id=OPEN, bias=2)
    (reasoning, content, ids, _, _), = stream(thinker, request)[0]
    assert not reasoning and "<think>" in content
    request.output.split_reasoning = True
    (reasoning, content, again, thought, _), = stream(thinker, request)[0]
    assert again == ids and (reasoning, content, len(thought)) == split(ids, False)
    request.output.return_full_text = True
    with pytest.raises(grpc.RpcError) as e:
        thinker.inference.Complete(request, timeout=patience(30))
    assert (e.value.code(), bad_field(e.value)) == (grpc.StatusCode.INVALID_ARGUMENT, "output.split_reasoning")


def test_a_continued_message_goes_on_in_its_part(thinker):
    for field, place in (("reasoning_content", True), ("content", False)):
        request = ask(thinker, 7)
        request.chat.ClearField("template_variables_json")
        message = request.chat.messages.add(role="assistant")
        setattr(message, field, "a")
        request.chat.continue_final_message, request.chat.continue_field = True, field
        (reasoning, content, ids, _, _), = stream(thinker, request)[0]
        spell = {OPEN: b"<think>", CLOSE: b"</think>"}
        raw = b"".join(spell.get(i) or bytes([i]) for i in ids).decode(errors="replace")
        assert (reasoning, content) == (split(ids, True)[:2] if place else ("", raw))


def balanced(thinker):
    """(seed, reasoning, content, number of reasoning ids, ids) of an answer that has much of both parts."""
    for seed in range(200):
        (reasoning, content, ids, thought, _), = stream(thinker, ask(thinker, seed, thinks=True))[0]
        if 12 < len(thought) < 48:
            return seed, reasoning, content, len(thought), ids
    raise AssertionError("no seed gives both parts")


# The sample model has no tokens for the markers, so it spells them. Examples teach it to think.
EXAMPLES = "".join(f"Question: What is the capital of {land}?\nAnswer: <think>\n{land} is a country. Its capital is {city}.\n</think>\n{city}.\n\n"
                   for land, city in (("Spain", "Madrid"), ("Italy", "Rome"), ("Japan", "Tokyo")))


def ask_sample(thinker, **kwargs):
    request = thinker.request("sample", "", temperature=0, max_tokens=40, **kwargs)
    request.chat.messages.add(role="user", content="France")
    request.chat.template_override = EXAMPLES + "Question: What is the capital of {{ messages[0].content }}?\nAnswer: <think>\n"
    return request


def test_markers_may_be_spelled_by_ordinary_tokens(thinker):
    (reasoning, content, ids, thought, finished), = stream(thinker, ask_sample(thinker, stop=["\n\n", "\n</"]))[0]
    assert "Paris" in reasoning and content.strip() == "Paris." and "think" not in reasoning + content
    plain = ask_sample(thinker, stop=["\n\n"])
    plain.output.split_reasoning = False
    (_, raw, _, _, _), = stream(thinker, plain)[0]
    assert raw == f"{reasoning}</think>{content}"


@pytest.mark.parametrize("place", ["reasoning", "marker", "between", "content"])
@pytest.mark.long(but=["marker"])
def test_a_killed_worker_changes_neither_part(thinker, place):
    inference = thinker.stubs.inference
    (reasoning, content, ids, thought, _), = stream(thinker, ask_sample(thinker))[0]
    assert len(thought) > 12 and len(ids) == 40
    n_before = len(thought) + {"reasoning": -9, "marker": -1, "between": 0, "content": 2}[place]
    request, frames = ask_sample(thinker), queue.Queue()
    request.request_id, request.credit_tokens = place, n_before
    frames.put(inference.GenerateStreamRequest(start=request))
    got, n, dead = ["", ""], 0, []
    for answer in thinker.inference.GenerateStream(iter(frames.get, None), timeout=patience(60)):
        kind = answer.WhichOneof("frame")
        assert kind != "error", answer.error
        if kind == "tokens":
            got[answer.tokens.kind != inference.PART_KIND_REASONING] += answer.tokens.text
            n += len(answer.tokens.ids)
        if n == n_before and not dead:
            dead = thinker.children("sluice-worker")
            for pid in dead:
                os.kill(pid, signal.SIGKILL)
            more = inference.GenerateStreamRequest(request_id=request.request_id)
            more.credit.n_tokens = 1000
            frames.put(more)
        if kind == "finished":
            assert answer.finished.receipt.n_resumes > 0 and answer.finished.n_reasoning_tokens == len(thought)
            frames.put(None)
    assert got == [reasoning, content]
    thinker.wait(lambda: len([r for r in thinker.ready() if int(r["pid"]) not in dead]) == 2, 60, "both are ready again")


def test_a_reattached_client_gets_the_rest_of_each_part(thinker):
    inference = thinker.stubs.inference
    seed, reasoning, content, _, ids = balanced(thinker)
    for n_received in range(0, len(ids), 3):
        request = ask(thinker, seed, thinks=True)
        request.request_id, request.reattach_window_ms = f"r{n_received}", 20000
        got, n = ["", ""], 0
        call = thinker.inference.GenerateStream(iter([inference.GenerateStreamRequest(request_id=request.request_id, start=request)]),
                                                timeout=patience(60))
        frames = [f for f in call]
        # the client has lost all after the first n_received tokens
        for frame in frames:
            if frame.WhichOneof("frame") == "tokens":
                if n + len(frame.tokens.ids) > n_received:
                    break
                got[frame.tokens.kind != inference.PART_KIND_REASONING] += frame.tokens.text
                n += len(frame.tokens.ids)
        frame = inference.GenerateStreamRequest(request_id=request.request_id)
        frame.reattach.received.add(choice=0, n_tokens=n)
        for answer in thinker.inference.GenerateStream(iter([frame]), timeout=patience(60)):
            assert answer.WhichOneof("frame") != "error", answer.error
            if answer.WhichOneof("frame") == "tokens":
                got[answer.tokens.kind != inference.PART_KIND_REASONING] += answer.tokens.text
        assert got == [reasoning, content]


def test_the_model_tells_that_it_reasons(thinker):
    info = thinker.inference.GetModel(thinker.stubs.inference.GetModelRequest(model="thinker")).model.versions[0].info
    assert info.capabilities.reasoning
    info = thinker.inference.GetModel(thinker.stubs.inference.GetModelRequest(model="sample")).model.versions[0].info
    assert not info.capabilities.reasoning


def openai(seed, thinks, **more):
    return {"model": "thinker", "messages": [{"role": "user", "content": f"question {seed}"}], "seed": seed, "temperature": 1.0,
            "max_tokens": 60, "ignore_eos": True, "allowed_token_ids": ALLOWED, "chat_template_kwargs": {"thinks": thinks}, **more}


@pytest.mark.parametrize("seed", range(4))
def test_openai_has_the_reasoning_of_grpc(thinker, seed):
    thinks = seed % 2 == 1
    choices, usage = stream(thinker, ask(thinker, seed, thinks, n=2))
    post = lambda **more: requests.post(thinker.url, json=openai(seed, thinks, n=2, **more), timeout=patience(60))  # noqa: E731
    whole = post().json()
    got = [(c["message"].get("reasoning_content", ""), c["message"].get("reasoning", ""), c["message"]["content"]) for c in whole["choices"]]
    assert got == [(reasoning, reasoning, content) for reasoning, content, *_ in choices]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == usage.n_reasoning_tokens
    lines = post(stream=True, stream_options={"include_usage": True}).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[-1]["usage"] == whole["usage"]
    parts = [["", "", ""], ["", "", ""]]
    for delta, i in ((c["delta"], c["index"]) for chunk in chunks for c in chunk["choices"]):
        for k, field in enumerate(("reasoning_content", "reasoning", "content")):
            parts[i][k] += delta.get(field) or ""
    assert [tuple(p) for p in parts] == got
    # left out, and left in the content
    left_out = [c["message"] for c in post(include_reasoning=False).json()["choices"]]
    assert all("reasoning" not in m and "reasoning_content" not in m for m in left_out) and [m["content"] for m in left_out] == [g[2] for g in got]
    request = ask(thinker, seed, thinks, n=2)
    request.output.split_reasoning = False
    plain = [content for _, content, *_ in stream(thinker, request)[0]]
    for more in ({"separate_reasoning": False}, {"reasoning_format": "none"}):
        assert [c["message"]["content"] for c in post(**more).json()["choices"]] == plain


def test_openai_takes_reasoning_back_under_both_names(thinker):
    request = ask(thinker, 1)
    request.chat.messages.add(role="assistant", content="b", reasoning_content="a")
    want = thinker.inference.Complete(request, timeout=patience(60)).choices[0]
    for field in ("reasoning_content", "reasoning"):
        body = openai(1, False)
        body["messages"].append({"role": "assistant", "content": "b", field: "a"})
        message = requests.post(thinker.url, json=body, timeout=patience(60)).json()["choices"][0]["message"]
        assert (message.get("reasoning", ""), message["content"]) == (want.reasoning_text, want.text)


def test_the_command_line_prints_reasoning_apart(thinker):
    """sluice run: stdout has the answer alone, and stderr the reasoning."""
    for seed in range(200):
        request = thinker.request("thinker", "", seed=seed, temperature=1.0, max_tokens=200, ignore_eos=True)
        request.chat.messages.add(role="user", content="question")
        request.chat.template = "thinks"
        (reasoning, content, *_), = stream(thinker, request)[0]
        if reasoning and content:
            break
    options = ["--template", "thinks", "--seed", str(seed), "--temperature", "1", "--max-tokens", "200", "--ignore-eos"]
    ran = subprocess.run([BIN / "sluice", "run", "thinker", "question", *options, "--server", thinker.address, "--state-dir", thinker.state],
                         capture_output=True, timeout=patience(60), check=True)
    assert (ran.stdout.decode(), ran.stderr.decode()) == (content + "\n", reasoning + "\n")
