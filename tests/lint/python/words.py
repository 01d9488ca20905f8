"""The rules of tests/lint/words.sh. Reads the tracked files, prints each breach with its place."""
import ast
import collections
import io
import pathlib
import re
import subprocess
import sys
import tokenize

FIRST_COMMIT = "44cb29b"  # subjects after this one count
FORBIDDEN = re.compile(r"^(who|what|whether|whoever|of|one|such|nobody|it)\b(?![-_(\[*/:=.])", re.I)
COMMENT_WORDS, DOC_WORDS, CELL_WORDS, SUBJECT = 20, 25, 40, 72
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|no|eq|sec|fig|approx|resp|incl|max|min)\.(?=\s)", re.I)
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]+")
SQL = re.compile(r"(CREATE|DROP) TABLE ")  # no sentence
EXCEPTIONS = pathlib.Path("tests/lint/words_exceptions.txt")


def sentences(text):
    """(offset, sentence) of a text. A blank line, a list item and a line that is set apart by its indent end a sentence."""
    text = ABBREVIATIONS.sub(lambda m: m.group(0)[:-1] + "\0", text)
    start = 0
    for m in re.finditer(r"(?<=[.!?])[)\"'`*]*\s+(?=[A-Z0-9`\"'(\[<*_-])|\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)])\s)|\n(?=\s{3,}\S)|\n(?=\s*[|#>])|(?<=:)\n", text):
        yield start, text[start:m.start()]
        start = m.end()
    yield start, text[start:]


def n_words(sentence):
    """Words of a sentence. Code, formulas and paths do not count."""
    sentence = re.sub(r"`[^`]*`", " code ", sentence)
    sentence = re.sub(r"\S*[_/=<>\[\]{}()|\\]\S*", lambda m: " ".join(WORD.findall(m.group(0))) if m.group(0)[0] == "(" or m.group(0)[-1] in ").," and not re.search(r"[_/=<>\[\]{}|\\]", m.group(0)) else " ", sentence)
    return len(WORD.findall(sentence))


def prose(text, most, line_of):
    """Breaches of a comment or a paragraph."""
    for at, sentence in sentences(text):
        plain = sentence.strip().lstrip("-*+#> \t")
        plain = re.sub(r"^\d+[.)]\s+", "", plain)
        plain = re.sub(r"^[\"'`(\[*]+", "", plain) if not plain.startswith("`") else plain
        line = line_of(at + len(sentence) - len(sentence.lstrip()))
        if FORBIDDEN.match(plain) and n_words(plain) > 1:
            yield line, "opening", plain
        n = n_words(plain)
        if n > most:
            yield line, f"length {n}", plain


def c_comments(source):
    """(line, comment text, is_string) of C: comments with their decoration replaced by spaces, and string literals."""
    pattern = re.compile(r'//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?"(?:[^"\\\n]|\\.)*")*|\'(?:[^\'\\\n]|\\.)+\'', re.S)
    for m in pattern.finditer(source):
        token = m.group(0)
        line = source.count("\n", 0, m.start()) + 1
        if token.startswith("//"):
            yield line, re.sub(r"(^|\n)[ \t]*//+", r"\1", token), False
        elif token.startswith("/*"):
            body = token[2:-2]
            body = re.sub(r"\n[ \t]*\*(?!/) ?", "\n", body)
            body = re.sub(r"(?m)^[ \t]*(?:ptxas|ptx): .*$", "", body)  # data for tests/lint/ptxas.sh
            yield line, body.strip("* \t"), False
        elif token.startswith('"'):
            yield line, "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', token)).replace("\\n", "\n").replace('\\"', '"'), True


def hash_comments(source):
    """Runs of whole-line # comments, and comments at the end of a line, of shell, CMake and Python."""
    run, start = [], 0
    for i, line in enumerate(source.split("\n") + [""], 1):
        m = re.match(r"^\s*#(?!!)(.*)$", line)
        if m:
            if not run:
                start = i
            run.append(re.sub(r"^ ", "", m.group(1)))
            continue
        if run:
            yield start, "\n".join(run)
            run = []
        m = re.search(r"\s#\s(?=[A-Za-z`])([^\"'#]*)$", line)
        if m:
            yield i, m.group(1)


def python_texts(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        pass
    yield from hash_comments(re.sub(r'"""', "'''", source))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            yield node.body[0].lineno, ast.get_docstring(node)


def markdown(source):
    """Prose of a doc without code blocks; tables give their cells."""
    lines, in_code, keep, cells = source.split("\n"), False, [], []
    for i, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            keep.append("")
        elif in_code or line.startswith("    "):
            keep.append("")
        elif line.lstrip().startswith("|"):
            cells += [(i, c.strip()) for c in line.strip().strip("|").split("|")]
            keep.append("")
        else:
            keep.append(line)
    return "\n".join(keep), cells


def breaches_of(path):
    source = pathlib.Path(path).read_text(errors="replace")
    if path.endswith((".c", ".h", ".cu", ".cc", ".proto")):
        for line, text, is_string in c_comments(source):
            if is_string:
                if n_words(text) < 4 or path.startswith("tests/") or SQL.match(text):
                    continue
                for place, kind, what in prose(text, DOC_WORDS, lambda at: line):
                    yield place, kind, what
            else:
                yield from prose(text, COMMENT_WORDS, lambda at: line + text.count("\n", 0, at))
    elif path.endswith(".md"):
        text, cells = markdown(source)
        yield from prose(text, DOC_WORDS, lambda at: 1 + text.count("\n", 0, at))
        for line, cell in cells:
            if n_words(cell) > CELL_WORDS:
                yield line, f"cell {n_words(cell)}", cell
            yield from prose(cell, DOC_WORDS, lambda at: line)
    elif path.endswith(".py"):
        for line, text in python_texts(source):
            yield from prose(text, COMMENT_WORDS, lambda at: line + text.count("\n", 0, at))
    else:
        for line, text in hash_comments(source):
            yield from prose(text, COMMENT_WORDS, lambda at: line + text.count("\n", 0, at))


def wanted(path):
    if path.startswith(("tests/golden/templates/", "tests/fuzz/corpus/", "proto/google/", "proto/grpc/")) or path == "LICENSE":
        return False
    return path.endswith((".c", ".h", ".cu", ".cc", ".proto", ".md", ".py", ".sh", ".cmake", ".conf", ".service", ".yml", ".yaml")) or path.endswith(
        "CMakeLists.txt")


def main(words):
    options = [w for w in words if w.startswith("--")]
    paths = [w.rstrip("/") for w in words if not w.startswith("--")]
    files = [f for f in subprocess.check_output(["git", "ls-files"], text=True).split("\n") if f and wanted(f)]
    files = [f for f in files if pathlib.Path(f).exists()]
    if paths:
        files = [f for f in files if any(f == p or f.startswith(p + "/") for p in paths)]
    found = {f: list(breaches_of(f)) for f in files}
    if "--list" in options:
        for f, breaches in found.items():
            for line, kind, text in breaches:
                print(f"{f}:{line}: {kind}: {' '.join(text.split())[:160]}")
        return 0
    if "--count" in options:
        for f, breaches in found.items():
            if breaches:
                print(f, len(breaches))
        return 0
    allowed = {}
    if EXCEPTIONS.exists():
        for line in EXCEPTIONS.read_text().split("\n"):
            if line and not line.startswith("#"):
                name, n = line.rsplit(" ", 1)
                allowed[name] = int(n)
    bad = 0
    for f, breaches in found.items():
        if len(breaches) > allowed.get(f, 0):
            bad += 1
            print(f"words: {f}: {len(breaches)} breaches, {allowed.get(f, 0)} allowed")
            for line, kind, text in breaches[:20]:
                print(f"    {f}:{line}: {kind}: {' '.join(text.split())[:120]}")
        elif len(breaches) < allowed.get(f, 0):
            bad += 1
            print(f"words: {f}: {len(breaches)} breaches; lower its line in {EXCEPTIONS} from {allowed[f]}")
    if not paths:
        for f in sorted(set(allowed) - set(found)):
            bad += 1
            print(f"words: {f} is in {EXCEPTIONS} and not in the tree")
        subjects = subprocess.check_output(["git", "log", "--no-merges", "--format=%h %s", f"{FIRST_COMMIT}.."], text=True).split("\n")
        for line in filter(None, subjects):
            commit, _, subject = line.partition(" ")
            if len(subject) > SUBJECT:
                bad += 1
                print(f"words: commit {commit}: its subject has {len(subject)} characters, {SUBJECT} at most")
    print(f"words: {sum(len(b) for b in found.values())} breaches in {len(files)} files, {sum(allowed.values())} allowed")
    return 1 if bad else 0


sys.exit(main(sys.argv[1:]))
