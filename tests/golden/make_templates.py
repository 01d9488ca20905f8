"""Renders templates/NN_name.jinja with jinja2 as transformers sets it up and writes templates/NN_name.json.

The conversations stand here, the templates in files of their own; the JSON files are made. The clock that
strftime_now reads is fixed. Layout: README.md.

    make_templates.py [FOLDER]     FOLDER: templates of your own, *.jinja; every conversation is rendered with each

The unit test compares such a folder too: SLUICE_TEMPLATES=FOLDER build/dev/bin/test_engine_template_golden families
"""

import copy
import datetime
import json
import pathlib
import sys

import jinja2
from transformers.utils import chat_template_utils as utils

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
CALLS_JSON = [dict(m) for m in CALLS]
CALLS_JSON[1] = {**CALLS[1], "content": "", "tool_calls": [{"id": "a1b2c3d4e", "type": "function", "function": {
    "name": "get_weather", "arguments": "{\"place\":\"K\\u00f6ln\", \"days\": [1,2]}"}}]}
REASONED = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "", "reasoning": "The clock\nknows. ",
     "tool_calls": [{"id": "000000001", "type": "function", "function": {"name": "now", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "000000001", "name": "now", "content": "13:05"},
]
NAMED = [{"role": "user", "name": "Ada", "content": "Hi."}, {"role": "assistant", "name": "Bot", "content": "Hi, Ada."},
         {"role": "tool", "name": "note", "tool_call_id": "1", "content": "ok"}, {"role": "user", "content": "Bye."}]
KINDS = {"type": "function", "function": {"name": "kinds", "description": "All kinds.", "strict": True, "parameters": {
    "type": "object", "required": ["a"], "additionalProperties": False, "properties": {
        "a": {"type": ["string", "null"], "description": "Or nothing."},
        "b": {"type": "string", "enum": ["x", "y"], "default": "x"},
        "c": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "boolean"}}}, "nullable": True},
        "e": {"oneOf": [{"type": "integer", "description": "a count"}, {"type": "string"}]},
        "f": {"type": "integer", "default": 3, "minimum": -1.5},
        "g": {"type": "object", "properties": {"h": {"type": "number"}}, "required": ["h"]}}}}}
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

OPEN = {"add_generation_prompt": False, "continue_final_message": True}
OPEN_REASONING = {"add_generation_prompt": False, "continue_final_message": "reasoning_content"}

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
CONTINUED = [
    ("continued", [*SYSTEM, {"role": "assistant", "content": "Drops fall, "}], OPEN),
    ("continued_blank_end", [*ONE, {"role": "assistant", "content": " Air\u00a0scatters \n\t\u3000"}], OPEN),
    ("continued_empty", [*ONE, {"role": "assistant", "content": ""}], OPEN),
    ("continued_thought", [*ONE, {"role": "assistant", "content": "<think>\nBlue light"}], OPEN),
]
WITH_TOOLS = [
    ("tools_offered", ONE, {"tools": TOOLS}),
    ("tools_and_system", SYSTEM, {"tools": TOOLS[:1]}),
    ("call", CALLS, {"tools": TOOLS}),
    ("call_text", CALLS_TEXT, {"tools": TOOLS}),
    ("two_calls", TWO_CALLS, {"tools": TOOLS}),
    ("bad_id", BAD_ID, {"tools": TOOLS}),
    ("continued_call", [*CALLS, {"role": "assistant", "content": "You are wel"}], {"tools": TOOLS, **OPEN}),
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
    "37_gpt_oss": [
        ("effort", ONE, {"reasoning_effort": "high", "model_identity": "You are Harmony."}),
        ("thinking", REASONED, {"tools": TOOLS[1:2]}),
        ("kinds", ONE, {"tools": [KINDS]}),
        ("content_and_thinking", [ONE[0], {**REASONED[1], "content": "Both."}], {}),
    ],
    "38_qwen3_coder": [("kinds", ONE, {"tools": [KINDS]})],
    "39_qwen35_parts": [
        ("parts", PARTS, {"add_vision_id": True}),
        ("reasoned", REASONED, {"tools": TOOLS[1:2]}),
        ("no_thinking", THINKING, {"enable_thinking": False}),
        ("continued_reasoning", [*ONE, {"role": "assistant", "content": "", "reasoning_content": "Two and "}], OPEN_REASONING),
        ("continued_old_name", [*ONE, {"role": "assistant", "content": "", "reasoning": "Two and \n"}],
         {"add_generation_prompt": False, "continue_final_message": "reasoning"}),
        ("continued_parts", [PARTS[1], {"role": "assistant", "content": [{"type": "text", "text": "A "}, {"type": "image"}]}], OPEN),
        ("continued_no_text", [PARTS[1], {"role": "assistant", "content": [{"type": "image"}]}], OPEN),
        ("continued_no_reasoning", [*ONE, {"role": "assistant", "content": "A"}], OPEN_REASONING),
    ],
    "40_glm45": [
        ("parts", PARTS, {}),
        ("reasoned", REASONED, {"tools": TOOLS[1:2]}),
        ("no_thinking", DONE, {"enable_thinking": False}),
    ],
    "41_kimi_k2": [("reasoned", REASONED, {"tools": TOOLS[1:2]}), ("arguments_text", CALLS_JSON, {}), ("named", NAMED, {})],
    "42_minimax_m2": [("reasoned", REASONED, {"tools": TOOLS[1:2]}), ("thinking", THINKING[:2], {"add_generation_prompt": False}),
                      ("dated", [{"role": "system", "content": "S", "current_date": "2025-07-06"}] + ONE, {})],
    "43_deepseek_v31": [("thinking_on", THINKING, {"thinking": True}), ("arguments_text", CALLS_JSON, {})],
    "44_gemma4": [("parts", PARTS, {"enable_thinking": True}), ("kinds", ONE, {"tools": [KINDS]}), ("named", NAMED, {})],
    "45_seed_oss": [("budget", ONE, {"thinking_budget": 700}), ("no_budget", SYSTEM, {"thinking_budget": 0}),
                    ("reasoned", REASONED, {"tools": TOOLS[:2]})],
    "46_nemotron_nano": [("no_think", [{"role": "system", "content": "/no_think Be kind. </think>"}] + ONE, {}),
                         ("thinking", THINKING, {"add_generation_prompt": False})],
    "47_mistral_small": [("parts", PARTS, {}), ("arguments_text", CALLS_JSON, {"tools": TOOLS[:1]}), ("mapping_result", MAPPING_RESULT, {})],
    "48_command_a_rag": [("documents", ONE, {"documents": DOCUMENTS, "tools": TOOLS[1:2]}), ("strict", ONE, {"safety_mode": "strict"})],
    "49_llama4": [("parts", PARTS, {}), ("mapping_result", MAPPING_RESULT, {"tools": TOOLS[:1]}),
                  ("definition", ONE, {"custom_tools": TOOLS[1:2], "tool_definition": "Given: "})],
    "50_exaone4": [("thinking", THINKING, {"skip_think": False, "add_generation_prompt": False}),
                   ("thinking_on", THINKING, {"enable_thinking": True}), ("reasoned", REASONED, {})],
    "36_smollm3_date": [
        ("no_thinking", DONE, {"enable_thinking": False}),
        ("no_think_in_system", [{"role": "system", "content": "Kind. /no_think"}] + LONG[1:4], {}),
    ],
}
TOOLS_TEMPLATES = {
    "05_llama3_tools", "07_mistral_tools", "15_deepseek_r1", "16_qwen25_tools", "17_qwen3_thinking",
    "19_command_r_tools_macros", "22_granite", "30_hermes_tools", "31_functionary_schema", "37_gpt_oss", "38_qwen3_coder",
    "39_qwen35_parts", "40_glm45", "41_kimi_k2", "42_minimax_m2", "43_deepseek_v31", "44_gemma4", "45_seed_oss",
    "46_nemotron_nano", "47_mistral_small", "48_command_a_rag", "49_llama4", "50_exaone4",
}


def whole(messages, more):
    return {
        "messages": messages, "tools": None, "documents": None, "add_generation_prompt": True,
        "bos_token": "<s>", "eos_token": "</s>", **more,
    }


SHARED = {name: whole(messages, more) for name, messages, more in PLAIN + CONTINUED + WITH_TOOLS}


def run(text, inputs):
    """The text that apply_chat_template makes, or its refusal."""
    more = dict(inputs)
    messages = copy.deepcopy(more.pop("messages"))
    try:
        return {"expected": utils.render_jinja_template([messages], chat_template=text, **more)[0][0]}
    except Exception as e:
        if type(e) is jinja2.exceptions.TemplateError:  # by raise_exception
            return {"error": e.message}
        # an error of transformers, jinja2 or Python: the interpreter must fail, too, with any message
        return {"error": None, "note": f"{type(e).__name__}: {e}"[:200]}


def conversations(name, foreign):
    """Names of a template's shared cases, and its own cases. A foreign template may refuse some of them."""
    if foreign:
        return list(SHARED), [case for cases in EXTRA.values() for case in cases]
    shared = list(SHARED) if name in TOOLS_TEMPLATES else [case[0] for case in PLAIN + CONTINUED]
    return shared, EXTRA.get(name, [])


def write(path, doc):
    path.write_text(json.dumps(doc, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    total = failed = failures = 0
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    utils.datetime = type("Clock", (), {"now": staticmethod(lambda: CLOCK)})
    for path in sorted(folder.glob("*.jinja")):
        name = path.stem
        text = path.read_text(encoding="utf-8")
        shared, own = conversations(name, folder != HERE)
        cases = [{"name": case, **run(text, SHARED[case])} for case in shared]
        for case, messages, more in own:
            inputs = whole(messages, more)
            cases.append({"name": case, "inputs": inputs, **run(text, inputs)})
        total += len(cases)
        failed += sum("error" in c for c in cases)
        if not any("expected" in c for c in cases):
            print(f"{name}: no conversation renders: {cases[0]}")
            failures += folder == HERE
        write(path.with_suffix(".json"), {"template": path.name, "clock": CLOCK.isoformat(), "cases": cases})
    write(folder / "shared_inputs.json", SHARED)
    print(f"templates: {total} cases, {failed} of them errors")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
