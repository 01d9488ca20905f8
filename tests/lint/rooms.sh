#!/usr/bin/env bash
# The rooms of the house (tests/lint/rooms.txt), which must hold three rules:
#   1. No flat folder holds more than 16 sources (.c .cu .cc .py .sh; a header belongs to its source).
#   2. An include goes only to the same room or to a room before it.
#   3. A public function's name begins with the stem of its header, or with that stem's first word. The name may also
#      begin with the name of a folder above the header (singular or plural). A backend's op ends with the backend's name
#      instead: add_cpu().
# Exceptions are the lines of tests/lint/rooms_exceptions.txt. The list may only shrink: an unused exception is an error.
#
# usage: tests/lint/rooms.sh [--list]    --list prints all breaches as exceptions
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 - "$@" <<'PYTHON'
import collections, pathlib, re, subprocess, sys

MOST_SOURCES = 16
PRODUCT = ("base/", "kernels/", "engine/", "proto/", "server/", "manager/", "clients/")
files = [f for f in subprocess.check_output(["git", "ls-files"], text=True).split("\n") if f and pathlib.Path(f).exists()]
breaches = []

# 1. Flat folders.
count = collections.Counter()
for f in files:
    if f.endswith((".c", ".cu", ".cc", ".py", ".sh")):
        count[str(pathlib.Path(f).parent)] += 1
breaches += [f"flat {folder} {n}" for folder, n in sorted(count.items()) if n > MOST_SOURCES]

# 2. Arrows between rooms.
rooms = {}
for line in open("tests/lint/rooms.txt"):
    if line.strip() and not line.startswith("#"):
        folder, names = line.split(":")
        rooms[folder] = {name: i for i, name in enumerate(names.split())}
known = set(files)


def room_of(folder, path):
    rest = path[len(folder) + 1:]
    return rest.split("/")[0] if "/" in rest else "."


for folder, order in rooms.items():
    below = [f for f in files if f.startswith(folder + "/") and f.endswith((".c", ".h", ".cu"))]
    for f in below:
        room = room_of(folder, f)
        if room not in order:
            if room not in ("tools", "c", "cli", "gateway", "worker"):
                breaches.append(f"room {folder}/{room}")
            continue
        for include in re.findall(r'^\s*#\s*include "([^"]+)"', open(f).read(), re.M):
            if include in known and include.startswith(folder + "/"):
                other = room_of(folder, include)
                if other in order and order[other] > order[room]:
                    breaches.append(f"arrow {f} {include}")

# 3. Public names.
PROTOTYPE = re.compile(r"^(?!static|typedef|#|extern \"C\"|return|else)[a-z_][\w\s\*]*?\b(\w+)\((?!\*)", re.M)


def stems(path):
    """The stem, its first word, and the folders above: with the plural, and without."""
    p = pathlib.Path(path)
    for part in (p.stem, p.stem.split("_")[0], *p.parent.parts):
        yield from {part, part.removesuffix("s"), part + "s"}


for f in files:
    if f.startswith(PRODUCT) and f.endswith(".h") and not f.endswith("_impl.h"):
        text = re.sub(r"/\*.*?\*/", "", open(f).read(), flags=re.S)
        text = re.sub(r"^#.*?(?<!\\)$", "", text, flags=re.S | re.M)
        depth, flat = 0, []
        for line in text.split("\n"):  # prototypes alone: nothing within braces
            if depth == 0:
                flat.append(line)
            depth += line.count("{") - line.count("}")
        for name in PROTOTYPE.findall("\n".join(flat)):
            if name.isupper() or name.startswith("__"):
                continue
            backend = pathlib.Path(f).stem.split("_")[-1]  # add_cpu() is the CPU's op_add(): ops_cpu.h
            if not name.endswith("_" + backend) and not any(name == s or name.startswith(s + "_") for s in stems(f)):
                breaches.append(f"name {f} {name}")

breaches = sorted(set(breaches))
if "--list" in sys.argv:
    print("\n".join(breaches))
    sys.exit(0)
allowed = {l.strip() for l in open("tests/lint/rooms_exceptions.txt") if l.strip() and not l.startswith("#")}
bad = [b for b in breaches if b not in allowed]
stale = sorted(allowed - set(breaches))
for b in bad:
    print(f"rooms: {b}")
for s in stale:
    print(f"rooms: {s}: no longer needed; remove the line from tests/lint/rooms_exceptions.txt")
print(f"rooms: {len(bad)} breaches, {len(allowed)} exceptions")
sys.exit(1 if bad or stale else 0)
PYTHON
