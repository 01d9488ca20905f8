#!/usr/bin/env python3
"""Writes cases.json: what jinja2, set up as transformers does it, makes of the pieces in cases.py.

    pip install jinja2==3.1.6 && python3 make_cases.py
"""

import datetime
import json
import pathlib

import jinja2
from jinja2 import ext, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

import cases

CLOCK = 1721952000


class Generation(ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(pattern):
    return datetime.datetime.fromtimestamp(CLOCK, datetime.timezone.utc).replace(tzinfo=None).strftime(pattern)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    context = {"messages": [], "tools": None, "documents": None, **cases.CONTEXT}
    out = []
    for text in ["{{ " + e + " }}" for e in cases.EXPRESSIONS] + cases.TEMPLATES + cases.NASTY:
        try:
            out.append({"template": text, "expected": env.from_string(text).render(**context)})
        except Exception as problem:  # whatever Python raises: the template fails
            out.append({"template": text, "fails": f"{type(problem).__name__}: {problem}"})
    read = []
    for text, template in cases.JSON_CASES:
        try:
            variable = json.loads(text)
            read.append({"json": text, "template": template, "expected": env.from_string(template).render(j=variable)})
        except Exception as problem:
            read.append({"json": text, "template": template, "fails": f"{type(problem).__name__}: {problem}"[:120]})
    document = {"clock": CLOCK, "context": context, "cases": out, "json_cases": read}
    path = pathlib.Path(__file__).with_name("cases.json")
    path.write_text(json.dumps(document, ensure_ascii=True, indent=0) + "\n")
    print(len(out), "cases,", sum("fails" in c for c in out), "fail")


if __name__ == "__main__":
    main()
