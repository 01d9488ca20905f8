"""Named chat templates through the programs: requests and the command line choose a template as transformers does.
Messages stay open, and arguments of tool calls have two forms."""
import struct
import subprocess

import grpc
import pytest
from google.rpc import error_details_pb2

from conftest import BIN, ROOT, Sluice, details

NAMED = {"tool_use": "T{{ tools|length }}{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}",
         "rag": "R{% for m in messages %}{{ m.content }}{% endfor %}"}
TOOL = '{"type": "function", "function": {"name": "f"}}'


def with_templates(data):
    """A GGUF file with further templates. The added bytes are a multiple of the alignment, which the data keep."""
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def added(padding):
        values = {f"tokenizer.chat_template.{name}": t for name, t in NAMED.items()} | {"general.padding": "x" * padding}
        rows = [text(key) + struct.pack("<I", 8) + text(value) for key, value in values.items()]
        rows.append(text("tokenizer.chat_templates") + struct.pack("<IIQ", 9, 8, len(NAMED)) + b"".join(map(text, NAMED)))
        return len(rows), b"".join(rows)

    n_tensors, n_keys = struct.unpack("<QQ", data[8:24])
    padding = -len(added(0)[1]) % 32
    n_rows, rows = added(padding)
    assert len(rows) % 32 == 0
    return data[:8] + struct.pack("<QQ", n_tensors, n_keys + n_rows) + rows + data[24:]


@pytest.fixture(scope="module")
def named(tmp_path_factory, stubs):
    folder = tmp_path_factory.mktemp("models")
    (folder / "named.gguf").write_bytes(with_templates((ROOT / "tests/golden/tiny/q4_1.gguf").read_bytes()))
    sluice = Sluice(tmp_path_factory.mktemp("state"), stubs)
    sluice.start()
    try:
        sluice.cli("register", "named", folder / "named.gguf", "--version", "1")
        sluice.cli("load", "named", "--kv-tokens", "2048")
        sluice.wait(lambda: sluice.run("named", "hi", "-n", "1", check=False).returncode == 0, 30, "the model answers")
        yield sluice
    finally:
        sluice.stop()


def rendered(sluice, messages=({"role": "user", "content": "hi"},), **chat):
    t = sluice.stubs.inference
    chat = t.Chat(messages=[t.ChatMessage(**m) for m in messages], **chat)
    return sluice.inference.ApplyChatTemplate(t.ApplyChatTemplateRequest(model="named", chat=chat)).text


def refused(sluice, **chat):
    with pytest.raises(grpc.RpcError) as e:
        rendered(sluice, **chat)
    return e.value.code(), [v.field for v in details(e.value, error_details_pb2.BadRequest).field_violations]


def test_the_name_chooses_and_tools_prefer_tool_use(named):
    plain = rendered(named)
    assert plain not in ("Rhi", "T0") and "hi" in plain
    assert rendered(named, template="default") == plain
    assert rendered(named, template="rag") == "Rhi"
    assert rendered(named, tools_json=[TOOL, TOOL]) == "T2"
    assert rendered(named, tools_json=[TOOL], template="rag") == "Rhi"
    assert rendered(named, tools_json=[TOOL], template="default") != "T1"
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refused(named, template="poem") == (invalid, ["chat.template"])
    assert refused(named, template="rag", template_override="x") == (invalid, ["chat.template"])
    assert refused(named, template="x" * 200) == (invalid, ["chat.template"])


def test_the_answer_follows_the_chosen_template(named):
    t = named.stubs.inference
    chat = t.Chat(messages=[t.ChatMessage(role="user", content="hi")], template="rag")
    ids = named.inference.Tokenize(t.TokenizeRequest(model="named", chat=chat)).ids
    assert list(ids) == list(named.inference.Tokenize(t.TokenizeRequest(model="named", text="Rhi", add_special_tokens=False)).ids)
    answer = named.inference.Complete(t.GenerateRequest(model="named", chat=chat, stopping=t.Stopping(max_tokens=2)))
    assert answer.usage.n_prompt_tokens == len(ids)
    printed = named.cli("tokenize", "named", "--chat", "--template", "rag", "hi").stdout.split()
    assert printed == [str(i) for i in ids]
    assert named.cli("run", "named", "hi", "-n", "2", "--template", "poem", check=False).returncode != 0


def test_inspect_lists_the_names(named, tmp_path):
    path = tmp_path / "named.gguf"
    path.write_bytes(with_templates((ROOT / "tests/golden/tiny/q4_1.gguf").read_bytes()))
    report = subprocess.run([BIN / "sluice-worker", "inspect", path], check=True, capture_output=True).stdout
    found = named.stubs.report.ToolReport.FromString(report).inspect.named_templates
    assert {t.name: t.text for t in found} == NAMED and not any(t.error for t in found)


def test_arguments_are_text_or_an_object(named):
    for arguments in ('{"a": 1}', '"{\\"a\\": 1}"'):
        calls = [{"role": "assistant", "tool_calls_json": '[{"function": {"name": "f", "arguments": %s}}]' % arguments}]
        assert rendered(named, messages=calls, tools_json=[TOOL]) == 'T1{"a": 1}'


def test_the_last_message_stays_open(named):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, ", "reasoning_content": "So "}]
    assert rendered(named, messages=messages, template="rag", continue_final_message=True) == "RhiWell, "
    override = "{% for m in messages %}{{ m.thinking }}|{{ m.content }}{% endfor %}"
    chat = {"messages": messages, "template_override": override, "continue_final_message": True}
    assert rendered(named, **chat, continue_field="reasoning_content") == "|hiSo "
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refused(named, **chat, add_generation_prompt=True) == (invalid, ["chat.add_generation_prompt"])
    assert refused(named, **chat, continue_field="name") == (invalid, ["chat.continue_field"])
    assert refused(named, messages=messages[:1], tools_json=[TOOL], continue_final_message=True) == (invalid, ["chat.continue_final_message"])
