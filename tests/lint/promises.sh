#!/usr/bin/env bash
# tests/PROMISES.md: each row has a promise of at most 20 words and one test, which exists.
#    C, C++     The file defines a function of that name and gives it to cmocka.
#    Python     The file defines a function of that name.
#    otherwise  The third column names the file that runs the script or program.
# usage: tests/lint/promises.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 - <<'PYTHON'
import pathlib
import re
import sys

MOST_WORDS = 20
PAGE = pathlib.Path("tests/PROMISES.md")
bad = n_rows = 0
seen = {}


def breach(i, text):
    global bad
    bad += 1
    print(f"promises: {PAGE}:{i}: {text}")


def why_not(path, name):
    """Why the test is none; None: it is one."""
    if not path.is_file():
        return f"{path} does not exist"
    text = path.read_text()
    runner = pathlib.Path(name)
    if "/" in name:
        if not runner.is_file():
            return f"{name} does not exist"
        runs = {path.name, path.stem} if path.suffix == ".c" else {path.name}
        if runner.name == "CMakeLists.txt" and path.parent == runner.parent:
            return None if re.search(rf"\b{path.stem}\b|GLOB|{re.escape(path.name)}", runner.read_text()) else f"{name} does not run {path}"
        return None if any(r in runner.read_text() for r in runs) or "GLOB" in runner.read_text() and runner.parent in path.parents else f"{name} does not run {path}"
    if path.suffix == ".py":
        return None if re.search(rf"^\s*(async )?def {name}\(", text, re.M) else f"{path} has no test {name}"
    if not re.search(rf"\b{name}\(void \*\*", text):
        return f"{path} defines no test {name}"
    if len(re.findall(rf"\b{name}\b", text)) < 2:
        return f"{path} does not run {name}"
    return None


for i, line in enumerate(PAGE.read_text().split("\n"), 1):
    if not line.startswith("| ") or line.startswith(("| promise", "| ---")):
        continue
    n_rows += 1
    cells = [c.strip() for c in line.strip().strip("|").split(" | ")]
    if len(cells) != 3 or not all(re.fullmatch(r"`[^`]+`", c) for c in cells[1:]):
        breach(i, "a row is: promise | `file` | `test`")
        continue
    promise, path, name = cells[0], cells[1].strip("`"), cells[2].strip("`")
    n_words = len(re.sub(r"`[^`]*`", "code", promise).split())
    if n_words > MOST_WORDS:
        breach(i, f"the promise has {n_words} words, {MOST_WORDS} at most")
    if promise in seen:
        breach(i, f"the promise of line {seen[promise]} again")
    seen[promise] = i
    why = why_not(pathlib.Path(path), name)
    if why:
        breach(i, why)
if n_rows < 100:
    breach(1, f"only {n_rows} rows were read")
print(f"promises: {bad} breaches in {n_rows} rows")
sys.exit(1 if bad else 0)
PYTHON
