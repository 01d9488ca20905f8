"""The rules of tests/lint/reasons.sh. Prints each breach with its place."""
import pathlib
import re
import subprocess
import sys

LIST, PAGE = "base/reason_list.h", "docs/use/errors.md"
PRODUCT = ["base", "proto", "server", "manager", "clients", "engine", "kernels"]
SECTIONS = {
    "REQUEST": "Requests",
    "ACCESS": "Access",
    "CALL": "Calls",
    "FILE": "Model files",
    "COMMAND": "Commands of the manager",
    "DEVICE": "Devices and memory",
    "STORE": "State of the manager",
    "REPLICA": "Replicas, operations and updates",
    "PROGRAM": "Programs and connections",
}
AGAIN = {"NEVER": "no", "LATER": "later", "ELSEWHERE": "elsewhere"}
# Words that are a reason's name and something else: file, name, meaning.
HOMONYMS = {
    ("base/status.c", "CANCELLED"),  # a status
    ("manager/base/pb.c", "LOADING"),  # states of replicas and operations
    ("manager/base/pb.c", "PARKED"),
    ("manager/base/pb.c", "DRAINING"),
    ("manager/base/pb.c", "CANCELLED"),
    ("server/gateway/kserve/kserve_repository.c", "LOADING"),  # a state of KServe's protocol
    ("manager/devices/device_policy.c", "RESTART"),  # an action
    ("clients/cli/bench/bench_report.c", "TTFT"),  # a column
}
breaches = 0


def breach(place, text):
    global breaches
    breaches += 1
    print(f"reasons: {place}: {text}")


class Row:
    def __init__(self, match):
        self.name, self.status, self.other, self.retry, self.area = match.group(1, 2, 3, 4, 5)
        self.limit = None if match.group(6) == "NULL" else match.group(6).strip('"')
        self.next = match.group(7)
        self.statuses = [s for s in (self.status, self.other) if s != "OK"]

    def cells(self, limits):
        text = self.next.replace("%M", "MODEL").replace("%V", "").replace("%G", "").replace("%F", "")
        cells = [f"`{self.name}`", ", ".join(self.statuses) or "recorded only", AGAIN[self.retry], text]
        return cells + ([f"`{self.limit}`" if self.limit else ""] if limits else [])


table = pathlib.Path(LIST).read_text()
ROW = re.compile(r'^    REASON\((\w+), (\w+), (\w+), (\w+), (\w+), (NULL|"\w+"), \\\n           "([^"]*)"\)', re.M)
rows = {m.group(1): Row(m) for m in ROW.finditer(table)}
if len(rows) != table.count("\n    REASON("):
    breach(LIST, f"{table.count(chr(10) + '    REASON(')} rows, of which {len(rows)} have the form of a row")


def section(area):
    of_area = [rows[n] for n in rows if rows[n].area == area]
    limits = any(row.limit for row in of_area)
    lines = ["| reason | status | again | next step |" + (" limit |" if limits else ""), "| --- | --- | --- | --- |" + (" --- |" if limits else "")]
    return "\n".join(lines + ["| " + " | ".join(row.cells(limits)).rstrip() + " |" for row in of_area])


page = pathlib.Path(PAGE).read_text()
for area, title in SECTIONS.items():
    part = re.compile(rf"(?m)(^## {re.escape(title)}\n(?:(?!^## )(?!\|).*\n)*)((?:\|.*\n)+)")
    found = part.search(page)
    if not found:
        breach(PAGE, f'no section "{title}" with a table')
    elif "--docs" in sys.argv:
        page = page[: found.start(2)] + section(area) + "\n" + page[found.end(2):]
    elif found.group(2).strip() != section(area):
        differing = set(found.group(2).strip().split("\n")) ^ set(section(area).split("\n"))
        breach(PAGE, f'"{title}" differs from {LIST}: ' + "; ".join(sorted(differing)[:3]) + "; tests/lint/reasons.sh --docs writes the tables")
if "--docs" in sys.argv:
    pathlib.Path(PAGE).write_text(page)
    sys.exit(0)

files = subprocess.check_output(["git", "ls-files", *PRODUCT], text=True).split("\n")
files = [f for f in files if f.endswith((".c", ".h", ".cu", ".cuh")) and f != LIST and pathlib.Path(f).exists()]
used, options = set(), set()


def code_of(text):
    """Removes comments from the text. Keeps the number of lines."""
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def status_before(lines, i):
    """Returns (statuses of the last error set before line i in its function, lines since then), or None."""
    for j in range(i, max(i - 16, 0), -1):
        if lines[j].startswith("}"):
            return None
        if "error_field(" in lines[j]:
            since = "\n".join(lines[j : i + 1])
            return set(re.findall(r"\bSTATUS_(\w+)", since)) or {"INVALID_ARGUMENT"}, since
        if re.search(r"\b(error_set|checkpoint_unbuilt_key|error_errno|error_no_memory|interp_fail\w*)\(", lines[j]):
            since = "\n".join(lines[j : i + 1])
            return set(re.findall(r"\bSTATUS_(\w+)", since)), since
    return None


for f in files:
    code = code_of(pathlib.Path(f).read_text(errors="replace"))
    lines = code.split("\n")
    options.update(re.findall(r'"([a-z][a-z-]+)"', code))
    for i, line in enumerate(lines):
        place = f"{f}:{i + 1}"
        for name in re.findall(r'"([A-Z][A-Z0-9_]+)"', line):
            if name in rows and (f, name) not in HOMONYMS:
                breach(place, f'the string "{name}": write REASON_{name}, or reason_name()')
        if re.search(r"\b(strn?cmp|strn?casecmp|strstr)\([^;]*\b(reason|reason_name)\b", line) and "status_name(" not in line:
            breach(place, "compares a reason as text: parse it, and compare the enum")
        if re.search(r'\b(reason_parse|error_reason_parse|reason_is)\([^;]*"', line):
            breach(place, "parses a literal: write the enum")
        names = re.findall(r"\bREASON_([A-Z0-9_]+)", line)
        if not f.startswith("base/reason"):
            used.update(names)
        if "error_reason(" not in line or f == "base/error.h":
            continue
        before = status_before(lines, i)
        for name in names:
            if name not in rows or not before:
                continue
            statuses, since = before
            if statuses and not statuses & set(rows[name].statuses):
                breach(place, f"gives {name} with {' or '.join(sorted(statuses))}; its row has {' or '.join(rows[name].statuses) or 'no status'}")
            if re.search(r"retry_after_ms = [^0]", since) and rows[name].retry == "NEVER" and "if (" not in since:
                breach(place, f"gives {name} with a retry time; its row says that a retry never helps")

for name in rows:
    for option in re.findall(r"--([a-z][a-z-]+)", rows[name].next):
        if option not in options:
            breach(LIST, f"{name} advises --{option}, which no program has")
    if name not in used:
        breach(LIST, f"REASON_{name} is never used")

print(f"reasons: {breaches} breaches, {len(rows)} reasons in {len(files)} files")
sys.exit(breaches > 0)
