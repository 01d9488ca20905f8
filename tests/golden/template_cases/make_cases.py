#!/usr/bin/env python3
"""Writes cases.json: what jinja2, set up as transformers does it, makes of the pieces in cases.py.

    pip install jinja2==3.1.6 transformers==5.23.0 && python3 make_cases.py
"""

import datetime
import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

import cases

CLOCK = 1721952000


def main():
    now = datetime.datetime.fromtimestamp(CLOCK, datetime.timezone.utc).replace(tzinfo=None)
    context = {"messages": [], "tools": None, "documents": None, **cases.CONTEXT}
    more = {"strftime_now": now.strftime}
    out = []
    for text in ["{{ " + e + " }}" for e in cases.EXPRESSIONS] + cases.TEMPLATES + cases.NASTY:
        try:
            out.append({"template": text, "expected": _compile_jinja_template(text).render(**context, **more)})
        except Exception as problem:  # whatever Python raises: the template fails
            out.append({"template": text, "fails": f"{type(problem).__name__}: {problem}"})
    read = []
    for text, template in cases.JSON_CASES:
        try:
            variable = json.loads(text)
            read.append({"json": text, "template": template, "expected": _compile_jinja_template(template).render(j=variable)})
        except Exception as problem:
            read.append({"json": text, "template": template, "fails": f"{type(problem).__name__}: {problem}"[:120]})
    document = {"clock": CLOCK, "context": context, "cases": out, "json_cases": read}
    path = pathlib.Path(__file__).with_name("cases.json")
    path.write_text(json.dumps(document, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(len(out), "cases,", sum("fails" in c for c in out), "fail")


if __name__ == "__main__":
    main()
