"""Renders templates/NN_name.jinja with jinja2 as transformers sets it up and writes templates/NN_name.json.

The conversations stand here, the templates in files of their own; the JSON files are made. The clock that
strftime_now reads is fixed. Layout: README.md.

    make_templates.py [FOLDER]     FOLDER: templates of your own, *.jinja; every conversation is rendered with each

The unit test compares such a folder too: SLUICE_TEMPLATES=FOLDER build/dev/bin/test_engine_template_golden families
"""

import datetime
import json
import pathlib
import sys

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).parent / "templates"
CLOCK = datetime.datetime(2025, 7, 6, 13, 5, 9)

ONE = [{"role": "user", "content": "Why is the sky blue?"}]
SYSTEM = [
    {"role": "system", "content": "You are a poet.\nRhyme always."},
    {"role": "user", "content": "  A line about rain, please. \n"},
]
LONG = [
    {"role": "system", "content": "Be exact."},
    {"role": "user", "content": "Grüße! 你好 — what does \"naïve\" mean? <b>&amp;</b>"},
    {"role": "assistant", "content": "\n It means {{ artless }} \\ 'simple'. 🙂 "},
    {"role": "user", "content": "Line one\r\nline two\n\n\tline four"},
    {"role": "assistant", "content": "Seen."},
    {"role": "user", "content": "And {% if %} or <|im_end|>?"},
]
NO_SYSTEM = LONG[1:]
DONE = LONG[:3]
EMPTY = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": " "}]
TWO_SYSTEMS = [
    {"role": "system", "content": "First."},
    {"role": "system", "content": "Second."},
    {"role": "user", "content": "Third."},
]
WRONG_ORDER = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
THINKING = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nFour."},
    {"role": "user", "content": "3+3?"},
    {"role": "assistant", "content": "<think>\nThree twice.\n</think>\n\nSix."},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a place.\nNow, or on a day.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Town & country, e.g. \"Köln\""},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "unit": {"type": "string", "enum": ["°C", "°F"]},
                },
                "required": ["place"],
            },
            "return": {"type": "number"},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "store",
            "description": "Keeps a record.",
            "parameters": {
                "type": "object",
                "properties": {
                    "record": {
                        "type": "object",
                        "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
                        "required": ["id"],
                        "additionalProperties": {"type": "number"},
                    },
                    "force": {"type": "boolean"},
                },
                "required": ["record"],
            },
        },
    },
]
CALLS = [
    {"role": "user", "content": "Weather in Köln?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "a1b2c3d4e",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"place": "Köln", "days": [1, 2], "exact": 1.5, "x": None}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "{\"temp\": 21.5}"},
    {"role": "assistant", "content": "21.5 °C."},
    {"role": "user", "content": "Thanks."},
]
CALLS_TEXT = [dict(m, content=m["content"] or "") for m in CALLS]
TWO_CALLS = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Time and weather?"},
    {
        "role": "assistant",
        "content": "I will look.",
        "tool_calls": [
            {"id": "000000001", "type": "function", "function": {"name": "now", "arguments": {}}},
            {
                "id": "000000002",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"place": "São Paulo", "unit": "°C", "deep": {"a": [True, {}]}}},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "000000001", "content": "13:05"},
    {"role": "tool", "tool_call_id": "000000002", "content": "rain"},
]
BAD_ID = [CALLS[0], {"role": "assistant", "content": "", "tool_calls": [{"id": "short", "type": "function", "function": {"name": "now", "arguments": {}}}]}]
MAPPING_RESULT = [CALLS[0], CALLS[1], {"role": "tool", "content": {"temp": 21.5, "sky": ["grey", None]}}]
PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "See."}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}]},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Sure?"},
]
NESTED = [{"role": "user", "content": "root", "children": [{"role": "a", "content": "x"}, {"role": "b", "content": "y", "children": []}]}]
DOCUMENTS = [{"title": "One", "text": "First paper."}, {"title": "Two", "text": "Second\npaper."}]

PLAIN = [
    ("one", ONE, {}),
    ("one_no_prompt", ONE, {"add_generation_prompt": False}),
    ("system", SYSTEM, {}),
    ("long", LONG, {}),
    ("long_no_system", NO_SYSTEM, {}),
    ("done", DONE, {"add_generation_prompt": False}),
    ("empty", EMPTY, {}),
    ("two_systems", TWO_SYSTEMS, {}),
    ("wrong_order", WRONG_ORDER, {}),
]
WITH_TOOLS = PLAIN[:5] + [
    ("tools_offered", ONE, {"tools": TOOLS}),
    ("tools_and_system", SYSTEM, {"tools": TOOLS[:1]}),
    ("call", CALLS, {"tools": TOOLS}),
    ("call_text", CALLS_TEXT, {"tools": TOOLS}),
    ("two_calls", TWO_CALLS, {"tools": TOOLS}),
    ("bad_id", BAD_ID, {"tools": TOOLS}),
]
EXTRA = {
    "05_llama3_tools": [
        ("mapping_result", MAPPING_RESULT, {"tools": TOOLS}),
        ("date_given", ONE, {"date_string": "24 Dec 1999"}),
        ("tools_in_system", TWO_CALLS[:2], {"tools": TOOLS[:1], "tools_in_user_message": False}),
        ("custom_tools", ONE, {"custom_tools": TOOLS[1:2]}),
    ],
    "09_gemma3_parts": [("parts", PARTS, {})],
    "15_deepseek_r1": [("thinking", THINKING, {})],
    "17_qwen3_thinking": [
        ("thinking", THINKING, {}),
        ("thinking_open", THINKING[:3], {}),
        ("no_thinking", THINKING[:3], {"enable_thinking": False}),
        ("reasoning_field", THINKING[:1] + [{"role": "assistant", "content": "4", "reasoning_content": "\n2+2 \n"}], {}),
    ],
    "22_granite": [
        ("documents", ONE, {"documents": DOCUMENTS}),
        ("both", ONE, {"documents": DOCUMENTS, "tools": TOOLS[1:]}),
        ("controls", ONE, {"controls": {"length": "short", "originality": 3}}),
    ],
    "23_chatglm": [("tools_in_message", [{"role": "system", "tools": [{"name": "a"}, {"name": "b"}]}] + ONE, {}),
                   ("metadata", ONE + [{"role": "assistant", "metadata": "py", "content": "1+1"}], {})],
    "28_control_flow": [("nested", NESTED, {}), ("system_only", TWO_SYSTEMS[:1], {})],
    "34_stablelm_strict": [("unknown_role", ONE + [{"role": "robot", "content": "?"}], {}), ("no_content", [{"role": "user"}], {})],
    "35_phi4_mini_tools": [("tools_string", [{"role": "system", "content": "S", "tools": "[{\"name\": \"f\"}]"}] + ONE, {})],
    "36_smollm3_date": [
        ("no_thinking", DONE, {"enable_thinking": False}),
        ("no_think_in_system", [{"role": "system", "content": "Kind. /no_think"}] + LONG[1:4], {}),
    ],
}
TOOLS_TEMPLATES = {
    "05_llama3_tools", "07_mistral_tools", "15_deepseek_r1", "16_qwen25_tools", "17_qwen3_thinking",
    "19_command_r_tools_macros", "22_granite", "30_hermes_tools", "31_functionary_schema",
}


def run(template, inputs):
    try:
        return {"expected": template.render(**inputs, strftime_now=CLOCK.strftime)}
    except Exception as e:
        if type(e) is jinja2.exceptions.TemplateError:  # by raise_exception
            return {"error": e.message}
        # an error of jinja2 or Python inside a template: the interpreter must fail, too, with any message
        return {"error": None, "note": f"{type(e).__name__}: {e}"}


def conversations(name, foreign):
    """The cases of a template. Every conversation is tried on a foreign template, which may refuse some."""
    if foreign:
        return WITH_TOOLS + PLAIN[5:] + [case for cases in EXTRA.values() for case in cases]
    return (WITH_TOOLS if name in TOOLS_TEMPLATES else PLAIN) + EXTRA.get(name, [])


def main():
    total = failed = failures = 0
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for path in sorted(folder.glob("*.jinja")):
        name = path.stem
        template = _compile_jinja_template(path.read_text(encoding="utf-8"))
        cases = []
        for case, messages, more in conversations(name, folder != HERE):
            inputs = {
                "messages": messages, "tools": None, "documents": None, "add_generation_prompt": True,
                "bos_token": "<s>", "eos_token": "</s>", **more,
            }
            cases.append({"name": case, "inputs": inputs, **run(template, inputs)})
        total += len(cases)
        failed += sum("error" in c for c in cases)
        if not any("expected" in c for c in cases):
            print(f"{name}: no conversation renders: {cases[0]}")
            failures += folder == HERE
        doc = {"template": path.name, "clock": CLOCK.isoformat(), "cases": cases}
        path.with_suffix(".json").write_text(json.dumps(doc, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"templates: {total} cases, {failed} of them errors")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
