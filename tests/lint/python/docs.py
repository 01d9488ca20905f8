"""The checks of tests/lint/docs.sh that need no program. Prints each breach with its place."""
import pathlib
import re
import subprocess
import sys

HOUSE_LINES = 120
CODE = (".c", ".h", ".cu", ".cc", ".cuh", ".sh", ".py", ".proto", ".cmake", ".txt", ".json", ".yaml", ".yml", ".conf", ".service", ".supp", ".go", ".mod",
        ".toml", ".jinja")
RATE = re.compile(r"\d [TGM]?(tokens/s|tokens per second|B/s|flop/s)\b")
RECORD = re.compile(r"\]\([^)]*(log/|RESULTS\.md)|`tests/gpu/RESULTS\.md`")

files = [f for f in subprocess.check_output(["git", "ls-files"], text=True).split("\n") if f and pathlib.Path(f).is_file()]
known = set(files)
folders = {str(parent) for f in files for parent in pathlib.Path(f).parents}
basenames = {pathlib.Path(f).name for f in files}
stems = {pathlib.Path(f).stem for f in files}
docs = [f for f in files if f.endswith(".md") and not f.startswith("tests/golden/templates/")]
bad = 0


def breach(place, text):
    global bad
    bad += 1
    print(f"docs: {place}: {text}")


def source_text(path):
    return pathlib.Path(path).read_text(errors="replace")


sources = "\n".join(source_text(f) for f in files if f.endswith(CODE) or f.startswith("etc/"))
identifiers = set(re.findall(r"[A-Za-z_]\w*", sources))
options = set(re.findall(r'(?:--|")([a-z][a-z0-9-]+)', sources))


def is_dated(path):
    return re.match(r"docs/log/\d{4}-", path) is not None


def blocks(text):
    """(line, line text, in a code block) of a page."""
    in_code = False
    for i, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            continue
        yield i, line, in_code or line.startswith("    ")


def anchors(path):
    found, seen = set(), {}
    for _, line, in_code in blocks(source_text(path)):
        m = None if in_code else re.match(r"#+\s+(.*)", line)
        if m:
            slug = re.sub(r"[^\w\- ]", "", m.group(1).replace("`", "").strip().lower()).replace(" ", "-")
            n = seen.get(slug, 0)
            seen[slug] = n + 1
            found.add(slug if n == 0 else f"{slug}-{n}")
    return found


def check_links(path, i, line):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        to = pathlib.Path(path) if not name else (pathlib.Path(path).parent / name)
        if not to.exists():
            breach(f"{path}:{i}", f"the link to {target} leads nowhere")
        elif anchor and anchor not in anchors(to):
            breach(f"{path}:{i}", f"{name or path} has no heading for #{anchor}")


def check_name(path, i, span):
    place = f"{path}:{i}"
    if re.search(r"\b(NAME|DATE|NN_)", span):  # a placeholder
        return
    m = re.fullmatch(r"((?:\./)?[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*)\.(c|h|cu|cc|sh|proto|md|py|json|supp|txt|yaml)", span)
    if m:
        here = pathlib.Path(path).parent / span
        if "/" in span and span not in known and not here.exists() and not span.startswith("build/"):
            breach(place, f"names {span}, which does not exist")
        elif "/" not in span and span not in basenames:
            breach(place, f"names {span}, which no folder has")
        return
    m = re.fullmatch(r"((?:base|kernels|engine|proto|server|manager|clients|tests|etc|docs|cmake)(?:/[A-Za-z0-9_.-]+)*)/", span)
    if m and m.group(1) not in folders and not (pathlib.Path(path).parent / span).exists():
        breach(place, f"names the folder {span}, which does not exist")
    m = re.fullmatch(r"([a-z_]\w+)\(\)", span)
    if m and m.group(1) not in identifiers:
        breach(place, f"names {span}, which no source has")
    m = re.match(r"--([a-z][a-z0-9-]+)\b", span)
    if m and m.group(1).removeprefix("no-") not in options and m.group(1) not in options:
        breach(place, f"names --{m.group(1)}, which no program has")
    m = re.match(r"(SLUICE_[A-Z0-9_]+)\b", span)
    if m and m.group(1) not in identifiers and m.group(1)[len("SLUICE_"):].lower().replace("_", "-") not in options:
        breach(place, f"names {m.group(1)}, which nothing reads")


def check_figures(path, text):
    for section in re.split(r"(?m)^(?=#+ )", text):
        prose = re.sub(r"(?s)```.*?```", "", section)
        m = RATE.search(prose)
        if m and not RECORD.search(prose):
            heading = section.split("\n", 1)[0].strip("# ")
            breach(path, f'the section "{heading}" has a figure ({m.group(0)}) and links no record')


for path in docs:
    text = source_text(path)
    for i, line, in_code in blocks(text):
        if in_code:
            continue
        check_links(path, i, line)
        if not is_dated(path) and path != "tests/gpu/RESULTS.md":
            for span in re.findall(r"`([^`]+)`", line):
                check_name(path, i, span)
    if is_dated(path):
        for field in ("Date: 20\\d\\d-\\d\\d-\\d\\d", "Commit: \\S", "Machine: \\S", "Command: \\S"):
            if not re.search(rf"(?m)^- {field}", text):
                breach(path, f'has no line "- {field.split(":")[0]}:"')
    if path == "docs/log/performance.md":
        for i, line, in_code in blocks(text):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if not in_code and line.startswith("|") and len(cells) > 1 and re.search(r"\d", cells[1]) and not re.search(r"\]\([^)]+\.md\)", line):
                breach(f"{path}:{i}", "a figure without a link to its record")
    if path == "README.md" or path.startswith(("docs/use/", "docs/house/")):
        check_figures(path, text)
    if path.startswith("docs/house/") and text.count("\n") > HOUSE_LINES:
        breach(path, f"has {text.count(chr(10))} lines, {HOUSE_LINES} at most")
    if path.startswith("docs/house/") and not path.endswith("glossary.md") and "\n```\n" not in text:
        breach(path, "has no picture")

for path in files:
    if path.endswith(CODE + (".md",)) or path.startswith(("etc/", ".ci/")):
        for i, line in enumerate(source_text(path).split("\n"), 1):
            for target in re.findall(r"(?<![\w/.-])docs/[A-Za-z0-9_./-]+\.md\b", line):
                if not pathlib.Path(target).exists():
                    breach(f"{path}:{i}", f"names {target}, which does not exist")

print(f"docs: {bad} breaches in {len(docs)} pages")
sys.exit(1 if bad else 0)
